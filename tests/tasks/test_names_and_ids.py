"""Ids are drawn once for good; names are held by the registered tasks of one supervisor."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor import (
    OutcomeKind,
    Supervisor,
    TaskAdded,
    TaskAlreadyExists,
    TaskContext,
    TaskRejected,
    TaskRemoved,
    TaskSpec,
)
from supervisor.tasks.lifecycle import TaskEvent
from supervisor.testing import EventRecorder, VirtualClock


def stays(ctx: TaskContext) -> None:
    ctx.wait()


def test_ids_are_ints_that_grow_and_are_never_reused(supervisor: Supervisor) -> None:
    ids = []
    for _ in range(3):
        handle = supervisor.add(TaskSpec.once("t", stays))
        ids.append(handle.id)
        supervisor.cancel("t")
    assert all(isinstance(each, int) and each >= 1 for each in ids)
    assert ids == sorted(set(ids))


def test_two_supervisors_share_the_ids_but_not_the_names(
    make_supervisor: Callable[..., Supervisor],
) -> None:
    one, other = make_supervisor(name="one"), make_supervisor(name="other")
    first, second = one.add(TaskSpec.once("t", stays)), other.add(TaskSpec.once("t", stays))
    assert first.id < second.id
    assert other.get(first.id) is None
    assert other.get(first) is None
    assert other.remove(first) is False
    assert other.cancel(first) is False
    assert not first.done()


def test_a_name_in_use_is_refused_and_its_owner_left_alone(
    supervisor: Supervisor, recorder: EventRecorder, clock: VirtualClock
) -> None:
    runs: list[int] = []
    owner = supervisor.add(TaskSpec.once("t", stays))
    with pytest.raises(TaskAlreadyExists, match=rf"'t' is registered as #{owner.id}"):
        supervisor.add(TaskSpec.once("t", runs.append, args=(1,)))
    clock.settle()
    assert runs == []
    assert owner.info().state == "running"
    (rejected,) = recorder.of(TaskRejected)
    assert (rejected.task, rejected.task_id, rejected.rejection) == ("t", None, "already_exists")
    assert [event.task_id for event in recorder.of(TaskAdded)] == [owner.id]


def test_a_name_is_held_while_its_task_stops_and_free_when_cancel_returns(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    def lingers(ctx: TaskContext) -> None:
        ctx.wait()
        clock.sleep(5.0)

    supervisor.add(TaskSpec.once("t", lingers))
    clock.settle()
    assert supervisor.remove("t") is True
    clock.advance(4.0)
    with pytest.raises(TaskAlreadyExists):
        supervisor.add(TaskSpec.once("t", stays))
    assert supervisor.cancel("t") is False
    assert clock.monotonic() == 5.0
    supervisor.add(TaskSpec.once("t", stays))


@pytest.mark.parametrize("seed", range(10))
def test_when_wait_returns_the_name_is_free_and_taskfinished_was_published(seed: int) -> None:
    clock, recorder = VirtualClock(seed), EventRecorder()
    with Supervisor(clock=clock, subscribers=[recorder]) as supervisor:
        first = supervisor.add(TaskSpec.once("t", lambda: 1))
        seen: list[object] = []

        def add_again() -> None:
            assert first.wait().kind is OutcomeKind.COMPLETED
            seen.append(supervisor.get("t"))
            seen.append(supervisor.add(TaskSpec.once("t", lambda: 2)))

        clock.spawn(add_again, "waiter").join()
        assert supervisor.wait()
    assert seen[0] is None
    finished = [event for event in recorder.events if event.kind == "task_finished"]
    assert finished[0].seq < recorder.of(TaskAdded)[1].seq


def test_at_taskfinished_the_name_is_free_and_at_taskremoved_the_outcome_is_there(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    handle = supervisor.add(TaskSpec.once("t", lambda: 7))
    seen: list[object] = []
    supervisor.subscribe(lambda _: seen.append(supervisor.get("t")), kinds=["task_finished"])
    supervisor.subscribe(lambda _: seen.append(handle.outcome), kinds=[TaskRemoved])
    clock.settle()
    assert seen == [None, handle.outcome]
    assert handle.outcome is not None


def test_a_name_used_again_belongs_to_the_new_id_only(
    supervisor: Supervisor, recorder: EventRecorder
) -> None:
    old = supervisor.add(TaskSpec.once("t", stays))
    supervisor.cancel(old)
    new = supervisor.add(TaskSpec.once("t", stays))
    assert supervisor.get("t") == new
    assert supervisor.get(old.id) is None
    assert supervisor.get(old) is None
    assert supervisor.remove(old) is False
    assert supervisor.remove(old.id) is False
    assert not new.done()
    assert [info.id for info in supervisor.tasks()] == [new.id]


def test_every_event_of_a_task_carries_its_id_and_name(
    supervisor: Supervisor, recorder: EventRecorder
) -> None:
    handle = supervisor.add(TaskSpec.once("t", lambda: None))
    handle.wait()
    events = recorder.of(TaskEvent)
    assert {(event.task_id, event.task) for event in events} == {(handle.id, "t")}
    assert len(events) == 5


def test_an_id_is_not_taken_for_a_name_nor_a_bool_for_an_id(supervisor: Supervisor) -> None:
    handle = supervisor.add(TaskSpec.once("t", stays))
    named = supervisor.add(TaskSpec.once(str(handle.id), stays))
    assert supervisor.get(handle.id) == handle
    assert supervisor.get(str(handle.id)) == named
    for wrong in (True, None, 1.0, b"t"):
        with pytest.raises(TypeError, match="target must be"):
            supervisor.get(wrong)  # type: ignore[arg-type]
