"""Waits for an instant: when they end, by whom, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from supervisor.durable import (
    FlowEngine,
    InvalidTransition,
    MemoryEventStore,
    NonDeterministic,
    RunNotFound,
    RunTerminal,
    StepInvocation,
    StoreError,
)
from supervisor.testing import FaultyStore, VirtualClock
from tests.durable.flowing import Steps, at, events, on_threads, pump, times, types

MakeEngine = Callable[..., FlowEngine]


@pytest.fixture
def steps() -> Steps:
    made = Steps()

    @made.runtime.workflow
    def nap(ctx: Any, seconds: float) -> str:
        ctx.sleep("nap", seconds)
        return "awake"

    @made.runtime.decider
    def until(ctx: Any) -> Any:
        if ctx.wait_completed("w"):
            return ctx.complete(ctx.logical_time.isoformat())
        return ctx.wait_until("w", at(ctx.input))

    return made


@pytest.mark.parametrize("workflow", ["nap", "until"])
def test_a_wait_suspends_the_run_and_ends_when_it_is_due(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock, workflow: str
) -> None:
    engine = make_engine(steps.runtime)
    engine.start(workflow, 10.0, run_id="r")
    assert types(engine) == ["run_created", "run_started", "wait_created"]
    assert (engine.snapshot("r").status, engine.next_wakeup()) == ("suspended", at(10))
    clock.advance(10.0)
    (wait_id,) = engine.snapshot("r").waits
    assert engine.resume_wait("r", wait_id).status == "completed"
    assert types(engine)[3:] == ["wait_completed", "run_completed"]
    wait = engine.snapshot("r").waits[wait_id]
    assert (wait.status, wait.resume_at, wait.created_at, wait.ended_at) == (
        "completed",
        at(10),
        at(0),
        at(10),
    )
    assert engine.next_wakeup() is None


def test_a_wait_that_is_not_due_is_refused_and_nothing_is_written(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    engine.start("nap", 10.0, run_id="r")
    clock.advance(9.999)
    with pytest.raises(
        InvalidTransition, match=r"wait 'nap' of run 'r' is not due until 2000-01-01T00:00:10"
    ):
        engine.resume_wait("r", "nap")
    assert len(engine.history("r")) == 3
    clock.advance(0.001)
    assert engine.resume_wait("r", "nap").status == "completed"


def test_a_wait_that_is_over_is_only_driven_on(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    inner = MemoryEventStore()
    engine = make_engine(steps.runtime, FaultyStore(inner, lambda each: each.type == "run_completed"))
    engine.start("nap", 1.0, run_id="r")
    clock.advance(1.0)
    with pytest.raises(StoreError):
        engine.resume_wait("r", "nap")
    after = make_engine(steps.runtime, inner)
    assert after.resume_wait("r", "nap").status == "completed"
    assert types(after).count("wait_completed") == 1
    before = after.history("r")
    assert after.resume_wait("r", "nap").status == "completed"
    assert after.history("r") == before


def test_a_wait_of_a_run_that_was_ended_by_force_stays_as_it_is(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    engine.start("nap", 1.0, run_id="r")
    engine.force_cancel("r")
    clock.advance(1.0)
    before = engine.history("r")
    found = engine.resume_wait("r", "nap")
    assert (found.status, found.waits["nap"].status) == ("cancelled", "waiting")
    assert engine.history("r") == before
    assert engine.list_due_wakeups(at(100)) == []


def test_an_unknown_wait_is_refused(make_engine: MakeEngine, steps: Steps, clock: VirtualClock) -> None:
    engine = make_engine(steps.runtime)
    engine.start("nap", 1.0, run_id="r")
    with pytest.raises(InvalidTransition, match="wait 'no' of run 'r' does not exist"):
        engine.resume_wait("r", "no")
    pump(engine, clock)
    with pytest.raises(RunTerminal):
        engine.resume_wait("r", "no")
    with pytest.raises(RunNotFound):
        engine.resume_wait("none", "nap")


def test_a_wait_for_a_signal_is_not_ended_by_time(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def listens(ctx: Any) -> Any:
        return ctx.wait_signal("w", "go")

    engine = make_engine(steps.runtime)
    engine.start(listens, run_id="r")
    with pytest.raises(InvalidTransition, match=r"is for signal 'go'; send it with signal\(\)"):
        engine.resume_wait("r", "w")
    assert engine.resume_scheduled_run("r", at(1e9)) == []
    assert engine.next_wakeup() is None


@pytest.mark.parametrize("seconds", [0.0, -5.0])
def test_an_instant_that_has_passed_suspends_all_the_same(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock, seconds: float
) -> None:
    engine = make_engine(steps.runtime)
    engine.start("until", seconds, run_id="r")
    assert engine.snapshot("r").status == "suspended"
    assert engine.drive("r").status == "suspended"  # a drive completes no waits
    pump(engine, clock)
    assert (engine.snapshot("r").status, clock.monotonic()) == ("completed", 0.0)


def test_a_drive_completes_no_waits_whatever_its_cutoff(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("nap", 10.0, run_id="r")
    assert engine.drive("r", now=at(100)).status == "suspended"
    assert len(engine.history("r")) == 3


def test_a_catch_up_ends_waits_before_their_time(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("nap", 10.0, run_id="early")
    engine.start("nap", 1000.0, run_id="late")
    assert [each.subject_id for each in engine.resume_scheduled_run("early", at(10))] == ["nap"]
    assert engine.resume_scheduled_run("late", at(999)) == []
    assert engine.snapshot("early").status == "completed"
    assert engine.snapshot("late").status == "suspended"
    assert times(engine, "wait_completed", "early") == [0.0]  # recorded when it happened


@pytest.mark.parametrize("seed", range(5))
def test_two_that_resume_at_once_complete_the_wait_once(seed: int) -> None:
    clock, steps = VirtualClock(seed), Steps()

    @steps.runtime.workflow
    def nap(ctx: Any) -> Any:
        ctx.sleep("nap", 1.0)
        return ctx.step("a", steps.echo, 1)

    with FlowEngine(steps.runtime, clock=clock) as engine:
        engine.start(nap, run_id="r")
        clock.advance(1.0)
        calls = [lambda: engine.resume_wait("r", "nap"), lambda: engine.resume_scheduled_run("r", at(1))]
        found = on_threads(clock, calls * 2)
        assert [each for each in found if isinstance(each, BaseException)] == []
        assert engine.result("r", timeout=0) == 1
        assert (types(engine).count("wait_completed"), steps.calls) == (1, [("a", 1)])


# -- sleep and logical time ------------------------------------------------------------------------


def test_sleep_counts_from_the_latest_result_and_is_remembered(
    make_engine: MakeEngine, clock: VirtualClock
) -> None:
    steps, seen = Steps(), list[float]()

    @steps.runtime.step
    def works(seconds: float) -> None:
        clock.sleep(seconds)

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        marks = [ctx.logical_time]
        ctx.step("a", works, 4.0)
        marks.append(ctx.logical_time)
        ctx.sleep("w1", 2.5)
        marks.append(ctx.logical_time)
        ctx.sleep("w2", timedelta(minutes=1))
        marks.append(ctx.logical_time)
        ctx.step("b", works, 1.0)
        marks.append(ctx.logical_time)
        seen[:] = [(each - at(0)).total_seconds() for each in marks]
        return seen

    engine = make_engine(steps.runtime)
    clock.advance(100.0)
    engine.start(flow, run_id="r")
    assert [each["resume_at"] for each in events(engine, "wait_created")] == ["2000-01-01T00:01:46.500000Z"]
    clock.advance(7.5)  # five seconds late
    engine.resume_scheduled_run("r", clock.now())
    assert engine.snapshot("r").waits["w2"].resume_at == at(171.5)
    pump(engine, clock)
    assert engine.result("r") == [100.0, 104.0, 111.5, 171.5, 172.5]


def test_logical_time_is_the_same_whenever_the_decision_is_made_again(
    make_engine: MakeEngine, clock: VirtualClock
) -> None:
    """Also when signals came meanwhile, and when a crash had the decision made again much later."""
    steps, seen = Steps(), list[tuple[float, str]]()

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.step("a", steps.echo, 1)
        ctx.sleep("w1", 10.0)
        seen.append(((ctx.logical_time - at(0)).total_seconds(), ctx.deterministic_id("x")))
        ctx.wait_signal("w2", "go")
        ctx.step("b", steps.echo, 2)

    inner = MemoryEventStore()
    engine = make_engine(steps.runtime, FaultyStore(inner, lambda each: each.type == "signal_wait_completed"))
    engine.start(flow, run_id="r")
    pump(engine, clock)
    clock.advance(50.0)
    engine.signal("r", "other")
    with pytest.raises(StoreError):
        engine.signal("r", "go")
    clock.advance(1000.0)
    make_engine(steps.runtime, inner).drive("r")
    assert len(seen) > 3
    assert set(seen) == {(10.0, seen[0][1])}


def test_a_sleep_that_was_changed_in_code_keeps_its_instant(
    make_engine: MakeEngine, clock: VirtualClock
) -> None:
    steps, length = Steps(), [10.0]

    @steps.runtime.workflow
    def flow(ctx: Any) -> str:
        ctx.sleep("w", length[0])
        return "awake"

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    length[0] = 99.0
    pump(engine, clock)
    assert (engine.result("r"), clock.monotonic()) == ("awake", 10.0)


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 1e18])
def test_a_sleep_of_no_possible_length_fails_the_run(
    make_engine: MakeEngine, steps: Steps, seconds: float
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> None:
        ctx.sleep("w", seconds)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert types(engine) == ["run_created", "run_started", "run_failed"]
    assert "ValueError: seconds must" in str(engine.snapshot("r").error)


# -- identity --------------------------------------------------------------------------------------


def test_instants_are_compared_and_not_the_way_they_are_written(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    zones = [UTC, timezone(timedelta(hours=2)), timezone(timedelta(hours=-5))]

    @steps.runtime.workflow
    def flow(ctx: Any) -> str:
        ctx.wait_until("w", at(5).astimezone(zones[len(ctx.history) % 3]))
        return "awake"

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    for _ in range(3):
        engine.signal("r", "x")
    pump(engine, clock)
    assert engine.result("r") == "awake"


@pytest.mark.parametrize("form", ["workflow", "decider"])
def test_a_naive_instant_is_a_value_error(make_engine: MakeEngine, steps: Steps, form: str) -> None:
    found: list[str] = []

    def flow(ctx: Any) -> Any:
        try:
            ctx.wait_until("w", datetime(2026, 1, 1))
        except ValueError as error:
            found.append(str(error))
        return "refused" if form == "workflow" else ctx.complete("refused")

    engine = make_engine(steps.runtime)
    getattr(steps.runtime, form)(flow)
    assert engine.result(engine.start(flow, run_id="r")) == "refused"
    assert len(found) == 1
    assert "when must be" in found[0]


def test_one_id_for_two_instants_is_a_disagreement(make_engine: MakeEngine, steps: Steps) -> None:
    moment = [5.0]

    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.wait_until("w", at(moment[0]))

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    moment[0] = 6.0
    with pytest.raises(NonDeterministic, match="wait w resume_at differs: history=.*05.*replay=.*06"):
        engine.drive("r")
    assert len(engine.history("r")) == 3
    assert [each.run_id for each in engine.failures()] == ["r"]


def test_a_completed_wait_that_a_decider_asks_for_again_is_refused(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.wait_until("w", at(1))

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    clock.advance(1.0)
    with pytest.raises(InvalidTransition, match="wait 'w' of run 'r' is completed, and was asked for again"):
        engine.resume_wait("r", "w")
    assert types(engine)[-1] == "wait_completed"


def test_a_straight_line_workflow_may_pass_the_same_wait_twice(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> str:
        ctx.sleep("w", 3.0)
        ctx.sleep("w", 3.0)
        return "once"

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    pump(engine, clock)
    assert (engine.result("r"), clock.monotonic()) == ("once", 3.0)


# -- several waits ---------------------------------------------------------------------------------


def test_a_wait_then_a_signal(make_engine: MakeEngine, steps: Steps, clock: VirtualClock) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.sleep("first", 1.0)
        return ctx.wait_signal("second", "go")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    pump(engine, clock)
    assert engine.snapshot("r").status == "suspended"
    engine.signal("r", "go", {"n": 1})
    assert engine.result("r") == {"n": 1}


def test_a_wait_may_be_resumed_from_a_step_of_another_run(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)

    @steps.runtime.step
    def wakes(data: Any, invocation: StepInvocation) -> str:
        return str(engine.resume_wait("r", "nap").status)

    @steps.runtime.workflow
    def other(ctx: Any) -> Any:
        return ctx.step("s", wakes)

    engine.start("nap", 1.0, run_id="r")
    clock.advance(1.0)
    assert engine.result(engine.start(other)) == "completed"
