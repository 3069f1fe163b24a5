"""A split of 8 branches beside a fresh ThreadPoolExecutor(8), from before the first thread to all results.

Three kinds of bodies. Those that meet at a barrier need eight threads at once, and those that sleep need
them to be quick; those that do nothing let a pool do with two or three threads, while a branch always
has a thread of its own: there bare threads are the floor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from supervisor.flows import JoinConfig, JoinStrategy, Workflow
from tests.benchmarks.measure import Figure, Goal, Samples, in_turn, timed

BRANCHES = 8
POOL, BARE, OURS = "ThreadPoolExecutor(8)", "threads, start + join", "split"
BODIES: dict[str, Callable[[], Callable[[], object]]] = {
    "meet at a barrier": lambda: threading.Barrier(BRANCHES).wait,
    "sleep 1 ms": lambda: lambda: time.sleep(0.001),
    "do nothing": lambda: lambda: None,
}


def pool(body: Callable[[], object]) -> None:
    with ThreadPoolExecutor(BRANCHES) as executor:
        for future in [executor.submit(body) for _ in range(BRANCHES)]:
            future.result()


def threads(body: Callable[[], object]) -> None:
    started = [threading.Thread(target=body) for _ in range(BRANCHES)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()


def split(body: Callable[[], object]) -> Callable[[], object]:
    join = JoinConfig(JoinStrategy.ALL, "end")
    workflow = Workflow().register_split("s", [body] * BRANCHES, join).add_exit_state("end")
    return lambda: workflow.run("s")


def measure(*, quick: bool) -> Figure:
    times, rounds = (2, 2) if quick else (40, 15)
    cases: dict[str, Callable[[], float]] = {}
    for kind, make in BODIES.items():
        body = make()
        runs = {POOL: lambda body=body: pool(body), BARE: lambda body=body: threads(body), OURS: split(body)}
        for name, run in runs.items():
            cases[f"{name}, {kind}"] = lambda run=run: (
                timed(lambda: [run() for _ in range(times)]) / times * 1e6
            )
    samples: Samples = in_turn(cases, rounds)
    first = next(iter(BODIES))
    goals = [
        Goal(
            claim=f"split / pool, bodies that {kind}",
            measured=samples.ratio(f"{OURS}, {kind}", f"{POOL}, {kind}"),
            limit=1.5,
        )
        for kind in BODIES
    ]
    floor = samples.ratio(f"{BARE}, do nothing", f"{POOL}, do nothing")
    return Figure(
        title=f"Splits: {BRANCHES} branches",
        unit="µs a split",
        reference=f"{POOL}, {first}",
        rows=samples.rows(f"{POOL}, {first}"),
        goals=goals,
        notes=[f"bodies that do nothing: bare threads / pool {floor}"],
    )
