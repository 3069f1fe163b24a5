"""A step that fails for good, and a workflow that goes on: a person looks at the case.

By default the last failure of a step fails its run. With `continue_workflow_on_failure()` it is written down, and the
workflow decides: a fallback, a case for a person, steps that undo what was done. A decider asks
`ctx.step_failed(id)`, which tells a final failure that is in the history; a straight-line workflow catches
`StepFailed`. Never guess from the text of an error that may pass.

Run it: python examples/recoverable_step_failure.py

Prints (... stands for any text)::

    attempt 1: no answer from the warehouse
    attempt 2: no answer from the warehouse
    attempt 3: no answer from the warehouse
    case opened: TimeoutError: no answer from the warehouse (in reserve_stock, ...)
    order-7 is completed: {'case': 12}
"""

from typing import Any

from supervisor.durable import FlowEngine, FlowRuntime, RetryPolicy, StepInvocation, WorkflowContext
from supervisor.testing import VirtualClock

flows = FlowRuntime()


@flows.step
def reserve_stock(order: dict[str, Any], step: StepInvocation) -> None:
    print(f"attempt {step.attempt}: no answer from the warehouse")
    raise TimeoutError("no answer from the warehouse")


@flows.step
def open_manual_case(data: dict[str, str]) -> dict[str, int]:
    print("case opened:", data["reason"])
    return {"case": 12}


@flows.decider
def reserve(ctx: WorkflowContext) -> object:
    if ctx.step_completed("open-manual-case"):
        return ctx.complete(ctx.step_output("open-manual-case"))
    if error := ctx.step_failed("reserve-stock"):
        return ctx.schedule_step("open-manual-case", "open_manual_case", {"reason": error})
    if ctx.step_completed("reserve-stock"):
        return ctx.complete(None)
    return ctx.schedule_step_with_retry(
        "reserve-stock",
        "reserve_stock",
        ctx.input,
        RetryPolicy.fixed(3, 2).continue_workflow_on_failure(),
    )


def main() -> None:
    clock = VirtualClock()
    with FlowEngine(flows, clock=clock) as engine, engine.serve(workers=1):
        run_id = engine.submit(reserve, {"item": "tea"}, run_id="order-7")
        result = engine.result(run_id)  # moves the clock, over two pauses of 2 s
        print("order-7 is", engine.snapshot(run_id).status + ":", result)


if __name__ == "__main__":
    main()
