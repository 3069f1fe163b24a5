"""Retrying: what is retried at all, how often, how long the wait is, and what starts it anew."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from supervisor import (
    AttemptStarting,
    BackoffPolicy,
    BackoffScheduled,
    Canceled,
    Fail,
    Fatal,
    Jitter,
    OutcomeKind,
    Supervisor,
    TaskSpec,
)
from supervisor.testing import EventRecorder, VirtualClock

DOUBLING = BackoffPolicy(initial=1.0, jitter=Jitter.NONE)


class Script:
    """A body that does what is written for each of its calls, and then succeeds."""

    def __init__(self, *steps: BaseException | None) -> None:
        self.steps = list(steps)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        step = self.steps.pop(0) if self.steps else None
        if step is not None:
            raise step
        return f"call {self.calls}"


# A retry loop that catches everything takes Ctrl-C and sys.exit for failures and can't be stopped.


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KeyboardInterrupt(), OutcomeKind.PANICKED),
        (SystemExit(3), OutcomeKind.FATAL),
        (GeneratorExit(), OutcomeKind.PANICKED),
        (BaseExceptionGroup("both", [KeyboardInterrupt(), ValueError()]), OutcomeKind.PANICKED),
        (Canceled(), OutcomeKind.CANCELED),
        (Fatal("no use"), OutcomeKind.FATAL),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_exceptions_that_are_no_failures_are_never_retried(
    supervisor: Supervisor, error: BaseException, kind: OutcomeKind
) -> None:
    body = Script(error)
    outcome = supervisor.add(TaskSpec.restartable("t", body, max_retries=5)).wait()
    assert (body.calls, outcome.kind, outcome.attempts) == (1, kind, 1)


def test_an_exit_code_survives_to_the_outcome(supervisor: Supervisor) -> None:
    assert supervisor.add(TaskSpec.restartable("t", Script(SystemExit(3)))).wait().exit_code == 3


# "Retries" counted as "attempts" give one call too many or too few.


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_a_limit_counts_the_retries_after_the_first_failure(supervisor: Supervisor, limit: int) -> None:
    body = Script(*[Fail("no")] * 99)
    outcome = supervisor.add(TaskSpec.restartable("t", body, max_retries=limit)).wait()
    assert (body.calls, outcome.attempts, outcome.kind) == (limit + 1, limit + 1, OutcomeKind.FAILED)


def test_a_limit_of_n_waits_n_times(supervisor: Supervisor, recorder: EventRecorder) -> None:
    supervisor.add(TaskSpec.restartable("t", Script(*[Fail("no")] * 9), max_retries=3)).wait()
    supervisor.shutdown()
    assert len(recorder.of(BackoffScheduled)) == 3


def test_a_limit_of_no_retries_is_refused_and_named_once(supervisor: Supervisor) -> None:
    with pytest.raises(ValueError, match=r"max_retries.*TaskSpec\.once"):
        TaskSpec.restartable("t", Script(), max_retries=0)


@pytest.mark.parametrize("make", ["once", "restartable", "periodic"])
def test_a_task_that_succeeds_at_once_makes_one_attempt_before_any_other_follows(
    supervisor: Supervisor, clock: VirtualClock, make: str
) -> None:
    body = Script()
    if make == "periodic":
        supervisor.add(TaskSpec.periodic("t", body, 10.0, max_retries=1))
    else:
        supervisor.add(getattr(TaskSpec, make)("t", body))
    clock.advance(9.0)
    assert body.calls == 1


def test_a_success_of_a_periodic_task_gives_all_its_retries_back(supervisor: Supervisor) -> None:
    no = Fail("no")
    body = Script(no, no, None, no, no, None, no, no, no)
    outcome = supervisor.add(TaskSpec.periodic("t", body, 1.0, max_retries=2, backoff=DOUBLING)).wait()
    assert (body.calls, outcome.kind) == (9, OutcomeKind.FAILED)


# A user can't tell whether the grown wait is ever taken back.


def test_a_success_takes_the_backoff_back_to_its_first_delay(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    no = Fail("no")
    supervisor.add(TaskSpec.periodic("t", Script(no, no, no, no, no, None, no), 100.0, backoff=DOUBLING))
    clock.advance(200.0)
    delays = [(event.delay, event.cause) for event in recorder.of(BackoffScheduled)]
    assert delays == [
        (1.0, "failure"),
        (2.0, "failure"),
        (4.0, "failure"),
        (8.0, "failure"),
        (16.0, "failure"),
        (100.0, "interval"),
        (1.0, "failure"),
        (100.0, "interval"),
    ]


# 2.0 ** 1024 is an OverflowError: the loop that was to run for ever died in a long outage.


@pytest.mark.parametrize("multiplier", [1.0, 1.0000001, 2.0, 100.0, 1e308])
@pytest.mark.parametrize("failures", [1, 43, 64, 1023, 1024, 1075, 5000, 10**9, 10**400])
def test_a_delay_never_overflows_and_never_passes_the_cap(multiplier: float, failures: int) -> None:
    for jitter in (Jitter.NONE, Jitter.FULL, Jitter.EQUAL, Jitter.BAND):
        policy = BackoffPolicy(initial=0.2, multiplier=multiplier, max_delay=30.0, jitter=jitter)
        assert 0.0 <= policy.delay(failures, 0.999) <= 30.0


def test_a_task_outlives_more_failures_than_a_float_has_exponents(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    body = Script(*[Fail("out")] * 1100)
    backoff = BackoffPolicy(initial=1.0, max_delay=2.0, jitter=Jitter.NONE)
    outcome = supervisor.add(TaskSpec.restartable("t", body, backoff=backoff)).wait()
    assert (outcome.kind, body.calls, clock.monotonic()) == (OutcomeKind.COMPLETED, 1101, 1.0 + 1099 * 2.0)


# Jitter that leaves its bounds: a negative pause raises at random, a first delay is under the minimum.


@pytest.mark.parametrize("failures", [1, 2, 3, 5, 8, 13, 100])
def test_equal_jitter_stays_between_half_the_base_and_the_base(failures: int) -> None:
    policy, rng = BackoffPolicy(initial=0.2, max_delay=30.0, jitter=Jitter.EQUAL), random.Random(failures)
    base = min(0.2 * 2 ** (failures - 1), 30.0)
    draws = [0.0, 1 - 2**-53, *(rng.random() for _ in range(2000))]
    assert all(base / 2 <= policy.delay(failures, draw) <= base for draw in draws)


@pytest.mark.parametrize("spread", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("failures", [1, 2, 8, 100])
def test_a_spread_stays_within_its_share_of_the_base(spread: float, failures: int) -> None:
    policy, rng = BackoffPolicy(initial=0.2, max_delay=30.0, jitter=spread), random.Random(failures)
    base = min(0.2 * 2 ** (failures - 1), 30.0)
    delays = [policy.delay(failures, draw) for draw in (0.0, *(rng.random() for _ in range(500)))]
    assert all(0.0 <= delay <= base * (1 + spread) * (1 + 1e-12) for delay in delays)
    assert min(delays) >= base * (1 - spread) * (1 - 1e-12)


@pytest.mark.parametrize("spread", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_spread_outside_of_zero_to_one_is_refused(spread: float) -> None:
    with pytest.raises(ValueError, match="jitter"):
        BackoffPolicy(jitter=spread)


def test_the_delay_that_is_told_is_the_delay_that_is_waited(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    supervisor.add(TaskSpec.restartable("t", Script(*[Fail("no")] * 6))).wait()
    supervisor.shutdown()
    starts = [event.at.timestamp() for event in recorder.of(AttemptStarting)]
    told = [event.delay for event in recorder.of(BackoffScheduled)]
    waited = [later - earlier for earlier, later in pairwise(starts)]
    assert waited == pytest.approx(told, abs=2e-6)  # instants are whole microseconds
