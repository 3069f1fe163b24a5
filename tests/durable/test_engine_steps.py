"""Steps: what they are told, what they may return, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from supervisor import Canceled, Fatal
from supervisor.durable import (
    FlowEngine,
    FlowRuntime,
    NonRetryable,
    PayloadTooLarge,
    RunFailed,
    StepInvocation,
    current_step,
)
from supervisor.durable.history import StepCompleted
from supervisor.durable.payload import encode
from supervisor.testing import VirtualClock
from tests.durable.flowing import Steps, at, events, plain, times, types

MakeEngine = Callable[..., FlowEngine]


@pytest.fixture
def steps() -> Steps:
    return Steps()


def one(steps: Steps, function: Callable[..., Any], input: Any = None, **options: Any) -> Callable[..., Any]:
    """Register a step, and a workflow that is that step."""
    steps.runtime.step(function, name="it", **options)

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.step("s", "it", input)

    return flow


# -- what a step is told ---------------------------------------------------------------------------


def test_a_step_is_called_with_what_it_takes(make_engine: MakeEngine, steps: Steps) -> None:
    found: list[Any] = []

    @steps.runtime.step
    def none() -> None:
        found.append(())

    @steps.runtime.step
    def input_only(data: Any) -> None:
        found.append(data)

    @steps.runtime.step
    def both(data: Any, invocation: StepInvocation) -> None:
        found.append((data, invocation.step_id))

    @steps.runtime.step
    def defaulted(data: Any, factor: int = 3) -> None:
        found.append((data, factor))

    @steps.runtime.workflow
    def flow(ctx: Any) -> None:
        for each in (none, input_only, both, defaulted):
            ctx.step(each.__name__, each, 7)

    make_engine(steps.runtime).start(flow)
    assert found == [(), 7, (7, "both"), (7, 3)]


def test_an_invocation_says_which_attempt_it_is(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.step("étape", steps.flaky, 1)

    make_engine(steps.runtime).start(flow, run_id="r-1")
    first, second = steps.seen
    assert (first.run_id, first.step_id, first.step_name, first.input) == ("r-1", "étape", "flaky", 1)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.step_key == second.step_key == "r-1:étape"
    assert first.idempotency_key == "flow.step.v1/3/r-16:étape/1"
    assert second.idempotency_key == "flow.step.v1/3/r-16:étape/2"
    assert not first.token.canceled


def test_current_step_is_the_invocation_inside_of_a_step_and_none_outside(
    make_engine: MakeEngine, steps: Steps
) -> None:
    @steps.runtime.step
    def same(data: Any, invocation: StepInvocation) -> bool:
        return current_step() is invocation

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        alone = ctx.step("a", same)
        return [current_step() is None, alone, *ctx.gather([ctx.call("b", same), ctx.call("c", same)])]

    engine = make_engine(steps.runtime)
    assert engine.result(engine.start(flow)) == [True, True, True, True]
    assert current_step() is None


def test_a_step_gets_a_copy_of_its_input(make_engine: MakeEngine, steps: Steps) -> None:
    def spoils(data: Any, invocation: StepInvocation) -> Any:
        data["n"].append(invocation.attempt)
        if invocation.attempt == 1:
            raise OSError
        return data

    engine = make_engine(steps.runtime)
    engine.start(one(steps, spoils, {"n": [0]}), run_id="r")
    assert engine.result("r") == {"n": [0, 2]}
    assert events(engine, "step_created")[0]["input"] == {"n": [0]}


def test_an_output_that_is_changed_by_the_workflow_stays_as_it_was(
    make_engine: MakeEngine, steps: Steps
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        found = ctx.step("a", steps.echo, {"n": [1]})
        found["n"].append(2)
        ctx.step("b", steps.echo, found)
        return ctx.step("a", steps.echo, {"n": [1]})

    engine = make_engine(steps.runtime)
    assert engine.result(engine.start(flow, run_id="r")) == {"n": [1]}


def test_a_step_that_was_asked_for_twice_runs_once(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return [ctx.step("a", steps.echo, 1), ctx.step("a", steps.echo, 1)]

    engine = make_engine(steps.runtime)
    assert engine.result(engine.start(flow)) == [1, 1]
    assert steps.calls == [("a", 1)]


# -- what a step may return ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, None),
        (0, 0),
        (False, False),
        (1.0, 1.0),
        ((1, (2,)), [1, [2]]),
        (2**70, 2**70),
        ({"é": "日本"}, {"é": "日本"}),
        ("", ""),
        ([], []),
    ],
)
def test_what_a_step_returns_is_what_the_workflow_gets(
    make_engine: MakeEngine, steps: Steps, value: Any, kept: Any
) -> None:
    engine = make_engine(steps.runtime)
    engine.start(one(steps, lambda: value), run_id="r")
    found = engine.result("r")
    assert (found, type(found)) == (kept, type(kept))
    assert engine.snapshot("r").steps["s"].output == kept


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [{1}]}, "output of it.a[0]"),
        (float("inf"), "output of it"),
        (datetime(2026, 1, 1, tzinfo=UTC), "output of it"),
        ({None: 1}, "output of it"),
        (b"x", "output of it"),
    ],
)
def test_an_output_that_json_cannot_hold_fails_the_step_for_good(
    make_engine: MakeEngine, steps: Steps, value: Any, path: str
) -> None:
    calls: list[int] = []

    def strange() -> Any:
        calls.append(1)
        return value

    engine = make_engine(steps.runtime)
    engine.start(one(steps, strange), run_id="r")
    assert calls == [1]
    (failed,) = events(engine, "step_non_retryable")
    assert failed["error"].startswith(f"SerializationError: {path}")
    assert engine.snapshot("r").status == "failed"


def test_an_output_above_a_mebibyte_fails_the_step_for_good(make_engine: MakeEngine, steps: Steps) -> None:
    calls: list[int] = []

    def large() -> Any:
        calls.append(1)
        return "x" * 1_048_576

    engine = make_engine(steps.runtime)
    engine.start(one(steps, large), run_id="r")
    assert calls == [1]
    (failed,) = events(engine, "step_non_retryable")
    assert failed["error"].startswith("PayloadTooLarge: the output of it has 1048")


@pytest.mark.parametrize("extra", [0, 1])
def test_the_largest_output_that_fits_is_kept_and_one_byte_more_fails_the_step(
    make_engine: MakeEngine, steps: Steps, extra: int
) -> None:
    """What is too large is found when the step ends, not when it can't be written any more."""
    room = 1_048_576 - len(encode(StepCompleted("s" * 300, "").to_dict(), "event"))
    steps.runtime.step(lambda: "x" * (room + extra), name="it")

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.step("s" * 300, "it")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert engine.snapshot("r").status == ("failed" if extra else "completed")


