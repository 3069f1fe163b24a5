"""On demand: an export that runs when somebody asks for it.

A manual flow has no schedule; `trigger` starts a run and returns when it is accepted. One run of a
flow at a time: a second trigger meanwhile is refused with `FlowAlreadyRunning`. Events tell when a
run has ended.

Run it: python examples/scheduler_manual.py

Prints::

    exported 2 customers
    exported 3 customers
    runs: 2, the file has 4 lines
"""

from enum import Enum, auto
from pathlib import Path
from queue import Queue
from tempfile import TemporaryDirectory

from supervisor import Event
from supervisor.flows import FlowSucceeded, MemoryStore, Resources, Scheduler, Workflow


class Export(Enum):
    START = auto()
    COMPLETE = auto()


def export(res: Resources) -> Export:
    customers = res.get("store", MemoryStore).get("customers")
    lines = ["name", *customers]
    res.get("path", Path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("exported", len(customers), "customers")
    return Export.COMPLETE


def main() -> None:
    ended = Queue[str]()

    def note_the_end(event: Event) -> None:
        if isinstance(event, FlowSucceeded):
            ended.put(event.flow_id)

    with TemporaryDirectory() as folder:
        path, store = Path(folder) / "export.csv", MemoryStore()
        store.put("customers", ["Ada", "Ben"])
        workflow = (
            Workflow(Resources(store=store, path=path))
            .register(Export.START, export)
            .add_exit_state(Export.COMPLETE)
        )
        scheduler = Scheduler(subscribers=[note_the_end])
        scheduler.manual("data_export", workflow, Export.START)
        with scheduler.start() as running:
            running.trigger("data_export")
            ended.get()
            store.append("customers", "Cem")
            running.trigger("data_export")  # again, any time later
            ended.get()
        info = running.status("data_export")
        runs = 0 if info is None else info.run_count
        print(f"runs: {runs}, the file has {len(path.read_text('utf-8').splitlines())} lines")


if __name__ == "__main__":
    main()
