"""Signals: order, identity, buffering, and to which runs they may go."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from supervisor.durable import (
    FlowEngine,
    MemoryEventStore,
    PayloadTooLarge,
    RunNotFound,
    RunTerminal,
    SerializationError,
    SignalConflict,
    StepInvocation,
    StoreError,
)
from supervisor.testing import FaultyStore
from tests.durable.flowing import Steps, events, types

MakeEngine = Callable[..., FlowEngine]


@pytest.fixture
def steps() -> Steps:
    made = Steps()

    @made.runtime.workflow
    def one(ctx: Any) -> Any:
        return ctx.wait_signal("w", "go")

    @made.runtime.workflow
    def three(ctx: Any) -> Any:
        return [ctx.wait_signal(f"w{number}", "go") for number in range(3)]

    @made.runtime.decider
    def decided(ctx: Any) -> Any:
        if ctx.wait_completed("w"):
            return ctx.complete(ctx.signal("go"))
        return ctx.wait_for_signal("w", "go")

    return made


@pytest.mark.parametrize("workflow", ["one", "decided"])
def test_a_signal_ends_the_wait_for_it(make_engine: MakeEngine, steps: Steps, workflow: str) -> None:
    engine = make_engine(steps.runtime)
    engine.start(workflow, run_id="r")
    assert engine.snapshot("r").status == "suspended"
    engine.signal("r", "go", {"by": "é"}, signal_id="s-1")
    assert engine.result("r", timeout=0) == {"by": "é"}
    assert types(engine) == [
        "run_created",
        "run_started",
        "signal_wait_created",
        "signal_received",
        "signal_wait_completed",
        "run_completed",
    ]
    found = engine.snapshot("r")
    assert (found.waits["w"].signal_id, found.waits["w"].payload) == ("s-1", {"by": "é"})
    assert (found.signals["s-1"].wait_id, found.signals["s-1"].name) == ("w", "go")


def test_a_signal_with_another_name_is_kept_and_ends_nothing(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("one", run_id="r")
    engine.signal("r", "Go")
    assert engine.snapshot("r").status == "suspended"
    assert [each.wait_id for each in engine.snapshot("r").signals.values()] == [None]


@pytest.mark.parametrize("early", range(4))
def test_signals_are_taken_in_the_order_in_which_they_came(
    make_engine: MakeEngine, steps: Steps, early: int
) -> None:
    """So many of them before anybody waits."""
    engine = make_engine(steps.runtime)
    engine.submit("three", run_id="r")
    for number in range(early):
        engine.commit("r", _receives(number))
    engine.drive("r")
    for number in range(early, 3):
        engine.signal("r", "go", number)
    assert engine.result("r", timeout=0) == [0, 1, 2]


def _receives(number: int) -> Callable[[Any], list[Any]]:
    """What another process appends that does not drive."""
    from supervisor.durable.history import SignalReceived

    return lambda _: [SignalReceived({"signal_id": f"early-{number}", "name": "go", "payload": number})]


@pytest.mark.parametrize("order", list(permutations(["go", "go", "stop"])))
def test_names_do_not_get_in_the_way_of_each_other(
    make_engine: MakeEngine, steps: Steps, order: tuple[str, ...]
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return [ctx.wait_signal("a", "go"), ctx.wait_signal("b", "stop"), ctx.wait_signal("c", "go")]

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    for number, name in enumerate(order):
        engine.signal("r", name, number)
    first, last = [number for number, name in enumerate(order) if name == "go"]
    assert engine.result("r", timeout=0) == [first, order.index("stop"), last]


def test_a_signal_that_nobody_took_does_not_keep_the_run_from_its_end(
    make_engine: MakeEngine, steps: Steps
) -> None:
    engine = make_engine(steps.runtime)
    engine.start("one", run_id="r")
    engine.signal("r", "other", 1)
    engine.signal("r", "go", 2)
    assert engine.result("r", timeout=0) == 2


@pytest.mark.parametrize(
    "payload", [None, 0, False, "", [], {}, {"a": [1.5, None]}, 2**70, "\u0000"], ids=repr
)
def test_a_payload_comes_as_it_was_sent(make_engine: MakeEngine, steps: Steps, payload: Any) -> None:
    engine = make_engine(steps.runtime)
    engine.start("one", run_id="r")
    engine.signal("r", "go", payload)
    found = engine.result("r", timeout=0)
    assert (found, type(found)) == (payload, type(payload))


def test_what_a_workflow_does_to_a_payload_is_not_kept(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def spoils(ctx: Any) -> Any:
        payload = ctx.wait_signal("w", "go")
        payload.append(1)
        ctx.step("s", steps.echo, 1)
        return payload

    engine = make_engine(steps.runtime)
    engine.start(spoils, run_id="r")
    engine.signal("r", "go", [0])
    assert engine.result("r") == [0, 1]
    assert engine.snapshot("r").waits["w"].payload == [0]


# -- identity --------------------------------------------------------------------------------------


def test_the_same_signal_twice_is_one(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("three", run_id="r")
    for _ in range(2):
        engine.signal("r", "go", {"b": 1, "a": 2}, signal_id="s")
        engine.signal("r", "go", {"a": 2, "b": 1}, signal_id="s")
    assert len(engine.snapshot("r").signals) == 1
    assert len(events(engine, "signal_wait_completed")) == 1


@pytest.mark.parametrize(("name", "payload"), [("go", 2), ("go", True), ("go", 1.0), ("stop", 1)])
def test_the_same_id_for_another_signal_is_a_conflict(
    make_engine: MakeEngine, steps: Steps, name: str, payload: Any
) -> None:
    engine = make_engine(steps.runtime)
    engine.start("three", run_id="r")
    engine.signal("r", "go", 1, signal_id="s")
    before = engine.history("r")
    with pytest.raises(SignalConflict, match="'s'"):
        engine.signal("r", name, payload, signal_id="s")
    assert engine.history("r") == before


def test_without_an_id_every_signal_is_a_new_one(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("three", run_id="r")
    for _ in range(3):
        engine.signal("r", "go", 1)
    assert engine.result("r", timeout=0) == [1, 1, 1]


def test_the_same_id_may_be_used_for_another_run(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    for run_id in ("a", "b"):
        engine.start("one", run_id=run_id)
        engine.signal(run_id, "go", run_id, signal_id="s")
    assert [engine.result("a"), engine.result("b")] == ["a", "b"]


# -- to which runs ---------------------------------------------------------------------------------


def test_a_signal_starts_a_pending_run(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.submit("one", run_id="r")
    engine.signal("r", "go", 7)
    assert engine.result("r", timeout=0) == 7


def test_a_signal_to_a_run_that_has_ended_is_refused(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("one", run_id="done")
    engine.signal("done", "go", 1, signal_id="s")
    engine.start("one", run_id="ended")
    engine.cancel("ended")
    engine.signal("done", "go", 1, signal_id="s")  # the same one again: it came
    with pytest.raises(SignalConflict):
        engine.signal("done", "go", 2, signal_id="s")
    for run_id in ("done", "ended"):
        before = engine.history(run_id)
        with pytest.raises(RunTerminal):
            engine.signal(run_id, "go", 1)
        assert engine.history(run_id) == before
    with pytest.raises(RunNotFound):
        engine.signal("none", "go")


def test_what_is_no_signal_is_refused_and_nothing_is_written(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("one", run_id="r")
    before = engine.history("r")
    for name in ("", "  ", "a\nb"):
        with pytest.raises(ValueError, match="name must"):
            engine.signal("r", name)
    with pytest.raises(ValueError, match="signal_id must"):
        engine.signal("r", "go", signal_id="")
    with pytest.raises(SerializationError, match=r"payload\.a"):
        engine.signal("r", "go", {"a": {1}})
    with pytest.raises(PayloadTooLarge):
        engine.signal("r", "go", "x" * 1_048_576)
    assert engine.history("r") == before


def test_a_signal_that_comes_while_a_step_runs_is_there_afterwards(
    make_engine: MakeEngine, steps: Steps
) -> None:
    engine = make_engine(steps.runtime)

    @steps.runtime.step
    def sends(data: Any, invocation: StepInvocation) -> str:
        engine.signal(invocation.run_id, "go", data)  # to its own run
        return "sent"

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return [ctx.step("s", sends, 5), ctx.wait_signal("w", "go")]

    engine.start(flow, run_id="r")
    assert engine.result("r", timeout=0) == ["sent", 5]


def test_a_signal_does_not_start_a_retry_early(make_engine: MakeEngine, steps: Steps) -> None:
    from supervisor.durable import RetryPolicy

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.step("s", steps.flaky, 1, retry=RetryPolicy.fixed(2, 60.0))

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.signal("r", "go")
    assert (engine.snapshot("r").status, steps.calls) == ("suspended", [("s", 1)])


# -- crashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("type", ["signal_received", "signal_wait_completed", "step_completed"])
def test_a_crash_around_a_signal_loses_and_doubles_nothing(
    make_engine: MakeEngine, steps: Steps, type: str, after: bool
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.step("s", steps.echo, ctx.wait_signal("w", "go"))

    inner = MemoryEventStore()
    engine = make_engine(steps.runtime, FaultyStore(inner, lambda each: each.type == type, after))
    engine.start(flow, run_id="r")
    with pytest.raises(StoreError):
        engine.signal("r", "go", 3, signal_id="s")
    again = make_engine(steps.runtime, inner)
    again.signal("r", "go", 3, signal_id="s")  # who sends does not know whether it came
    assert again.result("r", timeout=0) == 3
    assert types(again) == [
        "run_created",
        "run_started",
        "signal_wait_created",
        "signal_received",
        "signal_wait_completed",
        "step_created",
        "step_started",
        "step_completed",
        "run_completed",
    ]


# -- deciders --------------------------------------------------------------------------------------


def test_a_decider_sees_the_signal_that_the_latest_wait_took(make_engine: MakeEngine, steps: Steps) -> None:
    seen: list[Any] = []

    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        seen.append(ctx.signal("go"))
        for each in ("a", "b"):
            if not ctx.wait_completed(each):
                return ctx.wait_for_signal(each, "go")
        return ctx.complete(ctx.signal("go"))

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.signal("r", "go", 1)
    engine.signal("r", "go", 2)
    assert engine.result("r", timeout=0) == 2
    assert seen == [None, None, 1, 1, 2]


def test_a_signal_whose_name_a_wait_changes_is_a_disagreement(make_engine: MakeEngine, steps: Steps) -> None:
    from supervisor.durable import NonDeterministic

    name = ["go"]

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.wait_signal("w", name[0])

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    name[0] = "stop"
    with pytest.raises(NonDeterministic, match='signal_name differs: history="go"; replay="stop"'):
        engine.drive("r")
    name[0] = "go"
    engine.signal("r", "go", 1)
    assert (engine.result("r"), engine.failures()) == (1, [])
