"""Flows with an interval: the first run at the start, then the interval after the end of each run."""

from __future__ import annotations

import pytest

from supervisor import BackoffPolicy
from supervisor.flows import Completed, Resources, Scheduler
from supervisor.testing import EventRecorder, VirtualClock
from tests.flows.scheduling import EXACT, Body, Deaf, S, Start, Traced, at, kind_of, one_state, story


@pytest.mark.parametrize("interval", [0.001, 1, 30.0, 86400.0, 1e8])
def test_the_first_run_is_at_the_start(
    interval: float, scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock)
    scheduler.every("a", body, interval=interval)
    start(scheduler)
    assert body.starts == [0.0]
    assert clock.monotonic() == 0.0


def test_a_run_of_45_seconds_every_30_starts_each_75(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, 45.0)
    scheduler.every("a", one_state(body), S.WORK, 30.0)
    running = start(scheduler)
    clock.advance(300.0)
    assert body.starts == [0.0, 75.0, 150.0, 225.0, 300.0]
    assert body.most == 1
    info = running.status("a")
    assert info is not None
    assert info.skipped == 0
    assert info.run_count == 5


def test_the_interval_counts_from_the_end_of_each_run(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, 0.06, 0.0, 0.2)
    scheduler.every("a", body, interval=0.05)
    start(scheduler)
    clock.advance(0.7)
    assert body.starts == pytest.approx([0.0, 0.11, 0.16, 0.41, 0.66], abs=1e-9)


def test_an_interval_does_not_drift_over_thousands_of_runs(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock)
    scheduler.every("a", body, interval=0.1)
    start(scheduler)
    clock.advance(200.0)
    assert len(body.starts) == 2001
    assert body.starts == pytest.approx([n / 10 for n in range(2001)], abs=1e-6)


def test_a_healthy_flow_keeps_its_interval_whatever_its_backoff(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock)
    scheduler.every("a", body, interval=2.0)
    scheduler.set_backoff("a", BackoffPolicy.constant(50.0))
    start(scheduler)
    clock.advance(6.0)
    assert body.starts == [0.0, 2.0, 4.0, 6.0]


def test_a_failing_flow_waits_for_the_longer_of_interval_and_backoff(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, ValueError("no"))
    scheduler.every("a", body, interval=3.0)
    scheduler.set_backoff("a", EXACT)  # 1, 2, 4, 8, 16
    start(scheduler)
    clock.advance(34.0)
    assert body.starts == [0.0, 3.0, 6.0, 10.0, 18.0, 34.0]


