"""Every few seconds: a health check on an interval.

`every` runs a flow at the start and then again after the interval, counted from the end of each run.
The store and the queue are resources: set up once for the life of the scheduler, given to every run.
Here the interval is short, and the main program leaves after three reports.

Run it: python examples/scheduler_interval.py

Prints::

    check 1: healthy
    check 2: healthy
    check 3: healthy
    the last one said: healthy
"""

from enum import Enum, auto
from queue import Queue

from supervisor.flows import MemoryStore, Resources, Scheduler, Workflow


class Check(Enum):
    START = auto()
    COMPLETE = auto()


def check_health(res: Resources) -> Check:
    store = res.get("store", MemoryStore)
    number = store.update("checks", lambda checks: checks + 1, default=0)
    store.put("last_health_check", "healthy")
    res["reports"].put(f"check {number}: healthy")
    return Check.COMPLETE


def main() -> None:
    store, reports = MemoryStore(), Queue[str]()
    workflow = (
        Workflow(Resources(store=store, reports=reports))
        .register(Check.START, check_health)
        .add_exit_state(Check.COMPLETE)
    )
    scheduler = Scheduler()
    scheduler.every(
        "health_check", workflow, Check.START, 0.02
    )  # seconds; or every_seconds, every_minutes ...
    with scheduler.start():  # leaving the block stops it
        for _ in range(3):
            print(reports.get())
    print("the last one said:", store.get("last_health_check"))


if __name__ == "__main__":
    main()
