"""Pause and resume, reset, and cancel: what they do to a flow that waits, backs off, has tripped, or runs."""

from __future__ import annotations

import pytest

from supervisor import BackoffPolicy, CancelReason
from supervisor.flows import (
    Backoff,
    Completed,
    FlowInfo,
    FlowRun,
    FlowTripped,
    Idle,
    JoinConfig,
    JoinStrategy,
    Resources,
    Running,
    RunningScheduler,
    Scheduler,
    Tripped,
    Workflow,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.flows.scheduling import EXACT, Body, S, Start, at, heeds, kind_of, of_flow, one_state, story


def info_of(running: RunningScheduler, id: str = "a") -> FlowInfo:
    info = running.status(id)
    assert info is not None
    return info


# Pause


def test_a_paused_flow_skips_its_ticks_and_an_overdue_one_starts_at_once_on_resume(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    body = Body(clock)
    scheduler.every("a", body, interval=10.0)
    running = start(scheduler)
    clock.advance(5.0)
    running.pause("a")
    assert info_of(running).paused is True
    clock.advance(30.0)  # ticks at 10, 20, 30
    assert body.starts == [0.0]
    assert info_of(running).skipped == 3
    assert [event.reason for event in recorder.of("flow_skipped")] == ["paused"] * 3
    running.resume("a")
    assert info_of(running).paused is False
    clock.settle()
    assert body.starts == [0.0, 35.0]
    clock.advance(10.0)
    assert body.starts == [0.0, 35.0, 45.0]


def test_a_pause_that_is_over_before_the_tick_changes_nothing(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock)
    scheduler.every("a", body, interval=10.0)
    running = start(scheduler)
    clock.advance(2.0)
    running.pause("a")
    clock.advance(5.0)
    running.resume("a")
    clock.advance(3.0)
    assert body.starts == [0.0, 10.0]
    assert info_of(running).skipped == 0


def test_pausing_and_resuming_twice_is_the_same_as_once(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    body = Body(clock)
    scheduler.every("a", body, interval=10.0)
    running = start(scheduler)
    running.resume("a")
    for _ in range(3):
        running.pause("a")
    clock.advance(15.0)
    for _ in range(3):
        running.resume("a")
    clock.advance(10.0)
    assert body.starts == [0.0, 15.0, 25.0]


def test_a_pause_leaves_the_run_in_progress_alone(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, 5.0)
    scheduler.every("a", body, interval=1.0)
    running = start(scheduler)
    clock.advance(1.0)
    running.pause("a")
    clock.advance(100.0)
    assert body.starts == [0.0]
    assert info_of(running).status == Completed(at(5))


def test_a_paused_flow_can_be_triggered(scheduler: Scheduler, start: Start, clock: VirtualClock) -> None:
    body = Body(clock)
    scheduler.every("a", body, interval=10.0)
    scheduler.manual("m", body)
    running = start(scheduler)
    for id in ("a", "m"):
        running.pause(id)
    clock.advance(3.0)
    for id in ("a", "m"):
        running.trigger(id)
        clock.settle()
        assert info_of(running, id).paused is True
    assert body.starts == [0.0, 3.0, 3.0]


def test_a_flow_paused_before_its_first_run_starts_on_resume(
    scheduler: Scheduler, clock: VirtualClock
) -> None:
    body = Body(clock)
    scheduler.every("a", body, interval=10.0)
    with scheduler.start() as running:
        running.pause("a")
        clock.advance(25.0)
        assert body.starts == []
        running.resume("a")
        clock.advance(10.0)
    assert body.starts == [25.0, 35.0]


def test_resume_does_not_pass_over_a_backoff_window(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, ValueError("no"), 0.0)
    scheduler.every("a", body, interval=1.0)
    scheduler.set_backoff("a", BackoffPolicy.constant(20.0))
    running = start(scheduler)
    running.pause("a")
    clock.advance(10.0)
    running.resume("a")
    clock.advance(10.0)
    assert body.starts == [0.0, 20.0]


# Reset


def test_trip_reset_trip_reset_and_succeed(scheduler: Scheduler, start: Start, clock: VirtualClock) -> None:
    no = ValueError("no")
    body = Body(clock, no, no, no, no, 0.0)
    scheduler.manual("a", body)
    scheduler.set_backoff("a", EXACT, streak_limit=2)
    running = start(scheduler)
    for rounds in (1, 2):
        for _ in range(2):
            running.trigger("a")
            clock.settle()
        assert info_of(running).status == Tripped(2, "ValueError: no (in flow 'a')")
        assert info_of(running).run_count == 2 * rounds
        with pytest.raises(FlowTripped):
            running.trigger("a")
        running.reset_flow("a")
        info = info_of(running)
        assert (info.status, info.failure_streak, info.next_eligible) == (Idle(), 0, None)
    running.trigger("a")
    clock.settle()
    info = info_of(running)
    assert (info.status, info.failure_streak, info.run_count) == (Completed(at(0)), 0, 5)


def test_after_a_reset_the_next_failure_is_the_first(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    scheduler.manual("a", Body(clock, ValueError("no")))
    scheduler.set_backoff("a", EXACT)
    running = start(scheduler)
    for _ in range(3):
        running.trigger("a")
        clock.settle()
    assert info_of(running).failure_streak == 3
    running.reset_flow("a")
    running.trigger("a")
    clock.settle()
    assert info_of(running).status == Backoff(at(1), 1, "ValueError: no (in flow 'a')")


def test_a_reset_in_a_long_backoff_is_noticed_at_once(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    overdue, later = Body(clock, ValueError("no"), 0.0), Body(clock, ValueError("no"), 0.0)
    scheduler.every("a", overdue, interval=1.0)
    scheduler.every("b", later, interval=50.0)
    for id in "ab":
        scheduler.set_backoff(id, BackoffPolicy.constant(3600.0))
    running = start(scheduler)
    clock.advance(10.0)
    for id in "ab":
        assert info_of(running, id).next_fire == at(3600)
        running.reset_flow(id)
    assert info_of(running, "b").next_fire == at(50)
    clock.settle()
    assert overdue.starts == [0.0, 10.0]
    assert later.starts == [0.0]
    clock.advance(40.0)
    assert later.starts == [0.0, 50.0]


def test_a_reset_of_a_tripped_flow_lets_an_overdue_one_start_at_once(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    body = Body(clock, ValueError("no"), 0.0)
    scheduler.every("a", body, interval=10.0)
    scheduler.set_backoff("a", EXACT, streak_limit=1)
    running = start(scheduler)
    clock.advance(35.0)
    assert info_of(running).skipped == 3
    assert [event.reason for event in recorder.of("flow_skipped")] == ["tripped"] * 3
    running.reset_flow("a")
    clock.advance(10.0)
    assert body.starts == [0.0, 35.0, 45.0]


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_a_reset_during_a_run_leaves_it_running(
    ends: str, scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    def third() -> None:
        calls.append(clock.monotonic())
        if len(calls) == 3:
            clock.sleep(5.0)
        if len(calls) < 3 or ends == "badly":
            raise ValueError("no")

    calls: list[float] = []
    scheduler.manual("a", third)
    scheduler.set_backoff("a", EXACT)
    running = start(scheduler)
    for _ in range(3):
        running.trigger("a")
        clock.settle()
    assert (info_of(running).status, info_of(running).failure_streak) == (Running(at(0)), 2)
    running.reset_flow("a")
    info = info_of(running)
    assert (info.status, info.failure_streak, info.next_eligible) == (Running(at(0)), 0, None)
    clock.advance(5.0)
    if ends == "well":
        assert info_of(running).status == Completed(at(5))
    else:
        assert info_of(running).status == Backoff(at(6), 1, "ValueError: no (in flow 'a')")


def test_a_reset_of_a_completed_flow_makes_it_idle_and_keeps_its_past(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, 0.5)
    scheduler.every("a", body, interval=10.0)
    running = start(scheduler)
    clock.advance(3.0)
    running.reset_flow("a")
    info = info_of(running)
    assert (info.status, info.run_count, info.last_run) == (Idle(), 1, at(0))
    assert (info.last_duration, info.next_fire) == (0.5, at(10.5))
    clock.advance(7.5)
    assert body.starts == [0.0, 10.5]


def test_a_reset_of_an_idle_flow_changes_nothing(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    scheduler.manual("a", Body(clock))
    running = start(scheduler)
    before = info_of(running)
    running.reset_flow("a")
    clock.settle()
    assert info_of(running) == before
    assert story(recorder, "a") == ["flow_reset"]


def test_thousands_of_resets_cost_no_memory_and_move_nothing(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    hourly, daily = Body(clock), Body(clock)
    scheduler.every("a", hourly, interval=3600.0)
    scheduler.cron("c", daily, expression="@daily")
    running = start(scheduler)
    for _ in range(3000):
        running.reset_flow("a")
        running.reset_flow("c")
    assert len(running._dispatcher._monotonic) < 100
    assert len(running._dispatcher._wall) < 100
    clock.advance(7200.0)
    assert hourly.starts == [0.0, 3600.0, 7200.0]


# Cancel


def test_a_cancel_asks_the_run_to_stop_and_the_flow_is_idle(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    reasons: list[object] = []

    def watches(res: Resources, run: FlowRun) -> None:
        run.token.wait()
        reasons.append(run.token.reason)

    scheduler.manual("a", watches)
    running = start(scheduler)
    running.trigger("a")
    clock.advance(3.0)
    assert running.cancel_flow("a") is True
    clock.settle()
    assert reasons == [CancelReason.REQUESTED]
    info = info_of(running)
    assert (info.status, info.failure_streak, info.run_count, info.last_duration) == (Idle(), 0, 1, 3.0)
    assert story(recorder, "a") == ["flow_started", "flow_canceled"]
    (event,) = recorder.of("flow_canceled")
    assert (event.run, event.duration) == (1, 3.0)


@pytest.mark.parametrize("state", ["idle", "completed", "backoff", "tripped"])
def test_a_cancel_without_a_run_is_nothing(
    state: str, scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    scheduler.manual("a", Body(clock, *([ValueError("no")] if state in ("backoff", "tripped") else [])))
    scheduler.set_backoff("a", EXACT, streak_limit=1 if state == "tripped" else None)
    running = start(scheduler)
    if state != "idle":
        running.trigger("a")
        clock.settle()
    before = info_of(running)
    assert not running.cancel_flow("a")
    clock.settle()
    assert info_of(running) == before


def test_a_cancel_leaves_the_streak_and_the_window(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    def fails_then_heeds(res: Resources, run: FlowRun) -> None:
        calls.append(1)
        if len(calls) <= 2:
            raise ValueError("no")
        run.token.wait()

    calls: list[int] = []
    scheduler.manual("a", fails_then_heeds)
    scheduler.set_backoff("a", BackoffPolicy.constant(60.0))
    running = start(scheduler)
    for _ in range(3):
        running.trigger("a")
        clock.settle()
    running.cancel_flow("a")
    clock.settle()
    info = info_of(running)
    assert (info.status, info.failure_streak, info.next_eligible) == (Idle(), 2, at(60))


def test_after_a_cancel_the_later_runs_come_as_planned(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    starts: list[tuple[str, float]] = []

    def first_heeds(name: str, run: FlowRun) -> None:
        starts.append((name, clock.monotonic()))
        if len([each for each, _ in starts if each == name]) == 1:
            run.token.wait()

    def flow_of(name: str) -> object:
        def flow(res: Resources, run: FlowRun) -> None:
            first_heeds(name, run)

        return flow

    scheduler.every("e", flow_of("e"), interval=5.0)
    scheduler.cron("c", flow_of("c"), expression="*/5 * * * * *")
    running = start(scheduler)
    clock.advance(7.0)
    running.cancel_flow("e")
    running.cancel_flow("c")
    clock.advance(10.0)
    assert [at for name, at in starts if name == "e"] == [0.0, 12.0, 17.0]
    assert [at for name, at in starts if name == "c"] == [5.0, 10.0, 15.0]


def test_a_cancel_reaches_retries_splits_and_sleeps(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    def fails() -> None:
        raise ValueError("no")

    def branch(res: Resources, run: FlowRun) -> None:
        run.token.sleep(100.0)

    waits = BackoffPolicy.constant(100.0)
    retrying = Workflow().register(S.WORK, fails, max_retries=5, backoff=waits).add_exit_state(S.DONE)
    split = (
        Workflow()
        .register_split(S.WORK, [branch, branch], JoinConfig(JoinStrategy.ALL, S.DONE))
        .add_exit_state(S.DONE)
    )
    sleeping = Workflow().register(S.WORK, branch).add_exit_state(S.DONE)
    flows = {"retrying": retrying, "split": split, "sleeping": sleeping}
    for name, workflow in flows.items():
        scheduler.manual(name, workflow, S.WORK)
    running = start(scheduler)
    for name in flows:
        running.trigger(name)
    clock.advance(1.0)
    for name in flows:
        assert running.cancel_flow(name) is True
    clock.settle()
    assert [info.status for info in running.list()] == [Idle()] * 3
    assert clock.monotonic() == 1.0


def test_a_run_that_ignores_a_cancel_goes_on_and_is_idle_in_the_end(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    scheduler.manual("a", Body(clock, 10.0))
    scheduler.manual("w", one_state(Body(clock, 10.0)), S.WORK)
    running = start(scheduler)
    for id in "aw":
        running.trigger(id)
    clock.advance(1.0)
    for id in "aw":
        running.cancel_flow(id)
    clock.advance(8.0)
    assert kind_of(running, "a") == kind_of(running, "w") == "Running"
    clock.advance(1.0)
    assert kind_of(running, "a") == kind_of(running, "w") == "Idle"


def test_of_two_cancels_of_one_run_the_first_has_claimed_it(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    scheduler.manual("a", heeds)
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    assert running.cancel_flow("a") is True
    assert not running.cancel_flow("a")


def test_a_run_may_cancel_itself(scheduler: Scheduler, start: Start, clock: VirtualClock) -> None:
    def gives_up(res: Resources, run: FlowRun) -> S:
        running.cancel_flow("a")
        run.token.check()
        raise AssertionError

    scheduler.manual("a", Workflow().register(S.WORK, gives_up).add_exit_state(S.DONE), S.WORK)
    running: RunningScheduler = start(scheduler)
    running.trigger("a")
    clock.settle()
    assert info_of(running).status == Idle()


def test_a_callback_of_a_cancel_that_raises_hurts_nobody(
    scheduler: Scheduler, start: Start, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def watches(res: Resources, run: FlowRun) -> None:
        run.token.on_cancel(lambda: 1 / 0)
        run.token.wait()

    scheduler.manual("a", watches)
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    assert running.cancel_flow("a") is True
    clock.settle()
    assert info_of(running).status == Idle()
    assert "ZeroDivisionError" in caplog.text


def test_what_pause_resume_and_cancel_tell(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    scheduler.manual("a", heeds)
    running = start(scheduler)
    running.pause("a")
    running.trigger("a")
    clock.settle()
    running.cancel_flow("a")
    clock.settle()
    running.resume("a")
    running.reset_flow("a")
    clock.settle()
    assert [event.kind for event in of_flow(recorder, "a")] == ["flow_started", "flow_canceled", "flow_reset"]
