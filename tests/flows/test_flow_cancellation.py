"""A run that is asked to stop: where it stops, what it ends with, and what is told to its body."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor import Canceled, CancelReason, CancelToken, Fail, Fatal
from supervisor.flows import (
    CircuitBreaker,
    FlowTimeout,
    JoinConfig,
    JoinStrategy,
    Pending,
    Resources,
    StateEntered,
    Workflow,
    batch,
    poll,
    timer,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.bodies import Scripted
from tests.flows.walking import DOUBLING, S, Timed, Walk, failure, one


def canceled_at(clock: VirtualClock, seconds: float, workflow: Workflow, **settings: Any) -> Walk:
    token = CancelToken(clock=clock)
    walk = Walk(clock, workflow, token=token, **settings)
    clock.advance(seconds)
    assert walk.ended is None
    token.cancel()
    return walk.finish()


def sleep(res: Any, run: Any) -> None:
    run.token.sleep(1e6)


def wait(res: Any, run: Any) -> S:
    run.token.wait()
    return S.DONE


def test_a_run_that_is_canceled_before_it_starts_does_nothing(clock: VirtualClock) -> None:
    log: list[str] = []

    class R:
        def setup(self) -> None:
            log.append("setup")

        def teardown(self) -> None:
            log.append("teardown")

    token = CancelToken(clock=clock)
    token.cancel(CancelReason.SHUTDOWN)
    workflow = Workflow(Resources(r=R())).register(S.A, lambda: log.append("body")).add_exit_state(S.DONE)
    error = failure(clock, workflow, token=token)
    assert type(error) is Canceled
    assert error.reason == CancelReason.SHUTDOWN
    assert "body" not in log
    assert log.count("setup") == log.count("teardown")


def test_even_an_initial_exit_state_is_not_reached_once_canceled(clock: VirtualClock) -> None:
    token = CancelToken(clock=clock)
    token.cancel()
    assert type(failure(clock, one(lambda: S.DONE), initial=S.DONE, token=token)) is Canceled


INNER = Workflow().register("i", sleep).add_exit_state("end")


@pytest.mark.parametrize(
    "build",
    [
        lambda clock: one(sleep),
        lambda clock: one(wait),
        lambda clock: one(lambda res, run: run.token.child().sleep(1e6)),
        lambda clock: one(Scripted(Fail("no")), max_retries=99, backoff=DOUBLING),
        lambda clock: Workflow().register_router(S.A, sleep),
        lambda clock: one(poll(lambda res: Pending(30.0))),
        lambda clock: one(timer(1e6, S.DONE)),
        lambda clock: one(timer(clock.now().replace(year=2001), S.DONE)),
        lambda clock: one(batch(lambda res: [1, 2], lambda item: clock.sleep(50.0), lambda res, results: S.DONE)),
        lambda clock: Workflow().register_split(S.A, [sleep] * 3, JoinConfig(JoinStrategy.ALL, S.DONE)),
        lambda clock: Workflow().register_split(
            S.A, [lambda: clock.sleep(50.0)] * 3, JoinConfig(JoinStrategy.ANY, S.DONE, bulkhead=1)
        ),
        lambda clock: one(lambda res, run: INNER.run("i", token=run.token, clock=clock)),
        lambda clock: one(sleep, timeout=1e5, max_retries=3),
        lambda clock: one(sleep, breaker=CircuitBreaker()),
        lambda clock: one(sleep).with_total_timeout(1e5),
    ],
    ids=["sleep", "wait", "child", "backoff", "router", "poll", "timer", "instant", "batch", "split", "queue",
         "nested", "timeout", "breaker", "total"],
)  # fmt: skip
def test_whatever_it_does_a_canceled_run_ends_at_once(clock: VirtualClock, build: Any) -> None:
    walk = canceled_at(clock, 3.0, build(clock).add_exit_state(S.DONE))
    assert type(walk.error) is Canceled
    assert walk.error.reason == CancelReason.REQUESTED
    assert walk.ended == 3.0
    assert "state S.A" in walk.error.__notes__[-1]
    clock.advance(1000.0)  # stragglers come back


def test_a_canceled_run_is_no_flow_error_and_no_exception(clock: VirtualClock) -> None:
    walk = canceled_at(clock, 1.0, one(sleep))
    assert not isinstance(walk.error, Exception)


def test_nothing_follows_a_body_that_finishes_although_canceled(
    clock: VirtualClock, recorder: EventRecorder
) -> None:
    later: list[int] = []
    workflow = one(lambda: clock.sleep(5.0) or S.B).register(S.B, lambda: later.append(1) or S.DONE)
    walk = canceled_at(clock, 2.0, workflow, subscribers=[recorder])
    assert (type(walk.error), walk.ended, later) == (Canceled, 5.0, [])
    assert [event.state for event in recorder.of(StateEntered)] == ["S.A"]


def test_a_success_after_the_cancellation_is_canceled_even_at_the_last_state(clock: VirtualClock) -> None:
    assert type(canceled_at(clock, 2.0, one(wait)).error) is Canceled


def test_a_failure_after_the_cancellation_is_its_cause(clock: VirtualClock) -> None:
    def body(res: Any, run: Any) -> S:
        run.token.wait()
        raise ValueError("connection closed by on_cancel")

    walk = canceled_at(clock, 2.0, one(body, max_retries=3))
    assert type(walk.error) is Canceled
    assert isinstance(walk.error.__cause__, ValueError)


@pytest.mark.parametrize("error", [Fatal("x"), KeyboardInterrupt(), SystemExit(1)])
def test_what_is_never_retried_surfaces_although_canceled(clock: VirtualClock, error: BaseException) -> None:
    def body(res: Any, run: Any) -> S:
        run.token.wait()
        raise error

    assert canceled_at(clock, 2.0, one(body)).error is error


def test_a_canceled_run_makes_no_further_attempt(clock: VirtualClock) -> None:
    body = Scripted(Fail("no"))
    walk = canceled_at(clock, 2.0, one(body, max_retries=99, backoff=DOUBLING))
    assert body.calls == 2
    assert walk.ended == 2.0
    assert isinstance(walk.error.__cause__, Fail)


@pytest.mark.parametrize("swallow", [Exception, None])
def test_a_body_that_swallows_exceptions_can_not_swallow_the_stop(clock: VirtualClock, swallow: Any) -> None:
    def body(res: Any, run: Any) -> S:
        while True:
            try:
                run.token.sleep(10.0)
            except Exception:
                continue

    assert canceled_at(clock, 3.0, one(body)).ended == 3.0


def test_canceled_raised_unasked_surfaces_with_its_place(clock: VirtualClock) -> None:
    own = Canceled()
    body = Scripted(own)
    assert failure(clock, one(body, max_retries=3)) is own
    assert body.calls == 1
    assert "state S.A" in own.__notes__[0]


def test_a_cancel_reaches_every_branch_and_none_is_waited_for(clock: VirtualClock) -> None:
    timed, told = Timed(clock), list[float]()

    def heeds(res: Any, run: Any) -> None:
        run.token.wait()
        told.append(clock.monotonic())

    join = JoinConfig(JoinStrategy.ALL, S.DONE)
    branches = [heeds, heeds, timed(60, "deaf", deaf=True)]
    walk = canceled_at(clock, 3.0, Workflow().register_split(S.A, branches, join).add_exit_state(S.DONE))
    assert walk.ended == 3.0
    clock.settle()
    assert told == [3.0, 3.0]
    clock.advance(60.0)


def test_canceling_twice_is_canceling_once(clock: VirtualClock) -> None:
    token, told = CancelToken(clock=clock), list[int]()

    def body(res: Any, run: Any) -> S:
        run.token.on_cancel(lambda: told.append(1))
        run.token.sleep(60)
        return S.DONE

    walk = Walk(clock, one(body), token=token)
    clock.settle()
    assert token.cancel()
    assert not token.cancel(CancelReason.SHUTDOWN)
    assert walk.finish().error.reason == CancelReason.REQUESTED
    assert told == [1]


def test_a_token_that_nobody_cancels_is_like_none(clock: VirtualClock) -> None:
    token = CancelToken(clock=clock)
    assert Walk(clock, one(lambda: S.DONE), token=token).finish().result is S.DONE
    assert not token.canceled


def test_one_token_stops_several_runs(clock: VirtualClock) -> None:
    token = CancelToken(clock=clock)
    walks = [Walk(clock, one(sleep), token=token) for _ in range(3)]
    clock.advance(1.0)
    token.cancel()
    assert [type(walk.finish().error) for walk in walks] == [Canceled] * 3


def test_a_run_that_is_over_is_not_told_of_a_later_cancellation(clock: VirtualClock) -> None:
    token, told = CancelToken(clock=clock), list[int]()

    def body(res: Any, run: Any) -> S:
        run.token.on_cancel(lambda: told.append(1))
        return S.DONE

    for workflow in (one(body), one(body, timeout=9.0), one(body).with_total_timeout(9.0)):
        assert Walk(clock, workflow, token=token).finish().result is S.DONE
    token.cancel()
    assert told == []


def test_a_token_with_a_timeout_of_its_own_cancels_with_that_reason(clock: VirtualClock) -> None:
    token = CancelToken(clock=clock).child(2.0)
    walk = Walk(clock, one(sleep).with_total_timeout(50.0), token=token).finish()
    assert type(walk.error) is Canceled
    assert walk.error.reason == CancelReason.TIMEOUT
    assert walk.ended == 2.0


def test_a_body_may_cancel_its_own_run(clock: VirtualClock) -> None:
    token = CancelToken(clock=clock)
    assert type(failure(clock, one(lambda: token.cancel() and S.DONE), token=token)) is Canceled


def test_a_deaf_attempt_at_its_last_deadline_ends_canceled_if_that_was_asked_for(clock: VirtualClock) -> None:
    walk = canceled_at(clock, 2.0, one(lambda: clock.sleep(20.0), timeout=5.0))
    assert type(walk.error) is Canceled
    assert isinstance(walk.error.__cause__, FlowTimeout)
    assert walk.ended == 20.0
