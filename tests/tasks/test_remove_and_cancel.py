"""`remove` asks a task to stop, `cancel` waits for it too; one caller has claimed it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from supervisor import (
    BackoffPolicy,
    CancelReason,
    OutcomeKind,
    Supervisor,
    TaskCancelRequested,
    TaskContext,
    TaskFinished,
    TaskRemoved,
    TaskSpec,
)
from supervisor.testing import EventRecorder, VirtualClock

if TYPE_CHECKING:
    from tests.tasks.conftest import Stubborn


def stays(ctx: TaskContext) -> None:
    ctx.wait()


def fails() -> None:
    raise ValueError("boom")


def test_remove_does_not_wait_and_is_true_for_the_first_caller_only(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    handle = supervisor.add(TaskSpec.once("t", stays))
    clock.settle()
    assert [supervisor.remove("t"), supervisor.remove("t"), handle.remove()] == [True, False, False]
    assert not handle.done()
    assert handle.wait().kind is OutcomeKind.CANCELED
    assert supervisor.remove("t") is False
    assert recorder.kinds("t") == [
        "task_added",
        "attempt_starting",
        "task_cancel_requested",
        "attempt_succeeded",
        "task_finished",
        "task_removed",
    ]
    assert [event.reason for event in recorder.of(TaskCancelRequested)] == [CancelReason.REQUESTED]


def test_remove_of_one_leaves_the_others_alone(supervisor: Supervisor, clock: VirtualClock) -> None:
    supervisor.add_all([TaskSpec.once("a", stays), TaskSpec.once("b", stays)])
    supervisor.remove("a")
    clock.settle()
    assert [(info.name, info.state) for info in supervisor.tasks()] == [("b", "running")]


def test_remove_of_a_task_that_has_ended_is_false_and_publishes_nothing(
    supervisor: Supervisor, recorder: EventRecorder, clock: VirtualClock
) -> None:
    handle = supervisor.add(TaskSpec.once("t", lambda: None))
    handle.wait()
    before = recorder.events
    assert supervisor.remove(handle) is False
    assert handle.cancel() is False
    clock.settle()
    assert recorder.events == before


def test_a_task_removed_before_its_thread_ran_never_runs_its_body(
    supervisor: Supervisor, recorder: EventRecorder
) -> None:
    runs: list[int] = []
    handle = supervisor.add(TaskSpec.once("t", runs.append, args=(1,)))
    assert handle.remove() is True
    assert handle.wait().attempts == 0
    assert runs == []
    assert recorder.kinds("t") == ["task_added", "task_cancel_requested", "task_finished", "task_removed"]


def test_cancel_waits_until_the_task_is_gone(supervisor: Supervisor, clock: VirtualClock) -> None:
    def lingers(ctx: TaskContext) -> None:
        ctx.wait()
        clock.sleep(3.0)

    handle = supervisor.add(TaskSpec.once("t", lingers))
    clock.settle()
    assert supervisor.cancel("t") is True
    assert clock.monotonic() == 3.0
    assert handle.done()
    assert supervisor.get("t") is None
    assert supervisor.cancel("t") is False


@pytest.mark.parametrize("timeout", [2.0, timedelta(seconds=2), 0], ids=["float", "timedelta", "zero"])
def test_cancel_raises_timeouterror_when_its_time_is_over_and_the_stop_goes_on(
    supervisor: Supervisor, clock: VirtualClock, timeout: float | timedelta
) -> None:
    def lingers(ctx: TaskContext) -> None:
        ctx.wait()
        clock.sleep(5.0)

    handle = supervisor.add(TaskSpec.once("t", lingers))
    clock.settle()
    with pytest.raises(TimeoutError, match=rf"'t' \(#{handle.id}\) has not ended within [20] s"):
        handle.cancel(timeout=timeout)
    assert clock.monotonic() == (2.0 if timeout else 0.0)
    assert supervisor.get("t") == handle
    assert handle.cancel() is False
    assert clock.monotonic() == 5.0
    assert handle.wait().kind is OutcomeKind.CANCELED


@pytest.mark.parametrize("seed", range(10))
def test_of_many_who_cancel_one_has_claimed_it_and_all_wait_for_its_end(seed: int) -> None:
    clock, recorder = VirtualClock(seed), EventRecorder()

    def lingers(ctx: TaskContext) -> None:
        ctx.wait()
        clock.sleep(2.0)

    with Supervisor(clock=clock, subscribers=[recorder]) as supervisor:
        handle = supervisor.add(TaskSpec.once("t", lingers))
        clock.settle()
        results: list[tuple[bool, float, bool]] = []

        def cancel() -> None:
            claimed = supervisor.cancel("t")
            results.append((claimed, clock.monotonic(), handle.done()))

        threads = [clock.spawn(cancel, f"canceler {n}") for n in range(8)]
        for thread in threads:
            thread.join()
    assert sorted(results) == [(False, 2.0, True)] * 7 + [(True, 2.0, True)]
    assert len(recorder.of(TaskFinished)) == len(recorder.of(TaskRemoved)) == 1


@pytest.mark.parametrize(
    "spec",
    [
        TaskSpec.restartable("t", fails, backoff=BackoffPolicy.constant(60.0)),
        TaskSpec.periodic("t", lambda: None, 60.0),
    ],
    ids=["backoff", "interval"],
)
def test_cancel_cuts_a_wait_short(supervisor: Supervisor, clock: VirtualClock, spec: TaskSpec) -> None:
    handle = supervisor.add(spec)
    clock.advance(10.0)
    assert handle.cancel() is True
    assert clock.monotonic() == 10.0
    assert handle.wait().kind is OutcomeKind.CANCELED
    assert handle.wait().attempts == 1


def test_remove_runs_on_cancel_callbacks_and_gives_the_reason(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    seen: list[object] = []

    def body(ctx: TaskContext) -> None:
        ctx.on_cancel(lambda: seen.append("called"))
        ctx.wait()
        seen.append(ctx.cancel_reason)

    supervisor.add(TaskSpec.once("t", body))
    clock.settle()
    supervisor.cancel("t")
    assert seen == ["called", CancelReason.REQUESTED]


@pytest.mark.parametrize("call", ["remove", "cancel"])
def test_a_body_that_ignores_the_request_is_given_up_after_the_grace(
    make_supervisor: Callable[..., Supervisor],
    clock: VirtualClock,
    recorder: EventRecorder,
    stubborn: Stubborn,
    call: str,
) -> None:
    supervisor = make_supervisor(grace=3.0)
    handle = supervisor.add(TaskSpec.once("t", stubborn))
    clock.settle()
    assert getattr(supervisor, call)("t") is True
    outcome = handle.wait()
    assert clock.monotonic() == 3.0
    assert outcome.kind is OutcomeKind.FORCE_ABORTED
    assert outcome.reason is not None
    assert "did not stop within 3 s" in outcome.reason
    assert "self._latch.wait()" in outcome.reason
    assert recorder.kinds("t")[-2:] == ["task_finished", "task_removed"]


def test_a_body_that_stops_just_within_the_grace_ends_canceled(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock
) -> None:
    def lingers(ctx: TaskContext) -> None:
        ctx.wait()
        clock.sleep(2.5)

    supervisor = make_supervisor(grace=3.0)
    handle = supervisor.add(TaskSpec.once("t", lingers))
    clock.settle()
    handle.cancel()
    assert clock.monotonic() == 2.5
    assert handle.wait().kind is OutcomeKind.CANCELED


def test_a_failure_at_the_limit_beats_the_cancellation(supervisor: Supervisor, clock: VirtualClock) -> None:
    def body(ctx: TaskContext) -> None:
        ctx.wait()
        raise ValueError("boom")

    once = supervisor.add(TaskSpec.once("once", body))
    unlimited = supervisor.add(TaskSpec.restartable("unlimited", body))
    clock.settle()
    once.cancel()
    unlimited.cancel()
    assert once.wait().kind is OutcomeKind.FAILED
    assert unlimited.wait().kind is OutcomeKind.CANCELED


def test_a_handle_waits_again_and_again_from_many_threads(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    handle = supervisor.add(TaskSpec.once("t", clock.sleep, args=(4.0,)))
    with pytest.raises(TimeoutError, match="it goes on"):
        handle.wait(timeout=1.0)
    assert clock.monotonic() == 1.0
    assert handle.outcome is None
    assert handle.done() is False
    got: list[object] = []
    for thread in [clock.spawn(lambda: got.append(handle.wait()), f"waiter {n}") for n in range(4)]:
        thread.join()
    outcome = handle.outcome
    assert outcome is not None
    assert outcome.ok
    assert all(each is outcome for each in got)
    assert handle.wait(timeout=0) is outcome
    assert handle.done() is True
