"""Cancellation: a request, a clean-up, an end; and an end by force."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from supervisor import Canceled
from supervisor.durable import (
    FlowEngine,
    InvalidTransition,
    MemoryEventStore,
    RetryPolicy,
    RunConflict,
    RunTerminal,
    StepFailed,
    StepInvocation,
    StoreError,
)
from supervisor.testing import FaultyStore, VirtualClock
from tests.durable.flowing import Steps, at, events, on_threads, pump, types

MakeEngine = Callable[..., FlowEngine]


@pytest.fixture
def steps(clock: VirtualClock) -> Steps:
    made = Steps()

    @made.runtime.step
    def listens(data: Any, invocation: StepInvocation) -> str:
        """Wait for the token, then give up as it says."""
        made.note(invocation)
        invocation.token.wait()
        invocation.token.check()
        return "never"

    @made.runtime.step
    def deaf(seconds: float, invocation: StepInvocation) -> str:
        made.note(invocation)
        clock.sleep(seconds)
        return "done"

    @made.runtime.workflow
    def sleeping(ctx: Any) -> Any:
        ctx.sleep("long", 1000.0)

    return made


# -- the request -----------------------------------------------------------------------------------


def test_a_run_that_waits_is_cancelled_in_one_call(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("sleeping", run_id="r")
    engine.cancel("r", "not wanted")
    assert types(engine)[3:] == ["run_cancellation_requested", "run_cancelled"]
    found = engine.snapshot("r")
    assert (found.status, found.waits["long"].status) == ("cancelled", "cancelled")
    assert found.cancellation_request is not None
    assert found.cancellation_request.reason == "not wanted"
    with pytest.raises(Canceled, match="not wanted"):
        engine.result("r", timeout=0)
    assert engine.next_wakeup() is None
    assert engine.list_due_wakeups(at(1e6)) == []


def test_without_a_reason_the_error_names_the_run(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("sleeping", run_id="r")
    engine.cancel("r")
    assert events(engine, "run_cancellation_requested") == [{"request": {}}]
    with pytest.raises(Canceled, match="'r'"):
        engine.result("r", timeout=0)


def test_a_retry_that_waits_is_cancelled_too(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.step("a", steps.flaky, 5, retry=RetryPolicy.fixed(9, 100.0))

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert engine.next_wakeup() == at(100)
    engine.cancel("r")
    found = engine.snapshot("r")
    assert (found.status, found.steps["a"].status) == ("cancelled", "cancelled")
    assert engine.next_wakeup() is None


def test_an_ended_run_can_not_be_cancelled(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("sleeping", run_id="r")
    engine.cancel("r", "x")
    for call in (engine.cancel, engine.force_cancel):
        with pytest.raises(RunTerminal) as raised:
            call("r", "x")
        assert raised.value.status == "cancelled"


# -- clean-up --------------------------------------------------------------------------------------


def test_clean_up_may_wait_and_retry(make_engine: MakeEngine, steps: Steps, clock: VirtualClock) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.sleep("long", 1000.0)
        except Canceled:
            ctx.step("release", steps.flaky, 1, retry=RetryPolicy.fixed(2, 5.0))
            ctx.sleep("settle", 10.0)
            ctx.wait_signal("confirm", "confirmed")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.cancel("r")
    assert engine.snapshot("r").status == "cancelling"
    assert engine.next_wakeup() == at(5)
    engine.cancel("r")  # a second time: nothing new
    assert types(engine).count("run_cancellation_requested") == 1
    with pytest.raises(RunConflict, match="asked to end before, with the reason None"):
        engine.cancel("r", "another reason")
    pump(engine, clock)
    assert clock.monotonic() == 15.0
    assert engine.snapshot("r").status == "cancelling"
    engine.signal("r", "confirmed")
    assert engine.snapshot("r").status == "cancelled"
    assert steps.calls == [("release", 1), ("release", 2)]


def test_a_run_in_clean_up_can_be_ended_by_force(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.sleep("long", 1000.0)
        finally:
            ctx.sleep("hang", 1000.0)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.cancel("r", "please")
    engine.force_cancel("r", "now")
    assert engine.snapshot("r").status == "cancelled"
    assert events(engine, "run_cancelled") == [{"reason": "now"}]


def test_a_step_of_clean_up_that_fails_is_an_exception_as_ever(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.sleep("long", 1000.0)
        except Canceled:
            try:
                ctx.step("release", steps.refused, "gone")
            except StepFailed:
                ctx.step("call", steps.echo, "somebody")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.cancel("r")
    assert (engine.snapshot("r").status, steps.ids) == ("cancelled", ["release", "call"])


def test_results_from_before_the_request_are_still_returned(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    seen: list[Any] = []

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        seen[:] = [ctx.step("a", steps.echo, "A"), ctx.wait_signal("w", "go")]
        try:
            ctx.step("b", "listens")
        except Canceled as canceled:
            seen.append(str(canceled))
            raise

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    thread = clock.spawn(lambda: engine.signal("r", "go", "G"), "caller")
    clock.settle()
    engine.cancel("r", "why")
    thread.join()
    assert seen == ["A", "G", "why"]
    assert (engine.snapshot("r").status, steps.ids) == ("cancelled", ["a", "b"])


def test_canceled_passes_by_except_exception(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        for number in range(3):
            try:
                ctx.sleep(f"w{number}", 1000.0)
            except Exception:
                ctx.step("wrong", steps.echo, 1)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.cancel("r")
    assert (engine.snapshot("r").status, steps.calls) == ("cancelled", [])


def test_canceled_is_raised_once_and_later_calls_work(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        for number in range(3):
            try:
                ctx.sleep(f"w{number}", 1000.0)
            except Canceled:
                pass
        return "to the end"

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.cancel("r")
    assert engine.snapshot("r").status == "cancelling"
    assert engine.snapshot("r").waits["w1"].status == "waiting"


def test_a_decider_is_shown_the_request_and_ends_the_run(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        if ctx.cancellation_request is None:
            return ctx.wait_until("w", at(1000))
        if not ctx.step_completed("undo"):
            return ctx.schedule_step("undo", "echo", ctx.cancellation_request.reason)
        return ctx.cancel()

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.cancel("r", "why")
    assert types(engine)[3:] == [
        "run_cancellation_requested",
        "step_created",
        "step_started",
        "step_completed",
        "run_cancelled",
    ]
    assert events(engine, "run_cancelled") == [{"reason": "why"}]


def test_a_decider_may_fail_a_run_that_was_asked_to_end(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.wait_until("w", at(9)) if ctx.cancellation_request is None else ctx.fail("can't undo")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.cancel("r")
    assert (engine.snapshot("r").status, engine.snapshot("r").error) == ("failed", "can't undo")


@pytest.mark.parametrize("again", ["wait", "complete", "step"])
def test_a_decider_that_goes_on_as_if_nothing_were_is_stopped(
    make_engine: MakeEngine, steps: Steps, again: str
) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        if not ctx.cancellation_request or again == "wait":
            return ctx.wait_until("w", at(1000))
        return ctx.complete("done")

    @steps.runtime.decider
    def stepping(ctx: Any) -> Any:
        return ctx.schedule_step_with_retry("s", "flaky", 3, RetryPolicy.fixed(5, 100.0))

    engine = make_engine(steps.runtime)
    engine.start(stepping if again == "step" else flow, run_id="r")
    with pytest.raises(InvalidTransition):
        engine.cancel("r")
    assert types(engine)[-1] == "run_cancellation_requested"
    assert [each.run_id for each in engine.failures()] == ["r"]
    assert engine.snapshot("r").status == "cancelling"


def test_a_run_that_nobody_cancels_can_not_cancel_itself(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.cancel()

    engine = make_engine(steps.runtime)
    with pytest.raises(InvalidTransition, match="can't cancel itself"):
        engine.start(flow, run_id="r")


def test_straight_code_that_raises_canceled_by_itself_fails(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        raise Canceled("my own idea")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert engine.snapshot("r").status == "failed"
    assert "my own idea" in str(engine.snapshot("r").error)


# -- while a step runs -----------------------------------------------------------------------------


def test_a_step_that_listens_is_told_at_once(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.step("a", "listens")

    engine = make_engine(steps.runtime)
    thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
    clock.advance(3.0)
    engine.cancel("r", "why")
    thread.join()
    assert clock.monotonic() == 3.0
    assert types(engine)[4:] == ["run_cancellation_requested", "run_cancelled"]
    assert steps.calls == [("a", 1)]


@pytest.mark.parametrize("how", ["cancel", "force_cancel"])
def test_what_a_deaf_step_returns_after_the_request_is_dropped(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock, how: str
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.step("a", "deaf", 10.0)

    engine = make_engine(steps.runtime)
    thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
    clock.advance(3.0)
    getattr(engine, how)("r", "why")
    thread.join()
    assert clock.monotonic() == 10.0
    assert types(engine)[-1] == "run_cancelled"
    assert "step_completed" not in types(engine)
    assert (engine.snapshot("r").status, steps.calls) == ("cancelled", [("a", 1)])


def test_a_request_by_another_process_is_seen_when_the_step_has_ended(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.step("a", "deaf", 10.0)
            ctx.step("b", steps.echo, 1)
        except Canceled:
            ctx.step("undo", steps.echo, 2)

    engine = make_engine(steps.runtime)
    thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
    clock.advance(3.0)
    from supervisor.durable.history import RunCancellationRequested

    engine.store.append("r", 4, [RunCancellationRequested({"reason": "x"})], clock.now())
    thread.join()
    assert (engine.snapshot("r").status, steps.ids) == ("cancelled", ["a", "undo"])


@pytest.mark.parametrize("seed", range(8))
def test_cancel_and_completion_race_to_one_end(seed: int) -> None:
    clock, steps, store = VirtualClock(seed), Steps(), MemoryEventStore()

    @steps.runtime.step
    def nap(seconds: float) -> None:
        clock.sleep(seconds)

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        for number in range(4):
            ctx.step(f"s{number}", nap, 1.0)
        return "done"

    with FlowEngine(steps.runtime, store, clock=clock) as engine:

        def cancel(after: float) -> Any:
            clock.sleep(after)
            try:
                engine.cancel("r", "x")
            except RunTerminal:
                return "late"

        found = on_threads(
            clock,
            [lambda: engine.start(flow, run_id="r"), *[lambda n=n: cancel(n) for n in (2.0, 4.0)]],  # type: ignore[misc]
        )
        assert found[0] == "r"
        assert engine.snapshot("r").status == "cancelled"
        ends = [each for each in types(engine) if each in ("run_completed", "run_cancelled")]
        assert ends == ["run_cancelled"]


# -- by force --------------------------------------------------------------------------------------


def test_an_end_by_force_runs_no_clean_up(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.sleep("long", 1000.0)
        finally:
            ctx.step("undo", steps.echo, 1)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.force_cancel("r", "now")
    assert types(engine)[3:] == ["run_cancelled"]
    assert steps.calls == []
    with pytest.raises(Canceled, match="now"):
        engine.result("r", timeout=0)


# -- crashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("event", ["run_cancellation_requested", "run_cancelled"])
def test_a_request_that_was_stored_is_carried_out_by_whoever_recovers(
    make_engine: MakeEngine, steps: Steps, event: str, after: bool
) -> None:
    inner = MemoryEventStore()
    engine = make_engine(steps.runtime, FaultyStore(inner, lambda each: each.type == event, after))
    engine.start("sleeping", run_id="r")
    with pytest.raises(StoreError):
        engine.cancel("r", "x")
    second = make_engine(steps.runtime, inner)
    stored = types(second)[3:]
    if stored == ["run_cancellation_requested"]:
        assert second.recover() == ["r"]
        second.drive("r")
    elif not stored:
        second.cancel("r", "x")
    assert types(second)[3:] == ["run_cancellation_requested", "run_cancelled"]
