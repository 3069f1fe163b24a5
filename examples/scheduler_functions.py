"""Plain functions as flows: no states, no builder, one decorator.

A function is a flow of one step. It takes nothing, `(res)` or `(res, run)`, what it returns is ignored, and
what it raises is a failure with the flow's backoff. The decorators leave the function as it was; its name
is the id. Here a virtual clock lives through an hour.

Run it: python examples/scheduler_functions.py

Prints::

    00:00 ping
    00:15 receipts
    00:20 ping
    00:30 invoices
    00:30 receipts
    00:40 ping
    00:45 receipts
    ping: 3, invoices: 1, stocktaking: 1, receipts: 3
"""

from supervisor.flows import Scheduler
from supervisor.testing import VirtualClock

clock = VirtualClock()
scheduler = Scheduler(clock=clock)
diary: list[str] = []


@scheduler.every_minutes(20)
def ping() -> None:
    diary.append(f"{clock.now():%H:%M} ping")


@scheduler.cron("0 30 * * * *")
def invoices() -> None:
    diary.append(f"{clock.now():%H:%M} invoices")


@scheduler.manual
def stocktaking() -> None:
    pass


def receipts() -> None:
    diary.append(f"{clock.now():%H:%M} receipts")


def main() -> None:
    scheduler.cron("receipts", receipts, expression="0 15-45/15 * * * *")  # the same without a decorator
    with scheduler.start() as running:
        running.trigger("stocktaking")
        clock.advance(59 * 60)
    print(*sorted(diary), sep="\n")
    print(", ".join(f"{info.id}: {info.run_count}" for info in running.list()))


if __name__ == "__main__":
    main()
