"""MemoryWorkQueue: the line of runs to drive, in this process and gone with it."""

from __future__ import annotations

from datetime import datetime
from heapq import heappop, heappush
from itertools import count

from supervisor.durable.bell import Bell
from supervisor.durable.errors import LeaseLost, QueueFull, StoreError
from supervisor.durable.queues.protocol import (
    DeadLetter,
    Lease,
    checked_lease,
    checked_reason,
    later,
    lease_time,
    letter_id,
)
from supervisor.durable.stores.codec import check_run_id
from supervisor.kernel.arguments import count_or_none, seconds
from supervisor.kernel.cancellation import CancelToken
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock

__all__ = ["MemoryWorkQueue"]


class _Task:
    """A run that should be driven. It stands in line, or waits for its instant, or is leased."""

    __slots__ = ("again", "failures", "id", "lease", "run_id", "seconds")

    def __init__(self, id: int, run_id: str) -> None:
        self.id = id  # grows: the place in line
        self.run_id = run_id
        self.failures = 0  # deliveries that failed
        self.again = False  # the run was queued once more while it was leased
        self.lease: Lease | None = None
        self.seconds = 0.0  # of a lease, so long does each heartbeat extend it


class MemoryWorkQueue:
    """A `WorkQueue` that keeps its tasks in this process.

    clock: tells when leases and delays end, and is what `wait` waits on.  capacity: of tasks in line.
    """

    def __init__(self, *, clock: Clock | None = None, capacity: int | None = None) -> None:
        self._clock = clock or SYSTEM_CLOCK
        self._capacity = count_or_none(capacity, "capacity", 1)
        self._bell = Bell(self._clock)
        # Real also on virtual time: nobody waits while it is held. It guards every field below.
        self._lock = SYSTEM_CLOCK.lock()
        self._tasks: dict[str, _Task] = {}  # by run: a run is queued once
        self._line: list[tuple[int, _Task]] = []  # heap by id, of what is due
        self._delayed: list[tuple[datetime, int, _Task]] = []  # heap by instant
        self._leased: dict[int, _Task] = {}  # by id
        self._dead: dict[int, DeadLetter] = {}  # by id, oldest first
        self._ids = count(1)
        self._tokens = count(1)
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._tasks) - len(self._leased)} in line"
        return f"<MemoryWorkQueue {state}, {len(self._leased)} leased>"

    def enqueue(self, run_id: str) -> bool:
        """See `WorkQueue.enqueue`."""
        check_run_id(run_id)
        with self._lock:
            self._check_open()
            task = self._tasks.get(run_id)
            if task is not None:
                task.again = task.lease is not None
                return False
            waiting = self._waiting()
            if self._capacity is not None and waiting >= self._capacity:
                raise QueueFull(waiting, self._capacity)
            self._add(run_id)
        self._bell.ring()
        return True

    def lease(self, seconds: float) -> Lease | None:
        """See `WorkQueue.lease`."""
        length = lease_time(seconds)
        now = self._clock.now()
        with self._lock:
            self._check_open()
            self._move_due(now)
            if not self._line:
                return None
            _, task = heappop(self._line)
            task.seconds = length
            self._leased[task.id] = task
            return self._renewed(task, now)

    def leased(self, run_id: str) -> bool:
        """See `WorkQueue.leased`."""
        now = self._clock.now()
        with self._lock:
            task = self._tasks.get(run_id)
            return task is not None and task.lease is not None and task.lease.expires_at > now

    def heartbeat(self, lease: Lease) -> Lease:
        """See `WorkQueue.heartbeat`."""
        now = self._clock.now()
        with self._lock:
            return self._renewed(self._held(lease), now)

    def ack(self, lease: Lease) -> None:
        """See `WorkQueue.ack`."""
        with self._lock:
            again = self._remove(self._held(lease))
        if again:
            self._bell.ring()

    def release(self, lease: Lease, delay: float = 0.0, *, failed: bool = False) -> None:
        """See `WorkQueue.release`."""
        wait = seconds(delay, "delay")
        now = self._clock.now()
        with self._lock:
            task = self._held(lease)
            task.failures += failed
            self._put_back(task, later(now, wait) if wait else None)
        self._bell.ring()

    def reclaim_expired(self) -> int:
        """See `WorkQueue.reclaim_expired`."""
        now = self._clock.now()
        with self._lock:
            self._check_open()
            expired = [
                task
                for task in self._leased.values()
                if task.lease is not None and task.lease.expires_at <= now
            ]
            for task in expired:
                self._put_back(task, None)
        if expired:
            self._bell.ring()
        return len(expired)

    def dead_letter(self, lease: Lease, reason: str) -> None:
        """See `WorkQueue.dead_letter`. What was queued while the task was leased is queued now."""
        why, now = checked_reason(reason), self._clock.now()
        with self._lock:
            task = self._held(lease)
            self._dead[task.id] = DeadLetter(task.id, task.run_id, why, now)
            again = self._remove(task)
        if again:
            self._bell.ring()

    def dead_letters(self) -> list[DeadLetter]:
        """See `WorkQueue.dead_letters`."""
        with self._lock:
            self._check_open()
            return list(self._dead.values())

    def redrive(self, id: int) -> bool:
        """See `WorkQueue.redrive`. The capacity does not matter: the run was in the queue before."""
        number = letter_id(id)
        with self._lock:
            self._check_open()
            letter = None if number is None else self._dead.pop(number, None)
            if letter is None:
                return False
            task = self._tasks.get(letter.run_id)
            if task is None:
                self._add(letter.run_id)
            else:
                task.again = task.lease is not None
        self._bell.ring()
        return True

    def pending(self) -> int:
        """See `WorkQueue.pending`."""
        with self._lock:
            self._check_open()
            return self._waiting()

    def seconds_to_next(self) -> float | None:
        """See `WorkQueue.seconds_to_next`."""
        now = self._clock.now()
        with self._lock:
            self._check_open()
            if self._line:
                return 0.0
            instants = [task.lease.expires_at for task in self._leased.values() if task.lease is not None]
            if self._delayed:
                instants.append(self._delayed[0][0])
        return max(0.0, (min(instants) - now).total_seconds()) if instants else None

    def ticket(self) -> int:
        """See `WorkQueue.ticket`."""
        return self._bell.ticket()

    def wait(self, ticket: int, timeout: float, stop: CancelToken | None = None) -> None:
        """See `WorkQueue.wait`."""
        if not self._closed:
            self._bell.wait(ticket, timeout, stop)

    def close(self) -> None:
        """See `WorkQueue.close`. What was queued is gone."""
        with self._lock:
            self._closed = True
        self._bell.ring()

    # each of these holds _lock

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the memory queue is closed; make a new one")

    def _waiting(self) -> int:
        return len(self._tasks) - len(self._leased)

    def _add(self, run_id: str) -> None:
        task = self._tasks[run_id] = _Task(next(self._ids), run_id)
        heappush(self._line, (task.id, task))

    def _move_due(self, now: datetime) -> None:
        while self._delayed and self._delayed[0][0] <= now:
            _, id, task = heappop(self._delayed)
            heappush(self._line, (id, task))

    def _held(self, lease: Lease) -> _Task:
        self._check_open()
        task = self._leased.get(checked_lease(lease).id)
        if task is None or task.lease is None or task.lease.token != lease.token:
            raise LeaseLost(
                f"the lease of run {lease.run_id!r} (task {lease.id}) is not valid any more; drop what was done "
                "under it"
            )
        return task

    def _renewed(self, task: _Task, now: datetime) -> Lease:
        task.lease = Lease(
            task.id, str(next(self._tokens)), task.run_id, later(now, task.seconds), task.failures
        )
        return task.lease

    def _put_back(self, task: _Task, not_before: datetime | None) -> None:
        del self._leased[task.id]
        task.lease = None
        task.again = False  # it is going to be driven after this, whoever asked for it
        if not_before is None:
            heappush(self._line, (task.id, task))
        else:
            heappush(self._delayed, (not_before, task.id, task))

    def _remove(self, task: _Task) -> bool:
        del self._leased[task.id], self._tasks[task.run_id]
        if task.again:
            self._add(task.run_id)
        return task.again
