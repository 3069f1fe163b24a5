"""10 000 periodic tasks that wait for their next run, beside 10 000 bare threads that wait for a lock.

Each measurement is a process of its own: memory above the same process without them, the share of one
core that is used while they wait, and the time to start and to stop them all.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.measure import Figure, Goal, Row, Samples, Spread

BARE, OURS = "threads parked on a lock", "periodic tasks"
ROOT = Path(__file__).resolve().parents[2]


def threads(count: int, idle: float) -> dict[str, float]:
    from threading import Lock, Thread

    before, began = _memory(), time.perf_counter()
    locks = [Lock() for _ in range(count)]
    started: list[Thread] = []
    for lock in locks:
        lock.acquire()
        started.append(Thread(target=lock.acquire, daemon=True))
        started[-1].start()
    start = time.perf_counter() - began
    figures = _waiting(before, idle)
    began = time.perf_counter()
    for lock in locks:
        lock.release()
    for thread in started:
        thread.join()
    return figures | {"start": start, "stop": time.perf_counter() - began}


def tasks(count: int, idle: float) -> dict[str, float]:
    from supervisor import Supervisor, TaskSpec

    ran = []
    before, began = _memory(), time.perf_counter()
    supervisor = Supervisor().start()
    for n in range(count):
        supervisor.add(TaskSpec.periodic(f"task {n}", lambda: ran.append(1), every=3600.0))
    while len(ran) < count or any(info.state != "idle" for info in supervisor.tasks()):
        time.sleep(0.01)  # real: a benchmark runs on the clock of the machine
    start = time.perf_counter() - began
    figures = _waiting(before, idle)
    began = time.perf_counter()
    supervisor.shutdown()
    return figures | {"start": start, "stop": time.perf_counter() - began}


def _waiting(before: float, idle: float) -> dict[str, float]:
    time.sleep(0.5)  # real: what the start left must be over
    memory, used, began = _memory() - before, _cpu(), time.perf_counter()
    time.sleep(idle)  # real: the idle stretch that is measured
    return {"memory": memory, "cpu": (_cpu() - used) / (time.perf_counter() - began) * 100}


def _memory() -> float:
    # MiB resident
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(*, quick: bool) -> Figure:
    count, idle, rounds = (200, 0.5, 1) if quick else (10_000, 3.0, 3)
    found: dict[str, dict[str, list[float]]] = {BARE: {}, OURS: {}}
    for _ in range(rounds):
        for case, kind in ((BARE, "threads"), (OURS, "tasks")):
            done = subprocess.run(
                [sys.executable, "-m", "tests.benchmarks.parked", kind, str(count), str(idle)],
                cwd=ROOT,
                check=True,
                capture_output=True,
                text=True,
            )
            for name, value in json.loads(done.stdout).items():
                found[case].setdefault(name, []).append(value)
    units = {"memory": "MiB", "start": "s to start", "stop": "s to stop", "cpu": "% of a core, idle"}
    rows: list[Row] = []
    ratios: dict[str, Spread] = {}
    for name, unit in units.items():
        samples = Samples({case: values[name] for case, values in found.items()})
        for case in (BARE, OURS):
            ratio = None if name == "cpu" else samples.ratio(case, BARE)  # of idle processes it means nothing
            rows.append(Row(case=f"{case}: {unit}", value=samples.spread(case), ratio=ratio))
        ratios[name] = samples.ratio(OURS, BARE) if name != "cpu" else samples.spread(OURS)
    return Figure(
        title=f"Parked: {count} periodic tasks",
        unit="value",
        reference=BARE,
        rows=rows,
        goals=[
            Goal(claim="memory / that of bare threads", measured=ratios["memory"], limit=1.5),
            Goal(claim="% of a core while idle", measured=ratios["cpu"], limit=2.0),
        ],
    )


if __name__ == "__main__":
    kinds = {"threads": threads, "tasks": tasks}
    print(json.dumps(kinds[sys.argv[1]](int(sys.argv[2]), float(sys.argv[3]))))
    sys.stdout.flush()
    os._exit(0)
