"""The cases of the figure `durable`, each in a process of its own on a database of its own.

    python -m tests.benchmarks.durable_cases CASE DATABASE COUNT THREADS

CASE: ours, ours-queue, dbos, dbos-queue, procrastinate, bare, bare-rows.  DATABASE: the path of a SQLite file
that is not there, or the dsn of an empty PostgreSQL database.  Prints one JSON object: `rate` is workflows (or
jobs) per second, the rest is how durable the commits were, as the database said when it was asked.

A workflow is five steps that return their argument. `bare` is what the library has to commit for one and
nothing else: as many commits with as many rows of the same width; `bare-rows` is one row for each of seven
commits, what a store would write that keeps the start, five results and the end apart.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

STEPS = 5
COMMITS = (4, 3, 3, 3, 3, 2)  # events in each commit of ours: see `same_commits`
ONE_BY_ONE = (1,) * (STEPS + 2)
Settings = dict[str, str]
Call = Callable[[int], object]
Row = tuple[str, int, str, str, str, str]

_TABLE = (
    "CREATE TABLE events (run_id TEXT NOT NULL, sequence INTEGER NOT NULL, event_id TEXT NOT NULL, at TEXT NOT NULL,"
    " type TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (run_id, sequence))"
)
_BODY = '{"type":"step_completed","step_id":"step-1","output":1}'
_SQLITE_SYNCHRONOUS = {0: "off", 1: "normal", 2: "full", 3: "extra"}


def is_dsn(database: str) -> bool:
    return "host=" in database


def each_of(call: Call, count: int, threads: int) -> float:
    """Return the seconds that so many calls take, made by so many threads."""
    numbers, lock = iter(range(count)), threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            call(number)

    began = time.perf_counter()
    if threads == 1:
        work()
    else:
        started = [threading.Thread(target=work) for _ in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    return time.perf_counter() - began


def warmed(call: Call, count: int, threads: int) -> float:
    """Return calls per second, once connections are open and the write-ahead log has grown."""
    each_of(call, max(count // 5, 2 * threads), threads)
    return count / each_of(call, count, threads)


# Ours


@contextmanager
def engine(database: str) -> Iterator[tuple[Any, Any]]:
    """Give an engine that knows the workflow `five`, and its store."""
    from supervisor.durable import FlowEngine, FlowRuntime, open_store

    flows = FlowRuntime()

    @flows.step
    def step(number: int) -> int:
        return number

    @flows.workflow
    def five(ctx: Any, number: int) -> int:
        for n in range(STEPS):
            ctx.step(f"step-{n}", step, n)
        return number

    store = open_store(f"postgresql://?{_as_query(database)}" if is_dsn(database) else f"sqlite:{database}")
    made = FlowEngine(flows, store)
    try:
        yield made, store
    finally:
        made.close()
        store.close()


def _as_query(dsn: str) -> str:
    from urllib.parse import quote

    pairs = (each.split("=", 1) for each in dsn.split())
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs)


def settings_of_ours(store: Any, database: str) -> Settings:
    """Ask the very connection that commits."""
    if not is_dsn(database):
        return store._database.write(_pragmas)
    return store._database.run("show", lambda session, again: _shown(lambda sql: session.execute(sql)))


def _pragmas(connection: sqlite3.Connection) -> Settings:
    (mode,), (level,) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("journal_mode", "synchronous")
    )
    return {"journal_mode": mode, "synchronous": _SQLITE_SYNCHRONOUS[level]}


def _shown(execute: Callable[[Any], Any]) -> Settings:
    return {name: execute(f"SHOW {name}").fetchone()[0] for name in ("fsync", "synchronous_commit")}


def same_commits(made: Any, store: Any) -> None:
    """Check that a workflow makes the commits that `bare` makes."""
    sizes: list[int] = []
    append = store.append

    def counted(run_id: str, expected: int, events: list[Any], at: Any) -> Any:
        sizes.append(len(events))
        return append(run_id, expected, events, at)

    store.append = counted
    made.start("five", 0)
    del store.append
    assert tuple(sizes) == COMMITS, sizes


def ours(database: str, count: int, threads: int) -> dict[str, Any]:
    with engine(database) as (made, store):
        same_commits(made, store)
        rate = warmed(lambda n: made.start("five", n), count, threads)
        return {"rate": rate, **settings_of_ours(store, database)}


def ours_queue(database: str, count: int, threads: int) -> dict[str, Any]:
    with engine(database) as (made, store), made.serve(workers=threads):
        for run_id in [made.submit("five", n) for n in range(2 * threads)]:
            made.result(run_id, timeout=60)
        began = time.perf_counter()
        for run_id in [made.submit("five", n) for n in range(count)]:
            made.result(run_id, timeout=60)
        rate = count / (time.perf_counter() - began)
        return {"rate": rate, **settings_of_ours(store, database)}


# DBOS


def _launched(database: str, threads: int) -> Any:
    from dbos import DBOS

    if is_dsn(database):
        parts = dict(each.split("=", 1) for each in database.split())
        url = f"postgresql://{parts['user']}@/{parts['dbname']}?host={parts['host']}"
    else:
        with sqlite3.connect(
            database
        ) as connection:  # stays with the file; DBOS itself leaves it at `delete`
            connection.execute("PRAGMA journal_mode=WAL")
        connection.close()
        url = f"sqlite:///{database}"
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "CRITICAL",
                 "max_executor_threads": threads})  # fmt: skip
    return DBOS


def _five(dbos: Any) -> Any:
    @dbos.step()
    def step(number: int) -> int:
        return number

    @dbos.workflow()
    def five(number: int) -> int:
        for n in range(STEPS):
            step(n)
        return number

    dbos.launch()
    return five


def settings_of_dbos(database: str) -> Settings:
    import sqlalchemy
    from dbos._dbos import _get_dbos_instance

    with _get_dbos_instance()._sys_db.engine.connect() as connection:
        if is_dsn(database):
            return _shown(lambda sql: connection.execute(sqlalchemy.text(sql)))
        return _pragmas(connection.connection.driver_connection)


def dbos(database: str, count: int, threads: int) -> dict[str, Any]:
    made = _launched(database, threads)
    five = _five(made)

    def run(many: int) -> float:
        if threads == 1:
            return each_of(five, many, 1)
        began = time.perf_counter()
        for handle in [made.start_workflow(five, n) for n in range(many)]:
            handle.get_result()
        return time.perf_counter() - began

    run(max(count // 5, 2 * threads))
    return {"rate": count / run(count), **settings_of_dbos(database)}


def dbos_queue(database: str, count: int, threads: int) -> dict[str, Any]:
    made = _launched(database, threads)
    five = _five(made)
    made.register_queue("q", worker_concurrency=threads)
    made.enqueue_workflow("q", five, 0).get_result()
    began = time.perf_counter()
    for handle in [made.enqueue_workflow("q", five, n) for n in range(count)]:
        handle.get_result()
    return {"rate": count / (time.perf_counter() - began), **settings_of_dbos(database)}


# procrastinate: its jobs are calls of one function, without steps


def procrastinate(database: str, count: int, threads: int) -> dict[str, Any]:
    import asyncio

    from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=database, min_size=1, max_size=threads + 2))
    done: list[int] = []

    @app.task(queue="q")
    def job(number: int) -> None:
        done.append(number)

    with app.open():
        app.schema_manager.apply_schema()
        began = time.perf_counter()
        for n in range(count):
            job.defer(number=n)
        connector = app.connector.get_sync_connector()
        assert isinstance(connector, SyncPsycopgConnector)
        shown = {
            name: connector.execute_query_one(f"SHOW {name}")[name]
            for name in ("fsync", "synchronous_commit")
        }

    async def work() -> None:
        async with app.open_async():
            await app.run_worker_async(queues=["q"], concurrency=threads, wait=False,
                                       listen_notify=False, install_signal_handlers=False)  # fmt: skip

    asyncio.run(work())
    took = time.perf_counter() - began
    assert len(done) == count
    return {"rate": count / took, **shown}


# The bare commits


def rows_of(commits: tuple[int, ...]) -> Iterator[list[Row]]:
    """Give the rows of each commit of one workflow."""
    run_id = f"{time.time_ns() // 1_000_000:012x}{uuid4().hex[12:]}"  # in order of time, as ours
    at, sequence = "2026-01-31T12:00:00.000000Z", 0
    for size in commits:
        rows: list[Row] = []
        for _ in range(size):
            sequence += 1
            rows.append((run_id, sequence, run_id, at, "step_completed", _BODY))
        yield rows


class SqliteFloor:
    """One thread commits by itself; several share the commits that a writing thread makes of what piles up."""

    def __init__(self, path: str, threads: int) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for each in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", f"{_TABLE} WITHOUT ROWID"):
            self._connection.execute(each)
        self.settings = _pragmas(self._connection)
        self._line: queue.SimpleQueue[tuple[list[Row], threading.Lock]] = queue.SimpleQueue()
        self._own = threading.local()
        self.commit: Callable[[list[Row]], None] = self._write if threads == 1 else self._share
        if threads > 1:
            threading.Thread(target=self._serve, daemon=True).start()

    def _write(self, rows: list[Row]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._connection.execute("COMMIT")

    def _share(self, rows: list[Row]) -> None:
        done = getattr(self._own, "done", None)
        if done is None:
            done = self._own.done = threading.Lock()
            done.acquire()
        self._line.put((rows, done))
        done.acquire()

    def _serve(self) -> None:
        while True:
            batch = [self._line.get()]
            while not self._line.empty():
                batch.append(self._line.get())
            self._write([row for rows, _ in batch for row in rows])
            for _, done in batch:
                done.release()


class PostgresFloor:
    """One statement for each commit, prepared; a connection for each thread."""

    def __init__(self, dsn: str, threads: int) -> None:
        import psycopg

        self._connect: Callable[[], Any] = lambda: psycopg.connect(dsn, autocommit=True)
        self._own = threading.local()
        with self._connect() as connection:
            connection.execute(_TABLE)
            self.settings = _shown(connection.execute)

    def commit(self, rows: list[Row]) -> None:
        connection = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = self._connect()
        places = ", ".join(["(%s, %s, %s, %s, %s, %s)"] * len(rows))
        values = [value for row in rows for value in row]
        connection.execute(f"INSERT INTO events VALUES {places}", values, prepare=True)


def bare(commits: tuple[int, ...]) -> Callable[[str, int, int], dict[str, Any]]:
    def measure(database: str, count: int, threads: int) -> dict[str, Any]:
        floor = (PostgresFloor if is_dsn(database) else SqliteFloor)(database, threads)

        def workflow(_: int) -> None:
            for rows in rows_of(commits):
                floor.commit(rows)

        return {"rate": warmed(workflow, count, threads), **floor.settings}

    return measure


CASES: dict[str, Callable[[str, int, int], dict[str, Any]]] = {
    "ours": ours,
    "ours-queue": ours_queue,
    "dbos": dbos,
    "dbos-queue": dbos_queue,
    "procrastinate": procrastinate,
    "bare": bare(COMMITS),
    "bare-rows": bare(ONE_BY_ONE),
}


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    print(json.dumps(CASES[sys.argv[1]](sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
    sys.stdout.flush()
    os._exit(0)  # whatever threads the peers have left
