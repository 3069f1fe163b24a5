"""What one step of a workflow costs, from state to state, with tasks that are plain functions.

The floor is a loop that takes the next function from a dict. A job of APScheduler 3 is what a program
without a state machine would do for a step: its dispatch is measured from the resume of a scheduler
with so many jobs due to the last one done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from apscheduler.events import EVENT_JOB_EXECUTED
from apscheduler.schedulers.background import BackgroundScheduler

from supervisor.flows import Workflow
from tests.benchmarks.measure import Figure, Goal, in_turn, timed

CALL, LOOP, OURS, JOB = "function call", "loop over a dict", "Workflow", "APScheduler 3, dispatch of a job"


class Steps:
    """Two tasks that lead to each other, `count` times in all."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self) -> str:
        self.left -= 1
        return "a" if self.left > 0 else "end"


def bare(count: int) -> float:
    steps = Steps(count)
    return timed(lambda: [steps() for _ in range(count)])


def loop(count: int) -> float:
    steps = Steps(count)
    tasks = {"a": steps, "b": steps}

    def walk() -> None:
        state = "a"
        while state != "end":
            state = tasks[state]()

    return timed(walk)


def workflow(count: int, subscribed: bool = False, total: float | None = None, **settings: float) -> float:
    flow = Workflow().register("a", Steps(count), **settings).add_exit_state("end").with_total_timeout(total)
    subscribers = [lambda event: None] if subscribed else []
    return timed(lambda: flow.run("a", subscribers=subscribers))


def jobs(count: int) -> float:
    done, ran = threading.Event(), [0]
    scheduler = BackgroundScheduler(timezone=UTC)

    def count_down(event: object) -> None:
        ran[0] += 1
        if ran[0] == count:
            done.set()

    scheduler.add_listener(count_down, EVENT_JOB_EXECUTED)
    scheduler.start(paused=True)
    when = datetime.now(UTC) - timedelta(milliseconds=1)
    for _ in range(count):
        scheduler.add_job(lambda: None, "date", run_date=when, misfire_grace_time=None)
    began = time.perf_counter()
    scheduler.resume()
    done.wait()
    took = time.perf_counter() - began
    scheduler.shutdown()
    return took


def measure(*, quick: bool) -> Figure:
    logging.disable(logging.CRITICAL)
    count, few, rounds = (500, 50, 2) if quick else (20_000, 500, 15)

    def per(calls: int, run: Callable[[int], float]) -> Callable[[], float]:
        return lambda: run(calls) / calls * 1e6

    samples = in_turn(
        {
            CALL: per(count, bare),
            LOOP: per(count, loop),
            OURS: per(count, workflow),
            "Workflow with a total timeout": per(count, lambda n: workflow(n, total=3600.0)),
            "Workflow, each attempt with a timeout": per(count, lambda n: workflow(n, timeout=60.0)),
            "Workflow with a subscriber": per(count, lambda n: workflow(n, subscribed=True)),
            "Workflow, a run of one step": lambda: sum(workflow(1) for _ in range(few)) / few * 1e6,
            JOB: per(few, jobs),
        },
        rounds,
    )
    logging.disable(logging.NOTSET)
    return Figure(
        title="Flows: from state to state",
        unit="µs a step",
        reference=CALL,
        rows=samples.rows(CALL),
        goals=[
            Goal(claim="a step, µs", measured=samples.spread(OURS), limit=5.0),
            Goal(claim="a step / dispatch of a job", measured=samples.ratio(OURS, JOB), limit=0.1),
        ],
    )
