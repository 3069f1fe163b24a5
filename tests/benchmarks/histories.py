"""Long histories and many sleeping runs: replay, what is due among 100 000, the cost of an append far along.

The sleeping runs are written straight into the tables, as the store would write them, in a process of its own;
triggers fill the index of what is due.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from supervisor.durable import (
    FlowEngine,
    FlowEventStore,
    FlowRuntime,
    MemoryEventStore,
    RetryPolicy,
    RunStatus,
    SqliteEventStore,
    WorkflowContext,
)
from supervisor.durable.history import (
    FlowEvent,
    RunCreated,
    RunStarted,
    StepCompleted,
    StepCreated,
    StepStarted,
    WaitCreated,
)
from supervisor.durable.instants import written
from supervisor.durable.payload import encode
from tests.benchmarks.measure import Figure, Goal, Row, Samples, in_turn, spread, timed

ROOT = Path(__file__).resolve().parents[2]
STEPS = 333  # three events each
MEMORY, SQLITE = "memory", "SQLite"
DUE = datetime(2100, 1, 1, tzinfo=UTC)  # of the first sleeping run; each further one a second later
NOTHING, THOUSAND, NEXT = (
    "list_due_wakeups, nothing due",
    "list_due_wakeups, 1000 due",
    "next_scheduled_wakeup",
)
SPEC = {"name": "sleep", "version": "1"}

flows = FlowRuntime()


@flows.step
def step(number: int) -> int:
    return number


@flows.workflow
def long(ctx: WorkflowContext) -> None:
    for number in range(STEPS):
        ctx.step(f"step-{number}", step, number)
    ctx.wait_signal("end", "end")


@flows.workflow(name="sleep")
def sleeper(ctx: WorkflowContext, seconds: int) -> None:
    ctx.wait_until("nap", DUE + timedelta(seconds=seconds))


@contextmanager
def folder() -> Iterator[str]:
    made = tempfile.mkdtemp(prefix="threadvisor-bench-")
    try:
        yield made
    finally:
        shutil.rmtree(made)


# Replay


def replay(store: FlowEventStore) -> float:
    """Return the ms in which an engine that knows nothing of the run comes to its next decision."""
    with FlowEngine(flows, store) as engine:
        took = timed(lambda: engine.drive("long")) * 1e3
        assert engine.snapshot("long").status is RunStatus.SUSPENDED
    return took


def replays(*, quick: bool) -> Figure:
    with folder() as place:
        stores: dict[str, FlowEventStore] = {
            MEMORY: MemoryEventStore(),
            SQLITE: SqliteEventStore(f"{place}/file.db", synchronous="normal"),
        }
        for store in stores.values():
            with FlowEngine(flows, store) as engine:
                engine.start("long", run_id="long")
        events = len(stores[SQLITE].read("long"))
        cases: dict[str, Callable[[], float]] = {
            name: lambda store=store: replay(store) for name, store in stores.items()
        }
        cases["SQLite, of that: reading"] = lambda: timed(lambda: stores[SQLITE].read("long")) * 1e3
        samples = in_turn(cases, 3 if quick else 41)
        for store in stores.values():
            store.close()
    return Figure(
        title=f"Durable: replay of {events} events, loaded and driven to the next decision",
        unit="ms",
        reference=MEMORY,
        rows=samples.rows(MEMORY),
        goals=[Goal(claim="replay from SQLite, ms", measured=samples.spread(SQLITE), limit=20.0)],
    )


# Sleeping runs


def fill(path: str, count: int) -> None:
    """Make `count` runs that sleep until `DUE` and later."""
    SqliteEventStore(path).close()  # makes the tables
    at = written(datetime.now(UTC))

    def events() -> Iterator[tuple[object, ...]]:
        for n in range(count):
            made = RunCreated(SPEC, n), RunStarted(), WaitCreated("nap", DUE + timedelta(seconds=n))
            for sequence, event in enumerate(made, 1):
                body = encode(event.to_dict(), event.type)
                yield f"run-{n:06d}", sequence, f"{n:06d}-{sequence}", at, event.type, body

    runs = ((f"run-{n:06d}", "sleep", "1", "suspended", at, at) for n in range(count))
    connection = sqlite3.connect(path)
    with connection:
        connection.executemany(
            "INSERT INTO flow_events (run_id, sequence, event_id, at, type, body) VALUES (?, ?, ?, ?, ?, ?)",
            events(),
        )
        connection.executemany(
            "INSERT INTO flow_runs (run_id, workflow, version, status, created_at, updated_at) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            runs,
        )
    connection.close()


def sleeping(count: int, rounds: int, idle: float) -> dict[str, list[float]]:
    """Measure a store of sleeping runs, and an engine that serves it. For a process of its own."""
    with folder() as place:
        path = f"{place}/file.db"
        fill(path, count)
        gc.collect()
        with closing(SqliteEventStore(path)) as store, FlowEngine(flows, store) as engine:
            found = {name: [timed(call) * 1e3 for _ in range(rounds)] for name, call in looks(store).items()}
            assert len(store.list_due_wakeups(DUE + timedelta(seconds=999))) == min(count, 1000)
            with engine.serve(workers=4, poll=0.1):
                time.sleep(idle / 2)  # real: what the start left must be over
                memory, threads = _memory(), threading.active_count()
                time.sleep(idle)  # real: the idle stretch that is measured
                found["grown"] = [_memory() - memory]
                found["threads"] = [threading.active_count() - threads]
            found["memory"] = [memory]
            if count:  # they are what the library would have made of them
                assert engine.snapshot("run-000000").status is RunStatus.SUSPENDED
                engine.resume_scheduled_run("run-000000", DUE)
                assert engine.snapshot("run-000000").status is RunStatus.COMPLETED
            return found


def looks(store: FlowEventStore) -> dict[str, Callable[[], object]]:
    return {
        NOTHING: lambda: store.list_due_wakeups(datetime.now(UTC)),
        THOUSAND: lambda: store.list_due_wakeups(DUE + timedelta(seconds=999)),
        NEXT: store.next_scheduled_wakeup,
    }


def _memory() -> float:
    # MiB resident
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def sleepers(*, quick: bool) -> Figure:
    count, rounds, idle, processes = (100_000, 20, 0.4, 1) if quick else (100_000, 200, 3.0, 3)
    found: dict[int, dict[str, list[float]]] = {0: {}, count: {}}
    for _ in range(processes):
        for size, values in found.items():
            done = subprocess.run(
                [sys.executable, "-m", "tests.benchmarks.histories", str(size), str(rounds), str(idle)],
                cwd=ROOT, check=True, capture_output=True, text=True, timeout=300,
            )  # fmt: skip
            for name, samples in json.loads(done.stdout).items():
                values.setdefault(name, []).extend(samples)
    many, none = found[count], found[0]
    more = spread([one - other for one, other in zip(many["memory"], none["memory"], strict=True)])
    rows = [Row(case=f"{name}, ms", value=spread(many[name])) for name in (NOTHING, THOUSAND, NEXT)]
    rows += [
        Row(case="memory of a serving process, MiB", value=spread(many["memory"])),
        Row(case="of that: more than with no run in the store", value=more),
        Row(case=f"memory that grows in {idle:g} s, MiB", value=spread(many["grown"])),
        Row(case=f"threads that come in {idle:g} s", value=spread(many["threads"])),
    ]
    return Figure(
        title=f"Durable: {count} sleeping runs, SQLite",
        unit="value",
        reference="-",
        rows=rows,
        goals=[
            *(
                Goal(claim=f"{name}, ms", measured=spread(many[name]), limit=5.0)
                for name in (NOTHING, THOUSAND, NEXT)
            ),
            Goal(claim="MiB more than with no run", measured=more, limit=5.0),
            Goal(claim="MiB that memory grows", measured=spread(many["grown"]), limit=1.0),
            Goal(claim="threads that come", measured=spread(many["threads"]), limit=0.0),
        ],
    )


# Appending far along


def one_step(number: int) -> list[FlowEvent]:
    name = f"step-{number:06d}"
    return [
        StepCreated(name, "step", number, RetryPolicy.default()),
        StepStarted(name, 1),
        StepCompleted(name, 1),
    ]


class Growing:
    """Appends to a run that has so many events; to a new run each time if they are few."""

    def __init__(self, store: FlowEventStore, size: int) -> None:
        self._store = store
        self._size = size
        self._runs = 0
        self._sequence = 0  # 0: no run

    def __call__(self, steps: int) -> float:
        """Return the µs of an append of one event."""
        if not self._sequence or self._size < 1000:
            self._new()
        self._append(2)  # nothing is measured cold
        before = self._sequence
        return self._append(steps) / (self._sequence - before) * 1e6

    def _new(self) -> None:
        self._runs += 1
        first: list[FlowEvent] = [RunCreated(SPEC, None), RunStarted()]
        self._store.append(self._name, 0, first, datetime.now(UTC))
        self._sequence = len(first)
        while self._sequence < self._size - 6:
            self._add(one_step(self._sequence))

    @property
    def _name(self) -> str:
        return f"run-{self._size}-{self._runs}"

    def _append(self, steps: int) -> float:
        events = [event for n in range(steps) for event in one_step(self._sequence + 3 * n)]
        return timed(lambda: [self._add([event]) for event in events])

    def _add(self, events: list[FlowEvent]) -> None:
        self._store.append(self._name, self._sequence, events, datetime.now(UTC))
        self._sequence += len(events)


def appends(*, quick: bool) -> Figure:
    rounds, steps, late = (5, 5, 10_000) if quick else (41, 10, 10_000)
    cases: dict[str, Callable[[], float]] = {}
    with folder() as place:
        stores: dict[str, FlowEventStore] = {
            MEMORY: MemoryEventStore(),
            SQLITE: SqliteEventStore(f"{place}/file.db", synchronous="normal"),  # the disk is not what counts
        }
        for name, store in stores.items():
            for size in (10, late):
                growing = Growing(store, size)
                cases[f"{name}, at event {size}"] = lambda growing=growing: growing(steps)
        samples: Samples = in_turn(cases, rounds)
        for store in stores.values():
            store.close()
    first = f"{MEMORY}, at event 10"
    return Figure(
        title="Durable: append of one event",
        unit="µs",
        reference=first,
        rows=samples.rows(first),
        goals=[
            Goal(
                claim=f"{name}: at event {late} / at event 10",
                measured=samples.ratio(f"{name}, at event {late}", f"{name}, at event 10"),
                limit=1.25,
            )
            for name in stores
        ],
        notes=["SQLite with synchronous=normal: without the wait for the disk"],
    )


def measure(*, quick: bool) -> Iterator[Figure]:
    yield replays(quick=quick)
    yield sleepers(quick=quick)
    yield appends(quick=quick)


if __name__ == "__main__":
    print(json.dumps(sleeping(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))))
