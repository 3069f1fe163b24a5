"""Retries as a run lives through them: how often, when, and what follows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from supervisor.durable import (
    FlowEngine,
    InvalidTransition,
    MemoryEventStore,
    RetryPolicy,
    RunFailed,
    StepFailed,
    StepInvocation,
    StoreError,
)
from supervisor.testing import FaultyStore, VirtualClock
from tests.durable.flowing import Steps, at, events, plain, pump, times, types

MakeEngine = Callable[..., FlowEngine]


@pytest.fixture
def steps() -> Steps:
    return Steps()


def asking(steps: Steps, step: str, input: Any, retry: RetryPolicy) -> Callable[..., Any]:
    """A decider that is one step with a policy."""

    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        if ctx.step_completed("s"):
            return ctx.complete(ctx.step_output("s"))
        if ctx.step_failed("s") is not None:
            return ctx.complete("degraded")
        return ctx.schedule_step_with_retry("s", step, input, retry)

    return flow


# -- how often -------------------------------------------------------------------------------------


def test_a_failure_is_retried_at_once_in_the_same_drive(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start(asking(steps, "flaky", 1, RetryPolicy.fixed(2, 0)), run_id="r")
    assert steps.calls == [("s", 1), ("s", 2)]
    found = engine.snapshot("r")
    assert (found.status, found.steps["s"].attempt, found.steps["s"].error) == ("completed", 2, None)
    assert types(engine) == [
        "run_created",
        "run_started",
        "step_created",
        "step_started",
        "step_retrying",
        "step_started",
        "step_completed",
        "run_completed",
    ]
    assert "retry_after" not in events(engine, "step_retrying")[0]


@pytest.mark.parametrize(
    ("policy", "calls"),
    [
        (RetryPolicy.default(), 3),
        (RetryPolicy.none(), 1),
        (RetryPolicy.fixed(4, 0), 4),
        (RetryPolicy.fixed(0, 0), 1),
        (RetryPolicy.fixed(-5, 0), 1),
        (RetryPolicy.exponential(0, 0, 0), 1),
    ],
)
def test_max_attempts_includes_the_first_execution(
    make_engine: MakeEngine, steps: Steps, policy: RetryPolicy, calls: int
) -> None:
    engine = make_engine(steps.runtime)
    engine.start(asking(steps, "broken", "no", policy), run_id="r")
    assert steps.calls == [("s", number) for number in range(1, calls + 1)]
    assert types(engine).count("step_started") == calls


def test_the_last_failure_fails_the_run(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start(asking(steps, "broken", "primary failed", RetryPolicy.none()), run_id="r")
    assert types(engine)[-2:] == ["step_failed", "run_retry_exhausted"]
    (end,) = events(engine, "run_retry_exhausted")
    assert plain(end) == {"step_id": "s", "attempt": 1, "error": "OSError: primary failed"}
    with pytest.raises(RunFailed) as raised:
        engine.result("r", timeout=0)
    assert raised.value.run_id == "r"
    assert plain(raised.value.error) == "OSError: primary failed"


def test_with_continue_the_workflow_sees_the_failure(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        error = ctx.step_failed("primary")
        if error is None:
            return ctx.schedule_step_with_retry(
                "primary", "broken", "down", RetryPolicy.fixed(2, 0).continue_workflow_on_failure()
            )
        if not ctx.step_completed("fallback"):
            return ctx.schedule_step("fallback", "echo", {"reason": error})
        return ctx.complete("degraded")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert steps.calls == [("primary", 1), ("primary", 2), ("fallback", 1)]
    assert engine.result("r") == "degraded"
    assert plain(engine.snapshot("r").steps["fallback"].input) == {"reason": "OSError: down"}
    assert "run_retry_exhausted" not in types(engine)


def test_a_non_retryable_error_ends_the_step_with_attempts_left(
    make_engine: MakeEngine, steps: Steps
) -> None:
    engine = make_engine(steps.runtime)
    engine.start(asking(steps, "refused", "wrong card", RetryPolicy.fixed(5, 1.0)), run_id="r")
    assert steps.calls == [("s", 1)]
    assert types(engine)[-2:] == ["step_non_retryable", "run_failed"]
    assert plain(engine.snapshot("r").error) == "NonRetryable: wrong card"


def test_a_decider_sees_a_non_retryable_error_too(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    policy = RetryPolicy.fixed(5, 1.0).continue_workflow_on_failure()
    engine.start(asking(steps, "refused", "wrong card", policy), run_id="r")
    assert engine.result("r") == "degraded"
    assert types(engine)[-2:] == ["step_non_retryable", "run_completed"]


def test_a_workflow_that_asks_again_for_a_failed_step_is_stopped_at_once(
    make_engine: MakeEngine, steps: Steps
) -> None:
    asked: list[int] = []

    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        asked.append(1)
        return ctx.schedule_step_with_retry(
            "primary", "broken", "no", RetryPolicy.none().continue_workflow_on_failure()
        )

    engine = make_engine(steps.runtime)
    with pytest.raises(InvalidTransition, match="rescheduled terminal step primary"):
        engine.start(flow, run_id="r")
    assert (len(asked), steps.calls) == (2, [("primary", 1)])
    assert types(engine)[-1] == "step_failed"
    assert [each.run_id for each in engine.failures()] == ["r"]


# -- the straight-line form ------------------------------------------------------------------------


def test_in_straight_code_exhaustion_is_an_exception(make_engine: MakeEngine, steps: Steps) -> None:
    found: list[StepFailed] = []

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.step("s", steps.broken, "down")
        except StepFailed as failure:
            found.append(failure)
            return failure.step_id

    engine = make_engine(steps.runtime)
    assert engine.result(engine.start(flow, run_id="r")) == "s"
    assert len(steps.calls) == 3
    assert (found[0].step_id, plain(found[0].error), found[0].attempts) == ("s", "OSError: down", 3)
    assert plain(str(found[0])) == "step 's' failed after 3 attempts: OSError: down"
    assert events(engine, "step_created")[0]["retry"] == {
        "max_attempts": 3,
        "delay_ms": 0,
        "on_exhausted": "continue_workflow",
    }


def test_in_straight_code_an_exhaustion_that_escapes_fails_the_run(
    make_engine: MakeEngine, steps: Steps
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.step("s", steps.broken, "down", retry=RetryPolicy.none())

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert types(engine)[-2:] == ["step_failed", "run_failed"]
    with pytest.raises(RunFailed, match="step 's' failed after 1 attempt: OSError: down"):
        engine.result("r")


def test_in_straight_code_a_non_retryable_error_can_be_caught(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.step("s", steps.refused, "no")
        except StepFailed as failure:
            return [plain(failure.error), failure.attempts]

    engine = make_engine(steps.runtime)
    assert engine.result(engine.start(flow)) == ["NonRetryable: no", 1]


# -- when ------------------------------------------------------------------------------------------


def test_a_delayed_retry_suspends_the_run_until_it_is_due(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    engine.start(asking(steps, "flaky", 1, RetryPolicy.fixed(2, 60.0)), run_id="r")
    found = engine.snapshot("r")
    assert found.status == "suspended"
    assert (found.steps["s"].status, found.steps["s"].retry_after) == ("pending", at(60))
    assert engine.list_due_wakeups(at(59.999)) == []
    assert engine.next_wakeup() == at(60)
    assert engine.resume_scheduled_run("r", at(59.999)) == []
    assert len(steps.calls) == 1
    (due,) = engine.list_due_wakeups(at(120))
    assert (due.kind, due.run_id, due.subject_id, due.due_at) == ("retry", "r", "s", at(60))
    assert engine.resume_scheduled_run("r", at(120)) == [due]
    found = engine.snapshot("r")
    assert (found.status, found.steps["s"].attempt, found.steps["s"].retry_after) == ("completed", 2, None)


def test_driving_a_run_early_does_not_start_its_retry(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    flow = asking(steps, "flaky", 1, RetryPolicy.fixed(2, 60.0))
    engine.start(flow, run_id="r")
    clock.advance(59.999)
    engine.drive("r")
    engine.start(flow, run_id="r")
    assert (len(steps.calls), len(engine.history("r"))) == (1, 5)
    clock.advance(0.001)
    assert engine.drive("r").status == "completed"


def test_the_delay_counts_from_the_failure(make_engine: MakeEngine, clock: VirtualClock) -> None:
    steps = Steps()

    @steps.runtime.step
    def slow(data: Any, invocation: StepInvocation) -> str:
        clock.sleep(45.0)
        if invocation.attempt == 1:
            raise OSError
        return "done"

    engine = make_engine(steps.runtime)
    engine.start(asking(steps, "slow", None, RetryPolicy.fixed(2, 10.0)), run_id="r")
    assert engine.snapshot("r").steps["s"].retry_after == at(55)
    assert times(engine, "step_retrying") == [45.0]


def test_the_delay_counts_from_the_cutoff_if_that_is_later(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start(asking(steps, "broken", "no", RetryPolicy.fixed(4, 10.0)), run_id="r")
    assert engine.snapshot("r").steps["s"].retry_after == at(10)
    engine.drive("r", at(1000))
    assert engine.snapshot("r").steps["s"].retry_after == at(1010)
    engine.resume_scheduled_run("r", at(1010))
    assert engine.snapshot("r").steps["s"].retry_after == at(1020)
    assert steps.calls == [("s", 1), ("s", 2), ("s", 3)]


def test_a_drive_with_a_future_cutoff_uses_one_attempt(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start(asking(steps, "broken", "no", RetryPolicy.exponential(9, 0.001, 5.0)), run_id="r")
    for calls in (2, 3, 4):
        engine.drive("r", at(100 * calls))
        assert len(steps.calls) == calls


def test_a_cutoff_in_the_past_makes_nothing_due_that_is_later(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    engine.start(asking(steps, "broken", "no", RetryPolicy.fixed(3, 10.0)), run_id="r")
    clock.advance(30.0)
    engine.drive("r", at(9))
    assert len(steps.calls) == 1
    engine.drive("r", at(10))
    assert engine.snapshot("r").steps["s"].retry_after == at(40)


def test_exponential_delays_are_the_drawn_ones(make_engine: MakeEngine, clock: VirtualClock) -> None:
    steps = Steps()

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.step("capture-payment", steps.flaky, 7, retry=RetryPolicy.exponential(8, 1.0, 30.0))

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="order-42")
    pump(engine, clock)
    assert engine.result("order-42", timeout=0) == 8
    delays = [0.060, 0.676, 3.654, 6.420, 10.692, 13.941, 14.243]
    assert times(engine, "step_retrying", "order-42") == [
        pytest.approx(sum(delays[:number]), abs=1e-9) for number in range(7)
    ]
    assert clock.monotonic() == pytest.approx(sum(delays), abs=1e-9)


def test_the_instant_of_a_retry_is_written_once_and_never_recomputed(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    store = MemoryEventStore()
    flow = asking(steps, "flaky", 1, RetryPolicy.exponential(2, 30.0, 60.0))
    make_engine(steps.runtime, store).start(flow, run_id="r")
    due = store.next_scheduled_wakeup()
    for _ in range(5):  # as many restarts within the delay
        clock.advance(0.001)
        engine = make_engine(steps.runtime, store)
        engine.start(flow, run_id="r")
        engine.close()
        assert store.next_scheduled_wakeup() == due
    assert len(steps.calls) == 1


@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy.fixed(3, timedelta(days=365 * 9000)),
        RetryPolicy.fixed(3, (2**63 - 1) / 1001),
        RetryPolicy.exponential(3, 1.0, timedelta(days=365 * 9000)),
    ],
)
@pytest.mark.parametrize("batch", [False, True])
def test_a_delay_that_no_instant_can_hold_is_refused_before_any_event_or_call(
    make_engine: MakeEngine, steps: Steps, policy: RetryPolicy, batch: bool
) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        asked = ctx.schedule_step_with_retry("s", "broken", "no", policy)
        return ctx.schedule_steps([ctx.schedule_step("first", "echo", 1), asked]) if batch else asked

    engine = make_engine(steps.runtime)
    with pytest.raises(InvalidTransition, match=f"{policy.longest_ms} ms, which can't be represented"):
        engine.start(flow, run_id="r")
    assert (steps.calls, len(engine.history("r"))) == ([], 2)


# -- crashes ---------------------------------------------------------------------------------------


def fault_at(type: str, after: bool = False) -> tuple[MemoryEventStore, FaultyStore]:
    inner = MemoryEventStore()
    return inner, FaultyStore(inner, lambda event: event.type == type, after)


def test_a_crash_while_a_step_runs_delivers_the_same_attempt_again(
    make_engine: MakeEngine, steps: Steps
) -> None:
    inner, broken = fault_at("step_completed")
    flow = asking(steps, "echo", 7, RetryPolicy.none())
    with pytest.raises(StoreError):
        make_engine(steps.runtime, broken).start(flow, run_id="r")
    engine = make_engine(steps.runtime, inner)
    assert engine.recover() == ["r"]
    assert engine.drive("r").output == 7
    assert steps.calls == [("s", 1), ("s", 1)]
    assert steps.seen[0].idempotency_key == steps.seen[1].idempotency_key
    assert types(engine).count("step_started") == types(engine).count("step_completed") == 1


def test_crashes_use_no_attempts_up(make_engine: MakeEngine, steps: Steps) -> None:
    inner, broken = fault_at("step_completed")
    flow = asking(steps, "echo", 7, RetryPolicy.fixed(2, 0))
    for _ in range(5):
        with pytest.raises(StoreError):
            make_engine(steps.runtime, broken).start(flow, run_id="r")
    assert steps.calls == [("s", 1)] * 5
    assert make_engine(steps.runtime, inner).drive("r").steps["s"].attempt == 1


def test_a_crash_between_the_failure_and_the_end_of_the_run_is_made_good_first(
    make_engine: MakeEngine, steps: Steps
) -> None:
    """The end is written before any workflow code runs: none is known here."""
    inner, broken = fault_at("run_retry_exhausted")
    with pytest.raises(StoreError):
        make_engine(steps.runtime, broken).start(
            asking(steps, "broken", "no", RetryPolicy.none()), run_id="r"
        )
    assert inner.read("r")[-1].event.type == "step_failed"
    engine = make_engine(Steps().runtime, inner)
    assert engine.recover() == ["r"]
    assert engine.drive("r").status == "failed"
    assert (types(engine)[-1], len(steps.calls)) == ("run_retry_exhausted", 1)


def test_a_cancellation_that_comes_in_between_does_not_change_that_end(
    make_engine: MakeEngine, steps: Steps
) -> None:
    inner, broken = fault_at("run_retry_exhausted")
    with pytest.raises(StoreError):
        make_engine(steps.runtime, broken).start(
            asking(steps, "broken", "no", RetryPolicy.none()), run_id="r"
        )
    engine = make_engine(steps.runtime, inner)
    engine.cancel("r", "changed my mind")
    assert engine.snapshot("r").status == "failed"
    assert types(engine)[-2:] == ["run_cancellation_requested", "run_retry_exhausted"]
    assert len(steps.calls) == 1
