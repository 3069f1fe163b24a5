"""Steps that run at once: order, failures, retries, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from supervisor.durable import (
    FlowEngine,
    InvalidTransition,
    MemoryEventStore,
    RetryPolicy,
    StepFailed,
    StepInvocation,
    StoreError,
)
from supervisor.testing import FaultyStore, VirtualClock
from tests.durable.flowing import Steps, Tape, at, events, plain, pump, times, types

MakeEngine = Callable[..., FlowEngine]
ONCE = RetryPolicy.none()


@pytest.fixture
def steps(clock: VirtualClock) -> Steps:
    made = Steps()

    @made.runtime.step
    def nap(seconds: float, invocation: StepInvocation) -> float:
        made.note(invocation)
        clock.sleep(seconds)
        return seconds

    @made.runtime.step
    def fail_after(seconds: float, invocation: StepInvocation) -> None:
        made.note(invocation)
        clock.sleep(seconds)
        raise OSError(f"after {seconds:g} s")

    @made.runtime.step
    def until_told(data: Any, invocation: StepInvocation) -> str:
        """Wait for the token; say how long that was."""
        made.note(invocation)
        invocation.token.wait()
        return f"told at {clock.monotonic():g}"

    return made


def gathering(steps: Steps, *calls: tuple[str, str, Any]) -> Callable[..., Any]:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.gather([ctx.call(step_id, step, data, retry=ONCE) for step_id, step, data in calls])

    return flow


def batching(steps: Steps, *calls: tuple[str, str, Any, RetryPolicy]) -> Callable[..., Any]:
    """A decider that is one batch."""

    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        ids = [step_id for step_id, *_ in calls]
        if all(ctx.step_completed(each) or ctx.step_failed(each) is not None for each in ids):
            return ctx.complete([ctx.step_output(each) for each in ids])
        return ctx.schedule_steps([ctx.schedule_step_with_retry(*each) for each in calls])

    return flow


# -- at once ---------------------------------------------------------------------------------------


def test_members_run_at_once_and_are_answered_in_the_order_given(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    engine.start(gathering(steps, ("a", "nap", 3.0), ("b", "nap", 1.0), ("c", "nap", 2.0)), run_id="r")
    assert engine.result("r", timeout=0) == [3.0, 1.0, 2.0]
    assert clock.monotonic() == 3.0
    assert times(engine, "step_completed") == [1.0, 2.0, 3.0]
    assert [each["step_id"] for each in events(engine, "step_completed")] == ["b", "c", "a"]


def test_all_starts_are_durable_before_any_member_is_called(make_engine: MakeEngine, steps: Steps) -> None:
    store = Tape(MemoryEventStore())
    engine = make_engine(steps.runtime, store)
    engine.start(gathering(steps, ("a", "nap", 2.0), ("b", "nap", 1.0)), run_id="r")
    assert store.appends == [
        ["run_created", "run_started", "step_created", "step_created", "step_started", "step_started"],
        ["step_completed"],
        ["step_completed", "run_completed"],
    ]


def test_a_fast_member_is_durable_while_a_slow_one_runs(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    flow = gathering(steps, ("slow", "nap", 100.0), ("fast", "nap", 1.0))
    thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
    clock.advance(1.0)
    found = engine.snapshot("r")
    assert (found.steps["fast"].status, found.steps["slow"].status) == ("completed", "running")
    assert found.status == "running"
    thread.join()
    assert clock.monotonic() == 100.0


def test_an_empty_gather_is_an_empty_list(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start(gathering(steps), run_id="r")
    assert engine.result("r") == []
    assert types(engine) == ["run_created", "run_started", "run_completed"]


def test_a_gather_of_one_is_a_step(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start(gathering(steps, ("a", "echo", 1)), run_id="r")
    assert (engine.result("r"), steps.calls) == ([1], [("a", 1)])


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_the_order_of_arrival_does_not_matter(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock, order: tuple[str, ...]
) -> None:
    """Each order, and a crash after each prefix of it."""
    calls = [(each, "nap", float(order.index(each) + 1)) for each in "abc"]
    flow = gathering(steps, *calls)
    expected = [seconds for _, _, seconds in calls]
    for prefix in range(4):
        inner, done = MemoryEventStore(), [0]

        def fails(event: Any, done: list[int] = done, prefix: int = prefix) -> bool:
            done[0] += event.type == "step_completed"
            return done[0] > prefix

        run_id = f"r{prefix}"
        steps.calls.clear()
        engine = make_engine(steps.runtime, FaultyStore(inner, fails))
        if prefix < 3:
            with pytest.raises(StoreError):
                engine.start(flow, run_id=run_id)
        else:
            engine.start(flow, run_id=run_id)
        engine.close()
        clock.advance(10.0)
        after = make_engine(steps.runtime, inner)
        assert after.drive(run_id).output == expected
        assert after.failures() == []
        assert [steps.ids.count(each) for each in order] == [1] * prefix + [2] * (3 - prefix)


def test_a_batch_larger_than_the_threads_for_it_ends_all_the_same(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    engine.start(gathering(steps, *[(f"s{n}", "nap", 1.0) for n in range(300)]), run_id="r")
    assert engine.result("r") == [1.0] * 300
    assert clock.monotonic() == 3.0  # 128 at once


# -- failures in straight-line code ----------------------------------------------------------------


def test_gather_raises_the_first_failure_in_argument_order_once_all_have_ended(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    found: list[Any] = []

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.gather(
                [
                    ctx.call("well", "nap", 9.0, retry=ONCE),
                    ctx.call("late", "fail_after", 5.0, retry=ONCE),
                    ctx.call("early", "fail_after", 1.0, retry=ONCE),
                ]
            )
        except StepFailed as failure:
            found.append((failure.step_id, plain(failure.error)))
            return ctx.step("well", "nap", 9.0, retry=ONCE)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert engine.result("r") == 9.0
    assert found == [("late", "OSError: after 5 s")]
    assert (clock.monotonic(), sorted(steps.ids)) == (9.0, ["early", "late", "well"])


def test_members_that_failed_are_tried_again_together(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    twice = RetryPolicy.fixed(2, 10.0)

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        calls = [ctx.call(each, steps.flaky, 1, retry=twice) for each in ("a", "b")]
        calls.append(ctx.call("c", steps.flaky, 1, retry=RetryPolicy.fixed(2, 20.0)))
        return ctx.gather([*calls, ctx.call("d", steps.echo, 4)])

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert engine.snapshot("r").status == "suspended"
    assert sorted(each.subject_id for each in engine.list_due_wakeups(at(100))) == ["a", "b", "c"]
    clock.advance(10.0)
    due = engine.resume_scheduled_run("r", clock.now())
    assert [each.subject_id for each in due] == ["a", "b"]
    assert sorted(steps.calls[4:]) == [("a", 2), ("b", 2)]
    assert engine.snapshot("r").steps["c"].retry_after == at(20)
    pump(engine, clock)
    assert engine.result("r") == [2, 2, 2, 4]
    assert clock.monotonic() == 20.0


def test_a_failure_in_a_batch_that_may_be_retried_at_once_starts_the_next_round(
    make_engine: MakeEngine, steps: Steps
) -> None:
    engine = make_engine(steps.runtime)
    three = RetryPolicy.fixed(3, 0)
    engine.start(batching(steps, ("a", "flaky", 2, three), ("b", "flaky", 1, three)), run_id="r")
    assert engine.result("r") == [3, 2]
    assert steps.calls == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3)]


def test_members_whose_policy_continues_fail_alone(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    go_on = ONCE.continue_workflow_on_failure()
    engine.start(batching(steps, ("bad", "broken", "no", go_on), ("well", "nap", 5.0, ONCE)), run_id="r")
    assert engine.result("r") == [None, 5.0]


# -- failures that end the run ---------------------------------------------------------------------


def test_a_failure_that_fails_the_run_does_not_wait_for_the_others(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    flow = batching(
        steps,
        ("slow", "nap", 50.0, ONCE),
        ("bad", "fail_after", 1.0, ONCE),
        ("done", "echo", 1, ONCE),
    )
    thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
    clock.advance(1.0)
    thread.join(0.0)
    assert clock.monotonic() == 1.0
    found = engine.snapshot("r")
    assert (found.status, plain(found.error)) == ("failed", "OSError: after 1 s")
    assert {key: str(each.status) for key, each in found.steps.items()} == {
        "slow": "cancelled",
        "bad": "failed",
        "done": "completed",
    }
    assert types(engine)[-3:] == ["step_failed", "step_cancelled", "run_retry_exhausted"]
    assert events(engine, "step_cancelled") == [
        {
            "step_id": "slow",
            "attempt": 1,
            "reason": "given up because step 'bad' failed for good; its outcome is unknown",
        }
    ]
    before = engine.history("r")
    clock.advance(60.0)  # the slow one ends, and nobody minds
    assert engine.history("r") == before


def test_the_others_are_asked_to_stop(make_engine: MakeEngine, steps: Steps, clock: VirtualClock) -> None:
    told: list[float] = []

    @steps.runtime.step
    def listens(data: Any, invocation: StepInvocation) -> None:
        invocation.token.wait()
        told.append(clock.monotonic())

    engine = make_engine(steps.runtime)
    flow = batching(steps, ("a", "listens", None, ONCE), ("bad", "fail_after", 2.0, ONCE))
    engine.start(flow, run_id="r")
    clock.settle()
    assert told == [2.0]


def test_a_member_that_waits_for_its_retry_is_given_up_too(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    flow = batching(
        steps,
        ("later", "broken", "again", RetryPolicy.fixed(5, 3600.0)),
        ("bad", "fail_after", 2.0, ONCE),
    )
    engine.start(flow, run_id="r")
    assert engine.snapshot("r").steps["later"].status == "cancelled"
    assert engine.next_wakeup() is None
    assert engine.list_due_wakeups(at(1e6)) == []


def test_a_non_retryable_member_fails_the_run(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start(
        batching(steps, ("a", "nap", 5.0, ONCE), ("bad", "refused", "no", RetryPolicy.default())), run_id="r"
    )
    assert types(engine)[-3:] == ["step_non_retryable", "step_cancelled", "run_failed"]


@pytest.mark.parametrize("event", ["step_cancelled", "run_retry_exhausted"])
@pytest.mark.parametrize("after", [False, True])
def test_an_ending_that_was_interrupted_is_finished_without_calling_anything(
    make_engine: MakeEngine, steps: Steps, event: str, after: bool
) -> None:
    inner = MemoryEventStore()
    broken = FaultyStore(inner, lambda each: each.type == event, after)
    flow = batching(steps, ("a", "nap", 5.0, ONCE), ("bad", "broken", "no", ONCE))
    with pytest.raises(StoreError):
        make_engine(steps.runtime, broken).start(flow, run_id="r")
    calls = list(steps.calls)
    engine = make_engine(steps.runtime, inner)
    engine.drive("r")
    assert types(engine)[-3:] == ["step_failed", "step_cancelled", "run_retry_exhausted"]
    assert steps.calls == calls


# -- what is refused -------------------------------------------------------------------------------


def test_an_empty_batch_is_refused(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.schedule_steps([])

    engine = make_engine(steps.runtime)
    with pytest.raises(InvalidTransition, match="must not be empty"):
        engine.start(flow, run_id="r")
    assert types(engine) == ["run_created", "run_started"]


def test_an_id_that_occurs_twice_is_refused_in_both_forms(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.decider
    def decided(ctx: Any) -> Any:
        return ctx.schedule_steps([ctx.schedule_step("a", "echo", each) for each in (1, 2)])

    @steps.runtime.workflow
    def straight(ctx: Any) -> Any:
        try:
            ctx.gather([ctx.call("a", steps.echo, each) for each in (1, 2)])
        except Exception:
            return "swallowed"

    engine = make_engine(steps.runtime)
    for workflow in (decided, straight):
        with pytest.raises(InvalidTransition, match="'a' occurs twice"):
            engine.start(workflow, run_id=workflow.__name__)
        assert types(engine, workflow.__name__) == ["run_created", "run_started"]
    assert steps.calls == []


@pytest.mark.parametrize("step_id", ["", "  ", "a\nb", "x" * 501, 7])
def test_an_id_that_is_blank_or_unprintable_is_refused(
    make_engine: MakeEngine, steps: Steps, step_id: Any
) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.schedule_steps([ctx.schedule_step(step_id, "echo", 1)])

    engine = make_engine(steps.runtime)
    with pytest.raises((ValueError, TypeError), match="step_id"):
        engine.start(flow, run_id="r")
    assert types(engine) == ["run_created", "run_started"]


def test_a_batch_that_has_ended_and_is_asked_for_again_is_refused(
    make_engine: MakeEngine, steps: Steps
) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.schedule_steps([ctx.schedule_step(each, "echo", 1) for each in "ab"])

    engine = make_engine(steps.runtime)
    with pytest.raises(InvalidTransition, match="rescheduled terminal step a"):
        engine.start(flow, run_id="r")
    assert steps.ids == ["a", "b"]


def test_what_gather_gets_must_come_from_call(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.gather([1, 2])

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert "gather takes a list of what ctx.call returns, got 1 in it" in str(engine.snapshot("r").error)


def test_call_only_describes(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.call("a", steps.echo, 1)
        return "nothing ran"

    engine = make_engine(steps.runtime)
    assert engine.result(engine.start(flow, run_id="r")) == "nothing ran"
    assert (steps.calls, len(engine.history("r"))) == ([], 3)


# -- somebody else appends while a batch runs ------------------------------------------------------


def test_a_signal_that_comes_while_a_batch_runs_disturbs_no_member(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    flow = gathering(steps, ("a", "nap", 2.0), ("b", "nap", 4.0), ("c", "nap", 6.0))
    thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
    for number in range(3):
        clock.advance(1.9)
        engine.signal("r", "go", number)
    thread.join()
    assert engine.result("r") == [2.0, 4.0, 6.0]
    assert steps.ids == ["a", "b", "c"]
    assert types(engine).count("signal_received") == 3


@pytest.mark.parametrize("early", [False, True])
def test_a_cancellation_reaches_every_member_of_a_batch(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock, early: bool
) -> None:
    """Also when the driver sees the request, as it records another member, before it is told of it."""
    engine = make_engine(steps.runtime)
    flow = gathering(steps, ("short", "nap", 1.0), ("long", "until_told", None))
    if early:  # what another process does: the request is in the store, and nobody here is told
        other = make_engine(steps.runtime, engine.store)
        thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
        clock.advance(0.5)
        other.commit("r", lambda _: [_request()])
    else:
        thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
        clock.advance(1.5)
        engine.cancel("r")
    thread.join()
    assert clock.monotonic() == (1.0 if early else 1.5)
    assert engine.snapshot("r").status == "cancelled"


def _request() -> Any:
    from supervisor.durable.history import RunCancellationRequested

    return RunCancellationRequested({})


def test_a_forced_end_reaches_the_members_of_a_batch_in_clean_up(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    """Even when another event came in between: the members still run under the token they were given."""
    from supervisor import Canceled

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.sleep("long", 1000.0)
        except Canceled:
            ctx.gather([ctx.call("a", "nap", 2.0), ctx.call("b", "until_told")])

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    thread = clock.spawn(lambda: engine.cancel("r"), "caller")
    clock.advance(1.0)
    engine.signal("r", "go")
    clock.advance(2.0)
    engine.force_cancel("r")
    thread.join()
    assert clock.monotonic() == 3.0
    assert engine.snapshot("r").status == "cancelled"


@pytest.mark.parametrize("how", ["cancel", "force_cancel", "close"])
def test_members_that_had_not_begun_are_not_called_any_more(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock, how: str
) -> None:
    engine = make_engine(steps.runtime)
    flow = gathering(steps, *[(f"s{n}", "nap", 1.0) for n in range(200)])
    thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
    clock.advance(0.5)
    engine.close() if how == "close" else getattr(engine, how)("r")
    thread.join()
    assert len(steps.calls) == 128
    assert str(engine.snapshot("r").status) == ("running" if how == "close" else "cancelled")


def test_members_that_had_not_begun_are_not_called_after_a_failure_of_the_run(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    naps = [(f"s{n}", "nap", 1.0, ONCE) for n in range(200)]
    engine.start(batching(steps, ("bad", "fail_after", 0.5, ONCE), *naps), run_id="r")
    clock.advance(5.0)
    assert len(steps.calls) == 128
    assert engine.snapshot("r").status == "failed"
