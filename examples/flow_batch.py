"""A batch: load items, process each, and look at all results in the end.

`batch` makes a task of three functions. Items are processed on at most `concurrency` threads at once, each with
retries of its own; one that fails does not stop the others. `finish` gets a result for each item, in the order
of the items, and decides what comes next.

Run it: python examples/flow_batch.py

Prints::

    invoice 17: sent to ada@example.com
    invoice 18: sent to ben@example.com
    invoice 19: no address
    Mailing.SOME_LEFT
"""

from collections.abc import Sequence
from enum import Enum, auto

from supervisor.flows import BranchResult, MemoryStore, Resources, Workflow, batch


class Mailing(Enum):
    SEND = auto()
    ALL_SENT = auto()
    SOME_LEFT = auto()


def load(res: Resources) -> list[tuple[int, str]]:
    return list(res.get("store", MemoryStore).get("invoices").items())


def send(invoice: tuple[int, str]) -> str:
    number, address = invoice
    if not address:
        raise ValueError(f"invoice {number}: no address")
    return f"invoice {number}: sent to {address}"


def finish(res: Resources, results: Sequence[BranchResult]) -> Mailing:
    for result in results:
        print(result.value if result.ok else result.error)
    return Mailing.ALL_SENT if all(result.ok for result in results) else Mailing.SOME_LEFT


def main() -> None:
    store = MemoryStore()
    store.put("invoices", {17: "ada@example.com", 18: "ben@example.com", 19: ""})
    workflow = (
        Workflow(Resources(store=store))
        .register(Mailing.SEND, batch(load, send, finish, concurrency=2))
        .add_exit_states([Mailing.ALL_SENT, Mailing.SOME_LEFT])
    )
    print(workflow.run(Mailing.SEND))


if __name__ == "__main__":
    main()
