"""Counted permits: fair, first come first served, given on by a waiter that is canceled."""

from __future__ import annotations

from collections import deque

from supervisor.kernel.cancellation import CancelToken
from supervisor.kernel.clock import Clock, Latch

__all__ = ["Permits", "Place"]


class Place:
    """A place in line."""

    __slots__ = ("granted", "latch")

    def __init__(self, latch: Latch) -> None:
        self.latch: Latch = latch
        self.granted: bool = False


class Permits:
    """At most `limit` holders at once."""

    def __init__(self, clock: Clock, limit: int) -> None:
        self._clock = clock
        self._lock = clock.lock()  # guards _free, _line, and granted of every waiter
        self._free = limit
        self._line: deque[Place] = deque()

    def reserve(self) -> Place:
        """Take a place in line for a thread that does not run yet; `acquire` or `leave` it."""
        with self._lock:
            return self._join()

    def leave(self, place: Place) -> None:
        """Give a place up; the permit that it has got goes to the next."""
        with self._lock:
            if not place.granted:
                if place in self._line:
                    self._line.remove(place)
                return
        self.release()

    def _join(self) -> Place:
        # holds _lock
        place = Place(self._clock.latch())
        if self._free > 0:  # then nobody waits: release gives a permit on before it is free
            self._free -= 1
            place.granted = True
            place.latch.open()
        else:
            self._line.append(place)
        return place

    def acquire(self, token: CancelToken, waiter: Place | None = None) -> bool:
        """Wait in line for a permit; False, without one, if `token` is canceled first.

        waiter: the place that was reserved, if there is one.
        """
        if token.canceled:
            if waiter is not None:
                self.leave(waiter)
            return False
        if waiter is None:
            with self._lock:
                waiter = self._join()
        try:
            if token.watch(waiter.latch):
                waiter.latch.wait()
        finally:
            token.unwatch(waiter.latch)
            with self._lock:
                if not waiter.granted and waiter in self._line:
                    self._line.remove(waiter)
        if waiter.granted and token.canceled:
            self.release()
            return False
        return waiter.granted

    def release(self) -> None:
        """Give the permit to whoever has waited longest."""
        with self._lock:
            if self._line:
                waiter = self._line.popleft()
                waiter.granted = True
                waiter.latch.open()
            else:
                self._free += 1
