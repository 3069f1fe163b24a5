"""The states of a slot: pure transitions, and a machine that holds them to a simple model."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from supervisor import Admission, RejectionKind
from supervisor.tasks.slot import (
    Effect,
    Idle,
    Reject,
    Running,
    Slot,
    Start,
    StopOwner,
    Terminating,
    owner_gone,
    submit,
    withdraw,
)

QUEUE, REPLACE, DROP = Admission.QUEUE, Admission.REPLACE, Admission.DROP_IF_RUNNING
BUSY, FULL, SUPERSEDED = RejectionKind.SLOT_BUSY, RejectionKind.QUEUE_FULL, RejectionKind.SUPERSEDED


def plain(effects: list[Effect]) -> list[tuple[object, ...]]:
    """Effects without the texts for people."""
    return [(Reject, e.id, e.kind) if isinstance(e, Reject) else (type(e), e.id) for e in effects]


@pytest.mark.parametrize(
    ("before", "admission", "after", "effects"),
    [
        (Idle(), QUEUE, Running(9), [(Start, 9)]),
        (Idle(), REPLACE, Running(9), [(Start, 9)]),
        (Idle(), DROP, Running(9), [(Start, 9)]),
        (Running(1), QUEUE, Running(1, (9,)), []),
        (Running(1, (2,)), QUEUE, Running(1, (2, 9)), []),
        (Running(1, (2, 3)), QUEUE, Running(1, (2, 3)), [(Reject, 9, FULL)]),
        (Running(1), REPLACE, Terminating(1, (9,)), [(StopOwner, 1)]),
        (Running(1, (2, 3)), REPLACE, Terminating(1, (9, 3)), [(Reject, 2, SUPERSEDED), (StopOwner, 1)]),
        (Running(1), DROP, Running(1), [(Reject, 9, BUSY)]),
        (Terminating(1), QUEUE, Terminating(1, (9,)), []),
        (Terminating(1, (2,)), QUEUE, Terminating(1, (2, 9)), []),
        (Terminating(1, (2, 3)), QUEUE, Terminating(1, (2, 3)), [(Reject, 9, FULL)]),
        (Terminating(1), REPLACE, Terminating(1, (9,)), []),
        (Terminating(1, (2, 3)), REPLACE, Terminating(1, (9, 3)), [(Reject, 2, SUPERSEDED)]),
        (Terminating(1, (2,)), DROP, Terminating(1, (2,)), [(Reject, 9, BUSY)]),
    ],
)
def test_each_submission_has_its_transition(
    before: Slot, admission: Admission, after: Slot, effects: list[tuple[object, ...]]
) -> None:
    slot, done = submit(before, 9, admission, 2)
    assert slot == after
    assert type(slot) is type(after)
    assert plain(done) == effects


@pytest.mark.parametrize(
    ("before", "gone", "after", "effects"),
    [
        (Running(1), 1, Idle(), []),
        (Running(1, (2, 3)), 1, Running(2, (3,)), [(Start, 2)]),
        (Terminating(1), 1, Idle(), []),
        (Terminating(1, (2, 3)), 1, Running(2, (3,)), [(Start, 2)]),
        (Idle(), 1, Idle(), []),
        (Running(1, (2,)), 2, Running(1, (2,)), []),
        (Terminating(1, (2,)), 7, Terminating(1, (2,)), []),
    ],
)
def test_the_end_of_an_owner_lets_the_next_in_and_that_of_anybody_else_changes_nothing(
    before: Slot, gone: int, after: Slot, effects: list[tuple[object, ...]]
) -> None:
    slot, done = owner_gone(before, gone)
    assert slot == after
    assert type(slot) is type(after)
    assert plain(done) == effects


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Running(1, (2, 3, 4)), Running(1, (2, 4))),
        (Terminating(1, (3,)), Terminating(1)),
        (Running(1, (2,)), Running(1, (2,))),
        (Running(3), Running(3)),
        (Idle(), Idle()),
    ],
)
def test_who_withdraws_leaves_the_line_and_nothing_else(before: Slot, after: Slot) -> None:
    assert withdraw(before, 3) == after


def test_a_refusal_says_why() -> None:
    _, (busy,) = submit(Running(1), 9, DROP, 2)
    _, (full,) = submit(Running(1, (2, 3)), 9, QUEUE, 2)
    _, (superseded, _) = submit(Running(1, (2,)), 9, REPLACE, 2)
    assert [each.reason for each in (busy, full, superseded) if isinstance(each, Reject)] == [
        "the slot is owned by #1",
        "2 tasks wait in the slot, its capacity is 2",
        "#9 took its place in line",
    ]


class SlotMachine(RuleBasedStateMachine):
    """Every task that came in is the owner, in line, or gone: nobody is lost, nobody runs twice."""

    capacity = 3

    def __init__(self) -> None:
        super().__init__()
        self.slot: Slot = Idle()
        self.next_id = 1
        self.owner: int | None = None
        self.line: list[int] = []
        self.stopped = False  # the owner was asked to stop
        self.started: set[int] = set()
        self.rejected: set[int] = set()

    def apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Start():
                    assert effect.id not in self.started | self.rejected
                    assert self.owner is None
                    self.started.add(effect.id)
                    self.owner, self.stopped = effect.id, False
                    if effect.id in self.line:
                        assert self.line.pop(0) == effect.id
                case StopOwner():
                    assert effect.id == self.owner
                    assert not self.stopped
                    self.stopped = True
                case Reject():
                    assert effect.id not in self.started | self.rejected
                    self.rejected.add(effect.id)

    @rule(admission=st.sampled_from(Admission))
    def submits(self, admission: Admission) -> None:
        id, self.next_id = self.next_id, self.next_id + 1
        busy, full = self.owner is not None, len(self.line) >= self.capacity
        self.slot, effects = submit(self.slot, id, admission, self.capacity)
        self.apply(effects)
        if not busy:
            assert self.owner == id
        elif admission is DROP or (admission is QUEUE and full):
            assert id in self.rejected
        elif admission is QUEUE:
            self.line.append(id)
        else:
            self.line[:1] = [id]
            assert self.stopped

    @precondition(lambda self: self.owner is not None)
    @rule()
    def owner_ends(self) -> None:
        assert self.owner is not None
        gone, self.owner = self.owner, None
        self.slot, effects = owner_gone(self.slot, gone)
        self.apply(effects)

    @rule(back=st.integers(1, 8))
    def stale_end(self, back: int) -> None:
        if (id := self.next_id - back) != self.owner:
            assert owner_gone(self.slot, id) == (self.slot, [])

    @precondition(lambda self: self.line)
    @rule(data=st.data())
    def withdraws(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.line))
        self.line.remove(id)
        self.slot = withdraw(self.slot, id)

    @invariant()
    def state_agrees(self) -> None:
        if isinstance(self.slot, Idle):
            assert self.owner is None
            assert self.line == []
        else:
            assert self.slot.owner == self.owner
            assert list(self.slot.line) == self.line
            assert isinstance(self.slot, Terminating) == self.stopped
            assert len(self.line) <= max(self.capacity, 1)


SlotMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSlotMachine = SlotMachine.TestCase
