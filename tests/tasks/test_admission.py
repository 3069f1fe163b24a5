"""`submit`: one owner for each slot, and a rule for who comes later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from supervisor import (
    Admission,
    CancelReason,
    OutcomeKind,
    RejectionKind,
    ShuttingDown,
    SlotChanged,
    Supervisor,
    TaskAlreadyExists,
    TaskCancelRequested,
    TaskContext,
    TaskHandle,
    TaskRejected,
    TaskSpec,
)
from supervisor.testing import EventRecorder, VirtualClock

if TYPE_CHECKING:
    from tests.tasks.conftest import Stubborn

QUEUE, REPLACE, DROP = Admission.QUEUE, Admission.REPLACE, Admission.DROP_IF_RUNNING


def stays(ctx: TaskContext) -> None:
    ctx.wait()


def kinds(*handles: TaskHandle) -> list[str | None]:
    return [None if each.outcome is None else each.outcome.kind.value for each in handles]


def slot_states(recorder: EventRecorder) -> list[tuple[str, str]]:
    return [(event.slot, event.state) for event in recorder.of(SlotChanged)]


@pytest.mark.parametrize("admission", Admission)
def test_a_free_slot_takes_any_submission(supervisor: Supervisor, admission: Admission) -> None:
    handle = supervisor.submit(TaskSpec.once("t", lambda: 4), slot="s", admission=admission)
    assert handle.wait().value == 4


def test_the_default_slot_is_the_name_of_the_task_and_the_default_rule_is_to_queue(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    order: list[int] = []

    def body(number: int) -> None:
        clock.sleep(1.0)
        order.append(number)

    handles = [supervisor.submit(TaskSpec.once("t", body, args=(n,))) for n in range(3)]
    assert all(each.wait().ok for each in handles)
    assert order == [0, 1, 2]
    assert clock.monotonic() == 3.0
    assert {slot for slot, _ in slot_states(recorder)} == {"t"}


def test_a_slot_runs_one_at_a_time_in_the_order_of_submission(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    ends: list[tuple[str, float]] = []

    def body(ctx: TaskContext) -> None:
        clock.sleep(1.0)
        ends.append((ctx.name, clock.monotonic()))

    for name in "abcd":
        supervisor.submit(TaskSpec.once(name, body), slot="s")
    supervisor.wait()
    assert ends == [("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0)]


def test_different_slots_run_at_once(supervisor: Supervisor, clock: VirtualClock) -> None:
    for n in range(5):
        supervisor.submit(TaskSpec.once(f"t{n}", clock.sleep, args=(1.0,)), slot=f"s{n}")
    supervisor.wait()
    assert clock.monotonic() == 1.0


def test_a_queued_task_is_waiting_listed_and_found_by_id_but_does_not_hold_its_name(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    supervisor.submit(TaskSpec.once("owner", stays), slot="s")
    queued = supervisor.submit(TaskSpec.once("t", stays), slot="s")
    clock.settle()
    assert [(info.name, info.state) for info in supervisor.tasks()] == [
        ("owner", "running"),
        ("t", "waiting"),
    ]
    assert queued.info().state == "waiting"
    assert supervisor.get(queued.id) == queued
    assert supervisor.get("t") is None
    assert supervisor.add(TaskSpec.once("t", lambda: 1)).wait().value == 1


def test_drop_if_running_is_refused_by_a_busy_slot(
    supervisor: Supervisor, recorder: EventRecorder, clock: VirtualClock
) -> None:
    runs: list[int] = []
    owner = supervisor.submit(TaskSpec.once("a", stays), slot="s")
    clock.settle()
    dropped = supervisor.submit(TaskSpec.once("b", runs.append, args=(1,)), slot="s", admission=DROP)
    outcome = dropped.outcome
    assert outcome is not None
    assert (outcome.kind, outcome.rejection) == (OutcomeKind.REJECTED, RejectionKind.SLOT_BUSY)
    assert outcome.attempts == 0
    assert not outcome.ok
    clock.settle()
    assert runs == []
    assert owner.info().state == "running"
    assert recorder.kinds("b") == ["task_rejected"]
    (rejected,) = recorder.of(TaskRejected)
    assert (rejected.task_id, rejected.rejection, rejected.reason) == (
        dropped.id,
        "slot_busy",
        outcome.reason,
    )


def test_when_an_owner_has_ended_its_slot_is_free_again(supervisor: Supervisor) -> None:
    for n in range(3):
        handle = supervisor.submit(TaskSpec.once("t", lambda n=n: n), slot="s", admission=DROP)
        assert handle.wait().value == n


@pytest.mark.parametrize("capacity", [0, 1, 3])
def test_beyond_slot_capacity_a_queued_task_is_refused(
    make_supervisor: Callable[..., Supervisor], capacity: int
) -> None:
    supervisor = make_supervisor(slot_capacity=capacity)
    handles = [supervisor.submit(TaskSpec.once(f"t{n}", stays), slot="s") for n in range(capacity + 3)]
    assert kinds(*handles) == [None] * (capacity + 1) + ["rejected"] * 2
    refused = handles[-1].outcome
    assert refused is not None
    assert refused.rejection is RejectionKind.QUEUE_FULL


def test_replace_stops_the_owner_and_follows_when_it_is_gone(
    supervisor: Supervisor, recorder: EventRecorder, clock: VirtualClock
) -> None:
    def lingers(ctx: TaskContext) -> CancelReason | None:
        ctx.wait()
        clock.sleep(2.0)
        return ctx.cancel_reason

    old = supervisor.submit(TaskSpec.once("old", lingers), slot="s")
    clock.settle()
    new = supervisor.submit(TaskSpec.once("new", clock.monotonic), slot="s", admission=REPLACE)
    assert new.wait().value == 2.0
    assert old.wait().kind is OutcomeKind.CANCELED
    assert [event.reason for event in recorder.of(TaskCancelRequested, "old")] == [CancelReason.REPLACED]
    assert slot_states(recorder) == [("s", "running"), ("s", "terminating"), ("s", "running"), ("s", "idle")]


def test_of_several_replacements_the_latest_wins_and_the_others_are_superseded(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    owner = supervisor.submit(TaskSpec.once("owner", stays), slot="s")
    clock.settle()
    handles = [
        supervisor.submit(TaskSpec.once(f"r{n}", lambda n=n: n), slot="s", admission=REPLACE)
        for n in range(3)
    ]
    assert handles[-1].wait().value == 2
    assert kinds(owner, *handles) == ["canceled", "rejected", "rejected", "completed"]
    assert [each.wait().rejection for each in handles[:2]] == [RejectionKind.SUPERSEDED] * 2


def test_a_replacement_takes_the_place_of_the_head_and_the_others_keep_theirs(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock
) -> None:
    supervisor = make_supervisor(slot_capacity=2)
    order: list[str] = []

    def body(ctx: TaskContext) -> None:
        order.append(ctx.name)

    supervisor.submit(TaskSpec.once("owner", stays), slot="s")
    clock.settle()
    head, tail = (supervisor.submit(TaskSpec.once(name, body), slot="s") for name in ("head", "tail"))
    new = supervisor.submit(TaskSpec.once("new", body), slot="s", admission=REPLACE)
    supervisor.wait()
    assert kinds(head, tail, new) == ["rejected", "completed", "completed"]
    assert order == ["new", "tail"]


def test_a_replacement_needs_no_room_in_the_line(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock
) -> None:
    supervisor = make_supervisor(slot_capacity=0)
    supervisor.submit(TaskSpec.once("owner", stays), slot="s")
    assert supervisor.submit(TaskSpec.once("new", lambda: 1), slot="s", admission=REPLACE).wait().ok


def test_a_replaced_owner_that_does_not_stop_keeps_its_slot_until_its_thread_has_ended(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock, stubborn: Stubborn
) -> None:
    supervisor = make_supervisor(grace=3.0)
    owner = supervisor.submit(TaskSpec.once("owner", stubborn), slot="s")
    clock.settle()
    new = supervisor.submit(TaskSpec.once("new", lambda: 1), slot="s", admission=REPLACE)
    assert owner.wait().kind is OutcomeKind.FORCE_ABORTED
    assert clock.monotonic() == 3.0
    clock.advance(10.0)
    assert not new.done()
    assert new.info().state == "waiting"
    assert (
        supervisor.submit(TaskSpec.once("x", stays), slot="s", admission=DROP).wait().rejection == "slot_busy"
    )
    stubborn.release()
    assert new.wait().value == 1


@pytest.mark.parametrize("call", ["remove", "cancel"])
def test_stopping_a_queued_task_ends_it_canceled_and_its_body_never_runs(
    supervisor: Supervisor, recorder: EventRecorder, clock: VirtualClock, call: str
) -> None:
    runs: list[str] = []
    owner = supervisor.submit(TaskSpec.once("owner", stays), slot="s")
    queued = supervisor.submit(TaskSpec.once("t", runs.append, args=("t",)), slot="s")
    after = supervisor.submit(TaskSpec.once("after", runs.append, args=("after",)), slot="s")
    assert getattr(queued, call)() is True
    assert getattr(queued, call)() is False
    assert queued.wait(timeout=0).kind is OutcomeKind.CANCELED
    assert supervisor.get(queued.id) is None
    owner.cancel()
    after.wait()
    assert runs == ["after"]
    assert recorder.kinds("t") == ["task_cancel_requested", "task_finished", "task_removed"]


def test_at_taskremoved_of_a_queued_task_its_outcome_is_there(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    supervisor.submit(TaskSpec.once("owner", stays), slot="s")
    queued = supervisor.submit(TaskSpec.once("t", stays), slot="s")
    seen: list[bool] = []
    supervisor.subscribe(lambda _: seen.append(queued.done()), kinds=["task_removed"])
    queued.cancel()
    clock.settle()
    assert seen == [True]


def test_stopping_the_owner_starts_the_next_in_line(supervisor: Supervisor, clock: VirtualClock) -> None:
    owner = supervisor.submit(TaskSpec.once("owner", stays), slot="s")
    after = supervisor.submit(TaskSpec.once("after", lambda: 1), slot="s")
    clock.settle()
    assert owner.cancel() is True
    assert after.wait().value == 1


@pytest.mark.parametrize("queued", [False, True], ids=["at once", "at its turn"])
def test_a_name_in_use_at_admission_is_refused_and_the_next_in_line_runs(
    supervisor: Supervisor, recorder: EventRecorder, clock: VirtualClock, queued: bool
) -> None:
    supervisor.add(TaskSpec.once("t", stays))
    owner = supervisor.submit(TaskSpec.once("owner", stays), slot="s") if queued else None
    refused = supervisor.submit(TaskSpec.once("t", stays), slot="s")
    after = supervisor.submit(TaskSpec.once("after", lambda: 1), slot="s")
    if owner is not None:
        clock.settle()
        assert not refused.done()
        owner.cancel()
    assert refused.wait().rejection is RejectionKind.ALREADY_EXISTS
    assert after.wait().value == 1
    assert [event.rejection for event in recorder.of(TaskRejected)] == ["already_exists"]
    assert "task_added" not in [
        event.kind for event in recorder.events if getattr(event, "task_id", 0) == refused.id
    ]


def test_a_submission_beyond_max_tasks_is_refused_for_capacity(
    make_supervisor: Callable[..., Supervisor],
) -> None:
    supervisor = make_supervisor(max_tasks=1)
    supervisor.add(TaskSpec.once("t", stays))
    assert supervisor.submit(TaskSpec.once("u", stays)).wait().rejection is RejectionKind.CAPACITY


def test_a_submission_without_a_thread_is_refused_for_capacity_and_frees_the_slot() -> None:
    class Refuses(VirtualClock):
        refuses = False

        def spawn(self, target: Callable[[], None], name: str) -> Any:
            if self.refuses:
                raise RuntimeError("can't start new thread")
            return super().spawn(target, name)

    clock = Refuses()
    with Supervisor(clock=clock) as supervisor:
        clock.refuses = True
        refused = supervisor.submit(TaskSpec.once("t", stays), slot="s")
        assert refused.wait().rejection is RejectionKind.CAPACITY
        assert refused.info().state == "finished"
        clock.refuses = False
        assert supervisor.tasks() == []
        assert supervisor.submit(TaskSpec.once("t", lambda: 1), slot="s", admission=DROP).wait().ok


def test_a_task_may_be_queued_behind_itself_under_the_same_name(supervisor: Supervisor) -> None:
    first = supervisor.submit(TaskSpec.once("t", lambda: 1), slot="s")
    second = supervisor.submit(TaskSpec.once("t", lambda: 2), slot="s")
    assert [first.wait().value, second.wait().value] == [1, 2]


def test_add_of_the_name_of_an_owner_is_refused(supervisor: Supervisor) -> None:
    supervisor.submit(TaskSpec.once("t", stays), slot="s")
    with pytest.raises(TaskAlreadyExists):
        supervisor.add(TaskSpec.once("t", stays))


def test_at_shutdown_a_queued_task_ends_canceled_and_never_runs(
    supervisor: Supervisor, recorder: EventRecorder, clock: VirtualClock
) -> None:
    runs: list[int] = []
    owner = supervisor.submit(TaskSpec.once("owner", stays), slot="s")
    queued = [supervisor.submit(TaskSpec.once("t", runs.append, args=(n,)), slot="s") for n in range(3)]
    clock.settle()
    supervisor.shutdown()
    assert kinds(owner, *queued) == ["canceled"] * 4
    assert runs == []
    assert {event.reason for event in recorder.of(TaskCancelRequested)} == {CancelReason.SHUTDOWN}
    assert len(recorder.of("task_finished")) == 4
    with pytest.raises(ShuttingDown):
        supervisor.submit(TaskSpec.once("late", stays))


def test_wait_counts_queued_tasks(supervisor: Supervisor, clock: VirtualClock) -> None:
    for n in range(3):
        supervisor.submit(TaskSpec.once(f"t{n}", clock.sleep, args=(1.0,)), slot="s")
    assert supervisor.wait(timeout=2.5) is False
    assert supervisor.wait() is True
    assert clock.monotonic() == 3.0


def test_a_task_removed_while_its_slot_launches_it_never_runs() -> None:
    class Interferes(VirtualClock):
        def spawn(self, target: Callable[[], None], name: str) -> Any:
            if name == "supervisor:t":
                removed.append(supervisor.remove(handles[0]))
                removed.append(supervisor.remove(handles[0]))
            return super().spawn(target, name)

    clock, recorder = Interferes(), EventRecorder()
    runs: list[int] = []
    removed: list[bool] = []
    with Supervisor(clock=clock, subscribers=[recorder]) as supervisor:
        owner = supervisor.submit(TaskSpec.once("owner", stays), slot="s")
        handles = [supervisor.submit(TaskSpec.once("t", runs.append, args=(1,)), slot="s")]
        owner.cancel()
        assert handles[0].wait().kind is OutcomeKind.CANCELED
    assert runs == []
    assert removed == [True, False]
    assert recorder.kinds("t") == ["task_added", "task_cancel_requested", "task_finished", "task_removed"]


def test_a_task_removed_before_it_could_be_refused_ends_canceled_as_its_remover_was_told() -> None:
    class Interferes(VirtualClock):
        def spawn(self, target: Callable[[], None], name: str) -> Any:
            if name == "supervisor:t":
                removed.append(supervisor.remove(queued))
                raise RuntimeError("can't start new thread")
            return super().spawn(target, name)

    clock, recorder = Interferes(), EventRecorder()
    removed: list[bool] = []
    with Supervisor(clock=clock, subscribers=[recorder]) as supervisor:
        owner = supervisor.submit(TaskSpec.once("owner", stays), slot="s")
        queued = supervisor.submit(TaskSpec.once("t", stays), slot="s")
        after = supervisor.submit(TaskSpec.once("after", lambda: 1), slot="s")
        owner.cancel()
        assert queued.wait().kind is OutcomeKind.CANCELED
        assert after.wait().ok
    assert removed == [True]
    assert recorder.kinds("t") == ["task_cancel_requested", "task_finished", "task_removed"]


def test_a_wrong_slot_or_rule_is_refused_by_name(supervisor: Supervisor) -> None:
    spec = TaskSpec.once("t", stays)
    with pytest.raises(ValueError, match="slot"):
        supervisor.submit(spec, slot="")
    with pytest.raises(TypeError, match="admission must be an Admission"):
        supervisor.submit(spec, admission="queue")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a task must be a TaskSpec"):
        supervisor.submit(stays)  # type: ignore[arg-type]
