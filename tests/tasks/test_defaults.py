"""Settings that a spec does not make come from the supervisor's `TaskDefaults`."""

from __future__ import annotations

import dataclasses
import math
from datetime import timedelta

import pytest

from supervisor import (
    INHERIT,
    AttemptStarting,
    BackoffPolicy,
    BackoffScheduled,
    Jitter,
    OutcomeKind,
    RestartPolicy,
    Supervisor,
    TaskDefaults,
    TaskSpec,
)
from supervisor.tasks.spec import Policy, resolve
from supervisor.testing import EventRecorder, VirtualClock
from tests.bodies import Scripted, waits

FULL = TaskDefaults(
    restart=RestartPolicy.NEVER, backoff=BackoffPolicy.constant(3), timeout=12, max_retries=6, overrun=4
)


def body() -> None:
    """Do nothing."""


# -- the value


def test_the_defaults_are_retries_with_the_default_backoff_and_no_limit_of_any_kind() -> None:
    defaults = TaskDefaults()
    assert defaults.restart is RestartPolicy.ON_FAILURE
    assert defaults.backoff == BackoffPolicy(0.2, 2.0, 30.0, Jitter.EQUAL, 0.0)
    assert (defaults.timeout, defaults.max_retries, defaults.overrun) == (None, None, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("restart", RestartPolicy.always(5)),
        ("backoff", BackoffPolicy.constant(1)),
        ("backoff", None),
        ("timeout", 9.0),
        ("max_retries", 4),
    ],
)
def test_a_default_that_is_given_changes_no_other(field, value) -> None:
    changed, plain = TaskDefaults(**{field: value}), TaskDefaults()
    assert getattr(changed, field) == value
    for each in dataclasses.fields(TaskDefaults):
        if each.name != field:
            assert getattr(changed, each.name) == getattr(plain, each.name)


@pytest.mark.parametrize("timeout", [0, timedelta(0), math.inf, None])
def test_zero_infinity_and_none_are_no_default_timeout(timeout) -> None:
    assert TaskDefaults(timeout=timeout).timeout is None


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"restart": "never"}, TypeError, "restart must be a RestartPolicy, got 'never'"),
        ({"restart": INHERIT}, TypeError, "restart must be a RestartPolicy, got INHERIT"),
        ({"backoff": 1}, TypeError, "backoff must be a BackoffPolicy or None, got 1"),
        ({"timeout": -1}, ValueError, "timeout must not be negative, got -1"),
        ({"timeout": math.nan}, ValueError, "timeout must be a number, got nan"),
        ({"timeout": True}, TypeError, "timeout must be seconds .*, got True"),
        ({"max_retries": 0}, ValueError, r"max_retries must be >= 1, got 0; .*TaskSpec\.once"),
        ({"max_retries": True}, TypeError, "max_retries must be an int, got True"),
        ({"timeout": 1, "overrun": -1}, ValueError, "overrun must not be negative, got -1"),
        ({"overrun": 5}, ValueError, "overrun .* got 5.0 without a timeout"),
    ],
)
def test_a_wrong_default_is_refused_by_its_name_and_value(settings, error, message) -> None:
    with pytest.raises(error, match=message):
        TaskDefaults(**settings)


def test_the_defaults_are_frozen_and_named_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TaskDefaults().timeout = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        TaskDefaults(RestartPolicy.NEVER)  # type: ignore[misc]


# -- merged with a spec


def test_what_inherits_takes_the_default() -> None:
    assert resolve(TaskSpec.from_defaults("t", body), FULL) == Policy(
        RestartPolicy.NEVER, BackoffPolicy.constant(3), 12.0, 6, 4.0
    )


def test_the_constructor_wins_over_the_default_restart() -> None:
    policy = resolve(TaskSpec.restartable("t", body), FULL)
    assert policy == Policy(RestartPolicy.ON_FAILURE, BackoffPolicy.constant(3), 12.0, 6, 4.0)


def test_none_in_a_spec_wins_over_the_default() -> None:
    spec = TaskSpec.restartable("t", body, timeout=None, backoff=None, max_retries=None, overrun=None)
    assert resolve(spec, FULL) == Policy(RestartPolicy.ON_FAILURE, None, None, None, None)


def test_a_value_in_a_spec_wins_over_the_default() -> None:
    policy = BackoffPolicy.constant(1)
    spec = TaskSpec.restartable("t", body, timeout=1, backoff=policy, max_retries=2, overrun=3)
    assert resolve(spec, FULL) == Policy(RestartPolicy.ON_FAILURE, policy, 1.0, 2, 3.0)


def test_a_default_overrun_counts_for_nothing_without_a_timeout() -> None:
    assert resolve(TaskSpec.once("t", body, timeout=None), FULL).overrun is None
    assert resolve(TaskSpec.once("t", body, timeout=5), FULL).overrun == 4.0


