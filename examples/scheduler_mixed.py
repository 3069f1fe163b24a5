"""All of it together: a sync on an interval, a backup and a report by the calendar, an export on demand.

Each flow has its own schedule, and all of them share the dispatcher and the store. Here a virtual
clock lives through a weekend, from Saturday at midnight to Monday at nine, in a moment.

Run it: python examples/scheduler_mixed.py

Prints::

    Sat 03:00 backup
    Sun 03:00 backup
    Mon 03:00 backup
    Mon 09:00 weekly report
    Mon 09:00 emergency export
    data_sync: Completed, runs: 229
    daily_backup: Completed, runs: 3
    weekly_report: Completed, runs: 1
    emergency_export: Completed, runs: 1
"""

from enum import Enum, auto

from supervisor.flows import MemoryStore, Resources, Scheduler, Workflow
from supervisor.testing import VirtualClock


class Job(Enum):
    START = auto()
    COMPLETE = auto()


def main() -> None:
    clock, store = VirtualClock(), MemoryStore()

    def job(what: str, *, quiet: bool = False) -> Workflow:
        def work(res: Resources) -> Job:
            res.get("store", MemoryStore).update("work done", lambda done: done + 1, default=0)
            if not quiet:
                print(f"{clock.now():%a %H:%M} {what}")
            return Job.COMPLETE

        return Workflow(Resources(store=store)).register(Job.START, work).add_exit_state(Job.COMPLETE)

    scheduler = Scheduler(clock=clock)
    scheduler.every_minutes("data_sync", job("sync", quiet=True), Job.START, 15)
    scheduler.cron("daily_backup", job("backup"), Job.START, "0 0 3 * * *")
    scheduler.cron("weekly_report", job("weekly report"), Job.START, "0 0 9 * * MON")
    scheduler.manual("emergency_export", job("emergency export"), Job.START)

    with scheduler.start() as running:
        clock.advance((2 * 24 + 9) * 3600)
        running.trigger("emergency_export")
    for info in running.list():  # answers after the stop, too
        print(f"{info.id}: {type(info.status).__name__}, runs: {info.run_count}")


if __name__ == "__main__":
    main()
