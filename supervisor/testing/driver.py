"""Threads that are not the clock's: while one of them waits, it drives the members and the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from supervisor.testing.baton import Baton
from supervisor.testing.member import MemberThread, stack_of

__all__ = ["Driver", "VirtualDeadlock"]


class VirtualDeadlock(AssertionError):  # noqa: N818
    """Nobody can run, no deadline is left, and a thread still waits."""


class _Wait:
    """One wait of a thread that is not a member."""

    __slots__ = ("done", "error", "gate", "ident", "limit", "looking", "ready", "result", "what")

    def __init__(self, ready: Callable[[], bool], limit: int | None, what: str) -> None:
        self.ready = ready
        self.limit = limit  # ns
        self.what = what
        self.ident = threading.get_ident()
        self.gate = threading.Lock()  # acquire: wait until done, or until it is this one's turn to drive
        self.gate.acquire()
        self.looking = False  # ready() runs
        self.done = self.result = False
        self.error: BaseException | None = None

    def tell(self) -> None:
        try:
            self.gate.release()
        except RuntimeError:  # told already
            pass


class Driver:
    """Exactly one waiting thread drives; it looks for the others too, whenever all members rest."""

    def __init__(self, baton: Baton) -> None:
        self._baton = baton
        # Without a lock, which a Ctrl-C could leave held: each use is one call of C.
        self._waits: dict[_Wait, None] = {}
        self._role: dict[None, _Wait] = {}  # None -> the wait of the thread that drives

    def wait(self, ready: Callable[[], bool], limit: int | None, what: str) -> bool:
        """Drive until `ready()` at a moment of rest (True), or until the instant `limit` (False).

        `ready` may be called by another waiting thread. Raises what members raised, BlockedOutsideClock,
        and VirtualDeadlock when it can never become true.
        """
        baton = self._baton
        wait = _Wait(ready, limit, what)
        outer: _Wait | None = None
        try:
            self._waits[wait] = None
            if baton.listening:
                baton.ring()
            while not wait.done:
                current = self._role.setdefault(None, wait)
                if current.ident == wait.ident:  # wait itself, or a wait whose ready() waits in its turn
                    outer, self._role[None] = current, wait
                    self._drive(wait)
                elif not wait.gate.acquire(timeout=baton.patience) and current.done:
                    self._role.pop(None, None)  # a second Ctrl-C kept it from leaving
        finally:
            self._leave(wait, outer)
        if wait.error is not None:
            raise wait.error
        return wait.result

    def is_waiting(self, ident: int | None) -> bool:
        """Whether the thread waits in here."""
        return any(wait.ident == ident for wait in self._open_waits())

    def _leave(self, wait: _Wait, outer: _Wait | None) -> None:
        wait.done = True
        if self._role.get(None) is wait:
            if outer is None or outer.done:
                self._role.pop(None, None)
            else:
                self._role[None] = outer
        self._waits.pop(wait, None)
        for other in list(self._waits):  # one of them drives now
            other.tell()

    def _drive(self, mine: _Wait) -> None:
        baton = self._baton
        try:
            hopeless, stuck_since = False, None  # real seconds
            while True:
                baton.settle()
                self._raise_what_members_raised()
                if self._look(mine):
                    hopeless, stuck_since = False, None  # who was let go may help
                if mine.done:
                    return
                limits = [wait.limit for wait in self._open_waits() if wait.limit is not None]
                if baton.jump(min(limits, default=None)):
                    hopeless, stuck_since = False, None
                elif limits:
                    self._expire()
                    if mine.done:
                        return
                elif hopeless:
                    raise VirtualDeadlock(self._report(mine))
                elif not baton.listening:
                    baton.listening = True  # and look again: a thread may have acted before it could know
                else:
                    # Another thread of the process may help, for so long; then look a last time. A ring
                    # alone is no help: this thread's own looks ring too.
                    now = time.monotonic()
                    stuck_since = now if stuck_since is None else stuck_since
                    left = stuck_since + baton.patience - now
                    if left <= 0.0 or not self._strangers() or not baton.heard(left):
                        hopeless = True
        finally:
            baton.listening = False

    def _open_waits(self) -> list[_Wait]:
        return [wait for wait in list(self._waits) if not wait.done]

    def _look(self, mine: _Wait) -> bool:
        """Let those go whose wait is over; True if there was one."""
        found = False
        for wait in self._open_waits():
            if wait.looking:
                continue
            wait.looking = True
            try:
                if wait.ready():
                    wait.result = wait.done = True
            except Exception as error:
                if wait is mine:
                    raise
                wait.error, wait.done = error, True
            finally:
                wait.looking = False
            if wait.done:
                found = True
                wait.tell()
        return found

    def _expire(self) -> None:
        for wait in self._open_waits():
            if wait.limit is not None and wait.limit <= self._baton.elapsed:
                wait.done = True
                wait.tell()

    def _raise_what_members_raised(self) -> None:
        if not self._baton.errors:
            return
        member, error = self._baton.errors.popleft()
        if isinstance(error, Exception):
            error.add_note(f"raised in thread {member.name!r}")
            raise error
        raise AssertionError(f"thread {member.name!r} ended with {type(error).__name__}: {error}") from error

    def _strangers(self) -> bool:
        """Whether there is a thread that neither belongs to the clock nor waits in here: it may help yet."""
        known = {wait.ident for wait in self._open_waits()}
        return any(
            thread.ident not in known and not isinstance(thread, MemberThread)
            for thread in threading.enumerate()
        )

    def _report(self, mine: _Wait) -> str:
        baton = self._baton
        lines = [
            f"deadlock at {baton.elapsed / 1e9} s: thread {threading.current_thread().name!r} waits for {mine.what}, "
            "nobody can run and no deadline is left; give the wait a timeout, or let something end it"
        ]
        for member in list(baton.members):
            source = "its first turn" if member.source is None else member.source.describe()
            lines.append(f"thread {member.name!r} waits for {source}:\n{stack_of(member.thread)}")
        if not baton.members:
            lines.append("no thread of the clock is alive")
        return "\n".join(lines)
