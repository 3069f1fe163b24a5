"""A flow that keeps failing: it backs off, trips, and is let in again.

After each failure a flow rests longer. With a `streak_limit` it trips: nothing starts it any more, not
even `trigger`, until somebody has looked and calls `reset_flow`. Here the warehouse is down for a while.

Run it: python examples/scheduler_backoff.py

Prints::

    failure 1, resting for 0.02 s
    failure 2, resting for 0.04 s
    failure 3, tripped: OSError: the warehouse is down
    trigger refused: flow 'stock' is tripped; call reset_flow('stock') first
    the warehouse is up again
    stock is in sync, failures in a row: 0
"""

from enum import Enum, auto
from queue import Queue
from threading import Event as Flag

from supervisor import BackoffPolicy, Event, Jitter
from supervisor.flows import (
    FlowBackoff,
    FlowSucceeded,
    FlowTripped,
    FlowTrippedEvent,
    Scheduler,
    Tripped,
    Workflow,
)

warehouse_is_up = Flag()


class Stock(Enum):
    SYNC = auto()
    DONE = auto()


def sync_stock() -> Stock:
    if not warehouse_is_up.is_set():
        raise OSError("the warehouse is down")
    return Stock.DONE


def main() -> None:
    news = Queue[Event]()
    told = FlowBackoff, FlowTrippedEvent, FlowSucceeded
    scheduler = Scheduler(subscribers=[lambda event: news.put(event) if isinstance(event, told) else None])
    workflow = Workflow().register(Stock.SYNC, sync_stock).add_exit_state(Stock.DONE)
    scheduler.every("stock", workflow, Stock.SYNC, 0.01)
    scheduler.set_backoff(
        "stock",
        BackoffPolicy(initial=0.02, multiplier=2.0, max_delay=2.0, jitter=Jitter.NONE),
        streak_limit=3,
    )
    with scheduler.start() as running:
        while isinstance(event := news.get(), FlowBackoff):
            print(f"failure {event.streak}, resting for {event.delay:.2f} s")

        info = running.status("stock")
        assert info is not None
        assert isinstance(info.status, Tripped)
        print(f"failure {info.status.streak}, tripped:", info.status.last_error.split(" (")[0])
        try:
            running.trigger("stock")
        except FlowTripped as error:
            print("trigger refused:", error)

        warehouse_is_up.set()
        print("the warehouse is up again")
        running.reset_flow("stock")  # an interval flow that is overdue starts at once
        news.get()
        info = running.status("stock")
        assert info is not None
        print("stock is in sync, failures in a row:", info.failure_streak)


if __name__ == "__main__":
    main()
