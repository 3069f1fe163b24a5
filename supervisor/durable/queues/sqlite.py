"""SqliteWorkQueue: the line of runs to drive, in a SQLite file, for workers of any number of processes."""

from __future__ import annotations

import os
import sqlite3
from datetime import datetime
from uuid import uuid4

from supervisor.durable.bell import Bell
from supervisor.durable.errors import CorruptHistory, LeaseLost, QueueFull, StoreError
from supervisor.durable.instants import read_instant, written
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
from supervisor.durable.stores.migrations import sqlite as migrations
from supervisor.durable.stores.sqlite_registry import add_bell, drop_bell, open_database
from supervisor.kernel.arguments import count_or_none, seconds
from supervisor.kernel.cancellation import CancelToken
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock

__all__ = ["SqliteWorkQueue"]

_DUE = (
    "SELECT id, run_id, failures FROM flow_tasks WHERE token IS NULL AND (not_before IS NULL OR not_before <= ?) "
    "ORDER BY id LIMIT 1"
)
_LEASE = "UPDATE flow_tasks SET token = ?, seconds = ?, expires_at = ?, not_before = NULL WHERE id = ?"
_HELD = "SELECT run_id, seconds, failures, again FROM flow_tasks WHERE id = ? AND token = ?"
_IN_LINE = "SELECT token FROM flow_tasks WHERE run_id = ?"
_AGAIN = "UPDATE flow_tasks SET again = 1 WHERE run_id = ? AND again = 0"
_ADD = "INSERT INTO flow_tasks (run_id) VALUES (?)"
_PUT_BACK = (
    "UPDATE flow_tasks SET token = NULL, expires_at = NULL, again = 0"  # driven after this, whoever asked
)
_LEASED = "SELECT 1 FROM flow_tasks WHERE run_id = ? AND token IS NOT NULL AND expires_at > ?"
_EXPIRED = "token IS NOT NULL AND expires_at <= ?"
# Not a count of what has no token: that reads the whole table, and this reads two indexes.
_PENDING = (
    "SELECT (SELECT COUNT(*) FROM flow_tasks) - (SELECT COUNT(*) FROM flow_tasks WHERE token IS NOT NULL)"
)
_AT_ONCE = "SELECT 1 FROM flow_tasks WHERE token IS NULL AND not_before IS NULL LIMIT 1"
_NEXT = (
    "SELECT MIN(expires_at) FROM flow_tasks WHERE token IS NOT NULL UNION ALL "
    "SELECT MIN(not_before) FROM flow_tasks WHERE not_before IS NOT NULL"
)


