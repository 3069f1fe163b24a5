"""VirtualClock: deterministic time for real threads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from supervisor.kernel.clock import Lock
from supervisor.testing.baton import Baton
from supervisor.testing.driver import Driver, VirtualDeadlock
from supervisor.testing.member import BlockedOutsideClock
from supervisor.testing.primitives import (
    Pause,
    VirtualCondition,
    VirtualLatch,
    VirtualLock,
    VirtualQueue,
    VirtualThread,
    nanoseconds,
)

if TYPE_CHECKING:
    import random

    from supervisor.kernel.clock import Clock

__all__ = ["BlockedOutsideClock", "VirtualClock", "VirtualDeadlock"]


class VirtualClock:
    """A `Clock` whose threads take turns and whose time moves only when all of them wait.

    seed: None runs threads first come first served; an int picks another interleaving, which the
    same seed repeats exactly. start: aware datetime shown by `now()` at first.
    patience: real seconds a thread may run without waiting before it is reported.
    Threads made by `spawn` run only while another thread drives: in `advance`, `run_until`,
    `settle`, or in any wait on something this clock made.
    """

    breath: float = 0.0  # threads take turns: no batch needs time to have run

    def __init__(
        self,
        seed: int | None = None,
        start: datetime = datetime(2000, 1, 1, tzinfo=UTC),
        *,
        patience: float = 5.0,
    ) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise TypeError(f"seed must be an int or None, got {seed!r}")
        if start.tzinfo is None:
            raise ValueError(f"start must be an aware datetime, got {start!r}; give it tzinfo=UTC")
        self.seed = seed
        self._start = start.astimezone(UTC)
        self._shift = 0  # ns the wall clock was stepped
        self._baton = Baton(_random(seed), patience)
        self._driver = Driver(self._baton)

    # -- Clock

    def monotonic(self) -> float:
        """Seconds since the clock was made; counted in whole nanoseconds."""
        return self._baton.elapsed / 1e9

    def now(self) -> datetime:
        """The start, and the time since, and every step of the wall clock; UTC, whole microseconds."""
        return self._start + timedelta(microseconds=(self._baton.elapsed + self._shift) // 1000)

    def lock(self) -> VirtualLock:
        return VirtualLock(self._baton, self._driver)

    def condition(self, lock: Lock) -> VirtualCondition:
        """A condition for a lock of this clock, or for a plain `threading.Lock`."""
        return VirtualCondition(self._baton, self._driver, lock)

    def latch(self) -> VirtualLatch:
        return VirtualLatch(self._baton, self._driver)

    def queue(self) -> VirtualQueue:
        return VirtualQueue(self._baton, self._driver)

    def spawn(self, target: Callable[[], None], name: str) -> VirtualThread:
        """Start a daemon thread, which runs when its turn comes. Raises what starting a thread raises.

        What `target` raises is raised again by the thread that drives.
        """
        return VirtualThread(self._baton, self._driver, self._baton.spawn(target, name))

    # -- for tests

    def advance(self, seconds: float) -> None:
        """Live through the next `seconds`, deadlines at their very end included; then all threads wait."""
        self._must_drive("advance")
        end = self._baton.elapsed + _finite("seconds", seconds)
        self._driver.wait(lambda: False, end, f"{seconds} s to pass")

    def run_until(self, predicate: Callable[[], object], limit: float) -> None:
        """Live on until `predicate()` is true while all threads wait.

        Raises TimeoutError if it is not after `limit` seconds.
        """
        self._must_drive("run_until")
        end = self._baton.elapsed + _finite("limit", limit)
        words = _words(predicate)
        if not self._driver.wait(lambda: bool(predicate()), end, words):
            raise TimeoutError(f"still false after {limit} s, at {self.monotonic()} s: {words}")

    def settle(self) -> None:
        """Let every thread run until it waits; time stands still."""
        self._must_drive("settle")
        self._driver.wait(lambda: True, None, "all threads to wait")

    def sleep(self, seconds: float) -> None:
        """Wait `seconds`, in any thread."""
        Pause(self._baton, self._driver).wait(self._baton.elapsed + _finite("seconds", seconds))

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward, or back when negative; `monotonic()` does not notice."""
        nanoseconds("seconds", seconds)  # refuses what is no number
        before = self._shift
        self._shift += _finite("seconds", seconds) if seconds >= 0 else -_finite("seconds", -seconds)
        try:
            self.now()
        except OverflowError:
            self._shift = before
            raise ValueError(
                f"seconds must keep the wall clock between years 1 and 9999, got {seconds!r}"
            ) from None

    def _must_drive(self, call: str) -> None:
        member = self._baton.me()
        if member is not None:
            raise RuntimeError(
                f"{call} was called in thread {member.name!r} of this clock; call it in the test's own thread"
            )

    def __repr__(self) -> str:
        return f"<VirtualClock at {self.monotonic()} s, seed {self.seed!r}>"


def _random(seed: int | None) -> random.Random | None:
    if seed is None:
        return None
    import random

    return random.Random(seed)


def _finite(field: str, seconds: float) -> int:
    span = nanoseconds(field, seconds)
    if span is None or seconds < 0:
        raise ValueError(f"{field} must be finite and >= 0, got {seconds!r}")
    return span


def _words(predicate: Callable[[], object]) -> str:
    """The line of source where the predicate stands, or its repr."""
    import linecache

    code = getattr(predicate, "__code__", None)
    line = "" if code is None else linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return line or repr(predicate)


if TYPE_CHECKING:
    _keeps_the_protocol: type[Clock] = VirtualClock
