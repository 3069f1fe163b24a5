"""What a workflow reads: copies of history, during one decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from supervisor.durable import FlowEngine, RetryPolicy
from supervisor.testing import VirtualClock
from tests.durable.flowing import Steps, at, plain

MakeEngine = Callable[..., FlowEngine]


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.mark.parametrize("form", ["workflow", "decider"])
def test_the_readers_say_what_history_says(make_engine: MakeEngine, steps: Steps, form: str) -> None:
    found: list[Any] = []
    once = RetryPolicy.none().continue_workflow_on_failure()

    @steps.runtime.decider
    def before(ctx: Any) -> Any:
        for step_id, step, data in (
            ("a", steps.echo, 5),
            ("b", steps.broken, "no"),
            ("c", steps.refused, "no"),
        ):
            if not ctx.step_completed(step_id) and ctx.step_failed(step_id) is None:
                return ctx.schedule_step_with_retry(step_id, step, data, once)
        if not ctx.wait_completed("w"):
            return ctx.wait_for_signal("w", "go")
        found.append(read(ctx))
        return ctx.complete()

    def straight(ctx: Any) -> Any:
        ctx.step("a", steps.echo, 5, retry=once)
        for step_id, step in (("b", steps.broken), ("c", steps.refused)):
            try:
                ctx.step(step_id, step, "no", retry=once)
            except Exception:
                pass
        ctx.wait_signal("w", "go")
        found.append(read(ctx))

    def read(ctx: Any) -> Any:
        return [
            ctx.run_id,
            ctx.input,
            [ctx.step_output(each) for each in "abcx"],
            [ctx.step_completed(each) for each in "abcx"],
            [plain(ctx.step_failed(each)) for each in "abcx"],
            [ctx.wait_completed(each) for each in "wx"],
            [ctx.signal(each) for each in ("go", "no")],
            ctx.cancellation_request,
            ctx.logical_time,
            [each.sequence for each in ctx.history],
        ]

    engine = make_engine(steps.runtime)
    if form == "workflow":
        steps.runtime.workflow(straight)
    engine.start(straight if form == "workflow" else before, {"n": 1}, run_id="r")
    engine.signal("r", "go", 9)
    assert found[-1] == [
        "r",
        {"n": 1},
        [5, None, None, None],
        [True, False, False, False],
        [None, "OSError: no", "NonRetryable: no", None],
        [True, False],
        [9, None],
        None,
        at(0),
        list(range(1, len(engine.history("r")))),
    ]


def test_a_failure_that_is_not_final_is_none_yet(make_engine: MakeEngine, steps: Steps) -> None:
    seen: list[Any] = []

    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        seen.append(ctx.step_failed("s"))
        if ctx.step_completed("s"):
            return ctx.complete()
        return ctx.schedule_step_with_retry("s", steps.flaky, 2, RetryPolicy.fixed(3, 0))

    make_engine(steps.runtime).start(flow)
    assert seen == [None] * len(seen)
    assert len(steps.calls) == 3


def test_what_a_workflow_does_to_its_input_is_not_kept(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any, data: Any) -> Any:
        data["n"].append(1)
        ctx.input["n"].append(2)
        ctx.history.clear()
        ctx.step("s", steps.echo, data)
        return [data, ctx.input]

    engine = make_engine(steps.runtime)
    engine.start(flow, {"n": []}, run_id="r")
    assert engine.result("r") == [{"n": [1]}, {"n": []}]
    assert engine.snapshot("r").input == {"n": []}


def test_a_context_ends_with_its_decision(make_engine: MakeEngine, steps: Steps) -> None:
    kept: list[Any] = []

    @steps.runtime.workflow
    def straight(ctx: Any) -> Any:
        kept.append(ctx)
        return repr(ctx)

    @steps.runtime.decider
    def decided(ctx: Any) -> Any:
        kept.append(ctx)
        return ctx.complete(repr(ctx))

    engine = make_engine(steps.runtime)
    assert engine.result(engine.start(straight, run_id="a")) == "<StraightContext of 'a'>"
    assert engine.result(engine.start(decided, run_id="b")) == "<WorkflowContext of 'b'>"
    for ctx in kept:
        for name in ("run_id", "input", "history", "logical_time", "cancellation_request"):
            with pytest.raises(RuntimeError, match="a decision that is over"):
                getattr(ctx, name)
        assert repr(ctx).endswith("of a decision that is over>")
    for call in (
        lambda: kept[0].step("s", "echo"),
        lambda: kept[0].call("s", "echo"),
        lambda: kept[0].gather([]),
        lambda: kept[0].wait_signal("w", "go"),
        lambda: kept[1].schedule_step("s", "echo"),
        lambda: kept[1].step_output("s"),
        lambda: kept[1].deterministic_id("x"),
    ):
        with pytest.raises(RuntimeError, match="a decision that is over"):
            call()


def test_a_deterministic_id_is_the_same_on_every_host(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        first = ctx.deterministic_id("order")
        ctx.step("s", steps.echo, 1)
        return [first, ctx.deterministic_id("order"), ctx.deterministic_id("é")]

    engine, other = make_engine(steps.runtime), make_engine(steps.runtime)
    clock.advance(5.0)
    found = engine.result(engine.start(flow, run_id="r"))
    assert found == other.result(other.start(flow, run_id="r"))
    assert found[0] == found[1] != found[2]
    assert found[0] != other.result(other.start(flow, run_id="r2"))[0]
    assert found[0] == "6265fb7f-bf72-5a48-97b5-b85e77ce565f"
