"""PostgresEventStore: histories in PostgreSQL, for programs on many machines.

An append is one statement and one commit: it moves the sequence of its run on, which only one of several
writers can do, and adds the events. What is due is kept in a table by triggers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from supervisor.durable.errors import EventConflict, InvalidTransition, RunNotFound, StoreError
from supervisor.durable.history import Envelope, FlowEvent
from supervisor.durable.postgres import POOL_SIZE, PostgresDatabase, Session, as_it_was, held
from supervisor.durable.projection import Projection, Wakeup
from supervisor.durable.queues.postgres import PostgresWorkQueue
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.codec import Draft, Folds, check_run_id, decode_event, draft
from supervisor.durable.stores.migrations import postgres as migrations
from supervisor.durable.stores.protocol import DUE_LIMIT, Failure
from supervisor.kernel.arguments import count, count_or_none, instant
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock

__all__ = ["PostgresEventStore"]

_BORDER: Final = "\x1f"  # between JSON texts, which hold no control characters
# Texts that are put together, and not arrays: to write an array takes psycopg longer than all else of an append.
_EVENTS: Final = f"""
    INSERT INTO flow_events (run_id, sequence, event_id, at, type, body)
    SELECT run.run_id, %(expected)s + each.n, each.event_id, %(at)s, each.type, each.body
    FROM run, unnest(
        string_to_array(%(ids)s, ' '), string_to_array(%(types)s, ' '), string_to_array(%(bodies)s, chr({ord(_BORDER)}))
    ) WITH ORDINALITY AS each (event_id, type, body, n)
    ORDER BY each.n
