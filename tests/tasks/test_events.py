"""What events look like and when they come."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import supervisor as library
from supervisor import (
    Admission,
    BackoffPolicy,
    Event,
    EventsDropped,
    Fail,
    GraceExceeded,
    Supervisor,
    SupervisorConfig,
    TaskContext,
    TaskSpec,
)
from supervisor.testing import EventRecorder, VirtualClock

if TYPE_CHECKING:
    from tests.tasks.conftest import Stubborn

FIELDS = {
    "TaskAdded": "",
    "TaskRejected": "rejection reason",
    "AttemptStarting": "attempt",
    "AttemptSucceeded": "attempt duration",
    "AttemptFailed": "attempt duration error exit_code",
    "AttemptTimedOut": "attempt duration timeout",
    "AttemptOverrunning": "attempt late_by stack",
    "AttemptReturnedLate": "attempt late_by ended",
    "AttemptCanceled": "attempt duration",
    "BackoffScheduled": "attempt delay cause error",
    "TaskCancelRequested": "reason",
    "TaskFinished": "outcome attempts reason",
    "TaskRemoved": "",
}
OTHERS = {
    "SlotChanged": "slot state",
    "ShutdownRequested": "",
    "ShutdownCompleted": "",
    "GraceExceededEvent": "stuck",
    "SubscriberFailed": "subscriber error",
    "EventsDropped": "subscriber dropped",
}
ALL = {name: f"seq at task_id task {rest}" for name, rest in FIELDS.items()} | {
    name: f"seq at {rest}" for name, rest in OTHERS.items()
}


def stays(ctx: TaskContext) -> None:
    ctx.wait()


@pytest.mark.parametrize("name", ALL)
def test_each_event_is_frozen_and_has_its_fields_and_its_label(name: str) -> None:
    cls = getattr(library, name)
    assert issubclass(cls, Event)
    assert [field.name for field in dataclasses.fields(cls)] == ALL[name].split()
    assert cls.kind == re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Event")).lower()
    event = cls(**dict.fromkeys(ALL[name].split()))
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.seq = 1
    assert not hasattr(event, "__dict__")


def everything(clock: VirtualClock) -> list[Event]:
    """Make every event happen at least once."""
    recorder = EventRecorder()
    config = SupervisorConfig(event_capacity=50, grace=5.0, drain_timeout=1.0)
    supervisor = Supervisor(config, clock=clock, subscribers=[recorder])
    latch = clock.latch()

    def fails_once(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            raise Fail("boom", exit_code=3)

    def fails_to_hear(event: Event) -> None:
        raise ValueError("deaf")

    supervisor.subscribe(fails_to_hear, kinds=["slot_changed"], name="deaf")
    supervisor.add(TaskSpec.restartable("flaky", fails_once, backoff=BackoffPolicy.constant(1.0)))
    supervisor.add(TaskSpec.once("late", clock.sleep, args=(25.0,), timeout=5.0))
    supervisor.add(TaskSpec.once("canceled", sleeps))
    supervisor.submit(TaskSpec.once("slot", stays), slot="s")
    supervisor.submit(TaskSpec.once("slot", stays), slot="s", admission=Admission.DROP_IF_RUNNING)
    clock.advance(30.0)
    supervisor.cancel("canceled")
    supervisor.cancel("slot")
    supervisor.add_all(TaskSpec.once(f"many {n}", lambda: None) for n in range(60))
    supervisor.wait()
    supervisor.add(TaskSpec.once("stuck", lambda: latch.wait()))
    clock.settle()
    with pytest.raises(GraceExceeded):
        supervisor.shutdown()
    latch.open()
    clock.settle()
    return recorder.events


def sleeps(ctx: TaskContext) -> None:
    ctx.sleep(60.0)


def test_every_event_happens_and_becomes_json(clock: VirtualClock) -> None:
    events = everything(clock)
    assert {type(event).__name__ for event in events} == set(ALL)
    for event in events:
        told = json.loads(json.dumps(event.to_dict(), allow_nan=False))
        assert list(told) == ["kind", *ALL[type(event).__name__].split()]
        assert told["kind"] == event.kind
        assert told["seq"] == event.seq
        assert datetime.fromisoformat(told["at"]) == event.at
        if "task" in told:
            assert isinstance(told["task"], str)
            assert isinstance(told["task_id"], int)


def test_seq_starts_at_one_and_has_no_gaps(clock: VirtualClock) -> None:
    events = everything(clock)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.at for event in events] == sorted(event.at for event in events)


def test_at_is_the_wall_clock_in_utc(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    clock.advance(5.0)
    clock.step_wall(-3600.0)
    supervisor.add(TaskSpec.once("t", lambda: None)).wait()
    start = datetime(2000, 1, 1, tzinfo=UTC)
    assert {event.at for event in recorder.events} == {start + timedelta(seconds=5 - 3600)}
    assert {event.at.tzinfo for event in recorder.events} == {UTC}


def test_two_supervisors_count_for_themselves(make_supervisor: Callable[..., Supervisor]) -> None:
    for name in ("one", "two"):
        supervisor, own = make_supervisor(name=name), EventRecorder()
        supervisor.subscribe(own)
        supervisor.add(TaskSpec.once("t", lambda: None)).wait()
        assert [event.seq for event in own.events] == [1, 2, 3, 4, 5]


def flaky(ctx: TaskContext) -> None:
    if ctx.attempt < 3:
        raise ValueError("boom")


def fatal() -> None:
    raise library.Fatal("no")


def gives_up() -> None:
    raise library.Canceled


@pytest.mark.parametrize(
    ("spec", "kinds"),
    [
        (TaskSpec.once("t", lambda: 1), "starting succeeded"),
        (TaskSpec.once("t", fatal), "starting failed"),
        (TaskSpec.once("t", gives_up), "starting canceled"),
        (TaskSpec.once("t", stays, timeout=1.0), "starting timed_out"),
        (
            TaskSpec.restartable("t", flaky, backoff=BackoffPolicy.constant(1.0)),
            "starting failed backoff starting failed backoff starting succeeded",
        ),
        (
            TaskSpec.restartable("t", flaky, backoff=None),
            "starting failed starting failed starting succeeded",
        ),
    ],
)
def test_each_task_tells_its_story_in_order(
    supervisor: Supervisor, recorder: EventRecorder, spec: TaskSpec, kinds: str
) -> None:
    supervisor.add(spec).wait()
    attempts = ["backoff_scheduled" if word == "backoff" else f"attempt_{word}" for word in kinds.split()]
    assert recorder.kinds("t") == ["task_added", *attempts, "task_finished", "task_removed"]


def test_the_fields_of_the_story_say_what_happened(
    supervisor: Supervisor, recorder: EventRecorder, clock: VirtualClock
) -> None:
    def body(ctx: TaskContext) -> None:
        clock.sleep(2.0)
        if ctx.attempt == 1:
            raise Fail("boom", exit_code=7)

    handle = supervisor.add(TaskSpec.restartable("t", body, backoff=BackoffPolicy.constant(1.5)))
    handle.wait()

    def told(kind: str) -> dict[str, Any]:
        (event,) = recorder.of(kind)
        return {k: v for k, v in event.to_dict().items() if k not in ("seq", "at", "task", "task_id", "kind")}

    failed = told("attempt_failed")
    assert "boom" in failed.pop("error")
    assert failed == {"attempt": 1, "duration": 2.0, "exit_code": 7}
    backoff = told("backoff_scheduled")
    assert "boom" in backoff.pop("error")
    assert backoff == {"attempt": 1, "delay": 1.5, "cause": "failure"}
    assert told("attempt_succeeded") == {"attempt": 2, "duration": 2.0}
    assert told("task_finished") == {"outcome": "completed", "attempts": 2, "reason": None}
    assert recorder.times("attempt_starting") == [0.0, 3.5]


def test_the_reason_of_taskfinished_is_that_of_the_outcome(
    supervisor: Supervisor, recorder: EventRecorder
) -> None:
    outcome = supervisor.add(TaskSpec.once("t", fatal)).wait()
    (event,) = recorder.of("task_finished")
    assert (event.outcome, event.reason, event.attempts) == (outcome.kind, outcome.reason, outcome.attempts)
    assert event.reason == "no"


def test_without_a_subscriber_nothing_is_counted(supervisor: Supervisor, clock: VirtualClock) -> None:
    alone = Supervisor(clock=clock)
    alone.add(TaskSpec.once("t", lambda: None)).wait()
    recorder = EventRecorder()
    with alone:
        alone.subscribe(recorder)
        alone.add(TaskSpec.once("t", lambda: None)).wait()
    assert recorder.events[0].seq == 1


def test_beyond_event_capacity_the_newest_are_dropped_and_the_bus_says_how_many(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock, recorder: EventRecorder
) -> None:
    supervisor = make_supervisor(event_capacity=3)
    handles = supervisor.add_all(TaskSpec.once(f"t{n}", stays) for n in range(5))
    clock.settle()
    assert [event.task for event in recorder.of("task_added")] == ["t0", "t1", "t2"]
    first = recorder.of(EventsDropped)[0]
    assert (first.seq, first.subscriber, first.dropped) == (4, "bus", 2)
    events = recorder.events
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert all(each.cancel() for each in handles)


def test_what_the_library_does_never_depends_on_its_events(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock
) -> None:
    supervisor = make_supervisor(event_capacity=1, subscriber_capacity=1)
    handles = supervisor.add_all(
        TaskSpec.restartable(f"t{n}", flaky, backoff=BackoffPolicy.constant(1.0)) for n in range(50)
    )
    assert [each.wait().attempts for each in handles] == [3] * 50
    assert supervisor.tasks() == []


def test_an_end_is_told_even_when_the_line_is_full(
    make_supervisor: Callable[..., Supervisor],
    recorder: EventRecorder,
    stubborn: Stubborn,
    clock: VirtualClock,
) -> None:
    supervisor = make_supervisor(event_capacity=1)
    supervisor.add_all(TaskSpec.once(f"t{n}", lambda: None) for n in range(10))
    supervisor.wait()
    assert len(recorder.of("task_finished")) == len(recorder.of("task_removed")) == 10
