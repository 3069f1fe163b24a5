"""The SQL in the documentation does what its first line says, on the tables as they are."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from supervisor.durable import FlowEngine, FlowEventStore, FlowRuntime, PostgresEventStore, SqliteEventStore
from supervisor.durable import WorkflowContext as Context
from supervisor.testing import VirtualClock
from tests.programs import ROOT

PAGE = (ROOT / "docs" / "how-to" / "durable-operating.md").read_text("utf-8")
SQL = dict(re.findall(r"(?ms)^```sql\n-- (.*?)\n(.*?)^```", PAGE))
TABLES = ["flow_runs", "flow_events", "flow_wakeups", "flow_failures", "flow_tasks", "flow_dead_letters"]
NOW = datetime.now(UTC)
LONG_AGO = NOW - timedelta(days=100)

Database = tuple[FlowEventStore, Callable[[str], list[tuple[object, ...]]]]
"""A store, and what runs SQL beside it and returns the rows of the last statement."""


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        with closing(SqliteEventStore(tmp_path / "flows.db")) as store:
            yield store, lambda text: _in_sqlite(tmp_path / "flows.db", text)
    else:
        dsn = request.getfixturevalue("pg_dsn")
        with closing(PostgresEventStore(dsn)) as postgres:
            yield postgres, lambda text: _in_postgres(dsn, text)


def _in_sqlite(path: Path, text: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        rows: list[tuple[object, ...]] = []
        for statement in filter(str.strip, text.split(";")):
            rows = file.execute(statement).fetchall()
        return rows


def _in_postgres(dsn: str, text: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True) as session:
        cursor = session.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


def flows_at(store: FlowEventStore, at: datetime) -> FlowEngine:
    """An engine for which it is some time."""
    flows, clock = FlowRuntime(), VirtualClock()
    clock.step_wall((at - clock.now()).total_seconds())

    @flows.step
    def fails() -> None:
        raise OSError("no")

    @flows.workflow(name="checkout")
    def waits(ctx: Context, signal: bool) -> None:
        if signal:
            ctx.wait_signal("packed", "packed")
        ctx.sleep("pause", 3600)

    @flows.workflow
    def ends(ctx: Context) -> None:
        return None

    @flows.workflow
    def breaks(ctx: Context) -> None:
        ctx.step("fails", fails)

    return FlowEngine(flows, store, clock=clock)


@pytest.mark.parametrize("label", SQL)
def test_every_block_says_for_which_database_it_is(label: str) -> None:
    assert label.split(":")[0] in ("any", "sqlite", "postgresql")


def test_retention_deletes_what_ended_long_ago_with_all_that_belongs_to_it(database: Database) -> None:
    store, run = database
    before, now = flows_at(store, LONG_AGO), flows_at(store, NOW)
    before.start("ends", run_id="old")
    before.start("breaks", run_id="old-failed")
    before.start("checkout", True, run_id="old-cancelled")
    before.force_cancel("old-cancelled")
    before.start("checkout", False, run_id="old-open")
    before.mark("old-failed", "a person should look")
    before.queue.enqueue("old")
    now.start("ends", run_id="new")
    kind = "sqlite" if isinstance(store, SqliteEventStore) else "postgresql"

    run(SQL[f"{kind}: delete what ended more than 90 days ago"])

    assert store.list_run_ids() == ["new", "old-open"]
    left = {table: {row[0] for row in run(f"SELECT run_id FROM {table}")} for table in TABLES}
    assert left == {
        "flow_runs": {"new", "old-open"},
        "flow_events": {"new", "old-open"},
        "flow_wakeups": {"old-open"},
        "flow_failures": set(),
        "flow_tasks": set(),
        "flow_dead_letters": set(),
    }
    # The ids are free, also for an engine that knew the runs; and what is left goes on.
    assert before.snapshot(before.start("ends", run_id="old")).sequence == 3
    assert [each.run_id for each in store.list_due_wakeups(NOW)] == ["old-open"]


def test_retention_may_run_beside_a_program_that_goes_on(database: Database) -> None:
    store, run = database
    engine = flows_at(store, NOW)
    engine.start("checkout", True, run_id="open")
    kind = "sqlite" if isinstance(store, SqliteEventStore) else "postgresql"
    run(SQL[f"{kind}: delete what ended more than 90 days ago"])
    engine.signal("open", "packed")
    assert engine.snapshot("open").waits["packed"].status == "completed"


def test_the_counts_are_those_of_the_histories(database: Database) -> None:
    store, run = database
    engine = flows_at(store, NOW)
    engine.start("ends", run_id="a")
    engine.start("breaks", run_id="b")
    engine.start("checkout", True, run_id="c")
    by_version = SQL["any: how many runs of which workflow, version and status"]
    assert run(by_version) == [
        ("breaks", "1", "failed", 1),
        ("checkout", "1", "suspended", 1),
        ("ends", "1", "completed", 1),
    ]
    failures = SQL["any: the steps that failed most, by name of the run's workflow"]
    assert run(failures) == [("breaks", "step_retrying", 2), ("breaks", "step_failed", 1)]
    assert run(SQL["any: may version 1 of checkout go?"]) == [(1,)]
    engine.force_cancel("c")
    assert run(SQL["any: may version 1 of checkout go?"]) == [(0,)]


def test_the_grants_are_enough_to_run(pg_of_our_own: str) -> None:
    PostgresEventStore(pg_of_our_own).close()
    ((schema,),) = _in_postgres(pg_of_our_own, "SELECT current_schema()")
    role = f"shop_{schema}"
    _in_postgres(pg_of_our_own, f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}")
    try:
        _in_postgres(pg_of_our_own, SQL["postgresql: grants"].replace("TO shop", f"TO {role}"))
        limited = psycopg.conninfo.make_conninfo(pg_of_our_own, user=role)
        with closing(PostgresEventStore(limited, migrate=False)) as store:
            engine = flows_at(store, NOW)
            engine.start("breaks", run_id="a")
            engine.submit("checkout", False, run_id="b")
            engine.mark("a", "a person should look")
            lease = engine.queue.lease(30)
            assert lease is not None
            engine.queue.dead_letter(lease, "x")
            assert engine.queue.redrive(engine.queue.dead_letters()[0].id)
            engine.drive("b")
            assert [each.kind for each in engine.list_due_wakeups(NOW + timedelta(hours=2))] == ["wait"]
    finally:
        _in_postgres(pg_of_our_own, f"DROP OWNED BY {role}; DROP ROLE {role}")
