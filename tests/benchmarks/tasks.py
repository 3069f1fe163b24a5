"""1000 tasks that run once, from the first `add` to the last outcome, beside 1000 bare threads.

The thread is the floor: a task has one of its own. Bodies do nothing. Also the same with
`max_concurrent=4`, and the tasks as one batch.
"""

from __future__ import annotations

from threading import Thread

from supervisor import Supervisor, SupervisorConfig, TaskSpec
from tests.benchmarks.measure import Figure, Goal, in_turn, timed

BARE, OURS = "thread, start + join", "supervisor, add each"


def nothing() -> None:
    """The body."""


def measure(*, quick: bool) -> Figure:
    count, rounds = (50, 2) if quick else (1000, 15)

    def threads() -> None:
        for _ in range(count):
            thread = Thread(target=nothing)
            thread.start()
            thread.join()

    def threads_together() -> None:
        started = [Thread(target=nothing) for _ in range(count)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()

    def tasks(supervisor: Supervisor) -> None:
        handles = [supervisor.add(TaskSpec.once(f"task {n}", nothing)) for n in range(count)]
        assert all(handle.wait().ok for handle in handles)

    def batch(supervisor: Supervisor) -> None:
        handles = supervisor.add_all([TaskSpec.once(f"task {n}", nothing) for n in range(count)])
        assert all(handle.wait().ok for handle in handles)

    def submitted(supervisor: Supervisor) -> None:
        handles = [supervisor.submit(TaskSpec.once(f"task {n}", nothing)) for n in range(count)]
        assert all(handle.wait().ok for handle in handles)

    limited = SupervisorConfig(max_concurrent=4)
    with Supervisor() as supervisor, Supervisor(limited) as four, Supervisor() as watched:
        watched.subscribe(lambda event: None)
        cases = {
            BARE: threads,
            "threads, start all, then join all": threads_together,
            OURS: lambda: tasks(supervisor),
            "supervisor, add each, one subscriber": lambda: tasks(watched),
            "supervisor, add_all": lambda: batch(supervisor),
            "supervisor, submit each": lambda: submitted(supervisor),
            "supervisor, submit each, max_concurrent=4": lambda: submitted(four),
        }
        samples = in_turn(
            {name: lambda case=case: timed(case) / count * 1e6 for name, case in cases.items()}, rounds
        )
    return Figure(
        title=f"Tasks: {count} that run once",
        unit="µs per task",
        reference=BARE,
        rows=samples.rows(BARE),
        goals=[Goal(claim="a task / a bare thread", measured=samples.ratio(OURS, BARE), limit=1.5)],
    )
