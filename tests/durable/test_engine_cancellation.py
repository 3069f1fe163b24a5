"""Cancellation: what the workflow sees, what it may still do, and how the run ends."""

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
    RunFailed,
    RunNotFound,
    RunTerminal,
    StepFailed,
    StepInvocation,
    StoreError,
)
from supervisor.testing import FaultyStore, VirtualClock
from tests.durable.flowing import Steps, at, events, plain, pump, types

MakeEngine = Callable[..., FlowEngine]


@pytest.fixture
def steps(clock: VirtualClock) -> Steps:
    made = Steps()

    @made.runtime.step
    def listens(data: Any, invocation: StepInvocation) -> str:
        """Run until the token is canceled, and end as canceled."""
        made.note(invocation)
        invocation.token.wait()
        invocation.token.check()
        return "never"

    @made.runtime.step
    def deaf(seconds: float, invocation: StepInvocation) -> float:
        made.note(invocation)
        clock.sleep(seconds)
        return seconds

    return made


def sleeper(steps: Steps, clean_up: Callable[[Any], Any]) -> Callable[..., Any]:
    """A workflow that works, sleeps, and cleans up when it is canceled."""

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.step("before", steps.echo, 1)
        try:
            ctx.sleep("long", 1000.0)
            ctx.step("after", steps.echo, 2)
        except Canceled:
            return clean_up(ctx)

    return flow


# -- the request -----------------------------------------------------------------------------------


