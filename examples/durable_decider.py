"""The other way to write a workflow: a function that looks at history and returns the next command.

A straight-line workflow is run from the top at each decision, and its calls find their results in the history. A
decider is the same without the disguise: it is asked what follows, looks at what is done, and returns one
command. It suits state machines, rules from a table, and code that was written for other engines of this kind.

Run it: python examples/durable_decider.py

Prints::

    asked at event 2: nothing is done
    asked at event 8: two quotes are in
    asked at event 11: ordered
    order-7: ordered from lisbon for 9
"""

from supervisor.durable import FlowEngine, FlowRuntime, RetryPolicy, WorkflowContext

flows = FlowRuntime()
PRICES = {"berlin": 12, "lisbon": 9}


@flows.step
def quote(shop: str) -> int:
    return PRICES[shop]


@flows.step
def order(shop: str) -> str:
    return f"ordered from {shop} for {PRICES[shop]}"


@flows.decider
def buy(ctx: WorkflowContext) -> object:
    seen = len(ctx.history)
    if ctx.step_completed("order"):
        print(f"asked at event {seen}: ordered")
        return ctx.complete(ctx.step_output("order"))
    if all(ctx.step_completed(f"quote-{shop}") for shop in PRICES):
        print(f"asked at event {seen}: two quotes are in")
        cheapest = min(PRICES, key=lambda shop: ctx.step_output(f"quote-{shop}"))
        return ctx.schedule_step("order", order, cheapest)
    print(f"asked at event {seen}: nothing is done")
    return ctx.schedule_steps(
        ctx.schedule_step_with_retry(f"quote-{shop}", quote, shop, RetryPolicy.fixed(3, 1)) for shop in PRICES
    )


def main() -> None:
    with FlowEngine(flows) as engine:
        run_id = engine.start(buy, run_id="order-7")
        print(f"{run_id}:", engine.result(run_id))


if __name__ == "__main__":
    main()
