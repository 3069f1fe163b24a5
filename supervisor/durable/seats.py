"""Who drives which run: one thread at a time in this process."""

from __future__ import annotations

from supervisor.durable.errors import StoreError
from supervisor.kernel.cancellation import CancelReason, CancelToken
from supervisor.kernel.clock import Clock, current_ident
from supervisor.kernel.errors import ReentrantCall
from supervisor.kernel.forks import forgets_after_fork

__all__ = ["Seat", "Seats"]


class Seat:
    """The right of one thread to drive one run."""

    __slots__ = ("again", "ident", "run_id", "seen", "token")

    def __init__(self, run_id: str, ident: int) -> None:
        self.run_id: str = run_id
        self.ident: int = ident
        self.again: bool = False  # somebody appended meanwhile: look once more before leaving
        self.token: CancelToken | None = None  # of the attempts that run
        self.seen: int = 0  # sequence up to which the driver knew the history when it made the token


class Seats:
    """The seats that are taken. Guarded by one lock; only `enter` waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._closed = False
        self.forget()
        forgets_after_fork(self)

    def forget(self) -> None:
        """Nobody has a seat. For the child of a fork, where no thread of the parent drives."""
        self._lock = self._clock.lock()  # guards the fields below, _closed, and those of each seat
        self._left = self._clock.condition(self._lock)
        self._taken: dict[str, Seat] = {}

    def __len__(self) -> int:
        return len(self._taken)

    def enter(self, run_id: str, *, wait: bool) -> Seat | None:
        """Take the seat of a run.

        If another thread has it: wait until it leaves, or, without `wait`, have that thread look once more, and
        return None. Raises StoreError once closed, ReentrantCall if this thread has it and would wait for itself.
        """
        with self._lock:
            holder = self._taken.get(run_id)
            if holder is not None and wait and holder.ident == current_ident():
                raise ReentrantCall(
                    f"this thread drives run {run_id!r} already, and would wait for itself; a workflow only decides, "
                    "leave calls of the engine to steps"
                )
            if holder is not None and not wait:
                holder.again = True
                return None
            self._left.wait_for(lambda: self._closed or run_id not in self._taken)
            if self._closed:
                raise StoreError("the engine is closed; make a new one")
            seat = self._taken[run_id] = Seat(run_id, current_ident())
            return seat

    def leave(self, seat: Seat, *, look_again: bool = True) -> bool:
        """Give the seat back; False if somebody asked to look once more: then it is still taken."""
        with self._lock:
            if seat.again and look_again and not self._closed:
                seat.again = False
                return False
            seat.token = None
            del self._taken[seat.run_id]
            self._left.notify_all()
            return True

    def begin(self, seat: Seat, seen: int, token: CancelToken) -> None:
        """The driver has read the history up to `seen`; attempts from now on run under `token`."""
        with self._lock:
            seat.seen, seat.token = seen, token

    def cancel(
        self, run_id: str, sequence: int | None = None, reason: CancelReason = CancelReason.REQUESTED
    ) -> None:
        """Cancel the attempts of a run whose driver does not know the event `sequence` yet; None: in any case."""
        with self._lock:
            seat = self._taken.get(run_id)
            stale = seat is not None and (sequence is None or seat.seen < sequence)
            token = seat.token if seat is not None and stale else None
        if token is not None:
            token.cancel(reason)

    def cancel_all(self, reason: CancelReason) -> None:
        """Cancel whatever runs."""
        with self._lock:
            tokens = [seat.token for seat in self._taken.values() if seat.token is not None]
        for token in tokens:
            token.cancel(reason)

    def close(self) -> None:
        """Let nobody in any more; who waits is refused."""
        with self._lock:
            self._closed = True
            self._left.notify_all()
