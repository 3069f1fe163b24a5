"""OpenTelemetrySubscriber: which spans, whose children, from when to when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from supervisor import (
    Admission,
    AttemptFailed,
    AttemptStarting,
    AttemptSucceeded,
    BackoffPolicy,
    Event,
    Fail,
    GraceExceeded,
    ShutdownCompleted,
    Supervisor,
    TaskAdded,
    TaskContext,
    TaskFinished,
    TaskSpec,
)
from supervisor.flows import (
    FlowStarted,
    FlowSucceeded,
    JoinConfig,
    JoinStrategy,
    Scheduler,
    StateEntered,
    Workflow,
)
from supervisor.subscribers import OpenTelemetrySubscriber
from supervisor.testing import VirtualClock

START = datetime(2000, 1, 1, tzinfo=UTC)
EPOCH = int(START.timestamp()) * 10**9  # ns


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made


@pytest.fixture
def subscriber(provider: TracerProvider) -> OpenTelemetrySubscriber:
    return OpenTelemetrySubscriber(provider)


def times(span: ReadableSpan) -> tuple[float, float]:
    """Start and end, in seconds of virtual time."""
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.start_time - EPOCH) / 1e9, (span.end_time - EPOCH) / 1e9


def told(span: ReadableSpan) -> list[tuple[str, float, dict[str, Any]]]:
    """The events of a span: name, seconds of virtual time, attributes without their prefix."""
    return [
        (
            each.name,
            (each.timestamp - EPOCH) / 1e9,
            {key.removeprefix("supervisor."): value for key, value in (each.attributes or {}).items()},
        )
        for each in span.events
    ]


def event(cls: type[Event], second: float = 0.0, **values: Any) -> Event:
    return cls(seq=1, at=START + timedelta(seconds=second), **values)


def test_a_task_is_a_root_span_and_its_attempts_are_its_children(
    exporter: InMemorySpanExporter, subscriber: OpenTelemetrySubscriber, supervisor: Supervisor
) -> None:
    steps = iter([Fail("boom"), None])

    def body(ctx: TaskContext) -> None:
        ctx.sleep(0.5)
        if (error := next(steps)) is not None:
            raise error

    supervisor.subscribe(subscriber)
    task = supervisor.add(TaskSpec.restartable("t", body, backoff=BackoffPolicy.constant(2.0)))
    task.wait()
    supervisor.shutdown()
    one, two, root = exporter.get_finished_spans()

    assert [(span.name, times(span)) for span in (root, one, two)] == [
        ("task t", (0.0, 3.0)),
        ("attempt t", (0.0, 0.5)),
        ("attempt t", (2.5, 3.0)),
    ]
    assert root.parent is None
    for child in (one, two):
        assert child.parent is not None
        assert child.parent.span_id == root.context.span_id
        assert child.context.trace_id == root.context.trace_id
    identity = {"supervisor.task": "t", "supervisor.task_id": task.id}
    assert dict(root.attributes or {}) == {
        **identity,
        "supervisor.outcome": "completed",
        "supervisor.attempts": 2,
    }
    assert dict(one.attributes or {}) == {
        **identity,
        "supervisor.attempt": 1,
        "supervisor.result": "failed",
    }
    assert dict(two.attributes or {}) == {
        **identity,
        "supervisor.attempt": 2,
        "supervisor.result": "succeeded",
    }
    assert (root.status.status_code, two.status.status_code) == (StatusCode.UNSET, StatusCode.UNSET)
    assert one.status.status_code is StatusCode.ERROR
    assert (one.status.description or "").startswith("Fail: boom")
    [(name, second, details)] = told(root)
    assert (name, second) == ("backoff_scheduled", 0.5)
    assert details.pop("error").startswith("Fail: boom")
    assert details == {"attempt": 1, "delay": 2.0, "cause": "failure"}


def test_a_failed_task_has_the_status_error_with_its_reason(
    exporter: InMemorySpanExporter, subscriber: OpenTelemetrySubscriber, supervisor: Supervisor
) -> None:
    def body() -> None:
        raise SystemExit(3)

    supervisor.subscribe(subscriber)
    outcome = supervisor.add(TaskSpec.once("t", body)).wait()
    supervisor.shutdown()
    attempt, root = exporter.get_finished_spans()
    assert (root.status.status_code, root.status.description) == (StatusCode.ERROR, outcome.reason)
    assert (root.attributes or {})["supervisor.outcome"] == "fatal"
    assert (attempt.attributes or {})["supervisor.exit_code"] == 3


def test_a_canceled_task_is_no_error_and_shows_who_asked(
    clock: VirtualClock,
    exporter: InMemorySpanExporter,
    subscriber: OpenTelemetrySubscriber,
    supervisor: Supervisor,
) -> None:
    supervisor.subscribe(subscriber)
    task = supervisor.add(TaskSpec.once("t", lambda ctx: ctx.sleep(9.0)))
    clock.advance(1.0)
    task.cancel()
    supervisor.shutdown()
    attempt, root = exporter.get_finished_spans()
    assert times(attempt) == times(root) == (0.0, 1.0)
    assert [span.status.status_code for span in (attempt, root)] == [StatusCode.UNSET, StatusCode.UNSET]
    assert (attempt.attributes or {})["supervisor.result"] == "canceled"
    assert told(root) == [("task_cancel_requested", 1.0, {"reason": "requested"})]


def test_a_timed_out_attempt_ends_at_its_deadline_and_the_overrun_is_told_on_the_task(
    clock: VirtualClock,
    exporter: InMemorySpanExporter,
    subscriber: OpenTelemetrySubscriber,
    supervisor: Supervisor,
) -> None:
    supervisor.subscribe(subscriber)
    supervisor.add(TaskSpec.once("t", lambda: clock.sleep(20.0), timeout=5.0)).wait()
    supervisor.shutdown()
    attempt, root = exporter.get_finished_spans()
    assert (times(attempt), times(root)) == ((0.0, 5.0), (0.0, 20.0))
    assert (attempt.status.status_code, attempt.status.description) == (
        StatusCode.ERROR,
        "timed out after 5 s",
    )
    overrun, late = told(root)
    assert overrun[:2] == ("attempt_overrunning", 15.0)
    assert "clock.sleep" in overrun[2]["stack"]
    assert late == ("attempt_returned_late", 20.0, {"attempt": 1, "late_by": 15.0, "ended": "returned"})


def test_a_closer_that_fails_after_a_timeout_makes_no_second_span(
    exporter: InMemorySpanExporter, subscriber: OpenTelemetrySubscriber, supervisor: Supervisor
) -> None:
    def bad() -> None:
        raise ValueError("closer")

    def body(ctx: TaskContext) -> None:
        ctx.callback(bad)
        ctx.wait()

    supervisor.subscribe(subscriber)
    supervisor.add(TaskSpec.once("t", body, timeout=5.0)).wait()
    supervisor.shutdown()
    attempt, root = exporter.get_finished_spans()
    assert (attempt.attributes or {})["supervisor.result"] == "timed_out"
    assert [name for name, _, _ in told(root)] == ["attempt_failed"]
    assert (root.attributes or {})["supervisor.outcome"] == "panicked"


def test_a_stuck_task_has_its_spans_closed_when_it_is_given_up(
    clock: VirtualClock,
    exporter: InMemorySpanExporter,
    subscriber: OpenTelemetrySubscriber,
    supervisor: Supervisor,
) -> None:
    supervisor.subscribe(subscriber)
    supervisor.add(TaskSpec.once("t", lambda: clock.sleep(100.0)))
    clock.advance(1.0)
    with pytest.raises(GraceExceeded):
        supervisor.shutdown(grace=2.0)
    attempt, root = exporter.get_finished_spans()
    assert times(attempt) == times(root) == (0.0, 3.0)
    assert (attempt.attributes or {})["supervisor.result"] == "force_aborted"
    assert attempt.status.status_code is root.status.status_code is StatusCode.ERROR
    clock.advance(100.0)


def test_a_rejected_task_is_a_span_without_length(
    clock: VirtualClock,
    exporter: InMemorySpanExporter,
    subscriber: OpenTelemetrySubscriber,
    supervisor: Supervisor,
) -> None:
    supervisor.subscribe(subscriber)
    supervisor.submit(TaskSpec.once("one", lambda ctx: ctx.wait()), slot="s")
    clock.advance(1.5)
    supervisor.submit(TaskSpec.once("two", print), slot="s", admission=Admission.DROP_IF_RUNNING).wait()
    clock.settle()
    [span] = exporter.get_finished_spans()
    assert (span.name, times(span), span.status.status_code) == ("task two", (1.5, 1.5), StatusCode.ERROR)
    assert (span.attributes or {})["supervisor.rejection"] == "slot_busy"


def test_a_task_canceled_in_the_queue_has_a_span_without_attempts(
    clock: VirtualClock,
    exporter: InMemorySpanExporter,
    subscriber: OpenTelemetrySubscriber,
    supervisor: Supervisor,
) -> None:
    supervisor.subscribe(subscriber)
    supervisor.submit(TaskSpec.once("one", lambda ctx: ctx.wait()), slot="s")
    supervisor.submit(TaskSpec.once("two", print), slot="s").remove()
    clock.settle()
    [span] = exporter.get_finished_spans()
    assert (span.name, (span.attributes or {})["supervisor.outcome"]) == ("task two", "canceled")


COMMON = {"task_id": 1, "task": "t"}


def test_an_attempt_whose_start_was_lost_is_placed_by_its_duration(
    exporter: InMemorySpanExporter, subscriber: OpenTelemetrySubscriber
) -> None:
    subscriber(event(TaskAdded, 0.0, **COMMON))
    subscriber(event(AttemptStarting, 1.0, attempt=1, **COMMON))
    subscriber(event(AttemptSucceeded, 5.0, attempt=2, duration=1.5, **COMMON))
    [span] = exporter.get_finished_spans()
    assert times(span) == (3.5, 5.0)


def test_a_task_whose_end_was_lost_is_closed_at_the_shutdown(
    exporter: InMemorySpanExporter, subscriber: OpenTelemetrySubscriber
) -> None:
    subscriber(event(TaskAdded, 1.0, **COMMON))
    subscriber(event(ShutdownCompleted, 4.0))
    [span] = exporter.get_finished_spans()
    assert times(span) == (1.0, 4.0)
    subscriber.close()
    assert len(exporter.get_finished_spans()) == 1


def test_a_task_whose_beginning_was_lost_has_a_span_from_the_first_event_seen(
    exporter: InMemorySpanExporter, subscriber: OpenTelemetrySubscriber
) -> None:
    subscriber(event(AttemptStarting, 2.0, attempt=7, **COMMON))
    subscriber(event(AttemptFailed, 3.0, attempt=7, duration=1.0, error="x", exit_code=None, **COMMON))
    subscriber(event(TaskFinished, 3.0, outcome="failed", attempts=7, reason=None, **COMMON))
    attempt, root = exporter.get_finished_spans()
    assert times(attempt) == times(root) == (2.0, 3.0)
    assert attempt.parent is not None
    assert attempt.parent.span_id == root.context.span_id
    assert root.status.description == "failed"


def test_closing_without_any_event_does_nothing(subscriber: OpenTelemetrySubscriber) -> None:
    subscriber.close()


def test_the_span_of_a_task_is_a_root_even_inside_a_span(
    exporter: InMemorySpanExporter, provider: TracerProvider, subscriber: OpenTelemetrySubscriber
) -> None:
    with provider.get_tracer("test").start_as_current_span("outer"):
        before = context.get_current()
        subscriber(event(TaskAdded, **COMMON))
        subscriber(event(ShutdownCompleted))
        assert context.get_current() is before
    inner = exporter.get_finished_spans()[0]
    assert (inner.name, inner.parent) == ("task t", None)


def test_microseconds_are_exact(exporter: InMemorySpanExporter, subscriber: OpenTelemetrySubscriber) -> None:
    at = datetime(2026, 7, 1, 12, 34, 56, 123457, tzinfo=UTC)
    subscriber(TaskAdded(seq=1, at=at, task_id=1, task="t"))
    subscriber.close()
    [span] = exporter.get_finished_spans()
    assert span.start_time == 1_782_909_296_123_457_000


def test_a_tracer_can_be_given(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    subscriber = OpenTelemetrySubscriber(tracer=provider.get_tracer("mine"))
    subscriber(event(TaskAdded, **COMMON))
    subscriber.close()
    [span] = exporter.get_finished_spans()
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "mine"


def test_without_an_sdk_it_does_no_harm(supervisor: Supervisor) -> None:
    subscriber = OpenTelemetrySubscriber(trace.NoOpTracerProvider())
    supervisor.subscribe(subscriber)
    assert supervisor.add(TaskSpec.once("t", lambda: 1)).wait().ok
    supervisor.shutdown()
    assert subscriber._runs == {}


def flow_spans(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    """The spans of flows, in the order of their starts, roots first."""
    spans = [span for span in exporter.get_finished_spans() if span.name.startswith(("flow", "state"))]
    return sorted(spans, key=lambda span: (span.start_time or 0, span.parent is not None, span.end_time or 0))


def test_a_run_of_a_flow_is_a_root_span_and_its_states_are_its_children(
    clock: VirtualClock,
    exporter: InMemorySpanExporter,
    subscriber: OpenTelemetrySubscriber,
    supervisor: Supervisor,
) -> None:
    steps = iter([Fail("boom"), None])

    def look() -> str:
        clock.sleep(0.5)
        if (error := next(steps)) is not None:
            raise error
        return "work"

    supervisor.subscribe(subscriber)
    workflow = (
        Workflow()
        .register("look", look, max_retries=1, backoff=BackoffPolicy.constant(1.0))
        .register_split("work", [lambda: clock.sleep(2.0)], JoinConfig(JoinStrategy.ALL, "done"))
        .add_exit_state("done")
    )
    scheduler = Scheduler(supervisor=supervisor)
    scheduler.every("f", workflow, "look", 60.0)
    scheduler.start()
    clock.advance(10.0)
    root, look_span, work_span, done_span = flow_spans(exporter)
    assert [(span.name, times(span)) for span in (root, look_span, work_span, done_span)] == [
        ("flow f", (0.0, 4.0)),
        ("state 'look'", (0.0, 2.0)),
        ("state 'work'", (2.0, 4.0)),
        ("state 'done'", (4.0, 4.0)),
    ]
    assert root.parent is None
    assert {span.parent.span_id for span in (look_span, work_span, done_span) if span.parent} == {
        root.context.span_id
    }
    assert dict(root.attributes or {}) == {
        "supervisor.flow": "f",
        "supervisor.run": 1,
        "supervisor.cause": "schedule",
        "supervisor.result": "succeeded",
        "supervisor.exit_state": "'done'",
    }
    assert dict(look_span.attributes or {}) == {"supervisor.flow": "f", "supervisor.state": "'look'"}
    [(name, second, retry)] = told(look_span)
    assert (name, second, retry["attempt"], retry["delay"]) == ("flow_task_retrying", 0.5, 1, 1.0)
    [(name, second, branch)] = told(work_span)
    assert (name, second, branch["index"], branch["duration"]) == ("branch_finished", 4.0, 0, 2.0)


def test_a_failed_run_and_the_state_it_failed_in_have_the_status_error(
    clock: VirtualClock,
    exporter: InMemorySpanExporter,
    subscriber: OpenTelemetrySubscriber,
    supervisor: Supervisor,
) -> None:
    def look() -> str:
        raise Fail("boom")

    supervisor.subscribe(subscriber)
    scheduler = Scheduler(supervisor=supervisor)
    scheduler.every("f", Workflow().register("look", look).add_exit_state("done"), "look", 60.0)
    scheduler.start()
    clock.advance(1.0)
    for span in (spans := flow_spans(exporter)):
        assert span.status.status_code is StatusCode.ERROR
        assert (span.status.description or "").startswith("boom (in flow 'f', state 'look'")
    assert [span.name for span in spans] == ["flow f", "state 'look'"]
    assert (spans[0].attributes or {})["supervisor.result"] == "failed"
    assert (spans[0].attributes or {})["supervisor.streak"] == 1


def test_a_canceled_run_is_no_error(
    clock: VirtualClock,
    exporter: InMemorySpanExporter,
    subscriber: OpenTelemetrySubscriber,
    supervisor: Supervisor,
) -> None:
    supervisor.subscribe(subscriber)
    scheduler = Scheduler(supervisor=supervisor)
    scheduler.every("f", lambda _, run: run.token.wait(), interval=60.0)
    running = scheduler.start()
    clock.advance(1.0)
    running.cancel_flow("f")
    clock.advance(1.0)
    [span] = flow_spans(exporter)
    assert (times(span), span.status.status_code) == ((0.0, 1.0), StatusCode.UNSET)
    assert (span.attributes or {})["supervisor.result"] == "canceled"


FLOW = {"flow_id": "f"}


def test_a_run_whose_start_was_lost_is_placed_by_its_duration(
    exporter: InMemorySpanExporter, subscriber: OpenTelemetrySubscriber
) -> None:
    subscriber(event(StateEntered, 4.0, state="S.A", **FLOW))
    subscriber(event(FlowSucceeded, 5.0, run=7, duration=1.5, exit_state=None, **FLOW))
    [span] = exporter.get_finished_spans()
    assert (span.name, times(span)) == ("flow f", (3.5, 5.0))


def test_a_run_whose_end_was_lost_is_closed_by_the_next_or_at_the_shutdown(
    exporter: InMemorySpanExporter, subscriber: OpenTelemetrySubscriber
) -> None:
    subscriber(event(FlowStarted, 1.0, run=1, cause="schedule", **FLOW))
    subscriber(event(StateEntered, 1.0, state="S.A", **FLOW))
    subscriber(event(FlowStarted, 3.0, run=2, cause="schedule", **FLOW))
    subscriber(event(ShutdownCompleted, 4.0))
    assert [(span.name, times(span)) for span in flow_spans(exporter)] == [
        ("flow f", (1.0, 3.0)),
        ("state S.A", (1.0, 3.0)),
        ("flow f", (3.0, 4.0)),
    ]


def test_a_direct_run_has_no_spans(
    clock: VirtualClock, exporter: InMemorySpanExporter, subscriber: OpenTelemetrySubscriber
) -> None:
    workflow = Workflow().register("look", lambda: "done").add_exit_state("done")
    workflow.run("look", subscribers=[subscriber], clock=clock)
    subscriber.close()
    assert exporter.get_finished_spans() == ()
