"""Schedules and the clock: late ticks, long runs, drift, suspends, restarts, zones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from supervisor.flows import Scheduler, next_fire
from supervisor.testing import EventRecorder, VirtualClock
from tests.flows.scheduling import Body, at

BERLIN = "Europe/Berlin"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# A tick that came a second late was thrown away: on a busy host weekly jobs never ran.


@pytest.mark.parametrize("late", [1.0, 3.0, 59.0])
def test_a_late_tick_runs_once(late: float) -> None:
    clock = VirtualClock()
    body = Body(clock)
    scheduler = Scheduler(clock=clock)
    scheduler.cron("a", body, expression="0 0 9 * * *")
    with scheduler.start():
        clock.advance(9 * 3600.0 - 1.0)
        clock.step_wall(1.0 + late)  # nobody could look meanwhile
        clock.advance(1.0)
        assert body.starts == [9 * 3600.0]
        clock.advance(3600.0)
        assert len(body.starts) == 1


def test_ticks_slept_over_run_once_and_then_the_next_one_comes_as_usual() -> None:
    clock = VirtualClock()
    body = Body(clock)
    scheduler = Scheduler(clock=clock)
    scheduler.cron("a", body, expression="*/10 * * * * *")
    with scheduler.start() as running:
        clock.advance(10.0)
        clock.step_wall(52.0)  # over the ticks at 20, 30, 40, 50, 60
        clock.advance(10.0)  # 00:01:12
        assert body.starts == [10.0, 20.0]
        clock.advance(8.0)  # 00:01:20
        assert body.starts == [10.0, 20.0, 28.0]
        assert running.list()[0].skipped == 0


def test_a_suspended_machine_notices_within_half_a_minute() -> None:
    """The monotonic clock stands still in a suspend, the wall clock goes on."""
    clock = VirtualClock()
    body = Body(clock)
    scheduler = Scheduler(clock=clock)
    scheduler.cron("a", body, expression="0 5 * * * *")
    with scheduler.start():
        clock.advance(1.0)
        clock.step_wall(8 * 3600.0)
        clock.advance(29.0)
        assert body.starts == [30.0]


# A run longer than its interval: nobody could say when the next one starts, and runs piled up.


def test_a_run_longer_than_its_interval_never_overlaps_and_queues_nothing() -> None:
    clock = VirtualClock()
    every, cron = Body(clock, 0.5), Body(clock, 1.5)
    recorder = EventRecorder()
    scheduler = Scheduler(clock=clock, subscribers=[recorder])
    scheduler.every("e", every, interval=0.3)
    scheduler.cron("c", cron, expression="* * * * * *")
    with scheduler.start() as running:
        clock.advance(6.1)
        assert every.starts == pytest.approx([0.8 * n for n in range(8)], abs=1e-9)
        assert cron.starts == [1.0, 3.0, 5.0]
        assert (every.most, cron.most) == (1, 1)
        assert [info.skipped for info in running.list()] == [0, 3]
        assert [event.flow_id for event in recorder.of("flow_skipped")] == ["c"] * 3
        clock.advance(1.0)


# Start times crept by a tenth of a second a minute, until one minute was left out.


def test_a_cron_flow_never_drifts() -> None:
    clock = VirtualClock(start=at(0.123456))
    seen: list[int] = []
    scheduler = Scheduler(clock=clock)

    def body() -> None:
        seen.append(clock.now().microsecond)
        clock.sleep(0.05)

    scheduler.cron("a", body, expression="*/1 * * * * *")
    with scheduler.start():
        clock.advance(300.0)
    assert seen == [0] * 300


# A service that restarts more often than its interval never ran its job, or ran it each time.


def test_the_rule_of_the_first_run_is_the_same_for_every_start() -> None:
    clock = VirtualClock()
    every, cron = Body(clock), Body(clock)
    for _ in range(5):
        scheduler = Scheduler(clock=clock)
        scheduler.every("e", every, interval=60.0)
        scheduler.cron("c", cron, expression="0 * * * * *")
        with scheduler.start():
            clock.advance(25.0)
    assert every.starts == [0.0, 25.0, 50.0, 75.0, 100.0]
    assert cron.starts == [60.0, 120.0]


# Daylight saving: a day was left out, a time in the gap was dropped, one in the overlap ran twice.


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        ("0 0 0 * * *", "US/Pacific", "2022-03-13T08:00:07", "2022-03-14T07:00:00"),
        ("0 0 8 * * *", BERLIN, "2016-03-26T20:00:00", "2016-03-27T06:00:00"),
        ("0 30 2 * * *", BERLIN, "2026-03-28T12:00:00", "2026-03-29T01:00:00"),
        ("0 30 2 * * *", BERLIN, "2026-10-24T12:00:00", "2026-10-25T00:30:00"),
        ("0 30 2 * * *", BERLIN, "2026-10-25T00:30:00", "2026-10-26T01:30:00"),
    ],
)
def test_a_time_of_day_comes_once_a_day(expression: str, zone: str, after: str, expected: str) -> None:
    assert next_fire(expression, utc(after), zone) == utc(expected)


def test_a_daily_flow_runs_once_a_day_through_both_nights_of_a_year() -> None:
    for day, instant in (("2026-03-28T10:00", "2026-03-29T01:00"), ("2026-10-24T10:00", "2026-10-25T00:30")):
        clock = VirtualClock(start=utc(day))
        seen: list[datetime] = []
        scheduler = Scheduler(clock=clock)
        scheduler.cron(
            "a", lambda seen=seen, clock=clock: seen.append(clock.now()), expression="0 30 2 * * *", tz=BERLIN
        )
        with scheduler.start():
            clock.advance(timedelta(hours=26).total_seconds())
        assert seen == [utc(instant)]


# "The 13th or a Friday" became "Friday the 13th".


def test_both_days_restricted_means_either() -> None:
    fires, instant = 0, utc("2026-01-01T00:00") - timedelta(seconds=1)
    while (following := next_fire("0 0 0 13 * FRI", instant)) is not None and following.year == 2026:
        fires, instant = fires + 1, following
    assert fires == 61


# 30 February was accepted, and then spun, or ran each day.


@pytest.mark.parametrize("expression", ["0 0 0 30 2 *", "0 0 0 31 4,6,9,11 *", "0 0 0 1 1 * 1999"])
def test_a_schedule_that_never_fires_is_refused_at_once(expression: str) -> None:
    scheduler = Scheduler(clock=VirtualClock())
    with pytest.raises(ValueError, match="never fires"):
        scheduler.cron("a", lambda: None, expression=expression)
    assert len(scheduler) == 0
    assert next_fire(expression, at(0)) is None
