"""A workflow: states, a task for each, and the way from one to the next.

A task does its part and returns the next state; a router only looks and decides. The run ends in an exit
state, which `run` returns. What the tasks share lies in the resources, here a store.

Run it: python examples/flow_states.py

Prints::

    order 17: received > checked > packed > Order.SHIPPED
    order 18: received > checked > Order.REFUSED
"""

from enum import Enum, auto

from supervisor.flows import MemoryStore, Resources, Workflow


class Order(Enum):
    RECEIVE = auto()
    CHECK = auto()
    DECIDE = auto()
    PACK = auto()
    SHIPPED = auto()
    REFUSED = auto()


def receive(res: Resources) -> Order:
    res["store"].append("steps", "received")
    return Order.CHECK


def check(res: Resources) -> Order:
    res["store"].append("steps", "checked")
    res["store"].put("in stock", res["store"].get("pieces") <= 5)
    return Order.DECIDE


def decide(res: Resources) -> Order:
    return Order.PACK if res["store"].get("in stock") else Order.REFUSED


def pack(res: Resources) -> Order:
    res["store"].append("steps", "packed")
    return Order.SHIPPED


def main() -> None:
    store = MemoryStore()
    workflow = (
        Workflow(Resources(store=store))
        .register(Order.RECEIVE, receive)
        .register(Order.CHECK, check)
        .register_router(Order.DECIDE, decide)
        .register(Order.PACK, pack)
        .add_exit_states([Order.SHIPPED, Order.REFUSED])
    )
    for order, pieces in ((17, 2), (18, 40)):
        store.clear()
        store.put("pieces", pieces)
        end = workflow.run(Order.RECEIVE)
        print(f"order {order}:", " > ".join([*store.get("steps"), str(end)]))


if __name__ == "__main__":
    main()
