"""No overlap: one run of a flow at a time, however slow it is.

An interval counts from the end of a run, so a sync every 30 s that takes 45 s starts every 75 s. A tick of
the calendar that comes during a run is skipped, counted and told, never queued. A virtual clock shows the
exact seconds.

Run it: python examples/scheduler_overlap.py

Prints::

    interval flow starts at 0, 75, 150 s
    calendar flow starts at 30, 90, 150 s
    ticks skipped at 60, 120, 180 s, because of: running
"""

from supervisor.flows import FlowRun, FlowSkipped, FlowStarted, Resources, Scheduler
from supervisor.testing import EventRecorder, VirtualClock


def slow_sync(res: Resources, run: FlowRun) -> None:
    run.token.sleep(45)


def seconds(times: list[float]) -> str:
    return ", ".join(f"{time:g}" for time in times)


def main() -> None:
    clock, recorder = VirtualClock(), EventRecorder()
    scheduler = Scheduler(clock=clock, subscribers=[recorder])
    scheduler.every("interval", slow_sync, interval=30)
    with scheduler.start():
        clock.advance(190)
    print("interval flow starts at", seconds(recorder.times(FlowStarted)), "s")

    clock, recorder = VirtualClock(), EventRecorder()
    scheduler = Scheduler(clock=clock, subscribers=[recorder])
    scheduler.cron("calendar", slow_sync, expression="*/30 * * * * *")
    with scheduler.start():
        clock.advance(190)
    [why] = {event.reason for event in recorder.of(FlowSkipped)}
    print("calendar flow starts at", seconds(recorder.times(FlowStarted)), "s")
    print("ticks skipped at", seconds(recorder.times(FlowSkipped)), "s, because of:", why)


if __name__ == "__main__":
    main()
