"""Testing a flow: a night of failures and a week of reports in no time.

A task is a function: test what it does by calling it. Whole workflows and schedules are tested on a
`VirtualClock`, which runs the real threads and makes every time exact. The functions below are tests as pytest
would find them; here `main` calls them.

Run it: python examples/flow_testing.py

Prints::

    asked at 0, 60 and 180 s, then loaded
    7 reports in a week, all at nine in Berlin
"""

from datetime import datetime
from enum import Enum, auto
from zoneinfo import ZoneInfo

from supervisor import BackoffPolicy, Jitter
from supervisor.flows import FlowStarted, Resources, Scheduler, Workflow
from supervisor.testing import EventRecorder, VirtualClock, no_leaked_threads

BERLIN = ZoneInfo("Europe/Berlin")
PATIENT = BackoffPolicy(initial=60, max_delay=3600, jitter=Jitter.NONE)


class Rates(Enum):
    LOAD = auto()
    LOADED = auto()


def load(res: Resources) -> Rates:
    res["bank"].ask()
    return Rates.LOADED


def workflow_with(bank: object) -> Workflow:
    """The workflow under test; a test gives it another bank."""
    return (
        Workflow(Resources(bank=bank))
        .register(Rates.LOAD, load, max_retries=5, backoff=PATIENT)
        .add_exit_state(Rates.LOADED)
    )


class SleepyBank:
    """Answers the third call."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.asked: list[float] = []

    def ask(self) -> None:
        self.asked.append(self.clock.monotonic())
        if len(self.asked) < 3:
            raise ConnectionError("zzz")


def test_the_bank_is_asked_again_after_one_and_three_minutes() -> None:
    clock = VirtualClock()
    bank = SleepyBank(clock)
    with no_leaked_threads():
        assert workflow_with(bank).run(Rates.LOAD, clock=clock) is Rates.LOADED
    assert bank.asked == [0.0, 60.0, 180.0]


def test_the_report_is_written_daily_at_nine_in_berlin() -> int:
    clock, recorder = VirtualClock(), EventRecorder()
    scheduler = Scheduler(clock=clock, subscribers=[recorder])
    scheduler.cron("report", lambda: None, expression="0 0 9 * * *", tz="Europe/Berlin")
    with no_leaked_threads(), scheduler.start():
        clock.advance(7 * 24 * 3600)
    starts: list[datetime] = [event.at.astimezone(BERLIN) for event in recorder.of(FlowStarted)]
    assert {(start.hour, start.minute) for start in starts} == {(9, 0)}
    return len(starts)


def main() -> None:
    test_the_bank_is_asked_again_after_one_and_three_minutes()
    print("asked at 0, 60 and 180 s, then loaded")
    print(test_the_report_is_written_daily_at_nine_in_berlin(), "reports in a week, all at nine in Berlin")


if __name__ == "__main__":
    main()
