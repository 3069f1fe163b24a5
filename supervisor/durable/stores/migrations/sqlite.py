"""The tables of a SQLite file, and what makes them.

Instants are text of one width in UTC (`2026-01-31T12:00:00.000000Z`), so that the order of the texts is the order
in time. Wakeups are kept by triggers: so they are right whoever writes events.
"""

from __future__ import annotations

import sqlite3

from supervisor.durable.errors import StoreError
from supervisor.durable.instants import read_instant, written
from supervisor.durable.stores.migrations import Applied, Migration, Step, missing, script, steps
from supervisor.durable.stores.sqlite_file import Database
from supervisor.kernel.clock import SYSTEM_CLOCK

__all__ = ["MIGRATIONS", "migrate", "sql", "status", "verify"]

_TABLE = """CREATE TABLE IF NOT EXISTS supervisor_migrations (
    n INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    checksum TEXT NOT NULL,
    applied_at TEXT NOT NULL
)"""

_EVENTS = Migration(
    "events",
    (
        """CREATE TABLE flow_events (
            run_id TEXT NOT NULL,
            sequence INTEGER NOT NULL CHECK (sequence >= 1),
            event_id TEXT NOT NULL,
            at TEXT NOT NULL,
            type TEXT NOT NULL,
            body TEXT NOT NULL,
            PRIMARY KEY (run_id, sequence)
        ) WITHOUT ROWID""",
        # number: the order of creation.  updated_at: of the latest change of the status.
        """CREATE TABLE flow_runs (
            number INTEGER PRIMARY KEY,
            run_id TEXT NOT NULL UNIQUE,
            workflow TEXT NOT NULL,
            version TEXT NOT NULL,
            status TEXT NOT NULL,
            created_at TEXT NOT NULL,
            updated_at TEXT NOT NULL
        )""",
        "CREATE INDEX flow_runs_by_status ON flow_runs (status, run_id)",
    ),
)

_FAILURES = Migration(
    "failures",
    (
        """CREATE TABLE flow_failures (
            number INTEGER PRIMARY KEY,
            run_id TEXT NOT NULL UNIQUE,
            reason TEXT NOT NULL,
            at TEXT NOT NULL
        )""",
    ),
)

# A run that ends has nothing due any more; one that is asked to end neither, but may wait again while it cleans up.
_ENDS = "run_completed", "run_failed", "run_retry_exhausted", "run_cancelled", "run_cancellation_requested"
_NOTHING_DUE = ", ".join(f"'{each}'" for each in _ENDS)
# A step that is started, or given up, does not wait for its next attempt.
_NOT_DELAYED = "'step_started', 'step_cancelled'"

_WAKEUPS = Migration(
    "wakeups",
    (
        """CREATE TABLE flow_wakeups (
            run_id TEXT NOT NULL,
            kind TEXT NOT NULL CHECK (kind IN ('wait', 'retry')),
            subject_id TEXT NOT NULL,
            due_at TEXT NOT NULL,
            PRIMARY KEY (run_id, kind, subject_id)
        ) WITHOUT ROWID""",
        "CREATE INDEX flow_wakeups_by_time ON flow_wakeups (due_at, run_id, subject_id, kind)",
        """CREATE TRIGGER flow_wait_created AFTER INSERT ON flow_events WHEN NEW.type = 'wait_created'
        BEGIN
            INSERT OR REPLACE INTO flow_wakeups (run_id, kind, subject_id, due_at) VALUES (
                NEW.run_id, 'wait', json_extract(NEW.body, '$.wait_id'), json_extract(NEW.body, '$.resume_at')
            );
        END""",
        """CREATE TRIGGER flow_wait_completed AFTER INSERT ON flow_events WHEN NEW.type = 'wait_completed'
        BEGIN
            DELETE FROM flow_wakeups WHERE run_id = NEW.run_id AND kind = 'wait'
            AND subject_id = json_extract(NEW.body, '$.wait_id');
        END""",
        """CREATE TRIGGER flow_step_retrying AFTER INSERT ON flow_events WHEN NEW.type = 'step_retrying'
        BEGIN
            INSERT OR REPLACE INTO flow_wakeups (run_id, kind, subject_id, due_at)
            SELECT NEW.run_id, 'retry', json_extract(NEW.body, '$.step_id'), json_extract(NEW.body, '$.retry_after')
            WHERE json_extract(NEW.body, '$.retry_after') IS NOT NULL;
        END""",
        # The first attempt of a step has no delay before it; it is by far the most frequent event.
        f"""CREATE TRIGGER flow_step_not_delayed AFTER INSERT ON flow_events
        WHEN NEW.type IN ({_NOT_DELAYED})
        AND NOT (NEW.type = 'step_started' AND json_extract(NEW.body, '$.attempt') = 1)
        BEGIN
            DELETE FROM flow_wakeups WHERE run_id = NEW.run_id AND kind = 'retry'
            AND subject_id = json_extract(NEW.body, '$.step_id');
        END""",
        f"""CREATE TRIGGER flow_nothing_due AFTER INSERT ON flow_events WHEN NEW.type IN ({_NOTHING_DUE})
        BEGIN
            DELETE FROM flow_wakeups WHERE run_id = NEW.run_id;
        END""",
        # What was written before there were triggers.
        f"""INSERT OR REPLACE INTO flow_wakeups (run_id, kind, subject_id, due_at)
        SELECT run_id, 'wait', json_extract(body, '$.wait_id'), json_extract(body, '$.resume_at')
        FROM flow_events AS made
        WHERE type = 'wait_created' AND NOT EXISTS (
            SELECT 1 FROM flow_events AS ended
            WHERE ended.run_id = made.run_id AND ended.sequence > made.sequence AND (
                ended.type IN ({_NOTHING_DUE}) OR CASE WHEN ended.type = 'wait_completed'
                THEN json_extract(ended.body, '$.wait_id') = json_extract(made.body, '$.wait_id') END
            )
        )""",
        f"""INSERT OR REPLACE INTO flow_wakeups (run_id, kind, subject_id, due_at)
        SELECT run_id, 'retry', json_extract(body, '$.step_id'), json_extract(body, '$.retry_after')
        FROM flow_events AS made
        WHERE type = 'step_retrying' AND json_extract(body, '$.retry_after') IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM flow_events AS ended
            WHERE ended.run_id = made.run_id AND ended.sequence > made.sequence AND (
                ended.type IN ({_NOTHING_DUE}) OR CASE WHEN ended.type IN ({_NOT_DELAYED})
                THEN json_extract(ended.body, '$.step_id') = json_extract(made.body, '$.step_id') END
            )
        )""",
    ),
)

