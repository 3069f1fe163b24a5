"""A task that was given up: its outcome is there, its thread still runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from supervisor import (
    Admission,
    CapacityExceeded,
    GraceExceeded,
    OutcomeKind,
    Supervisor,
    TaskAlreadyExists,
    TaskContext,
    TaskHandle,
    TaskSpec,
)
from supervisor.testing import EventRecorder, VirtualClock

if TYPE_CHECKING:
    from tests.tasks.conftest import Stubborn


def stays(ctx: TaskContext) -> None:
    ctx.wait()


def give_up(supervisor: Supervisor, clock: VirtualClock, stubborn: Stubborn, name: str = "t") -> TaskHandle:
    handle = supervisor.add(TaskSpec.once(name, stubborn))
    clock.settle()
    handle.cancel()
    assert handle.wait().kind is OutcomeKind.FORCE_ABORTED
    return handle


@pytest.fixture
def supervisor(make_supervisor: Callable[..., Supervisor]) -> Supervisor:
    return make_supervisor(grace=1.0, max_tasks=2)


def test_it_shows_as_stuck_and_is_found_until_its_thread_has_ended(
    supervisor: Supervisor, clock: VirtualClock, stubborn: Stubborn
) -> None:
    handle = give_up(supervisor, clock, stubborn)
    assert [(info.name, info.state) for info in supervisor.tasks()] == [("t", "stuck")]
    assert handle.info().state == "stuck"
    assert supervisor.get("t") == handle
    stack = handle.info(stack=True).stack
    assert stack is not None
    assert "self._latch.wait()" in stack
    stubborn.release()
    clock.settle()
    assert supervisor.tasks() == []
    assert supervisor.get("t") is None
    assert handle.info().state == "finished"


def test_it_keeps_its_name_until_its_thread_has_ended(
    supervisor: Supervisor, clock: VirtualClock, stubborn: Stubborn
) -> None:
    handle = give_up(supervisor, clock, stubborn)
    with pytest.raises(TaskAlreadyExists, match=rf"'t' is stuck in its thread as #{handle.id}"):
        supervisor.add(TaskSpec.once("t", stays))
    stubborn.release()
    clock.settle()
    assert supervisor.add(TaskSpec.once("t", lambda: 1)).wait().ok


def test_it_counts_for_max_tasks(supervisor: Supervisor, clock: VirtualClock, stubborn: Stubborn) -> None:
    give_up(supervisor, clock, stubborn)
    supervisor.add(TaskSpec.once("u", stays))
    with pytest.raises(CapacityExceeded):
        supervisor.add(TaskSpec.once("v", stays))
    stubborn.release()
    clock.settle()
    supervisor.add(TaskSpec.once("v", stays))


def test_it_does_not_count_for_wait_and_run(
    supervisor: Supervisor, clock: VirtualClock, stubborn: Stubborn
) -> None:
    give_up(supervisor, clock, stubborn)
    assert supervisor.wait(timeout=0) is True
    with pytest.raises(GraceExceeded) as caught:
        supervisor.run([TaskSpec.once("u", clock.sleep, args=(1.0,))])
    assert [each.name for each in caught.value.stuck] == ["t"]
    assert clock.monotonic() == 2.0


def test_remove_and_cancel_of_it_are_false_and_do_not_wait(
    supervisor: Supervisor, clock: VirtualClock, stubborn: Stubborn, recorder: EventRecorder
) -> None:
    handle = give_up(supervisor, clock, stubborn)
    before = recorder.kinds()
    assert supervisor.remove("t") is False
    assert supervisor.cancel("t") is False
    assert handle.remove() is False
    assert handle.cancel() is False
    assert clock.monotonic() == 1.0
    assert recorder.kinds() == before


@pytest.mark.parametrize(
    "late", [lambda: 1, lambda: 1 / 0, lambda: exit(3)], ids=["returns", "raises", "exits"]
)
def test_what_its_body_does_at_last_changes_nothing(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder, late: Callable[[], object]
) -> None:
    latch = clock.latch()

    def body() -> object:
        latch.wait()
        return late()

    handle = supervisor.add(TaskSpec.restartable("t", body))
    clock.settle()
    handle.cancel()
    outcome, events = handle.wait(), recorder.kinds("t")
    latch.open()
    clock.advance(60.0)
    assert handle.wait() is outcome
    assert outcome.kind is OutcomeKind.FORCE_ABORTED
    assert recorder.kinds("t") == events
    assert events == [
        "task_added",
        "attempt_starting",
        "task_cancel_requested",
        "task_finished",
        "task_removed",
    ]


def test_it_keeps_its_slot(supervisor: Supervisor, clock: VirtualClock, stubborn: Stubborn) -> None:
    owner = supervisor.submit(TaskSpec.once("t", stubborn), slot="s")
    clock.settle()
    after = supervisor.submit(TaskSpec.once("after", lambda: 1), slot="s")
    owner.cancel()
    clock.advance(10.0)
    assert after.info().state == "waiting"
    dropped = supervisor.submit(TaskSpec.once("u", stays), slot="s", admission=Admission.DROP_IF_RUNNING)
    assert dropped.wait().rejection == "slot_busy"
    stubborn.release()
    assert after.wait().ok


def test_a_shutdown_names_what_was_stuck_before_it_and_does_not_wait_for_it(
    supervisor: Supervisor, clock: VirtualClock, stubborn: Stubborn
) -> None:
    handle = give_up(supervisor, clock, stubborn)
    with pytest.raises(GraceExceeded) as caught:
        supervisor.shutdown()
    assert [(each.name, each.id) for each in caught.value.stuck] == [("t", handle.id)]
    assert clock.monotonic() == 1.0
    assert [info.state for info in supervisor.tasks()] == ["stuck"]
    stubborn.release()
    clock.settle()
    assert supervisor.tasks() == []
    assert supervisor.get("t") is None


def test_after_it_has_ended_a_shutdown_is_clean(
    supervisor: Supervisor, clock: VirtualClock, stubborn: Stubborn
) -> None:
    give_up(supervisor, clock, stubborn)
    stubborn.release()
    clock.settle()
    supervisor.shutdown()