@pytest.mark.parametrize("form", ["workflow", "decider"])
@pytest.mark.parametrize("what", ["output", "input"])
def test_what_the_workflow_makes_too_large_does_not_cost_the_result_it_is_made_of(
    make_engine: MakeEngine, steps: Steps, form: str, what: str
) -> None:
    """They would stand in one append, which would be refused as a whole, again and again."""

    def straight(ctx: Any) -> Any:
        half = ctx.step("a", steps.echo, "x" * 600_000)
        return [half, half] if what == "output" else ctx.step("b", steps.echo, [half, half])

    def decided(ctx: Any) -> Any:
        if not ctx.step_completed("a"):
            return ctx.schedule_step("a", "echo", "x" * 600_000)
        half = ctx.step_output("a")
        return (
            ctx.complete([half, half]) if what == "output" else ctx.schedule_step("b", "echo", [half, half])
        )

    engine = make_engine(steps.runtime)
    if form == "workflow":
        engine.start(steps.runtime.workflow(straight), run_id="r")
        assert "PayloadTooLarge: " in str(engine.snapshot("r").error)
    else:
        with pytest.raises(PayloadTooLarge, match=f"the {what} of "):
            engine.start(steps.runtime.decider(decided), run_id="r")
        with pytest.raises(PayloadTooLarge):
            engine.drive("r")
    assert engine.snapshot("r").steps["a"].status == "completed"
    assert steps.calls == [("a", 1)]


def test_straight_code_may_catch_that_an_input_is_too_large(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        found = []
        for size in (1_100_000, 10):
            try:
                found.append(len(ctx.step(f"s{size}", steps.echo, "x" * size)))
                found += ctx.gather(
                    [ctx.call("g", steps.echo, 1), ctx.call("h", steps.echo, "x" * 1_100_000)]
                )
            except PayloadTooLarge as error:
                found.append(error.size > error.limit)
        return found

    engine = make_engine(steps.runtime)
    assert engine.result(engine.start(flow)) == [True, 10, True]
    assert steps.ids == ["s10"]


# -- how a step may end ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "type", "calls"),
    [
        (OSError("no"), "step_failed", 3),
        (Canceled("no"), "step_failed", 3),  # its token was not canceled
        (AssertionError("no"), "step_failed", 3),
        (NonRetryable("no"), "step_non_retryable", 1),
        (Fatal("no"), "step_non_retryable", 1),
    ],
)
def test_an_exception_ends_an_attempt_or_the_step(
    make_engine: MakeEngine, steps: Steps, error: BaseException, type: str, calls: int
) -> None:
    called: list[int] = []

    def fails() -> None:
        called.append(1)
        raise error

    engine = make_engine(steps.runtime)
    engine.start(one(steps, fails), run_id="r")
    assert len(called) == calls
    (failed,) = events(engine, type)
    assert plain(failed["error"]) == f"{error.__class__.__name__}: no"
    with pytest.raises(RunFailed, match="no") as raised:
        engine.result("r")
    assert raised.value.error == engine.snapshot("r").error


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_the_end_of_a_process_leaves_the_attempt_for_redelivery(
    make_engine: MakeEngine, steps: Steps, error: type[BaseException]
) -> None:
    attempts: list[int] = []

    def ends(data: Any, invocation: StepInvocation) -> str:
        attempts.append(invocation.attempt)
        if len(attempts) == 1:
            raise error
        return "done"

    flow = one(steps, ends)
    engine = make_engine(steps.runtime)
    with pytest.raises(error):
        engine.start(flow, run_id="r")
    assert types(engine) == ["run_created", "run_started", "step_created", "step_started"]
    assert engine.recover() == ["r"]
    assert engine.drive("r").output == "done"
    assert attempts == [1, 1]
    assert types(engine).count("step_started") == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_the_end_of_a_process_in_a_batch_reaches_the_caller(
    make_engine: MakeEngine, steps: Steps, error: type[BaseException]
) -> None:
    attempts: list[int] = []

    @steps.runtime.step
    def ends(data: Any, invocation: StepInvocation) -> str:
        attempts.append(invocation.attempt)
        if len(attempts) == 1:
            raise error
        return "done"

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.gather([ctx.call("a", steps.echo, 1), ctx.call("b", ends), ctx.call("c", steps.echo, 3)])

    engine = make_engine(steps.runtime)
    with pytest.raises(error):
        engine.start(flow, run_id="r")
    assert engine.snapshot("r").steps["b"].status == "running"
    assert engine.drive("r").output == [1, "done", 3]
    assert attempts == [1, 1]
    assert sorted(steps.ids) == ["a", "c"]


