"""What a virtual clock makes: locks, conditions, latches, queues and threads.

A member of the clock that waits parks; any other thread that waits drives (see `driver.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import Empty
from typing import Any

from supervisor.kernel.clock import Lock
from supervisor.testing.baton import Baton
from supervisor.testing.driver import Driver
from supervisor.testing.member import BlockedOutsideClock, Member, Waitable

__all__ = [
    "Pause",
    "VirtualCondition",
    "VirtualLatch",
    "VirtualLock",
    "VirtualQueue",
    "VirtualThread",
    "instant",
    "nanoseconds",
]


def nanoseconds(field: str, seconds: object) -> int | None:
    """Whole nanoseconds; None for infinity, 0 for what is negative.

    At least 1 when `seconds` is positive: a wait that is not over must take time.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{field} must be a number of seconds, got {seconds!r}")
    if seconds != seconds:
        raise ValueError(f"{field} must be a number of seconds, got nan")
    if seconds == float("inf"):
        return None
    return 0 if seconds <= 0 else max(1, round(seconds * 1e9))


def instant(baton: Baton, timeout: float | None) -> int | None:
    """When a wait that begins now ends, in nanoseconds; None: never."""
    span = None if timeout is None else nanoseconds("timeout", timeout)
    return None if span is None else baton.elapsed + span


class _Virtual(Waitable):
    __slots__ = ("_baton", "_driver")

    def __init__(self, baton: Baton, driver: Driver) -> None:
        super().__init__()
        self._baton = baton
        self._driver = driver


class VirtualLock(_Virtual):
    """A real lock; a member that finds it held parks until it is free."""

    __slots__ = ("_owner", "_real")

    def __init__(self, baton: Baton, driver: Driver) -> None:
        super().__init__(baton, driver)
        self._real = threading.Lock()
        self._owner: Member | int | None = None  # a member, or the identity of another thread

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        member = self._baton.me()
        self._baton.preempt()
        if self._real.acquire(False):
            self._owner = member or threading.get_ident()
            return True
        if not blocking:
            return False
        deadline = None if timeout == -1 else instant(self._baton, timeout)
        if member is None:
            ident = threading.get_ident()
            return self._driver.wait(lambda: self.acquire_at_rest(ident), deadline, self.describe())
        while True:
            self.waiters[member] = None
            fired = self._baton.park(member, self, deadline, lambda: not self._real.locked())
            if self._real.acquire(False):
                self._owner = member
                return True
            if fired:
                return False

    def release(self) -> None:
        owner, self._owner = self._owner, None
        try:
            self._real.release()
        except RuntimeError:
            self._owner = owner
            raise
        self._baton.wake(self, 1)

    def locked(self) -> bool:
        return self._real.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()

    def acquire_at_rest(self, ident: int) -> bool:
        """Take it for a thread that is not a member; False while a thread that waits holds it."""
        if not self._real.acquire(False):
            owner = self._owner
            if isinstance(owner, Member) or self._driver.is_waiting(owner):
                return False
            take_in_time(self._real.acquire, self._baton.patience)
        self._owner = ident
        return True

    def describe(self) -> str:
        owner = self._owner
        if isinstance(owner, Member):
            return f"a lock held by thread {owner.name!r}"
        return "a lock" if owner is None else "a lock held by a thread that is not the clock's"


def take_in_time(acquire: Callable[..., bool], patience: float) -> None:
    """Take a lock that a freely running thread holds, or say that it did not come free."""
    if not acquire(timeout=patience):
        raise BlockedOutsideClock(
            f"a lock was not released within {patience} real seconds by the thread that holds it; "
            "hold no lock while waiting for something else, and take locks from the clock"
        )


