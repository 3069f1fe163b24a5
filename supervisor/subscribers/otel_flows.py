"""What OpenTelemetrySubscriber makes of flows. Loaded with the first event of one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from supervisor.flows.lifecycle import (
    BranchFinished,
    FlowCanceled,
    FlowEvent,
    FlowFailed,
    FlowStarted,
    FlowSucceeded,
    FlowTaskRetrying,
    StateEntered,
)
from supervisor.kernel.event import Event
from supervisor.subscribers.otel import details, nanoseconds

__all__ = ["FlowSpans"]


@dataclass(slots=True)
class _Run:
    """A run of a flow that has not ended."""

    span: Span
    context: Context  # with the span in it
    state: Span | None = None  # of the state it is in


class FlowSpans:
    """The runs of flows of one subscriber. For one thread."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._runs: dict[str, _Run] = {}  # by flow

    def tell(self, event: Event) -> None:
        """Turn an event of a flow into spans."""
        match event:
            case FlowStarted():
                self._start(event, event.run, event.at, {"supervisor.cause": event.cause})
            case FlowSucceeded() | FlowFailed() | FlowCanceled():
                self._end(event)
            case StateEntered() if (run := self._runs.get(event.flow_id)) is not None:
                self._enter(event, run)
            case FlowTaskRetrying() | BranchFinished() if (run := self._runs.get(event.flow_id)) is not None:
                (run.state or run.span).add_event(event.kind, details(event, 3), nanoseconds(event.at))
            case _:
                pass

    def close(self, at: datetime) -> None:
        """Close the spans that are still open, as of `at`."""
        while self._runs:
            _, run = self._runs.popitem()
            _finish(run, nanoseconds(at))

    def _start(self, event: FlowEvent, number: int, at: datetime, more: dict[str, str]) -> _Run:
        if (lost := self._runs.pop(event.flow_id, None)) is not None:  # its end was lost
            _finish(lost, nanoseconds(at))
        span = self._tracer.start_span(
            f"flow {event.flow_id}",
            context=Context(),  # a root, whatever the delivery thread has in its context
            attributes={"supervisor.flow": event.flow_id, "supervisor.run": number, **more},
            start_time=nanoseconds(at),
        )
        run = self._runs[event.flow_id] = _Run(span, set_span_in_context(span, Context()))
        return run

    def _enter(self, event: StateEntered, run: _Run) -> None:
        at = nanoseconds(event.at)
        if run.state is not None:
            run.state.end(at)
        run.state = self._tracer.start_span(
            f"state {event.state}",
            context=run.context,
            attributes={"supervisor.flow": event.flow_id, "supervisor.state": event.state},
            start_time=at,
        )

    def _end(self, event: FlowSucceeded | FlowFailed | FlowCanceled) -> None:
        run = self._runs.get(event.flow_id)
        if run is None:  # its start was lost
            run = self._start(event, event.run, event.at - timedelta(seconds=event.duration), {})
        del self._runs[event.flow_id]
        run.span.set_attribute("supervisor.result", event.kind.removeprefix("flow_"))
        match event:
            case FlowSucceeded(exit_state=str(exit_state)):
                run.span.set_attribute("supervisor.exit_state", exit_state)
            case FlowFailed():
                status = Status(StatusCode.ERROR, event.error)
                run.span.set_attribute("supervisor.streak", event.streak)
                run.span.set_status(status)
                if run.state is not None:
                    run.state.set_status(status)
            case _:
                pass
        _finish(run, nanoseconds(event.at))


def _finish(run: _Run, at: int) -> None:
    if run.state is not None:
        run.state.end(at)
    run.span.end(at)
