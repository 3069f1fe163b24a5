"""The budget for one run: what it covers, what it ends, and when."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from supervisor import Canceled, CancelReason, CancelToken, Fail, Fatal
from supervisor.flows import (
    FlowTimeout,
    JoinConfig,
    JoinStrategy,
    Pending,
    Resources,
    RetryExhausted,
    StateEntered,
    Workflow,
    poll,
    timer,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.bodies import Scripted
from tests.flows.walking import DOUBLING, S, Timed, Walk, failure, one


@pytest.mark.parametrize("limit", [5.0, 5, timedelta(seconds=5)])
def test_a_run_that_takes_longer_ends_at_its_limit(clock: VirtualClock, limit: Any) -> None:
    walk = Walk(clock, one(lambda res, run: run.token.sleep(60)).with_total_timeout(limit)).finish()
    assert type(walk.error) is FlowTimeout
    assert isinstance(walk.error, TimeoutError)
    assert (walk.error.elapsed, walk.error.limit, walk.ended) == (5.0, 5.0, 5.0)
    assert (walk.error.state, walk.error.path) == (S.A, (S.A,))
    assert "5 s" in str(walk.error)


def test_it_covers_all_states_together(clock: VirtualClock) -> None:
    workflow = one(lambda res, run: run.token.sleep(3) or S.B).register(
        S.B, lambda res, run: run.token.sleep(3) or S.DONE
    )
    error = failure(clock, workflow.with_total_timeout(5.0))
    assert (error.state, error.path) == (S.B, (S.A, S.B))
    assert Walk(clock, workflow.with_total_timeout(6.001)).finish().result is S.DONE


def test_it_ends_an_endless_cycle(clock: VirtualClock) -> None:
    walk = Walk(clock, one(lambda res, run: run.token.sleep(1) or S.A).with_total_timeout(100.5)).finish()
    assert type(walk.error) is FlowTimeout
    assert len(walk.error.path) == 101


@pytest.mark.parametrize("where", ["backoff", "poll", "timer", "split", "nested", "queue"])
def test_it_covers_every_kind_of_wait(clock: VirtualClock, where: str) -> None:
    def sleep(res: Any, run: Any) -> None:
        run.token.sleep(1e6)

    inner = Workflow().register("i", sleep).add_exit_state("end")
    workflows = {
        "backoff": one(Scripted(Fail("no")), max_retries=99, backoff=DOUBLING),
        "poll": one(poll(lambda res: Pending(0.75))),
        "timer": one(timer(1e6, S.DONE)),
        "split": Workflow().register_split(S.A, [sleep] * 3, JoinConfig(JoinStrategy.ALL, S.DONE)),
        "queue": Workflow().register_split(
            S.A, [sleep] * 3, JoinConfig(JoinStrategy.ALL, S.DONE, bulkhead=1)
        ),
        "nested": one(lambda res, run: inner.run("i", token=run.token, clock=clock)),
    }
    walk = Walk(clock, workflows[where].add_exit_state(S.DONE).with_total_timeout(5.0)).finish()
    assert type(walk.error) is FlowTimeout
    assert (walk.error.limit, walk.ended) == (5.0, 5.0)


def test_a_split_is_not_waited_for_although_its_branches_are_deaf(clock: VirtualClock) -> None:
    timed = Timed(clock)
    join = JoinConfig(JoinStrategy.ALL, S.DONE)
    workflow = Workflow().register_split(S.A, [timed(60, "a", deaf=True)], join).add_exit_state(S.DONE)
    walk = Walk(clock, workflow.with_total_timeout(5.0)).finish()
    assert (type(walk.error), walk.ended) == (FlowTimeout, 5.0)
    clock.advance(60.0)


@pytest.mark.parametrize("ends", [S.DONE, S.B, ValueError("late"), Fatal("late"), None])
def test_a_deaf_body_decides_nothing_any_more_once_the_time_is_over(clock: VirtualClock, ends: Any) -> None:
    later: list[int] = []
    body = Scripted(ends)
    workflow = one(lambda: clock.sleep(20.0) or body(), max_retries=5).register(
        S.B, lambda: later.append(1) or S.DONE
    )
    walk = Walk(clock, workflow.with_total_timeout(5.0)).finish()
    assert type(walk.error) is FlowTimeout
    assert (walk.ended, walk.error.elapsed, walk.error.limit) == (20.0, 20.0, 5.0)
    assert (body.calls, later) == (1, [])


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(3)])
def test_an_interrupt_is_never_hidden_by_the_timeout(clock: VirtualClock, interrupt: BaseException) -> None:
    body = Scripted(interrupt)
    assert failure(clock, one(lambda: clock.sleep(20.0) or body()).with_total_timeout(5.0)) is interrupt


def test_a_run_that_ends_at_its_very_limit_has_won(clock: VirtualClock) -> None:
    assert (
        Walk(clock, one(lambda: clock.sleep(5.0) or S.DONE).with_total_timeout(5.0)).finish().result is S.DONE
    )
    walk = Walk(
        clock, one(lambda: clock.sleep(5.0) or S.B).register(S.B, lambda: S.DONE).with_total_timeout(5.0)
    )
    assert walk.finish().result is S.DONE


def test_the_clock_decides_and_not_who_looks_first(clock: VirtualClock, monkeypatch: Any) -> None:
    """A body that returns too late has lost, even if the thread of the deadlines has slept over it."""
    from supervisor.kernel.deadlines import Deadlines

    call_at = Deadlines.call_at
    monkeypatch.setattr(Deadlines, "call_at", lambda self, when, *rest: call_at(self, when + 1.0, *rest))
    for ends in (S.DONE, ValueError("late")):
        body = Scripted(ends)
        error = failure(clock, one(lambda body=body: clock.sleep(5.1) or body()).with_total_timeout(5.0))
        assert type(error) is FlowTimeout
        assert error.elapsed == 5.1


def test_errors_in_time_are_not_masked(clock: VirtualClock) -> None:
    assert type(failure(clock, one(lambda: 1 / 0).with_total_timeout(5.0))) is ZeroDivisionError
    error = failure(clock, one(Scripted(Fail("no")), max_retries=1, backoff=DOUBLING).with_total_timeout(5.0))
    assert type(error) is RetryExhausted


def test_a_shorter_timeout_of_an_attempt_comes_first(clock: VirtualClock) -> None:
    error = failure(clock, one(lambda res, run: run.token.sleep(60), timeout=2.0).with_total_timeout(5.0))
    assert (error.limit, error.attempt) == (2.0, 1)


def test_the_body_is_told_at_the_limit(clock: VirtualClock) -> None:
    seen: list[Any] = []

    def body(res: Any, run: Any) -> S:
        run.token.on_cancel(lambda: seen.append(("callback", clock.monotonic())))
        run.token.wait()
        seen.append((run.token.reason, clock.monotonic()))
        return S.DONE

    failure(clock, one(body).with_total_timeout(5.0))
    clock.settle()
    assert sorted(seen, key=str) == sorted([("callback", 5.0), (CancelReason.TIMEOUT, 5.0)], key=str)


def test_no_state_is_entered_after_the_limit(clock: VirtualClock, recorder: EventRecorder) -> None:
    failure(clock, one(lambda: clock.sleep(9.0) or S.DONE).with_total_timeout(5.0), subscribers=[recorder])
    assert [event.state for event in recorder.of(StateEntered)] == ["S.A"]


def test_set_up_and_tear_down_are_not_counted(clock: VirtualClock) -> None:
    class Slow:
        def setup(self) -> None:
            clock.sleep(60.0)

        def teardown(self) -> None:
            clock.sleep(60.0)

    workflow = Workflow(Resources(slow=Slow())).register(S.A, lambda: S.DONE).add_exit_state(S.DONE)
    walk = Walk(clock, workflow.with_total_timeout(5.0)).finish()
    assert (walk.result, walk.ended) == (S.DONE, 120.0)


@pytest.mark.parametrize("limit", [None, 0, 0.0, timedelta(0), float("inf")])
def test_none_and_zero_are_no_limit(clock: VirtualClock, limit: Any) -> None:
    workflow = one(lambda: clock.sleep(1e5) or S.DONE).with_total_timeout(5.0).with_total_timeout(limit)
    assert Walk(clock, workflow).finish().result is S.DONE


def test_each_run_has_the_whole_budget(clock: VirtualClock) -> None:
    workflow = one(lambda: clock.sleep(4.0) or S.DONE).with_total_timeout(5.0)
    for _ in range(3):
        assert Walk(clock, workflow).finish().result is S.DONE


# -- beside a token


def test_whoever_stops_the_run_first_is_its_reason(clock: VirtualClock) -> None:
    def run(cancel_at: float) -> Any:
        token = CancelToken(clock=clock)
        walk = Walk(clock, one(lambda: clock.sleep(20.0) or S.DONE).with_total_timeout(5.0), token=token)
        clock.advance(cancel_at)
        token.cancel()
        return walk.finish().error

    canceled = run(4.0)
    assert type(canceled) is Canceled
    assert canceled.reason == CancelReason.REQUESTED
    assert type(run(6.0)) is FlowTimeout


def test_a_live_token_that_nobody_cancels_changes_nothing(clock: VirtualClock) -> None:
    token = CancelToken(clock=clock)
    error = failure(clock, one(lambda res, run: run.token.sleep(60)).with_total_timeout(5.0), token=token)
    assert type(error) is FlowTimeout
    assert not token.canceled


def test_the_inner_runs_limit_is_no_stop_for_the_outer(clock: VirtualClock) -> None:
    inner = (
        Workflow()
        .register("i", lambda res, run: run.token.sleep(60))
        .add_exit_state("end")
        .with_total_timeout(2.0)
    )

    def outer(res: Any, run: Any) -> S:
        with pytest.raises(FlowTimeout):
            inner.run("i", token=run.token, clock=clock)
        return S.DONE

    assert Walk(clock, one(outer).with_total_timeout(5.0)).finish().result is S.DONE


def test_the_outer_runs_limit_stops_the_inner_and_is_the_reason(clock: VirtualClock) -> None:
    inner = (
        Workflow()
        .register("i", lambda res, run: run.token.sleep(60))
        .add_exit_state("end")
        .with_total_timeout(9.0)
    )
    error = failure(
        clock, one(lambda res, run: inner.run("i", token=run.token, clock=clock)).with_total_timeout(5.0)
    )
    assert type(error) is FlowTimeout
    assert (error.limit, error.state) == (5.0, S.A)
