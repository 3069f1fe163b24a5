"""One result, set once, any number of waiters."""

from __future__ import annotations

from typing import Generic, TypeVar

from supervisor.kernel.cancellation import CancelToken
from supervisor.kernel.clock import Clock, Latch

__all__ = ["Promise"]

T = TypeVar("T")


class Promise(Generic[T]):
    """A result that comes once. Waiting is repeatable, from many threads."""

    __slots__ = ("_clock", "_latches", "_lock", "_value")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = clock.lock()  # guards _value, _latches
        self._value: tuple[T] | None = None
        self._latches: list[Latch] | None = None  # one for each waiter

    def set(self, value: T) -> bool:
        """Set the result and wake every waiter; False if there is one already."""
        with self._lock:
            if self._value is not None:
                return False
            self._value = (value,)
            latches, self._latches = self._latches, None
        for latch in latches or ():
            latch.open()
        return True

    @property
    def done(self) -> bool:
        """True from the moment the result is there."""
        return self._value is not None

    @property
    def value(self) -> T | None:
        """The result, None before."""
        return None if self._value is None else self._value[0]

    def wait(self, timeout: float | None = None, token: CancelToken | None = None) -> bool:
        """Block until the result is there, at most `timeout` seconds; True if it is.

        token: of the waiting body, whose cancellation ends the wait too.
        """
        if self._value is not None:
            return True
        latch = self._clock.latch()
        with self._lock:
            if self._value is not None:
                return True
            if self._latches is None:
                self._latches = []
            self._latches.append(latch)
        try:
            if token is None or token.watch(latch):
                latch.wait(timeout)
        finally:
            if token is not None:
                token.unwatch(latch)
            with self._lock:
                if self._latches is not None:
                    self._latches.remove(latch)
        return self._value is not None
