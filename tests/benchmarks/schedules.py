"""Interval jobs with a period of 1 s: how late they start and what CPU that takes, in processes of their own.

Spread: the due times lie evenly over the second. Aligned: all are due with the same tick. Lateness is the
start of a body after its due time; for a flow, whose interval counts from the end of its last run, after
that end as its body sees it, plus the period. Peers: a heap and one thread that hands to a pool of 8, the
least a scheduler has to do; APScheduler 3; `schedule`, which calls inline and so has no threads to wake.
"""

from __future__ import annotations

import heapq
import json
import logging
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.benchmarks.measure import Figure, Goal, Row, Samples, percentile

PERIOD = 1.0
ROOT = Path(__file__).resolve().parents[2]
HEAP, OURS, APS, SCHEDULE = "heap + pool of 8", "Scheduler", "APScheduler 3", "schedule"
Add = Callable[[float], None]  # lateness in seconds


def offsets(count: int, phase: str) -> list[float]:
    return [n / count * PERIOD if phase == "spread" else 0.0 for n in range(count)]


def heap(count: int, phase: str, add: Add) -> None:
    executor, clock, bell = ThreadPoolExecutor(8), time.monotonic, threading.Event()
    start = clock() + 0.5
    due = [(start + offset, n) for n, offset in enumerate(offsets(count, phase))]
    heapq.heapify(due)

    def job(when: float) -> None:
        add(clock() - when)

    def run() -> None:
        while True:
            when, n = due[0]
            if (left := when - clock()) > 0:
                bell.wait(left)
                continue
            heapq.heapreplace(due, (when + PERIOD, n))
            executor.submit(job, when)

    threading.Thread(target=run, daemon=True).start()


def ours(count: int, phase: str, add: Add) -> None:
    from supervisor.flows import Scheduler

    clock, scheduler = time.monotonic, Scheduler()

    def aligned() -> None:
        add(time.time() % PERIOD)

    def interval() -> Callable[[], None]:
        ended = [0.0]

        def job() -> None:
            if ended[0]:
                add(clock() - ended[0] - PERIOD)
            ended[0] = clock()

        return job

    if phase == "aligned":
        for n in range(count):
            scheduler.cron(f"job {n}", aligned, expression="* * * * * *")
        scheduler.start()
        return
    for n in range(count):
        scheduler.every(f"job {n}", interval(), interval=PERIOD)
    running = scheduler.start()
    for n in range(count):
        running.pause(f"job {n}")
    time.sleep(2 * PERIOD)  # real: by then every first tick has been skipped
    began = clock()
    for n, offset in enumerate(offsets(count, phase)):  # one that is overdue starts when it is resumed
        if (left := began + offset - clock()) > 0:
            time.sleep(left)  # real: offsets are instants of the machine's clock
        running.resume(f"job {n}")


def apscheduler(count: int, phase: str, add: Add) -> None:
    from apscheduler.events import EVENT_JOB_EXECUTED
    from apscheduler.schedulers.background import BackgroundScheduler

    scheduler = BackgroundScheduler(timezone=UTC)  # defaults: a pool of 10, a grace of 1 s
    scheduler.add_listener(lambda e: add(time.time() - e.scheduled_run_time.timestamp()), EVENT_JOB_EXECUTED)
    scheduler.start(paused=True)
    start = datetime.now(UTC) + timedelta(seconds=1 + count / 2000)  # adding many takes seconds
    for offset in offsets(count, phase):
        scheduler.add_job(
            lambda: None, "interval", seconds=PERIOD, next_run_time=start + timedelta(seconds=offset)
        )
    time.sleep(max(0.0, (start - datetime.now(UTC)).total_seconds() - 0.2))
    scheduler.resume()


