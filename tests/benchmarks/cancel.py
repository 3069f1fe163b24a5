"""How long `cancel` takes for a task that waits 60 s for its next attempt.

`cancel` returns when the task has ended and its name is free, so its thread has ended too. The floor
is a bare thread in `Event.wait(60)`: set the event, join the thread.
"""

from __future__ import annotations

import time
from threading import Event, Thread

from supervisor import BackoffPolicy, Supervisor, TaskSpec
from tests.benchmarks.measure import Figure, Goal, Row, percentile, spread

BARE, OURS = "thread in Event.wait(60), set + join", "supervisor, cancel in a 60 s backoff"


def fails() -> None:
    raise ValueError("no")


def bare(count: int) -> list[float]:
    """Return milliseconds of each."""
    pairs: list[tuple[Event, Thread]] = []
    for _ in range(count):
        event = Event()
        pairs.append((event, Thread(target=event.wait, args=(60.0,), daemon=True)))
        pairs[-1][1].start()
    time.sleep(0.05)  # real: the threads must be parked before the first one is measured
    latencies: list[float] = []
    for event, thread in pairs:
        began = time.perf_counter()
        event.set()
        thread.join()
        latencies.append((time.perf_counter() - began) * 1e3)
    return latencies


def ours(count: int) -> list[float]:
    """Return milliseconds of each."""
    backoff = BackoffPolicy.constant(60.0)
    with Supervisor() as supervisor:
        handles = [
            supervisor.add(TaskSpec.restartable(f"task {n}", fails, backoff=backoff)) for n in range(count)
        ]
        while any(handle.info().state != "backoff" for handle in handles):
            time.sleep(0.01)  # real: a benchmark runs on the clock of the machine
        time.sleep(0.05)  # as for the bare threads
        latencies: list[float] = []
        for handle in handles:
            began = time.perf_counter()
            claimed = supervisor.cancel(handle)
            latencies.append((time.perf_counter() - began) * 1e3)
            assert claimed
        return latencies


def measure(*, quick: bool) -> Figure:
    count, rounds = (10, 2) if quick else (100, 15)
    latencies: dict[str, list[list[float]]] = {BARE: [], OURS: []}
    for _ in range(rounds):
        latencies[BARE].append(bare(count))
        latencies[OURS].append(ours(count))
    rows: list[Row] = []
    for case, of_rounds in latencies.items():
        for share in (0.5, 0.99):
            values = [percentile(each, share) for each in of_rounds]
            floor = [percentile(each, share) for each in latencies[BARE]]
            ratio = spread([a / b for a, b in zip(values, floor, strict=True)])
            rows.append(Row(case=f"{case}, p{share * 100:.0f}", value=spread(values), ratio=ratio))
    return Figure(
        title="Cancel: a task in a long backoff",
        unit="ms",
        reference=BARE,
        rows=rows,
        goals=[Goal(claim="p50 in ms", measured=rows[2].value, limit=1.0)],
        notes=[f"{count} cancellations in each of {rounds} rounds; p50 and p99 are taken inside a round"],
    )
