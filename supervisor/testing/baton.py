"""One thread runs at a time: who has the baton, who waits for it, and what time it is.

Real threads ("members") take turns. A member runs until it parks; then the next one that can
run gets the baton. Nobody runs unless some other thread drives (see `driver.py`), and time
moves only when nobody can run.
"""

from __future__ import annotations

import heapq
import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from supervisor.testing.member import (
    ENDED,
    PARKED,
    READY,
    RUNNING,
    BlockedOutsideClock,
    Member,
    MemberThread,
    Waitable,
    stack_of,
)

if TYPE_CHECKING:
    import random
    import weakref

__all__ = ["Baton"]

_PREEMPT = 0.25  # chance to hand the baton on at an operation, with a seed
_TURNS_AT_ONE_INSTANT = 500_000  # beyond it the threads are taken to chase each other for ever

_LAST_CHANCE = 0.2  # real seconds each call gives a thread that was reported, or is about to be


class Baton:
    """Turns and time. Times are whole nanoseconds since the clock was made."""

    def __init__(self, rng: random.Random | None, patience: float) -> None:
        self.patience = patience  # real seconds one turn may last
        self.elapsed: int = 0  # ns
        self.members: dict[Member, None] = {}  # those that have not ended
        self.errors: deque[tuple[Member, BaseException]] = deque()  # what they raised
        self.listening = False  # the driver wants to hear of anything that other threads do
        self._rng = rng
        # Guards the fields below, and each member's. Reentrant for the sake of signal handlers that put
        # something on a queue: they find _dirty set, and leave the rest to the code they interrupted.
        self._mutex = threading.RLock()
        self._ready: deque[Member] = deque()
        self._timers: list[tuple[int, float, int, Member]] = []  # (deadline, draw, ticket, member)
        self._tickets = itertools.count(1)
        self._running: Member | None = None
        self._began = 0.0  # real time at which the present turn began
        self._turns = 0  # at this instant
        self._driving = False  # members get turns
        self._dirty = False  # they are half changed: now, or since a Ctrl-C
        # Not guarded: one call of C each.
        self._posted: deque[tuple[Waitable, int]] = deque()  # wake-ups by threads that are no members
        self._bell = threading.Lock()  # acquire: wait for a ring
        self._bell.acquire()
        self._plain: list[weakref.ref[Any]] = []  # foreign locks: nobody is interrupted while one is held
        self._mine = threading.local()

    # -- called by members

    def me(self) -> Member | None:
        """The member that calls, or None when the thread is not one."""
        member: Member | None = getattr(self._mine, "member", None)
        return member

    def park(self, member: Member, source: Waitable, deadline: int | None, ready: Callable[[], bool]) -> bool:
        """Wait until woken; True if it was the deadline that woke it. May wake for no reason.

        The caller has put itself among `source.waiters` first, so that nothing is missed
        between its last look and this one: `ready()` true means that there is no need to wait.
        """
        with self._mutex:
            self._drain()
            if ready():
                source.waiters.pop(member, None)
                return False
            member.source, member.fired, member.state = source, False, PARKED
            member.ticket = next(self._tickets)
            if deadline is not None:
                self._add_timer(deadline, member)
            self._running = None
            self._dispatch()
        self._flush()
        self._await_turn(member)
        return member.fired

    def preempt(self) -> None:
        """With a seed, sometimes let another member run first."""
        rng = self._rng
        if rng is None or (member := self.me()) is None:
            return
        with self._mutex:
            self._drain()
            if not self._ready or rng.random() >= _PREEMPT or self._foreign_lock_held():
                return
            member.state = READY
            self._running = None
            self._dispatch()  # before it joins the others: the baton goes to another
            self._ready.append(member)
            self._dispatch()
        self._flush()
        self._await_turn(member)

    def _await_turn(self, member: Member) -> None:
        while (turn := member.gate.get()) <= member.seen:
            pass
        member.seen = turn

    # -- called by anybody

    def wake(self, source: Waitable, count: int) -> None:
        """Make the first `count` waiters of `source` runnable. Never blocks; safe in a signal handler."""
        if source.waiters:
            if self.me() is not None:
                with self._mutex:
                    self._drain()
                    self._wake(source, count)
            else:
                self._posted.append((source, count))
            self._flush()
        if self.listening:
            self.ring()

    def spawn(self, target: Callable[[], None], name: str) -> Member:
        """Start a member. It counts as runnable before its thread exists."""
        member = Member(name)

        def main() -> None:
            self._mine.member = member
            self._await_turn(member)
            if member.state is ENDED:  # its start was given up
                return
            try:
                target()
            except BaseException as error:
                self.errors.append((member, error))
            finally:
                self._finish(member)

        member.thread = MemberThread(target=main, name=name, daemon=True)
        outside = self.me() is None
        try:
            with self._mutex:
                self._drain()
                self._dirty = outside
                self.members[member] = None
                self._ready.append(member)
                self._dispatch()
                self._dirty = False
            self._flush()
            member.thread.start()
        except BaseException:
            self._give_up(member)
            raise
        if self.listening:
            self.ring()
        return member

    def _give_up(self, member: Member) -> None:
        """Undo a spawn, unless the thread came to exist and runs."""
        with self._mutex:
            if member.seen:
                return
            member.state = ENDED
            self.members.pop(member, None)
            if self._running is member:
                self._running = None
            self._rebuild()
            self._dispatch()
        member.gate.put(sys.maxsize)  # should the thread exist after all, it ends at once

    def _finish(self, member: Member) -> None:
        with self._mutex:
            self._drain()
            member.state = ENDED
            self.members.pop(member, None)
            self._wake(member, len(member.waiters))
            self._running = None
            self._dispatch()
        self._flush()

    def ring(self) -> None:
        """Make the driver look again."""
        try:
            self._bell.release()
        except RuntimeError:  # rung already
            pass

    def respect(self, lock: object) -> None:
        """Never interrupt a member while this lock, which the clock did not make, is held."""
        import weakref

        if not hasattr(lock, "locked"):
            return
        self._plain = [ref for ref in self._plain if ref() is not None]
        try:
            self._plain.append(weakref.ref(lock))
        except TypeError:
            pass

    # -- called by the driver

    def settle(self) -> None:
        """Give turns until every member waits or has ended.

        Raises BlockedOutsideClock when one turn lasts longer than `patience` real seconds.
        """
        try:
            while True:
                with self._mutex:
                    self._drain()
                    self._dirty = True
                    self._driving = True
                    self._dispatch()
                    running, began = self._running, self._began
                    if running is None:
                        self._driving = False
                    turn = 0 if running is None else running.turn
                    self._dirty = False
                self._flush()
                if running is None:
                    if self._ready or self._posted:
                        continue
                    return
                left = began + self.patience - time.monotonic()
                if self._bell.acquire(timeout=max(_LAST_CHANCE, left)):
                    continue
                with self._mutex:
                    stuck = self._running is running and running.turn == turn
                    endless = self._endless()
                if stuck:
                    raise BlockedOutsideClock(self._blocked(running))
                if endless:
                    raise BlockedOutsideClock(self._chasing(running))
        finally:
            self._driving = False

    def jump(self, limit: int | None) -> bool:
        """Go to the next deadline and wake its member, or to `limit` if that comes first.

        False if there is no deadline, and no limit or time stands there already.
        """
        with self._mutex:
            self._drain()
            if self._ready or self._running is not None:
                return True
            self._dirty = True
            timers = self._timers
            while timers and timers[0][2] != timers[0][3].ticket:
                heapq.heappop(timers)
            member, moved = None, True
            if timers and (limit is None or timers[0][0] <= limit):
                deadline, _, _, member = heapq.heappop(timers)
                self._move_to(deadline)
                member.fired = True
                self._make_ready(member, member.source)
            elif limit is None or limit <= self.elapsed:
                moved = False
            else:
                self._move_to(limit)
            endless = self._endless()
            self._dirty = False
        self._flush()
        if endless and member is not None:
            raise BlockedOutsideClock(self._chasing(member))
        return moved

    def heard(self, seconds: float) -> bool:
        """Wait for a ring, in real seconds."""
        return self._bell.acquire(timeout=seconds)

    # -- under _mutex

    def _move_to(self, instant: int) -> None:
        if instant > self.elapsed:
            self.elapsed = instant
            self._turns = 0

    def _add_timer(self, deadline: int, member: Member) -> None:
        timers = self._timers
        if len(timers) > 64 and len(timers) > 2 * len(self.members):  # most are stale
            timers[:] = [entry for entry in timers if entry[2] == entry[3].ticket]
            heapq.heapify(timers)
        draw = 0.0 if self._rng is None else self._rng.random()
        if deadline <= self.elapsed:
            draw += 1.0  # a wait of no time lets all others of this instant go first
        heapq.heappush(timers, (deadline, draw, member.ticket, member))

    def _wake(self, source: Waitable, count: int) -> None:
        for member in list(itertools.islice(source.waiters, count)):
            self._make_ready(member, source)
        self._dispatch()

    def _make_ready(self, member: Member, source: Waitable | None) -> None:
        if source is not None:
            source.waiters.pop(member, None)
        if member.state is PARKED:  # else it is about to park, and will see that it need not
            member.state = READY
            member.ticket = 0
            self._ready.append(member)

    def _dispatch(self) -> None:
        if self._running is not None or not self._driving:
            return
        ready = self._ready
        if not ready:
            self.ring()
            return
        if self._rng is not None and len(ready) > 1:
            place = int(self._rng.random() * len(ready))
            ready[0], ready[place] = ready[place], ready[0]
        member = ready[0]
        member.state = RUNNING
        member.turn += 1
        self._began = time.monotonic()
        self._turns += 1
        self._running = member
        ready.popleft()
        member.gate.put(member.turn)

    def _drain(self) -> None:
        if self._dirty:
            self._rebuild()
        if self._posted:
            self._dirty = True
            while self._posted:
                self._wake(*self._posted.popleft())
            self._dirty = False

    def _rebuild(self) -> None:
        """After a Ctrl-C inside a change: everybody looks again at what it waits for."""
        self._posted.clear()
        self._timers.clear()
        self._ready.clear()
        for member in self.members:
            if member is self._running:
                member.gate.put(member.turn)  # in case that it was not told
                continue
            if member.source is not None:
                member.source.waiters.pop(member, None)
            member.state = READY
            member.ticket = 0
            self._ready.append(member)
        self._dirty = False

    def _flush(self) -> None:
        """Carry out what was posted."""
        if self._posted:
            with self._mutex:
                if not self._dirty:
                    self._drain()

    def _foreign_lock_held(self) -> bool:
        return any((lock := ref()) is not None and lock.locked() for ref in self._plain)

    def _endless(self) -> bool:
        if self._turns <= _TURNS_AT_ONE_INSTANT:
            return False
        self._turns = _TURNS_AT_ONE_INSTANT - 1000  # go on, if the reason has gone
        return True

    # -- words

    def _blocked(self, member: Member) -> str:
        return (
            f"thread {member.name!r} has run for {self.patience} real seconds without waiting on the clock; "
            f"wait with ctx.wait, ctx.sleep or what the clock makes, or use the real clock; "
            f"it is here:\n{stack_of(member.thread)}"
        )

    def _chasing(self, member: Member) -> str:
        return (
            f"time stands still at {self.elapsed / 1e9} s: more than {_TURNS_AT_ONE_INSTANT} turns were taken "
            f"there, the last by thread {member.name!r}; let a waiting loop wait longer than 0 seconds; "
            f"it is here:\n{stack_of(member.thread)}"
        )
