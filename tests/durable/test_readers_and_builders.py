"""What a workflow sees of its history."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from supervisor.durable.command import (
    Cancel,
    Complete,
    Fail,
    ScheduleStep,
    ScheduleSteps,
    WaitForSignal,
    WaitUntil,
)
from supervisor.durable.context import Sight, WorkflowContext
from supervisor.durable.errors import InvalidTransition, SerializationError
from supervisor.durable.history import (
    FlowEvent,
    SignalWaitCompleted,
    SignalWaitCreated,
    StepCompleted,
    StepFailed,
    StepNonRetryable,
    StepRetrying,
    WaitCompleted,
)
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.straight import StraightContext
from tests.durable.making import AT, cancellation, folded, later, names, signal, step, wait

CONTINUES = RetryPolicy.none().continue_workflow_on_failure()


def context(*events: FlowEvent, input: Any = None) -> WorkflowContext:
    return WorkflowContext(Sight(folded(*events, input=input)), names)


# -- readers ---------------------------------------------------------------------------------------


def test_a_context_tells_the_run_its_input_and_its_history() -> None:
    ctx = context(*step("a"), input={"n": [1]})
    assert (ctx.run_id, ctx.input, len(ctx.history)) == ("r", {"n": [1]}, 4)
    assert ctx.history[0].event.to_dict()["input"] == {"n": [1]}
    assert ctx.logical_time == later(4)
    assert repr(ctx) == "<WorkflowContext of 'r'>"


def test_what_it_returns_are_copies() -> None:
    ctx = context(
        *step("a"), StepCompleted("a", {"n": [1]}), signal("s", payload={"n": [1]}), input={"n": [1]}
    )
    for read in (lambda: ctx.input, lambda: ctx.step_output("a"), lambda: ctx.signal("go")):
        read()["n"].append(2)  # type: ignore[call-overload, index]
        assert read() == {"n": [1]}
    ctx.history.clear()
    assert len(ctx.history) == 6


def test_a_step_is_completed_only_after_it_has() -> None:
    for events in ([], step("a"), [*step("a"), StepRetrying("a", 1, "no", None)]):
        ctx = context(*events)
        assert (ctx.step_completed("a"), ctx.step_output("a"), ctx.step_failed("a")) == (False, None, None)
    ctx = context(*step("a"), StepCompleted("a", None))
    assert (ctx.step_completed("a"), ctx.step_output("a"), ctx.step_failed("a")) == (True, None, None)


@pytest.mark.parametrize("kind", [StepFailed, StepNonRetryable])
def test_a_step_has_failed_after_its_last_attempt_or_for_good(kind: Callable[..., FlowEvent]) -> None:
    ctx = context(*step("a", CONTINUES), kind("a", 1, "no"))
    assert (ctx.step_completed("a"), ctx.step_output("a"), ctx.step_failed("a")) == (False, None, "no")


def test_a_failure_without_words_is_still_a_failure() -> None:
    assert context(*step("a", CONTINUES), StepFailed("a", 1, "")).step_failed("a") == ""


def test_a_step_that_was_cancelled_has_neither_completed_nor_failed() -> None:
    ctx = context(*step("a"), cancellation("why"))
    assert (ctx.step_completed("a"), ctx.step_failed("a")) == (False, None)
    assert ctx.cancellation_request is not None
    assert (ctx.cancellation_request.reason, ctx.cancellation_request.at) == ("why", later(5))
    assert context().cancellation_request is None


def test_a_wait_of_either_kind_is_completed_when_it_is_over() -> None:
    ctx = context(
        wait("t", 5),
        WaitCompleted("t"),
        wait("open", 9),
        SignalWaitCreated("s", "go"),
        signal("s1"),
        SignalWaitCompleted("s", "s1"),
    )
    assert [ctx.wait_completed(each) for each in ("t", "open", "s", "unknown")] == [True, False, True, False]


def test_the_payload_of_a_signal_is_that_of_the_latest_one_taken() -> None:
    events: list[FlowEvent] = [signal("s1", payload=1), signal("s2", payload=2), signal("s3", payload=3)]
    assert context(*events).signal("go") == 1
    assert context(*events).signal("other") is None
    for number in (1, 2):
        events += [SignalWaitCreated(f"w{number}", "go"), SignalWaitCompleted(f"w{number}", f"s{number}")]
        assert context(*events).signal("go") == number


def test_deterministic_ids_depend_on_run_and_name_alone() -> None:
    ctx = context()
    assert ctx.deterministic_id("a") == context(*step("x")).deterministic_id("a")
    assert len({ctx.deterministic_id(each) for each in ("a", "b", "é", "1a")}) == 4
    with pytest.raises(TypeError):
        ctx.deterministic_id(7)  # type: ignore[arg-type]


# -- builders --------------------------------------------------------------------------------------


def test_builders_return_commands_and_do_nothing_else() -> None:
    ctx = context()
    default = RetryPolicy.default()
    policy = RetryPolicy.fixed(2, 1.0)
    when = datetime(2030, 1, 1, tzinfo=UTC)
    assert ctx.schedule_step("a", "work", (1,)) == ScheduleStep("a", "work", [1], default)
    assert ctx.schedule_step("a", test_builders_return_commands_and_do_nothing_else) == ScheduleStep(
        "a", "named", None, default
    )
    one = ctx.schedule_step_with_retry("b", "work", None, policy)
    assert one == ScheduleStep("b", "work", None, policy)
    assert ctx.schedule_steps([one]) == ScheduleSteps((one,))  # type: ignore[arg-type]
    assert ctx.wait_until("w", when) == WaitUntil("w", when)
    assert ctx.wait_for_signal("w", "go") == WaitForSignal("w", "go")
    assert ctx.complete({"a": (1,)}) == Complete({"a": [1]})
    assert ctx.fail("no") == Fail("no")
    assert ctx.fail(ValueError("no")) == Fail("ValueError: no")
    assert ctx.cancel() == Cancel()
    assert len(ctx.history) == 2


def test_builders_refuse_what_they_cannot_mean() -> None:
    ctx = context()
    with pytest.raises(SerializationError, match="input of step 'a'"):
        ctx.schedule_step("a", "work", object())  # type: ignore[arg-type]
    with pytest.raises(SerializationError, match="output"):
        ctx.complete({1})  # type: ignore[arg-type]
    with pytest.raises(SerializationError, match="error"):
        ctx.fail("\ud800")
    with pytest.raises(TypeError, match="retry of step 'a' must be a RetryPolicy, got 3"):
        ctx.schedule_step_with_retry("a", "work", None, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="schedule_steps takes a list of what schedule_step returns, got "):
        ctx.schedule_steps([ctx.complete(None)])
    with pytest.raises(ValueError, match="aware"):
        ctx.wait_until("w", datetime(2030, 1, 1))
    for blank in ("", " ", 7):
        for call in (
            lambda blank=blank: ctx.schedule_step(blank, "work"),
            lambda blank=blank: ctx.wait_until(blank, AT),
            lambda blank=blank: ctx.wait_for_signal(blank, "go"),
            lambda blank=blank: ctx.wait_for_signal("w", blank),
        ):
            with pytest.raises((TypeError, ValueError)):
                call()


# -- its life --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [WorkflowContext, StraightContext])
def test_a_context_is_over_with_its_decision(cls: type[WorkflowContext]) -> None:
    sight = Sight(folded())
    ctx = StraightContext(sight, names, later(9)) if cls is StraightContext else cls(sight, names)
    sight.end()
    calls: list[Callable[[], Any]] = [
        lambda: ctx.run_id,
        lambda: ctx.input,
        lambda: ctx.history,
        lambda: ctx.logical_time,
        lambda: ctx.cancellation_request,
        lambda: ctx.step_completed("a"),
        lambda: ctx.step_output("a"),
        lambda: ctx.step_failed("a"),
        lambda: ctx.wait_completed("a"),
        lambda: ctx.signal("a"),
        lambda: ctx.deterministic_id("a"),
    ]
    if cls is StraightContext:
        calls += [
            lambda: ctx.step("a", "work"),
            lambda: ctx.call("a", "work"),
            lambda: ctx.gather([]),
            lambda: ctx.sleep("a", 1),
            lambda: ctx.wait_until("a", AT),
            lambda: ctx.wait_signal("a", "go"),
        ]
    for call in calls:
        with pytest.raises(RuntimeError, match="a decision that is over"):
            call()
    assert repr(ctx) == f"<{cls.__name__} of a decision that is over>"


def test_a_decider_is_told_how_to_wait() -> None:
    ctx = context()
    for call, instead in (
        (lambda: ctx.step("a", "work"), "schedule_step"),
        (lambda: ctx.call("a", "work"), "schedule_step"),
        (lambda: ctx.gather([]), "schedule_steps"),
        (lambda: ctx.sleep("a", 1), "wait_until"),
        (lambda: ctx.wait_signal("a", "go"), "wait_for_signal"),
    ):
        with pytest.raises(InvalidTransition, match=rf"belongs to straight-line workflows; .*{instead}"):
            call()
