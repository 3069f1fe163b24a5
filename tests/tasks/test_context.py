"""What a running body can ask and say."""

from __future__ import annotations

import logging
import math
from datetime import timedelta

import pytest

from supervisor import (
    BackoffPolicy,
    Canceled,
    CancelReason,
    CancelToken,
    Fail,
    OutcomeKind,
    Supervisor,
    TaskContext,
    TaskSpec,
    current_context,
)
from supervisor.testing import VirtualClock
from tests.bodies import sleeps

SECOND = BackoffPolicy.constant(1)


def test_a_body_knows_its_name_its_id_and_its_attempt(supervisor) -> None:
    seen: list[tuple[str, int, int]] = []

    def body(ctx: TaskContext) -> None:
        seen.append((ctx.name, ctx.id, ctx.attempt))
        if ctx.attempt < 3:
            raise Fail("boom")

    handle = supervisor.add(TaskSpec.restartable("t", body, backoff=SECOND))
    handle.wait()
    assert seen == [("t", handle.id, 1), ("t", handle.id, 2), ("t", handle.id, 3)]


def test_a_context_says_whose_it_is(supervisor) -> None:
    handle = supervisor.add(TaskSpec.once("t", repr, args=()))
    assert handle.wait().value == f"<TaskContext 't' #{handle.id} attempt 1>"


def test_without_a_timeout_there_is_no_deadline(supervisor) -> None:
    handle = supervisor.add(TaskSpec.once("t", lambda ctx: (ctx.deadline, ctx.remaining())))
    assert handle.wait().value == (None, None)


def test_the_deadline_is_an_instant_of_the_monotonic_clock_and_the_rest_shrinks(supervisor, clock) -> None:
    seen: list[tuple[float | None, float | None]] = []

    def body(ctx: TaskContext) -> None:
        for seconds in (0, 2, 3, 4):
            clock.sleep(seconds)
            seen.append((ctx.deadline, ctx.remaining()))

    clock.advance(100)
    supervisor.add(TaskSpec.once("t", body, timeout=5)).wait()
    assert seen == [(105.0, 5.0), (105.0, 3.0), (105.0, 0.0), (105.0, 0.0)]


def test_the_logger_is_named_after_the_task(supervisor) -> None:
    handle = supervisor.add(TaskSpec.once("t", lambda ctx: ctx.logger))
    assert handle.wait().value is logging.getLogger("supervisor.task.t")


# -- waiting


def test_wait_is_false_when_its_time_is_over_and_true_when_the_task_is_to_stop(supervisor, clock) -> None:
    seen: list[tuple[bool, float]] = []

    def body(ctx: TaskContext) -> None:
        for timeout in (2, timedelta(seconds=3), 0, 0.0, 100, None, 7):
            seen.append((ctx.wait(timeout), clock.monotonic()))

    handle = supervisor.add(TaskSpec.once("t", body))
    clock.advance(50)
    assert seen == [(False, 2.0), (False, 5.0), (False, 5.0), (False, 5.0)]
    handle.remove()
    handle.wait()
    assert seen[4:] == [(True, 50.0), (True, 50.0), (True, 50.0)]


def test_sleep_raises_canceled_with_the_reason(supervisor, clock) -> None:
    seen: list[object] = []

    def body(ctx: TaskContext) -> None:
        ctx.sleep(2)
        ctx.sleep(timedelta(seconds=3))
        try:
            ctx.sleep(100)
        except Canceled as error:
            seen.append((error.reason, clock.monotonic()))
            raise

    handle = supervisor.add(TaskSpec.once("t", body))
    clock.advance(7)
    handle.cancel()
    assert seen == [(CancelReason.REQUESTED, 7.0)]
    assert handle.wait().kind is OutcomeKind.CANCELED


def test_check_raises_only_once_the_task_is_to_stop(supervisor, clock) -> None:
    def body(ctx: TaskContext) -> None:
        ctx.check()
        clock.sleep(5)
        ctx.check()
        raise AssertionError("not reached")

    handle = supervisor.add(TaskSpec.once("t", body))
    clock.advance(1)
    handle.remove()
    assert handle.wait().kind is OutcomeKind.CANCELED


@pytest.mark.parametrize("call", ["wait", "sleep", "child"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (-1, "ValueError: {} must not be negative, got -1"),
        (math.nan, "ValueError: {} must be a number, got nan"),
        (True, "TypeError: {} must be seconds (a number or a timedelta), got True"),
        ("1", "TypeError: {} must be seconds (a number or a timedelta), got '1'"),
    ],
)
def test_a_wrong_duration_is_refused(supervisor, call, value, reason) -> None:
    outcome = supervisor.add(TaskSpec.once("t", lambda ctx: getattr(ctx, call)(value))).wait()
    assert outcome.reason == reason.format("seconds" if call == "sleep" else "timeout")


def test_sleep_needs_a_duration(supervisor) -> None:
    outcome = supervisor.add(TaskSpec.once("t", lambda ctx: ctx.sleep(None))).wait()
    assert outcome.reason == "TypeError: seconds must be seconds (a number or a timedelta), got None"