class SqliteWorkQueue:
    """A `WorkQueue` in a SQLite file, which may be that of a store: then they share connections and commits.

    path: of the file; it is made if there is none.  clock: tells when leases and delays end, by the wall clock of
    this machine.  capacity: of tasks in line, as far as this object adds to it. A task that this process queues
    wakes who waits at once; one of another process is found when a wait times out.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, clock: Clock | None = None, capacity: int | None = None
    ) -> None:
        self._capacity = count_or_none(capacity, "capacity", 1)
        self._clock = clock or SYSTEM_CLOCK
        self._bell = Bell(self._clock)
        self._lock = SYSTEM_CLOCK.lock()  # guards _closed
        self._closed = False
        self._database = open_database(path)
        add_bell(self._database, self._bell)
        try:
            migrations.migrate(self._database)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<SqliteWorkQueue {self._database.path!r}{' closed' if self._closed else ''}>"

    def enqueue(self, run_id: str) -> bool:
        """See `WorkQueue.enqueue`."""
        key = (check_run_id(run_id),)
        self._check_open()

        def work(writer: sqlite3.Connection) -> bool:
            found = writer.execute(_IN_LINE, key).fetchone()
            if found is None:
                if self._capacity is not None:
                    (pending,) = writer.execute(_PENDING).fetchone()
                    if pending >= self._capacity:
                        raise QueueFull(pending, self._capacity)
                writer.execute(_ADD, key)
            elif found[0] is not None:
                writer.execute(_AGAIN, key)
            return found is None

        added = self._database.write(work)
        if added:
            self._database.ring()
        return added

    def lease(self, seconds: float) -> Lease | None:
        """See `WorkQueue.lease`."""
        length = lease_time(seconds)
        now = self._clock.now()
        when, token, expires_at = written(now), uuid4().hex, later(now, length)
        self._check_open()
        if not self._database.rows(_DUE, (when,)):
            return None  # so that who finds nothing does not hold up who writes

        def work(writer: sqlite3.Connection) -> Lease | None:
            found = writer.execute(_DUE, (when,)).fetchone()
            if found is None:
                return None
            id, run_id, failures = found
            writer.execute(_LEASE, (token, length, written(expires_at), id))
            return Lease(id, token, run_id, expires_at, failures)

        return self._database.write(work)

    def leased(self, run_id: str) -> bool:
        """See `WorkQueue.leased`."""
        self._check_open()
        return bool(self._database.rows(_LEASED, (check_run_id(run_id), written(self._clock.now()))))

    def heartbeat(self, lease: Lease) -> Lease:
        """See `WorkQueue.heartbeat`."""
        self._check_open()
        now, token = self._clock.now(), uuid4().hex

        def work(writer: sqlite3.Connection) -> Lease:
            run_id, length, failures, _ = _held(writer, lease)
            expires_at = later(now, length)
            writer.execute(
                "UPDATE flow_tasks SET token = ?, expires_at = ? WHERE id = ?",
                (token, written(expires_at), lease.id),
            )
            return Lease(lease.id, token, run_id, expires_at, failures)

        return self._database.write(work)

    def ack(self, lease: Lease) -> None:
        """See `WorkQueue.ack`."""
        self._check_open()
        if self._database.write(lambda writer: _remove(writer, lease)):
            self._database.ring()

    def release(self, lease: Lease, delay: float = 0.0, *, failed: bool = False) -> None:
        """See `WorkQueue.release`."""
        wait = seconds(delay, "delay")
        self._check_open()
        not_before = written(later(self._clock.now(), wait)) if wait else None

        def work(writer: sqlite3.Connection) -> None:
            _held(writer, lease)
            writer.execute(
                f"{_PUT_BACK}, not_before = ?, failures = failures + ? WHERE id = ?",
                (not_before, int(failed), lease.id),
            )

        self._database.write(work)
        self._database.ring()

    def reclaim_expired(self) -> int:
        """See `WorkQueue.reclaim_expired`."""
        when = (written(self._clock.now()),)
        self._check_open()
        if not self._database.rows(f"SELECT 1 FROM flow_tasks WHERE {_EXPIRED} LIMIT 1", when):
            return 0
        count = self._database.write(
            lambda writer: writer.execute(f"{_PUT_BACK} WHERE {_EXPIRED}", when).rowcount
        )
        if count:
            self._database.ring()
        return count

    def dead_letter(self, lease: Lease, reason: str) -> None:
        """See `WorkQueue.dead_letter`. What was queued while the task was leased is queued now."""
        self._check_open()
        text = checked_reason(reason).encode("utf-8", "backslashreplace").decode()
        at = written(self._clock.now())

        def work(writer: sqlite3.Connection) -> bool:
            run_id = _held(writer, lease)[0]
            writer.execute(
                "INSERT INTO flow_dead_letters (id, run_id, reason, at) VALUES (?, ?, ?, ?)",
                (lease.id, run_id, text, at),
            )
            return _remove(writer, lease)

        if self._database.write(work):
            self._database.ring()

    def dead_letters(self) -> list[DeadLetter]:
        """See `WorkQueue.dead_letters`."""
        self._check_open()
        rows = self._database.rows("SELECT id, run_id, reason, at FROM flow_dead_letters ORDER BY number")
        return [DeadLetter(id, run_id, reason, _instant(at)) for id, run_id, reason, at in rows]

    def redrive(self, id: int) -> bool:
        """See `WorkQueue.redrive`. The capacity does not matter: the run was in the queue before."""
        number = letter_id(id)
        self._check_open()
        if number is None:
            return False

        def work(writer: sqlite3.Connection) -> bool:
            key = writer.execute("SELECT run_id FROM flow_dead_letters WHERE id = ?", (number,)).fetchone()
            if key is None:
                return False
            writer.execute("DELETE FROM flow_dead_letters WHERE id = ?", (number,))
            found = writer.execute(_IN_LINE, key).fetchone()
            if found is None:
                writer.execute(_ADD, key)
            elif found[0] is not None:
                writer.execute(_AGAIN, key)
            return True

        done = self._database.write(work)
        if done:
            self._database.ring()
        return done

    def pending(self) -> int:
        """See `WorkQueue.pending`."""
        self._check_open()
        return int(self._database.rows(_PENDING)[0][0])

    def seconds_to_next(self) -> float | None:
        """See `WorkQueue.seconds_to_next`."""
        self._check_open()
        now = self._clock.now()
        if self._database.rows(_AT_ONCE):
            return 0.0
        instants = [_instant(text) for (text,) in self._database.rows(_NEXT) if text is not None]
        return max(0.0, (min(instants) - now).total_seconds()) if instants else None

    def ticket(self) -> int:
        """See `WorkQueue.ticket`."""
        return self._bell.ticket()

    def wait(self, ticket: int, timeout: float, stop: CancelToken | None = None) -> None:
        """See `WorkQueue.wait`."""
        if not self._closed:
            self._bell.wait(ticket, timeout, stop)

    def close(self) -> None:
        """See `WorkQueue.close`. What was queued stays in the file."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._bell.ring()
        drop_bell(self._database, self._bell)
        self._database.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the queue on {self._database.path!r} is closed; make a new one")


def _held(writer: sqlite3.Connection, lease: Lease) -> tuple[str, float, int, int]:
    found: tuple[str, float, int, int] | None = writer.execute(
        _HELD, (checked_lease(lease).id, lease.token)
    ).fetchone()
    if found is None:
        raise LeaseLost(
            f"the lease of run {lease.run_id!r} (task {lease.id}) is not valid any more; drop what was done under it"
        )
    return found


def _remove(writer: sqlite3.Connection, lease: Lease) -> bool:
    run_id, _, _, again = _held(writer, lease)
    writer.execute("DELETE FROM flow_tasks WHERE id = ?", (lease.id,))
    if again:
        writer.execute(_ADD, (run_id,))
    return bool(again)


def _instant(text: str) -> datetime:
    try:
        return read_instant(text)
    except ValueError as error:
        raise CorruptHistory(
            f"an instant in the queue can't be read ({error}); it was left as it is"
        ) from error
