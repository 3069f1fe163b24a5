"""What tasks share: set up before, torn down after, in reverse.

Anything can be a resource. One with `setup` and `teardown` has them called, a context manager is entered and
exited, anything else is just handed on. `Workflow.run` does it around each run, a scheduler once around all
of its runs. `health` asks those that can tell.

Run it: python examples/flow_resources.py

Prints::

    two runs by hand
    database opened
    2 rows in the folder: True
    database closed
    database opened
    4 rows in the folder: True
    database closed
    two runs of a scheduler
    database opened
    6 rows in the folder: True
    8 rows in the folder: True
    database closed
"""

from enum import Enum, auto
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory

from supervisor import Event
from supervisor.flows import FlowSucceeded, Health, MemoryStore, Resource, Resources, Scheduler, Workflow


class Step(Enum):
    WRITE = auto()
    DONE = auto()


class Database(Resource):
    def __init__(self) -> None:
        self.open = False

    def setup(self) -> None:
        self.open = True
        print("database opened")

    def teardown(self) -> None:
        self.open = False
        print("database closed")

    def health(self) -> Health:
        return Health.HEALTHY if self.open else Health.UNHEALTHY


def write(res: Resources) -> Step:
    assert res.health() == {"database": Health.HEALTHY}
    rows = res.get("store", MemoryStore).update("rows", lambda rows: rows + 2, default=0)
    print(rows, "rows in the folder:", Path(res["folder"]).is_dir())  # the name that it returned on entry
    return Step.DONE


def main() -> None:
    ended = Queue[Event]()
    store, database = MemoryStore(), Database()

    def workflow() -> Workflow:
        resources = Resources(store=store, folder=TemporaryDirectory(), database=database)
        return Workflow(resources).register(Step.WRITE, write).add_exit_state(Step.DONE)

    print("two runs by hand")
    for _ in range(2):
        workflow().run(Step.WRITE)

    print("two runs of a scheduler")
    scheduler = Scheduler(
        subscribers=[lambda event: ended.put(event) if isinstance(event, FlowSucceeded) else None]
    )
    scheduler.manual("write", workflow(), Step.WRITE)
    with scheduler.start() as running:
        for _ in range(2):
            running.trigger("write")
            ended.get()


if __name__ == "__main__":
    main()