def test_a_workflow_without_clean_up_is_cancelled_at_once(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> None:
        ctx.sleep("long", 1000.0)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.cancel("r", "enough")
    assert types(engine)[3:] == ["run_cancellation_requested", "run_cancelled"]
    found = engine.snapshot("r")
    assert (found.status, found.waits["long"].status) == ("cancelled", "cancelled")
    assert found.cancellation_request is not None
    assert (found.cancellation_request.reason, found.cancellation_request.at) == ("enough", at(0))
    assert engine.next_wakeup() is None
    with pytest.raises(Canceled, match="enough"):
        engine.result("r")


def test_a_second_request_is_a_no_op_and_another_reason_a_conflict(
    make_engine: MakeEngine, steps: Steps
) -> None:
    engine = make_engine(steps.runtime)
    engine.start(sleeper(steps, lambda ctx: ctx.wait_signal("cleaned", "ok")), run_id="r")
    engine.cancel("r", "enough")
    before = engine.history("r")
    assert engine.snapshot("r").status == "cancelling"
    engine.cancel("r", "enough")
    for reason in (None, "other"):
        with pytest.raises(RunConflict, match="'enough'"):
            engine.cancel("r", reason)
    assert engine.history("r") == before
    engine.signal("r", "ok")
    assert engine.snapshot("r").status == "cancelled"
    for call in (engine.cancel, engine.force_cancel):
        with pytest.raises(RunTerminal):
            call("r", "enough")
        with pytest.raises(RunNotFound):
            call("none")


def test_the_reason_is_the_text_of_the_exception(make_engine: MakeEngine, steps: Steps) -> None:
    found: list[str] = []
    engine = make_engine(steps.runtime)
    engine.start(sleeper(steps, lambda ctx: found.append(str(ctx.cancellation_request.reason))), run_id="a")
    engine.cancel("a", "too late")
    engine.start("flow", run_id="b")
    engine.cancel("b")
    assert found == ["too late", "None"]
    with pytest.raises(Canceled, match="run 'b' was cancelled"):
        engine.result("b")


# -- clean-up --------------------------------------------------------------------------------------


def test_canceled_is_raised_at_the_same_point_at_every_replay(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    """Clean-up of several steps and waits: each of them replays what came before."""
    trace: list[list[str]] = []

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        mine: list[str] = []
        trace.append(mine)
        for number in range(5):
            try:
                mine.append(f"s{number}")
                ctx.step(f"s{number}", steps.echo, number)
                ctx.sleep(f"w{number}", 10.0)
            except Canceled:
                mine.append("canceled")
                break
        ctx.step("undo-1", steps.echo, 1)
        ctx.sleep("undo-wait", 5.0)
        ctx.gather([ctx.call("undo-2", steps.echo, 2), ctx.call("undo-3", steps.flaky, 1)])
        mine.append("end")
        return "whatever"

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    clock.advance(10.0)
    engine.resume_scheduled_run("r", clock.now())
    trace.clear()
    engine.cancel("r")
    assert engine.snapshot("r").status == "cancelling"
    pump(engine, clock)
    assert engine.snapshot("r").status == "cancelled"
    assert {tuple(each) for each in trace[:-1]} == {("s0", "s1", "canceled")}
    assert trace[-1] == ["s0", "s1", "canceled", "end"]
    assert steps.ids[:3] == ["s0", "s1", "undo-1"]
    assert clock.monotonic() == 15.0
    assert engine.failures() == []


@pytest.mark.parametrize("output", ["value", None])
def test_a_workflow_that_ignores_the_request_runs_to_its_end_and_is_cancelled(
    make_engine: MakeEngine, steps: Steps, output: Any
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.wait_signal("w", "go")
        except Canceled:
            pass
        ctx.step("a", steps.echo, 1)
        ctx.step("b", steps.echo, 2)
        return output

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.cancel("r")
    assert (engine.snapshot("r").status, engine.snapshot("r").output) == ("cancelled", None)
    assert steps.ids == ["a", "b"]


def test_finally_blocks_may_clean_up(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.wait_signal("w", "go")
        finally:
            ctx.step("undo", steps.echo, 1)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert steps.ids == []  # a suspension is no clean-up
    engine.cancel("r")
    assert (engine.snapshot("r").status, steps.ids) == ("cancelled", ["undo"])


def test_nested_finally_blocks_clean_up_from_the_inside_out(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            try:
                ctx.sleep("w", 99.0)
            finally:
                ctx.step("inner", steps.echo, 1)
        finally:
            ctx.step("outer", steps.echo, 2)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.cancel("r")
    assert (engine.snapshot("r").status, steps.ids) == ("cancelled", ["inner", "outer"])


def test_an_exception_of_the_clean_up_fails_the_run(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start(
        sleeper(steps, lambda ctx: ctx.step("undo", steps.broken, "no", retry=RetryPolicy.none())), run_id="r"
    )
    engine.cancel("r")
    assert engine.snapshot("r").status == "failed"
    with pytest.raises(RunFailed, match="no"):
        engine.result("r")


def test_a_failure_of_clean_up_can_be_caught(make_engine: MakeEngine, steps: Steps) -> None:
    def clean_up(ctx: Any) -> Any:
        try:
            ctx.step("undo", steps.broken, "no", retry=RetryPolicy.none())
        except StepFailed:
            ctx.step("note", steps.echo, 1)

    engine = make_engine(steps.runtime)
    engine.start(sleeper(steps, clean_up), run_id="r")
    engine.cancel("r")
    assert (engine.snapshot("r").status, steps.ids) == ("cancelled", ["before", "undo", "note"])


def test_clean_up_may_wait_for_a_retry(make_engine: MakeEngine, steps: Steps, clock: VirtualClock) -> None:
    engine = make_engine(steps.runtime)
    engine.start(
        sleeper(steps, lambda ctx: ctx.step("undo", steps.flaky, 2, retry=RetryPolicy.fixed(3, 7.0))),
        run_id="r",
    )
    clock.advance(3.0)
    engine.cancel("r")
    assert (engine.snapshot("r").status, engine.next_wakeup()) == ("cancelling", at(10))
    pump(engine, clock)
    assert (engine.snapshot("r").status, clock.monotonic()) == ("cancelled", 17.0)


@pytest.mark.parametrize(
    ("again", "text"),
    [
        (lambda ctx: ctx.sleep("long", 1000.0), "wait 'long' of run 'r' was cancelled"),
        (lambda ctx: ctx.step("open", "deaf", 1.0), "step 'open' of run 'r' was cancelled"),
    ],
)
def test_clean_up_needs_ids_of_its_own(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock, again: Callable[[Any], Any], text: str
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            if ctx.input:
                ctx.step("open", "deaf", 1.0)
            ctx.sleep("long", 1000.0)
        except Canceled:
            try:
                again(ctx)
            except Exception:
                return "swallowed"

    engine = make_engine(steps.runtime)
    if "step" in text:
        thread = clock.spawn(lambda: _caught(lambda: engine.start(flow, True, run_id="r")), "caller")
        clock.advance(0.5)
        engine.cancel("r")
        thread.join()
    else:
        engine.start(flow, False, run_id="r")
        with pytest.raises(InvalidTransition, match=text):
            engine.cancel("r")
    assert [each.run_id for each in engine.failures()] == ["r"]
    assert text in engine.failures()[0].reason
    engine.force_cancel("r")
    assert (engine.snapshot("r").status, engine.failures()) == ("cancelled", [])


def _caught(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except InvalidTransition as error:
        return error


def test_a_sleep_in_clean_up_counts_from_the_request(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    engine.start(sleeper(steps, lambda ctx: ctx.sleep("calm", 5.0)), run_id="r")
    clock.advance(100.0)
    engine.cancel("r")
    assert engine.snapshot("r").waits["calm"].resume_at == at(105)


def test_clean_up_may_use_signals_that_nobody_took(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start(
        sleeper(steps, lambda ctx: ctx.step("undo", steps.echo, ctx.wait_signal("w", "ok"))), run_id="r"
    )
    engine.signal("r", "ok", 5)
    engine.cancel("r")
    assert engine.snapshot("r").status == "cancelled"
    assert engine.snapshot("r").steps["undo"].output == 5


# -- while steps run -------------------------------------------------------------------------------


def test_a_request_cancels_the_token_of_the_step_that_runs(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.step("s", "listens")
        except Canceled:
            ctx.step("undo", steps.echo, 1)

    engine = make_engine(steps.runtime)
    thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
    clock.advance(3.0)
    engine.cancel("r", "stop")
    thread.join()
    assert clock.monotonic() == 3.0
    found = engine.snapshot("r")
    assert (found.status, found.steps["s"].status) == ("cancelled", "cancelled")
    assert steps.ids == ["s", "undo"]
    assert not steps.seen[1].token.canceled


@pytest.mark.parametrize("outcome", ["completed", "failed"])
def test_what_the_last_step_returns_after_the_request_does_not_count(
    make_engine: MakeEngine, clock: VirtualClock, outcome: str
) -> None:
    steps, seen = Steps(), list[str]()

    @steps.runtime.step
    def deaf() -> str:
        clock.sleep(5.0)
        if outcome == "failed":
            raise OSError("no")
        return "done"

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            return ctx.step("s", deaf)
        except Canceled:
            seen.append("canceled")

    engine = make_engine(steps.runtime)
    thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
    clock.advance(1.0)
    engine.cancel("r")
    thread.join()
    assert clock.monotonic() == 5.0
    found = engine.snapshot("r")
    assert (found.status, found.steps["s"].status, seen) == ("cancelled", "cancelled", ["canceled"])
    assert types(engine)[4:] == ["run_cancellation_requested", "run_cancelled"]


def test_a_step_that_cancels_its_own_run_is_not_recorded(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)

    @steps.runtime.step
    def ends(data: Any, invocation: StepInvocation) -> str:
        engine.cancel(invocation.run_id, "by itself")
        assert invocation.token.canceled
        return "done"

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.step("s", ends)

    engine.start(flow, run_id="r")
    assert (engine.snapshot("r").status, engine.snapshot("r").steps["s"].status) == ("cancelled", "cancelled")


def test_canceled_is_raised_by_a_gather_some_of_whose_members_had_ended(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    seen: list[Any] = []

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.gather([ctx.call("a", steps.echo, 1), ctx.call("b", "listens"), ctx.call("c", "deaf", 9.0)])
        except Canceled:
            seen.append([ctx.step_output("a"), ctx.step_completed("b")])
            ctx.gather([ctx.call("x", steps.echo, 1), ctx.call("y", steps.echo, 2)])

    engine = make_engine(steps.runtime)
    thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
    clock.advance(1.0)
    engine.cancel("r")
    thread.join()
    found = engine.snapshot("r")
    assert found.status == "cancelled"
    assert {key: str(each.status) for key, each in found.steps.items()} == {
        "a": "completed",
        "b": "cancelled",
        "c": "cancelled",
        "x": "completed",
        "y": "completed",
    }
    assert seen == [[1, False]] * len(seen)
    assert steps.calls.count(("a", 1)) == 1


def test_a_gather_that_had_ended_before_the_request_is_answered(
    make_engine: MakeEngine, steps: Steps
) -> None:
    seen: list[Any] = []

    def flow(ctx: Any) -> Any:
        seen.append(ctx.gather([ctx.call("a", steps.echo, 1), ctx.call("b", steps.echo, 2)]))
        ctx.sleep("w", 9.0)

    steps.runtime.workflow(flow)
    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    seen.clear()
    engine.cancel("r")
    assert (seen, engine.snapshot("r").status) == ([[1, 2]], "cancelled")


def test_a_failed_member_does_not_hide_the_request(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    caught: list[str] = []

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.gather([ctx.call("a", steps.refused, "no"), ctx.call("b", "listens")])
        except (StepFailed, Canceled) as error:
            caught.append(type(error).__name__)

    engine = make_engine(steps.runtime)
    thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
    clock.advance(1.0)
    engine.cancel("r")
    thread.join()
    assert (caught, engine.snapshot("r").status) == (["Canceled"], "cancelled")


def test_a_delayed_retry_is_given_up(make_engine: MakeEngine, steps: Steps, clock: VirtualClock) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.step("s", steps.broken, "no", retry=RetryPolicy.fixed(5, 60.0))

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.cancel("r")
    assert engine.snapshot("r").steps["s"].status == "cancelled"
    assert engine.list_due_wakeups(at(1e6)) == []


# -- force_cancel ----------------------------------------------------------------------------------


def test_a_forced_end_runs_no_code(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start(sleeper(steps, lambda ctx: ctx.step("undo", steps.echo, 1)), run_id="r")
    engine.force_cancel("r", "now")
    assert types(engine)[-1] == "run_cancelled"
    assert events(engine, "run_cancelled") == [{"reason": "now"}]
    assert steps.ids == ["before"]
    with pytest.raises(Canceled, match="now"):
        engine.result("r")


def test_a_forced_end_tells_the_step_that_runs_and_drops_what_it_returns(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.gather([ctx.call("a", "listens"), ctx.call("b", "deaf", 9.0)])
        return ctx.step("c", steps.echo, 1)

    engine = make_engine(steps.runtime)
    thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
    clock.advance(1.0)
    engine.force_cancel("r")
    before = engine.history("r")
    thread.join()
    clock.advance(20.0)
    assert engine.history("r") == before
    assert sorted(steps.ids) == ["a", "b"]


# -- crashes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step_id", ["undo-1", "undo-2"])
@pytest.mark.parametrize("type", ["step_started", "step_completed"])
def test_a_crash_in_clean_up_goes_on_where_it_was(
    make_engine: MakeEngine, steps: Steps, step_id: str, type: str, after: bool
) -> None:
    def clean_up(ctx: Any) -> None:
        ctx.step("undo-1", steps.echo, 1)
        ctx.step("undo-2", steps.echo, 2)

    inner = MemoryEventStore()
    engine = make_engine(
        steps.runtime,
        FaultyStore(
            inner, lambda each: each.type == type and getattr(each, "step_id", None) == step_id, after
        ),
    )
    engine.start(sleeper(steps, clean_up), run_id="r")
    with pytest.raises(StoreError):
        engine.cancel("r", "enough")
    again = make_engine(steps.runtime, inner)
    assert again.recover() == ["r"] or again.snapshot("r").terminal
    again.drive("r")
    assert again.snapshot("r").status == "cancelled"
    assert [each["step_id"] for each in events(again, "step_completed")] == ["before", "undo-1", "undo-2"]


def test_a_request_whose_acknowledgement_was_lost_may_be_sent_again(
    make_engine: MakeEngine, steps: Steps
) -> None:
    inner = MemoryEventStore()
    broken = FaultyStore(inner, lambda each: each.type == "run_cancellation_requested", after=True)
    engine = make_engine(steps.runtime, broken)
    engine.start(sleeper(steps, lambda ctx: None), run_id="r")
    with pytest.raises(StoreError):
        engine.cancel("r", "enough")
    engine.cancel("r", "enough")
    assert engine.snapshot("r").status == "cancelled"


# -- deciders --------------------------------------------------------------------------------------


def test_a_decider_cleans_up_and_returns_cancel(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        if ctx.cancellation_request is None:
            return ctx.wait_for_signal("w", "go")
        if not ctx.step_completed("undo"):
            return ctx.schedule_step("undo", steps.echo, ctx.cancellation_request.reason)
        return ctx.cancel()

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.cancel("r", "enough")
    assert types(engine)[3:] == [
        "run_cancellation_requested",
        "step_created",
        "step_started",
        "step_completed",
        "run_cancelled",
    ]
    assert engine.snapshot("r").steps["undo"].output == "enough"


def test_a_decider_that_completes_while_cancelling_is_refused(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.wait_for_signal("w", "go") if ctx.cancellation_request is None else ctx.complete(1)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    with pytest.raises(InvalidTransition, match=r"can't complete; return ctx.cancel\(\) or ctx.fail"):
        engine.cancel("r")
    assert types(engine)[-1] == "run_cancellation_requested"
    assert [each.run_id for each in engine.failures()] == ["r"]


def test_a_decider_may_fail_while_cancelling(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.wait_for_signal("w", "go") if ctx.cancellation_request is None else ctx.fail("too late")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.cancel("r")
    assert (engine.snapshot("r").status, engine.snapshot("r").error) == ("failed", "too late")


def test_a_decider_that_cancels_unasked_is_refused(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.cancel()

    engine = make_engine(steps.runtime)
    with pytest.raises(InvalidTransition, match="nobody asked for it"):
        engine.start(flow, run_id="r")


def test_a_straight_line_workflow_that_raises_canceled_unasked_has_failed(
    make_engine: MakeEngine, steps: Steps
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        raise Canceled("by itself")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert (engine.snapshot("r").status, plain(engine.snapshot("r").error)) == (
        "failed",
        "Canceled: by itself",
    )