"""
_CREATE: Final = f"""
WITH run AS (
    INSERT INTO flow_runs (run_id, workflow, version, status, sequence, event_id, created_at, updated_at)
    SELECT %(run)s, %(workflow)s, %(version)s, %(status)s, %(sequence)s, %(event_id)s, %(at)s, %(at)s
    WHERE NOT EXISTS (SELECT FROM flow_events WHERE run_id = %(run)s)
    ON CONFLICT (run_id) DO NOTHING
    RETURNING run_id
){_EVENTS}"""
_EXTEND: Final = f"""
WITH run AS (
    UPDATE flow_runs SET status = %(status)s, sequence = %(sequence)s, event_id = %(event_id)s, updated_at = %(at)s
    WHERE run_id = %(run)s AND sequence = %(expected)s AND event_id = %(tip_id)s
    RETURNING run_id
){_EVENTS}"""
_TIP: Final = """
SELECT coalesce((SELECT max(sequence) FROM flow_events WHERE run_id = %(run)s), 0), ARRAY(
    SELECT event_id FROM flow_events
    WHERE run_id = %(run)s AND sequence > %(expected)s AND sequence <= %(sequence)s ORDER BY sequence
)"""
_READ: Final = """
SELECT sequence, event_id, at, body FROM flow_events
WHERE run_id = %s AND sequence > %s ORDER BY sequence LIMIT %s"""
_DUE: Final = """
SELECT kind, run_id, subject_id, due_at FROM flow_wakeups
WHERE due_at <= %s ORDER BY due_at, run_id, subject_id, kind LIMIT %s"""
_MARK: Final = """
INSERT INTO flow_failures (run_id, reason, at) VALUES (%s, %s, %s)
ON CONFLICT (run_id) DO UPDATE SET reason = excluded.reason, at = excluded.at, number = DEFAULT"""


class PostgresEventStore:
    """Keeps histories in a PostgreSQL database (12 or newer, in UTF8), in the first schema of the search path.

    dsn: of libpq, such as `postgresql://user@host/name`.
    migrate: bring the tables up to date first; False only checks them, for roles that may not create tables.
    pool_size: connections at most; each is opened when it is first needed.
    Opening raises StoreError at once if there is no server; later a lost connection is replaced for some seconds.
    """

    def __init__(self, dsn: str, *, migrate: bool = True, pool_size: int = POOL_SIZE) -> None:
        self._database = PostgresDatabase(dsn, size=pool_size)
        self._lock = SYSTEM_CLOCK.lock()  # guards the fields below; nobody does I/O under it
        self._folds = Folds(self._events)
        self._queue: PostgresWorkQueue | None = None
        try:
            self._database.run(
                "open the store", migrations.bring_up if migrate else migrations.verify, patience=0.0
            )
        except BaseException:
            self._database.close()
            raise

    def __repr__(self) -> str:
        state = " closed" if self._database.closed else ""
        return f"<PostgresEventStore {self._database.name}{state}>"

    def migrate(self) -> list[str]:
        """Bring the tables up to date; return the names of the migrations that were applied. Raises StoreError."""
        return self._database.run("apply migrations", migrations.bring_up)

    def append(
        self, run_id: str, expected_sequence: int, events: Sequence[FlowEvent], at: datetime
    ) -> list[Envelope]:
        """See `FlowEventStore.append`.

        A StoreError after a lost connection leaves open whether the events were stored: read to find out.
        """
        entry = draft(run_id, expected_sequence, events, at)
        with self._lock:
            kept = self._folds.take(entry.run_id)
        # If the first fails, the run was made anew behind our back: what we knew of it is of another one.
        if not (self._write(entry, kept) or self._write(entry, None)):
            raise StoreError(
                f"run {entry.run_id!r} has {entry.expected} events, and flow_runs says otherwise; nothing was written"
            )
        return entry.envelopes

    def _write(self, entry: Draft, kept: Projection | None) -> bool:
        """Write on top of what is known of the run; False if the run does not end with the event it should."""
        projection, tip_id = self._advanced(entry, kept)
        values = {
            "run": entry.run_id,
            "workflow": held(projection.workflow),
            "version": held(projection.version),
            "status": projection.status.value,
            "expected": entry.expected,
            "tip_id": tip_id,
            "sequence": entry.sequence,
            "event_id": projection.last_event_id,
            "at": entry.at,
            "ids": " ".join([envelope.event_id for envelope, _ in entry.rows]),
            "types": " ".join([envelope.event.type for envelope, _ in entry.rows]),
            "bodies": _BORDER.join([text for _, text in entry.rows]),
        }
        query = (_CREATE if entry.expected == 0 else _EXTEND).encode()

        def write(session: Session, again: bool) -> int:
            return session.execute(query, values).rowcount

        written = self._database.run(f"append to run {entry.run_id!r}", write) == len(entry.rows)
        if not written and not self._is_there(entry):
            return False
        with self._lock:
            self._folds.keep(projection)
        return True

    def _advanced(self, entry: Draft, kept: Projection | None) -> tuple[Projection, str]:
        """Return what history says after the draft, if that may follow, and the id of the event before it.

        Asks the database only if what is known is not enough.
        """
        if (kept.sequence if kept is not None else 0) != entry.expected:
            self._must_follow(entry, kept)
        try:
            projection = self._folds.reach(kept, entry.run_id, entry.expected)
            tip_id = projection.last_event_id
            for envelope in entry.envelopes:
                projection.fold(envelope)
        except InvalidTransition:
            self._must_follow(
                entry, None
            )  # it may be illegal only in our view: then somebody else was faster
            raise
        return projection, tip_id

    def _must_follow(self, entry: Draft, kept: Projection | None) -> None:
        tip, _ = self._tip(entry)
        if tip != entry.expected:
            if kept is not None:
                with self._lock:
                    self._folds.keep(kept)
            raise EventConflict(entry.run_id, entry.expected, tip)

    def _is_there(self, entry: Draft) -> bool:
        """Nothing was written: True if we did that before and were not told. EventConflict if somebody else did."""
        tip, ids = self._tip(entry)
        if ids == [envelope.event_id for envelope, _ in entry.rows]:
            return True
        if tip != entry.expected:
            raise EventConflict(entry.run_id, entry.expected, tip)
        return False

    def _tip(self, entry: Draft) -> tuple[int, list[str]]:
        """Return the last sequence of the run, and the ids of the events where the draft wants to be."""
        values = {"run": entry.run_id, "expected": entry.expected, "sequence": entry.sequence}
        ((tip, ids),) = self._rows(f"read the end of run {entry.run_id!r}", _TIP, values)
        return tip, ids

    def read(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Envelope]:
        """See `FlowEventStore.read`."""
        count(after, "after", 0)
        count_or_none(limit, "limit", 1)
        asked: object = run_id
        if not isinstance(asked, str) or "\0" in asked:  # it can't be asked for
            raise RunNotFound(run_id)
        found = self._events(run_id, after, limit)
        if not found and (after == 0 or not self._events(run_id, 0, 1)):
            raise RunNotFound(run_id)
        return found

    def _events(self, run_id: str, after: int, limit: int | None = None) -> list[Envelope]:
        return [
            Envelope(run_id, number, event_id, at, decode_event(body, run_id, number))
            for number, event_id, at, body in self._rows(
                f"read run {run_id!r}", _READ, (run_id, after, limit)
            )
        ]

    def list_run_ids(self) -> list[str]:
        """See `FlowEventStore.list_run_ids`."""
        return [
            run_id for (run_id,) in self._rows("list runs", "SELECT run_id FROM flow_runs ORDER BY run_id")
        ]

    def list_due_wakeups(self, now: datetime, limit: int = DUE_LIMIT) -> list[Wakeup]:
        """See `FlowEventStore.list_due_wakeups`."""
        values = (instant(now, "now"), count(limit, "limit", 1))
        return [
            Wakeup(kind, run_id, subject_id, due_at)
            for kind, run_id, subject_id, due_at in self._rows("list what is due", _DUE, values)
        ]

    def next_scheduled_wakeup(self, after: datetime | None = None) -> datetime | None:
        """See `FlowEventStore.next_scheduled_wakeup`."""
        query = "SELECT min(due_at) FROM flow_wakeups WHERE due_at > coalesce(%s::timestamptz, '-infinity')"
        rows = self._rows(
            "look up what is due next", query, (None if after is None else instant(after, "after"),)
        )
        found: datetime | None = rows[0][0]
        return found

    def close(self) -> None:
        """See `FlowEventStore.close`. A call that is under way ends first, or at the latest when its wait for
        the server does."""
        with self._lock:
            queue = self._queue
        self._database.close()
        if queue is not None:
            queue.close()

    # RunDirectory

    def find_runs(
        self,
        statuses: Collection[RunStatus] | None = None,
        workflow: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[str]:
        """See `RunDirectory.find_runs`."""
        query = f"""
            SELECT run_id FROM flow_runs
            WHERE (%(statuses)s::text[] IS NULL OR status = ANY (%(statuses)s::text[]))
              AND (%(workflow)s::text IS NULL OR workflow = %(workflow)s)
            ORDER BY {"number DESC" if newest_first else "run_id"} LIMIT %(limit)s"""
        values = {
            "statuses": None if statuses is None else [str(each) for each in statuses],
            "workflow": None if workflow is None else held(workflow),
            "limit": limit,
        }
        return [run_id for (run_id,) in self._rows("find runs", query, values)]

    def mark_failure(self, run_id: str, reason: str, at: datetime) -> None:
        """See `RunDirectory.mark_failure`."""
        values = (check_run_id(run_id), held(reason), instant(at, "at"))
        self._database.run(
            f"mark run {run_id!r} as failed", lambda session, again: session.execute(_MARK, values)
        )

    def clear_failure(self, run_id: str) -> None:
        """See `RunDirectory.clear_failure`."""
        values = (check_run_id(run_id),)
        query = "DELETE FROM flow_failures WHERE run_id = %s"
        self._database.run(
            f"clear the failure of run {run_id!r}",
            lambda session, again: session.execute(query.encode(), values),
        )

    def failures(self) -> list[Failure]:
        """See `RunDirectory.failures`."""
        query = "SELECT run_id, reason, at FROM flow_failures ORDER BY number"
        return [
            Failure(run_id, as_it_was(reason), at)
            for run_id, reason, at in self._rows("list failures", query)
        ]

    def work_queue(self, clock: Clock) -> PostgresWorkQueue:
        """See `RunDirectory.work_queue`."""
        self._database.check()
        with self._lock:
            if self._queue is None:
                self._queue = PostgresWorkQueue(self._database, clock=clock)
            return self._queue

    def _rows(self, what: str, query: str, values: Any = None) -> list[tuple[Any, ...]]:
        return self._database.run(
            what, lambda session, again: session.execute(query.encode(), values).fetchall()
        )