@pytest.mark.parametrize("seconds", [1e12, 1e300, math.inf])
def test_a_very_long_sleep_is_legal_and_ends_with_a_request(supervisor, clock, seconds) -> None:
    handle = supervisor.add(TaskSpec.once("t", sleeps, args=(seconds,)))
    clock.advance(10_000)
    assert handle.cancel()
    assert handle.wait().kind is OutcomeKind.CANCELED


def test_many_threads_of_a_body_may_wait_on_its_context(supervisor, clock) -> None:
    woken: list[float] = []

    def body(ctx: TaskContext) -> None:
        def helper() -> None:
            ctx.wait()
            woken.append(clock.monotonic())

        helpers = [clock.spawn(helper, f"helper {n}") for n in range(3)]
        for each in helpers:
            each.join()

    handle = supervisor.add(TaskSpec.once("t", body))
    clock.advance(5)
    handle.cancel()
    assert woken == [5.0, 5.0, 5.0]


# -- why it is to stop


def test_the_reason_tells_a_request_a_shutdown_a_deadline_and_a_replacement_apart(
    make_supervisor, clock
) -> None:
    from supervisor import Admission

    supervisor = make_supervisor()
    seen: dict[str, object] = {}

    def body(ctx: TaskContext) -> None:
        assert (ctx.canceled, ctx.cancel_reason) == (False, None)
        ctx.wait()
        assert ctx.canceled
        seen[ctx.name] = ctx.cancel_reason

    supervisor.add(TaskSpec.once("late", body, timeout=1)).wait()
    supervisor.add(TaskSpec.once("removed", body))
    clock.settle()
    supervisor.cancel("removed")
    supervisor.submit(TaskSpec.once("replaced", body), slot="s")
    clock.settle()
    supervisor.submit(TaskSpec.once("successor", lambda: None), slot="s", admission=Admission.REPLACE).wait()
    supervisor.add(TaskSpec.once("left", body))
    clock.settle()
    supervisor.shutdown()
    assert seen == {
        "late": CancelReason.TIMEOUT,
        "removed": CancelReason.REQUESTED,
        "replaced": CancelReason.REPLACED,
        "left": CancelReason.SHUTDOWN,
    }


# -- on_cancel


def test_callbacks_run_once_in_order_on_the_thread_that_cancels(supervisor, clock) -> None:
    import threading

    calls: list[tuple[str, int]] = []

    def body(ctx: TaskContext) -> None:
        for name in ("first", "second"):
            ctx.on_cancel(lambda name=name: calls.append((name, threading.get_ident())))
        ctx.wait()

    handle = supervisor.add(TaskSpec.once("t", body))
    clock.settle()
    assert handle.remove()
    assert not handle.remove()
    me = threading.get_ident()
    assert calls == [("first", me), ("second", me)]


def test_a_callback_registered_after_the_cancellation_runs_at_once(supervisor, clock) -> None:
    calls: list[str] = []

    def body(ctx: TaskContext) -> None:
        ctx.wait()
        ctx.on_cancel(lambda: calls.append("at once"))
        calls.append("after")

    handle = supervisor.add(TaskSpec.once("t", body))
    clock.settle()
    handle.cancel()
    assert calls == ["at once", "after"]


def test_what_a_callback_raises_is_logged_and_hurts_nobody(supervisor, clock, caplog) -> None:
    calls: list[str] = []

    def body(ctx: TaskContext) -> None:
        ctx.on_cancel(lambda: 1 / 0)
        ctx.on_cancel(lambda: calls.append("next"))
        ctx.wait()
        ctx.on_cancel(lambda: 1 / 0)

    handle = supervisor.add(TaskSpec.once("t", body))
    clock.settle()
    with caplog.at_level(logging.ERROR, "supervisor"):
        assert handle.cancel()
    assert calls == ["next"]
    told = [record.getMessage().partition("\n")[0] for record in caplog.records]
    assert told == ["an on_cancel callback failed"] * 2
    assert handle.wait().kind is OutcomeKind.CANCELED


def test_a_registration_can_be_taken_back(supervisor, clock) -> None:
    calls: list[str] = []

    def body(ctx: TaskContext) -> None:
        undo = ctx.on_cancel(lambda: calls.append("undone"))
        undo()
        undo()
        ctx.wait()

    handle = supervisor.add(TaskSpec.once("t", body))
    clock.settle()
    handle.cancel()
    assert calls == []


def test_a_callback_is_forgotten_when_its_attempt_ends(supervisor, clock) -> None:
    calls: list[int] = []

    def body(ctx: TaskContext) -> None:
        attempt = ctx.attempt
        ctx.on_cancel(lambda: calls.append(attempt))
        if attempt == 1:
            raise Fail("boom")
        ctx.wait()

    handle = supervisor.add(TaskSpec.restartable("t", body, backoff=SECOND))
    clock.advance(1)
    handle.cancel()
    assert calls == [2]


def test_a_callback_that_cannot_be_called_is_refused(supervisor) -> None:
    outcome = supervisor.add(TaskSpec.once("t", lambda ctx: ctx.on_cancel(5))).wait()
    assert outcome.reason == "TypeError: on_cancel needs a callable, got 5"


