"""Schedules and those who control them: Ctrl-C, trips, hot loops, double ids, second starts, waits on oneself."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor import BackoffPolicy, ReentrantCall
from supervisor.flows import (
    Backoff,
    Completed,
    ConfigurationError,
    FlowAlreadyRunning,
    FlowNotFound,
    FlowRun,
    FlowTripped,
    Idle,
    Resources,
    RunningScheduler,
    Scheduler,
    SchedulerStopped,
    Tripped,
    Workflow,
)
from supervisor.testing import VirtualClock
from tests.flows.scheduling import Body, S, Traced, at, one_state

# A retry loop swallowed Ctrl-C.


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(2), GeneratorExit()])
def test_what_is_no_exception_is_not_retried(error: BaseException) -> None:
    clock = VirtualClock()
    body = Body(clock, error)

    def task() -> S:
        body()
        return S.DONE

    workflow = Workflow().register(S.WORK, task, max_retries=5).add_exit_state(S.DONE)
    scheduler = Scheduler(clock=clock)
    scheduler.manual("a", workflow, S.WORK)
    with scheduler.start() as running:
        running.trigger("a")
        clock.advance(100.0)
        assert len(body.starts) == 1
        assert isinstance(running.list()[0].status, Backoff)


# After the retries were used up a process stayed dead until a human came, and there was no way back.


@pytest.mark.parametrize("limit", [1, 4])
def test_a_tripped_flow_says_why_and_has_a_way_back(limit: int) -> None:
    clock = VirtualClock()
    body = Body(clock, *[ValueError("no")] * limit, 0.0)
    scheduler = Scheduler(clock=clock)
    scheduler.every("a", body, interval=1.0)
    scheduler.set_backoff("a", BackoffPolicy.constant(1.0), streak_limit=limit)
    with scheduler.start() as running:
        clock.advance(100.5)
        assert running.list()[0].status == Tripped(limit, "ValueError: no (in flow 'a')")
        with pytest.raises(FlowTripped, match="reset_flow"):
            running.trigger("a")
        with pytest.raises(FlowNotFound, match="'b'"):
            running.reset_flow("b")
        running.reset_flow("a")
        assert running.list()[0].status == Idle()
        clock.settle()
        assert running.list()[0].status == Completed(at(100.5))


# A sleep of a minute delayed the shutdown by a minute.


def test_every_wait_ends_at_once_with_the_stop() -> None:
    clock = VirtualClock()
    scheduler = Scheduler(clock=clock)
    no = ValueError("no")
    scheduler.every("hourly", Body(clock), interval=3600.0)
    scheduler.every("backoff", Body(clock, no), interval=1.0)
    scheduler.cron("yearly", Body(clock), expression="@yearly")
    scheduler.manual("manual", Body(clock))
    scheduler.set_backoff("backoff", BackoffPolicy.constant(60.0))
    running = scheduler.start()
    clock.advance(5.0)
    running.stop()
    assert clock.monotonic() == 5.0


# An interval of zero, or a flow that fails at once, burned the CPU and starved all control.


@pytest.mark.parametrize("interval", [0, 0.0, -0.0, -1])
def test_an_interval_that_is_none_is_refused(interval: float) -> None:
    with pytest.raises(ConfigurationError, match="interval"):
        Scheduler().every("a", lambda: None, interval=interval)


def test_a_flow_that_fails_at_once_without_backoff_starves_nobody() -> None:
    clock = VirtualClock()
    hot, calm = Body(clock, ValueError("no")), Body(clock)
    scheduler = Scheduler(clock=clock)
    scheduler.every("hot", hot, interval=1e-6)
    scheduler.every("calm", calm, interval=1e-4)
    scheduler.set_backoff("hot", BackoffPolicy(initial=0.0, max_delay=0.0, jitter=0.0))
    with scheduler.start() as running:
        clock.advance(5e-4)
        assert len(calm.starts) == 6
        assert len(hot.starts) > 100
        running.pause("hot")


# Two jobs with one id were both kept, and the start crashed far from the cause.


def test_an_id_in_use_is_refused_on_the_spot_and_the_first_one_stays() -> None:
    clock = VirtualClock()
    first, second = Body(clock), Body(clock)
    scheduler = Scheduler(clock=clock)
    scheduler.every("a", first, interval=1.0)
    for register in (
        lambda: scheduler.manual("a", second),
        lambda: scheduler.every("a", second, interval=1.0),
        lambda: scheduler.cron("a", second, expression="@daily"),
    ):
        with pytest.raises(ConfigurationError, match="'a'"):
            register()
    with scheduler.start():
        clock.advance(2.0)
    assert (len(first.starts), second.starts) == (3, [])


# The second start replaced what the shutdown waited for.


def test_a_second_start_is_refused_and_the_first_one_stops_as_usual() -> None:
    clock = VirtualClock()
    body = Body(clock)
    scheduler = Scheduler(clock=clock)
    scheduler.every("a", body, interval=1.0)
    running = scheduler.start()
    for call in (scheduler.start, lambda: scheduler.every("b", body, interval=1.0)):
        with pytest.raises(SchedulerStopped):
            call()
    clock.advance(1.0)
    running.stop()
    assert body.starts == [0.0, 1.0]
    assert clock.monotonic() == 1.0
    assert [info.id for info in running.list()] == ["a"]


# After stop and start the pool that was shut down was used again, and every run failed.


def test_the_same_parts_work_in_a_second_scheduler() -> None:
    clock = VirtualClock()
    log: list[str] = []
    workflow = one_state(Body(clock), Resources(r=Traced("r", log)))
    for _ in range(2):
        scheduler = Scheduler(clock=clock)
        scheduler.manual("a", workflow, S.WORK)
        with scheduler.start() as running:
            running.trigger("a")
            clock.settle()
            assert isinstance(running.list()[0].status, Completed)
    assert log == ["setup r", "teardown r"] * 2


# A flow waited for itself.


def test_a_flow_that_would_wait_for_itself_is_told_so() -> None:
    clock = VirtualClock()
    found: list[type[BaseException]] = []

    def selfish(res: Resources, run: FlowRun) -> None:
        calls: list[Any] = [lambda: running.trigger("x"), running.wait, running.stop]
        for call in calls:
            try:
                call()
            except (FlowAlreadyRunning, ReentrantCall) as error:
                found.append(type(error))

    scheduler = Scheduler(clock=clock)
    scheduler.manual("x", selfish)
    running: RunningScheduler = scheduler.start()
    running.trigger("x")
    clock.settle()
    assert found == [FlowAlreadyRunning, ReentrantCall, ReentrantCall]
    running.stop()
    assert clock.monotonic() == 0.0


# A set-up that failed half way left the rest behind, or tore down what was never set up.


def test_of_a_half_set_up_only_the_finished_half_is_torn_down() -> None:
    log: list[str] = []
    scheduler = Scheduler(clock=VirtualClock())
    resources = Resources(r1=Traced("r1", log), r2=Traced("r2", log, fails="setup"))
    scheduler.manual("a", one_state(lambda: None, resources), S.WORK)
    with pytest.raises(ValueError, match="setup of r2 fails"):
        scheduler.start()
    assert log == ["setup r1", "setup r2", "teardown r1"]


# Only the caller's traceback was to be seen.


def test_the_last_error_has_the_type_the_message_and_the_place_in_the_workflow() -> None:
    clock = VirtualClock()

    def task() -> S:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("the batch is empty") from inner

    scheduler = Scheduler(clock=clock)
    scheduler.manual("a", Workflow().register(S.WORK, task).add_exit_state(S.DONE), S.WORK)
    with scheduler.start() as running:
        running.trigger("a")
        clock.settle()
        status = running.list()[0].status
    assert isinstance(status, Backoff)
    for part in ("ValueError: the batch is empty", "flow 'a'", "S.WORK", "attempt 1"):
        assert part in status.last_error