def test_the_backoff_counts_from_the_end_of_the_failed_run(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    starts: list[float] = []

    def fails_late() -> None:
        starts.append(clock.monotonic())
        clock.sleep(5.0)
        raise ValueError("late")

    scheduler.every("a", fails_late, interval=1.0)
    scheduler.set_backoff("a", BackoffPolicy.constant(10.0))
    start(scheduler)
    clock.advance(45.0)
    assert starts == [0.0, 15.0, 30.0, 45.0]


def test_after_a_success_the_plain_interval_is_back(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    no = ValueError("no")
    body = Body(clock, no, no, no, 0.0, no, 0.0)
    scheduler.every("a", body, interval=0.5)
    scheduler.set_backoff("a", EXACT)
    running = start(scheduler)
    clock.advance(9.5)
    assert body.starts == [0.0, 1.0, 3.0, 7.0, 7.5, 8.5, 9.0, 9.5]
    info = running.status("a")
    assert info is not None
    assert (info.failure_streak, info.next_eligible, info.status) == (0, None, Completed(at(9.5)))


def test_a_triggered_run_moves_the_next_one(scheduler: Scheduler, start: Start, clock: VirtualClock) -> None:
    body = Body(clock, 0.0, 4.0, 0.0)
    scheduler.every("a", body, interval=10.0)
    running = start(scheduler)
    clock.advance(7.0)
    running.trigger("a")
    clock.advance(24.0)
    assert body.starts == [0.0, 7.0, 21.0, 31.0]
    info = running.status("a")
    assert info is not None
    assert (info.run_count, info.skipped) == (4, 0)


def test_a_triggered_run_that_is_due_meanwhile_is_no_second_run(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, 0.0, 25.0, 0.0)
    scheduler.every("a", body, interval=10.0)
    running = start(scheduler)
    clock.advance(9.0)
    running.trigger("a")
    clock.advance(60.0)
    assert body.starts == [0.0, 9.0, 44.0, 54.0, 64.0]
    assert body.most == 1


def test_a_triggered_run_inside_the_backoff_sets_the_next_start(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    no = ValueError("no")
    body = Body(clock, no, 0.0, no, no, 0.0)
    scheduler.every("a", body, interval=2.0)
    scheduler.set_backoff("a", BackoffPolicy(initial=10.0, multiplier=2.0, max_delay=100.0, jitter=0.0))
    running = start(scheduler)
    clock.advance(3.0)
    running.trigger("a")  # succeeds: 2 s later again, which fails: 10 s
    clock.advance(3.0)
    running.trigger("a")  # fails at 6: 20 s from there
    clock.advance(30.0)
    assert body.starts == [0.0, 3.0, 5.0, 6.0, 26.0, 28.0, 30.0, 32.0, 34.0, 36.0]


@pytest.mark.parametrize("step", [3600.0, -3600.0, 0.5, -0.5, 86400.0 * 366])
def test_a_step_of_the_wall_clock_moves_no_interval_and_no_backoff(
    step: float, scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    healthy, failing = Body(clock), Body(clock, ValueError("no"))
    scheduler.every("a", healthy, interval=40.0)
    scheduler.every("b", failing, interval=1.0)
    scheduler.set_backoff("b", BackoffPolicy.constant(25.0))
    running = start(scheduler)
    clock.advance(10.0)
    clock.step_wall(step)
    clock.advance(70.0)
    assert healthy.starts == [0.0, 40.0, 80.0]
    assert failing.starts == [0.0, 25.0, 50.0, 75.0]
    assert [info.skipped for info in running.list()] == [0, 0]


def test_next_fire_is_the_instant_of_the_next_run(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, 0.0, 4.0)
    scheduler.every("a", body, interval=10.0)
    running = start(scheduler)
    for seconds, expected in [(0.0, at(10)), (3.0, at(10)), (7.0, None), (3.999, None), (0.001, at(24))]:
        clock.advance(seconds)
        info = running.status("a")
        assert info is not None
        assert info.next_fire == expected
    clock.step_wall(3600.0)
    info = running.status("a")
    assert info is not None
    assert info.next_fire == at(24 + 3600)


def test_the_events_of_a_flow_with_an_interval(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    scheduler.every("a", Body(clock, 2.0), interval=5.0)
    start(scheduler)
    clock.advance(8.0)
    assert story(recorder, "a") == [
        "flow_scheduled",
        "flow_started",
        "flow_succeeded",
        "flow_scheduled",
        "flow_started",
    ]
    assert [event.next_fire for event in recorder.of("flow_scheduled")] == [at(0), at(7)]


def test_resources_are_set_up_once_however_often_the_flow_runs(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    log: list[str] = []
    body = Body(clock)
    scheduler.every("a", one_state(body, Resources(r=Traced("r", log))), S.WORK, 1.0)
    running = start(scheduler)
    clock.advance(5.0)
    assert len(body.starts) == 6
    assert log == ["setup r"]
    running.stop()
    assert log == ["setup r", "teardown r"]


@pytest.mark.parametrize("seed", range(8))
def test_no_interleaving_makes_a_flow_run_beside_itself(seed: int) -> None:
    clock = VirtualClock(seed)
    body = Body(clock, 0.3, 0.0, 1.7, 0.5)
    scheduler = Scheduler(clock=clock)
    scheduler.every("a", body, interval=0.5)
    with scheduler.start() as running:
        for _ in range(40):
            clock.advance(0.25)
            try:
                running.trigger("a")
            except RuntimeError:
                assert kind_of(running, "a") == "Running"
    assert body.most == 1
    assert running.list()[0].run_count == len(body.starts)


def test_a_flow_that_never_ends_holds_up_nobody_else(
    scheduler: Scheduler, start: Start, clock: VirtualClock, deaf: Deaf
) -> None:
    body = Body(clock)
    scheduler.every("deaf", deaf, interval=1.0)
    scheduler.every("a", body, interval=1.0)
    running = start(scheduler)
    clock.advance(10.0)
    assert len(body.starts) == 11
    assert deaf.calls == 1
    assert kind_of(running, "deaf") == "Running"


def test_a_fast_flow_leaves_room_for_every_call(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    fast, slow = Body(clock), Body(clock)
    scheduler.every("fast", fast, interval=1e-6)
    scheduler.every("slow", slow, interval=0.001)
    running = start(scheduler)
    clock.advance(0.0005)
    running.pause("fast")
    clock.advance(0.0045)
    assert 100 < len(fast.starts) <= 501
    assert len(slow.starts) == 6
    running.stop()
    assert clock.monotonic() == pytest.approx(0.005, abs=1e-5)


def test_a_backoff_beyond_the_calendar_is_shown_as_its_end(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    scheduler.every("a", Body(clock, ValueError("no")), interval=1.0)
    scheduler.every("b", Body(clock), interval=1e300)
    scheduler.set_backoff("a", BackoffPolicy.constant(1e300))
    running = start(scheduler)
    clock.advance(1e6)
    first, second = running.list()
    assert first.next_eligible is not None
    assert first.next_eligible.year == 9999
    assert first.next_fire is not None
    assert first.next_fire.year == 9999
    assert second.next_fire is not None
    assert second.next_fire.year == 9999
    assert (first.run_count, second.run_count) == (1, 1)
