"""Whole stories of runs: cancellation, signals, waits, both forms, what is swallowed and what is not JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from supervisor import Canceled
from supervisor.durable import (
    FlowEngine,
    FlowRuntime,
    InvalidTransition,
    MemoryEventStore,
    NonDeterministic,
    PayloadTooLarge,
    ReplayLimitExceeded,
    RetryPolicy,
    RunConflict,
    RunFailed,
    RunStatus,
    RunTerminal,
    SerializationError,
    SignalConflict,
    StepFailed,
    StepInvocation,
    UnknownStep,
    WorkflowContext,
    current_step,
)
from supervisor.durable.history import StepCompleted
from supervisor.testing import VirtualClock
from tests.durable.making import begun, step

MakeEngine = Callable[..., FlowEngine]


class Shop:
    """A runtime with a step that notes what it was called with."""

    def __init__(self) -> None:
        self.flows = FlowRuntime()
        self.calls: list[Any] = []
        self.flows.step(self.note, name="note")

    def note(self, value: Any) -> Any:
        self.calls.append(value)
        return value


@pytest.fixture
def shop() -> Shop:
    return Shop()


def kinds(engine: FlowEngine, run_id: str) -> list[str]:
    return [envelope.event.type for envelope in engine.history(run_id)]


# -- cancellation in straight-line code ------------------------------------------------------------


def test_canceled_is_raised_at_the_waiting_point_and_clean_up_runs_once_on_every_replay(
    shop: Shop, make_engine: MakeEngine
) -> None:
    raised: list[object] = []

    @shop.flows.workflow
    def job(ctx: WorkflowContext, _: object) -> str:
        ctx.step("reserve", "note", "reserve")
        try:
            ctx.wait_signal("go", "go")
        except Canceled as canceled:
            raised.append(canceled.reason)
            ctx.step("release", "note", "release")
            ctx.step("tell", "note", "tell")
            raise
        return "never"

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    engine.cancel("r", "no stock")
    assert shop.calls == ["reserve", "release", "tell"]
    assert raised == ["no stock"] * 3  # at each of its decisions, at the same place
    assert engine.snapshot("r").status == RunStatus.CANCELLED
    with pytest.raises(Canceled, match="no stock"):
        engine.result("r", timeout=0)
    assert kinds(engine, "r")[-1] == "run_cancelled"


def test_a_workflow_that_returns_after_the_request_is_cancelled_whatever_it_returns(
    shop: Shop, make_engine: MakeEngine
) -> None:
    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> str:
        with contextlib.suppress(Canceled):
            ctx.sleep("nap", 60)
        return "done all the same"

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    engine.cancel("r")
    assert engine.snapshot("r").status == RunStatus.CANCELLED
    assert engine.snapshot("r").output is None


def test_clean_up_that_fails_fails_the_run(shop: Shop, make_engine: MakeEngine) -> None:
    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> None:
        try:
            ctx.sleep("nap", 60)
        finally:
            if ctx.cancellation_request:
                raise OSError("no way back")

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    engine.cancel("r")
    with pytest.raises(RunFailed, match="no way back"):
        engine.result("r", timeout=0)


def test_cancel_twice_is_once_another_reason_is_a_conflict_and_an_ended_run_refuses(
    shop: Shop, make_engine: MakeEngine
) -> None:
    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> None:
        try:
            ctx.wait_signal("w", "x")
        except Canceled:
            ctx.wait_signal("v", "x")

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    engine.cancel("r", "a")
    length = len(engine.history("r"))
    engine.cancel("r", "a")
    assert len(engine.history("r")) == length
    with pytest.raises(RunConflict):
        engine.cancel("r", "b")
    assert engine.snapshot("r").status == RunStatus.CANCELLING
    engine.signal("r", "x")
    assert engine.snapshot("r").status == RunStatus.CANCELLED
    with pytest.raises(RunTerminal):
        engine.cancel("r", "a")
    with pytest.raises(RunTerminal):
        engine.force_cancel("r")


def test_a_cancelled_id_can_not_be_used_again(shop: Shop, make_engine: MakeEngine) -> None:
    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> None:
        try:
            ctx.sleep("nap", 60)
        except Canceled:
            ctx.sleep("nap", 60)

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    with pytest.raises(InvalidTransition, match="needs an id of its own"):
        engine.cancel("r")
    assert [each.run_id for each in engine.failures()] == ["r"]


def test_a_step_that_watches_its_token_is_told_of_the_cancellation(
    shop: Shop, make_engine: MakeEngine, clock: VirtualClock
) -> None:
    waited: list[bool] = []

    @shop.flows.step
    def long(_: object, invocation: StepInvocation) -> str:
        waited.append(invocation.token.wait(1000))
        return "too late"

    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> str:
        return ctx.step("long", long)

    engine = make_engine(shop.flows)
    clock.spawn(lambda: engine.cancel("r", "enough") if clock.sleep(5) is None else None, "canceler")
    engine.start("job", run_id="r")
    assert (waited, clock.monotonic()) == ([True], 5.0)
    snapshot = engine.snapshot("r")
    assert (snapshot.status, snapshot.steps["long"].status) == ("cancelled", "cancelled")


def test_a_decider_cleans_up_and_may_not_complete(shop: Shop, make_engine: MakeEngine) -> None:
    @shop.flows.decider
    def stubborn(ctx: WorkflowContext) -> Any:
        return ctx.complete(1) if ctx.cancellation_request else ctx.wait_for_signal("w", "x")

    @shop.flows.decider
    def tidy(ctx: WorkflowContext) -> Any:
        if not ctx.cancellation_request:
            return ctx.wait_for_signal("w", "x")
        return ctx.cancel() if ctx.step_completed("undo") else ctx.schedule_step("undo", "note", "undo")

    engine = make_engine(shop.flows)
    engine.start("stubborn", run_id="s")
    with pytest.raises(InvalidTransition, match="can't complete"):
        engine.cancel("s")
    engine.start("tidy", run_id="t")
    engine.cancel("t", "why not")
    assert (engine.snapshot("t").status, shop.calls) == ("cancelled", ["undo"])


# -- signals and waits --------------------------------------------------------------------------------


def test_signals_are_kept_first_in_first_out_over_several_waits(shop: Shop, make_engine: MakeEngine) -> None:
    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> list[Any]:
        return [ctx.wait_signal(f"w{number}", "n") for number in range(3)]

    engine = make_engine(shop.flows)
    engine.submit("job", run_id="r")
    engine.signal("r", "n", 1, signal_id="a")
    engine.signal("r", "other", 9)
    engine.signal("r", "n", 2, signal_id="b")
    engine.signal("r", "n", 2, signal_id="b")
    with pytest.raises(SignalConflict):
        engine.signal("r", "n", 3, signal_id="b")
    engine.signal("r", "n", 3)
    assert engine.result("r", timeout=0) == [1, 2, 3]
    engine.signal("r", "n", 2, signal_id="b")  # the same again, after the end
    with pytest.raises(RunTerminal):
        engine.signal("r", "n", 4)


def test_sleep_takes_its_instant_once(shop: Shop, make_engine: MakeEngine, clock: VirtualClock) -> None:
    seen: list[datetime] = []

    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> None:
        seen.append(ctx.logical_time)
        ctx.sleep("nap", 60)
        seen.append(ctx.logical_time)

    engine = make_engine(shop.flows)
    began = clock.now()
    engine.start("job", run_id="r")
    clock.advance(30)
    engine.drive("r")
    due = began + timedelta(seconds=60)
    assert engine.next_wakeup() == due
    with pytest.raises(InvalidTransition, match=r"is not due until 2000-01-01T00:01:00\.000000Z"):
        engine.resume_wait("r", "nap")
    clock.advance(45)
    assert engine.resume_wait("r", "nap").status == RunStatus.COMPLETED
    assert seen == [began, began, began, began + timedelta(seconds=75)]
    engine.resume_wait("r", "nap")
    with pytest.raises(RunTerminal):
        engine.resume_wait("r", "unknown")


def test_a_sleep_is_counted_from_when_it_is_asked_for_not_from_before_an_outage(
    shop: Shop, make_engine: MakeEngine, clock: VirtualClock
) -> None:
    @shop.flows.step
    def work() -> None: ...

    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> None:
        ctx.step("work", work)
        ctx.sleep("cool-down", 3600)

    store = MemoryEventStore()
    policy = RetryPolicy.default().continue_workflow_on_failure()
    store.append("r", 0, [*begun("job"), *step("work", policy), StepCompleted("work", None)], clock.now())
    clock.advance(2 * 86400)
    engine = make_engine(shop.flows, store)
    engine.drive("r")
    assert engine.next_wakeup() == clock.now() + timedelta(hours=1)


def test_a_sleep_in_a_drive_with_a_later_now_is_counted_from_there(
    shop: Shop, make_engine: MakeEngine, clock: VirtualClock
) -> None:
    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> None:
        ctx.sleep("one", 100)
        ctx.sleep("two", 100)

    engine = make_engine(shop.flows)
    began = clock.now()
    engine.submit("job", run_id="r")
    engine.drive("r", began + timedelta(seconds=1000))
    assert engine.next_wakeup() == began + timedelta(seconds=1100)
    engine.resume_scheduled_run("r", began + timedelta(seconds=5000))
    assert engine.next_wakeup() == began + timedelta(seconds=5100)


def test_a_wait_in_the_past_suspends_and_a_future_now_completes_it_early(
    shop: Shop, make_engine: MakeEngine, clock: VirtualClock
) -> None:
    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> str:
        ctx.wait_until("past", datetime(1999, 1, 1, tzinfo=UTC))
        ctx.wait_until("later", datetime(2001, 1, 1, tzinfo=UTC))
        return "done"

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    assert engine.snapshot("r").status == RunStatus.SUSPENDED
    assert engine.drive("r", datetime(2002, 1, 1, tzinfo=UTC)).status == RunStatus.SUSPENDED
    assert [each.subject_id for each in engine.resume_scheduled_run("r", clock.now())] == ["past"]
    assert [
        each.subject_id for each in engine.resume_scheduled_run("r", datetime(2002, 1, 1, tzinfo=UTC))
    ] == ["later"]
    assert engine.result("r", timeout=0) == "done"


def test_a_naive_instant_is_refused_and_fails_the_run(shop: Shop, make_engine: MakeEngine) -> None:
    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> None:
        ctx.wait_until("w", datetime(2001, 1, 1))

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    with pytest.raises(RunFailed, match="must be an aware datetime"):
        engine.result("r", timeout=0)


# -- what a workflow must not swallow ------------------------------------------------------------------


def swallow_bare(ctx: WorkflowContext) -> str:
    try:
        return ctx.step("a", "note", 1)
    except:  # noqa: E722
        return "swallowed"


def swallow_suppress(ctx: WorkflowContext) -> str:
    with contextlib.suppress(BaseException):
        ctx.wait_signal("w", "x")
    return "swallowed"


def swallow_finally(ctx: WorkflowContext) -> str:
    try:
        ctx.sleep("s", 1)
    finally:
        return "swallowed"  # noqa: B012


def swallow_and_raise(ctx: WorkflowContext) -> str:
    try:
        return ctx.step("a", "note", 1)
    except BaseException:
        raise ValueError("of my own") from None


@pytest.mark.parametrize("body", [swallow_bare, swallow_suppress, swallow_finally, swallow_and_raise])
def test_a_swallowed_suspension_is_reported_and_nothing_of_it_written(
    body: Callable[..., str], shop: Shop, make_engine: MakeEngine
) -> None:
    shop.flows.workflow(body, name="job")
    engine = make_engine(shop.flows)
    with pytest.raises(InvalidTransition, match="swallowed the exception that suspends it"):
        engine.start("job", run_id="r")
    assert kinds(engine, "r") == ["run_created", "run_started"]
    assert shop.calls == []
    assert "swallowed" in engine.failures()[0].reason


def test_finally_blocks_run_at_a_suspension_but_ask_for_nothing(shop: Shop, make_engine: MakeEngine) -> None:
    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> str:
        try:
            return ctx.step("a", "note", "work")
        finally:
            ctx.step("b", "note", "always")

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    assert (engine.result("r", timeout=0), shop.calls) == ("work", ["work", "always"])


def test_drift_is_not_deterministic_even_if_the_workflow_catches_it(
    shop: Shop, make_engine: MakeEngine
) -> None:
    say = ["one"]

    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> str:
        try:
            ctx.step("a", "note", say[0])
        except Exception:
            return "caught"
        ctx.wait_signal("w", "x")
        return "done"

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    say[0] = "two"
    with pytest.raises(NonDeterministic, match=r'step a input differs: history="one"; replay="two"'):
        engine.drive("r")
    assert [each.run_id for each in engine.failures()] == ["r"]
    say[0] = "one"
    engine.drive("r")
    assert engine.failures() == []


def test_one_is_not_true_in_an_input(shop: Shop, make_engine: MakeEngine) -> None:
    say: list[Any] = [1]

    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> None:
        ctx.step("a", "note", {"x": say[0]})
        ctx.wait_signal("w", "x")

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    for other in (True, 1.0):
        say[0] = other
        with pytest.raises(NonDeterministic):
            engine.drive("r")


# -- values, timeouts, and what ends a step --------------------------------------------------------------


@pytest.mark.parametrize("output", [{1, 2}, float("nan"), {1: 2}, datetime(2001, 1, 1), b"x"])
def test_an_output_json_can_not_hold_fails_the_step_without_retry(
    output: Any, shop: Shop, make_engine: MakeEngine
) -> None:
    calls: list[int] = []

    @shop.flows.step
    def bad() -> Any:
        calls.append(1)
        return output

    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> str:
        try:
            ctx.step("bad", bad)
        except StepFailed as failure:
            return failure.error
        return "no"

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    assert "SerializationError: output of bad" in engine.result("r", timeout=0)
    assert calls == [1]


def test_an_output_above_a_mebibyte_fails_the_step(shop: Shop, make_engine: MakeEngine) -> None:
    @shop.flows.step
    def big() -> str:
        return "x" * (1024 * 1024)

    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> None:
        ctx.step("big", big)

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    with pytest.raises(RunFailed, match="PayloadTooLarge"):
        engine.result("r", timeout=0)


def test_inputs_json_can_not_hold_are_refused_before_anything_is_written(
    shop: Shop, make_engine: MakeEngine
) -> None:
    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> None: ...

    engine = make_engine(shop.flows)
    with pytest.raises(SerializationError, match=r"input\.items\[1\] must be a finite number"):
        engine.start("job", {"items": [1, float("inf")]}, run_id="r")
    assert engine.list_runs() == []


def test_a_result_that_is_changed_by_the_workflow_is_fresh_at_the_next_replay(
    shop: Shop, make_engine: MakeEngine
) -> None:
    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> list[Any]:
        found = ctx.step("a", "note", [1])
        found.append(2)
        ctx.step("b", "note", 0)
        return found

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    assert engine.result("r", timeout=0) == [1, 2]
    assert engine.snapshot("r").steps["a"].output == [1]


def test_a_step_that_runs_out_of_time_is_tried_again(
    shop: Shop, make_engine: MakeEngine, clock: VirtualClock
) -> None:
    ended: list[tuple[int, object]] = []

    @shop.flows.step(timeout=5)
    def slow(_: object, invocation: StepInvocation) -> str:
        if invocation.attempt == 1:
            ended.append((invocation.attempt, invocation.token.wait(100)))
        return f"attempt {invocation.attempt}"

    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> str:
        return ctx.step("slow", slow)

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    assert (engine.result("r", timeout=0), ended, clock.monotonic()) == ("attempt 2", [(1, True)], 5.0)
    retried = next(e.event for e in engine.history("r") if e.event.type == "step_retrying")
    assert retried.error == "Timeout: slow took longer than 5 s"  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_leaves_the_step_running_for_redelivery(
    error: type[BaseException], shop: Shop, make_engine: MakeEngine
) -> None:
    attempts: list[tuple[int, str]] = []

    @shop.flows.step
    def fragile() -> str:
        step = current_step()
        assert step is not None
        attempts.append((step.attempt, step.idempotency_key))
        if len(attempts) == 1:
            raise error
        return "ok"

    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> str:
        return ctx.step("f", fragile)

    engine = make_engine(shop.flows)
    with pytest.raises(error):
        engine.start("job", run_id="r")
    assert engine.snapshot("r").steps["f"].status == "running"
    engine.drive("r")
    assert engine.result("r", timeout=0) == "ok"
    assert attempts == [(1, "flow.step.v1/1/r1:f/1")] * 2
    assert current_step() is None


# -- gather ------------------------------------------------------------------------------------------------


def test_gather_answers_in_order_and_fails_with_the_first_in_order(
    shop: Shop, make_engine: MakeEngine
) -> None:
    @shop.flows.step
    def fail(what: str) -> None:
        raise ValueError(what)

    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> Any:
        good = ctx.gather([ctx.call(name, "note", name) for name in "cab"])
        try:
            ctx.gather(
                [
                    ctx.call("x", "note", 1),
                    ctx.call("y", fail, "second", retry=RetryPolicy.none()),
                    ctx.call("z", fail, "third", retry=RetryPolicy.none()),
                ]
            )
        except StepFailed as failure:
            return [good, failure.step_id]
        return ctx.gather([])

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    assert engine.result("r", timeout=0) == [["c", "a", "b"], "y"]
    assert {step.status for step in engine.snapshot("r").steps.values()} == {"completed", "failed"}


def test_gather_with_a_delayed_retry_suspends_until_it_is_due(
    shop: Shop, make_engine: MakeEngine, clock: VirtualClock
) -> None:
    @shop.flows.step
    def flaky(_: object, invocation: StepInvocation) -> int:
        if invocation.attempt == 1:
            raise ValueError("first")
        return invocation.attempt

    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> Any:
        return ctx.gather([ctx.call("a", flaky, retry=RetryPolicy.fixed(2, 10)), ctx.call("b", "note", "b")])

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    assert engine.snapshot("r").status == RunStatus.SUSPENDED
    assert engine.next_wakeup() == clock.now() + timedelta(seconds=10)
    clock.advance(10)
    engine.drive("r")
    assert (engine.result("r", timeout=0), shop.calls) == ([2, "b"], ["b"])


# -- deciders ------------------------------------------------------------------------------------------------


def test_a_decider_that_raises_leaves_the_run_as_it_was(shop: Shop, make_engine: MakeEngine) -> None:
    broken = [True]

    @shop.flows.decider
    def job(ctx: WorkflowContext) -> Any:
        if broken[0]:
            raise OSError("no config")
        return ctx.complete("ok")

    engine = make_engine(shop.flows)
    with pytest.raises(OSError, match="no config"):
        engine.start("job", run_id="r")
    assert engine.snapshot("r").status == RunStatus.RUNNING
    broken[0] = False
    assert engine.drive("r").output == "ok"


@pytest.mark.parametrize("answer", [None, 7, "complete"])
def test_a_decider_must_return_a_command(answer: Any, shop: Shop, make_engine: MakeEngine) -> None:
    shop.flows.decider(lambda ctx: answer, name="job")
    engine = make_engine(shop.flows)
    with pytest.raises(InvalidTransition, match=r"must return a command such as ctx\.complete"):
        engine.start("job", run_id="r")


def test_each_form_refuses_the_calls_of_the_other(shop: Shop, make_engine: MakeEngine) -> None:
    shop.flows.decider(lambda ctx: ctx.step("a", "note", 1), name="decider")
    shop.flows.workflow(lambda ctx: ctx.schedule_step("a", "note", 1), name="straight")
    engine = make_engine(shop.flows)
    with pytest.raises(InvalidTransition, match=r"ctx\.step belongs to straight-line workflows"):
        engine.start("decider")
    with pytest.raises(InvalidTransition, match=r"ctx\.schedule_step belongs to deciders"):
        engine.start("straight")


def test_a_context_is_of_no_use_after_its_decision(shop: Shop, make_engine: MakeEngine) -> None:
    kept: list[WorkflowContext] = []

    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> None:
        kept.append(ctx)

    make_engine(shop.flows).start("job")
    with pytest.raises(RuntimeError, match="belongs to a decision that is over"):
        kept[0].step("a", "note", 1)


# -- limits, and what is not known --------------------------------------------------------------------------


def test_a_drive_asks_at_most_max_replays_times_and_the_next_goes_on(
    shop: Shop, make_engine: MakeEngine
) -> None:
    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> int:
        return sum(ctx.step(f"s{number}", "note", number) for number in range(7))

    engine = make_engine(shop.flows, max_replays=3)
    for taken in (3, 6):
        with pytest.raises(ReplayLimitExceeded, match="asked its workflow 3 times"):
            engine.start("job", run_id="r")
        assert len(shop.calls) == taken
    engine.drive("r")
    assert (engine.result("r", timeout=0), shop.calls) == (21, [0, 1, 2, 3, 4, 5, 6])


def test_an_unknown_step_is_not_written_and_what_was_done_is_kept(
    shop: Shop, make_engine: MakeEngine
) -> None:
    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> str:
        ctx.step("a", "note", 1)
        return ctx.step("b", "gone", 1)

    engine = make_engine(shop.flows, MemoryEventStore())
    with pytest.raises(UnknownStep, match="no step 'gone' is registered here"):
        engine.start("job", run_id="r")
    assert kinds(engine, "r")[-1] == "step_completed"
    shop.flows.step(lambda: "found", name="gone")
    engine.drive("r")
    assert (engine.result("r", timeout=0), shop.calls) == ("found", [1])


# -- what is too large, and who must not call ---------------------------------------------------------------

BIG = "x" * (1024 * 1024)


def big_output(ctx: WorkflowContext) -> str:
    ctx.step("pay", "note", 1)
    return BIG


def big_input(ctx: WorkflowContext) -> None:
    ctx.step("pay", "note", 1)
    ctx.step("next", "note", BIG)


def big_member(ctx: WorkflowContext) -> None:
    ctx.step("pay", "note", 1)
    ctx.gather([ctx.call("next", "note", BIG)])


@pytest.mark.parametrize("body", [big_output, big_input, big_member])
def test_what_is_too_large_after_a_step_fails_the_run_and_the_step_stays_done(
    body: Callable[..., Any], shop: Shop, make_engine: MakeEngine
) -> None:
    shop.flows.workflow(body, name="job")
    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    with pytest.raises(RunFailed, match="PayloadTooLarge: "):
        engine.result("r", timeout=0)
    assert (shop.calls, engine.snapshot("r").steps["pay"].status) == ([1], "completed")


def test_a_decider_that_asks_for_what_is_too_large_keeps_the_step_before(
    shop: Shop, make_engine: MakeEngine
) -> None:
    @shop.flows.decider
    def job(ctx: WorkflowContext) -> Any:
        return ctx.complete(BIG) if ctx.step_completed("pay") else ctx.schedule_step("pay", "note", 1)

    engine = make_engine(shop.flows)
    for _ in range(3):
        with pytest.raises(PayloadTooLarge):
            engine.start("job", run_id="r")
    assert (shop.calls, kinds(engine, "r")[-1]) == ([1], "step_completed")


def test_a_signal_is_kept_whatever_the_workflow_makes_of_it(shop: Shop, make_engine: MakeEngine) -> None:
    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> str:
        ctx.wait_signal("w", "x")
        return BIG

    engine = make_engine(shop.flows)
    engine.start("job", run_id="r")
    with pytest.raises(PayloadTooLarge, match="signal 'x'"):
        engine.signal("r", "x", BIG)
    engine.signal("r", "x", 1)
    assert engine.snapshot("r").status == RunStatus.FAILED
    assert "signal_received" in kinds(engine, "r")


@pytest.mark.parametrize("call", ["start", "drive", "result", "signal", "cancel"])
def test_a_workflow_that_calls_the_engine_about_its_own_run_is_told(
    call: str, shop: Shop, make_engine: MakeEngine
) -> None:
    engine = make_engine(shop.flows)

    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> None:
        {
            "start": lambda: engine.start("job", run_id=ctx.run_id),
            "drive": lambda: engine.drive(ctx.run_id),
            "result": lambda: engine.result(ctx.run_id),
            "signal": lambda: engine.signal(ctx.run_id, "x"),
            "cancel": lambda: engine.cancel(ctx.run_id),
        }[call]()

    engine.start("job", run_id="r")
    with pytest.raises(RunFailed, match="ReentrantCall: "):
        engine.result("r", timeout=0)


def test_a_slow_subscriber_does_not_starve_the_others(
    shop: Shop, make_engine: MakeEngine, clock: VirtualClock
) -> None:
    fast: list[Any] = []

    @shop.flows.workflow
    def job(ctx: WorkflowContext) -> None:
        for number in range(10):
            ctx.step(f"s{number}", "note", number)

    engine = make_engine(shop.flows, subscribers=[lambda _: clock.sleep(1.0), fast.append])
    engine.start("job", run_id="r")
    clock.advance(1.0)
    assert [each.sequence for each in fast] == list(range(1, 34))
    clock.advance(40.0)
