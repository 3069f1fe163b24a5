"""Several steps at once, and their answers in order.

`ctx.call` describes a step, `ctx.gather` runs all that are described, each on a thread, and returns what they
returned, in the order in which they were given. Each result is written down as it comes: after a crash only
those are run that were not done. If one has failed for good, `gather` raises the first failure, once all
have ended.

Run it: python examples/durable_gather.py

Prints (... stands for any text)::

    prices: {'berlin': 12, 'lisbon': 9, 'madrid': 10}
    two were under way at the same time: True
    step 'oslo' failed after 1 attempt: ConnectionError: the shop is closed (in ask_shop, ...)
    and berlin has answered all the same: completed
"""

from threading import Barrier

from supervisor.durable import FlowEngine, FlowRuntime, RetryPolicy, StepFailed, WorkflowContext

flows = FlowRuntime()
PRICES = {"berlin": 12, "lisbon": 9, "madrid": 10}
together = Barrier(2)  # two have to come before either may go on


@flows.step
def ask_shop(shop: str) -> int:
    if shop == "oslo":
        raise ConnectionError("the shop is closed")
    if shop in ("berlin", "lisbon"):
        together.wait(timeout=10)
    return PRICES[shop]


@flows.workflow
def compare(ctx: WorkflowContext, shops: list[str]) -> dict[str, int]:
    once = RetryPolicy.none()
    answers: list[int] = ctx.gather([ctx.call(shop, ask_shop, shop, retry=once) for shop in shops])
    return dict(zip(shops, answers, strict=True))


@flows.workflow
def compare_with_oslo(ctx: WorkflowContext) -> str:
    once = RetryPolicy.none()
    try:
        ctx.gather([ctx.call(shop, ask_shop, shop, retry=once) for shop in ("oslo", "berlin", "lisbon")])
    except StepFailed as failure:
        return str(failure)
    return "all shops have answered"


def main() -> None:
    with FlowEngine(flows) as engine:
        run_id = engine.start(compare, ["berlin", "lisbon", "madrid"])
        print("prices:", engine.result(run_id))
        print("two were under way at the same time:", not together.broken)

        run_id = engine.start(compare_with_oslo)
        print(engine.result(run_id))
        berlin = engine.snapshot(run_id).steps["berlin"]
        print("and berlin has answered all the same:", berlin.status)


if __name__ == "__main__":
    main()
