"""`decide`: what follows each result of an attempt. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor import BackoffPolicy, Jitter, OutcomeKind, RestartPolicy
from supervisor.kernel.attempt import Ending
from supervisor.tasks.restart import GUARD, Again, Stop, decide
from supervisor.tasks.spec import Policy

NEVER, ON_FAILURE, ALWAYS = RestartPolicy.NEVER, RestartPolicy.ON_FAILURE, RestartPolicy.always()
EVERY_5 = RestartPolicy.always(5)
POLICIES = [NEVER, ON_FAILURE, ALWAYS, EVERY_5]
FROM_ONE = BackoffPolicy(initial=1.0, jitter=Jitter.NONE)
RETRYABLE = [Ending.FAILED, Ending.TIMED_OUT]


def after(
    ending: Ending,
    restart: RestartPolicy,
    *,
    streak: int | None = None,
    limit: int | None = None,
    backoff: BackoffPolicy | None = FROM_ONE,
    canceled: bool = False,
    elapsed: float = 1.0,
    draw: float = 0.5,
) -> Stop | Again:
    if streak is None:
        streak = 1 if ending in RETRYABLE else 0
    policy = Policy(restart, backoff, None, limit, None)
    return decide(policy, ending, streak, canceled=canceled, elapsed=elapsed, draw=draw)


# -- results that end a task


@pytest.mark.parametrize("restart", POLICIES)
@pytest.mark.parametrize("canceled", [False, True])
@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (Ending.FATAL, OutcomeKind.FATAL),
        (Ending.PANICKED, OutcomeKind.PANICKED),
        (Ending.CANCELED, OutcomeKind.CANCELED),
    ],
)
def test_a_permanent_result_ends_the_task_whatever_its_policy(ending, kind, restart, canceled) -> None:
    assert after(ending, restart, canceled=canceled) == Stop(kind)


@pytest.mark.parametrize("restart", [NEVER, ON_FAILURE])
def test_a_success_completes_a_task_that_does_not_repeat(restart) -> None:
    assert after(Ending.SUCCEEDED, restart) == Stop(OutcomeKind.COMPLETED)


@pytest.mark.parametrize("restart", POLICIES)
def test_a_success_after_the_task_was_canceled_is_canceled(restart) -> None:
    assert after(Ending.SUCCEEDED, restart, canceled=True) == Stop(OutcomeKind.CANCELED)


@pytest.mark.parametrize("ending", RETRYABLE)
@pytest.mark.parametrize("canceled", [False, True])
def test_a_failure_of_a_task_that_runs_once_wins_over_a_cancellation(ending, canceled) -> None:
    assert after(ending, NEVER, canceled=canceled) == Stop(OutcomeKind.FAILED)


@pytest.mark.parametrize("ending", RETRYABLE)
@pytest.mark.parametrize("restart", [ON_FAILURE, ALWAYS, EVERY_5])
@pytest.mark.parametrize("canceled", [False, True])
def test_a_failure_at_the_limit_wins_over_a_cancellation(ending, restart, canceled) -> None:
    at_limit = after(ending, restart, streak=4, limit=3, canceled=canceled)
    assert at_limit == Stop(OutcomeKind.FAILED, limit_reached=True)


@pytest.mark.parametrize("ending", RETRYABLE)
@pytest.mark.parametrize("restart", [ON_FAILURE, ALWAYS, EVERY_5])
@pytest.mark.parametrize("limit", [None, 3])
def test_below_the_limit_a_cancellation_cuts_the_backoff(ending, restart, limit) -> None:
    assert after(ending, restart, streak=3, limit=limit, canceled=True) == Stop(OutcomeKind.CANCELED)


# -- retries


@pytest.mark.parametrize("ending", RETRYABLE)
@pytest.mark.parametrize("restart", [ON_FAILURE, ALWAYS, EVERY_5])
def test_a_failure_is_retried_after_the_delay_of_its_place_in_the_streak(ending, restart) -> None:
    delays = [after(ending, restart, streak=n) for n in (1, 2, 3, 6, 10**9)]
    assert delays == [Again(seconds, "failure") for seconds in (1.0, 2.0, 4.0, 30.0, 30.0)]


@pytest.mark.parametrize("backoff", [None, BackoffPolicy(initial=0.0)])
def test_no_backoff_retries_at_once_and_tells_nobody(backoff) -> None:
    assert after(Ending.FAILED, ON_FAILURE, backoff=backoff) == Again(0.0, None)


@pytest.mark.parametrize("elapsed", [0.0, 1.0])
def test_a_retry_knows_no_guard(elapsed) -> None:
    assert after(Ending.FAILED, ALWAYS, backoff=None, elapsed=elapsed) == Again(0.0, None)


@pytest.mark.parametrize("restart", [ON_FAILURE, ALWAYS, EVERY_5])
@given(limit=st.integers(1, 50), draw=st.floats(0, 1, exclude_max=True))
def test_n_retries_are_n_backoffs_and_n_plus_one_failures(restart, limit, draw) -> None:
    steps = [after(Ending.FAILED, restart, streak=n, limit=limit, draw=draw) for n in range(1, limit + 2)]
    assert all(isinstance(step, Again) for step in steps[:limit])
    assert steps[limit] == Stop(OutcomeKind.FAILED, limit_reached=True)


@given(streak=st.integers(1, 10**12), draw=st.floats(0, 1, exclude_max=True))
def test_without_a_limit_a_failure_is_always_retried_within_the_cap(streak, draw) -> None:
    step = after(Ending.FAILED, ON_FAILURE, streak=streak, backoff=BackoffPolicy(), draw=draw)
    assert isinstance(step, Again)
    assert 0.1 <= step.delay <= 30.0
    assert step.cause == "failure"


@given(
    ending=st.sampled_from(Ending),
    restart=st.sampled_from(POLICIES),
    streak=st.integers(1, 100),
    limit=st.none() | st.integers(1, 100),
    elapsed=st.floats(0, 1e6),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_no_attempt_follows_once_the_task_was_canceled(ending, restart, streak, limit, elapsed, draw) -> None:
    step = after(ending, restart, streak=streak, limit=limit, elapsed=elapsed, draw=draw, canceled=True)
    assert isinstance(step, Stop)
    assert step.kind is not OutcomeKind.COMPLETED


# -- repeats


@pytest.mark.parametrize(
    ("elapsed", "interval", "delay"),
    [
        (0.0, None, 0.001),
        (0.0005, None, 0.0005),
        (0.002, None, 0.0),
        (0.0, 0.0005, 0.001),
        (0.002, 0.0005, 0.0005),
        (0.0, 0.01, 0.01),
        (0.003, 0.01, 0.01),
        (100.0, 0.01, 0.01),
    ],
)
def test_a_repeat_waits_its_interval_and_at_least_to_a_millisecond_after_the_start(
    elapsed, interval, delay
) -> None:
    step = after(Ending.SUCCEEDED, RestartPolicy.always(interval), elapsed=elapsed)
    assert step == Again(delay, None if interval is None else "interval")


@given(elapsed=st.floats(0, 1e6), interval=st.none() | st.floats(1e-6, 1e6))
def test_starts_of_attempts_that_succeed_are_a_millisecond_apart(elapsed, interval) -> None:
    step = after(Ending.SUCCEEDED, RestartPolicy.always(interval), elapsed=elapsed)
    assert isinstance(step, Again)
    assert elapsed + step.delay >= GUARD
    assert step.delay >= (interval or 0.0)


@given(limit=st.integers(1, 5))
def test_a_success_is_repeated_whatever_the_limit(limit) -> None:
    assert isinstance(after(Ending.SUCCEEDED, EVERY_5, limit=limit), Again)
