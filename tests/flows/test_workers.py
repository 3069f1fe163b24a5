"""Threads for runs: as many as there are runs in flight, used again, and at most as many as allowed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from supervisor.flows import Idle, Running, Scheduler, StopTimeout
from supervisor.kernel.errors import CapacityExceeded
from supervisor.kernel.workers import WARM, Workers
from supervisor.testing import EventRecorder, VirtualClock
from tests.flows.scheduling import Body, Start, at, kind_of


def test_one_thread_serves_flows_that_never_run_at_once(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    names: set[str] = set()
    for number in range(5):
        scheduler.cron(
            f"{number}", lambda: names.add(threading.current_thread().name), expression=f"{number} * * * * *"
        )
    start(scheduler)
    clock.advance(65.0)
    assert names == {"scheduler:flow:1", "scheduler:flow:2"}  # a warm one ends in the 50 s between
    assert WARM == 10.0


def test_there_are_as_many_threads_as_runs_in_flight(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    for number in range(30):
        scheduler.manual(f"{number}", Body(clock, 5.0))
    running = start(scheduler)
    before = threading.active_count()
    for number in range(30):
        running.trigger(f"{number}")
    clock.settle()
    assert threading.active_count() == before + 30
    clock.advance(5.0 + WARM)
    assert threading.active_count() == before


def test_a_thousand_flows_that_wait_cost_no_thread(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    before = threading.active_count()
    for number in range(500):
        scheduler.cron(f"c{number}", Body(clock), expression="0 0 12 * * *")
        scheduler.manual(f"m{number}", Body(clock))
    running = start(scheduler)
    clock.advance(20.0)
    assert threading.active_count() <= before + 3
    assert len(running.list()) == 1000


def test_beyond_the_limit_accepted_runs_queue_in_order_and_count_as_running(
    clock: VirtualClock, start: Start, recorder: EventRecorder
) -> None:
    scheduler = Scheduler(clock=clock, workers=2, subscribers=[recorder])
    order: list[tuple[str, float]] = []

    def body(name: str) -> Callable[[], None]:
        def run() -> None:
            order.append((name, clock.monotonic()))
            clock.sleep(10.0)

        return run

    for name in "abcde":
        scheduler.manual(name, body(name))
    running = start(scheduler)
    for name in "abcde":
        running.trigger(name)
    clock.settle()
    assert [info.status for info in running.list()] == [Running(at(0))] * 5
    assert order == [("a", 0.0), ("b", 0.0)]
    with pytest.raises(RuntimeError, match="already running"):
        running.trigger("e")
    clock.advance(25.0)
    assert sorted(order) == [("a", 0.0), ("b", 0.0), ("c", 10.0), ("d", 10.0), ("e", 20.0)]
    assert kind_of(running, "e") == "Running"
    clock.advance(5.0)
    assert [event.flow_id for event in recorder.of("flow_started")] == list("abcde")
    assert len(recorder.of("flow_succeeded")) == 5


def test_with_one_worker_due_flows_wait_their_turn(clock: VirtualClock, start: Start) -> None:
    scheduler = Scheduler(clock=clock, workers=1)
    first, second = Body(clock, 3.0), Body(clock, 3.0)
    scheduler.every("a", first, interval=1.0)
    scheduler.every("b", second, interval=1.0)
    start(scheduler)
    clock.advance(12.0)
    assert first.starts == [0.0, 6.0, 12.0]
    assert second.starts == [3.0, 9.0]


def test_a_split_of_a_run_needs_no_worker(clock: VirtualClock, start: Start) -> None:
    from supervisor.flows import JoinConfig, JoinStrategy, Workflow
    from tests.flows.scheduling import S

    inner = Workflow().register_split(S.WORK, [lambda: 1] * 3, JoinConfig(JoinStrategy.ALL, S.DONE))
    inner.add_exit_state(S.DONE)
    outer = (
        Workflow()
        .register_split(
            S.WORK, [lambda: inner.run(S.WORK, clock=clock)] * 3, JoinConfig(JoinStrategy.ALL, S.DONE)
        )
        .add_exit_state(S.DONE)
    )
    scheduler = Scheduler(clock=clock, workers=1)
    scheduler.manual("a", outer, S.WORK)
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    assert kind_of(running, "a") == "Completed"


@pytest.mark.parametrize("limit", [1, 3, None])
@pytest.mark.parametrize("seed", range(5))
def test_no_job_is_lost_and_no_limit_passed(limit: int | None, seed: int) -> None:
    clock = VirtualClock(seed)
    workers = Workers(clock, "w", limit)
    done: list[int] = []
    inside = most = 0

    def job(number: int) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        clock.sleep(0.5 * (number % 3))
        inside -= 1
        done.append(number)

    def submit(first: int) -> None:
        for number in range(first, first + 10):
            workers.submit(lambda number=number: job(number))
            clock.sleep(0.1)

    threads = [clock.spawn(lambda first=first: submit(first), f"s{first}") for first in (0, 10, 20)]
    for thread in threads:
        thread.join()
    assert workers.close(100.0) is True
    assert sorted(done) == list(range(30))
    assert limit is None or most <= limit


def test_a_job_handed_to_a_worker_at_the_end_of_its_warmth_is_not_lost() -> None:
    for seed in range(30):
        clock = VirtualClock(seed)
        workers = Workers(clock, "w", None)
        done: list[float] = []
        for _ in range(4):
            workers.submit(lambda done=done, clock=clock: done.append(clock.monotonic()))
            clock.sleep(WARM)
        assert len(done) == 4
        assert workers.close(1.0) is True


def test_a_job_that_raises_is_told_and_its_thread_goes_on(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    workers = Workers(clock, "w", 1)
    done: list[int] = []
    workers.submit(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    workers.submit(lambda: done.append(1))
    clock.settle()
    assert done == [1]
    assert "ZeroDivisionError" in caplog.text
    assert workers.close(1.0) is True


def test_closing_waits_for_jobs_as_long_as_it_is_told(clock: VirtualClock) -> None:
    workers = Workers(clock, "w", 1)
    workers.submit(lambda: clock.sleep(5.0))
    workers.submit(lambda: clock.sleep(5.0))
    clock.settle()
    assert workers.close(3.0) is False
    assert clock.monotonic() == 3.0
    assert workers.close(100.0) is True
    assert clock.monotonic() == 10.0


def test_when_no_thread_is_to_be_had_a_run_fails_with_the_reason(
    clock: VirtualClock, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = Body(clock)
    scheduler = Scheduler(clock=clock)
    scheduler.manual("a", body)
    running = start(scheduler)

    def refuses(target: Callable[[], None], name: str) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(clock, "spawn", refuses)
        running.trigger("a")
        info = running.status("a")
        assert info is not None
        assert info.failure_streak == 1
        assert "no thread for a run" in str(info.status)
        with pytest.raises(CapacityExceeded):
            Workers(clock, "w", None).submit(lambda: None)
    running.trigger("a")
    clock.settle()
    assert body.starts == [0.0]
    assert kind_of(running, "a") == "Completed"


def test_a_cancel_ends_a_queued_run_at_once_and_its_body_never_runs(
    start: Start, clock: VirtualClock
) -> None:
    scheduler = Scheduler(clock=clock, workers=1)
    first, second = Body(clock, 50.0), Body(clock)
    scheduler.manual("first", first)
    scheduler.manual("second", second)
    running = start(scheduler)
    running.trigger("first")
    running.trigger("second")
    clock.advance(1.0)
    assert running.cancel_flow("second")
    info = running.status("second")
    assert info is not None
    assert info.status == Idle()
    assert not running.cancel_flow("second")
    running.trigger("second")  # accepted: nothing of the first one is left
    clock.advance(50.0)
    assert (first.starts, second.starts) == ([0.0], [50.0])


def test_a_stop_drops_a_queued_run_whose_worker_is_deaf(start: Start, clock: VirtualClock) -> None:
    scheduler = Scheduler(clock=clock, workers=1)
    second = Body(clock)
    scheduler.manual("deaf", Body(clock, 50.0))
    scheduler.manual("second", second)
    running = start(scheduler)
    running.trigger("deaf")
    running.trigger("second")
    clock.advance(1.0)
    with pytest.raises(StopTimeout) as caught:
        running.stop(timeout=2.0)
    assert caught.value.running == ("deaf",)
    clock.advance(60.0)
    assert second.starts == []
