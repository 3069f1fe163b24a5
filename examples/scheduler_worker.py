"""From a timer to a worker: the scheduler finds what is due and queues it, the worker drives it.

A run that waits is an entry in the store: nothing of it stays in memory, and no thread waits for it. The scheduler asks
the store for waits and retries that are due and puts their runs into the queue, each once; workers take them from
there. `engine.serve()` does all of this on threads of its own; here it is done by hand, one tick at a time.

Run it: python examples/scheduler_worker.py

Prints::

    order-7 is suspended until 2000-01-02 00:00 UTC
    tick at noon: waits=0 retries=0 enqueued=0
    tick after a day: waits=1 retries=0 enqueued=1
    another tick: waits=1 retries=0 enqueued=0
    reminder sent to Ada
    runs driven: 1
    order-7 is completed
    next wakeup: None
"""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from supervisor.durable import (
    FlowEngine,
    FlowRuntime,
    FlowScheduler,
    FlowWorker,
    SchedulerTick,
    SqliteEventStore,
    WorkflowContext,
)
from supervisor.testing import VirtualClock

flows = FlowRuntime()


@flows.step
def remind(customer: str) -> None:
    print("reminder sent to", customer)


@flows.workflow
def payment_window(ctx: WorkflowContext, order: dict[str, Any]) -> None:
    # The deadline is part of the input: a workflow that looked at the clock would see another time at each replay.
    ctx.wait_until("payment-window", datetime.fromisoformat(order["deadline"]))
    ctx.step("remind", remind, order["customer"])


def show(label: str, tick: SchedulerTick) -> None:
    print(f"{label}: waits={tick.due_waits} retries={tick.due_retries} enqueued={tick.enqueued_tasks}")


def main() -> None:
    clock = VirtualClock()  # begins on 2000-01-01
    deadline = datetime(2000, 1, 2, tzinfo=UTC)
    with (
        TemporaryDirectory() as folder,
        closing(SqliteEventStore(Path(folder, "flows.db"))) as store,
        FlowEngine(flows, store, clock=clock) as engine,
    ):
        scheduler, worker = FlowScheduler(engine), FlowWorker(engine)
        order = {"customer": "Ada", "deadline": deadline.isoformat()}
        engine.start(payment_window, order, run_id="order-7")
        print(
            f"order-7 is {engine.snapshot('order-7').status} until {engine.next_wakeup():%Y-%m-%d %H:%M} UTC"
        )

        clock.advance(timedelta(hours=12).total_seconds())
        show("tick at noon", scheduler.enqueue_due_work(clock.now()))
        clock.advance(timedelta(hours=12).total_seconds())
        show("tick after a day", scheduler.enqueue_due_work(clock.now()))
        show("another tick", scheduler.enqueue_due_work(clock.now()))
        print("runs driven:", worker.run_until_idle())
        print("order-7 is", engine.snapshot("order-7").status)
        print("next wakeup:", scheduler.next_scheduled_wakeup())


if __name__ == "__main__":
    main()