# -- child


def test_a_child_is_canceled_with_its_task(supervisor, clock) -> None:
    children: list[CancelToken] = []

    def body(ctx: TaskContext) -> None:
        children.append(ctx.child())
        ctx.wait()
        children.append(ctx.child())

    handle = supervisor.add(TaskSpec.once("t", body))
    clock.settle()
    assert not children[0].canceled
    handle.cancel()
    assert [child.reason for child in children] == [CancelReason.REQUESTED] * 2


def test_canceling_a_child_leaves_the_task_alone(supervisor) -> None:
    def body(ctx: TaskContext) -> object:
        child = ctx.child()
        assert child.cancel()
        return child.canceled, ctx.canceled

    assert supervisor.add(TaskSpec.once("t", body)).wait().value == (True, False)


@pytest.mark.parametrize("timeout", [2, timedelta(seconds=2)])
def test_a_child_with_a_timeout_is_canceled_when_it_is_over(supervisor, clock, timeout) -> None:
    def body(ctx: TaskContext) -> object:
        child = ctx.child(timeout)
        assert child.wait(1.5) is False
        assert child.wait() is True
        return child.reason, clock.monotonic(), ctx.canceled

    outcome = supervisor.add(TaskSpec.once("t", body)).wait()
    assert outcome.value == (CancelReason.TIMEOUT, 2.0, False)


def test_callbacks_of_a_child_run_when_its_time_is_over(supervisor, clock) -> None:
    def body(ctx: TaskContext) -> object:
        called = clock.latch()
        ctx.child(2).on_cancel(called.open)
        called.wait()
        return clock.monotonic()

    assert supervisor.add(TaskSpec.once("t", body)).wait().value == 2.0


# -- current_context


def test_the_context_is_found_without_a_parameter(supervisor) -> None:
    def deep_inside() -> tuple[str, int]:
        context = current_context()
        assert context is not None
        return context.name, context.attempt

    def body() -> tuple[str, int]:
        if deep_inside()[1] == 1:
            raise Fail("boom")
        return deep_inside()

    assert supervisor.add(TaskSpec.restartable("t", body, backoff=SECOND)).wait().value == ("t", 2)


def test_the_context_found_is_the_one_that_is_given(supervisor) -> None:
    outcome = supervisor.add(TaskSpec.once("t", lambda ctx: current_context() is ctx)).wait()
    assert outcome.value is True


def test_two_bodies_at_once_find_each_its_own(supervisor, clock) -> None:
    def body(ctx: TaskContext) -> bool:
        ctx.sleep(1)
        return current_context() is ctx

    handles = supervisor.add_all([TaskSpec.once(name, body) for name in "abc"])
    assert [handle.wait().value for handle in handles] == [True] * 3


def test_there_is_no_context_outside_a_body(supervisor, clock) -> None:
    seen: list[object] = [current_context()]
    supervisor.subscribe(lambda event: seen.append(current_context()), kinds=["task_removed"])
    supervisor.add(TaskSpec.once("t", lambda: None)).wait()
    clock.settle()
    assert seen == [None, None]


def test_a_thread_started_by_a_body_finds_none_unless_it_is_handed_the_contextvars(supervisor, clock) -> None:
    from contextvars import copy_context

    def body(ctx: TaskContext) -> list[object]:
        found: list[object] = []

        def look() -> None:
            found.append(current_context())

        contextvars = copy_context()
        for work in (look, lambda: contextvars.run(look)):
            clock.spawn(work, "helper").join()
        return [each is ctx if each is not None else None for each in found]

    assert supervisor.add(TaskSpec.once("t", body)).wait().value == [None, True]


def test_a_task_added_by_a_body_has_a_context_of_its_own(supervisor) -> None:
    def child() -> str:
        context = current_context()
        assert context is not None
        return context.name

    def parent() -> object:
        return supervisor.add(TaskSpec.once("child", child)).wait().value

    assert supervisor.add(TaskSpec.once("parent", parent)).wait().value == "child"


def test_a_thread_that_a_body_leaves_behind_is_told_to_stop_when_the_attempt_ends(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    woken: list[tuple[int, float]] = []

    def left(ctx: TaskContext, attempt: int) -> None:
        ctx.wait()
        woken.append((attempt, clock.monotonic()))

    def body(ctx: TaskContext) -> None:
        attempt = ctx.attempt
        clock.spawn(lambda: left(ctx, attempt), f"left {attempt}")
        ctx.sleep(1.0)
        if attempt == 1:
            raise ValueError("again")

    supervisor.add(TaskSpec.restartable("t", body, backoff=BackoffPolicy.constant(5.0))).wait()
    clock.settle()
    assert woken == [(1, 1.0), (2, 7.0)]


def test_the_context_of_a_finished_task_counts_as_canceled(supervisor: Supervisor) -> None:
    kept: list[TaskContext] = []
    supervisor.add(TaskSpec.once("t", kept.append)).wait()
    assert kept[0].canceled
    assert kept[0].wait(None)
