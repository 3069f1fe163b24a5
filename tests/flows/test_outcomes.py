"""How a run ends, and what its one write decides: completed, backoff, tripped, or idle."""

from __future__ import annotations

import random
from typing import Any

import pytest

from supervisor import BackoffPolicy, Canceled, Fail, Fatal
from supervisor.flows import (
    FLOW_BACKOFF,
    Backoff,
    Completed,
    FlowInfo,
    FlowRun,
    Idle,
    Resources,
    RunningScheduler,
    Scheduler,
    Tripped,
    Workflow,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.flows.scheduling import EXACT, Body, S, Start, at, kind_of, of_flow, one_state, story


def info_of(running: RunningScheduler, id: str = "a") -> FlowInfo:
    info = running.status(id)
    assert info is not None
    return info


class Bare(BaseException):
    """Not an `Exception`."""


FAILURES: dict[str, tuple[BaseException, str]] = {
    "an exception": (ValueError("boom"), "ValueError: boom"),
    "a failure that is meant": (Fail("boom"), "boom"),
    "a fatal one": (Fatal("boom"), "boom"),
    "an exit": (SystemExit(3), "SystemExit"),
    "Ctrl-C of its own": (KeyboardInterrupt(), "KeyboardInterrupt"),
    "a bare BaseException": (Bare("boom"), "Bare: boom"),
    "an exception without text": (RuntimeError(), "RuntimeError"),
    "a StopIteration": (StopIteration(), "StopIteration"),
    "a GeneratorExit": (GeneratorExit(), "GeneratorExit"),
    "running out of memory": (MemoryError(), "MemoryError"),
}


@pytest.mark.parametrize(("error", "text"), FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("kind", ["function", "workflow"])
def test_whatever_a_run_raises_is_one_failure_and_the_flow_goes_on(
    error: BaseException, text: str, kind: str, scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, error, 0.0)
    if kind == "function":
        scheduler.every("a", body, interval=10.0)
    else:
        scheduler.every("a", one_state(body), S.WORK, 10.0)
    scheduler.set_backoff("a", EXACT)
    running = start(scheduler)
    info = info_of(running)
    where = "(in flow 'a')" if kind == "function" else "(in flow 'a', state S.WORK, attempt 1, path S.WORK)"
    assert isinstance(info.status, Backoff)
    assert info.status.last_error.startswith(text)
    assert info.status.last_error.endswith(where)
    assert info.status.last_error.count("flow 'a'") == 1
    assert (info.status.until, info.status.streak) == (at(1), 1)
    clock.advance(10.0)
    assert info_of(running).status == Completed(at(10))


def test_the_last_error_has_state_attempt_and_path(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    workflow = (
        Workflow()
        .register(S.WORK, lambda: S.MORE)
        .register(S.MORE, lambda: 1 / 0, max_retries=2, backoff=BackoffPolicy.constant(1.0))
        .add_exit_state(S.DONE)
    )
    scheduler.manual("a", workflow, S.WORK)
    running = start(scheduler)
    running.trigger("a")
    clock.advance(2.0)
    status = info_of(running).status
    assert isinstance(status, Backoff)
    assert status.last_error.count("(flow 'a', state S.MORE, attempt 3, path S.WORK > S.MORE)") == 1
    assert "ZeroDivisionError: division by zero" in status.last_error
    assert "failed 3 times" in status.last_error


def test_a_hostile_exception_leaves_no_flow_running(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    class HostileError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

        def add_note(self, note: str) -> None:
            raise RuntimeError("no notes")

        @property
        def __class__(self) -> Any:
            raise RuntimeError("no class")

        @property
        def __notes__(self) -> Any:
            raise RuntimeError("no notes to read")

    scheduler.manual("a", Body(clock, HostileError()))
    scheduler.manual("b", one_state(Body(clock, HostileError())), S.WORK)
    running = start(scheduler)
    for id in "ab":
        running.trigger(id)
        clock.settle()
        status = info_of(running, id).status
        assert isinstance(status, Backoff)
        assert "Hostile" in status.last_error


def test_failure_number_s_waits_what_the_policy_says(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    policy = BackoffPolicy(initial=0.1, multiplier=10.0, max_delay=500.0, jitter=0.0)
    scheduler.manual("a", Body(clock, ValueError("no")))
    scheduler.set_backoff("a", policy)
    running = start(scheduler)
    for streak, delay in enumerate([0.1, 1.0, 10.0, 100.0, 500.0, 500.0], start=1):
        running.trigger("a")
        clock.settle()
        info = info_of(running)
        assert info.status == Backoff(at(delay), streak, "ValueError: no (in flow 'a')")
        assert (info.failure_streak, info.next_eligible) == (streak, at(delay))


def test_without_set_backoff_a_flow_backs_off_from_a_second_on_and_never_trips(
    start: Start, clock: VirtualClock
) -> None:
    class Middle:
        def random(self) -> float:
            return 0.5

    body = Body(clock, ValueError("no"))
    scheduler = Scheduler(clock=clock, rng=Middle())
    scheduler.every("a", body, interval=0.01)
    running = start(scheduler)
    clock.advance(511.0 + 2 * 300.0)
    doubling = [2.0**n - 1.0 for n in range(10)]
    assert body.starts == [*doubling, 811.0, 1111.0]
    assert kind_of(running, "a") == "Backoff"


@pytest.mark.parametrize("draw", [0.0, 0.25, 0.999])
def test_the_jitter_is_drawn_from_the_rng_given(draw: float, start: Start, clock: VirtualClock) -> None:
    class Fixed:
        def random(self) -> float:
            return draw

    scheduler = Scheduler(clock=clock, rng=Fixed())
    scheduler.manual("a", Body(clock, ValueError("no")))
    running = start(scheduler)
    for streak in (1, 2):
        running.trigger("a")
        clock.settle()
        delay = FLOW_BACKOFF.delay(streak, draw)
        assert info_of(running).next_eligible == at(delay)


def test_an_rng_of_the_standard_library_gives_the_same_story_again() -> None:
    def story_of(seed: int) -> list[float]:
        clock = VirtualClock()
        body = Body(clock, ValueError("no"))
        scheduler = Scheduler(clock=clock, rng=random.Random(seed))
        scheduler.every("a", body, interval=0.01)
        with scheduler.start():
            clock.advance(100.0)
        return body.starts

    assert story_of(1) == story_of(1) != story_of(2)


@pytest.mark.parametrize("value", [1.0, -0.5, float("nan"), "x", None, ZeroDivisionError()])
def test_a_broken_rng_leaves_no_flow_running_for_ever(
    value: Any, start: Start, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def random(self) -> float:
            if isinstance(value, Exception):
                raise value
            return value  # type: ignore[no-any-return]

    scheduler = Scheduler(clock=clock, rng=Broken())
    scheduler.manual("a", Body(clock, ValueError("no")))
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    assert info_of(running).status == Backoff(at(1), 1, "ValueError: no (in flow 'a')")
    assert "rng" in caplog.text


def test_a_success_ends_the_streak(scheduler: Scheduler, start: Start, clock: VirtualClock) -> None:
    no = ValueError("no")
    scheduler.manual("a", Body(clock, no, no, 0.0, no))
    scheduler.set_backoff("a", EXACT)
    running = start(scheduler)
    streaks: list[tuple[str, int]] = []
    for _ in range(4):
        running.trigger("a")
        clock.settle()
        streaks.append((kind_of(running, "a"), info_of(running).failure_streak))
    assert streaks == [("Backoff", 1), ("Backoff", 2), ("Completed", 0), ("Backoff", 1)]
    assert info_of(running).next_eligible == at(1)


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_a_flow_trips_at_its_limit_and_nothing_is_dispatched_any_more(
    limit: int, scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    body = Body(clock, ValueError("no"))
    scheduler.every("a", body, interval=1.0)
    scheduler.set_backoff("a", BackoffPolicy.constant(2.0), streak_limit=limit)
    running = start(scheduler)
    clock.advance(1000.0)
    info = info_of(running)
    assert body.starts == [2.0 * n for n in range(limit)]
    assert info.status == Tripped(limit, "ValueError: no (in flow 'a')")
    assert (info.run_count, info.failure_streak, info.next_eligible) == (limit, limit, None)
    kinds = [each for each in story(recorder, "a") if each not in ("flow_scheduled", "flow_skipped")]
    failed = ["flow_started", "flow_failed"]
    assert kinds == [*failed, "flow_backoff"] * (limit - 1) + [*failed, "flow_tripped"]


def test_what_a_failure_and_a_trip_tell(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    scheduler.manual("a", Body(clock, ValueError("no")))
    scheduler.set_backoff("a", EXACT, streak_limit=2)
    running = start(scheduler)
    for _ in range(2):
        running.trigger("a")
        clock.advance(0.5)
    told = [event.to_dict() for event in of_flow(recorder, "a")]
    for each in told:
        del each["seq"], each["at"]
    text = "ValueError: no (in flow 'a')"
    assert told == [
        {"kind": "flow_started", "flow_id": "a", "run": 1, "cause": "trigger"},
        {"kind": "flow_failed", "flow_id": "a", "run": 1, "duration": 0.0, "error": text, "streak": 1},
        {
            "kind": "flow_backoff",
            "flow_id": "a",
            "delay": 1.0,
            "until": at(1).isoformat(),
            "streak": 1,
        },
        {"kind": "flow_started", "flow_id": "a", "run": 2, "cause": "trigger"},
        {"kind": "flow_failed", "flow_id": "a", "run": 2, "duration": 0.0, "error": text, "streak": 2},
        {"kind": "flow_tripped", "flow_id": "a", "streak": 2, "error": text},
    ]


def test_canceled_that_nobody_asked_for_is_idle_and_leaves_the_streak(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    body = Body(clock, ValueError("no"), Canceled(), 0.0)
    scheduler.manual("a", body)
    scheduler.manual("b", one_state(Body(clock, ValueError("no"), Canceled())), S.WORK)
    scheduler.set_backoff("a", EXACT)
    scheduler.set_backoff("b", EXACT)
    running = start(scheduler)
    for id in "ab":
        for _ in range(2):
            running.trigger(id)
            clock.settle()
        info = info_of(running, id)
        assert (info.status, info.failure_streak, info.run_count) == (Idle(), 1, 2)
        assert story(recorder, id)[-1] == "flow_canceled"


def test_a_run_over_its_total_timeout_is_a_failure(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    def heeds(res: Resources, run: FlowRun) -> S:
        run.token.wait()
        return S.DONE

    workflow = Workflow().register(S.WORK, heeds).add_exit_state(S.DONE).with_total_timeout(5.0)
    scheduler.manual("a", workflow, S.WORK)
    running = start(scheduler)
    clock.advance(1.0)
    running.trigger("a")
    clock.advance(5.0)
    info = info_of(running)
    assert isinstance(info.status, Backoff)
    assert "the run timed out: 5 s, the limit is 5 s" in info.status.last_error
    assert info.last_duration == 5.0


def test_a_failed_compensation_is_a_failure_a_clean_one_after_a_cancel_is_none(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    undone: list[str] = []

    def saga(fails: bool) -> Workflow:
        def undo(res: Resources, value: str) -> None:
            undone.append(value)
            if fails:
                raise ValueError("stays")

        def heeds(res: Resources, run: FlowRun) -> S:
            run.token.wait()
            return S.DONE

        return (
            Workflow()
            .register(S.WORK, lambda: (S.MORE, "order"), compensate=undo)
            .register(S.MORE, heeds)
            .add_exit_state(S.DONE)
        )

    scheduler.manual("clean", saga(False), S.WORK)
    scheduler.manual("dirty", saga(True), S.WORK)
    running = start(scheduler)
    for id in ("clean", "dirty"):
        running.trigger(id)
        clock.settle()
        assert running.cancel_flow(id) is True
        clock.settle()
    assert undone == ["order", "order"]
    assert info_of(running, "clean").status == Idle()
    dirty = info_of(running, "dirty")
    assert isinstance(dirty.status, Backoff)
    assert "compensation failed" in dirty.status.last_error
    assert dirty.failure_streak == 1


def test_a_subscriber_that_raises_changes_no_outcome(clock: VirtualClock, start: Start) -> None:
    def deafens(event: object) -> None:
        raise RuntimeError("no")

    scheduler = Scheduler(clock=clock, subscribers=[deafens])
    body = Body(clock)
    scheduler.every("a", body, interval=1.0)
    running = start(scheduler)
    clock.advance(3.0)
    assert len(body.starts) == 4
    assert kind_of(running, "a") == "Completed"


def test_a_workflow_of_an_unknown_next_state_fails_with_its_name(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    workflow = Workflow().register(S.WORK, lambda: S.MORE).add_exit_state(S.DONE)
    scheduler.manual("a", workflow, S.WORK)
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    status = info_of(running).status
    assert isinstance(status, Backoff)
    assert "S.WORK gave the next state" in status.last_error
    assert "S.MORE" in status.last_error


def test_what_a_run_leaves_in_its_context_is_gone_in_the_next() -> None:
    from contextvars import ContextVar

    mark: ContextVar[str] = ContextVar("mark", default="nothing")
    seen: list[str] = []

    def leaves() -> None:
        seen.append(mark.get())
        mark.set("a run before")

    clock = VirtualClock()
    scheduler = Scheduler(clock=clock)
    scheduler.every("a", leaves, interval=1.0)
    token = mark.set("who started")
    try:
        with scheduler.start() as running:
            mark.set("who triggered")
            clock.advance(2.5)
            running.trigger("a")
            clock.settle()
    finally:
        mark.reset(token)
    assert seen == ["who started"] * 4