# -- in a running supervisor


def supervised(clock: VirtualClock, recorder: EventRecorder, **defaults: object) -> Supervisor:
    return Supervisor(clock=clock, subscribers=[recorder], defaults=TaskDefaults(**defaults))  # type: ignore[arg-type]


def test_a_supervisor_shows_its_defaults_and_its_config_apart(clock) -> None:
    made = Supervisor(clock=clock, defaults=FULL)
    assert made.defaults is FULL
    assert made.config.grace == 60.0


def test_a_default_timeout_ends_a_body_that_never_does(clock, recorder) -> None:
    with supervised(clock, recorder, timeout=0.02) as supervisor:
        outcome = supervisor.add(TaskSpec.once("t", waits)).wait()
        assert (outcome.kind, outcome.reason) == (OutcomeKind.FAILED, "timed out after 0.02 s")
        assert clock.monotonic() == 0.02


def test_run_ends_by_a_default_timeout(clock, recorder) -> None:
    (outcome,) = supervised(clock, recorder, timeout=0.02).run([TaskSpec.once("t", waits)])
    assert outcome.kind is OutcomeKind.FAILED


def test_a_default_timeout_counts_for_what_goes_through_a_slot(clock, recorder) -> None:
    with supervised(clock, recorder, timeout=0.02) as supervisor:
        assert supervisor.submit(TaskSpec.once("t", waits)).wait().kind is OutcomeKind.FAILED


def test_a_spec_without_a_timeout_outlasts_the_default(clock, recorder) -> None:
    with supervised(clock, recorder, timeout=0.02) as supervisor:
        gate = clock.latch()
        handle = supervisor.add(TaskSpec.once("t", gate.wait, timeout=None))
        clock.advance(60)
        assert not handle.done()
        gate.open()
        assert handle.wait().kind is OutcomeKind.COMPLETED


def test_a_default_restart_of_never_runs_a_failing_body_once(clock, recorder) -> None:
    with supervised(clock, recorder, restart=RestartPolicy.NEVER) as supervisor:
        body = Scripted(ValueError("boom"))
        assert supervisor.add(TaskSpec.from_defaults("t", body)).wait().kind is OutcomeKind.FAILED
        assert body.calls == 1


def test_a_default_period_repeats_what_takes_its_restart_from_there(clock, recorder) -> None:
    with supervised(clock, recorder, restart=RestartPolicy.always(5)) as supervisor:
        supervisor.add(TaskSpec.from_defaults("t", body))
        clock.advance(10)
        assert recorder.times(AttemptStarting) == [0.0, 5.0, 10.0]


def test_an_inherited_limit_ends_the_retries(clock, recorder) -> None:
    with supervised(clock, recorder, max_retries=1) as supervisor:
        body = Scripted(ValueError("boom"))
        assert supervisor.add(TaskSpec.restartable("t", body)).wait().kind is OutcomeKind.FAILED
        assert body.calls == 2


def test_a_spec_without_a_limit_goes_on_beyond_the_default(clock, recorder) -> None:
    with supervised(clock, recorder, max_retries=1) as supervisor:
        body = Scripted(ValueError("boom"), ValueError("boom"), "done")
        outcome = supervisor.add(TaskSpec.restartable("t", body, max_retries=None)).wait()
        assert (outcome.kind, outcome.value, body.calls) == (OutcomeKind.COMPLETED, "done", 3)


def test_a_default_limit_does_not_matter_to_a_task_that_runs_once(clock, recorder) -> None:
    with supervised(clock, recorder, max_retries=3) as supervisor:
        outcome = supervisor.add(TaskSpec.once("t", Scripted(ValueError("boom")))).wait()
        assert (outcome.kind, outcome.reason, outcome.attempts) == (
            OutcomeKind.FAILED,
            "ValueError: boom",
            1,
        )


def test_a_default_backoff_spaces_the_retries(clock, recorder) -> None:
    with supervised(clock, recorder, backoff=BackoffPolicy.constant(7), max_retries=2) as supervisor:
        supervisor.add(TaskSpec.restartable("t", Scripted(ValueError("boom")))).wait()
        assert [event.delay for event in recorder.of(BackoffScheduled)] == [7.0, 7.0]


def test_a_default_overrun_gives_up_a_stuck_body(clock, recorder) -> None:
    with supervised(clock, recorder, timeout=2, overrun=3) as supervisor:
        gate = clock.latch()
        outcome = supervisor.add(TaskSpec.restartable("t", gate.wait)).wait()
        gate.open()
        assert outcome.kind is OutcomeKind.FORCE_ABORTED
        assert clock.monotonic() == 5.0
