"""What workers need of a queue, and the bell that wakes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol, cast

from supervisor.kernel.arguments import seconds as duration
from supervisor.kernel.arguments import whole
from supervisor.kernel.cancellation import CancelToken
from supervisor.kernel.text import shown

__all__ = [
    "MAX_DELIVERIES",
    "DeadLetter",
    "Lease",
    "WorkQueue",
    "checked_lease",
    "checked_queue",
    "checked_reason",
    "later",
    "lease_time",
    "letter_id",
    "redelivery_delay",
]

MAX_DELIVERIES = 5  # of one task that failed; then it is a dead letter
_FIRST_DELAY = 0.1  # seconds after the first failed delivery; doubles from failure to failure


def checked_queue(queue: object) -> WorkQueue:
    """Return the queue. Raises TypeError for what is none."""
    if not callable(getattr(queue, "lease", None)):
        raise TypeError(f"queue must be a WorkQueue such as MemoryWorkQueue(), got {shown(queue)}")
    return cast("WorkQueue", queue)


def redelivery_delay(failures: int) -> float:
    """Return the seconds to wait after so many failed deliveries in a row (>= 1)."""
    return _FIRST_DELAY * 2.0 ** (min(failures, MAX_DELIVERIES) - 1)


def checked_lease(lease: object) -> Lease:
    """Return the lease. Raises TypeError for what is none."""
    if not isinstance(lease, Lease):
        raise TypeError(f"lease must be a Lease, as lease() and heartbeat() return it, got {shown(lease)}")
    return lease


def checked_reason(reason: object) -> str:
    """Return why a task is put aside. Raises TypeError for what is no text."""
    if not isinstance(reason, str):
        raise TypeError(f"reason must be a str, got {shown(reason)}")
    return reason


def lease_time(seconds: object) -> float:
    """Return for how long a lease is taken, in seconds > 0. Raises TypeError or ValueError."""
    checked = duration(seconds, "seconds")
    if checked == 0.0:
        raise ValueError(f"seconds must be > 0, got {shown(seconds)}: such a lease would be over at once")
    return checked


def letter_id(id: object) -> int | None:
    """Return the id of a dead letter; None if it is larger than any can be. Raises TypeError."""
    number = whole(id, "id")
    return number if number.bit_length() < 64 else None


def later(now: datetime, seconds: float) -> datetime:
    """Return the instant so many seconds after another, or the last one that there is."""
    try:
        return now + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to drive a run, until it expires and somebody reclaims it. A value: `heartbeat` gives a new one."""

    id: int  # of the task
    token: str  # the fence: each lease and each heartbeat has another
    run_id: str
    expires_at: datetime  # UTC
    failures: int = field(default=0, compare=False)  # deliveries of this task that failed before


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A task that could not be delivered."""

    id: int
    run_id: str
    reason: str
    at: datetime  # UTC


class WorkQueue(Protocol):
    """Runs that a worker should drive, first in, first out. Any thread may call it.

    A run is queued once: one that is waiting is not queued again; for one that is leased it is remembered,
    and it is queued again at `ack`. Every method raises `StoreError` when the storage fails.
    """

    def enqueue(self, run_id: str) -> bool:
        """Queue a run; True if a task was added, False if the run stands in line or is leased.

        Raises QueueFull if the queue has a capacity and is at it.
        """
        ...

    def lease(self, seconds: float) -> Lease | None:
        """Take the oldest task that is due, for so many seconds; None if there is none. Never blocks."""
        ...

    def leased(self, run_id: str) -> bool:
        """Return whether somebody holds a lease of the run that has not expired."""
        ...

    def heartbeat(self, lease: Lease) -> Lease:
        """Extend a lease by as long as it was taken for. Raises LeaseLost for a stale one."""
        ...

    def ack(self, lease: Lease) -> None:
        """The run was driven: remove the task. Raises LeaseLost for a stale lease."""
        ...

    def release(self, lease: Lease, delay: float = 0.0, *, failed: bool = False) -> None:
        """Give the task back; it keeps its place, and is not due before `delay` seconds have passed.

        failed: count it as a failed delivery. Raises LeaseLost for a stale lease.
        """
        ...

    def reclaim_expired(self) -> int:
        """Put tasks whose lease has expired back in line; return how many. Their leases are stale then."""
        ...

    def dead_letter(self, lease: Lease, reason: str) -> None:
        """Put the task aside for a person. Raises LeaseLost for a stale lease."""
        ...

    def dead_letters(self) -> list[DeadLetter]:
        """Return what was put aside, oldest first."""
        ...

    def redrive(self, id: int) -> bool:
        """Queue the run of a dead letter again and forget the letter; False if there is no such letter.

        Raises TypeError for what is no int.
        """
        ...

    def pending(self) -> int:
        """Return how many tasks stand in line, leased ones not counted, delayed ones counted."""
        ...

    def seconds_to_next(self) -> float | None:
        """Return in how many seconds a task may come due by itself: a delay ends, or a lease expires.

        0 if one is due now; None if nothing is in the queue. A worker sleeps no longer than that.
        """
        ...

    def ticket(self) -> int:
        """Return the count of rings so far, see `wait`."""
        ...

    def wait(self, ticket: int, timeout: float, stop: CancelToken | None = None) -> None:
        """Block until a task may have come after `ticket` was taken, at most `timeout` seconds.

        Ends at once when `stop` is canceled. Take the ticket, look with `lease`, then wait: so no task that
        comes in between is missed.
        """
        ...

    def close(self) -> None:
        """Give up connections; who waits is woken. Closing twice is the same as once."""
        ...
