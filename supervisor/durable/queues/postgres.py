"""PostgresWorkQueue: the line of runs to drive, in PostgreSQL, for workers on many machines.

Leases and delays are timed by the clock of the database, so the clocks of the machines don't matter. Each
operation is one statement. A worker that waits is woken by a notification as soon as a task is queued.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar
from uuid import uuid4

from supervisor.durable.bell import Bell
from supervisor.durable.errors import LeaseLost, QueueFull, StoreError
from supervisor.durable.postgres import PostgresDatabase, Session, Work, as_it_was, held
from supervisor.durable.queues.listener import CHANNEL, Listener
from supervisor.durable.queues.protocol import (
    DeadLetter,
    Lease,
    checked_lease,
    checked_reason,
    lease_time,
    letter_id,
)
from supervisor.durable.stores.codec import check_run_id
from supervisor.durable.stores.migrations import postgres as migrations
from supervisor.kernel.arguments import count_or_none
from supervisor.kernel.arguments import seconds as duration
from supervisor.kernel.cancellation import CancelToken
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock
from supervisor.kernel.text import shown

__all__ = ["PostgresWorkQueue"]

T = TypeVar("T")

_CONNECTIONS: Final = 4  # of a queue that does not share those of a store
_LONGEST: Final = 100 * 365 * 86400.0  # seconds; timestamptz has an end

# One notification for each transaction, however many tasks it queued.
_TELL: Final = f"CASE WHEN %(notify)s THEN pg_notify(({CHANNEL}), %(self)s) END"
_ADD: Final = """
    INSERT INTO flow_tasks (run_id) SELECT run_id FROM run
    ON CONFLICT (run_id) DO UPDATE SET again = true WHERE flow_tasks.token IS NOT NULL
    RETURNING NOT again AS fresh"""
_ENQUEUE: Final = f"""
WITH run AS (SELECT %(run)s::text AS run_id), added AS ({_ADD})
SELECT {_TELL} FROM added WHERE fresh"""
_LINE: Final = """
SELECT count(*) FILTER (WHERE token IS NULL), count(*) FILTER (WHERE run_id = %s) FROM flow_tasks"""
_LEASE: Final = """
WITH next AS (
    SELECT id FROM flow_tasks WHERE token IS NULL AND due_at <= clock_timestamp()
    ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE flow_tasks AS task SET token = %(token)s, seconds = %(seconds)s,
    expires_at = clock_timestamp() + make_interval(secs => %(seconds)s)
FROM next WHERE task.id = next.id
RETURNING task.id, task.token, task.run_id, task.expires_at, task.failures"""
_LEASED: Final = "SELECT id, token, run_id, expires_at, failures FROM flow_tasks WHERE token = %(token)s"
_HEARTBEAT: Final = """
UPDATE flow_tasks SET token = %(fresh)s, expires_at = clock_timestamp() + make_interval(secs => seconds)
WHERE id = %(id)s AND token IN (%(token)s, %(fresh)s)
RETURNING id, token, run_id, expires_at, failures"""
_GONE: Final = """
    DELETE FROM flow_tasks WHERE id = %(id)s AND token = %(token)s RETURNING id, run_id, again"""
_ONCE_MORE: Final = "INSERT INTO flow_tasks (run_id) SELECT run_id FROM gone WHERE again RETURNING id"
_ACK: Final = f"""
WITH gone AS ({_GONE}), more AS ({_ONCE_MORE})
SELECT again, (SELECT {_TELL} FROM more) FROM gone"""
_BURY: Final = f"""
WITH gone AS ({_GONE}), more AS ({_ONCE_MORE}), dead AS (
    INSERT INTO flow_dead_letters (id, run_id, reason, at)
    SELECT id, run_id, %(reason)s, clock_timestamp() FROM gone
)
SELECT again, (SELECT {_TELL} FROM more) FROM gone"""
_RELEASE: Final = f"""
WITH freed AS (
    UPDATE flow_tasks SET token = NULL, expires_at = NULL, again = false, failures = failures + %(failed)s::integer,
        due_at = CASE WHEN %(delay)s = 0 THEN due_at
                      ELSE clock_timestamp() + make_interval(secs => %(delay)s) END
    WHERE id = %(id)s AND token = %(token)s RETURNING id
)
SELECT true, {_TELL} FROM freed"""
_HELD: Final = """
SELECT 1 FROM flow_tasks WHERE run_id = %(run)s AND token IS NOT NULL AND expires_at > clock_timestamp()"""
_RECLAIM: Final = f"""
WITH expired AS (
    SELECT id FROM flow_tasks WHERE token IS NOT NULL AND expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED
), freed AS (
    UPDATE flow_tasks AS task SET token = NULL, expires_at = NULL, again = false
    FROM expired WHERE task.id = expired.id RETURNING task.id
)
SELECT {_TELL} FROM freed"""
_REDRIVE: Final = f"""
WITH run AS (DELETE FROM flow_dead_letters WHERE id = %(id)s RETURNING run_id), added AS ({_ADD})
SELECT (SELECT {_TELL} FROM added WHERE fresh) FROM run"""
_NEXT: Final = """
SELECT extract(epoch FROM least(
    (SELECT min(due_at) FROM flow_tasks WHERE token IS NULL),
    (SELECT min(expires_at) FROM flow_tasks WHERE token IS NOT NULL)
) - clock_timestamp())::float8"""

_ALONE: Final = "SELECT pg_advisory_xact_lock('flow_tasks'::regclass::oid::bigint)"


class PostgresWorkQueue:
    """A `WorkQueue` in a PostgreSQL database, whose processes and machines share it.

    dsn: of libpq; or the connections of a store, to share them.
    clock: is what `wait` waits on; leases and delays go by the clock of the database.
    capacity: of tasks in line.  notify: wake the workers of other processes at once; without it they look
    from time to time.  migrate: as in `PostgresEventStore`.
    """

    def __init__(
        self,
        dsn: str | PostgresDatabase,
        *,
        clock: Clock | None = None,
        capacity: int | None = None,
        notify: bool = True,
        migrate: bool = True,
    ) -> None:
        if not isinstance(dsn, str | PostgresDatabase):
            raise TypeError(f"dsn must be a str such as 'postgresql://user@host/name', got {shown(dsn)}")
        self._capacity = count_or_none(capacity, "capacity", 1)
        self._notify = notify
        self._self = uuid4().hex
        self._bell = Bell(clock or SYSTEM_CLOCK)
        self._closed = False
        self._shared = not isinstance(dsn, str)
        if isinstance(dsn, str):
            self._database = PostgresDatabase(dsn, size=_CONNECTIONS)
            try:
                self._database.run(
                    "open the queue", migrations.bring_up if migrate else migrations.verify, patience=0.0
                )
            except BaseException:
                self._database.close()
                raise
        else:
            self._database = dsn
        self._listener = Listener(self._database, self._self, self._bell.ring)

    def __repr__(self) -> str:
        return f"<PostgresWorkQueue {self._database.name}{' closed' if self._closed else ''}>"

    def enqueue(self, run_id: str) -> bool:
        """See `WorkQueue.enqueue`."""
        values = self._told(run=check_run_id(run_id))
        capacity = self._capacity

        def add(session: Session, again: bool) -> bool:
            return bool(session.execute(_ENQUEUE, values).fetchall())

        def add_if_there_is_room(session: Session, again: bool) -> bool:
            with session.transaction():
                session.execute(_ALONE)
                ((waiting, queued),) = session.execute(_LINE, (run_id,)).fetchall()
                if capacity is not None and not queued and waiting >= capacity:
                    raise QueueFull(waiting, capacity)
                return add(session, again)

        added = self._run("enqueue a run", add if capacity is None else add_if_there_is_room)
        if added:
            self._bell.ring()
        return added

    def lease(self, seconds: float) -> Lease | None:
        """See `WorkQueue.lease`."""
        values = {"token": uuid4().hex, "seconds": min(lease_time(seconds), _LONGEST)}

        def take(session: Session, again: bool) -> list[tuple[Any, ...]]:
            rows = session.execute(_LEASED, values).fetchall() if again else []
            return rows or session.execute(_LEASE, values).fetchall()

        rows = self._run("lease a task", take)
        return Lease(*rows[0]) if rows else None

    def leased(self, run_id: str) -> bool:
        """See `WorkQueue.leased`."""
        return bool(self._rows("look for a lease", _HELD, {"run": check_run_id(run_id)}))

    def heartbeat(self, lease: Lease) -> Lease:
        """See `WorkQueue.heartbeat`."""
        values = {"id": checked_lease(lease).id, "token": lease.token, "fresh": uuid4().hex}
        rows = self._rows("extend a lease", _HEARTBEAT, values)
        if not rows:
            raise _lost(lease)
        return Lease(*rows[0])

    def ack(self, lease: Lease) -> None:
        """See `WorkQueue.ack`."""
        if self._end("end a task", _ACK, lease):
            self._bell.ring()

    def release(self, lease: Lease, delay: float = 0.0, *, failed: bool = False) -> None:
        """See `WorkQueue.release`."""
        wait = min(duration(delay, "delay"), _LONGEST)
        self._end("release a task", _RELEASE, lease, delay=wait, failed=failed)
        self._bell.ring()

    def reclaim_expired(self) -> int:
        """See `WorkQueue.reclaim_expired`."""
        found = len(self._rows("reclaim expired leases", _RECLAIM, self._told()))
        if found:
            self._bell.ring()
        return found

    def dead_letter(self, lease: Lease, reason: str) -> None:
        """See `WorkQueue.dead_letter`. What was queued while the task was leased is queued now."""
        if self._end("put a task aside", _BURY, lease, reason=held(checked_reason(reason))):
            self._bell.ring()

    def dead_letters(self) -> list[DeadLetter]:
        """See `WorkQueue.dead_letters`."""
        query = "SELECT id, run_id, reason, at FROM flow_dead_letters ORDER BY number"
        return [
            DeadLetter(id, run_id, as_it_was(reason), at)
            for id, run_id, reason, at in self._rows("list dead letters", query)
        ]

    def redrive(self, id: int) -> bool:
        """See `WorkQueue.redrive`. The capacity does not matter: the run was in the queue before."""
        number = letter_id(id)
        self._check_open()
        if number is None:
            return False
        found = bool(self._rows("queue a dead letter again", _REDRIVE, self._told(id=number)))
        if found:
            self._bell.ring()
        return found

    def pending(self) -> int:
        """See `WorkQueue.pending`."""
        ((found,),) = self._rows("count tasks", "SELECT count(*) FROM flow_tasks WHERE token IS NULL")
        return int(found)

    def seconds_to_next(self) -> float | None:
        """See `WorkQueue.seconds_to_next`."""
        ((found,),) = self._rows("look up the next task", _NEXT)
        return None if found is None else max(0.0, found)

    def ticket(self) -> int:
        """See `WorkQueue.ticket`."""
        return self._bell.ticket()

    def wait(self, ticket: int, timeout: float, stop: CancelToken | None = None) -> None:
        """See `WorkQueue.wait`. The first call starts the thread that hears of tasks of other processes."""
        if self._closed:
            return
        if self._notify:
            self._listener.start()
        self._bell.wait(ticket, timeout, stop)

    def close(self) -> None:
        """See `WorkQueue.close`. The connections of a store stay open."""
        self._closed = True
        self._bell.ring()
        self._listener.close()
        if not self._shared:
            self._database.close()

    def _end(self, what: str, query: str, lease: Lease, **more: Any) -> bool:
        """Run a statement that gives a lease up; return what it says in its first column."""
        values = self._told(id=checked_lease(lease).id, token=lease.token, **more)

        def end(session: Session, again: bool) -> bool:
            rows = session.execute(query.encode(), values).fetchall()
            if not rows and not again:  # at a second try it may be we who did it
                raise _lost(lease)
            return not rows or bool(rows[0][0])

        return self._run(what, end)

    def _told(self, **values: Any) -> dict[str, Any]:
        return {"notify": self._notify, "self": self._self, **values}

    def _rows(self, what: str, query: str, values: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        return self._run(what, lambda session, again: session.execute(query.encode(), values).fetchall())

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the PostgreSQL queue is closed; make a new one")

    def _run(self, what: str, work: Work[T]) -> T:
        self._check_open()
        return self._database.run(what, work)


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(
        f"the lease of run {lease.run_id!r} (task {lease.id}) is not valid any more; drop what was done under it"
    )
