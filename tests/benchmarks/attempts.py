"""What one attempt of an immediate retry loop costs, with no subscriber.

Every contender calls a function that raises ValueError some thousand times and then returns; the
number is the time per attempt, start of the loop (for a task: of its thread) included. What counts is
the overhead: the time above a loop that only catches.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import stamina.instrumentation
import tenacity

from supervisor import Supervisor, TaskContext, TaskSpec
from tests.benchmarks.measure import Figure, Goal, Samples, in_turn, timed

BARE, OURS, TENACITY = "bare loop", "supervisor", "tenacity"


class Flaky:
    """Raises `failures` times, then returns."""

    def __init__(self, failures: int) -> None:
        self.left = failures

    def __call__(self) -> int:
        if self.left:
            self.left -= 1
            raise ValueError("flaky")
        return 1


def bare(body: Callable[[], int]) -> None:
    while True:
        try:
            body()
            return
        except ValueError:
            pass


def with_tenacity(body: Callable[[], int]) -> None:
    tenacity.Retrying(
        wait=tenacity.wait_none(),
        retry=tenacity.retry_if_exception_type(ValueError),
        sleep=lambda _: None,
    )(body)


def with_stamina(body: Callable[[], int]) -> None:
    retry = stamina.retry(
        on=ValueError, attempts=None, timeout=None, wait_initial=0, wait_max=0, wait_jitter=0
    )
    retry(lambda: body())()


def measure(*, quick: bool) -> Figure:
    attempts, rounds = (200, 2) if quick else (4000, 21)
    stamina.instrumentation.set_on_retry_hooks([])  # the loop alone, no log lines
    real_sleep, nap = time.sleep, tenacity.nap.sleep
    with Supervisor() as supervisor:

        def task(body: Callable[..., int], **settings: float) -> None:
            outcome = supervisor.add(TaskSpec.restartable("t", body, backoff=None, **settings)).wait()
            assert outcome.ok
            assert outcome.attempts == attempts

        def with_context(body: Flaky) -> Callable[[TaskContext], int]:
            def run(ctx: TaskContext) -> int:
                return body()

            return run

        def per_attempt(loop: Callable[[Flaky], object]) -> Callable[[], float]:
            # microseconds
            return lambda: timed(lambda: loop(Flaky(attempts - 1))) / attempts * 1e6

        cases = {
            BARE: per_attempt(bare),
            OURS: per_attempt(task),
            "supervisor, body takes the context": per_attempt(lambda body: task(with_context(body))),
            "supervisor, with a timeout": per_attempt(lambda body: task(body, timeout=60.0)),
            TENACITY: per_attempt(with_tenacity),
            "stamina": per_attempt(with_stamina),
        }
        time.sleep = tenacity.nap.sleep = lambda _: None  # a system call that others make for 0 s: left out
        try:
            samples = in_turn(cases, rounds)
        finally:
            time.sleep, tenacity.nap.sleep = real_sleep, nap
    overheads = Samples(
        {
            case: [a - b for a, b in zip(values, samples.by_case[BARE], strict=True)]
            for case, values in samples.by_case.items()
            if case != BARE
        }
    )
    return Figure(
        title="Attempts: overhead of an immediate retry",
        unit="µs above a bare loop, per attempt",
        reference=TENACITY,
        rows=overheads.rows(TENACITY),
        goals=[
            Goal(
                claim="overhead of an attempt / that of tenacity",
                measured=overheads.ratio(OURS, TENACITY),
                limit=1 / 3,
            )
        ],
        notes=[f"the bare loop itself: {samples.spread(BARE)} µs"],
    )
