"""`max_concurrent`: attempts in progress, first come first served."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

from supervisor import (
    AttemptStarting,
    BackoffPolicy,
    CancelToken,
    OutcomeKind,
    Supervisor,
    SupervisorConfig,
    TaskContext,
    TaskHandle,
    TaskSpec,
)
from supervisor.testing import EventRecorder, VirtualClock

if TYPE_CHECKING:
    from tests.tasks.conftest import Stubborn


def stays(ctx: TaskContext) -> None:
    ctx.wait()


def removes(handle: TaskHandle) -> None:
    handle.remove()


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_than_max_concurrent_attempts_are_in_progress(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock, limit: int
) -> None:
    supervisor = make_supervisor(max_concurrent=limit)
    inside = peak = 0

    def body() -> None:
        nonlocal inside, peak
        inside += 1
        peak = max(peak, inside)
        clock.sleep(1.0)
        inside -= 1

    supervisor.add_all(TaskSpec.once(f"t{n}", body) for n in range(12))
    supervisor.wait()
    assert peak == limit
    assert clock.monotonic() == 12 / limit


def test_permits_are_given_first_come_first_served(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock, recorder: EventRecorder
) -> None:
    supervisor = make_supervisor(max_concurrent=1)
    for name in "dacb":
        supervisor.add(TaskSpec.once(name, clock.sleep, args=(1.0,)))
        clock.settle()
    supervisor.wait()
    assert [event.task for event in recorder.of(AttemptStarting)] == ["d", "a", "c", "b"]
    assert recorder.times(AttemptStarting) == [0.0, 1.0, 2.0, 3.0]


def test_who_waits_for_a_permit_is_waiting_and_its_attempt_has_not_started(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock, recorder: EventRecorder
) -> None:
    supervisor = make_supervisor(max_concurrent=1)
    supervisor.add(TaskSpec.once("first", stays))
    clock.settle()
    second = supervisor.add(TaskSpec.once("second", stays))
    clock.advance(5.0)
    info = second.info()
    assert (info.state, info.attempt, info.started_at) == ("waiting", 0, None)
    assert recorder.kinds("second") == ["task_added"]


def test_a_canceled_waiter_gives_its_place_on(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock, recorder: EventRecorder
) -> None:
    supervisor = make_supervisor(max_concurrent=1)
    first = supervisor.add(TaskSpec.once("first", stays))
    clock.settle()
    second, third = (supervisor.add(TaskSpec.once(name, stays)) for name in ("second", "third"))
    clock.settle()
    assert second.cancel() is True
    assert second.wait().kind is OutcomeKind.CANCELED
    assert second.wait().attempts == 0
    assert third.info().state == "waiting"
    first.cancel()
    clock.settle()
    assert third.info().state == "running"
    assert [event.task for event in recorder.of(AttemptStarting)] == ["first", "third"]


@pytest.mark.parametrize("seed", range(30))
def test_no_permit_is_lost_when_waiters_are_canceled_as_they_get_theirs(seed: int) -> None:
    clock = VirtualClock(seed)
    with Supervisor(SupervisorConfig(max_concurrent=2), clock=clock) as supervisor:
        handles = [supervisor.add(TaskSpec.once(f"t{n}", lambda: None)) for n in range(12)]
        cancelers = [clock.spawn(partial(removes, handle), "canceler") for handle in handles[::2]]
        for thread in cancelers:
            thread.join()
        supervisor.wait()
        ends: list[float] = []
        start = clock.monotonic()

        def body() -> None:
            clock.sleep(1.0)
            ends.append(clock.monotonic() - start)

        supervisor.add_all(TaskSpec.once(f"u{n}", body) for n in range(4))
        supervisor.wait()
        assert ends == [1.0, 1.0, 2.0, 2.0]


def test_a_permit_is_held_only_during_the_attempt(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock
) -> None:
    supervisor = make_supervisor(max_concurrent=1)
    calls = 0

    def flaky() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("boom")

    flaky_handle = supervisor.add(TaskSpec.restartable("flaky", flaky, backoff=BackoffPolicy.constant(5.0)))
    idle = supervisor.add(TaskSpec.periodic("idle", lambda: None, 100.0))
    clock.settle()
    assert [flaky_handle.info().state, idle.info().state] == ["backoff", "idle"]
    assert supervisor.add(TaskSpec.once("t", clock.monotonic)).wait().value == 0.0


def test_a_task_that_retries_goes_to_the_end_of_the_line(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock, recorder: EventRecorder
) -> None:
    supervisor = make_supervisor(max_concurrent=1)

    def fails() -> None:
        clock.sleep(1.0)
        raise ValueError("boom")

    specs = [TaskSpec.restartable(name, fails, backoff=None, max_retries=1) for name in "ab"]
    for spec in specs:
        supervisor.add(spec)
        clock.settle()
    supervisor.wait()
    assert [(event.task, event.attempt) for event in recorder.of(AttemptStarting)] == [
        ("a", 1),
        ("b", 1),
        ("a", 2),
        ("b", 2),
    ]


def test_a_deadline_counts_from_the_permit_not_from_the_wait_for_it(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock
) -> None:
    supervisor = make_supervisor(max_concurrent=1)
    supervisor.add(TaskSpec.once("first", clock.sleep, args=(10.0,)))
    clock.settle()
    second = supervisor.add(TaskSpec.once("second", clock.sleep, args=(2.0,), timeout=3.0))
    assert second.wait().ok
    assert clock.monotonic() == 12.0


def test_a_body_that_was_given_up_holds_its_permit_until_its_thread_has_ended(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock, stubborn: Stubborn
) -> None:
    supervisor = make_supervisor(max_concurrent=1, grace=1.0)
    handle = supervisor.add(TaskSpec.once("stuck", stubborn))
    clock.settle()
    handle.cancel()
    assert handle.wait().kind is OutcomeKind.FORCE_ABORTED
    other = supervisor.add(TaskSpec.once("other", lambda: 1))
    clock.advance(30.0)
    assert other.info().state == "waiting"
    stubborn.release()
    assert other.wait().value == 1


def test_on_the_real_clock_too_the_first_registered_runs_first() -> None:
    for _ in range(30):
        started: list[int] = []
        go = CancelToken()
        with Supervisor(SupervisorConfig(max_concurrent=1)) as sup:
            holder = sup.add(TaskSpec.once("holder", go.wait))
            tasks = [sup.add(TaskSpec.once(f"t{n}", started.append, args=(n,))) for n in range(6)]
            go.cancel()
            for task in (holder, *tasks):
                assert task.wait(10).ok
        assert started == list(range(6))


def test_a_task_that_is_removed_before_its_thread_runs_leaves_its_place(
    clock: VirtualClock,
) -> None:
    with Supervisor(SupervisorConfig(max_concurrent=1), clock=clock) as sup:
        assert sup.add(TaskSpec.once("gone", lambda: None)).remove()
        assert sup.add(TaskSpec.once("next", lambda: 7)).wait(1).value == 7
