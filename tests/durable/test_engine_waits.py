"""Waits for an instant: who completes them, when, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from supervisor.durable import (
    FlowEngine,
    FlowWorker,
    InvalidTransition,
    MemoryEventStore,
    NonDeterministic,
    RunTerminal,
    StoreError,
)
from supervisor.testing import FaultyStore, VirtualClock
from tests.durable.flowing import START, Steps, Tape, at, events, on_threads, pump, times, types

MakeEngine = Callable[..., FlowEngine]


@pytest.fixture
def steps() -> Steps:
    made = Steps()

    @made.runtime.decider
    def decided(ctx: Any) -> Any:
        if not ctx.wait_completed("w"):
            return ctx.wait_until("w", at(60))
        return ctx.complete("waited")

    @made.runtime.workflow
    def straight(ctx: Any) -> Any:
        ctx.wait_until("w", at(60))
        return "waited"

    return made


FORMS = ["decided", "straight"]


@pytest.mark.parametrize("workflow", FORMS)
def test_a_wait_suspends_and_keeps_no_thread(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock, workflow: str
) -> None:
    engine = make_engine(steps.runtime)
    engine.start(workflow, run_id="r")
    found = engine.snapshot("r")
    assert found.status == "suspended"
    assert (found.waits["w"].status, found.waits["w"].resume_at) == ("waiting", at(60))
    assert types(engine) == ["run_created", "run_started", "wait_created"]
    assert clock.monotonic() == 0.0


@pytest.mark.parametrize("workflow", FORMS)
def test_a_due_wait_is_completed_and_the_run_driven(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock, workflow: str
) -> None:
    store = Tape(MemoryEventStore())
    engine = make_engine(steps.runtime, store)
    engine.start(workflow, run_id="r")
    clock.advance(60.0)
    assert engine.resume_wait("r", "w").output == "waited"
    assert store.appends[1:] == [["wait_completed", "run_completed"]]
    assert times(engine, "wait_completed") == [60.0]


@pytest.mark.parametrize("workflow", FORMS)
def test_a_wait_that_is_not_due_is_not_completed(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock, workflow: str
) -> None:
    engine = make_engine(steps.runtime)
    engine.start(workflow, run_id="r")
    clock.advance(59.999999)
    with pytest.raises(
        InvalidTransition, match=r"'w' of run 'r' is not due until 2000-01-01T00:01:00.000000Z"
    ):
        engine.resume_wait("r", "w")
    assert len(engine.history("r")) == 3
    assert engine.failures() == []


def test_driving_completes_no_waits(make_engine: MakeEngine, steps: Steps, clock: VirtualClock) -> None:
    engine = make_engine(steps.runtime)
    engine.start("straight", run_id="r")
    clock.advance(100.0)
    assert engine.drive("r").status == "suspended"
    assert engine.drive("r", at(1000)).status == "suspended"
    engine.start("straight", run_id="r")
    assert len(engine.history("r")) == 3


def test_a_wait_in_the_past_suspends_all_the_same(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def past(ctx: Any) -> Any:
        ctx.wait_until("w", datetime(1970, 1, 1, tzinfo=UTC))

    engine = make_engine(steps.runtime)
    engine.start(past, run_id="r")
    assert engine.snapshot("r").status == "suspended"
    assert engine.resume_wait("r", "w").status == "completed"


def test_an_instant_is_one_whatever_its_zone(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    zones = [UTC, timezone(timedelta(hours=9)), timezone(timedelta(hours=-3, minutes=-30))]

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.wait_until("w", at(60).astimezone(zones[0]))

    engine = make_engine(steps.runtime)
    for _ in range(3):
        engine.start(flow, run_id="r")
        zones.append(zones.pop(0))
    assert engine.snapshot("r").waits["w"].resume_at == at(60)
    assert events(engine, "wait_created") == [{"wait_id": "w", "resume_at": "2000-01-01T00:01:00.000000Z"}]


@pytest.mark.parametrize("form", ["workflow", "decider"])
def test_another_instant_for_the_same_id_is_not_deterministic(
    make_engine: MakeEngine, steps: Steps, form: str
) -> None:
    instants = [at(60), at(61)]

    def flow(ctx: Any) -> Any:
        return ctx.wait_until("w", instants[0])

    getattr(steps.runtime, form)(flow)
    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    instants.pop(0)
    with pytest.raises(NonDeterministic, match="wait w resume_at differs") as raised:
        engine.drive("r")
    assert 'history="2000-01-01T00:01:00.000000Z"; replay="2000-01-01T00:01:01.000000Z"' in str(raised.value)
    assert len(engine.history("r")) == 3


# -- resume_wait -----------------------------------------------------------------------------------


def test_resuming_a_wait_again_appends_nothing(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    @steps.runtime.workflow
    def two(ctx: Any) -> Any:
        ctx.wait_until("w", at(60))
        ctx.wait_until("x", at(90))

    engine = make_engine(steps.runtime)
    engine.start(two, run_id="r")
    clock.advance(60.0)
    for _ in range(3):
        assert engine.resume_wait("r", "w").status == "suspended"
    assert types(engine)[3:] == ["wait_completed", "wait_created"]
    clock.advance(30.0)
    engine.resume_wait("r", "x")
    for wait_id in ("w", "x"):
        assert engine.resume_wait("r", wait_id).status == "completed"
    assert types(engine)[5:] == ["wait_completed", "run_completed"]


def test_resuming_a_wait_of_a_run_that_was_ended_by_force_changes_nothing(
    make_engine: MakeEngine, steps: Steps
) -> None:
    engine = make_engine(steps.runtime)
    engine.start("straight", run_id="r")
    engine.force_cancel("r")
    before = engine.history("r")
    found = engine.resume_wait("r", "w")  # not even due
    assert (found.status, found.waits["w"].status) == ("cancelled", "waiting")
    assert engine.history("r") == before


def test_an_unknown_wait_is_refused(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("straight", run_id="r")
    with pytest.raises(InvalidTransition, match="wait 'gone' of run 'r' does not exist"):
        engine.resume_wait("r", "gone")
    engine.force_cancel("r")
    with pytest.raises(RunTerminal, match=r"run 'r' has ended \(cancelled\)"):
        engine.resume_wait("r", "gone")
    assert len(engine.history("r")) == 4


def test_a_wait_for_a_signal_is_not_resumed(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.wait_signal("s", "go")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    with pytest.raises(InvalidTransition, match="'s' of run 'r' is for signal 'go'"):
        engine.resume_wait("r", "s")


@pytest.mark.parametrize("seed", range(5))
def test_a_wait_that_many_complete_at_once_is_completed_once(seed: int) -> None:
    clock, steps = VirtualClock(seed), Steps()

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.wait_until("w", at(60))
        return ctx.step("a", steps.echo, 1)

    store = MemoryEventStore()
    with (
        FlowEngine(steps.runtime, store, clock=clock) as one,
        FlowEngine(steps.runtime, store, clock=clock) as other,
    ):
        one.start(flow, run_id="r")
        clock.advance(60.0)
        calls: list[Callable[[], Any]] = [
            lambda: one.resume_wait("r", "w").status,
            lambda: other.resume_wait("r", "w").status,
            lambda: one.resume_scheduled_run("r", clock.now()),
            lambda: other.resume_scheduled_run("r", clock.now()),
        ]
        on_threads(clock, calls * 2)
        assert [each.event.type for each in store.read("r")].count("wait_completed") == 1
        assert one.result("r", timeout=0) == 1


# -- resume_scheduled_run --------------------------------------------------------------------------


def test_only_what_is_due_is_resumed(make_engine: MakeEngine, steps: Steps, clock: VirtualClock) -> None:
    @steps.runtime.workflow
    def until(ctx: Any, seconds: Any) -> Any:
        ctx.wait_until("w", at(seconds))

    engine = make_engine(steps.runtime)
    for seconds in (10, 20, 30):
        engine.start(until, seconds, run_id=f"r{seconds}")
    clock.advance(20.0)
    assert [each.run_id for each in engine.list_due_wakeups(clock.now())] == ["r10", "r20"]
    (due,) = engine.resume_scheduled_run("r20", clock.now())
    assert (due.kind, due.run_id, due.subject_id, due.due_at) == ("wait", "r20", "w", at(20))
    assert [str(each.status) for each in engine.list_runs()] == ["suspended", "completed", "suspended"]
    assert engine.next_wakeup() == at(10)
    assert engine.resume_scheduled_run("r20", clock.now()) == []
    assert engine.resume_scheduled_run("r30", clock.now()) == []


def test_a_cutoff_in_the_future_completes_a_wait_early(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("straight", run_id="r")
    assert engine.resume_scheduled_run("r", at(59)) == []
    assert len(engine.resume_scheduled_run("r", at(60))) == 1
    assert engine.result("r", timeout=0) == "waited"
    assert times(engine, "wait_completed") == [0.0]


def test_a_naive_instant_is_refused_everywhere(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("straight", run_id="r")
    naive = datetime(2030, 1, 1)
    for call in (
        lambda: engine.drive("r", naive),
        lambda: engine.resume_scheduled_run("r", naive),
        lambda: engine.list_due_wakeups(naive),
    ):
        with pytest.raises(ValueError, match="aware"):
            call()


# -- sleep -----------------------------------------------------------------------------------------


def test_sleep_counts_from_the_latest_result_that_the_workflow_has_seen(
    make_engine: MakeEngine, clock: VirtualClock
) -> None:
    steps = Steps()

    @steps.runtime.step
    def nap(seconds: float) -> None:
        clock.sleep(seconds)

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.sleep("first", 5)
        ctx.step("a", nap, 7.5)
        ctx.sleep("second", timedelta(minutes=1))
        ctx.gather([ctx.call("b", nap, 3.0), ctx.call("c", nap, 1.0)])
        ctx.sleep("third", 0.25)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    pump(engine, clock)
    waits = engine.snapshot("r").waits
    assert [waits[each].resume_at for each in ("first", "second", "third")] == [
        at(5),
        at(72.5),
        at(75.75),
    ]
    assert clock.monotonic() == 75.75


def test_sleep_remembers_its_instant_over_restarts(
    make_engine: MakeEngine, clock: VirtualClock, store: Any, reopen: Callable[[], Any]
) -> None:
    steps, seconds = Steps(), [100.0]

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.sleep("nap", seconds[0])
        return ctx.step("a", steps.echo, "rested")

    engine = make_engine(steps.runtime, store)
    engine.start(flow, run_id="r")
    for _ in range(5):  # five restarts within the wait, and other code each time
        engine.close()
        clock.advance(19.0)
        seconds[0] += 7.0
        engine = make_engine(steps.runtime, reopen())
        engine.start(flow, run_id="r")
        engine.recover()
        FlowWorker(engine).run_until_idle()
        clock.settle()
        assert engine.next_wakeup() == at(100)
    pump(engine, clock)
    assert engine.result("r", timeout=0) == "rested"
    assert (clock.monotonic(), steps.calls) == (100.0, [("a", 1)])


def test_a_restart_long_after_the_instant_runs_what_follows_once(
    make_engine: MakeEngine, clock: VirtualClock
) -> None:
    steps, store = Steps(), MemoryEventStore()

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        for round in range(3):
            ctx.step(f"s{round}", steps.echo, round)
            ctx.sleep(f"w{round}", 10.0)

    make_engine(steps.runtime, store).start(flow, run_id="r")
    clock.advance(1e6)
    engine = make_engine(steps.runtime, store)
    pump(engine, clock)
    assert steps.ids == ["s0", "s1", "s2"]
    assert times(engine, "wait_completed") == [1e6, 1e6 + 10, 1e6 + 20]


@pytest.mark.parametrize("seconds", [-1, float("nan"), "5", None])
def test_a_sleep_that_is_no_duration_fails_the_run(
    make_engine: MakeEngine, steps: Steps, seconds: Any
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.sleep("w", seconds)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert "seconds" in str(engine.snapshot("r").error)
    assert types(engine) == ["run_created", "run_started", "run_failed"]


def test_a_sleep_beyond_the_calendar_fails_the_run(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.sleep("w", 1e12)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert engine.snapshot("r").status == "failed"


# -- crashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_the_completion_of_a_wait_loses_no_run(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock, after: bool
) -> None:
    """Whoever comes next finds the run: by the index of what is due, or by recovering."""
    inner = MemoryEventStore()
    broken = FaultyStore(inner, lambda event: event.type == "wait_completed", after)
    engine = make_engine(steps.runtime, broken)
    engine.start("straight", run_id="r")
    clock.advance(60.0)
    with pytest.raises(StoreError):
        engine.resume_scheduled_run("r", clock.now())
    second = make_engine(steps.runtime, inner)
    found = {each.run_id for each in second.list_due_wakeups(clock.now())} | set(second.recover())
    assert found == (set() if after else {"r"})  # one append: after it the run has ended
    pump(second, clock)
    assert second.result("r", timeout=0) == "waited"


def test_a_suspended_run_outlives_its_engine(
    make_engine: MakeEngine, clock: VirtualClock, store: Any, reopen: Callable[[], Any]
) -> None:
    steps = Steps()

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.wait_until("w", at(60))
        return ctx.wait_signal("s", "go")

    make_engine(steps.runtime, store).start(flow, run_id="r")
    clock.advance(60.0)
    engine = make_engine(steps.runtime, reopen())
    assert engine.resume_wait("r", "w").status == "suspended"
    engine = make_engine(steps.runtime, reopen())
    engine.signal("r", "go", {"ok": True})
    assert engine.result("r", timeout=0) == {"ok": True}


def test_many_runs_that_wait_are_listed_by_time_and_id(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    for number in range(50):
        engine.start("straight", number, run_id=f"r{number:02}")
    assert len(engine.list_due_wakeups(at(60))) == 50
    assert engine.list_due_wakeups(at(60), limit=3) == engine.list_due_wakeups(at(60))[:3]
    assert engine.next_wakeup() == at(60)
    assert engine.snapshot("r00").created_at == START
