"""The heart of a worker: extends the leases of the runs it drives, and notices when one is lost."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from supervisor.durable.bell import Bell
from supervisor.durable.errors import LeaseLost, StoreError
from supervisor.durable.queues.protocol import Lease, WorkQueue
from supervisor.kernel.cancellation import CancelReason, CancelToken
from supervisor.kernel.clock import Clock
from supervisor.kernel.log import library_logger
from supervisor.kernel.text import error_text

__all__ = ["Heart", "Held"]

_BEATS = 3  # in the time of one lease


class Held:
    """A lease that a worker holds while it drives."""

    __slots__ = ("_beaten", "_clock", "_fresh_for", "_lease", "_lock", "_lost", "run_id", "token")

    def __init__(self, clock: Clock, lease: Lease, fresh_for: float) -> None:
        self._clock = clock
        self._fresh_for = fresh_for  # seconds after a beat in which the lease is not doubted
        self.run_id: str = lease.run_id
        self.token: CancelToken = CancelToken(clock=clock)  # of the drive; REPLACED when the lease is lost
        self._lock = clock.lock()  # guards the fields below, and the queue's answer to a beat
        self._lease: Lease | None = lease
        self._lost = False
        self._beaten = clock.monotonic()

    @property
    def lost(self) -> bool:
        """Somebody else has the run, or may have it."""
        return self._lost

    def beat(self, queue: WorkQueue) -> None:
        """Extend the lease, unless it was given up meanwhile. Raises StoreError."""
        with self._lock:
            if self._lease is None:
                return
            try:
                began = self._clock.monotonic()
                self._lease = queue.heartbeat(self._lease)
                self._beaten = began
                return
            except LeaseLost:
                self._lease, self._lost = None, True
        self.token.cancel(CancelReason.REPLACED)

    def confirm(self, queue: WorkQueue, *, doubt: bool) -> None:
        """Make sure that the lease is held, before a body is called: a process may have stood still.

        doubt: ask the queue in any case, else only if the last beat is too long ago. Raises StoreError.
        """
        if doubt or self._clock.monotonic() - self._beaten > self._fresh_for:
            self.beat(queue)

    def give_up(self) -> Lease | None:
        """Return the lease as it is now, for the last call about it; None if it is lost."""
        with self._lock:
            lease, self._lease = self._lease, None
            return lease

    def take_back(self, lease: Lease) -> None:
        """The last call about the lease has failed: it is held as before."""
        with self._lock:
            self._lease = lease


class Heart:
    """One thread that beats for all leases of a worker; it lives while the `with` block of somebody is open."""

    def __init__(
        self, clock: Clock, queue: WorkQueue, lease_seconds: float, look: Callable[[str], None]
    ) -> None:
        self._clock = clock
        self._queue = queue
        self._interval = lease_seconds / _BEATS
        self._look = look  # called with the run of each lease at each beat
        self._bell = Bell(clock)
        self._lock = clock.lock()  # guards the fields below
        self._held: set[Held] = set()
        self._users = 0
        self._generation = 0  # of the thread

    def __enter__(self) -> Self:
        with self._lock:
            self._users += 1
            start, generation = self._users == 1, self._generation
        if start:
            self._clock.spawn(lambda: self._run(generation), "durable:heart")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self._generation += 1
        self._bell.ring()

    def hold(self, lease: Lease) -> Held:
        """Beat for a lease from now on."""
        held = Held(self._clock, lease, 2 * self._interval)
        with self._lock:
            self._held.add(held)
        return held

    def drop(self, held: Held) -> Lease | None:
        """Beat no more; return the lease as it is now, None if it is lost."""
        with self._lock:
            self._held.discard(held)
        return held.give_up()

    def take_back(self, held: Held, lease: Lease) -> None:
        """Beat on for a lease that was dropped, as the last call about it has failed."""
        held.take_back(lease)
        with self._lock:
            self._held.add(held)

    def runs(self) -> list[str]:
        """Return the runs whose leases are held."""
        with self._lock:
            return [each.run_id for each in self._held]

    def _run(self, generation: int) -> None:
        while True:
            ticket = self._bell.ticket()
            with self._lock:
                if generation != self._generation:
                    return
            if self._bell.wait(ticket, self._interval):
                continue
            with self._lock:
                held = list(self._held)
            for each in held:
                self._beat(each)

    def _beat(self, held: Held) -> None:
        try:
            held.beat(self._queue)
            if not held.lost:
                self._look(held.run_id)
        except StoreError as error:  # until the lease ends there are more beats
            library_logger().warning(
                "the lease of run %r could not be extended: %s", held.run_id, error_text(error)
            )
        except Exception as error:
            library_logger().error("fault in the heart of a worker: %s", error_text(error))
