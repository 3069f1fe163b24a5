"""Flows by the calendar: no run at the start, none in the backoff window, what was missed runs once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from supervisor import BackoffPolicy
from supervisor.flows import Completed, Scheduler, Tripped, next_fire
from supervisor.testing import EventRecorder, VirtualClock
from tests.flows.scheduling import EXACT, Body, Start, at, kind_of, of_flow, story

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


def skips(recorder: EventRecorder, flow_id: str) -> list[tuple[float, str]]:
    return [
        ((event.at - at(0)).total_seconds(), event.reason)
        for event in recorder.of("flow_skipped")
        if event.flow_id == flow_id
    ]


def test_the_first_run_is_at_the_next_whole_second_and_none_at_the_start(recorder: EventRecorder) -> None:
    clock = VirtualClock(start=at(0.4))
    body = Body(clock)
    scheduler = Scheduler(clock=clock)
    scheduler.cron("a", body, expression="* * * * * *")
    with scheduler.start():
        clock.advance(2.0)
    assert body.starts == pytest.approx([0.6, 1.6], abs=1e-9)


def test_a_tick_at_the_very_instant_of_the_start_is_over(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock)
    scheduler.cron("a", body, expression="@hourly")
    running = start(scheduler)
    assert body.starts == []
    info = running.status("a")
    assert info is not None
    assert info.next_fire == at(3600)
    clock.advance(3600.0)
    assert body.starts == [3600.0]


def test_ticks_stay_on_the_second_however_long_runs_take(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, 0.05)
    scheduler.cron("a", body, expression="* * * * * *")
    start(scheduler)
    clock.advance(30.0)
    assert body.starts == [float(n) for n in range(1, 31)]


def test_a_tick_inside_a_run_is_skipped_told_and_not_made_up_for(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    body = Body(clock, 2.5, 0.0)
    scheduler.cron("a", body, expression="* * * * * *")
    running = start(scheduler)
    clock.advance(5.5)
    assert body.starts == [1.0, 4.0, 5.0]
    assert body.most == 1
    assert skips(recorder, "a") == [(2.0, "running"), (3.0, "running")]
    info = running.status("a")
    assert info is not None
    assert (info.skipped, info.run_count) == (2, 3)


def test_ticks_inside_the_backoff_window_are_suppressed(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    body = Body(clock, ValueError("no"), 0.0)
    scheduler.cron("a", body, expression="* * * * * *")
    scheduler.set_backoff("a", BackoffPolicy.constant(3.2))
    running = start(scheduler)
    clock.advance(4.0)
    assert body.starts == [1.0]
    assert kind_of(running, "a") == "Backoff"
    assert skips(recorder, "a") == [(2.0, "backoff"), (3.0, "backoff"), (4.0, "backoff")]
    clock.advance(1.0)
    info = running.status("a")
    assert info is not None
    assert body.starts == [1.0, 5.0]
    assert (info.status, info.failure_streak, info.next_eligible) == (Completed(at(5)), 0, None)


def test_a_tick_exactly_at_the_end_of_the_window_runs(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, ValueError("no"))
    scheduler.cron("a", body, expression="* * * * * *")
    scheduler.set_backoff("a", EXACT)  # 1, 2, 4, 8
    start(scheduler)
    clock.advance(20.0)
    assert body.starts == [1.0, 2.0, 4.0, 8.0, 16.0]


@pytest.mark.parametrize("delay", [0.1, 0.3, 0.7, 1.1, 2.2])
def test_sums_of_floats_lose_no_tick_at_the_end_of_a_window(delay: float) -> None:
    """The window ends at whole seconds, reached in steps that binary floats only nearly hold."""
    clock = VirtualClock()
    starts: list[float] = []

    def fails() -> None:
        starts.append(clock.monotonic())
        clock.sleep(3.0 - delay)
        raise ValueError("no")

    scheduler = Scheduler(clock=clock)
    scheduler.cron("a", fails, expression="*/3 * * * * *")
    scheduler.set_backoff("a", BackoffPolicy.constant(delay))
    with scheduler.start():
        clock.advance(30.0)
        assert starts == [3.0 * n for n in range(1, 11)]


def test_a_tripped_flow_ignores_ticks_until_it_is_reset(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    body = Body(clock, ValueError("no"), 0.0)
    scheduler.cron("a", body, expression="* * * * * *")
    scheduler.set_backoff("a", EXACT, streak_limit=1)
    running = start(scheduler)
    clock.advance(3.5)
    info = running.status("a")
    assert info is not None
    assert info.status == Tripped(1, "ValueError: no (in flow 'a')")
    assert (info.next_eligible, info.skipped) == (None, 2)
    assert info.next_fire == at(4)
    assert skips(recorder, "a") == [(2.0, "tripped"), (3.0, "tripped")]
    running.reset_flow("a")
    clock.settle()
    assert body.starts == [1.0]
    clock.advance(0.5)
    assert body.starts == [1.0, 4.0]


def test_ticks_of_a_paused_flow_are_skipped_and_not_made_up_for(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    body = Body(clock)
    scheduler.cron("a", body, expression="*/10 * * * * *")
    running = start(scheduler)
    clock.advance(10.0)
    running.pause("a")
    clock.advance(25.0)
    running.resume("a")
    clock.advance(5.0)
    assert body.starts == [10.0, 40.0]
    assert skips(recorder, "a") == [(20.0, "paused"), (30.0, "paused")]


def test_a_trigger_is_beside_the_ticks(scheduler: Scheduler, start: Start, clock: VirtualClock) -> None:
    body = Body(clock, 0.0, 3.0, 0.0)
    scheduler.cron("a", body, expression="*/10 * * * * *")
    running = start(scheduler)
    clock.advance(12.0)
    running.trigger("a")
    clock.advance(7.0)
    running.trigger("a")
    clock.advance(1.0)
    assert body.starts == [10.0, 12.0, 19.0, 20.0]


def test_the_events_of_a_cron_flow(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    scheduler.cron("a", Body(clock, 1.5), expression="* * * * * *")
    start(scheduler)
    clock.advance(2.9)
    assert story(recorder, "a") == [
        "flow_scheduled",
        "flow_started",
        "flow_scheduled",
        "flow_skipped",
        "flow_scheduled",
        "flow_succeeded",
    ]
    assert [event.next_fire for event in recorder.of("flow_scheduled")] == [at(1), at(2), at(3)]


def test_an_expression_whose_last_year_is_over_leaves_the_flow_idle_and_triggerable() -> None:
    clock = VirtualClock(start=datetime(2029, 12, 31, 23, 59, 50, tzinfo=UTC))
    body = Body(clock)
    scheduler = Scheduler(clock=clock)
    scheduler.cron("a", body, expression="*/30 0 0 1 1 * 2030")
    with scheduler.start() as running:
        clock.advance(100.0)
        assert body.starts == [10.0, 40.0]
        info = running.status("a")
        assert info is not None
        assert info.next_fire is None
        running.trigger("a")
        clock.advance(1e6)
        assert body.starts == [10.0, 40.0, 100.0]
        assert kind_of(running, "a") == "Completed"


# The wall clock


def test_ticks_that_were_missed_run_once_at_once(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    body = Body(clock)
    scheduler.cron("a", body, expression="0 * * * * *")
    running = start(scheduler)
    clock.advance(60.0)
    clock.step_wall(5 * 60 + 10.0)  # over five ticks: the wall clock shows 00:06:10
    clock.advance(30.0)  # a wait is never longer than this
    assert body.starts == [60.0, 90.0]
    assert skips(recorder, "a") == []
    clock.advance(20.0)  # 00:07:00
    assert body.starts == [60.0, 90.0, 110.0]
    info = running.status("a")
    assert info is not None
    assert (info.skipped, info.run_count) == (0, 3)


@pytest.mark.parametrize("step", [1.0, 60.0, 3600.0, 86400.0 * 40])
def test_a_daily_tick_that_was_stepped_over_runs_within_half_a_minute(
    step: float, scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock)
    scheduler.cron("a", body, expression="30 0 9 * * *")
    start(scheduler)
    clock.advance(9 * 3600.0 + 29.5)
    clock.step_wall(step)
    clock.advance(30.0)
    (started,) = body.starts
    assert started - (9 * 3600.0 + 29.5) <= 30.0
    clock.advance(3600.0)
    assert len(body.starts) == 1


def test_a_missed_tick_is_not_lost_when_the_flow_is_reset_or_resumed_before_it_is_noticed(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    first, second = Body(clock), Body(clock)
    scheduler.cron("a", first, expression="0 0 9 * * *")
    scheduler.cron("b", second, expression="0 0 9 * * *")
    running = start(scheduler)
    clock.advance(10.0)
    running.pause("b")
    clock.step_wall(9 * 3600.0)
    running.reset_flow("a")
    running.resume("b")
    clock.advance(20.0)
    assert first.starts == [30.0]
    assert second.starts == [30.0]


def test_after_the_clock_is_set_back_the_next_tick_is_planned_from_the_new_time(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    body = Body(clock)
    scheduler.cron("a", body, expression="@hourly")
    running = start(scheduler)
    clock.advance(3600.0 + 600.0)  # 01:10
    clock.step_wall(-1200.0)  # 00:50, so 01:00 comes again
    clock.advance(30.0)
    info = running.status("a")
    assert info is not None
    assert info.next_fire == at(3600)
    clock.advance(570.0 + 3600.0)
    assert body.starts == [3600.0, 4800.0, 8400.0]


@pytest.mark.parametrize("step", [-60.0, -3600.0, -86400.0 * 400])
def test_no_tick_is_lost_between_a_step_back_and_its_discovery(
    step: float, scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    each, every_ten = Body(clock), Body(clock)
    scheduler.cron("a", each, expression="* * * * * *")
    scheduler.cron("b", every_ten, expression="*/10 * * * * *")
    start(scheduler)
    clock.advance(35.0)
    clock.step_wall(step)
    clock.advance(25.0)
    assert each.starts == [float(n) for n in range(1, 61)]
    assert every_ten.starts == [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]


def test_a_tick_is_not_lost_when_the_clock_is_set_back_to_just_before_it(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock)
    scheduler.cron("a", body, expression="0 0 * * * *")
    start(scheduler)
    clock.advance(2 * 3600.0 - 10.0)  # 01:59:50
    clock.step_wall(-3600.0)  # 00:59:50: the next tick of the new time is in ten seconds
    clock.advance(10.0)
    assert body.starts == [3600.0, 7200.0]


@pytest.mark.parametrize("step", [-0.5, -2.0, -5.0, -20.0])
def test_a_small_correction_after_a_tick_does_not_run_it_twice(
    step: float, scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock)
    scheduler.cron("a", body, expression="0 0 9 * * *")
    start(scheduler)
    clock.advance(9 * 3600.0 + 25.0)
    clock.step_wall(step)
    clock.advance(3600.0)
    assert body.starts == [9 * 3600.0]


def test_a_clock_that_is_late_before_a_tick_delays_it_by_as_much(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock)
    scheduler.cron("a", body, expression="0 0 9 * * *")
    start(scheduler)
    clock.advance(9 * 3600.0 - 5.0)
    clock.step_wall(-2.5)
    clock.advance(10.0)
    assert body.starts == [9 * 3600.0 + 2.5]


def test_steps_of_the_wall_clock_leave_backoff_windows_alone(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, ValueError("no"), 0.0)
    scheduler.cron("a", body, expression="* * * * * *")
    scheduler.set_backoff("a", BackoffPolicy.constant(100.0))
    running = start(scheduler)
    clock.advance(1.0)
    clock.step_wall(3600.0)
    clock.advance(99.0)
    assert body.starts == [1.0]
    assert kind_of(running, "a") == "Backoff"
    clock.advance(1.0)
    assert body.starts == [1.0, 101.0]


# Zones


BERLIN = "Europe/Berlin"


@pytest.mark.parametrize(
    ("expression", "zone", "begin", "expected"),
    [
        ("0 30 2 * * *", BERLIN, "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
        ("0 30 2 * * *", BERLIN, "2026-10-24T12:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        ("0 0 0 * * *", "US/Pacific", "2022-03-13T08:00:07", ["2022-03-14T07:00", "2022-03-15T07:00"]),
        ("0 0 8 * * *", BERLIN, "2016-03-26T20:00", ["2016-03-27T06:00", "2016-03-28T06:00"]),
        (
            "0 */30 2 * * *",
            BERLIN,
            "2026-10-25T00:00",
            ["2026-10-25T00:30", "2026-10-25T01:00", "2026-10-25T01:30", "2026-10-26T01:00"],
        ),
        ("0 15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00", ["2026-10-03T15:30", "2026-10-04T15:15"]),
    ],
)
def test_across_a_change_of_daylight_saving_every_tick_is_real(
    expression: str, zone: str, begin: str, expected: list[str]
) -> None:
    first = datetime.fromisoformat(begin).replace(tzinfo=UTC)
    clock = VirtualClock(start=first)
    seen: list[datetime] = []
    scheduler = Scheduler(clock=clock)
    scheduler.cron("a", lambda: seen.append(clock.now()), expression=expression, tz=zone)
    ticks = [datetime.fromisoformat(each).replace(tzinfo=UTC) for each in expected]
    with scheduler.start():
        clock.advance((ticks[-1] - first).total_seconds())
    assert seen == ticks


def test_the_zone_of_the_machine_never_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    def fires() -> list[datetime]:
        clock = VirtualClock(start=datetime(2026, 3, 28, 17, tzinfo=UTC))
        seen: list[datetime] = []
        scheduler = Scheduler(clock=clock)
        for zone in ("UTC", "Asia/Tokyo", "America/New_York", BERLIN):
            scheduler.cron(zone, lambda: seen.append(clock.now()), expression="0 30 2 * * *", tz=zone)
        with scheduler.start():
            clock.advance(10 * 3600.0)
        return seen

    found: list[list[datetime]] = []
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        found.append(fires())
    monkeypatch.delenv("TZ")
    time.tzset()
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 3


def test_day_of_month_and_day_of_week_together_mean_either() -> None:
    clock = VirtualClock(start=datetime(2026, 1, 12, 12, tzinfo=UTC))  # a Monday
    body = Body(clock)
    scheduler = Scheduler(clock=clock)
    scheduler.cron("a", body, expression="0 0 0 13 * FRI")
    with scheduler.start():
        clock.advance(3.5 * 86400.0)
    assert body.starts == [0.5 * 86400.0, 3.5 * 86400.0]


@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_expressions_fire_at_every_tick_of_their_own(seed: int) -> None:
    import random

    draw = random.Random(seed)
    first = datetime(2026, 10, 25, tzinfo=UTC) - timedelta(hours=draw.randrange(12))
    clock = VirtualClock(start=first)
    scheduler = Scheduler(clock=clock)
    seen: dict[str, list[datetime]] = {}
    schedules: dict[str, tuple[str, str]] = {}
    for number in range(100):
        expression = f"{draw.randrange(60)} {draw.choice(['*/7', '0,30', '5', '*'])} {draw.choice(['*', '1-4', '2'])} * * *"
        zone = draw.choice(["UTC", BERLIN, "Australia/Lord_Howe", "America/St_Johns"])
        name = f"{number}"
        seen[name], schedules[name] = [], (expression, zone)
        scheduler.cron(name, lambda name=name: seen[name].append(clock.now()), expression=expression, tz=zone)
    hours = 2
    with scheduler.start():
        clock.advance(hours * 3600.0)
    for name, (expression, zone) in schedules.items():
        expected: list[datetime] = []
        tick = next_fire(expression, first, zone)
        while tick is not None and tick <= first + hours * HOUR:
            expected.append(tick)
            tick = next_fire(expression, tick, zone)
        assert seen[name] == expected, (expression, zone)


def test_flows_with_the_same_tick_start_in_the_order_of_registration(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    for name in "cab":
        scheduler.cron(name, Body(clock), expression="0 * * * * *")
    start(scheduler)
    clock.advance(120.0)
    assert [event.flow_id for event in recorder.of("flow_started")] == list("cabcab")
    assert all(len(of_flow(recorder, name)) == 7 for name in "abc")
