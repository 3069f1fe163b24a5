"""A step that fails and is tried again later, by a scheduler and a worker.

The policy is written into the history: four executions at most, after each failure a pause somewhere between a
millisecond and a cap that doubles, from 5 s up to 60 s. The pause is drawn from the ids of run, step and attempt: a
restart, or another host, comes to the same one. Meanwhile the run costs a row, not a thread. The clock is a
virtual one, so that nobody has to wait.

Run it: python examples/retry_backoff.py

Prints::

    attempt 1: the bank did not answer
    order-7 is suspended, the next attempt is due in 1.942 s
    1 second later: 0 runs queued
    when it is due: 1 run queued, for 1 retry
    attempt 2: paid
    order-7 is completed: receipt 42
"""

from datetime import timedelta

from supervisor.durable import (
    FlowEngine,
    FlowRuntime,
    FlowScheduler,
    FlowWorker,
    RetryPolicy,
    StepInvocation,
    WorkflowContext,
)
from supervisor.testing import VirtualClock

flows = FlowRuntime()
PATIENT = RetryPolicy.exponential(max_attempts=4, initial=5, maximum=60)


@flows.step
def capture_payment(order: int, step: StepInvocation) -> str:
    if step.attempt == 1:
        print("attempt 1: the bank did not answer")
        raise ConnectionError("the bank did not answer")
    print(f"attempt {step.attempt}: paid")
    return "receipt 42"


@flows.workflow
def checkout(ctx: WorkflowContext, order: int) -> str:
    receipt: str = ctx.step("capture-payment", capture_payment, order, retry=PATIENT)
    return receipt


def main() -> None:
    clock = VirtualClock()
    with FlowEngine(flows, clock=clock) as engine:
        scheduler, worker = FlowScheduler(engine), FlowWorker(engine)

        engine.start(checkout, 7, run_id="order-7")
        due = scheduler.next_scheduled_wakeup()
        assert due is not None
        pause = (due - clock.now()).total_seconds()
        assert pause == PATIENT.delay("order-7", "capture-payment", 1)
        print("order-7 is", engine.snapshot("order-7").status + f", the next attempt is due in {pause} s")

        tick = scheduler.enqueue_due_work(clock.now() + timedelta(seconds=1))
        print("1 second later:", tick.enqueued_tasks, "runs queued")
        clock.advance(pause)
        tick = scheduler.enqueue_due_work(clock.now())
        print("when it is due:", tick.enqueued_tasks, "run queued, for", tick.due_retries, "retry")
        worker.run_until_idle()
        print("order-7 is", engine.snapshot("order-7").status + ":", engine.result("order-7"))


if __name__ == "__main__":
    main()
