"""A small shop on durable runs: the same program on a SQLite file and on PostgreSQL.

The argument says where the runs are kept; nothing else changes. By default it is a SQLite file in a temporary folder:

    python examples/order_processing.py
    python examples/order_processing.py sqlite:shop.db
    python examples/order_processing.py postgresql://user@host/shop

Three workflows: `checkout` reserves, charges with retries, waits for the packer (a signal) and ships; what was done
is undone by steps when a later one fails, or when the order is called off. `remind` sleeps, then writes a mail.
`close_day` asks all shelves at once. Workers drive them on threads; start the program on several machines, and
they share the work. Start it again with the same store: the orders are known, and nothing is done twice.

Run it: python examples/order_processing.py

Prints::

    order-1: shipped as parcel-order-1, paid at attempt 2
    order-2: not shipped: PaymentRefused, the stock is free again
    order-3: called off: Canceled('the customer changed her mind')
    order-3: ['reserve', 'charge', 'refund', 'release']
    mail-1: reminded Ada
    day-1: {'tea': 12, 'rice': 7, 'oil': 30}
"""

import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from supervisor import Canceled
from supervisor.durable import (
    FlowEngine,
    FlowRuntime,
    NonRetryable,
    RetryPolicy,
    RunTerminal,
    StepFailed,
    StepInvocation,
    WorkflowContext,
    open_store,
)

flows = FlowRuntime()
SHELVES = {"tea": 12, "rice": 7, "oil": 30}
BANK = RetryPolicy.exponential(max_attempts=6, initial=0.005, maximum=0.02)


class PaymentRefused(NonRetryable):
    """The bank said no: it will not say yes to the next attempt."""


# Steps touch the world. Each is at least once: the keys let the other side see what it knows already.


@flows.step
def reserve(order: dict[str, Any], step: StepInvocation) -> str:
    return f"{order['item']} on hold, {step.step_key}"


@flows.step
def release(hold: str) -> str:
    return f"free again: {hold}"


@flows.step(timeout=30)
def charge(order: dict[str, Any], step: StepInvocation) -> dict[str, Any]:
    if order["card"] == "expired":
        raise PaymentRefused("the card has expired")
    if step.attempt == 1:
        raise ConnectionError("the bank did not answer")
    return {"key": step.step_key, "attempt": step.attempt}


@flows.step
def refund(payment: dict[str, Any]) -> str:
    return f"refunded {payment['key']}"


@flows.step
def ship(order_id: str) -> str:
    return f"parcel-{order_id}"


@flows.step
def send_mail(name: str) -> str:
    return f"reminded {name}"


@flows.step
def count_shelf(item: str) -> int:
    return SHELVES[item]


# Workflows only ask for steps, waits and signals: the same history leads to the same calls.


@flows.workflow
def checkout(ctx: WorkflowContext, order: dict[str, Any]) -> str:
    undo: list[tuple[str, Any, Any]] = []  # id, step, input
    try:
        hold = ctx.step("reserve", reserve, order)
        undo.append(("release", release, hold))
        payment = ctx.step("charge", charge, order, retry=BANK)
        undo.append(("refund", refund, payment))
        ctx.wait_signal("packed", "packed")
        parcel = ctx.step("ship", ship, ctx.run_id)
    except StepFailed as failure:
        compensate(ctx, undo)
        return f"not shipped: {failure.error.split(':')[0]}, the stock is free again"
    except Canceled:
        compensate(ctx, undo)
        raise
    return f"shipped as {parcel}, paid at attempt {payment['attempt']}"


def compensate(ctx: WorkflowContext, undo: list[tuple[str, Any, Any]]) -> None:
    for step_id, step, data in reversed(undo):
        ctx.step(step_id, step, data, retry=RetryPolicy.exponential(10, 0.1, 60))


@flows.workflow
def remind(ctx: WorkflowContext, customer: dict[str, Any]) -> str:
    ctx.sleep("a-while", customer["after"])
    mail: str = ctx.step("mail", send_mail, customer["name"])
    return mail


@flows.workflow
def close_day(ctx: WorkflowContext) -> dict[str, int]:
    counts: list[int] = ctx.gather([ctx.call(f"count-{item}", count_shelf, item) for item in SHELVES])
    return dict(zip(SHELVES, counts, strict=True))


def process(url: str) -> None:
    with (
        closing(open_store(url)) as store,
        FlowEngine(flows, store) as engine,
        engine.serve(workers=4, poll=0.05),
    ):
        engine.submit(checkout, {"item": "tea", "card": "good"}, run_id="order-1")
        engine.submit(checkout, {"item": "rice", "card": "expired"}, run_id="order-2")
        engine.submit(checkout, {"item": "oil", "card": "good"}, run_id="order-3")
        engine.submit(remind, {"name": "Ada", "after": 0.02}, run_id="mail-1")
        engine.submit(close_day, run_id="day-1")

        # An id of the sender's makes a signal that is sent again the same signal.
        engine.signal("order-1", "packed", signal_id="packer-1")
        print("order-1:", engine.result("order-1", timeout=15))
        print("order-2:", engine.result("order-2", timeout=15))
        call_off(engine, "order-3")
        print("mail-1:", engine.result("mail-1", timeout=15))
        print("day-1:", engine.result("day-1", timeout=15))


def call_off(engine: FlowEngine, order: str) -> None:
    """Cancel an order as soon as it is paid and waits for the packer."""
    try:
        while "packed" not in engine.snapshot(order).waits:
            pause(engine, order)
        engine.cancel(order, "the customer changed her mind")
    except RunTerminal:
        pass  # an earlier start of this program has done that
    try:
        engine.result(order, timeout=15)
    except Canceled as canceled:
        print(f"{order}: called off:", repr(canceled))
    print(f"{order}:", list(engine.snapshot(order).steps))


def pause(engine: FlowEngine, order: str) -> None:
    """Give the workers a moment, unless the order has ended."""
    try:
        engine.result(order, timeout=0.01)
    except TimeoutError:
        pass


def main() -> None:
    if len(sys.argv) > 1:
        process(sys.argv[1])
        return
    with TemporaryDirectory() as folder:
        process(f"sqlite:{Path(folder, 'shop.db')}")


if __name__ == "__main__":
    main()
