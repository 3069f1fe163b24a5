"""1000 tasks in `ctx.wait(0.1)` loops: how late they wake, beside 1000 threads that sleep 0.1 s each.

The tasks park without a timeout and are woken by one thread from one heap of deadlines.
"""

from __future__ import annotations

import time
from threading import Event, Thread

from supervisor import Supervisor, TaskContext, TaskSpec
from tests.benchmarks.measure import Figure, Goal, Row, percentile, spread

PERIOD = 0.1
BARE, OURS = "threads in Event.wait(0.1)", "tasks in ctx.wait(0.1)"


def threads(count: int, seconds: float) -> list[float]:
    """Return how late each wake was, in ms."""
    late: list[float] = []
    over = Event()

    def loop() -> None:
        while True:
            began = time.monotonic()
            if over.wait(PERIOD):
                return
            late.append((time.monotonic() - began - PERIOD) * 1e3)

    started = [Thread(target=loop, daemon=True) for _ in range(count)]
    for thread in started:
        thread.start()
    time.sleep(seconds)
    over.set()
    for thread in started:
        thread.join()
    return late


def tasks(count: int, seconds: float) -> list[float]:
    """Return how late each wake was, in ms."""
    late: list[float] = []

    def loop(ctx: TaskContext) -> None:
        while True:
            began = time.monotonic()
            if ctx.wait(PERIOD):
                return
            late.append((time.monotonic() - began - PERIOD) * 1e3)

    with Supervisor() as supervisor:
        supervisor.add_all([TaskSpec.once(f"task {n}", loop) for n in range(count)])
        time.sleep(seconds)
    return late


def measure(*, quick: bool) -> Figure:
    count, seconds, rounds = (50, 0.5, 1) if quick else (1000, 3.0, 3)
    lateness: dict[str, list[list[float]]] = {BARE: [], OURS: []}
    for _ in range(rounds):
        lateness[BARE].append(threads(count, seconds))
        lateness[OURS].append(tasks(count, seconds))
    rows: list[Row] = []
    for case, of_rounds in lateness.items():
        for share in (0.5, 0.99):
            values = spread([percentile(each, share) for each in of_rounds])
            rows.append(Row(case=f"{case}, late by p{share * 100:.0f}, ms", value=values))
        wakes = spread([len(each) / seconds for each in of_rounds])
        rows.append(Row(case=f"{case}, wakes per second of {count / PERIOD:.0f}", value=wakes))
    return Figure(
        title=f"Timing: {count} waits of 0.1 s at once",
        unit="value",
        reference="-",
        rows=rows,
        goals=[Goal(claim="late by p99, ms", measured=rows[4].value, limit=100.0)],
        notes=["no promise, a check: the goal is that nobody is later than one period"],
    )
