"""Triggers: any kind of flow, accepted or refused at once, one run at a time."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from supervisor import BackoffPolicy
from supervisor.flows import (
    Backoff,
    Completed,
    FlowAlreadyRunning,
    FlowError,
    FlowNotFound,
    FlowTripped,
    Running,
    RunningScheduler,
    Scheduler,
    SchedulerStopped,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.flows.scheduling import EXACT, Body, S, Start, at, kind_of, of_flow, one_state, story


def test_a_manual_flow_never_runs_by_itself(scheduler: Scheduler, start: Start, clock: VirtualClock) -> None:
    body = Body(clock)
    scheduler.manual("a", one_state(body), S.WORK)
    running = start(scheduler)
    clock.advance(1e6)
    assert body.starts == []
    running.trigger("a")
    clock.settle()
    assert body.starts == [1e6]
    clock.advance(1e6)
    assert body.starts == [1e6]
    info = running.status("a")
    assert info is not None
    assert (info.status, info.run_count, info.next_fire) == (Completed(at(1e6)), 1, None)


def test_trigger_returns_when_the_run_is_accepted_before_it_begins(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, 5.0)
    scheduler.manual("a", body)
    running = start(scheduler)
    clock.advance(2.0)
    running.trigger("a")
    info = running.status("a")
    assert info is not None
    assert body.starts == []
    assert (info.status, info.run_count, info.last_run) == (Running(at(2)), 1, at(2))
    assert (info.last_duration, info.failure_streak) == (None, 0)
    clock.advance(5.0)
    info = running.status("a")
    assert info is not None
    assert (info.status, info.last_duration, info.last_run) == (Completed(at(7)), 5.0, at(2))


def test_every_kind_of_flow_can_be_triggered(scheduler: Scheduler, start: Start, clock: VirtualClock) -> None:
    bodies = {name: Body(clock) for name in ("every", "cron", "manual")}
    scheduler.every("every", bodies["every"], interval=100.0)
    scheduler.cron("cron", bodies["cron"], expression="@hourly")
    scheduler.manual("manual", bodies["manual"])
    running = start(scheduler)
    clock.advance(10.0)
    for name in bodies:
        running.trigger(name)
    clock.settle()
    assert [body.starts for body in bodies.values()] == [[0.0, 10.0], [10.0], [10.0]]


def test_a_second_trigger_during_a_run_is_refused_and_counts_nothing(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    body = Body(clock, 0.3)
    scheduler.manual("a", body)
    running = start(scheduler)
    running.trigger("a")
    for seconds in (0.0, 0.1, 0.1):
        clock.advance(seconds)
        with pytest.raises(FlowAlreadyRunning, match="already running") as caught:
            running.trigger("a")
        assert caught.value.flow_id == "a"
        assert str(caught.value).count("'a'") == 1
    clock.advance(0.1)
    info = running.status("a")
    assert info is not None
    assert (info.run_count, info.skipped) == (1, 0)
    assert story(recorder, "a") == ["flow_started", "flow_succeeded"]
    running.trigger("a")
    clock.settle()
    assert body.starts == pytest.approx([0.0, 0.3], abs=1e-9)


def test_an_unknown_id_is_refused_by_every_call_that_acts(scheduler: Scheduler, start: Start) -> None:
    scheduler.manual("a", lambda: None)
    running = start(scheduler)
    for call in (running.trigger, running.reset_flow, running.pause, running.resume, running.cancel_flow):
        for unknown in ("b", "", None, 5, []):
            with pytest.raises((FlowNotFound, TypeError)) as caught:
                call(unknown)  # type: ignore[arg-type]
            if isinstance(unknown, str):
                assert isinstance(caught.value, FlowError)
                assert isinstance(caught.value, LookupError)
                assert caught.value.flow_id == unknown
                assert f"{unknown!r}; there are 'a'" in str(caught.value)
    assert running.status("b") is None


def test_a_tripped_flow_refuses_triggers_until_it_is_reset(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, ValueError("no"), 0.0)
    scheduler.manual("a", body)
    scheduler.set_backoff("a", EXACT, streak_limit=1)
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    with pytest.raises(FlowTripped, match="reset_flow") as caught:
        running.trigger("a")
    assert caught.value.flow_id == "a"
    assert running.list()[0].run_count == 1
    running.reset_flow("a")
    running.trigger("a")
    clock.settle()
    assert len(body.starts) == 2
    assert kind_of(running, "a") == "Completed"


def test_a_trigger_passes_over_a_backoff_window_and_a_success_clears_it(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, ValueError("no"), 0.0)
    scheduler.manual("a", body)
    scheduler.set_backoff("a", BackoffPolicy.constant(60.0))
    running = start(scheduler)
    running.trigger("a")
    clock.advance(1.0)
    running.trigger("a")
    clock.settle()
    info = running.status("a")
    assert info is not None
    assert (info.status, info.failure_streak, info.next_eligible) == (Completed(at(1)), 0, None)
    assert info.run_count == 2


def test_a_failing_trigger_inside_the_window_opens_a_new_one_from_its_end(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    scheduler.manual("a", Body(clock, ValueError("no")))
    scheduler.set_backoff("a", BackoffPolicy(initial=60.0, multiplier=2.0, max_delay=1e6, jitter=0.0))
    running = start(scheduler)
    running.trigger("a")
    clock.advance(10.0)
    running.trigger("a")
    clock.settle()
    info = running.status("a")
    assert info is not None
    assert info.status == Backoff(at(130), 2, "ValueError: no (in flow 'a')")
    assert info.next_eligible == at(130)


def test_twenty_triggers_one_after_another_are_twenty_runs_on_one_thread(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    threads: set[str] = set()
    scheduler.manual("a", lambda: threads.add(threading.current_thread().name))
    running = start(scheduler)
    for _ in range(20):
        running.trigger("a")
        clock.settle()
    assert running.list()[0].run_count == 20
    assert threads == {"scheduler:flow:1"}


def test_triggers_of_different_flows_run_side_by_side(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    bodies = [Body(clock, 10.0) for _ in range(20)]
    for number, body in enumerate(bodies):
        scheduler.manual(f"{number}", body)
    running = start(scheduler)
    for info in running.list():
        running.trigger(info.id)
    clock.settle()
    assert [body.inside for body in bodies] == [1] * 20
    clock.advance(10.0)
    assert {kind_of(running, info.id) for info in running.list()} == {"Completed"}


def test_a_run_may_trigger_another_flow_but_not_itself(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    other = Body(clock)
    found: list[object] = []

    def starts_another() -> None:
        running.trigger("other")
        try:
            running.trigger("self")
        except FlowAlreadyRunning as error:
            found.append(error)
        info = running.status("self")
        assert info is not None
        found.append(info.status)

    scheduler.manual("self", starts_another)
    scheduler.manual("other", other)
    running = start(scheduler)
    running.trigger("self")
    clock.settle()
    assert other.starts == [0.0]
    error, status = found
    assert isinstance(error, FlowAlreadyRunning)
    assert status == Running(at(0))
    assert kind_of(running, "self") == "Completed"


def test_a_flow_that_triggers_its_successor_forms_a_chain(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    order: list[int] = []

    def link(number: int) -> None:
        order.append(number)
        if number < 49:
            running.trigger(f"{number + 1}")

    for number in range(50):
        scheduler.manual(f"{number}", lambda number=number: link(number))
    running: RunningScheduler = start(scheduler)
    running.trigger("0")
    clock.settle()
    assert order == list(range(50))


def test_a_subscriber_may_trigger(scheduler: Scheduler, clock: VirtualClock) -> None:
    body = Body(clock)
    scheduler.manual("a", lambda: None)
    scheduler.manual("b", body)
    own = Scheduler(clock=clock, subscribers=[lambda event: follow(event)])
    own.manual("a", lambda: None)
    own.manual("b", body)

    def follow(event: object) -> None:
        if getattr(event, "kind", "") == "flow_succeeded" and getattr(event, "flow_id", "") == "a":
            running.trigger("b")

    with own.start() as running:
        running.trigger("a")
        clock.settle()
        assert body.starts == [0.0]


def test_after_the_stop_every_call_that_acts_is_refused(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock)
    scheduler.manual("a", body)
    running = start(scheduler)
    running.stop()
    calls = (running.trigger, running.reset_flow, running.pause, running.resume, running.cancel_flow)
    for call in calls:
        with pytest.raises(SchedulerStopped):
            call("a")
    clock.advance(10.0)
    assert body.starts == []
    assert running.list()[0].run_count == 0


@pytest.mark.parametrize("seed", range(10))
def test_of_many_triggers_at_once_one_is_accepted(seed: int) -> None:
    clock = VirtualClock(seed)
    body = Body(clock, 1.0)
    scheduler = Scheduler(clock=clock)
    scheduler.manual("a", body)
    results: list[str] = []
    with scheduler.start() as running:

        def pull() -> None:
            try:
                running.trigger("a")
                results.append("accepted")
            except FlowAlreadyRunning:
                results.append("refused")

        for thread in [clock.spawn(pull, f"caller {n}") for n in range(16)]:
            thread.join()
        assert Counter(results) == {"accepted": 1, "refused": 15}
        assert running.list()[0].run_count == 1
    assert body.starts == [0.0]


@pytest.fixture
def restless() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.usefixtures("restless")
def test_on_real_threads_the_runs_of_a_flow_are_the_accepted_triggers_and_never_overlap() -> None:
    flows, threads, triggers = 20, 8, 60
    inside, most, runs = [0] * flows, [0] * flows, [0] * flows

    def body(number: int) -> None:
        inside[number] += 1
        most[number] = max(most[number], inside[number])
        runs[number] += 1
        inside[number] -= 1

    scheduler = Scheduler()
    for number in range(flows):
        scheduler.manual(f"{number}", lambda number=number: body(number))
    accepted: list[int] = []
    with scheduler.start() as running:

        def driver(seed: int) -> None:
            mine: list[int] = []
            for step in range(triggers):
                number = (seed * 7 + step) % flows
                try:
                    running.trigger(f"{number}")
                    mine.append(number)
                except FlowAlreadyRunning:
                    pass
            accepted.extend(mine)

        drivers = [threading.Thread(target=driver, args=(seed,)) for seed in range(threads)]
        for thread in drivers:
            thread.start()
        for thread in drivers:
            thread.join()
    counts = Counter(accepted)
    infos = running.list()
    assert [info.run_count for info in infos] == [counts[number] for number in range(flows)] == runs
    assert set(most) == {1}
    assert {type(info.status) for info in infos} == {Completed}


def test_what_a_trigger_tells(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    scheduler.manual("a", one_state(Body(clock, 2.0)), S.WORK)
    running = start(scheduler)
    running.trigger("a")
    clock.advance(2.0)
    told = [event.to_dict() for event in of_flow(recorder, "a")]
    for each in told:
        del each["seq"], each["at"]
    assert told == [
        {"kind": "flow_started", "flow_id": "a", "run": 1, "cause": "trigger"},
        {"kind": "state_entered", "flow_id": "a", "state": "S.WORK"},
        {"kind": "state_entered", "flow_id": "a", "state": "S.DONE"},
        {"kind": "flow_succeeded", "flow_id": "a", "run": 1, "duration": 2.0, "exit_state": "S.DONE"},
    ]
