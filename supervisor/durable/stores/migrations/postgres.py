"""The tables in PostgreSQL, and how a database gets them.

Each migration is applied once, in order, by whoever comes first; `supervisor_migrations` says which
were, and with which text. A migration that was released is never edited: a new one is put behind it.
"""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import Final, NamedTuple

from supervisor.durable.errors import StoreError
from supervisor.durable.postgres import PostgresDatabase, Session

__all__ = [
    "MIGRATIONS",
    "Migration",
    "MigrationStatus",
    "bring_up",
    "migrate",
    "script",
    "status",
    "verify",
]


class Migration(NamedTuple):
    """One step, as a script."""

    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the script, in hex."""
        return sha256(self.sql.encode()).hexdigest()


class MigrationStatus(NamedTuple):
    """What a database says of one migration."""

    number: int  # from 1
    name: str
    applied_at: datetime | None  # UTC; None for one that is still to be applied


MIGRATIONS: Final = (
    Migration(
        "histories",
        """
CREATE TABLE flow_runs (
    run_id text COLLATE "C" PRIMARY KEY,
    workflow text COLLATE "C" NOT NULL,
    version text COLLATE "C" NOT NULL,
    status text NOT NULL,
    sequence integer NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    place bigint GENERATED ALWAYS AS IDENTITY
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX flow_runs_by_age ON flow_runs (place);
CREATE TABLE flow_events (
    run_id text COLLATE "C" NOT NULL,
    sequence integer NOT NULL CHECK (sequence >= 1),
    event_id text NOT NULL,
    at timestamptz NOT NULL,
    type text NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (run_id, sequence)
);
CREATE TABLE flow_failures (
    run_id text COLLATE "C" PRIMARY KEY,
    reason text NOT NULL,
    at timestamptz NOT NULL,
    place bigint GENERATED ALWAYS AS IDENTITY
);
""",
    ),
    Migration(
        "wakeups",
        r"""
LOCK TABLE flow_events IN SHARE ROW EXCLUSIVE MODE;
CREATE TABLE flow_wakeups (
    run_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL CHECK (kind IN ('wait', 'retry')),
    subject_id text COLLATE "C" NOT NULL,
    due_at timestamptz NOT NULL,
    PRIMARY KEY (run_id, kind, subject_id)
);
CREATE INDEX flow_wakeups_by_time ON flow_wakeups (due_at, run_id, subject_id, kind);
-- One field of an event. json can't give out what holds a NUL, so the library's NUL_SIGN stands for it.
CREATE FUNCTION flow_event_field(body text, field text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF position('\u0000' IN body) > 0 THEN
        body := regexp_replace(body, '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufdd0', 'g');
    END IF;
    RETURN body::json ->> field;
END $$;
CREATE FUNCTION flow_keep_wakeups(run text, kind_of_event text, body text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    CASE kind_of_event
        WHEN 'wait_created' THEN
            INSERT INTO flow_wakeups (run_id, kind, subject_id, due_at)
            VALUES (run, 'wait', flow_event_field(body, 'wait_id'), flow_event_field(body, 'resume_at')::timestamptz)
            ON CONFLICT (run_id, kind, subject_id) DO UPDATE SET due_at = excluded.due_at;
        WHEN 'wait_completed' THEN
            DELETE FROM flow_wakeups
            WHERE run_id = run AND kind = 'wait' AND subject_id = flow_event_field(body, 'wait_id');
        WHEN 'step_retrying' THEN
            INSERT INTO flow_wakeups (run_id, kind, subject_id, due_at)
            SELECT run, 'retry', flow_event_field(body, 'step_id'), flow_event_field(body, 'retry_after')::timestamptz
            WHERE flow_event_field(body, 'retry_after') IS NOT NULL
            ON CONFLICT (run_id, kind, subject_id) DO UPDATE SET due_at = excluded.due_at;
        WHEN 'step_started', 'step_cancelled' THEN
            DELETE FROM flow_wakeups
            WHERE run_id = run AND kind = 'retry' AND subject_id = flow_event_field(body, 'step_id');
        WHEN 'run_cancellation_requested', 'run_completed', 'run_failed', 'run_retry_exhausted', 'run_cancelled' THEN
            DELETE FROM flow_wakeups WHERE run_id = run;
        ELSE NULL;
    END CASE;
END $$;
CREATE FUNCTION flow_event_came() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM flow_keep_wakeups(NEW.run_id, NEW.type, NEW.body);
    RETURN NULL;
END $$;
CREATE TRIGGER flow_event_came AFTER INSERT ON flow_events FOR EACH ROW
WHEN (NEW.type IN (
    'wait_created', 'wait_completed', 'step_retrying', 'step_started', 'step_cancelled',
    'run_cancellation_requested', 'run_completed', 'run_failed', 'run_retry_exhausted', 'run_cancelled'
)) EXECUTE FUNCTION flow_event_came();
DO $$
DECLARE
    each record;
BEGIN
    FOR each IN SELECT run_id, type, body FROM flow_events ORDER BY run_id, sequence LOOP
        PERFORM flow_keep_wakeups(each.run_id, each.type, each.body);
    END LOOP;
END $$;
""",
    ),
    Migration(
        "queue",
        """
CREATE TABLE flow_tasks (
    id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    run_id text COLLATE "C" NOT NULL UNIQUE,
    due_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    failures integer NOT NULL DEFAULT 0,
    again boolean NOT NULL DEFAULT false,
    token text,
    seconds double precision NOT NULL DEFAULT 0,
    expires_at timestamptz
);
CREATE INDEX flow_tasks_in_line ON flow_tasks (id) WHERE token IS NULL;
CREATE INDEX flow_tasks_by_time ON flow_tasks (due_at) WHERE token IS NULL;
CREATE INDEX flow_tasks_leased ON flow_tasks (expires_at) WHERE token IS NOT NULL;
CREATE TABLE flow_dead_letters (
    id bigint PRIMARY KEY,
    run_id text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    at timestamptz NOT NULL,
    place bigint GENERATED ALWAYS AS IDENTITY
);
""",
    ),
)

_TABLE = """
CREATE TABLE IF NOT EXISTS supervisor_migrations (
    n integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('supervisor_migrations'))"
_NO_LIMITS = "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0;"


class _Applied(NamedTuple):
    name: str
    checksum: str
    at: datetime


def migrate(dsn: str) -> list[str]:
    """Apply what a database lacks and return the names. Any number of processes may do it at once.

    Raises StoreError if PostgreSQL refuses, or if the database is newer than this library.
    """
    database = PostgresDatabase(dsn, size=1)
    try:
        return database.run("apply migrations", bring_up, patience=0.0)
    finally:
        database.close()


def status(dsn: str) -> list[MigrationStatus]:
    """Return what a database has and lacks. Needs no right to change anything."""
    database = PostgresDatabase(dsn, size=1)
    try:
        return database.run("read its migrations", _status, patience=0.0)
    finally:
        database.close()


def script(after: int = 0) -> str:
    """Return the SQL as one transaction, for those who apply it with other tools.

    after: how many migrations the database has, see `status`.
    """
    steps = [
        f"-- {number}: {each.name}{each.sql}INSERT INTO supervisor_migrations (n, name, checksum) "
        f"VALUES ({number}, '{each.name}', '{each.checksum}');\n"
        for number, each in enumerate(MIGRATIONS[after:], after + 1)
    ]
    return f"BEGIN;\n{_NO_LIMITS}\n{_LOCK};{_TABLE}{''.join(steps)}COMMIT;\n"


def bring_up(session: Session, again: bool = False) -> list[str]:
    """Apply what the database lacks; return the names. Nothing is locked or written if it lacks nothing.

    again: a try before may have been committed; it does not matter.
    """
    applied = _checked(session)
    if len(applied) == len(MIGRATIONS):
        return []
    with session.transaction():
        session.execute(_NO_LIMITS)
        session.execute(_LOCK)
        session.execute(_TABLE)
        applied = _checked(session)  # another process may have been here first
        for number, each in enumerate(MIGRATIONS[len(applied) :], len(applied) + 1):
            session.execute(each.sql.encode())
            session.execute(
                "INSERT INTO supervisor_migrations (n, name, checksum) VALUES (%s, %s, %s)",
                (number, each.name, each.checksum),
            )
    return [each.name for each in MIGRATIONS[len(applied) :]]


def verify(session: Session, again: bool = False) -> None:
    """Raise StoreError if the database is not exactly as this library needs it."""
    missing = [each.name for each in MIGRATIONS[len(_checked(session)) :]]
    if missing:
        raise StoreError(
            f"database {_name(session)} lacks {len(missing)} of {len(MIGRATIONS)} migrations "
            f"({', '.join(missing)}); let a role that may create tables run "
            "supervisor.durable.stores.migrations.postgres.migrate(dsn), or apply the SQL of script()"
        )


def _status(session: Session, again: bool) -> list[MigrationStatus]:
    applied = _checked(session)
    return [
        MigrationStatus(number, each.name, applied[number - 1].at if number <= len(applied) else None)
        for number, each in enumerate(MIGRATIONS, 1)
    ]


def _checked(session: Session) -> list[_Applied]:
    """Return what was applied. Raises StoreError if it is not the beginning of our list."""
    row = session.execute(
        "SELECT to_regclass('supervisor_migrations') IS NOT NULL, current_setting('server_encoding')"
    ).fetchone()
    exists, encoding = row or (False, "")
    if encoding != "UTF8":
        raise StoreError(f"database {_name(session)} is encoded in {encoding}; use one that is in UTF8")
    if not exists:
        return []
    rows = session.execute(
        "SELECT n, name, checksum, applied_at FROM supervisor_migrations ORDER BY n"
    ).fetchall()
    applied = [_Applied(*values) for _, *values in rows]
    if [number for number, *_ in rows] != list(range(1, len(rows) + 1)):
        raise StoreError(
            f"database {_name(session)} lacks a migration before one that it has; restore the table"
        )
    for number, (found, ours) in enumerate(zip(applied, MIGRATIONS, strict=False), 1):
        if (found.name, found.checksum) != (ours.name, ours.checksum):
            raise StoreError(
                f"migration {number} of database {_name(session)} is {found.name!r} with another text than "
                f"{ours.name!r} of this library; it was edited, or made by a program that is not ours"
            )
    if len(applied) > len(MIGRATIONS):
        raise StoreError(
            f"database {_name(session)} has {len(applied)} migrations and this library knows {len(MIGRATIONS)}; "
            "a newer version made it, update this one"
        )
    return applied


def _name(session: Session) -> str:
    return repr(session.info.dbname)
