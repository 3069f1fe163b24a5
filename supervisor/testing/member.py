"""A thread that takes turns, and what it can wait for."""

from __future__ import annotations

import sys
import threading
from queue import SimpleQueue

__all__ = [
    "ENDED",
    "PARKED",
    "READY",
    "RUNNING",
    "BlockedOutsideClock",
    "Member",
    "MemberThread",
    "Waitable",
    "stack_of",
]

READY, RUNNING, PARKED, ENDED = "ready", "running", "parked", "ended"


class BlockedOutsideClock(AssertionError):  # noqa: N818
    """A thread of the clock runs, or blocks, without ever waiting on something the clock made."""


class Waitable:
    """Something members park on: who does, first come first, and words for an error message."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: dict[Member, None] = {}

    def describe(self) -> str:
        return "its next turn"


class MemberThread(threading.Thread):
    """The thread of a member, of whatever clock."""


class Member(Waitable):
    """A thread that runs by turns. It is waitable itself: for its end."""

    __slots__ = ("fired", "gate", "name", "seen", "source", "state", "thread", "ticket", "turn")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name: str = name
        self.gate: SimpleQueue[int] = SimpleQueue()  # numbers of its turns; a repeated one is ignored
        self.turn: int = 0  # the last turn given
        self.seen: int = 0  # the last turn taken
        self.state: str = READY
        self.source: Waitable | None = None  # what it is parked on
        self.ticket: int = 0  # of its present wait; 0: not parked, its entries among the timers are stale
        self.fired: bool = False  # its last wait ended because of its deadline
        self.thread: threading.Thread | None = None

    @property
    def ended(self) -> bool:
        return self.state is ENDED

    def describe(self) -> str:
        return f"the end of thread {self.name!r}"


def stack_of(thread: threading.Thread | None) -> str:
    """The stack of a thread as text, innermost call last."""
    import traceback

    ident = None if thread is None else thread.ident
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
    frame = None if ident is None else frames.get(ident)
    if frame is None:
        return "  (no stack: the thread has ended)\n"
    return "".join(traceback.format_stack(frame)[-12:])
