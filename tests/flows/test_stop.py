"""The stop: bounded in every case, tear-down in reverse, one answer for all who ask."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from supervisor import (
    CancelReason,
    GraceExceeded,
    ReentrantCall,
    Supervisor,
    SupervisorConfig,
    TaskContext,
    TaskSpec,
)
from supervisor.flows import (
    Backoff,
    Completed,
    FlowRun,
    Idle,
    JoinConfig,
    JoinStrategy,
    Resources,
    Running,
    RunningScheduler,
    Scheduler,
    SchedulerStopped,
    StopTimeout,
    Workflow,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.flows.scheduling import EXACT, Body, Deaf, S, Start, Traced, at, heeds, kind_of, one_state

HEED = 1.0  # seconds a run has after the timeout of a stop


# Nothing in flight


@pytest.mark.parametrize("flow", ["every", "cron", "manual", "backoff", "tripped", "paused", "workers"])
def test_a_flow_that_waits_holds_up_no_stop(flow: str, start: Start, clock: VirtualClock) -> None:
    scheduler = Scheduler(clock=clock)
    body = Body(clock, ValueError("no")) if flow in ("backoff", "tripped") else Body(clock)
    if flow == "cron":
        scheduler.cron("a", body, expression="@yearly")
    elif flow == "manual":
        scheduler.manual("a", body)
    else:
        scheduler.every("a", body, interval=3600.0)
        scheduler.set_backoff("a", EXACT, streak_limit=1 if flow == "tripped" else None)
    running = start(scheduler)
    if flow == "paused":
        running.pause("a")
    clock.advance(0.25)
    runs = len(body.starts)
    running.stop()
    assert clock.monotonic() == 0.25
    clock.advance(1e5)
    assert len(body.starts) == runs


def test_a_stop_before_the_dispatcher_had_its_first_turn_is_one_too(
    scheduler: Scheduler, clock: VirtualClock
) -> None:
    log: list[str] = []
    scheduler.every("a", one_state(Body(clock), Resources(r=Traced("r", log))), S.WORK, 1.0)
    scheduler.start().stop()
    assert log == ["setup r", "teardown r"]
    assert clock.monotonic() == 0.0


# Runs that end


@pytest.mark.parametrize("kind", ["every", "cron", "manual"])
def test_a_stop_waits_for_runs_of_every_kind(
    kind: str, scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, 3.0)
    if kind == "every":
        scheduler.every("a", body, interval=1.0)
    elif kind == "cron":
        scheduler.cron("a", body, expression="* * * * * *")
    else:
        scheduler.manual("a", body)
    running = start(scheduler)
    clock.advance(1.0 if kind == "cron" else 0.0)
    if kind == "manual":
        running.trigger("a")
    clock.advance(0.5)
    begun = body.starts[0]
    running.stop()
    assert clock.monotonic() == begun + 3.0
    info = running.list()[0]
    assert (info.status, info.run_count) == (Completed(at(begun + 3.0)), 1)
    assert (info.next_fire, info.last_duration) == (None, 3.0)


def test_a_run_that_fails_during_the_stop_is_written_down(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    def fails_late() -> None:
        clock.sleep(2.0)
        raise ValueError("late")

    scheduler.manual("a", fails_late)
    scheduler.set_backoff("a", EXACT)
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    running.stop()
    assert running.list()[0].status == Backoff(at(3), 1, "ValueError: late (in flow 'a')")


def test_a_run_that_ends_exactly_at_the_timeout_is_in_time_or_asked_to_stop_but_never_deaf(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    scheduler.manual("a", Body(clock, 5.0))
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    running.stop(timeout=5.0)
    assert clock.monotonic() == 5.0
    assert kind_of(running, "a") in ("Completed", "Idle")


# Runs that have to be asked


@pytest.mark.parametrize("timeout", [0, 0.0, 0.2, 30.0, timedelta(seconds=7)])
def test_what_still_runs_at_the_timeout_is_asked_to_cancel(
    timeout: Any, scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    seen: list[tuple[float, object]] = []

    def watches(res: Resources, run: FlowRun) -> None:
        run.token.wait()
        seen.append((clock.monotonic(), run.token.reason))

    scheduler.every("a", watches, interval=1.0)
    running = start(scheduler)
    clock.advance(1.0)
    running.stop(timeout)
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    assert seen == [(1.0 + limit, CancelReason.SHUTDOWN)]
    assert clock.monotonic() == 1.0 + limit
    assert running.list()[0].status == Idle()
    assert [event.duration for event in recorder.of("flow_canceled")] == [1.0 + limit]


def test_the_default_timeout_is_half_a_minute(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    scheduler.manual("a", heeds)
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    running.stop()
    assert clock.monotonic() == 30.0


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "5", True, None])
def test_a_bad_timeout_is_refused_and_stops_nothing(
    timeout: Any, scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock)
    scheduler.every("a", body, interval=1.0)
    running = start(scheduler)
    with pytest.raises((TypeError, ValueError), match="timeout"):
        running.stop(timeout)
    clock.advance(2.0)
    assert len(body.starts) == 3


@pytest.mark.parametrize("after", [0.0, 0.5, 0.999, 1.0])
def test_a_run_has_a_second_to_heed_the_request(
    after: float, scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    def heeds_slowly(res: Resources, run: FlowRun) -> None:
        run.token.wait()
        clock.sleep(after)

    scheduler.manual("a", heeds_slowly)
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    try:
        running.stop(timeout=2.0)
    except StopTimeout:
        assert after == 1.0  # at the very instant either may win
    else:
        assert running.list()[0].status == Idle()
    assert clock.monotonic() == 2.0 + after


# Runs that ignore it


def test_a_deaf_run_costs_the_timeout_and_a_second_and_is_named(
    scheduler: Scheduler, start: Start, clock: VirtualClock, deaf: Deaf
) -> None:
    log: list[str] = []
    scheduler.manual("good", one_state(Body(clock), Resources(r=Traced("good", log))), S.WORK)
    scheduler.manual("deaf", one_state(deaf, Resources(r=Traced("deaf", log))), S.WORK)
    scheduler.manual("other", one_state(deaf, Resources(r=Traced("other", log))), S.WORK)
    running = start(scheduler)
    for name in ("good", "deaf", "other"):
        running.trigger(name)
    clock.advance(1.0)
    log.clear()
    with pytest.raises(StopTimeout) as caught:
        running.stop(timeout=4.0)
    assert clock.monotonic() == 1.0 + 4.0 + HEED
    assert caught.value.flows == ("deaf", "other")
    assert "'deaf', 'other'" in str(caught.value)
    assert "4 s" in str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    assert log == ["teardown other", "teardown deaf", "teardown good"]
    assert running.wait() is True
    assert running.list()[1].status == Running(at(0))


def test_whoever_stops_later_gets_the_same_stop_timeout_at_once(
    scheduler: Scheduler, start: Start, clock: VirtualClock, deaf: Deaf
) -> None:
    scheduler.manual("a", deaf)
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    found: list[tuple[float, str, tuple[str, ...]]] = []
    for timeout in (2.0, 2.0, 0.0, 50.0):
        with pytest.raises(StopTimeout) as caught:
            running.stop(timeout)
        found.append((clock.monotonic(), str(caught.value), caught.value.flows))
    assert len(set(found)) == 1
    assert found[0][0] == 3.0
    deaf.release()
    clock.settle()
    with pytest.raises(StopTimeout):
        running.stop()


def test_a_deaf_run_that_comes_back_after_the_stop_writes_its_outcome_and_starts_nothing(
    scheduler: Scheduler, start: Start, clock: VirtualClock, deaf: Deaf, recorder: EventRecorder
) -> None:
    scheduler.every("a", deaf, interval=1.0)
    running = start(scheduler)
    with pytest.raises(StopTimeout):
        running.stop(timeout=0)
    count = len(recorder)
    deaf.release()
    clock.advance(100.0)
    assert kind_of(running, "a") == "Idle"
    assert (running.list()[0].run_count, deaf.calls) == (1, 1)
    assert len(recorder) == count


def test_a_split_whose_branches_are_deaf_holds_up_no_stop(
    scheduler: Scheduler, start: Start, clock: VirtualClock, deaf: Deaf
) -> None:
    workflow = (
        Workflow()
        .register_split(S.WORK, [deaf, deaf], JoinConfig(JoinStrategy.ALL, S.DONE))
        .add_exit_state(S.DONE)
    )
    scheduler.manual("a", workflow, S.WORK)
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    running.stop(timeout=2.0)
    assert clock.monotonic() == 2.0
    assert kind_of(running, "a") == "Idle"


def test_a_run_that_still_waits_for_a_worker_is_never_begun_after_the_request(
    clock: VirtualClock, start: Start, deaf: Deaf
) -> None:
    scheduler = Scheduler(clock=clock, workers=1)
    queued = Body(clock)
    scheduler.manual("heeds", heeds)
    scheduler.manual("queued", queued)
    running = start(scheduler)
    running.trigger("heeds")
    clock.settle()
    running.trigger("queued")
    running.stop(timeout=2.0)
    assert clock.monotonic() == 2.0
    assert queued.starts == []
    assert [info.status for info in running.list()] == [Idle(), Idle()]


# Tear-down


class HangingTearDown:
    def __init__(self, clock: VirtualClock) -> None:
        self.latch = clock.latch()

    def teardown(self) -> None:
        self.latch.wait()


def test_a_tear_down_that_hangs_is_given_up_after_a_bound_and_its_flows_are_named(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    log: list[str] = []
    hangs = HangingTearDown(clock)
    scheduler.manual("first", one_state(Body(clock), Resources(r=Traced("first", log))), S.WORK)
    scheduler.manual("hangs", one_state(Body(clock), Resources(r=hangs)), S.WORK)
    scheduler.manual("last", one_state(Body(clock), Resources(r=Traced("last", log))), S.WORK)
    running = start(scheduler)
    log.clear()
    with pytest.raises(StopTimeout) as caught:
        running.stop(timeout=1.0)
    assert clock.monotonic() == 1.0
    assert "hangs" in caught.value.flows
    assert "last" not in caught.value.flows
    assert log == ["teardown last"]
    hangs.latch.open()
    clock.settle()
    assert log == ["teardown last", "teardown first"]


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()])
def test_a_tear_down_that_raises_keeps_no_other_from_it_and_no_stop_from_success(
    error: BaseException,
    scheduler: Scheduler,
    start: Start,
    clock: VirtualClock,
    recorder: EventRecorder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Bad:
        def teardown(self) -> None:
            raise error

    log: list[str] = []
    resources = Resources(x=Traced("b.x", log), bad=Bad(), y=Traced("b.y", log))
    scheduler.manual("a", one_state(Body(clock), Resources(x=Traced("a.x", log))), S.WORK)
    scheduler.manual("b", one_state(Body(clock), resources), S.WORK)
    running = start(scheduler)
    log.clear()
    running.stop()
    assert clock.monotonic() == 0.0
    assert log == ["teardown b.y", "teardown b.x", "teardown a.x"]
    (told,) = recorder.of("resource_failed")
    assert (told.flow_id, told.resource) == ("b", "bad")
    assert "tear-down of resource 'bad' failed" in caplog.text


def test_tear_down_comes_after_the_last_run(scheduler: Scheduler, start: Start, clock: VirtualClock) -> None:
    log: list[str] = []

    def slow() -> None:
        clock.sleep(5.0)
        log.append("run ended")

    scheduler.manual("a", slow)
    scheduler.manual("b", one_state(Body(clock), Resources(r=Traced("r", log))), S.WORK)
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    running.stop()
    assert log == ["setup r", "run ended", "teardown r"]


def test_a_stop_from_a_tear_down_is_reentrant(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    caught: list[BaseException] = []

    class Calls:
        def teardown(self) -> None:
            for call in (running.stop, running.wait):
                try:
                    call()
                except ReentrantCall as error:
                    caught.append(error)
            running.request_stop()

    scheduler.manual("a", one_state(Body(clock), Resources(r=Calls())), S.WORK)
    running: RunningScheduler = start(scheduler)
    running.stop()
    assert len(caught) == 2
    assert clock.monotonic() == 0.0


# Who asks


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", ["heeding", "deaf", "ending"])
def test_all_who_stop_at_once_wait_for_one_stop_and_get_one_answer(kind: str, seed: int) -> None:
    clock = VirtualClock(seed)
    deaf, log = Deaf(clock), list[str]()
    flow: Any = {"heeding": heeds, "deaf": deaf, "ending": Body(clock, 2.0)}[kind]
    scheduler = Scheduler(clock=clock)
    scheduler.manual("a", flow)
    scheduler.manual("b", one_state(Body(clock), Resources(r=Traced("r", log))), S.WORK)
    running = scheduler.start()
    running.trigger("a")
    clock.settle()
    answers: list[tuple[float, str]] = []

    def stop() -> None:
        try:
            running.stop(timeout=3.0)
            answers.append((clock.monotonic(), "stopped"))
        except StopTimeout as error:
            answers.append((clock.monotonic(), str(error)))

    def wait() -> None:
        assert running.wait() is True
        answers.append((clock.monotonic(), "waited"))

    threads = [clock.spawn(stop, f"stop {n}") for n in range(5)] + [clock.spawn(wait, "wait")]
    for thread in threads:
        thread.join()
    expected = {"heeding": 3.0, "deaf": 3.0 + HEED, "ending": 2.0}[kind]
    assert [when for when, _ in answers] == [expected] * 6
    assert len({text for _, text in answers if text != "waited"}) == 1
    assert log == ["setup r", "teardown r"]
    deaf.release()
    clock.settle()


def test_of_several_stops_the_shortest_timeout_counts(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    scheduler.manual("a", heeds)
    running = start(scheduler)
    running.trigger("a")
    running.request_stop()
    clock.advance(5.0)
    running.stop(timeout=2.0)
    assert clock.monotonic() == 7.0


def test_from_inside_a_run_stop_and_wait_are_reentrant(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    caught: list[str] = []

    def from_inside() -> None:
        for call in (running.stop, running.wait, lambda: running.wait(0.0), lambda: running.stop(0)):
            try:
                call()
            except ReentrantCall as error:
                caught.append(str(error))

    def branch() -> None:
        from_inside()

    workflow = (
        Workflow()
        .register_split(S.WORK, [branch], JoinConfig(JoinStrategy.ALL, S.DONE))
        .add_exit_state(S.DONE)
    )
    scheduler.manual("function", from_inside)
    scheduler.manual("workflow", one_state(from_inside), S.WORK)
    scheduler.manual("branch", workflow, S.WORK)
    running: RunningScheduler = start(scheduler)
    for number, name in enumerate(("function", "workflow", "branch"), start=1):
        running.trigger(name)
        clock.settle()
        assert len(caught) == 4 * number, name
        assert kind_of(running, name) == "Completed"
    assert "request_stop()" in caught[0]


def test_a_run_of_one_scheduler_may_stop_another(clock: VirtualClock, start: Start) -> None:
    first, second = Scheduler(clock=clock), Scheduler(clock=clock)
    body = Body(clock)
    second.every("b", body, interval=1.0)
    other = start(second)
    first.manual("a", other.stop)
    running = start(first)
    running.trigger("a")
    clock.settle()
    assert other.wait(0.0) is True
    assert kind_of(running, "a") == "Completed"


@pytest.mark.parametrize("flow", ["function", "workflow"])
def test_a_run_may_request_the_stop_and_ends_in_peace(
    flow: str, scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    def last() -> None:
        running.request_stop()
        clock.sleep(3.0)

    if flow == "function":
        scheduler.manual("a", last)
    else:
        scheduler.manual("a", one_state(last), S.WORK)
    body = Body(clock)
    scheduler.every("b", body, interval=1.0)
    running: RunningScheduler = start(scheduler)
    running.trigger("a")
    assert running.wait() is True
    assert clock.monotonic() == 3.0
    assert body.starts == [0.0]
    running.stop()
    assert kind_of(running, "a") == "Completed"


def test_request_stop_never_blocks_and_asked_for_twice_is_one(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    log: list[str] = []
    scheduler.manual("a", heeds)
    scheduler.manual("b", one_state(Body(clock), Resources(r=Traced("r", log))), S.WORK)
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    for _ in range(3):
        running.request_stop()
    assert clock.monotonic() == 0.0
    assert running.wait(29.0) is False
    assert running.wait() is True
    assert clock.monotonic() == 30.0
    assert log == ["setup r", "teardown r"]


def test_a_subscriber_may_request_the_stop_but_not_wait_for_it(clock: VirtualClock, start: Start) -> None:
    caught: list[str] = []

    def hears(event: Any) -> None:
        if event.kind == "flow_succeeded":
            try:
                running.stop()
            except ReentrantCall as error:
                caught.append(str(error))
            running.request_stop()

    scheduler = Scheduler(clock=clock, subscribers=[hears])
    scheduler.every("a", Body(clock), interval=1.0)
    running: RunningScheduler = scheduler.start()
    assert running.wait() is True
    assert len(caught) == 1
    running.stop()
    assert clock.monotonic() == 0.0


# Waiting


def test_wait_waits_for_a_stop_and_never_asks_for_one(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock)
    scheduler.every("a", body, interval=1.0)
    running = start(scheduler)
    for timeout in (0, 2.5, timedelta(seconds=2.5)):
        assert running.wait(timeout) is False
    assert clock.monotonic() == 5.0
    assert len(body.starts) == 6
    clock.spawn(lambda: (clock.sleep(5.0), running.stop()), "stops later")
    assert running.wait() is True
    assert clock.monotonic() == 10.0
    assert running.wait(0) is True


def test_no_run_starts_and_nothing_is_accepted_once_the_stop_has_begun(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock)
    scheduler.manual("slow", Body(clock, 10.0))
    scheduler.every("a", body, interval=1.0)
    scheduler.cron("c", body, expression="* * * * * *")
    running = start(scheduler)
    running.trigger("slow")
    clock.advance(0.5)
    running.request_stop()
    for call in (running.trigger, running.reset_flow, running.pause, running.resume, running.cancel_flow):
        with pytest.raises(SchedulerStopped):
            call("a")
    clock.advance(5.0)
    assert body.starts == [0.0]
    assert [type(info.status) for info in running.list()] == [Running, Completed, Idle]
    running.stop()
    assert clock.monotonic() == 10.0


# with


def test_leaving_the_block_stops(scheduler: Scheduler, clock: VirtualClock) -> None:
    log: list[str] = []
    scheduler.every("a", one_state(Body(clock), Resources(r=Traced("r", log))), S.WORK, 1.0)
    with scheduler.start() as running:
        clock.advance(1.0)
    assert log == ["setup r", "teardown r"]
    assert running.wait(0) is True


def test_an_error_in_the_block_stops_and_gets_out(scheduler: Scheduler, clock: VirtualClock) -> None:
    scheduler.every("a", Body(clock), interval=1.0)
    with pytest.raises(ZeroDivisionError), scheduler.start() as running:
        raise ZeroDivisionError
    assert running.wait(0) is True


def test_leaving_the_block_with_a_deaf_run_raises_unless_an_error_is_on_its_way(
    clock: VirtualClock, deaf: Deaf, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(error: BaseException | None) -> None:
        scheduler = Scheduler(clock=clock)
        scheduler.manual("a", deaf)
        with scheduler.start() as running:
            running.trigger("a")
            clock.settle()
            if error is not None:
                raise error

    with pytest.raises(StopTimeout):
        leave(None)
    with pytest.raises(ZeroDivisionError):
        leave(ZeroDivisionError())
    assert clock.monotonic() == 2 * (30.0 + HEED)
    assert "after ZeroDivisionError" in caplog.text


# A supervisor handed in


def test_a_supervisor_handed_in_stays_running(supervisor: Supervisor, clock: VirtualClock) -> None:
    scheduler = Scheduler(supervisor=supervisor)
    body = Body(clock)
    scheduler.every("a", body, interval=1.0)
    with scheduler.start():
        clock.advance(2.0)
        assert [info.name for info in supervisor.tasks()] == ["dispatcher"]
    clock.settle()
    assert body.starts == [0.0, 1.0, 2.0]
    assert supervisor.tasks() == []
    assert supervisor.add(TaskSpec.once("t", lambda: "alive")).wait().value == "alive"


def test_several_schedulers_live_on_one_supervisor_and_stop_apart(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    bodies = [Body(clock) for _ in range(3)]
    runnings: list[RunningScheduler] = []
    for body in bodies:
        scheduler = Scheduler(supervisor=supervisor)
        scheduler.every("same id", body, interval=1.0)
        runnings.append(scheduler.start())
    clock.advance(2.0)
    for running in runnings:
        running.stop()
        clock.advance(1.0)
    assert [len(body.starts) for body in bodies] == [3, 4, 5]
    clock.settle()
    assert supervisor.tasks() == []


def test_the_clock_of_the_supervisor_counts_and_another_is_refused(supervisor: Supervisor) -> None:
    with pytest.raises(ValueError, match="clock"):
        Scheduler(supervisor=supervisor, clock=VirtualClock())
    with pytest.raises(TypeError, match="supervisor"):
        Scheduler(supervisor="mine")  # type: ignore[arg-type]


def test_a_body_of_the_supervisor_handed_in_may_stop_and_wait(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    scheduler = Scheduler(supervisor=supervisor)
    scheduler.every("a", Body(clock), interval=1.0)
    running = scheduler.start()

    def main() -> str:
        assert running.wait(5.0) is False
        running.stop()
        return "stopped"

    assert supervisor.add(TaskSpec.once("main", main)).wait().value == "stopped"
    assert clock.monotonic() == 5.0


def test_when_its_supervisor_shuts_down_the_scheduler_stops_within_the_grace(
    clock: VirtualClock, recorder: EventRecorder
) -> None:
    log: list[str] = []
    supervisor = Supervisor(SupervisorConfig(grace=10.0), clock=clock, subscribers=[recorder])
    scheduler = Scheduler(supervisor=supervisor)
    scheduler.manual("a", heeds)
    scheduler.every("b", one_state(Body(clock), Resources(r=Traced("r", log))), S.WORK, 1.0)
    running = scheduler.start()
    running.trigger("a")
    clock.settle()
    supervisor.shutdown()
    assert clock.monotonic() == 5.0
    assert log == ["setup r", "teardown r"]
    running.stop()
    assert running.wait() is True
    with pytest.raises(SchedulerStopped):
        running.trigger("a")


def test_a_deaf_run_does_not_make_the_supervisor_exceed_its_grace(clock: VirtualClock, deaf: Deaf) -> None:
    supervisor = Supervisor(SupervisorConfig(grace=10.0), clock=clock)
    scheduler = Scheduler(supervisor=supervisor)
    scheduler.manual("a", deaf)
    running = scheduler.start()
    running.trigger("a")
    clock.settle()
    supervisor.shutdown()
    assert clock.monotonic() == 5.0 + HEED
    with pytest.raises(StopTimeout):
        running.stop()


@pytest.mark.parametrize("ask", ["stop", "request_stop", "shutdown", "remove"])
def test_a_scheduler_whose_dispatcher_waits_for_a_permit_can_be_stopped(
    ask: str, clock: VirtualClock
) -> None:
    log: list[str] = []
    supervisor = Supervisor(SupervisorConfig(max_concurrent=1), clock=clock)

    def occupies(ctx: TaskContext) -> None:
        ctx.wait()

    supervisor.add(TaskSpec.once("occupies", occupies))
    clock.settle()
    scheduler = Scheduler(supervisor=supervisor)
    scheduler.every("a", one_state(Body(clock), Resources(r=Traced("r", log))), S.WORK, 1.0)
    running = scheduler.start()
    clock.advance(10.0)
    actions: dict[str, Callable[[], object]] = {
        "stop": running.stop,
        "request_stop": running.request_stop,
        "shutdown": supervisor.shutdown,
        "remove": lambda: supervisor.remove("dispatcher"),
    }
    actions[ask]()
    assert running.wait() is True
    running.stop()
    assert log == ["setup r", "teardown r"]
    assert clock.monotonic() == 10.0
    supervisor.shutdown()


def test_removing_the_dispatcher_stops_the_scheduler(supervisor: Supervisor, clock: VirtualClock) -> None:
    log: list[str] = []
    scheduler = Scheduler(supervisor=supervisor)
    scheduler.every("a", one_state(Body(clock), Resources(r=Traced("r", log))), S.WORK, 1.0)
    running = scheduler.start()
    clock.advance(2.5)
    assert supervisor.cancel("dispatcher") is True
    assert running.wait(0) is True
    assert log == ["setup r", "teardown r"]
    with pytest.raises(SchedulerStopped):
        running.trigger("a")


def test_the_own_supervisor_of_a_scheduler_ends_with_it(
    scheduler: Scheduler, start: Start, recorder: EventRecorder
) -> None:
    running = start(scheduler)
    running.stop()
    assert recorder.kinds()[-1] == "shutdown_completed"


def test_a_subscriber_that_hangs_holds_up_no_stop_for_long(clock: VirtualClock) -> None:
    latch = clock.latch()
    scheduler = Scheduler(clock=clock, subscribers=[lambda event: latch.wait()])
    scheduler.every("a", Body(clock), interval=1.0)
    running = scheduler.start()
    clock.advance(1.0)
    try:
        running.stop()
    except GraceExceeded:
        pytest.fail("a stop has its own errors")
    assert clock.monotonic() <= 11.0
    latch.open()
    clock.settle()


def test_a_stop_waits_as_long_as_it_was_asked_to(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    scheduler.manual("long", lambda: clock.sleep(99.0))
    running = start(scheduler)
    running.trigger("long")
    running.stop(timeout=100.0)
    assert clock.monotonic() == 99.0
    info = running.status("long")
    assert info is not None
    assert isinstance(info.status, Completed)
