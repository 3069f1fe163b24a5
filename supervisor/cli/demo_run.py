"""The durable run of the demo: a program that is killed in the middle, and started again.

Run it as `python -m supervisor.cli.demo_run FILE`. It prints a line when an attempt of a step begins or fails.
"""

from __future__ import annotations

import os
import sys

from supervisor.durable.context import WorkflowContext
from supervisor.durable.engine import FlowEngine
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.runtime import FlowRuntime, StepInvocation
from supervisor.durable.stores.sqlite import SqliteEventStore
from supervisor.kernel.cancellation import CancelToken
from supervisor.kernel.clock import SYSTEM_CLOCK

__all__ = ["DEADLY", "RUN", "main"]

RUN = "order-7"
DEADLY = "pack"  # the step in which the first process is killed
_EFFORT = 0.08  # seconds of a step
_LONGER = 0.4  # seconds of the deadly one
_PATIENCE = 0.15  # seconds before the second attempt


def main(file: str) -> None:
    """Start the run, or go on with it where the last process has left it, and bring it to its end."""
    store = SqliteEventStore(file)
    with FlowEngine(_flows(), store) as engine:
        engine.start("order", {"id": 7}, run_id=RUN)
        while (due := engine.next_wakeup()) is not None:  # the run rests: until its next attempt
            _rest((due - SYSTEM_CLOCK.now()).total_seconds())
            engine.resume_scheduled_run(RUN, SYSTEM_CLOCK.now())
            engine.drive(RUN)
    store.close()


def _flows() -> FlowRuntime:
    flows = FlowRuntime()

    def work(order: dict[str, int], call: StepInvocation) -> str:
        _say(call, "begins")
        _rest(_LONGER if call.step_id == DEADLY else _EFFORT)
        if call.step_id == "charge" and call.attempt == 1:
            _say(call, "fails")
            raise ConnectionError("the bank did not answer")
        return f"{call.step_id} of order {order['id']}"

    flows.step(work)

    @flows.workflow
    def order(ctx: WorkflowContext, order: dict[str, int]) -> list[str]:
        retry = RetryPolicy.fixed(3, _PATIENCE)
        return [
            ctx.step(step, work, order, retry=retry)
            for step in ("reserve", "charge", DEADLY, "ship", "notify")
        ]

    return flows


def _say(call: StepInvocation, what: str) -> None:
    print(os.getpid(), call.step_id, call.attempt, what, flush=True)


def _rest(seconds: float) -> None:
    CancelToken().wait(max(0.0, seconds))


if __name__ == "__main__":
    main(sys.argv[1])
