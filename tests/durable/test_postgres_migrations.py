"""How a PostgreSQL database gets its tables, and what keeps a program from using the wrong ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from supervisor.durable.errors import StoreError
from supervisor.durable.projection import Wakeup
from supervisor.durable.queues.postgres import PostgresWorkQueue
from supervisor.durable.stores.migrations import postgres as migrations
from supervisor.durable.stores.postgres import PostgresEventStore
from tests.durable.making import AT, begin, later
from tests.programs import ROOT

NAMES = ["histories", "wakeups", "queue"]


def execute(dsn: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as session:
        found = session.execute(query.encode(), values or None)
        return found.fetchall() if found.description else []


def test_an_empty_database_is_migrated_once(pg_dsn: str) -> None:
    assert [each.applied_at for each in migrations.status(pg_dsn)] == [None] * 3
    PostgresEventStore(pg_dsn).close()
    found = migrations.status(pg_dsn)
    assert [(each.n, each.name) for each in found] == list(enumerate(NAMES, 1))
    assert migrations.migrate(pg_dsn) == []
    assert migrations.status(pg_dsn) == found


def test_of_racing_processes_one_migrates(pg_dsn: str) -> None:
    program = f"""
from supervisor.durable.stores.migrations.postgres import migrate
input()
print(migrate({pg_dsn!r}))
"""
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        for _ in range(4)
    ]
    for each in racing:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    printed = sorted(each.communicate(timeout=30)[0].strip() for each in racing)
    assert printed == [str(NAMES), "[]", "[]", "[]"] or printed == ["[]", "[]", "[]", str(NAMES)]


def test_the_script_makes_what_migrate_makes(pg_dsn: str) -> None:
    execute(pg_dsn, migrations.sql())
    assert migrations.migrate(pg_dsn) == []
    store = PostgresEventStore(pg_dsn, migrate=False)
    begin(store, "r")
    store.close()


@pytest.mark.parametrize("open_it", [PostgresEventStore, PostgresWorkQueue])
def test_opening_without_migrating_says_what_to_run(pg_dsn: str, open_it: Callable[..., Any]) -> None:
    with pytest.raises(
        StoreError, match=r"lacks the migrations 'histories', 'wakeups', 'queue'; open it once"
    ):
        open_it(pg_dsn, migrate=False)
    assert execute(pg_dsn, "SELECT to_regclass('supervisor_migrations')") == [(None,)]


def test_a_role_that_may_not_create_tables_works_on_those_that_are_there(pg_of_our_own: str) -> None:
    ((schema,),) = execute(pg_of_our_own, "SELECT current_schema()")
    role = f"role_{schema}"
    limited = psycopg.conninfo.make_conninfo(pg_of_our_own, user=role)
    execute(pg_of_our_own, f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}")
    try:
        with pytest.raises(
            StoreError, match=r"could not open the store: permission denied .*; grant the role"
        ):
            PostgresEventStore(limited)
        migrations.migrate(pg_of_our_own)
        execute(
            pg_of_our_own,
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}; "
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {role}",
        )
        for migrate in (False, True):  # with nothing left to do, neither needs more
            store = PostgresEventStore(limited, migrate=migrate)
            begin(store, f"r{migrate}")
            store.close()
    finally:
        execute(pg_of_our_own, f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("migrate", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "UPDATE supervisor_migrations SET checksum = 'x' WHERE n = 2",
            "was made in another way: migration 2 'wakeups'",
        ),
        (
            "INSERT INTO supervisor_migrations VALUES (4, 'of tomorrow', 'x', now())",
            "was made by a newer version of this library: it has migration 4",
        ),
        ("DELETE FROM supervisor_migrations WHERE n = 1", "lacks migration 1, and has later ones"),
    ],
    ids=["edited", "newer", "gap"],
)
def test_a_database_of_another_library_is_refused(
    pg_dsn: str, change: str, message: str, migrate: bool
) -> None:
    migrations.migrate(pg_dsn)
    execute(pg_dsn, change)
    with pytest.raises(StoreError, match=message):
        PostgresEventStore(pg_dsn, migrate=migrate)


def test_a_database_in_another_encoding_is_refused(pg_of_our_own: str) -> None:
    name = "in_latin1"
    execute(pg_of_our_own, f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(StoreError, match="'in_latin1' is encoded in LATIN1; use one that is in UTF8"):
            PostgresEventStore(psycopg.conninfo.make_conninfo(pg_of_our_own, dbname=name))
    finally:
        execute(pg_of_our_own, f"DROP DATABASE {name}")


def test_what_was_due_before_the_table_of_wakeups_is_in_it(
    pg_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:1])
        migrations.migrate(pg_dsn)
    rows = [
        ("open", "wait_created", '"wait_id":"w","resume_at":"2026-01-31T12:00:01.000000Z"'),
        ("over", "wait_created", '"wait_id":"w","resume_at":"2026-01-31T12:00:01.000000Z"'),
        ("over", "wait_completed", '"wait_id":"w"'),
        ("canceled", "wait_created", '"wait_id":"w","resume_at":"2026-01-31T12:00:01.000000Z"'),
        ("canceled", "run_cancellation_requested", '"request":{}'),
        (
            "late",
            "step_retrying",
            '"step_id":"s","attempt":1,"error":"\\u0000","retry_after":"2026-01-31T12:00:02Z"',
        ),
        ("at-once", "step_retrying", '"step_id":"s","attempt":1,"error":"e"'),
        (
            "begun",
            "step_retrying",
            '"step_id":"s","attempt":1,"error":"e","retry_after":"2026-01-31T12:00:02Z"',
        ),
        ("begun", "step_started", '"step_id":"s","attempt":2'),
    ]
    for number, (run_id, label, fields) in enumerate(rows, 1):
        body = f'{{"type":"{label}",{fields}}}'
        insert = "INSERT INTO flow_events VALUES (%s, %s, %s, %s, %s, %s)"
        execute(pg_dsn, insert, run_id, number, f"e{number}", AT, label, body)
    store = PostgresEventStore(pg_dsn)
    due = store.list_due_wakeups(later(60.0))
    store.close()
    start = AT.replace(microsecond=0)
    assert due == [
        Wakeup("wait", "open", "w", start.replace(second=1)),
        Wakeup("retry", "late", "s", start.replace(second=2)),
    ]
