"""The straight-line form: which command a function comes to, given a history."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from supervisor import Canceled
from supervisor.durable.command import (
    Cancel,
    Command,
    Complete,
    Fail,
    ScheduleStep,
    ScheduleSteps,
    WaitForSignal,
    WaitUntil,
)
from supervisor.durable.errors import InvalidTransition, NonDeterministic, StepFailed
from supervisor.durable.history import (
    FlowEvent,
    SignalWaitCompleted,
    SignalWaitCreated,
    StepCompleted,
    StepCreated,
    StepStarted,
    WaitCompleted,
)
from supervisor.durable.history import StepFailed as StepFailedEvent
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.straight import Suspended, decide_straight
from tests.durable.making import cancellation, folded, later, names, signal, wait

DEFAULT = RetryPolicy.default().continue_workflow_on_failure()


def decide(function: Callable[..., Any], *events: FlowEvent) -> Command:
    return decide_straight(function, 1, folded(*events), names, later(100))


def step(step_id: str, input: Any = None, policy: RetryPolicy = DEFAULT) -> list[FlowEvent]:
    return [StepCreated(step_id, "work", input, policy), StepStarted(step_id, 1)]


def done(step_id: str, output: Any = None, input: Any = None) -> list[FlowEvent]:
    return [*step(step_id, input), StepCompleted(step_id, output)]


def failed(step_id: str, error: str) -> list[FlowEvent]:
    policy = RetryPolicy.none().continue_workflow_on_failure()
    return [*step(step_id, None, policy), StepFailedEvent(step_id, 1, error)]


# -- the command -----------------------------------------------------------------------------------


def test_the_first_thing_that_is_not_in_history_is_asked_for() -> None:
    def two(ctx: Any) -> Any:
        first = ctx.step("a", "work", 1)
        return ctx.step("b", "work", [first])

    assert decide(two) == ScheduleStep("a", "work", 1, DEFAULT)
    assert decide(two, *step("a", 1)) == ScheduleStep("a", "work", 1, DEFAULT)
    assert decide(two, *done("a", 7, 1)) == ScheduleStep("b", "work", [7], DEFAULT)
    assert decide(two, *done("a", 7, 1), *done("b", 8, [7])) == Complete(8)


def test_a_policy_is_taken_as_given_but_lets_the_workflow_continue() -> None:
    asked = decide(lambda ctx: ctx.step("a", "work", retry=RetryPolicy.fixed(9, 2.0)))
    assert asked == ScheduleStep("a", "work", None, RetryPolicy.fixed(9, 2.0).continue_workflow_on_failure())


def test_waits_are_asked_for() -> None:
    assert decide(lambda ctx: ctx.wait_until("w", later(9))) == WaitUntil("w", later(9))
    assert decide(lambda ctx: ctx.wait_signal("w", "go")) == WaitForSignal("w", "go")
    assert decide(lambda ctx: ctx.sleep("w", 2.5)) == WaitUntil("w", later(102.5))
    assert decide(lambda ctx: ctx.sleep("w", timedelta(minutes=1))) == WaitUntil("w", later(160))


def test_a_second_sleep_under_one_id_is_refused_instead_of_being_none() -> None:
    def loop(ctx: Any) -> None:
        for _ in range(2):
            ctx.sleep("pause", 60)

    assert decide(loop) == WaitUntil("pause", later(160))
    with pytest.raises(InvalidTransition, match="sleeps under the id 'pause' for the second time"):
        decide(loop, wait("pause", 60), WaitCompleted("pause"))


def test_a_gather_asks_for_all_of_it_until_all_have_ended() -> None:
    def gathering(ctx: Any) -> Any:
        return ctx.gather(ctx.call(each, "work") for each in "abc")

    asked = ScheduleSteps(tuple(ScheduleStep(each, "work", None, DEFAULT) for each in "abc"))
    assert decide(gathering) == asked
    assert decide(gathering, *done("b", 2), *step("a")) == asked
    assert decide(gathering, *done("c", 3), *done("b", 2), *done("a", 1)) == Complete([1, 2, 3])


def test_a_gather_waits_for_all_before_it_raises_the_first_failure_in_order() -> None:
    def gathering(ctx: Any) -> Any:
        policy = RetryPolicy.none()
        try:
            return ctx.gather(ctx.call(each, "work", retry=policy) for each in "ab")
        except StepFailed as failure:
            return failure.step_id

    assert isinstance(decide(gathering, *failed("b", "no")), ScheduleSteps)
    assert decide(gathering, *failed("b", "no"), *failed("a", "no, too")) == Complete("a")


def test_results_of_waits_are_returned() -> None:
    def waits(ctx: Any) -> Any:
        return [ctx.wait_until("t", later(9)), ctx.sleep("nap", 1), ctx.wait_signal("s", "go")]

    events: list[FlowEvent] = [wait("t", 9), WaitCompleted("t"), wait("nap", 77), WaitCompleted("nap")]
    assert decide(waits, *events) == WaitForSignal("s", "go")
    events += [signal("s1", payload={"n": 1}), SignalWaitCreated("s", "go"), SignalWaitCompleted("s", "s1")]
    assert decide(waits, *events) == Complete([None, None, {"n": 1}])


# -- the end ---------------------------------------------------------------------------------------


def test_what_it_returns_completes_the_run_and_what_it_raises_fails_it() -> None:
    def raising(ctx: Any) -> Any:
        raise KeyError("order")

    assert decide(lambda ctx: (1, 2)) == Complete([1, 2])
    assert decide(lambda ctx: None) == Complete(None)
    ended = decide(raising)
    assert isinstance(ended, Fail)
    assert ended.error.startswith("KeyError: 'order'")
    ended = decide(lambda ctx: {1, 2})
    assert isinstance(ended, Fail)
    assert ended.error.startswith("SerializationError: output must be a JSON value")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_passes(error: type[BaseException]) -> None:
    def ends(ctx: Any) -> Any:
        raise error

    with pytest.raises(error):
        decide(ends)


def test_a_command_is_no_output() -> None:
    with pytest.raises(InvalidTransition, match="returned a command; register it with decider instead"):
        decide(lambda ctx: ctx.call("a", "work"))


# -- what is swallowed -----------------------------------------------------------------------------


def bare(ctx: Any) -> Any:
    try:
        ctx.step("a", "work")
    except:  # noqa: E722
        return "swallowed"


def returned(ctx: Any) -> Any:
    try:
        ctx.step("a", "work")
    finally:
        return "swallowed"  # noqa: B012


def suppressed(ctx: Any) -> Any:
    with contextlib.suppress(BaseException):
        ctx.gather([ctx.call("a", "work")])


def replaced(ctx: Any) -> Any:
    try:
        ctx.wait_signal("w", "go")
    except BaseException as error:
        raise ValueError from error


def kept(ctx: Any) -> Any:
    try:
        ctx.sleep("w", 1)
    except Suspended as error:
        raise Suspended(error.command) from None


@pytest.mark.parametrize("workflow", [bare, returned, suppressed, replaced, kept])
def test_a_suspension_that_is_swallowed_is_found_out(workflow: Callable[..., Any]) -> None:
    with pytest.raises(InvalidTransition, match="swallowed the exception that suspends it at"):
        decide(workflow)


def test_except_exception_swallows_nothing() -> None:
    def careful(ctx: Any) -> Any:
        try:
            return ctx.step("a", "work")
        except Exception:
            return "swallowed"

    assert isinstance(decide(careful), ScheduleStep)


def test_whatever_is_asked_for_after_the_suspension_raises_it_again() -> None:
    def persistent(ctx: Any) -> Any:
        for call in (
            lambda: ctx.step("a", "work"),
            lambda: ctx.step("b", "work"),
            lambda: ctx.gather([]),
            lambda: ctx.sleep("w", 1),
            lambda: ctx.wait_until("w", later(1)),
            lambda: ctx.wait_signal("w", "go"),
        ):
            try:
                call()
            except Suspended as error:
                last = error
        raise last

    assert decide(persistent) == ScheduleStep("a", "work", None, DEFAULT)


# -- drift -----------------------------------------------------------------------------------------


def test_a_drift_reaches_the_engine_whoever_catches_it() -> None:
    def changed(ctx: Any) -> Any:
        with contextlib.suppress(Exception):
            ctx.step("a", "work", 2)
        return ctx.step("b", "work")

    with pytest.raises(NonDeterministic, match="step a input differs"):
        decide(changed, *done("a", 1, 1))


# -- cancellation ----------------------------------------------------------------------------------


def test_canceled_is_raised_at_the_first_result_that_was_not_there_at_the_request() -> None:
    seen: list[Any] = []

    def cleaning(ctx: Any) -> Any:
        seen[:] = [ctx.step("a", "work")]
        try:
            seen.append(ctx.step("b", "work"))
        except Canceled as canceled:
            seen.append(str(canceled))
            seen.append(ctx.step("undo", "work"))
            raise

    events = [*done("a", "A"), *step("b"), cancellation("why")]
    assert decide(cleaning, *events) == ScheduleStep("undo", "work", None, DEFAULT)
    assert seen == ["A", "why"]
    assert decide(cleaning, *events, *done("undo", "U")) == Cancel()
    assert seen == ["A", "why", "U"]


@pytest.mark.parametrize(
    ("ending", "command"),
    [(lambda: "an output", Cancel), (lambda: {1}, Cancel), (lambda: 1 / 0, Fail)],
)
def test_how_it_ends_after_the_request(ending: Callable[[], Any], command: type[Command]) -> None:
    def workflow(ctx: Any) -> Any:
        with contextlib.suppress(Canceled):
            ctx.sleep("w", 1)
        return ending()

    assert isinstance(decide(workflow, cancellation()), command)


def test_a_wait_that_was_cancelled_can_not_be_asked_for_again() -> None:
    def again(ctx: Any) -> Any:
        for _ in range(2):
            with contextlib.suppress(Canceled):
                ctx.wait_until("w", later(9))

    with pytest.raises(InvalidTransition, match="a wait in clean-up needs an id of its own"):
        decide(again, wait("w", 9), cancellation())


def test_a_run_whose_function_has_nothing_to_wait_for_is_cancelled() -> None:
    assert decide(lambda ctx: "quick", cancellation()) == Cancel()
    assert decide(lambda ctx: ctx.step("a", "work"), *done("a", 1), cancellation()) == Cancel()
