"""The flow of the demo, its schedule, and who mends what it trips over."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from enum import Enum, auto

from supervisor.cli.demo_tasks import Place
from supervisor.flows.lifecycle import FlowSucceeded, FlowTrippedEvent
from supervisor.flows.resources import Resources
from supervisor.flows.running import RunningScheduler
from supervisor.flows.scheduler import Scheduler
from supervisor.flows.store import MemoryStore
from supervisor.flows.workflow import Workflow
from supervisor.kernel.backoff import BackoffPolicy
from supervisor.kernel.errors import Fail, SupervisorError
from supervisor.kernel.lane import EventStream
from supervisor.tasks.context import TaskContext
from supervisor.tasks.lifecycle import TaskFinished
from supervisor.tasks.supervisor import Supervisor

__all__ = ["FLOW", "LIMIT", "Report", "keep_reports", "reports"]

FLOW = "report"
LIMIT = 3  # failures in a row, then it trips


class Report(Enum):
    """The states of the flow."""

    COUNT = auto()
    WRITE = auto()
    DONE = auto()


def reports(place: Place) -> Workflow:
    """Return the flow: it counts what `import` has stored, and writes that into a folder."""

    def count(res: Resources) -> Report:
        with closing(sqlite3.connect(place.database)) as database:
            res["store"].put("sum", database.execute("SELECT count(*), sum(cents) FROM orders").fetchone())
        return Report.WRITE

    def write(res: Resources) -> Report:
        if not place.reports.is_dir():
            raise Fail(f"no folder {place.reports.name!r}")
        orders, cents = res["store"].get("sum")
        (place.reports / "orders.txt").write_text(f"{orders} {cents}\n", encoding="utf-8")
        return Report.DONE

    return (
        Workflow(Resources(store=MemoryStore()))
        .register(Report.COUNT, count, next_states=[Report.WRITE])
        .register(Report.WRITE, write, next_states=[Report.DONE])
        .add_exit_state(Report.DONE)
    )


def keep_reports(ctx: TaskContext, story: Supervisor, events: EventStream, place: Place, pace: float) -> None:
    """Schedule the flow once there is something to report; when it has tripped, mend the cause and reset it.

    events: of `story`.  Ends when the flow has succeeded, or the story has ended. A task of the one who watches.
    """
    ctx.on_cancel(events.close)
    scheduler = Scheduler(supervisor=story)
    scheduler.every(FLOW, reports(place), Report.COUNT, interval=pace)
    scheduler.set_backoff(FLOW, _backoff(pace), streak_limit=LIMIT)
    running: RunningScheduler | None = None
    try:
        for event in events:
            match event:
                case TaskFinished(task="import"):
                    running = scheduler.start()
                case FlowTrippedEvent() if running is not None:
                    ctx.sleep(1.5 * pace)  # so that people see it
                    place.reports.mkdir()
                    running.reset_flow(FLOW)
                case FlowSucceeded():
                    return
                case _:
                    pass
    except SupervisorError:
        return  # the story has ended early


def _backoff(pace: float) -> BackoffPolicy:
    """Longer than the interval, or nobody would see it."""
    return BackoffPolicy(initial=1.2 * pace, multiplier=1.5, jitter=0.1)