# -- timeouts --------------------------------------------------------------------------------------


def test_a_step_that_takes_too_long_is_tried_again(make_engine: MakeEngine, clock: VirtualClock) -> None:
    steps = Steps()
    reasons: list[Any] = []

    def slow(data: Any, invocation: StepInvocation) -> int:
        if invocation.attempt < 3:
            invocation.token.wait(60.0)
            reasons.append((clock.monotonic(), str(invocation.token.reason)))
            invocation.token.check()
        return invocation.attempt

    engine = make_engine(steps.runtime)
    engine.start(one(steps, slow, timeout=2.5), run_id="r")
    assert engine.result("r") == 3
    assert reasons == [(2.5, "timeout"), (5.0, "timeout")]
    assert [each["error"] for each in events(engine, "step_retrying")] == [
        "Timeout: it took longer than 2.5 s",
        "Timeout: it took longer than 2.5 s",
    ]


def test_a_step_that_returns_after_its_timeout_has_failed(
    make_engine: MakeEngine, clock: VirtualClock
) -> None:
    steps = Steps()

    def deaf() -> str:
        clock.sleep(10.0)
        return "late"

    engine = make_engine(steps.runtime)
    engine.start(one(steps, deaf, timeout=1.0), run_id="r")
    assert engine.snapshot("r").status == "failed"
    assert times(engine, "step_retrying") == [10.0, 20.0]
    assert times(engine, "step_failed") == [30.0]


def test_a_step_that_ends_exactly_at_its_timeout_is_in_time(
    make_engine: MakeEngine, clock: VirtualClock
) -> None:
    steps = Steps()

    def just() -> str:
        clock.sleep(1.0)
        return "just"

    engine = make_engine(steps.runtime)
    [each] = [clock.spawn(lambda: engine.start(one(steps, just, timeout=1.0), run_id="r"), "caller")]
    each.join()
    assert engine.result("r") == "just"


def test_timeouts_hold_for_each_member_of_a_batch(make_engine: MakeEngine, clock: VirtualClock) -> None:
    steps = Steps()

    @steps.runtime.step(timeout=2.0)
    def naps(seconds: float, invocation: StepInvocation) -> float:
        invocation.token.wait(seconds)
        invocation.token.check()
        return seconds

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        from supervisor.durable import RetryPolicy

        return ctx.gather([ctx.call(f"n{each}", naps, each, retry=RetryPolicy.none()) for each in (1.0, 5.0)])

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert clock.monotonic() == 2.0
    found = engine.snapshot("r")
    assert (found.steps["n1.0"].output, found.steps["n1.0"].ended_at) == (1.0, at(1.0))
    assert found.steps["n5.0"].error == "Timeout: naps took longer than 2 s"


# -- steps and the engine --------------------------------------------------------------------------


def test_a_step_runs_on_the_thread_that_drives(make_engine: MakeEngine, steps: Steps) -> None:
    import threading

    engine = make_engine(steps.runtime)
    engine.start(one(steps, lambda: threading.get_ident()), run_id="r")
    assert engine.result("r") == threading.get_ident()


def test_context_variables_of_a_step_do_not_leak(make_engine: MakeEngine) -> None:
    from contextvars import ContextVar

    var: ContextVar[str] = ContextVar("var", default="unset")
    flows = FlowRuntime()

    @flows.step
    def sets() -> str:
        before = var.get()
        var.set("set")
        return before

    @flows.workflow
    def flow(ctx: Any) -> Any:
        return [ctx.step("a", sets), ctx.step("b", sets)]

    engine = make_engine(flows)
    assert engine.result(engine.start(flow)) == ["unset", "unset"]
    assert var.get() == "unset"
