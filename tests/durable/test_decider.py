"""The one-command form: what a decider may return, and what becomes of one that raises."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from supervisor import Canceled
from supervisor.durable import FlowEngine, FlowWorker, InvalidTransition, SerializationError
from supervisor.testing import VirtualClock
from tests.durable.flowing import Steps, types, work

MakeEngine = Callable[..., FlowEngine]


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.mark.parametrize("value", [None, 1, "complete", {"type": "complete"}, object], ids=repr)
def test_what_is_no_command_is_refused(make_engine: MakeEngine, steps: Steps, value: Any) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return value

    engine = make_engine(steps.runtime)
    with pytest.raises(InvalidTransition, match="decider 'flow' must return a command such as"):
        engine.start(flow, run_id="r")
    assert types(engine) == ["run_created", "run_started"]
    assert [each.run_id for each in engine.failures()] == ["r"]


class Odd(BaseException):
    pass


@pytest.mark.parametrize("error", [OSError, Canceled, KeyboardInterrupt, SystemExit, Odd])
def test_an_exception_leaves_the_run_untouched_and_is_raised(
    make_engine: MakeEngine, steps: Steps, error: type[BaseException]
) -> None:
    raises = [True]

    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        if not ctx.step_completed("s"):
            return ctx.schedule_step("s", steps.echo, 1)
        if raises[0]:
            raise error("no")
        return ctx.complete(ctx.step_output("s"))

    engine = make_engine(steps.runtime)
    with pytest.raises(error):
        engine.start(flow, run_id="r")
    assert types(engine)[-1] == "step_completed"  # what was done is kept
    assert (engine.snapshot("r").status, engine.failures()) == ("running", [])
    raises[0] = False
    assert engine.drive("r").output == 1
    assert steps.ids == ["s"]


def test_an_exception_is_a_failed_delivery_to_a_worker(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    calls: list[float] = []

    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        calls.append(clock.monotonic())
        raise OSError("no")

    engine = make_engine(steps.runtime)
    engine.submit(flow, run_id="r")
    work(engine, clock)
    assert len(calls) == 5
    gaps = [later - earlier for earlier, later in itertools.pairwise(calls)]
    assert gaps == pytest.approx([0.1, 0.2, 0.4, 0.8])
    (dead,) = engine.queue.dead_letters()
    assert (dead.run_id, "OSError: no" in dead.reason) == ("r", True)
    assert [each.run_id for each in engine.failures()] == ["r"]


def test_a_disagreement_is_not_tried_again_by_a_worker_and_other_runs_go_on(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    calls: list[str] = []

    @steps.runtime.decider
    def broken(ctx: Any) -> Any:
        calls.append(ctx.run_id)
        return None

    @steps.runtime.decider
    def sound(ctx: Any) -> Any:
        return ctx.complete("well")

    engine = make_engine(steps.runtime)
    engine.submit(broken, run_id="a")
    engine.submit(sound, run_id="b")
    assert FlowWorker(engine).run_until_idle() == 2
    assert (calls, engine.result("b", timeout=0)) == (["a"], "well")
    assert (engine.queue.pending(), clock.monotonic()) == (0, 0.0)


def test_an_output_that_json_cannot_hold_is_the_deciders_exception(
    make_engine: MakeEngine, steps: Steps
) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.complete({"a": {1}})

    engine = make_engine(steps.runtime)
    with pytest.raises(SerializationError, match=r"output\.a"):
        engine.start(flow, run_id="r")
    assert engine.snapshot("r").status == "running"


@pytest.mark.parametrize(("error", "text"), [("no", "no"), (OSError("no"), "OSError: no"), (7, "7")])
def test_fail_takes_a_text_or_an_exception(
    make_engine: MakeEngine, steps: Steps, error: Any, text: str
) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.fail(error)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert (engine.snapshot("r").status, engine.snapshot("r").error) == ("failed", text)


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda ctx: ctx.step("s", "echo", 1), "schedule_step"),
        (lambda ctx: ctx.call("s", "echo", 1), "schedule_step"),
        (lambda ctx: ctx.gather([]), "schedule_steps"),
        (lambda ctx: ctx.sleep("w", 1.0), "wait_until"),
        (lambda ctx: ctx.wait_signal("w", "go"), "wait_for_signal"),
    ],
)
def test_what_belongs_to_straight_line_workflows_is_refused(
    make_engine: MakeEngine, steps: Steps, call: Callable[[Any], Any], instead: str
) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return call(ctx)

    engine = make_engine(steps.runtime)
    with pytest.raises(InvalidTransition, match=rf"a decider returns ctx\.{instead}\("):
        engine.start(flow, run_id="r")
    assert types(engine) == ["run_created", "run_started"]


def test_a_command_that_is_made_and_not_returned_does_nothing(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        ctx.schedule_step("s", steps.echo, 1)
        ctx.wait_for_signal("w", "go")
        ctx.fail("no")
        return ctx.complete("well")

    engine = make_engine(steps.runtime)
    assert engine.result(engine.start(flow, run_id="r")) == "well"
    assert types(engine) == ["run_created", "run_started", "run_completed"]
