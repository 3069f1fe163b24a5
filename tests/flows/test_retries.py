"""Attempts of one task: how many, when, under which deadline, and what comes out of them."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from supervisor import BackoffPolicy, Canceled, CancelReason, Fail, Fatal, Jitter, SupervisorError, Timeout
from supervisor.flows import (
    FLOW_TASK_BACKOFF,
    CircuitBreaker,
    CircuitOpen,
    FlowRun,
    FlowTaskRetrying,
    FlowTimeout,
    JoinConfig,
    JoinStrategy,
    RetryExhausted,
    Workflow,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.bodies import Scripted
from tests.flows.walking import DOUBLING, S, Walk, failure, one


def test_the_backoff_of_a_task_until_told_otherwise() -> None:
    assert BackoffPolicy(initial=0.1, multiplier=2.0, max_delay=30.0, jitter=0.1) == FLOW_TASK_BACKOFF


# -- how many


@pytest.mark.parametrize("retries", [0, 1, 2, 5])
def test_max_retries_counts_retries_after_the_first_attempt(clock: VirtualClock, retries: int) -> None:
    body = Scripted(ValueError("no"))
    error = failure(clock, one(body, max_retries=retries, backoff=DOUBLING))
    assert body.calls == retries + 1
    assert clock.monotonic() == sum([1.0, 2.0, 4.0, 8.0, 16.0][:retries])
    if retries:
        assert type(error) is RetryExhausted
        assert error.attempts == retries + 1
        assert str(error.__cause__) == "no"
    else:
        assert type(error) is ValueError


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_success_within_the_limit_goes_on(clock: VirtualClock, failures: int) -> None:
    body = Scripted(*[Fail("no")] * failures, S.DONE)
    walk = Walk(clock, one(body, max_retries=2, backoff=DOUBLING)).finish()
    assert walk.result is S.DONE
    assert body.calls == failures + 1
    assert walk.ended == [0.0, 1.0, 3.0][failures]


def test_each_attempt_starts_after_its_backoff_and_knows_its_number(clock: VirtualClock) -> None:
    seen: list[tuple[int, float]] = []

    def body(res: Any, run: FlowRun) -> S:
        seen.append((run.attempt, clock.monotonic()))
        raise ValueError(run.attempt)

    error = failure(clock, one(body, max_retries=4, backoff=BackoffPolicy(0.5, 3.0, 10.0, Jitter.NONE)))
    assert seen == [(1, 0.0), (2, 0.5), (3, 2.0), (4, 6.5), (5, 16.5)]
    assert error.__cause__.args == (5,), "the last error is the cause"


def test_the_default_backoff_stays_within_a_tenth_of_its_base(clock: VirtualClock) -> None:
    starts: list[float] = []

    def body() -> S:
        starts.append(clock.monotonic())
        raise ValueError

    failure(clock, one(body, max_retries=12))
    delays = [later - sooner for sooner, later in pairwise(starts)]
    for number, delay in enumerate(delays):
        base = min(0.1 * 2**number, 30.0)
        assert 0.9 * base - 1e-9 <= delay <= 1.1 * base + 1e-9


def test_without_a_backoff_the_next_attempt_is_at_once(clock: VirtualClock) -> None:
    body = Scripted(*[Fail("no")] * 3, S.DONE)
    walk = Walk(clock, one(body, max_retries=3, backoff=None)).finish()
    assert (walk.result, walk.ended, body.calls) == (S.DONE, 0.0, 4)


def test_every_state_has_its_own_count_of_attempts(clock: VirtualClock) -> None:
    seen: list[tuple[Any, int]] = []

    def flaky(following: S) -> Any:
        def body(res: Any, run: FlowRun) -> S:
            seen.append((run.state, run.attempt))
            if run.attempt < 2:
                raise Fail("first")
            return following

        return body

    workflow = one(flaky(S.B), max_retries=1).register(S.B, flaky(S.DONE), max_retries=1)
    assert Walk(clock, workflow).finish().result is S.DONE
    assert seen == [(S.A, 1), (S.A, 2), (S.B, 1), (S.B, 2)]


def test_a_state_that_is_entered_again_has_all_its_retries_again(clock: VirtualClock) -> None:
    steps = [Fail("1"), S.A, Fail("2"), S.A, Fail("3"), S.DONE]
    assert Walk(clock, one(Scripted(*steps), max_retries=1)).finish().result is S.DONE


# -- which errors


@pytest.mark.parametrize(
    "error", [ValueError("x"), Fail("x"), Timeout("x"), OSError(5, "io"), StopIteration("x")]
)
def test_any_exception_is_retried(clock: VirtualClock, error: Exception) -> None:
    body = Scripted(error, S.DONE)
    assert Walk(clock, one(body, max_retries=1)).finish().result is S.DONE
    assert body.calls == 2


class Weird(BaseException):
    """No `Exception`."""


@pytest.mark.parametrize(
    "error", [Fatal("x"), KeyboardInterrupt("x"), SystemExit(3), GeneratorExit("x"), Weird("x"), Canceled()]
)
@pytest.mark.parametrize("where", ["task", "router"])
def test_fatal_and_what_is_no_exception_end_at_once_and_unwrapped(
    clock: VirtualClock, error: BaseException, where: str
) -> None:
    body = Scripted(error)
    workflow = one(body, max_retries=5) if where == "task" else one(body).register_router(S.A, body)
    assert failure(clock, workflow) is error
    assert body.calls == 1
    assert clock.monotonic() == 0.0


def test_a_fatal_after_failures_is_not_wrapped_in_the_retries(clock: VirtualClock) -> None:
    fatal = Fatal("stop")
    assert failure(clock, one(Scripted(Fail("no"), fatal), max_retries=5)) is fatal


def test_retries_of_a_state_are_not_doubled_by_anything(clock: VirtualClock) -> None:
    body = Scripted(Fail("no"))
    failure(clock, one(body, max_retries=2).with_total_timeout(3600.0))
    assert body.calls == 3


@pytest.mark.parametrize("retries", [0, 2])
def test_branches_have_retries_of_their_own(clock: VirtualClock, retries: int) -> None:
    good, flaky = Scripted("good"), Scripted(*[Fail("no")] * retries, "late")
    join = JoinConfig(JoinStrategy.ALL, S.DONE)
    workflow = Workflow().register_split(S.A, [good, flaky], join, max_retries=2, backoff=DOUBLING)
    walk = Walk(clock, workflow.add_exit_state(S.DONE)).finish()
    assert (good.calls, flaky.calls) == (1, retries + 1)
    assert walk.ended == (3.0 if retries else 0.0)


# -- deadlines


def test_an_attempt_that_takes_too_long_is_a_flow_timeout(clock: VirtualClock) -> None:
    error = failure(clock, one(lambda res, run: run.token.sleep(60), timeout=5.0))
    assert type(error) is FlowTimeout
    assert isinstance(error, TimeoutError)
    assert isinstance(error, SupervisorError)
    assert (error.elapsed, error.limit, error.attempt) == (5.0, 5.0, 1)
    assert clock.monotonic() == 5.0


def test_after_retries_the_timeout_is_retry_exhausted_and_a_flow_timeout(clock: VirtualClock) -> None:
    error = failure(
        clock, one(lambda res, run: run.token.sleep(60), timeout=5.0, max_retries=2, backoff=DOUBLING)
    )
    assert isinstance(error, RetryExhausted)
    assert isinstance(error, FlowTimeout)
    assert (error.attempts, error.elapsed, error.limit) == (3, 5.0, 5.0)
    assert isinstance(error.__cause__, FlowTimeout)
    assert clock.monotonic() == 5 + 1 + 5 + 2 + 5


def test_each_attempt_has_a_fresh_deadline(clock: VirtualClock) -> None:
    ends: list[tuple[float, CancelReason | None]] = []

    def body(res: Any, run: FlowRun) -> S:
        run.token.wait(60 if run.attempt == 1 else 4.5)
        ends.append((clock.monotonic(), run.token.reason))
        return S.DONE

    walk = Walk(clock, one(body, timeout=5.0, max_retries=1, backoff=DOUBLING)).finish()
    assert walk.result is S.DONE
    assert ends == [(5.0, CancelReason.TIMEOUT), (10.5, None)]


@pytest.mark.parametrize("limit", [5.0, timedelta(seconds=5)])
def test_a_body_that_returns_in_time_has_won(clock: VirtualClock, limit: Any) -> None:
    def body(seconds: float) -> Any:
        return one(lambda: clock.sleep(seconds) or S.DONE, timeout=limit)

    assert Walk(clock, body(4.999)).finish().result is S.DONE
    assert Walk(clock, body(5.0)).finish().result is S.DONE
    assert isinstance(Walk(clock, body(5.001)).finish().error, FlowTimeout)


@pytest.mark.parametrize("limit", [None, 0, 0.0, timedelta(0), float("inf")])
def test_a_timeout_of_none_or_zero_is_no_timeout(clock: VirtualClock, limit: Any) -> None:
    assert Walk(clock, one(lambda: clock.sleep(1e6) or S.DONE, timeout=limit)).finish(2e6).result is S.DONE


@pytest.mark.parametrize(
    "late", [S.DONE, ValueError("late"), Fatal("late"), KeyboardInterrupt(), SystemExit(1)]
)
def test_whatever_a_late_body_does_changes_nothing(clock: VirtualClock, late: Any) -> None:
    starts: list[float] = []

    def body(res: Any, run: FlowRun) -> S:
        starts.append(clock.monotonic())
        if run.attempt == 1:
            clock.sleep(20.0)  # deaf
            if isinstance(late, BaseException):
                raise late
            return S.OTHER
        return S.DONE

    walk = Walk(clock, one(body, timeout=5.0, max_retries=1, backoff=DOUBLING)).finish()
    assert walk.result is S.DONE
    assert starts == [0.0, 21.0], "two attempts never overlap, and the backoff counts from the return"


def test_a_direct_run_whose_body_is_deaf_returns_when_the_body_does(clock: VirtualClock) -> None:
    walk = Walk(clock, one(lambda: clock.sleep(20.0), timeout=5.0)).finish()
    assert isinstance(walk.error, FlowTimeout)
    assert walk.ended == 20.0
    assert (walk.error.elapsed, walk.error.limit) == (20.0, 5.0)


def test_at_the_deadline_callbacks_run_although_the_body_is_deaf(clock: VirtualClock) -> None:
    told: list[float] = []

    def body(res: Any, run: FlowRun) -> S:
        run.token.on_cancel(lambda: told.append(clock.monotonic()))
        clock.sleep(20.0)
        return S.DONE

    Walk(clock, one(body, timeout=5.0)).finish()
    assert told == [5.0]


def test_an_attempts_token_is_no_business_of_the_next_attempt(clock: VirtualClock) -> None:
    told: list[str] = []

    def body(res: Any, run: FlowRun) -> S:
        run.token.on_cancel(lambda: told.append(f"canceled {attempt}"))
        attempt = run.attempt
        if attempt == 1:
            raise Fail("first")
        run.token.sleep(60)
        return S.DONE

    failure(clock, one(body, timeout=5.0, max_retries=1))
    assert told == ["canceled 2"]


def test_without_a_timeout_a_slow_body_is_left_alone(clock: VirtualClock) -> None:
    assert Walk(clock, one(lambda: clock.sleep(1e5) or S.DONE, max_retries=3)).finish().result is S.DONE


def test_a_retry_is_told_with_the_number_of_the_failed_attempt(
    clock: VirtualClock, recorder: EventRecorder
) -> None:
    failure(
        clock,
        one(Scripted(ValueError("one"), Fail("two")), max_retries=2, backoff=DOUBLING, name="fetch"),
        subscribers=[recorder],
    )
    retries = recorder.of(FlowTaskRetrying)
    assert [(e.attempt, e.delay, e.state, e.task) for e in retries] == [
        (1, 1.0, "S.A", "fetch"),
        (2, 2.0, "S.A", "fetch"),
    ]
    assert "ValueError: one" in retries[0].error
    assert recorder.times(FlowTaskRetrying) == [0.0, 1.0]


# -- breaker


def test_an_open_breaker_ends_the_loop_and_the_body_is_not_called(clock: VirtualClock) -> None:
    breaker = CircuitBreaker(failure_threshold=1, reset_timeout=30.0)
    failure(clock, one(Scripted(Fail("opens it")), breaker=breaker))
    body = Scripted(S.DONE)
    error = failure(clock, one(body, breaker=breaker, max_retries=5))
    assert type(error) is CircuitOpen
    assert error.attempt == 0
    assert body.calls == 0
    assert clock.monotonic() == 0.0


def test_a_breaker_that_opens_between_attempts_ends_the_loop(clock: VirtualClock) -> None:
    body = Scripted(Fail("no"))
    error = failure(clock, one(body, breaker=CircuitBreaker(2), max_retries=5, backoff=DOUBLING))
    assert type(error) is CircuitOpen
    assert body.calls == 2


def test_a_breaker_counts_timeouts(clock: VirtualClock) -> None:
    breaker = CircuitBreaker(2)
    failure(clock, one(lambda res, run: run.token.sleep(9), timeout=1.0, breaker=breaker, max_retries=1))
    assert breaker.state == "open"


def test_retries_carry_a_breaker_through_half_open_to_closed(clock: VirtualClock) -> None:
    breaker = CircuitBreaker(failure_threshold=1, reset_timeout=5.0)
    body = Scripted(Fail("no"), S.DONE)
    failure(clock, one(body, breaker=breaker))
    clock.advance(5.0)
    assert Walk(clock, one(body, breaker=breaker)).finish().result is S.DONE
    assert breaker.state == "closed"


@pytest.mark.parametrize("ends", [Canceled(), "run canceled"])
def test_a_stop_counts_neither_way_and_leaves_no_probe_out(clock: VirtualClock, ends: Any) -> None:
    breaker = CircuitBreaker(failure_threshold=1, reset_timeout=1.0)
    failure(clock, one(Scripted(Fail("opens it")), breaker=breaker))
    clock.advance(1.0)

    def stops(res: Any, run: FlowRun) -> S:
        if isinstance(ends, BaseException):
            raise ends
        run.token.sleep(60)
        return S.DONE

    workflow = one(stops, breaker=breaker)
    if isinstance(ends, str):
        workflow.with_total_timeout(3.0)
    failure(clock, workflow)
    assert breaker.state == "half_open"
    assert Walk(clock, one(Scripted(S.DONE), breaker=breaker)).finish().result is S.DONE
    assert breaker.state == "closed"


def test_tasks_of_different_states_share_a_breaker(clock: VirtualClock) -> None:
    breaker, second = CircuitBreaker(1), Scripted(S.DONE)

    def falls_back() -> Workflow:
        return one(Scripted(Fail("no")), breaker=breaker)

    failure(clock, falls_back())
    error = failure(clock, one(lambda: S.B).register(S.B, second, breaker=breaker))
    assert type(error) is CircuitOpen
    assert (error.state, error.path) == (S.B, (S.A, S.B))
    assert second.calls == 0


def test_a_ctrl_c_beside_the_body_gives_the_probe_back(clock: VirtualClock, monkeypatch: Any) -> None:
    from supervisor.flows.task import FlowTask

    breaker = CircuitBreaker(1, reset_timeout=0.0)
    failure(clock, one(Scripted(Fail("opens it")), breaker=breaker))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(FlowTask, "invoke", interrupted)
        assert isinstance(failure(clock, one(Scripted(S.DONE), breaker=breaker)), KeyboardInterrupt)
    assert Walk(clock, one(Scripted(S.DONE), breaker=breaker)).finish().result is S.DONE
