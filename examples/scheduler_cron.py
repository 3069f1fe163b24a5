"""At nine and at six: two daily reports by the calendar.

A cron expression has six fields, the second first, and is read in the time zone you name: a report
at nine in Berlin stays at nine when the clocks change. Here a virtual clock lives through two days
of January 2000 in a moment; leave `clock=` away, and the reports come on real days.

Run it: python examples/scheduler_cron.py

Prints::

    Sat 09:00 Morning report: 3 records processed
    Sat 18:00 Evening report: 3 records processed
    Sun 09:00 Morning report: 3 records processed
    Sun 18:00 Evening report: 3 records processed
    next: Mon 09:00
"""

from collections.abc import Callable
from datetime import datetime
from enum import Enum, auto
from zoneinfo import ZoneInfo

from supervisor.flows import MemoryStore, Resources, Scheduler, Workflow
from supervisor.testing import VirtualClock

BERLIN = ZoneInfo("Europe/Berlin")


class Report(Enum):
    START = auto()
    COMPLETE = auto()


def local(instant: datetime) -> str:
    return f"{instant.astimezone(BERLIN):%a %H:%M}"


def daily_report(kind: str, clock: VirtualClock) -> Callable[[Resources], Report]:
    def prepare(res: Resources) -> Report:
        records = ["sales", "returns", "visits"]
        report = f"{kind} report: {len(records)} records processed"
        res.get("store", MemoryStore).put("last_report", report)
        print(local(clock.now()), report)
        return Report.COMPLETE

    return prepare


def main() -> None:
    clock, store = VirtualClock(), MemoryStore()

    def workflow(kind: str) -> Workflow:
        return (
            Workflow(Resources(store=store))
            .register(Report.START, daily_report(kind, clock))
            .add_exit_state(Report.COMPLETE)
        )

    scheduler = Scheduler(clock=clock)
    scheduler.cron("morning_report", workflow("Morning"), Report.START, "0 0 9 * * *", tz=BERLIN)
    scheduler.cron("evening_report", workflow("Evening"), Report.START, "0 0 18 * * *", tz=BERLIN)
    with scheduler.start() as running:
        clock.advance(2 * 24 * 3600)
        upcoming = [info.next_fire for info in running.list() if info.next_fire is not None]
        print("next:", local(min(upcoming)))


if __name__ == "__main__":
    main()
