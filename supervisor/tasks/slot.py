"""Admission per slot: states and transitions. Pure.

A slot has one owner. Who comes later waits, replaces the owner, or is refused:

    Idle ──submit──▶ Running ──REPLACE──▶ Terminating
      ▲                 │                      │
      └── owner gone, nobody waits ◀───────────┘      owner gone, somebody waits: Running

Tasks are known by id here. An effect says what has to be done about a task.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, assert_never

from supervisor.tasks.outcome import RejectionKind

__all__ = [
    "Admission",
    "Effect",
    "Idle",
    "Reject",
    "Running",
    "Slot",
    "Start",
    "StopOwner",
    "Terminating",
    "owner_gone",
    "submit",
    "withdraw",
]


class Admission(StrEnum):
    """What a submission does when its slot has an owner."""

    QUEUE = "queue"  # wait, first come first served
    REPLACE = "replace"  # stop the owner and be the next
    DROP_IF_RUNNING = "drop_if_running"  # give up


class Idle(NamedTuple):
    """No owner."""

    label: str = "idle"


class Running(NamedTuple):
    """The owner runs; `line` waits."""

    owner: int
    line: tuple[int, ...] = ()
    label: str = "running"


class Terminating(NamedTuple):
    """The owner was asked to stop; the head of `line` replaces it."""

    owner: int
    line: tuple[int, ...] = ()
    label: str = "terminating"


Slot = Idle | Running | Terminating


class Start(NamedTuple):
    """The task owns the slot now: register and run it."""

    id: int


class StopOwner(NamedTuple):
    """Ask the task to stop: it is replaced."""

    id: int


class Reject(NamedTuple):
    """Refuse the task."""

    id: int
    kind: RejectionKind
    reason: str  # for people


Effect = Start | StopOwner | Reject


def submit(slot: Slot, id: int, admission: Admission, capacity: int) -> tuple[Slot, list[Effect]]:
    """Return the slot after a submission, and what has to be done.

    capacity: how many may wait in line; a replacement does not count.
    """
    if isinstance(slot, Idle):
        return Running(id), [Start(id)]
    match admission:
        case Admission.DROP_IF_RUNNING:
            return slot, [Reject(id, RejectionKind.SLOT_BUSY, f"the slot is owned by #{slot.owner}")]
        case Admission.QUEUE:
            if len(slot.line) >= capacity:
                reason = f"{len(slot.line)} tasks wait in the slot, its capacity is {capacity}"
                return slot, [Reject(id, RejectionKind.QUEUE_FULL, reason)]
            return slot._replace(line=(*slot.line, id)), []
        case Admission.REPLACE:
            effects: list[Effect] = []
            if slot.line:
                reason = f"#{id} took its place in line"
                effects.append(Reject(slot.line[0], RejectionKind.SUPERSEDED, reason))
            if isinstance(slot, Running):
                effects.append(StopOwner(slot.owner))
            return Terminating(slot.owner, (id, *slot.line[1:])), effects
        case _:
            assert_never(admission)


def owner_gone(slot: Slot, id: int) -> tuple[Slot, list[Effect]]:
    """Return the slot after the thread of its owner has ended; stale for anybody else."""
    if isinstance(slot, Idle) or slot.owner != id:
        return slot, []
    if not slot.line:
        return Idle(), []
    return Running(slot.line[0], slot.line[1:]), [Start(slot.line[0])]


def withdraw(slot: Slot, id: int) -> Slot:
    """Return the slot without a task in its line."""
    if isinstance(slot, Idle):
        return slot
    return slot._replace(line=tuple(each for each in slot.line if each != id))
