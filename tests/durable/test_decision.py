"""Pure decisions: what a command, an outcome and a failure come to, given a history."""

from __future__ import annotations

import pytest

from supervisor.durable.command import Cancel, Complete, Fail, ScheduleStep, ScheduleSteps, WaitUntil
from supervisor.durable.decision import Outcome, Plan, decide, ending, outcome_event
from supervisor.durable.errors import InvalidTransition
from supervisor.durable.history import (
    RunCancelled,
    RunCompleted,
    RunRetryExhausted,
    StepCancelled,
    StepCompleted,
    StepCreated,
    StepFailed,
    StepNonRetryable,
    StepRetrying,
    StepStarted,
    WaitCreated,
)
from supervisor.durable.history import (
    RunFailed as RunFailedEvent,
)
from supervisor.durable.retry import RetryPolicy
from tests.durable.making import cancellation, folded, later, step, wait

NOW = later(100)
DEFAULT = RetryPolicy.default()


def asking(step_id: str, policy: RetryPolicy = DEFAULT) -> ScheduleStep:
    return ScheduleStep(step_id, "work", None, policy)


# -- commands --------------------------------------------------------------------------------------


def test_commands_become_events() -> None:
    assert decide(folded(), Complete(7), NOW, NOW) == Plan([RunCompleted(7)])
    assert decide(folded(), Fail("no"), NOW, NOW) == Plan([RunFailedEvent("no")])
    assert decide(folded(cancellation("x")), Cancel(), NOW, NOW) == Plan([RunCancelled("x")])
    assert decide(folded(), WaitUntil("w", NOW), NOW, NOW) == Plan([WaitCreated("w", NOW)], waits=True)
    assert decide(folded(), asking("a"), NOW, NOW) == Plan(
        [StepCreated("a", "work", None, DEFAULT), StepStarted("a", 1)], [("a", 1)]
    )


def test_a_step_that_runs_is_delivered_again_and_one_that_is_due_tried_again() -> None:
    assert decide(folded(*step("a")), asking("a"), NOW, NOW) == Plan([], [("a", 1)])
    policy = RetryPolicy.fixed(3, 5.0)
    waiting = folded(*step("a", policy), StepRetrying("a", 1, "no", later(50)))
    assert decide(waiting, asking("a", policy), later(49), NOW) == Plan(waits=True)
    assert decide(waiting, asking("a", policy), later(50), NOW) == Plan([StepStarted("a", 2)], [("a", 2)])


def test_a_batch_creates_all_and_runs_what_can_run() -> None:
    policy = RetryPolicy.fixed(3, 5.0)
    history = folded(
        *step("done", policy),
        *step("later", policy),
        StepCompleted("done", 1),
        StepRetrying("later", 1, "no", later(999)),
        *step("runs", policy),
    )
    asked = ScheduleSteps(tuple(asking(each, policy) for each in ("done", "later", "runs", "new")))
    assert decide(history, asked, NOW, NOW) == Plan(
        [StepCreated("new", "work", None, policy), StepStarted("new", 1)], [("runs", 1), ("new", 1)]
    )


def test_what_history_does_not_allow_is_refused() -> None:
    ended = folded(*step("a"), StepCompleted("a", 1))
    for projection, command in (
        (folded(cancellation()), Complete(1)),
        (folded(), Cancel()),
        (ended, asking("a")),
        (ended, ScheduleSteps((asking("a"),))),
        (folded(*step("a"), cancellation()), asking("a")),
        (folded(wait("w", 5), cancellation()), WaitUntil("w", later(5))),
    ):
        with pytest.raises(InvalidTransition):
            decide(projection, command, NOW, NOW)


# -- outcomes --------------------------------------------------------------------------------------


def test_an_outcome_becomes_the_event_that_the_policy_says() -> None:
    policy = RetryPolicy.fixed(2, 5.0)
    first = folded(*step("a", policy))
    assert outcome_event(first, "a", 1, Outcome(7), NOW) == StepCompleted("a", 7)
    assert outcome_event(first, "a", 1, Outcome(error="no"), NOW) == StepRetrying("a", 1, "no", later(105))
    assert outcome_event(first, "a", 1, Outcome(error="no", retryable=False), NOW) == StepNonRetryable(
        "a", 1, "no"
    )
    second = folded(*step("a", policy), StepRetrying("a", 1, "no", later(5)), StepStarted("a", 2))
    assert outcome_event(second, "a", 2, Outcome(error="no"), NOW) == StepFailed("a", 2, "no")
    at_once = folded(*step("a"))
    assert outcome_event(at_once, "a", 1, Outcome(error="no"), NOW) == StepRetrying("a", 1, "no", None)


def test_an_outcome_that_comes_too_late_is_nothing() -> None:
    for projection, attempt in (
        (folded(*step("a"), StepCompleted("a", 1)), 1),
        (folded(*step("a"), StepRetrying("a", 1, "no", None)), 1),
        (folded(*step("a")), 2),
        (folded(*step("a"), cancellation()), 1),
        (folded(*step("a"), RunCancelled(None)), 1),
        (folded(), 1),
    ):
        assert outcome_event(projection, "a", attempt, Outcome(1), NOW) is None


def test_a_failed_step_ends_its_run_and_takes_the_open_ones_with_it() -> None:
    assert ending(folded()) == []
    none = RetryPolicy.none()
    reason = "given up because step 'bad' failed for good; its outcome is unknown"
    assert ending(folded(*step("a"), *step("bad", none), StepFailed("bad", 1, "no"))) == [
        StepCancelled("a", 1, reason),
        RunRetryExhausted("bad", 1, "no"),
    ]
    assert ending(folded(*step("bad"), StepNonRetryable("bad", 1, "no"))) == [RunFailedEvent("no")]
    assert ending(folded(*step("bad", none.continue_workflow_on_failure()), StepFailed("bad", 1, "no"))) == []
