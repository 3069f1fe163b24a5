"""`add_all`: all or none."""

from __future__ import annotations

import pytest

from supervisor import (
    AttemptStarting,
    Supervisor,
    TaskAdded,
    TaskAlreadyExists,
    TaskContext,
    TaskRejected,
    TaskSpec,
)
from supervisor.testing import EventRecorder, VirtualClock


def stays(ctx: TaskContext) -> None:
    ctx.wait()


def test_a_batch_gives_its_handles_in_order(supervisor: Supervisor, recorder: EventRecorder) -> None:
    handles = supervisor.add_all(TaskSpec.once(name, lambda: None) for name in "cab")
    assert [each.name for each in handles] == ["c", "a", "b"]
    assert [each.id for each in handles] == sorted(each.id for each in handles)
    supervisor.wait()
    assert [event.task for event in recorder.of(TaskAdded)] == ["c", "a", "b"]


def test_an_empty_batch_is_an_empty_list(supervisor: Supervisor) -> None:
    assert supervisor.add_all([]) == []


@pytest.mark.parametrize("seed", range(10))
def test_no_body_of_a_batch_starts_before_all_of_it_is_registered(seed: int) -> None:
    clock, recorder = VirtualClock(seed), EventRecorder()
    with Supervisor(clock=clock, subscribers=[recorder]) as supervisor:
        specs = [TaskSpec.once(f"t{n}", lambda: None) for n in range(5)]
        clock.spawn(lambda: supervisor.add_all(specs) and None, "adder").join()
        assert supervisor.wait()
    last_added = max(event.seq for event in recorder.of(TaskAdded))
    assert last_added < min(event.seq for event in recorder.of(AttemptStarting))


def test_a_name_twice_in_a_batch_refuses_all_and_nothing_runs(
    supervisor: Supervisor, recorder: EventRecorder, clock: VirtualClock
) -> None:
    runs: list[str] = []
    with pytest.raises(TaskAlreadyExists, match="the name 'd' occurs twice in the batch"):
        supervisor.add_all([TaskSpec.once(name, runs.append, args=(name,)) for name in ("u", "d", "d")])
    clock.settle()
    assert runs == []
    assert supervisor.tasks() == []
    assert [(event.task, event.rejection, event.task_id) for event in recorder.of(TaskRejected)] == [
        ("u", "batch_rejected", None),
        ("d", "batch_rejected", None),
        ("d", "already_exists", None),
    ]
    assert set(recorder.kinds()) == {"task_rejected"}


@pytest.mark.parametrize("stopping", [False, True], ids=["registered", "stopping"])
def test_a_name_in_use_refuses_the_whole_batch_and_leaves_its_owner_alone(
    supervisor: Supervisor, recorder: EventRecorder, clock: VirtualClock, stopping: bool
) -> None:
    def lingers(ctx: TaskContext) -> None:
        ctx.wait()
        clock.sleep(1.0)

    owner = supervisor.add(TaskSpec.once("b", lingers))
    clock.settle()
    if stopping:
        owner.remove()
    with pytest.raises(TaskAlreadyExists, match=rf"'b' is registered as #{owner.id}"):
        supervisor.add_all([TaskSpec.once(name, stays) for name in "abc"])
    clock.settle()
    assert [info.id for info in supervisor.tasks()] == [owner.id]
    assert [(event.task, event.rejection) for event in recorder.of(TaskRejected)] == [
        ("a", "batch_rejected"),
        ("b", "already_exists"),
        ("c", "batch_rejected"),
    ]


def test_a_refused_batch_leaves_its_names_free(supervisor: Supervisor) -> None:
    with pytest.raises(TaskAlreadyExists):
        supervisor.add_all([TaskSpec.once("a", stays), TaskSpec.once("a", stays)])
    assert supervisor.add(TaskSpec.once("a", lambda: 3)).wait().value == 3


def test_what_is_no_spec_is_refused_before_anything_is_registered(supervisor: Supervisor) -> None:
    with pytest.raises(TypeError, match="a task must be a TaskSpec, got"):
        supervisor.add_all([TaskSpec.once("a", stays), stays])  # type: ignore[list-item]
    assert supervisor.tasks() == []
