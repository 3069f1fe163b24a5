"""A first durable run: steps whose results are written down, so that none is done twice.

A workflow is a function that asks for steps. What a step returned goes into a store, here a SQLite file. When the
workflow is asked again, after a crash or on another machine, it runs from the top and finds the results there.

Run it: python examples/durable_steps.py

Prints::

    reserving 2 x tea
    charging 9.0 EUR
    first engine: {'order': 7, 'paid': 9.0}
    second engine: {'order': 7, 'paid': 9.0}
    1 run_created
    2 run_started
    3 step_created
    4 step_started
    5 step_completed
    6 step_created
    7 step_started
    8 step_completed
    9 run_completed
"""

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from supervisor.durable import FlowEngine, FlowRuntime, SqliteEventStore, WorkflowContext

flows = FlowRuntime()


@flows.step
def reserve(order: dict[str, Any]) -> float:
    print("reserving", order["amount"], "x", order["item"])
    price: float = 4.5 * order["amount"]
    return price


@flows.step
def charge(price: float) -> float:
    print("charging", price, "EUR")
    return price


@flows.workflow
def checkout(ctx: WorkflowContext, order: dict[str, Any]) -> dict[str, Any]:
    price = ctx.step("reserve", reserve, order)
    paid = ctx.step("charge", charge, price)
    return {"order": order["id"], "paid": paid}


def run(file: Path, engine_name: str) -> None:
    with closing(SqliteEventStore(file)) as store, FlowEngine(flows, store) as engine:
        # A known id is no second run: it is driven on, and one that has ended is left as it is.
        run_id = engine.start(checkout, {"id": 7, "item": "tea", "amount": 2}, run_id="order-7")
        print(f"{engine_name}: {engine.result(run_id)}")


def main() -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder, "flows.db")
        run(file, "first engine")
        run(file, "second engine")
        with closing(SqliteEventStore(file)) as store:
            for envelope in store.read("order-7"):
                print(envelope.sequence, envelope.event.type)


if __name__ == "__main__":
    main()