_QUEUE = Migration(
    "queue",
    (
        # id: the place in line, and never used again.  token: of the lease; in line while it is null.
        """CREATE TABLE flow_tasks (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            run_id TEXT NOT NULL UNIQUE,
            failures INTEGER NOT NULL DEFAULT 0,
            not_before TEXT,
            token TEXT,
            seconds REAL,
            expires_at TEXT,
            again INTEGER NOT NULL DEFAULT 0
        )""",
        "CREATE INDEX flow_tasks_leased ON flow_tasks (expires_at) WHERE token IS NOT NULL",
        "CREATE INDEX flow_tasks_delayed ON flow_tasks (not_before) WHERE not_before IS NOT NULL",
        """CREATE TABLE flow_dead_letters (
            number INTEGER PRIMARY KEY,
            id INTEGER NOT NULL UNIQUE,
            run_id TEXT NOT NULL,
            reason TEXT NOT NULL,
            at TEXT NOT NULL
        )""",
    ),
)

# For `IN` with more than two names SQLite builds a table at each row that is inserted, a fifth of what the row costs;
# a chain of tests is for nothing.
_TESTS = Migration(
    "tests-not-lists",
    (
        "DROP TRIGGER flow_nothing_due",
        f"""CREATE TRIGGER flow_nothing_due AFTER INSERT ON flow_events
        WHEN {" OR ".join(f"NEW.type = '{each}'" for each in _ENDS)}
        BEGIN
            DELETE FROM flow_wakeups WHERE run_id = NEW.run_id;
        END""",
    ),
)

MIGRATIONS = (_EVENTS, _FAILURES, _WAKEUPS, _QUEUE, _TESTS)


def migrate(database: Database) -> list[str]:
    """Apply what is missing, in one transaction; return the names of what was applied.

    Any number of processes may do this at once: one applies, the others find nothing to do.
    Raises StoreError for a database that is newer, or was made in another way.
    """
    if not missing(MIGRATIONS, _applied(database), repr(database.path)):
        return []  # the usual case, and it needs no lock
    return database.write(lambda writer: _apply(writer, database.path))


def verify(database: Database) -> None:
    """Raise StoreError if `migrate` would have anything to do, or would refuse."""
    left = missing(MIGRATIONS, _applied(database), repr(database.path))
    if left:
        raise StoreError(
            f"{database.path!r} lacks the migrations {', '.join(repr(each.name) for _, each in left)}; open it once "
            "with migrate=True"
        )


def status(database: Database) -> list[Step]:
    """Return every migration, and when it was applied."""
    return steps(MIGRATIONS, _applied(database))


def sql() -> str:
    """Return the SQL that makes all tables of an empty file."""
    return script(MIGRATIONS, _TABLE, "BEGIN IMMEDIATE", "strftime('%Y-%m-%dT%H:%M:%f000Z')")


_IS_THERE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'supervisor_migrations'"
_READ = "SELECT n, name, checksum, applied_at FROM supervisor_migrations ORDER BY n"


def _applied(database: Database) -> list[Applied]:
    if not database.rows(_IS_THERE):
        return []
    return [_row(*each) for each in database.rows(_READ)]


def _row(n: int, name: str, checksum: str, applied_at: str) -> Applied:
    return Applied(n, name, checksum, read_instant(applied_at))


def _apply(writer: sqlite3.Connection, path: str) -> list[str]:
    there = writer.execute(_IS_THERE).fetchone()
    applied = [_row(*each) for each in writer.execute(_READ)] if there else []
    left = missing(MIGRATIONS, applied, repr(path))
    if left:
        writer.execute(_TABLE)
    now = written(SYSTEM_CLOCK.now())
    for number, each in left:
        for statement in each.statements:
            writer.execute(statement)
        writer.execute(
            "INSERT INTO supervisor_migrations (n, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
            (number, each.name, each.checksum, now),
        )
    return [each.name for _, each in left]
