"""OpenTelemetrySubscriber: spans for tasks and attempts, runs and states. Needs the extra `otel`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from supervisor.kernel.event import Event
from supervisor.tasks.lifecycle import (
    AttemptCanceled,
    AttemptFailed,
    AttemptStarting,
    AttemptSucceeded,
    AttemptTimedOut,
    ShutdownCompleted,
    TaskAdded,
    TaskEvent,
    TaskFinished,
    TaskRejected,
    TaskRemoved,
)
from supervisor.tasks.outcome import OutcomeKind

if TYPE_CHECKING:
    from supervisor.subscribers.otel_flows import FlowSpans

try:
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        Span,
        Status,
        StatusCode,
        Tracer,
        TracerProvider,
        get_tracer,
        set_span_in_context,
    )
except ModuleNotFoundError as _error:
    raise ImportError(
        "OpenTelemetrySubscriber needs opentelemetry-api; pip install 'threadvisor[otel]'"
    ) from _error

__all__ = ["OpenTelemetrySubscriber", "details", "nanoseconds"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_FINE: Final = {OutcomeKind.COMPLETED, OutcomeKind.CANCELED}

_Ended = AttemptSucceeded | AttemptFailed | AttemptTimedOut | AttemptCanceled
_Attributes = dict[str, str | bool | int | float]


@dataclass(slots=True)
class _Run:
    """A task between its first and its last event."""

    span: Span
    context: Context  # with the span in it
    attempt: int = 0  # the last one that began
    start: datetime | None = None  # of the attempt in progress
    timed_out: int = 0  # attempt; an error in its closers is no second end


class OpenTelemetrySubscriber:
    """A subscriber that makes a span `task NAME` for each task, with a child `attempt NAME` for each attempt.

    The task's span opens when it is added and closes when it has finished; it is the root of its trace.
    An attempt's span is made when the attempt has ended, with the times of its events. Backoffs,
    overruns, requests to stop and the like are events of the task's span. Attributes are named
    `supervisor.<field>`, durations are in seconds. What failed has the status ERROR with the reason.

    A scheduled run of a flow is a root span `flow NAME` with a child `state LABEL` for each state it enters,
    the exit state included; retries and branches are events of the state's span. A direct `Workflow.run` has
    no spans, for no event tells when it ends.

    Use one for each supervisor: at its shutdown the spans that are still open are closed.
    """

    def __init__(
        self, tracer_provider: TracerProvider | None = None, *, tracer: Tracer | None = None
    ) -> None:
        """Choose where spans go.

        tracer_provider: None takes the global one.  tracer: used instead of one named `supervisor`.
        """
        self._tracer = tracer or get_tracer("supervisor", tracer_provider=tracer_provider)
        self._runs: dict[int, _Run] = {}  # by task id
        self._flows: FlowSpans | None = None
        self._last: datetime | None = None  # time of the last event

    def __call__(self, event: Event) -> None:
        """Turn an event into spans. Runs on the delivery thread."""
        self._last = event.at
        if isinstance(event, TaskEvent):
            self._tell(event)
        elif isinstance(event, ShutdownCompleted):
            self.close()
        elif hasattr(event, "flow_id"):  # whose layer is loaded already
            if self._flows is None:
                from supervisor.subscribers.otel_flows import FlowSpans

                self._flows = FlowSpans(self._tracer)
            self._flows.tell(event)

    def close(self) -> None:
        """Close the spans that are still open, as of the last event. Only when no event can come any more."""
        if self._last is not None:
            at = nanoseconds(self._last)
            while self._runs:
                _, run = self._runs.popitem()
                run.span.end(at)
            if self._flows is not None:
                self._flows.close(self._last)

    def _tell(self, event: TaskEvent) -> None:
        number = event.task_id
        match event:
            case TaskRejected():
                self._reject(event)
            case TaskRemoved():
                pass
            case _ if number is None:
                pass
            case TaskFinished():
                run = self._run(event, number)
                del self._runs[number]
                self._finish(event, run)
            case TaskAdded():
                self._run(event, number)
            case AttemptStarting(attempt=attempt, at=at):
                run = self._run(event, number)
                run.attempt, run.start = attempt, at
            case AttemptSucceeded() | AttemptFailed() | AttemptTimedOut() | AttemptCanceled():
                self._end_attempt(event, self._run(event, number))
            case _:
                self._note(event, self._run(event, number))

    def _run(self, event: TaskEvent, number: int) -> _Run:
        """The run of a task; it opens late when its first events were lost, or when it was never added."""
        run = self._runs.get(number)
        if run is None:
            span = self._tracer.start_span(
                f"task {event.task}",
                context=Context(),  # a root, whatever the delivery thread has in its context
                attributes=_identity(event),
                start_time=nanoseconds(event.at),
            )
            run = self._runs[number] = _Run(span, set_span_in_context(span, Context()))
        return run

    def _end_attempt(self, event: _Ended, run: _Run) -> None:
        if run.timed_out == event.attempt:
            self._note(event, run)
            return
        if isinstance(event, AttemptTimedOut):
            run.timed_out = event.attempt
        start, run.start = run.start, None
        if start is None or run.attempt != event.attempt:  # its start was lost
            start = event.at - timedelta(seconds=event.duration)
        self._attempt(event, run, event.attempt, start, event.kind, _reason(event))

    def _attempt(
        self, event: TaskEvent, run: _Run, attempt: int, start: datetime, result: str, failure: str | None
    ) -> None:
        attributes = _identity(event) | {"supervisor.attempt": attempt}
        attributes["supervisor.result"] = result.removeprefix("attempt_")
        exit_code = getattr(event, "exit_code", None)
        if isinstance(exit_code, int):
            attributes["supervisor.exit_code"] = exit_code
        span = self._tracer.start_span(
            f"attempt {event.task}",
            context=run.context,
            attributes=attributes,
            start_time=nanoseconds(start),
        )
        if failure is not None:
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(nanoseconds(event.at))

    def _finish(self, event: TaskFinished, run: _Run) -> None:
        if run.start is not None:  # given up: its body may run for ever
            self._attempt(
                event, run, run.attempt, run.start, event.outcome, event.reason or str(event.outcome)
            )
        span = run.span
        span.set_attribute("supervisor.outcome", str(event.outcome))
        span.set_attribute("supervisor.attempts", event.attempts)
        if event.outcome not in _FINE:
            span.set_status(Status(StatusCode.ERROR, event.reason or str(event.outcome)))
        span.end(nanoseconds(event.at))

    def _reject(self, event: TaskRejected) -> None:
        at = nanoseconds(event.at)
        attributes = _identity(event) | {
            "supervisor.outcome": str(OutcomeKind.REJECTED),
            "supervisor.rejection": str(event.rejection),
        }
        span = self._tracer.start_span(
            f"task {event.task}", context=Context(), attributes=attributes, start_time=at
        )
        span.set_status(Status(StatusCode.ERROR, event.reason))
        span.end(at)

    def _note(self, event: TaskEvent, run: _Run) -> None:
        if run.span.is_recording():
            run.span.add_event(event.kind, details(event, 4), nanoseconds(event.at))


def nanoseconds(at: datetime) -> int:
    """Return an instant as OpenTelemetry has it."""
    return (at - _EPOCH) // _MICROSECOND * 1000


def _identity(event: TaskEvent) -> _Attributes:
    found: _Attributes = {"supervisor.task": event.task}
    if event.task_id is not None:
        found["supervisor.task_id"] = event.task_id
    return found


def details(event: Event, known: int) -> _Attributes:
    """Return the fields of an event as attributes. known: how many at the start the span has anyway."""
    found: _Attributes = {}
    for each in fields(event)[known:]:
        value = getattr(event, each.name)
        if isinstance(value, str):
            found[f"supervisor.{each.name}"] = str(value)
        elif isinstance(value, bool | int | float):
            found[f"supervisor.{each.name}"] = value
    return found


def _reason(event: _Ended) -> str | None:
    match event:
        case AttemptFailed(error=text):
            return text
        case AttemptTimedOut(timeout=timeout):
            return f"timed out after {timeout:g} s"
        case AttemptSucceeded() | AttemptCanceled():
            return None
