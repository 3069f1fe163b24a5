"""The tables of a SQLite file: made once, in order, and never by a library that does not know them."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from supervisor.durable.errors import StoreError
from supervisor.durable.history import (
    FlowEvent,
    RunCancelled,
    RunCompleted,
    RunFailed,
    StepCancelled,
    StepCompleted,
    StepNonRetryable,
    StepRetrying,
    StepStarted,
    WaitCompleted,
)
from supervisor.durable.projection import Projection, Wakeup
from supervisor.durable.queues.sqlite import SqliteWorkQueue
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.stores.migrations import Applied, Migration, missing
from supervisor.durable.stores.migrations import sqlite as migrations
from supervisor.durable.stores.sqlite import SqliteEventStore
from supervisor.durable.stores.sqlite_registry import open_database
from tests.durable.making import AT, begin, cancellation, later, step, wait
from tests.programs import ROOT

NAMES = ["events", "failures", "wakeups", "queue", "tests-not-lists"]
TWICE = RetryPolicy.fixed(3, 5.0)
ATONCE = RetryPolicy.fixed(3, 0.0)

# What may stand in a file, with and without something due.
HISTORIES: dict[str, list[FlowEvent]] = {
    "waits": [wait("w", 5), wait("v", 3)],
    "has-waited": [wait("w", 5), WaitCompleted("w")],
    "waits-for-one-of-two": [wait("w", 5), wait("v", 3), WaitCompleted("v")],
    "retries": [*step("s", TWICE), StepRetrying("s", 1, "no", later(7))],
    "retries-at-once": [*step("s", ATONCE), StepRetrying("s", 1, "no", None)],
    "has-retried": [*step("s", TWICE), StepRetrying("s", 1, "no", later(7)), StepStarted("s", 2)],
    "retries-again": [
        *step("s", TWICE),
        StepRetrying("s", 1, "no", later(7)),
        StepStarted("s", 2),
        StepRetrying("s", 2, "no", later(9)),
    ],
    "was-retried": [
        *step("s", TWICE),
        StepRetrying("s", 1, "no", later(7)),
        StepStarted("s", 2),
        StepCompleted("s", 1),
    ],
    "gave-a-delayed-step-up": [
        *step("s", TWICE),
        StepRetrying("s", 1, "no", later(7)),
        StepCancelled("s", 1, "why"),
    ],
    "same-id-twice": [
        wait("x", 4),
        *step("x", TWICE),
        StepRetrying("x", 1, "no", later(6)),
        WaitCompleted("x"),
    ],
    "cancelling": [wait("w", 5), *step("s", TWICE), StepRetrying("s", 1, "no", later(7)), cancellation()],
    "cleans-up": [wait("w", 5), cancellation(), wait("after", 9)],
    "cancelled": [wait("w", 5), cancellation(), wait("after", 9), RunCancelled()],
    "completed": [wait("w", 5), RunCompleted(1)],
    "failed": [wait("w", 5), *step("s"), StepNonRetryable("s", 1, "no"), RunFailed("no")],
    "unusual-ids": [wait('q"\\ü\n🜲', 5), wait("%_'--", 6)],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flows.db"


def wakeups(store: SqliteEventStore) -> list[Wakeup]:
    """What is due one day according to the histories themselves."""
    found = [each for id in store.list_run_ids() for each in Projection.of(id, store.read(id)).wakeups()]
    return sorted(found, key=lambda each: each.order)


def run_sql(path: Path, *statements: str) -> list[Any]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return [connection.execute(each).fetchall() for each in statements]


# -- the list ----------------------------------------------------------------------------------


def test_an_empty_file_is_migrated_in_order_and_once(path: Path) -> None:
    database = open_database(path)
    assert [(each.n, each.name, each.applied_at) for each in migrations.status(database)] == [
        (number, name, None) for number, name in enumerate(NAMES, 1)
    ]
    assert migrations.migrate(database) == NAMES
    assert migrations.migrate(database) == []
    assert all(each.applied_at is not None for each in migrations.status(database))
    database.close()
    store = SqliteEventStore(path)
    assert store.migrate() == []
    store.close()


def test_released_migrations_never_change() -> None:
    """If this fails, a released migration was edited: take that back, and add another one."""
    assert {each.name: each.checksum[:16] for each in migrations.MIGRATIONS} == CHECKSUMS


CHECKSUMS = {
    "events": "665ced784034ba88",
    "failures": "f7461d52d6a47e3c",
    "wakeups": "d6fc4b74ea1e504a",
    "queue": "cc1a56825ebd1095",
    "tests-not-lists": "4974495962394247",
}


def test_the_sql_for_people_makes_the_same_tables(path: Path, tmp_path: Path) -> None:
    SqliteEventStore(path).close()
    by_hand = tmp_path / "by-hand.db"
    with closing(sqlite3.connect(by_hand)) as connection:
        connection.executescript(migrations.sql())
    schema = "SELECT type, name, tbl_name FROM sqlite_master ORDER BY 1, 2"
    rows = "SELECT n, name, checksum FROM supervisor_migrations ORDER BY n"
    assert run_sql(by_hand, schema, rows) == run_sql(path, schema, rows)
    store = SqliteEventStore(by_hand, migrate=False)
    begin(store, "r", [wait("w", 5)])
    assert store.next_scheduled_wakeup() == later(5)
    store.close()


def test_layout_does_not_count_in_a_checksum() -> None:
    one = Migration("a", ("CREATE TABLE t (\n    a INT\n)", "SELECT 1"))
    assert one.checksum == Migration("a", ("  CREATE TABLE t (\n a INT\n\n)", "SELECT 1")).checksum
    assert one.checksum != Migration("b", one.statements).checksum
    assert one.checksum != Migration("a", ("CREATE TABLE t (\n    b INT\n)", "SELECT 1")).checksum


def test_a_list_with_a_hole_is_refused() -> None:
    known = migrations.MIGRATIONS
    rows = [Applied(n, known[n - 1].name, known[n - 1].checksum, AT) for n in (1, 3)]
    with pytest.raises(StoreError, match="'f' lacks migration 2, and has later ones"):
        missing(known, rows, "'f'")


# -- what is refused ---------------------------------------------------------------------------


def test_a_newer_file_is_refused_and_left_as_it_is(path: Path) -> None:
    SqliteEventStore(path).close()
    run_sql(
        path, "INSERT INTO supervisor_migrations VALUES (6, 'later', 'abc', '2030-01-01T00:00:00.000000Z')"
    )
    before = path.read_bytes()
    for kind in (SqliteEventStore, SqliteWorkQueue):
        with pytest.raises(
            StoreError, match=r"newer version .* migration 6 'later', and this version knows 5; update"
        ):
            kind(path)
    assert path.read_bytes() == before


def test_a_file_that_was_made_in_another_way_is_refused(path: Path) -> None:
    SqliteEventStore(path).close()
    run_sql(path, "UPDATE supervisor_migrations SET checksum = 'abcdef' WHERE n = 2")
    with pytest.raises(
        StoreError, match="made in another way: migration 2 'failures' has the checksum abcdef"
    ):
        SqliteEventStore(path)


def test_without_leave_to_migrate_nothing_is_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="there is no SQLite file"):
        SqliteEventStore(path, migrate=False)
    assert not path.exists()
    with monkeypatch.context() as older:
        older.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:2])
        SqliteEventStore(path).close()
    with pytest.raises(
        StoreError,
        match="lacks the migrations 'wakeups', 'queue', 'tests-not-lists'; open it once with migrate=True",
    ):
        SqliteEventStore(path, migrate=False)
    SqliteEventStore(path).close()
    SqliteEventStore(path, migrate=False).close()


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Migration("bad", ("CREATE TABLE half (a INT)", "CREATE TABLE flow_events (a INT)"))
    with monkeypatch.context() as newer:
        newer.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, bad))
        with pytest.raises(StoreError, match="table flow_events already exists"):
            SqliteEventStore(path)
    assert run_sql(path, "SELECT name FROM sqlite_master") == [[]]
    SqliteEventStore(path).close()


def test_a_table_that_is_there_and_not_recorded_is_refused_with_a_cure(path: Path) -> None:
    run_sql(path, "CREATE TABLE flow_events (a INT)")
    with pytest.raises(
        StoreError, match=r"table flow_events already exists; .* give the path of another file"
    ):
        SqliteEventStore(path)
    assert run_sql(path, "SELECT name FROM sqlite_master") == [[("flow_events",)]]


# -- races -------------------------------------------------------------------------------------

RACER = """
import sys
from supervisor.durable.stores.migrations import sqlite
from supervisor.durable.stores.sqlite_registry import open_database
print("ready", flush=True)
sys.stdin.readline()
database = open_database(sys.argv[1])
print(sqlite.migrate(database))
database.close()
"""


def test_of_eight_processes_that_migrate_at_once_one_does(path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(path)],
            env={"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    for each in racers:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in racers:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    said = [each.communicate(timeout=40) for each in racers]
    assert sorted(out for out, _ in said) == [f"{NAMES!r}\n"] + ["[]\n"] * 7, said


# -- wakeups -----------------------------------------------------------------------------------


def test_triggers_keep_the_wakeups_that_the_histories_say(path: Path) -> None:
    store = SqliteEventStore(path)
    for run_id, events in HISTORIES.items():
        begin(store, run_id)
        for number, event in enumerate(events):  # one by one, so that each trigger finds what others left
            store.append(run_id, 2 + number, [event], AT)
            assert [each for each in store.list_due_wakeups(later(99)) if each.run_id == run_id] == [
                each for each in wakeups(store) if each.run_id == run_id
            ]
    assert store.list_due_wakeups(later(99)) == wakeups(store)
    assert len(wakeups(store)) == 9
    store.close()


def test_old_rows_are_filled_in_and_followed_from_then_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:2])
        store = SqliteEventStore(path)
        for run_id, events in HISTORIES.items():
            begin(store, run_id, events)
        store.close()
    store = SqliteEventStore(path)
    assert store.list_due_wakeups(later(99)) == wakeups(store)
    assert len(wakeups(store)) == 9
    store.append("waits", 4, [WaitCompleted("w")], later(5))
    assert store.list_due_wakeups(later(99)) == wakeups(store)
    assert len(wakeups(store)) == 8
    store.close()


def test_rows_that_another_program_writes_are_followed_too(path: Path) -> None:
    store = SqliteEventStore(path)
    begin(store, "r")
    body = '{"type":"wait_created","wait_id":"w","resume_at":"2026-01-31T12:00:05.123456Z"}'
    run_sql(
        path,
        f"INSERT INTO flow_events VALUES ('r', 3, 'x', '2026-01-31T12:00:00.000000Z', 'wait_created', '{body}')",
    )
    assert store.list_due_wakeups(later(5)) == [Wakeup("wait", "r", "w", later(5))]
    store.close()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT kind, run_id, subject_id, due_at FROM flow_wakeups WHERE due_at <= ? "
        "ORDER BY due_at, run_id, subject_id, kind LIMIT ?",
        "SELECT due_at FROM flow_wakeups WHERE due_at > ? ORDER BY due_at LIMIT 1",
    ],
)
def test_what_is_due_is_found_by_an_index_in_order(path: Path, query: str) -> None:
    store = SqliteEventStore(path)
    database = open_database(path)
    plan = database.rows(f"EXPLAIN QUERY PLAN {query}", ["x"] * query.count("?"))
    assert [detail for *_, detail in plan] == [
        f"SEARCH flow_wakeups USING COVERING INDEX flow_wakeups_by_time (due_at{'<' if '<' in query else '>'}?)"
    ]
    database.close()
    store.close()
