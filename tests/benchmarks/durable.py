"""Durable workflows per second, beside DBOS, procrastinate and the bare commits they need, at equal durability.

A workflow is five steps that do nothing. Every case runs in a process of its own, on a database of its own, on
a real disk; each says how durable its commits were, and a case that cheats ends the benchmark. On SQLite that is
a write-ahead log with synchronous=FULL, on PostgreSQL a server of our own with fsync and synchronous_commit on.
Set TMPDIR to a folder on the disk to measure.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.benchmarks.measure import Figure, Goal, Samples, Spread, in_turn
from tests.postgres_server import PostgresServer

ROOT = Path(__file__).resolve().parents[2]
OURS, DBOS, BARE, BARE_ROWS = "ours", "DBOS", "bare: 6 commits, 18 rows", "bare: 7 commits of a row"
PROCRASTINATE = "procrastinate, jobs without steps"
KINDS = {OURS: "ours", DBOS: "dbos", BARE: "bare", BARE_ROWS: "bare-rows"}
QUEUED = {OURS: "ours-queue", DBOS: "dbos-queue", PROCRASTINATE: "procrastinate"}
DURABLE = {
    "SQLite": {"journal_mode": "wal", "synchronous": "full"},
    "PostgreSQL": {"fsync": "on", "synchronous_commit": "on"},
}
# workflows in one round: in a full run, and in a quick one
COUNTS = {
    "ours": (400, 30), "dbos": (100, 8), "bare": (600, 50), "bare-rows": (600, 50),
    "ours-queue": (400, 30), "dbos-queue": (40, 3), "procrastinate": (300, 30),
}  # fmt: skip
MANY = 8  # threads
Fresh = Callable[[], Any]  # a context manager that gives a new database and takes it away


@contextmanager
def sqlite_file() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="threadvisor-bench-")
    try:
        yield f"{folder}/file.db"
    finally:
        shutil.rmtree(folder)


@contextmanager
def postgres_database(server: PostgresServer) -> Iterator[str]:
    import psycopg

    name = f"bench_{uuid4().hex[:12]}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield server.dsn.replace("dbname=postgres", f"dbname={name}")
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def rate(kind: str, fresh: Fresh, durable: dict[str, str], count: int, threads: int) -> float:
    """Run one case in a process of its own; return workflows per second."""
    with fresh() as database:
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.durable_cases", kind, database, str(count), str(threads)],
            cwd=ROOT, check=False, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"case {kind!r} failed:\n{done.stderr}")
    found = json.loads(done.stdout)
    measured: float = found.pop("rate")
    if found != durable:
        raise RuntimeError(f"case {kind!r} commits with {found}, not {durable}: nothing can be compared")
    return measured


def run(
    kinds: dict[str, str], fresh: Fresh, durable: dict[str, str], threads: int, rounds: int, quick: bool
) -> Samples:
    return in_turn(
        {
            case: lambda kind=kind: rate(kind, fresh, durable, COUNTS[kind][quick], threads)
            for case, kind in kinds.items()
        },
        rounds,
        warm=False,  # each process warms itself
    )


def driven(database: str, fresh: Fresh, threads: int, times: float, rounds: int, quick: bool) -> Figure:
    """Workflows that are started and driven by so many threads.  times: how often faster than DBOS we must be."""
    samples = run(KINDS, fresh, DURABLE[database], threads, rounds, quick)
    cost: dict[str, Spread] = {floor: samples.ratio(floor, OURS) for floor in (BARE, BARE_ROWS)}
    goals = [Goal(claim="workflows/s / DBOS", measured=samples.ratio(OURS, DBOS), limit=times, at_least=True)]
    notes = [f"time / that of {BARE_ROWS[6:]}: {cost[BARE_ROWS]}"]
    if threads == 1:
        goals.append(Goal(claim="time / that of the bare commits", measured=cost[BARE], limit=1.5))
    else:
        notes.insert(0, f"time / that of {BARE[6:]}: {cost[BARE]}")
    return Figure(
        title=f"Durable: workflows of 5 steps, {database}, {threads} thread{'s' * (threads > 1)}",
        unit="workflows/s",
        reference=DBOS,
        rows=samples.rows(DBOS),
        goals=goals,
        notes=notes,
    )


def queued(database: str, fresh: Fresh, rounds: int, quick: bool) -> Figure:
    """Workflows that are queued, and driven by eight workers of the same process."""
    kinds = {c: k for c, k in QUEUED.items() if database == "PostgreSQL" or c != PROCRASTINATE}
    samples = run(kinds, fresh, DURABLE[database], MANY, rounds, quick)
    return Figure(
        title=f"Durable: through the queue, {database}, {MANY} workers",
        unit="workflows/s, first submit to last result",
        reference=DBOS,
        rows=samples.rows(DBOS),
        goals=[],
    )


def measure(*, quick: bool) -> Iterator[Figure]:
    rounds = 1 if quick else 7
    yield driven("SQLite", sqlite_file, 1, 5.0, rounds, quick)
    yield driven("SQLite", sqlite_file, MANY, 10.0, rounds, quick)
    yield queued("SQLite", sqlite_file, rounds, quick)
    server = PostgresServer(durable=True)
    try:

        def fresh() -> Any:
            return postgres_database(server)

        yield driven("PostgreSQL", fresh, 1, 5.0, rounds, quick)
        yield driven("PostgreSQL", fresh, MANY, 5.0, rounds, quick)
        yield queued("PostgreSQL", fresh, rounds, quick)
    finally:
        server.remove()