def schedule_inline(count: int, phase: str, add: Add) -> None:
    import schedule

    start = datetime.now() + timedelta(seconds=1)

    def make(offset: float) -> None:
        job = schedule.every(1).seconds

        def body() -> None:
            assert job.next_run is not None
            add(time.time() - job.next_run.timestamp())

        job.do(body)
        job.next_run = start + timedelta(seconds=offset)

    for offset in offsets(count, phase):
        make(offset)

    def run() -> None:
        while True:
            schedule.run_pending()
            time.sleep(max(0.0, schedule.idle_seconds() or 0.0))

    threading.Thread(target=run, daemon=True).start()


CASES = {HEAP: heap, OURS: ours, APS: apscheduler, SCHEDULE: schedule_inline}


def child(case: str, count: int, phase: str, warm: float, window: float) -> None:
    """Run one case and print its figures; the process ends here, whatever still runs."""
    logging.disable(logging.CRITICAL)
    late: list[float] = []
    CASES[case](count, phase, late.append)
    time.sleep(warm)
    first, used, began = len(late), resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    time.sleep(window)
    wall, now, last = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF), len(late)
    found = late[first:last] or [float("inf")]
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    figures = {
        "p50": percentile(found, 0.5) * 1e3,
        "p99": percentile(found, 0.99) * 1e3,
        "worst": max(found) * 1e3,
        "cpu": cpu / wall * 100,
        "runs": (last - first) / (count * wall / PERIOD) * 100,
    }
    print(json.dumps(figures), flush=True)
    os._exit(0)


def measure(*, quick: bool) -> Figure:
    sizes, warm, window, rounds = ([50], 0.5, 1.5, 1) if quick else ([1000, 10_000], 3.0, 6.0, 3)
    rows: list[Row] = []
    goals: list[Goal] = []
    units = {"p50": "late by p50, ms", "p99": "late by p99, ms", "worst": "latest, ms", "cpu": "% of a core",
             "runs": "% of the runs asked for"}  # fmt: skip
    for count in sizes:
        for phase in ("spread", "aligned"):
            found: dict[str, dict[str, list[float]]] = {case: {} for case in CASES}
            for _ in range(rounds):
                for case in CASES:
                    arguments = [case, str(count), phase, str(warm), str(window)]
                    done = subprocess.run(
                        [sys.executable, "-m", "tests.benchmarks.schedules", *arguments],
                        cwd=ROOT, check=True, capture_output=True, text=True, timeout=120,
                    )  # fmt: skip
                    for name, value in json.loads(done.stdout).items():
                        found[case].setdefault(name, []).append(value)
            samples = {name: Samples({case: found[case][name] for case in CASES}) for name in units}
            for case in CASES:
                for name, unit in units.items():
                    ratio = None if name in ("worst", "runs") else samples[name].ratio(case, HEAP)
                    title = f"{count} {phase}, {case}: {unit}"
                    rows.append(Row(case=title, value=samples[name].spread(case), ratio=ratio))
            if phase == "spread":
                p99, cpu = samples["p99"], samples["cpu"]
                goals += [
                    Goal(
                        claim=f"{count} spread: p99 / heap + pool", measured=p99.ratio(OURS, HEAP), limit=3.0
                    ),
                    Goal(
                        claim=f"{count} spread: p99 / APScheduler", measured=p99.ratio(OURS, APS), limit=1.0
                    ),
                    Goal(
                        claim=f"{count} spread: CPU / APScheduler", measured=cpu.ratio(OURS, APS), limit=1.0
                    ),
                ]
            elif count >= 10_000:
                last = Samples({OURS: found[OURS]["worst"], APS: found[APS]["p50"]}).ratio(OURS, APS)
                goals.append(
                    Goal(claim=f"{count} aligned: the last / APScheduler's median", measured=last, limit=1.0)
                )
    return Figure(
        title="Schedules: jobs with a period of 1 s",
        unit="value",
        reference=HEAP,
        rows=rows,
        goals=goals,
        notes=["`schedule` calls inline: what a body takes delays all others"],
    )


if __name__ == "__main__":
    child(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), float(sys.argv[5]))
