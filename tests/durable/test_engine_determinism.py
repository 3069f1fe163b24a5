"""What a workflow must not change, what it may, and what is the same at every replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from supervisor.durable import (
    FlowEngine,
    FlowWorker,
    InvalidTransition,
    MemoryEventStore,
    NonDeterministic,
    RetryPolicy,
    StoreError,
)
from supervisor.testing import FaultyStore, VirtualClock
from tests.durable.flowing import Steps, at, types

MakeEngine = Callable[..., FlowEngine]
DELAYED = RetryPolicy.fixed(3, 100.0)


@pytest.fixture
def steps() -> Steps:
    return Steps()


class Drifting:
    """A workflow of both forms that asks for one step, which the test changes in between."""

    def __init__(self, steps: Steps) -> None:
        self.step: Any = "broken"
        self.input: Any = {"n": 1, "s": "é"}
        self.retry = DELAYED
        steps.runtime.workflow(self.straight)
        steps.runtime.decider(self.decided)
        steps.runtime.workflow(self.gathering)

    def straight(self, ctx: Any) -> Any:
        try:
            return ctx.step("a", self.step, self.input, retry=self.retry)
        except Exception:
            return "swallowed"

    def gathering(self, ctx: Any) -> Any:
        return ctx.gather(
            [
                ctx.call("b", "broken", 2, retry=DELAYED),
                ctx.call("a", self.step, self.input, retry=self.retry),
            ]
        )

    def decided(self, ctx: Any) -> Any:
        return ctx.schedule_step_with_retry("a", self.step, self.input, self.retry)


@pytest.mark.parametrize("form", ["straight", "decided", "gathering"])
@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("step", "flaky", 'step a name differs: history="broken"; replay="flaky"'),
        (
            "input",
            {"n": 2, "s": "é"},
            'step a input differs: history={"n":1,"s":"é"}; replay={"n":2,"s":"é"}',
        ),
        ("input", {"n": True, "s": "é"}, 'replay={"n":true,"s":"é"}'),
        ("input", {"n": 1.0, "s": "é"}, 'replay={"n":1.0,"s":"é"}'),
        ("input", {"n": 1}, "step a input differs"),
        ("input", None, "replay=null"),
        ("retry", RetryPolicy.fixed(4, 100.0), "step a retry differs"),
        ("retry", RetryPolicy.fixed(3, 100.001), "step a retry differs"),
        ("retry", RetryPolicy.exponential(3, 100.0, 100.0), "step a retry differs"),
    ],
)
def test_a_step_that_changed_is_not_deterministic(
    make_engine: MakeEngine, steps: Steps, form: str, field: str, value: Any, text: str
) -> None:
    drifting = Drifting(steps)
    engine = make_engine(steps.runtime)
    engine.start(form, run_id="r")
    before, calls = engine.history("r"), len(steps.calls)
    setattr(drifting, field, value)
    for call in (lambda: engine.drive("r"), lambda: engine.drive("r", at(1000))):
        with pytest.raises(NonDeterministic) as raised:
            call()
        assert raised.value.run_id == "r"
        assert text in str(raised.value)
    assert (engine.history("r"), len(steps.calls)) == (before, calls)
    (failure,) = engine.failures()
    assert text in failure.reason


def test_what_json_calls_the_same_is_the_same(make_engine: MakeEngine, steps: Steps) -> None:
    drifting = Drifting(steps)
    engine = make_engine(steps.runtime)
    drifting.input = {"a": [1, (2, 3)], "b": None}
    engine.start("straight", run_id="r")
    drifting.input = {"b": None, "a": (1, [2, 3])}
    assert engine.drive("r").status == "suspended"
    assert engine.failures() == []


def test_a_run_that_changed_is_marked_and_others_go_on(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    drifting = Drifting(steps)
    steps.runtime.workflow(lambda ctx: "fine", name="other")
    engine = make_engine(steps.runtime)
    engine.start("straight", run_id="bad")
    drifting.input = "changed"
    engine.queue.enqueue("bad")
    engine.submit("other", run_id="good")
    worker = FlowWorker(engine)
    worker.run_until_idle()
    clock.settle()
    assert engine.result("good", timeout=0) == "fine"
    assert [each.run_id for each in engine.failures()] == ["bad"]
    assert engine.queue.pending() == 0
    assert engine.queue.dead_letters() == []
    drifting.input = {"n": 1, "s": "é"}
    engine.drive("bad")
    assert engine.failures() == []


def test_marks_outlive_the_process(
    make_engine: MakeEngine, steps: Steps, store: Any, reopen: Callable[[], Any], clock: VirtualClock
) -> None:
    drifting = Drifting(steps)
    engine = make_engine(steps.runtime, store)
    engine.start("straight", run_id="r")
    drifting.input = "changed"
    clock.advance(7.0)
    with pytest.raises(NonDeterministic):
        engine.drive("r")
    engine.close()
    (failure,) = make_engine(steps.runtime, reopen()).failures()
    assert (failure.run_id, failure.at) == ("r", at(7.0))


# -- what is legal ---------------------------------------------------------------------------------


def test_a_workflow_may_leave_out_what_it_did_before_and_put_something_in_front(
    make_engine: MakeEngine, steps: Steps
) -> None:
    """Identity is the id, never the place."""
    plan = ["a", "b"]

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        for step_id in plan:
            ctx.step(step_id, steps.echo, step_id)
        return ctx.wait_signal("w", "go")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    plan[:] = ["new", "b"]
    engine.signal("r", "go", "done")
    assert engine.result("r", timeout=0) == "done"
    assert steps.ids == ["a", "b", "new"]


def test_a_changed_workflow_that_never_asks_again_is_not_noticed(
    make_engine: MakeEngine, steps: Steps
) -> None:
    done = False

    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.complete("short cut") if done else ctx.wait_until("w", at(100))

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    done = True
    assert engine.drive("r").output == "short cut"
    assert engine.next_wakeup() is None


def test_other_versions_stay_beside_each_other(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow(name="flow", version="1")
    def old(ctx: Any) -> Any:
        return ["old", ctx.wait_signal("w", "go")]

    engine = make_engine(steps.runtime)
    engine.start("flow", run_id="r1")

    @steps.runtime.workflow(name="flow", version="2")
    def new(ctx: Any) -> Any:
        return ["new", ctx.wait_signal("other", "go")]

    engine.start("flow", run_id="r2")
    for run_id in ("r1", "r2"):
        engine.signal(run_id, "go", 1)
    assert [engine.result(each, timeout=0) for each in ("r1", "r2")] == [["old", 1], ["new", 1]]
    assert [engine.snapshot(each).version for each in ("r1", "r2")] == ["1", "2"]


# -- what is the same at every replay --------------------------------------------------------------


def test_ids_are_the_same_on_every_host_and_at_any_time(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        first = ctx.deterministic_id("invoice")
        ctx.step("a", steps.echo, first)
        return [first, ctx.deterministic_id("invoice"), ctx.deterministic_id("other")]

    engine = make_engine(steps.runtime)
    one, same, other = engine.result(engine.start(flow, run_id="run-1"))
    assert one == same == "33dc9123-6089-52a2-8b7e-434e001efa95"
    assert other != one


def test_logical_time_is_the_time_of_what_the_workflow_has_seen(
    make_engine: MakeEngine, clock: VirtualClock
) -> None:
    steps = Steps()
    seen: list[list[Any]] = []

    @steps.runtime.step
    def nap(seconds: float) -> None:
        clock.sleep(seconds)

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        found = [ctx.logical_time]
        seen.append(found)
        ctx.step("a", nap, 2.0)
        found.append(ctx.logical_time)
        ctx.sleep("w", 10.0)
        found.append(ctx.logical_time)
        ctx.wait_signal("s", "go")
        found.append(ctx.logical_time)

    store = MemoryEventStore()
    engine = make_engine(steps.runtime, store)
    engine.start(flow, run_id="r")
    clock.advance(20.0)
    engine.resume_wait("r", "w")
    clock.advance(5.0)
    second = make_engine(steps.runtime, store)
    second.drive("r")
    second.signal("r", "go")
    expected = [at(0), at(2), at(22), at(27)]
    assert seen[-1] == expected
    assert all(each == expected[: len(each)] for each in seen)


def test_a_crash_before_an_append_may_be_decided_anew_but_never_contradicts_history(
    make_engine: MakeEngine, clock: VirtualClock
) -> None:
    """The instant of a sleep counts from a result; if its commit is lost, so is the instant."""
    steps, inner = Steps(), MemoryEventStore()

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.step("a", steps.echo, 1)
        ctx.sleep("w", 10.0)

    broken = FaultyStore(inner, lambda event: event.type == "wait_created")
    with pytest.raises(StoreError):
        make_engine(steps.runtime, broken).start(flow, run_id="r")
    clock.advance(100.0)
    engine = make_engine(steps.runtime, inner)
    engine.drive("r")
    assert engine.snapshot("r").waits["w"].resume_at == at(110)
    clock.advance(1.0)
    make_engine(steps.runtime, inner).drive("r")
    assert engine.failures() == []


def test_workflow_code_is_asked_once_after_each_end_of_an_attempt(
    make_engine: MakeEngine, steps: Steps
) -> None:
    asked: list[int] = []

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        asked.append(len(ctx.history))
        ctx.step("a", steps.echo, 1)
        ctx.step("b", steps.flaky, 1)
        ctx.step("c", steps.echo, 1)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert types(engine)[-1] == "run_completed"
    assert asked == [2, 5, 8, 10, 13]  # events that it saw: for `b` a second time after its failure


def test_the_history_that_a_workflow_sees_is_the_one_that_is_stored(
    make_engine: MakeEngine, steps: Steps
) -> None:
    seen: list[list[tuple[int, str, Any]]] = []

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        seen.append([(each.sequence, each.event.type, each.at) for each in ctx.history])
        ctx.step("a", steps.echo, 1)
        ctx.step("b", steps.echo, 2)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    stored = [(each.sequence, each.event.type, each.at) for each in engine.history("r")]
    assert [len(each) for each in seen] == [2, 5, 8]
    assert all(each == stored[: len(each)] for each in seen)


def test_an_invalid_command_is_marked_like_a_drift(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return "complete"

    engine = make_engine(steps.runtime)
    with pytest.raises(InvalidTransition, match="must return a command"):
        engine.start(flow, run_id="r")
    assert [each.run_id for each in engine.failures()] == ["r"]
    assert types(engine) == ["run_created", "run_started"]
