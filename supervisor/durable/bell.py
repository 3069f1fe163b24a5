"""A bell: who waits is woken by a ring, and a ring before the wait is not missed."""

from __future__ import annotations

from supervisor.kernel.cancellation import CancelToken
from supervisor.kernel.clock import Clock, Latch

__all__ = ["Bell"]


class Bell:
    """Counts rings. Take a `ticket`, look for work, then `wait` for a ring after the ticket."""

    __slots__ = ("_clock", "_count", "_latches", "_lock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = clock.lock()  # guards the fields below
        self._count = 0
        self._latches: list[Latch] = []

    def ring(self) -> None:
        """Wake everybody who waits."""
        with self._lock:
            self._count += 1
            latches, self._latches = self._latches, []
        for latch in latches:
            latch.open()

    def ticket(self) -> int:
        """Return the count of rings so far."""
        return self._count

    def wait(self, ticket: int, timeout: float | None, stop: CancelToken | None = None) -> bool:
        """Block until a ring after `ticket`, at most `timeout` seconds; True if there was one.

        Ends at once when `stop` is canceled.
        """
        latch = self._clock.latch()
        with self._lock:
            if self._count != ticket:
                return True
            self._latches.append(latch)
        try:
            if stop is None or stop.watch(latch):
                latch.wait(timeout)
        finally:
            if stop is not None:
                stop.unwatch(latch)
            with self._lock:
                if latch in self._latches:
                    self._latches.remove(latch)
        return self._count != ticket
