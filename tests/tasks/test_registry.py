"""What is registered: what `tasks`, `get` and `wait` see of it, `max_tasks`, and refused threads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from supervisor import (
    BackoffPolicy,
    CapacityExceeded,
    OutcomeKind,
    Supervisor,
    TaskAdded,
    TaskContext,
    TaskHandle,
    TaskRejected,
    TaskSpec,
)
from supervisor.kernel.clock import ThreadHandle
from supervisor.testing import EventRecorder, VirtualClock


def stays(ctx: TaskContext) -> None:
    ctx.wait()


class FewThreads(VirtualClock):
    """An operating system that starts `allowed` more threads."""

    def __init__(self, allowed: int) -> None:
        super().__init__()
        self.allowed = allowed

    def spawn(self, target: Callable[[], None], name: str) -> Any:
        if self.allowed <= 0:
            raise RuntimeError("can't start new thread")
        self.allowed -= 1
        return super().spawn(target, name)


def test_add_returns_when_the_task_is_registered_and_before_its_body_runs(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    runs: list[int] = []
    handle = supervisor.add(TaskSpec.once("t", runs.append, args=(1,)))
    assert runs == []
    assert [(info.id, info.name, info.state) for info in supervisor.tasks()] == [(handle.id, "t", "waiting")]
    clock.settle()
    assert runs == [1]


def test_add_of_a_task_that_ends_at_once_gives_its_handle(supervisor: Supervisor) -> None:
    handle = supervisor.add(TaskSpec.once("t", lambda: 5))
    assert handle.wait().value == 5
    assert supervisor.tasks() == []


def test_tasks_are_listed_in_the_order_of_their_ids(supervisor: Supervisor) -> None:
    handles = [supervisor.add(TaskSpec.once(name, stays)) for name in "cab"]
    assert [info.id for info in supervisor.tasks()] == [each.id for each in handles]
    handles[1].cancel()
    assert [info.name for info in supervisor.tasks()] == ["c", "b"]


@pytest.mark.parametrize("of", [lambda h: h, lambda h: h.id, lambda h: h.name], ids=["handle", "id", "name"])
def test_a_target_is_a_handle_an_id_or_a_name(
    supervisor: Supervisor, of: Callable[[TaskHandle], Any]
) -> None:
    handle = supervisor.add(TaskSpec.once("t", stays))
    assert supervisor.get(of(handle)) == handle
    assert supervisor.remove(of(handle)) is True
    assert handle.wait().kind is OutcomeKind.CANCELED
    assert supervisor.get(of(handle)) is None
    assert supervisor.remove(of(handle)) is False


@pytest.mark.parametrize("target", ["nobody", 10**9])
def test_an_unknown_target_is_false_or_none_and_publishes_nothing(
    supervisor: Supervisor, recorder: EventRecorder, clock: VirtualClock, target: str | int
) -> None:
    supervisor.start()
    assert supervisor.get(target) is None
    assert supervisor.remove(target) is False
    assert supervisor.cancel(target) is False
    assert supervisor.cancel(target, timeout=0) is False
    clock.settle()
    assert recorder.events == []


def test_handles_of_one_task_are_equal_and_hash_alike(supervisor: Supervisor) -> None:
    handle = supervisor.add(TaskSpec.once("t", stays))
    again = supervisor.get("t")
    assert again == handle
    assert hash(again) == hash(handle)
    assert handle != supervisor.add(TaskSpec.once("u", stays))


def test_the_state_of_a_task_tells_what_it_does(supervisor: Supervisor, clock: VirtualClock) -> None:
    calls = 0

    def body(ctx: TaskContext) -> None:
        nonlocal calls
        calls += 1
        clock.sleep(1.0)
        if calls == 1:
            raise ValueError("boom")

    handle = supervisor.add(TaskSpec.periodic("t", body, 3.0, backoff=BackoffPolicy.constant(2.0)))
    start = datetime(2000, 1, 1, tzinfo=UTC)

    def look() -> tuple[object, ...]:
        info = handle.info()
        assert supervisor.tasks() == [info]
        return (info.state, info.attempt, info.streak, info.started_at, info.next_attempt_at, info.last_error)

    def at(seconds: float) -> datetime:
        return start + timedelta(seconds=seconds)

    assert look() == ("waiting", 0, 0, None, None, None)
    clock.settle()
    assert look() == ("running", 1, 0, at(0), None, None)
    clock.advance(1.5)
    state, attempt, streak, started, next_at, error = look()
    assert (state, attempt, streak, started, next_at) == ("backoff", 1, 1, at(0), at(3))
    assert isinstance(error, str)
    assert "boom" in error
    clock.advance(2.0)
    assert look()[:5] == ("running", 2, 1, at(3), None)
    clock.advance(1.0)
    assert look()[:5] == ("idle", 2, 0, at(3), at(7))


def test_a_task_that_was_asked_to_stop_shows_stopping_until_it_has_ended(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    def lingers(ctx: TaskContext) -> None:
        ctx.wait()
        clock.sleep(1.0)

    handle = supervisor.add(TaskSpec.once("t", lingers))
    clock.settle()
    handle.remove()
    assert [info.state for info in supervisor.tasks()] == ["stopping"]
    handle.wait()
    assert handle.info().state == "finished"


def test_info_has_the_stack_only_on_request_and_only_of_a_running_task(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    def here_it_stands(ctx: TaskContext) -> None:
        ctx.wait()

    handle = supervisor.add(TaskSpec.once("t", here_it_stands))
    clock.settle()
    assert handle.info().stack is None
    stack = handle.info(stack=True).stack
    assert stack is not None
    assert "here_it_stands" in stack
    handle.cancel()
    assert handle.info(stack=True).stack is None


def test_wait_is_true_without_tasks_false_after_its_time_and_true_when_the_last_has_ended(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    assert supervisor.wait() is True
    supervisor.add(TaskSpec.once("short", clock.sleep, args=(2.0,)))
    supervisor.add(TaskSpec.once("long", clock.sleep, args=(5.0,)))
    assert supervisor.wait(timeout=3.0) is False
    assert clock.monotonic() == 3.0
    assert supervisor.wait(timeout=timedelta(seconds=30)) is True
    assert clock.monotonic() == 5.0


def test_all_threads_that_wait_for_the_last_task_wake(supervisor: Supervisor, clock: VirtualClock) -> None:
    supervisor.add(TaskSpec.once("t", clock.sleep, args=(5.0,)))
    woken: list[tuple[bool, float]] = []
    threads: list[ThreadHandle] = [
        clock.spawn(lambda: woken.append((supervisor.wait(), clock.monotonic())), f"waiter {n}")
        for n in range(3)
    ]
    for thread in threads:
        thread.join()
    assert woken == [(True, 5.0)] * 3


# max_tasks


def test_beyond_max_tasks_add_raises_and_after_an_end_it_works_again(
    make_supervisor: Callable[..., Supervisor], recorder: EventRecorder, clock: VirtualClock
) -> None:
    supervisor = make_supervisor(max_tasks=2)
    for name in "ab":
        supervisor.add(TaskSpec.once(name, stays))
    with pytest.raises(CapacityExceeded, match="2 of max_tasks 2 are registered, 1 more do not fit"):
        supervisor.add(TaskSpec.once("c", stays))
    supervisor.cancel("a")
    (rejected,) = recorder.of(TaskRejected)
    assert (rejected.task, rejected.rejection) == ("c", "capacity")
    supervisor.add(TaskSpec.once("c", stays))
    assert [info.name for info in supervisor.tasks()] == ["b", "c"]


def test_a_batch_that_does_not_fit_is_refused_as_a_whole(
    make_supervisor: Callable[..., Supervisor], recorder: EventRecorder, clock: VirtualClock
) -> None:
    supervisor = make_supervisor(max_tasks=2)
    supervisor.add(TaskSpec.once("a", stays))
    with pytest.raises(CapacityExceeded):
        supervisor.add_all([TaskSpec.once("b", stays), TaskSpec.once("c", stays)])
    clock.settle()
    assert [info.name for info in supervisor.tasks()] == ["a"]
    assert [event.task for event in recorder.of(TaskAdded)] == ["a"]
    assert [event.task for event in recorder.of(TaskRejected)] == ["b", "c"]


# An operating system that refuses threads


@pytest.mark.parametrize("others", [0, 3])
def test_a_refused_thread_is_capacityexceeded_and_leaves_nothing_registered(others: int) -> None:
    clock, recorder = FewThreads(10**6), EventRecorder()
    with Supervisor(clock=clock, subscribers=[recorder]) as supervisor:
        for n in range(others):
            supervisor.add(TaskSpec.once(f"other {n}", stays))
        clock.allowed = 0
        with pytest.raises(CapacityExceeded, match=r"refused a thread: .*can't start new thread"):
            supervisor.add(TaskSpec.once("t", stays))
        assert supervisor.get("t") is None
        assert [info.name for info in supervisor.tasks()] == [f"other {n}" for n in range(others)]
        clock.settle()
        assert "task_added" not in recorder.kinds("t")
        assert [event.rejection for event in recorder.of(TaskRejected)] == ["capacity"]
        clock.allowed = 1
        assert supervisor.add(TaskSpec.once("t", lambda: 1)).wait().value == 1


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_a_batch_that_gets_too_few_threads_starts_none_of_its_bodies(allowed: int) -> None:
    clock, runs = FewThreads(10**6), []
    with Supervisor(clock=clock) as supervisor:
        clock.allowed = allowed
        with pytest.raises(CapacityExceeded):
            supervisor.add_all([TaskSpec.once(f"t{n}", runs.append, args=(n,)) for n in range(3)])
        assert supervisor.tasks() == []
        assert supervisor.wait(timeout=0) is True
        clock.advance(1.0)
        assert runs == []


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_a_start_without_threads_fails_and_can_be_tried_again(allowed: int) -> None:
    clock, recorder = FewThreads(allowed), EventRecorder()
    supervisor = Supervisor(clock=clock, subscribers=[recorder])
    declared: list[int] = []
    supervisor.once(name="declared")(lambda: declared.append(1))
    with pytest.raises(CapacityExceeded):
        supervisor.add(TaskSpec.once("t", lambda: None))
    assert [info.name for info in supervisor.tasks()] == []
    clock.allowed = 10**6
    supervisor.add(TaskSpec.once("t", lambda: None)).wait()
    supervisor.shutdown()
    assert declared == [1]
    assert recorder.kinds("t")[-1] == "task_removed"


def test_a_subscriber_whose_thread_is_refused_is_not_subscribed() -> None:
    clock = FewThreads(10**6)
    with Supervisor(clock=clock) as supervisor:
        heard: list[object] = []
        clock.allowed = 0
        with pytest.raises(CapacityExceeded):
            supervisor.subscribe(heard.append)
        with pytest.raises(CapacityExceeded):
            supervisor.subscribe(heard.append, dedicated=True)
        clock.allowed = 10**6
        recorder = EventRecorder()
        supervisor.subscribe(recorder)
        supervisor.add(TaskSpec.once("t", lambda: None)).wait()
    assert heard == []
    assert len(recorder.kinds("t")) == 5
