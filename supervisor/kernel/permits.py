"""Counted permits: fair, first come first served, given on by a waiter that is canceled."""

from __future__ import annotations

from collections import deque

from supervisor.kernel.cancellation import CancelToken
from supervisor.kernel.clock import Clock, Latch

__all__ = ["Permits"]


class _Waiter:
    __slots__ = ("granted", "latch")

    def __init__(self, latch: Latch) -> None:
        self.latch = latch
        self.granted = False


class Permits:
    """At most `limit` holders at once."""

    def __init__(self, clock: Clock, limit: int) -> None:
        self._clock = clock
        self._lock = clock.lock()  # guards _free, _line, and granted of every waiter
        self._free = limit
        self._line: deque[_Waiter] = deque()

    def acquire(self, token: CancelToken) -> bool:
        """Wait in line for a permit; False, without one, if `token` is canceled first."""
        if token.canceled:
            return False
        with self._lock:
            if self._free > 0:  # then nobody waits: release gives a permit on before it is free
                self._free -= 1
                return True
            waiter = _Waiter(self._clock.latch())
            self._line.append(waiter)
        try:
            if token.watch(waiter.latch):
                waiter.latch.wait()
        finally:
            token.unwatch(waiter.latch)
            with self._lock:
                if not waiter.granted:
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