class VirtualCondition(_Virtual):
    """Wait for a predicate under a lock, which may be a plain `threading.Lock` too."""

    __slots__ = ("_lock",)

    def __init__(self, baton: Baton, driver: Driver, lock: Lock) -> None:
        super().__init__(baton, driver)
        self._lock = lock
        if not isinstance(lock, VirtualLock):
            baton.respect(lock)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Release the lock until `predicate()`; hold it again on return, whatever happens."""
        deadline = instant(self._baton, timeout)
        member = self._baton.me()
        result = predicate()
        if result:
            return result
        if member is None:
            return self._wait_outside(predicate, deadline)
        fired = False
        while not result and not fired:
            self.waiters[member] = None
            try:
                self._lock.release()
            except BaseException:
                self.waiters.pop(member, None)
                raise
            fired = self._baton.park(member, self, deadline, lambda: member not in self.waiters)
            self._lock.acquire()
            result = predicate()
        return result

    def _wait_outside(self, predicate: Callable[[], bool], deadline: int | None) -> bool:
        held = False
        ident = threading.get_ident()

        def look() -> bool:
            nonlocal held
            if isinstance(self._lock, VirtualLock):
                if not self._lock.acquire_at_rest(ident):
                    return False
            elif not self._lock.acquire(False):
                take_in_time(self._lock.acquire, self._baton.patience)
            held = True
            try:
                result = predicate()
            except BaseException:
                self._lock.release()
                held = False
                raise
            if not result:
                self._lock.release()
                held = False
            return bool(result)

        self._lock.release()
        try:
            self._driver.wait(look, deadline, self.describe())
        finally:
            if not held and isinstance(self._lock, VirtualLock):
                self._lock.acquire()
            elif not held:
                take_in_time(self._lock.acquire, self._baton.patience)
        return predicate()

    def notify(self, n: int = 1) -> None:
        """Wake the first `n` waiters."""
        self._baton.wake(self, n)
        if isinstance(self._lock, VirtualLock):
            self._baton.preempt()

    def notify_all(self) -> None:
        """Wake every waiter."""
        self.notify(len(self.waiters))

    def describe(self) -> str:
        return "a condition"


class VirtualLatch(_Virtual):
    """Closed at first; once open it stays open."""

    __slots__ = ("_open",)

    def __init__(self, baton: Baton, driver: Driver) -> None:
        super().__init__(baton, driver)
        self._open = False

    def open(self) -> None:
        self._open = True
        self._baton.wake(self, len(self.waiters))
        self._baton.preempt()

    def wait(self, timeout: float | None = None) -> bool:
        deadline = instant(self._baton, timeout)
        if self._open:
            return True
        member = self._baton.me()
        if member is None:
            return self._driver.wait(self._is_open, deadline, self.describe()) or self._open
        fired = False
        while not fired and not self._is_open():
            self.waiters[member] = None
            fired = self._baton.park(member, self, deadline, self._is_open)
        return self._open

    def _is_open(self) -> bool:
        return self._open

    def describe(self) -> str:
        return "a latch"


class VirtualQueue(_Virtual):
    """Unbounded, first in first out; `put` never blocks and is safe in a signal handler."""

    __slots__ = ("_items",)

    def __init__(self, baton: Baton, driver: Driver) -> None:
        super().__init__(baton, driver)
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._baton.wake(self, 1)
        self._baton.preempt()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        deadline = instant(self._baton, timeout) if block else None
        member = self._baton.me()
        fired = not block
        while True:
            try:
                return self._items.popleft()
            except IndexError:
                if fired:
                    raise Empty from None
            if member is None:
                return self._get_outside(deadline)
            self.waiters[member] = None
            fired = self._baton.park(member, self, deadline, self._has_items)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items

    def _has_items(self) -> bool:
        return bool(self._items)

    def _get_outside(self, deadline: int | None) -> Any:
        taken: list[Any] = []

        def take() -> bool:
            try:
                taken.append(self._items.popleft())
            except IndexError:
                return False
            return True

        if not self._driver.wait(take, deadline, self.describe()):
            raise Empty
        return taken[0]

    def describe(self) -> str:
        return "an item of a queue"


class Pause(_Virtual):
    """Nothing ends it but its deadline."""

    __slots__ = ()

    def wait(self, deadline: int) -> None:
        member = self._baton.me()
        if member is None:
            self._driver.wait(lambda: False, deadline, self.describe())
            return
        fired = False
        while not fired:
            self.waiters[member] = None
            fired = self._baton.park(member, self, deadline, lambda: False)

    def describe(self) -> str:
        return "the end of a sleep"


class VirtualThread:
    """A started thread of the clock."""

    __slots__ = ("_baton", "_driver", "_member")

    def __init__(self, baton: Baton, driver: Driver, member: Member) -> None:
        self._baton = baton
        self._driver = driver
        self._member = member

    @property
    def name(self) -> str:
        return self._member.name

    @property
    def ident(self) -> int | None:
        thread = self._member.thread
        return None if thread is None else thread.ident

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, at most `timeout` seconds."""
        waiter, member = self._baton.me(), self._member
        if waiter is member:
            raise RuntimeError(f"thread {member.name!r} cannot join itself")
        deadline = instant(self._baton, timeout)
        if waiter is None:
            if not member.ended:
                self._driver.wait(lambda: member.ended, deadline, member.describe())
        else:
            fired = False
            while not member.ended and not fired:
                member.waiters[waiter] = None
                fired = self._baton.park(waiter, member, deadline, lambda: member.ended)
        if member.ended and member.thread is not None:
            member.thread.join(self._baton.patience)  # it has nothing left to do

    def __repr__(self) -> str:
        return f"<VirtualThread {self.name!r}>"
