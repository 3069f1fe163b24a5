"""SqliteEventStore: histories in one SQLite file, for any number of threads and processes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from supervisor.durable.errors import (
    CorruptHistory,
    EventConflict,
    FlowError,
    InvalidRunId,
    RunNotFound,
    StoreError,
)
from supervisor.durable.history import Envelope, FlowEvent
from supervisor.durable.instants import read_instant, written
from supervisor.durable.payload import decode, encode
from supervisor.durable.projection import Projection, Wakeup
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.codec import Draft, Folds, check_run_id, decode_event, draft
from supervisor.durable.stores.migrations import sqlite as migrations
from supervisor.durable.stores.protocol import DUE_LIMIT, Failure
from supervisor.durable.stores.sqlite_file import Synchronous
from supervisor.durable.stores.sqlite_registry import open_database
from supervisor.kernel.arguments import count, count_or_none, instant
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from supervisor.durable.queues.sqlite import SqliteWorkQueue

__all__ = ["SqliteEventStore"]

_MOST = 2**63 - 1  # the largest number in a column

_EVENTS = (
    "SELECT sequence, event_id, at, body FROM flow_events WHERE run_id = ? AND sequence > ? "
    "ORDER BY sequence LIMIT ?"
)
_TIP = "SELECT sequence, event_id FROM flow_events WHERE run_id = ? ORDER BY sequence DESC LIMIT 1"
# Of many runs in one row: each step of a statement gives the interpreter away, and may wait to get it back.
_TIPS = (
    "SELECT json_group_array(json((SELECT json_array(sequence, event_id) FROM flow_events "
    "WHERE run_id = run.value ORDER BY sequence DESC LIMIT 1))) FROM json_each(?) AS run"
)
_ADD = "INSERT INTO flow_events (run_id, sequence, event_id, at, type, body) VALUES "
_CREATE = "INSERT INTO flow_runs (run_id, workflow, version, status, created_at, updated_at) VALUES "
_UPDATE = "UPDATE flow_runs SET status = ?, updated_at = ? WHERE run_id = ?"
_AT_ONCE = 100  # rows that one statement inserts
_DUE = (
    "SELECT kind, run_id, subject_id, due_at FROM flow_wakeups WHERE due_at <= ? "
    "ORDER BY due_at, run_id, subject_id, kind LIMIT ?"
)
_NEXT = "SELECT due_at FROM flow_wakeups WHERE due_at > ? ORDER BY due_at LIMIT 1"
_Row = tuple[int, str, str, str]  # sequence, event id, instant, JSON text


class SqliteEventStore:
    """Keeps histories in a SQLite file with a write-ahead log. Threads that append at once share a commit.

    path: of the file; it is made, with its folders, unless `migrate` is False: then it must be there, with all
    tables.  synchronous: `full` survives a power loss,
    `normal` only the end of the process.  busy_timeout: seconds to wait for the lock of another process, 5 by
    default. Raises StoreError.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        migrate: bool = True,
        synchronous: Synchronous = "full",
        busy_timeout: float | None = None,
    ) -> None:
        self._database = open_database(
            path, synchronous=synchronous, busy_timeout=busy_timeout, create=bool(migrate)
        )
        self._lock = SYSTEM_CLOCK.lock()  # guards _closed and _queue
        self._closed = False
        self._queue: SqliteWorkQueue | None = None
        # Only who writes uses these, and only one thread at a time does.
        self._folds = Folds(self._history)
        self._writer: sqlite3.Connection | None = None
        try:
            if migrate:
                migrations.migrate(self._database)
            else:
                migrations.verify(self._database)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<SqliteEventStore {self.path!r}{' closed' if self._closed else ''}>"

    @property
    def path(self) -> str:
        """The real path of the file."""
        return self._database.path

    def migrate(self) -> list[str]:
        """Bring the tables up to date; return the names of the migrations that were applied. Raises StoreError."""
        self._check_open()
        return migrations.migrate(self._database)

    def append(
        self, run_id: str, expected_sequence: int, events: Sequence[FlowEvent], at: datetime
    ) -> list[Envelope]:
        """See `FlowEventStore.append`."""
        entry = draft(run_id, expected_sequence, events, at)
        self._check_open()
        self._database.write_together(self._write, entry, self._folds.keep)
        return entry.envelopes

    def _write(self, writer: sqlite3.Connection, entries: Sequence[Draft]) -> list[Projection | Exception]:
        # in a transaction, which may be rolled back: the projections are kept only afterwards
        self._writer = writer
        results: list[Projection | Exception] = []
        done = 0
        while done < len(
            entries
        ):  # a run that stands in it twice has its second turn when the first is written
            runs: dict[str, Draft] = {}
            for entry in entries[done:]:
                if entry.run_id in runs:
                    break
                runs[entry.run_id] = entry
            results += self._write_runs(writer, list(runs.values()))
            done += len(runs)
        return results

    def _write_runs(self, writer: sqlite3.Connection, entries: list[Draft]) -> list[Projection | Exception]:
        """Write at most one append for each run."""
        results: list[Projection | Exception] = []
        events: list[tuple[object, ...]] = []
        created: list[tuple[object, ...]] = []
        changed: list[tuple[object, ...]] = []
        for entry, (tip, tip_id) in zip(entries, _tips(writer, entries), strict=True):
            run_id, at = entry.run_id, written(entry.at)
            try:
                if entry.expected != tip:
                    raise EventConflict(run_id, entry.expected, tip)
                projection = self._folds.at(run_id, tip, tip_id)
                before = projection.status if tip else None
                for envelope in entry.envelopes:
                    projection.fold(envelope)
            except FlowError as error:
                results.append(error)
                continue
            status = projection.status
            events += [
                (run_id, each.sequence, each.event_id, at, each.kind, text) for each, text in entry.rows
            ]
            if before is None:
                created.append((run_id, projection.workflow, projection.version, str(status), at, at))
            elif status is not before:
                changed.append((str(status), at, run_id))
            results.append(projection)
        _insert(writer, _ADD, events)
        _insert(writer, _CREATE, created)
        for row in changed:
            writer.execute(_UPDATE, row)
        return results

    def _history(self, run_id: str, after: int) -> list[Envelope]:
        # for the folds: what is in this transaction counts, too
        assert self._writer is not None
        return [_envelope(run_id, row) for row in self._writer.execute(_EVENTS, (run_id, after, -1))]

    def read(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Envelope]:
        """See `FlowEventStore.read`. Raises CorruptHistory for what can't be read."""
        first = min(count(after, "after", 0), _MOST)
        most = count_or_none(limit, "limit", 1)
        self._check_open()
        try:
            check_run_id(run_id)
        except InvalidRunId:
            raise RunNotFound(run_id) from None
        rows = self._database.rows(_EVENTS, (run_id, first, -1 if most is None else min(most, _MOST)))
        if not rows and not self._database.rows(_TIP, (run_id,)):
            raise RunNotFound(run_id)
        return [_envelope(run_id, row) for row in rows]

    def list_run_ids(self) -> list[str]:
        """See `FlowEventStore.list_run_ids`."""
        self._check_open()
        return [run_id for (run_id,) in self._database.rows("SELECT run_id FROM flow_runs ORDER BY run_id")]

    def list_due_wakeups(self, now: datetime, limit: int = DUE_LIMIT) -> list[Wakeup]:
        """See `FlowEventStore.list_due_wakeups`."""
        when, most = written(instant(now, "now")), min(count(limit, "limit", 1), _MOST)
        self._check_open()
        return [
            Wakeup(kind, run_id, subject_id, _instant(due_at, run_id))
            for kind, run_id, subject_id, due_at in self._database.rows(_DUE, (when, most))
        ]

    def next_scheduled_wakeup(self, after: datetime | None = None) -> datetime | None:
        """See `FlowEventStore.next_scheduled_wakeup`."""
        when = "" if after is None else written(instant(after, "after"))
        self._check_open()
        found = self._database.rows(_NEXT, (when,))
        return _instant(found[0][0], "the earliest wakeup") if found else None

    def close(self) -> None:
        """See `FlowEventStore.close`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            queue = self._queue
        if queue is not None:
            queue.close()
        self._database.close()

    # RunDirectory

    def find_runs(
        self,
        statuses: Collection[RunStatus] | None = None,
        workflow: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[str]:
        """See `RunDirectory.find_runs`."""
        self._check_open()
        conditions: list[str] = []
        values: list[object] = []
        if statuses is not None:
            conditions.append(f"status IN ({', '.join('?' * len(statuses))})")
            values += map(str, statuses)
        if workflow is not None:
            conditions.append("workflow = ?")
            values.append(_storable(workflow))
        where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
        order = "number DESC" if newest_first else "run_id"
        values.append(-1 if limit is None else min(limit, _MOST))
        found = self._database.rows(f"SELECT run_id FROM flow_runs {where}ORDER BY {order} LIMIT ?", values)
        return [run_id for (run_id,) in found]

    def mark_failure(self, run_id: str, reason: str, at: datetime) -> None:
        """See `RunDirectory.mark_failure`."""
        values = (check_run_id(run_id), _storable(reason), written(instant(at, "at")))
        self._check_open()
        self._database.write(
            lambda writer: writer.execute(
                "INSERT OR REPLACE INTO flow_failures (run_id, reason, at) VALUES (?, ?, ?)", values
            )
        )

    def clear_failure(self, run_id: str) -> None:
        """See `RunDirectory.clear_failure`."""
        self._check_open()
        key = (_storable(run_id),)
        if self._database.rows("SELECT 1 FROM flow_failures WHERE run_id = ?", key):
            self._database.write(
                lambda writer: writer.execute("DELETE FROM flow_failures WHERE run_id = ?", key)
            )

    def failures(self) -> list[Failure]:
        """See `RunDirectory.failures`."""
        self._check_open()
        rows = self._database.rows("SELECT run_id, reason, at FROM flow_failures ORDER BY number")
        return [Failure(run_id, reason, _instant(at, run_id)) for run_id, reason, at in rows]

    def work_queue(self, clock: Clock) -> SqliteWorkQueue:
        """See `RunDirectory.work_queue`."""
        from supervisor.durable.queues.sqlite import SqliteWorkQueue

        with self._lock:
            self._check_open()
            if self._queue is None:
                self._queue = SqliteWorkQueue(self.path, clock=clock)
            return self._queue

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store on {self.path!r} is closed; make a new one")


def _tips(writer: sqlite3.Connection, entries: list[Draft]) -> list[tuple[int, str | None]]:
    """Return the sequence and the id of the last event of each run, 0 and None where there is none."""
    if len(entries) == 1:
        found = writer.execute(_TIP, (entries[0].run_id,)).fetchone()
        return [(0, None) if found is None else found]
    ((text,),) = writer.execute(_TIPS, (encode([entry.run_id for entry in entries], "runs"),)).fetchall()
    return [(0, None) if each is None else (each[0], each[1]) for each in decode(text)]


def _insert(writer: sqlite3.Connection, head: str, rows: list[tuple[object, ...]]) -> None:
    """Insert rows, many with one statement."""
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        marks = f"({', '.join('?' * len(some[0]))})"
        writer.execute(head + ", ".join([marks] * len(some)), [value for row in some for value in row])


def _envelope(run_id: str, row: _Row) -> Envelope:
    sequence, event_id, at, body = row
    try:
        when = read_instant(at)
    except ValueError:
        when = _instant(at, f"event {sequence} of run {run_id!r}")  # raises, and names it
    return Envelope(run_id, sequence, event_id, when, decode_event(body, run_id, sequence))


def _instant(text: str, where: str) -> datetime:
    try:
        return read_instant(text)
    except ValueError as error:
        raise CorruptHistory(
            f"the instant of {where} can't be read ({error}); it was left as it is"
        ) from error


def _storable(text: str) -> str:
    """Text that UTF-8 can hold."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
