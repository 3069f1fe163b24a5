"""What may follow what, and what a history says: every rule once as it is allowed and once as it is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from supervisor.durable.errors import InvalidTransition
from supervisor.durable.history import (
    Envelope,
    FlowEvent,
    RunCancellationRequested,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunRetryExhausted,
    RunStarted,
    SignalReceived,
    SignalWaitCompleted,
    SignalWaitCreated,
    StepCancelled,
    StepCompleted,
    StepCreated,
    StepFailed,
    StepNonRetryable,
    StepRetrying,
    StepStarted,
    WaitCompleted,
    WaitCreated,
)
from supervisor.durable.projection import Projection, Wakeup
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.snapshot import RunStatus, StepStatus, WaitStatus
from tests.durable.histories import BEGUN, CREATED, at, begun, dump, envelopes, fold, folded

ONCE = RetryPolicy.none()
TWICE = RetryPolicy.fixed(2, 0)
LATER = RetryPolicy.fixed(2, 60)
ONCE_AND_ON = ONCE.continue_workflow_on_failure()
CANCEL = RunCancellationRequested({"reason": "no stock"})


def step(policy: RetryPolicy = TWICE, step_id: str = "s") -> StepCreated:
    return StepCreated(step_id, "charge", {"n": 1}, policy)


def signal(signal_id: str, name: str = "paid", payload: object = None) -> SignalReceived:
    return SignalReceived({"signal_id": signal_id, "name": name, "payload": payload})


def refused(projection: Projection, event: FlowEvent) -> str:
    """Fold what may not follow; return why. It must change nothing, and what may follow still may."""
    before = dump(projection)
    with pytest.raises(InvalidTransition) as caught:
        fold(projection, event)
    assert dump(projection) == before
    return str(caught.value)


# -- the frame


def test_a_sequence_without_gaps_is_needed() -> None:
    made = folded(CREATED)
    before = dump(made)
    for sequence in (3, 1, 0, -1):
        with pytest.raises(
            InvalidTransition, match=rf"sequences of run 'run-1' must be contiguous: {sequence} follows 1"
        ):
            made.fold(Envelope("run-1", sequence, "e", at(2), RunStarted()))
    assert dump(made) == before


def test_an_event_of_another_run_is_refused() -> None:
    made = folded(CREATED)
    before = dump(made)
    with pytest.raises(InvalidTransition, match="an event of run 'run-2' can't belong to run 'run-1'"):
        made.fold(Envelope("run-2", 2, "e", at(2), RunStarted()))
    assert dump(made) == before


@pytest.mark.parametrize("event", [RunStarted(), step(), signal("g"), RunFailed("x"), CANCEL])
def test_the_first_event_is_run_created(event: FlowEvent) -> None:
    made = Projection("run-1")
    assert f"first run event must be run_created, got {event.type}" in refused(made, event)
    assert not made.exists
    for ask in (lambda: made.status, made.snapshot):
        with pytest.raises(InvalidTransition, match="run 'run-1' has no events"):
            ask()


def test_run_created_comes_once() -> None:
    for made in (folded(CREATED), begun()):
        assert "run_created must be the first event" in refused(made, CREATED)


def test_a_created_run_is_pending_and_tells_what_it_was_asked() -> None:
    made = folded(CREATED)
    assert (made.status, made.workflow, made.version, made.input) == ("pending", "checkout", "1", {"id": 7})
    assert (made.created_at, made.started_at, made.updated_at, made.sequence) == (at(1), None, at(1), 1)
    assert made.last_event_id == "event-1"


ENDS: list[tuple[FlowEvent, ...]] = [
    (RunCompleted({"ok": True}),),
    (RunFailed("boom"),),
    (RunCancelled("why"),),
    (step(ONCE), StepStarted("s", 1), StepFailed("s", 1, "boom"), RunRetryExhausted("s", 1, "boom")),
]
ANYTHING: list[FlowEvent] = [
    CREATED,
    RunStarted(),
    RunCompleted(),
    RunFailed("x"),
    RunCancelled(),
    CANCEL,
    RunRetryExhausted("s", 1, "boom"),
    step(TWICE, "new"),
    StepStarted("s", 1),
    StepCompleted("s"),
    StepCancelled("s", 1, "x"),
    WaitCreated("w", at(1)),
    WaitCompleted("w"),
    signal("g"),
    SignalWaitCreated("w", "paid"),
    SignalWaitCompleted("w", "g"),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end[-1].type)
def test_nothing_follows_an_end(end: tuple[FlowEvent, ...]) -> None:
    made = begun(*end)
    assert made.terminal
    for event in ANYTHING:
        assert f"{event.type} after terminal run state {made.status}" in refused(made, event)


def test_what_an_end_leaves_behind() -> None:
    assert begun(RunCompleted({"ok": True})).snapshot().output == {"ok": True}
    failed = begun(*ENDS[3]).snapshot()
    assert (failed.status, failed.error, failed.steps["s"].attempt) == ("failed", "boom", 1)
    assert begun(RunCancelled("why")).snapshot().cancellation_request is None


# -- the run


def test_only_a_pending_run_is_started() -> None:
    made = folded(CREATED)
    assert fold(made, RunStarted()).status is RunStatus.RUNNING
    assert made.started_at == at(2)
    assert "only a pending run can be started" in refused(made, RunStarted())
    assert "only a pending run can be started" in refused(folded(CREATED, CANCEL), RunStarted())


def test_a_pending_run_takes_signals_and_ends_but_no_work() -> None:
    made = folded(CREATED, signal("g"))
    for event in (step(), WaitCreated("w", at(9)), SignalWaitCreated("w", "paid")):
        assert "it has not been started" in refused(made, event)
    assert "only a running run can be completed" in refused(made, RunCompleted())
    assert made.status is RunStatus.PENDING
    assert folded(CREATED, RunFailed("x")).status is RunStatus.FAILED
    assert folded(CREATED, RunCancelled()).status is RunStatus.CANCELLED
    assert folded(CREATED, CANCEL, RunCancelled()).status is RunStatus.CANCELLED


def test_a_run_completes_while_something_is_open() -> None:
    made = begun(step(), StepStarted("s", 1), WaitCreated("w", at(9)), RunCompleted("done"))
    assert made.status is RunStatus.COMPLETED
    assert made.snapshot().waits["w"].status is WaitStatus.WAITING
    assert made.wakeups() == []


def test_a_canceling_run_may_clean_up_and_then_fail_or_be_canceled_but_not_complete() -> None:
    cleanup = (
        step(ONCE, "undo"),
        StepStarted("undo", 1),
        StepCompleted("undo", 1),
        WaitCreated("w", at(9)),
        WaitCompleted("w"),
    )
    made = begun(CANCEL, *cleanup)
    assert made.status is RunStatus.CANCELLING
    assert "only a running run can be completed" in refused(made, RunCompleted())
    assert "it was requested before" in refused(made, RunCancellationRequested())
    assert fold(made, RunCancelled("no stock")).status is RunStatus.CANCELLED
    assert begun(CANCEL, *cleanup, RunFailed("x")).status is RunStatus.FAILED


def test_a_canceling_run_is_never_suspended() -> None:
    made = begun(CANCEL, WaitCreated("w", at(9)))
    assert made.status is RunStatus.CANCELLING
    assert made.wakeups() == [Wakeup("wait", "run-1", "w", at(9))]


def test_a_run_can_be_ended_at_once_without_a_request() -> None:
    made = begun(WaitCreated("w", at(9)), RunCancelled())
    assert (made.status, made.wakeups()) == (RunStatus.CANCELLED, [])
    assert made.snapshot().waits["w"].status is WaitStatus.WAITING


def test_a_cancellation_ends_every_open_step_and_wait() -> None:
    made = begun(
        step(TWICE, "done"), StepStarted("done", 1), StepCompleted("done", 1),
        step(TWICE, "new"),
        step(TWICE, "running"), StepStarted("running", 1),
        step(LATER, "delayed"), StepStarted("delayed", 1), StepRetrying("delayed", 1, "boom", at(99)),
        WaitCreated("past", at(3)), WaitCompleted("past"),
        WaitCreated("timer", at(99)),
        SignalWaitCreated("mail", "paid"),
        signal("buffered", "other"),
    )  # fmt: skip
    fold(made, CANCEL)
    seen = made.snapshot()
    assert {key: each.status for key, each in seen.steps.items()} == {
        "done": StepStatus.COMPLETED,
        "new": StepStatus.CANCELLED,
        "running": StepStatus.CANCELLED,
        "delayed": StepStatus.CANCELLED,
    }
    assert {key: each.status for key, each in seen.waits.items()} == {
        "past": WaitStatus.COMPLETED,
        "timer": WaitStatus.CANCELLED,
        "mail": WaitStatus.CANCELLED,
    }
    assert {seen.steps["new"].ended_at, seen.waits["timer"].ended_at} == {at(made.sequence)}
    assert seen.steps["delayed"].retry_after is None
    assert (made.open_steps, made.wakeups(), made.pair()) == ([], [], None)
    assert (made.cancelling, made.cancel_requested_seq) == (True, made.sequence)
    request = seen.cancellation_request
    assert request is not None
    assert (request.reason, request.at) == ("no stock", at(made.sequence))
    for late in (StepCompleted("running", 1), StepStarted("delayed", 2), WaitCompleted("timer")):
        refused(made, late)
    # the signal waits on, and a wait of the clean-up may have it
    assert fold(made, SignalWaitCreated("again", "other")).pair() is not None


# -- steps


def test_a_step_has_an_id_of_its_own_and_no_blank_names() -> None:
    made = begun(step())
    assert "step 's' exists" in refused(made, step())
    assert "step 's' exists" in refused(fold(made, StepStarted("s", 1), StepCompleted("s")), step())
    for blank in (StepCreated("", "n"), StepCreated(" \t", "n"), StepCreated("t", ""), StepCreated("t", " ")):
        assert "step_id and step_name must not be blank" in refused(made, blank)


@pytest.mark.parametrize("milliseconds", [2**64 - 1, 2**63 - 1, 253_402_300_800_000])
def test_a_step_whose_delay_fits_no_datetime_is_refused(milliseconds: int) -> None:
    for policy in (
        RetryPolicy(3, milliseconds),
        RetryPolicy(3, 1, milliseconds, "exponential"),
        RetryPolicy(1, milliseconds),
    ):
        assert f"a delay of {milliseconds} ms, which can't be represented" in refused(begun(), step(policy))


def test_the_first_attempt_is_1_and_each_next_one_more() -> None:
    made = begun(step())
    for wrong in (0, 2):
        assert f"attempt {wrong} can't start" in refused(made, StepStarted("s", wrong))
    fold(made, StepStarted("s", 1))
    for wrong in (1, 2):
        assert "step 's' is running after attempt 1" in refused(made, StepStarted("s", wrong))
    fold(made, StepRetrying("s", 1, "boom"))
    for wrong in (1, 3):
        assert "step 's' is pending after attempt 1" in refused(made, StepStarted("s", wrong))
    assert fold(made, StepStarted("s", 2)).steps["s"].attempt == 2


@pytest.mark.parametrize(
    "event",
    [StepStarted("x", 1), StepCompleted("x"), StepRetrying("x", 1, "e"), StepFailed("x", 1, "e"),
     StepNonRetryable("x", 1, "e"), StepCancelled("x", 0, "e"), RunRetryExhausted("x", 1, "e")],
)  # fmt: skip
def test_a_step_that_does_not_exist_is_refused(event: FlowEvent) -> None:
    assert f"{event.type} is not allowed for run 'run-1' (running): there is no step 'x'" in refused(
        begun(), event
    )


OUTCOMES: list[FlowEvent] = [
    StepCompleted("s", 1),
    StepRetrying("s", 1, "boom"),
    StepFailed("s", 2, "boom"),
    StepNonRetryable("s", 1, "boom"),
]


@pytest.mark.parametrize("event", OUTCOMES, ids=lambda event: event.type)
def test_only_a_running_step_has_an_outcome(event: FlowEvent) -> None:
    for made in (
        begun(step()),
        begun(step(), StepStarted("s", 1), StepRetrying("s", 1, "x")),
        begun(step(), StepStarted("s", 1), StepCompleted("s")),
        begun(step(), StepStarted("s", 1), StepNonRetryable("s", 1, "x")),
        begun(step(), StepStarted("s", 1), StepCancelled("s", 1, "x")),
    ):
        assert f"{event.type} is not allowed" in refused(made, event)


@pytest.mark.parametrize(
    "event",
    [StepRetrying("s", 2, "e"), StepRetrying("s", 0, "e"), StepFailed("s", 2, "e"), StepNonRetryable("s", 2, "e"),
     StepNonRetryable("s", 0, "e")],
)  # fmt: skip
def test_an_outcome_of_another_attempt_is_refused(event: FlowEvent) -> None:
    made = begun(step(), StepStarted("s", 1))
    assert "step 's' is running, attempt 1, not running attempt" in refused(made, event)


def test_a_retry_needs_an_attempt_that_is_left() -> None:
    made = begun(step(TWICE), StepStarted("s", 1), StepRetrying("s", 1, "boom"), StepStarted("s", 2))
    assert "step 's' has used its 2 attempts" in refused(made, StepRetrying("s", 2, "boom"))
    assert fold(made, StepFailed("s", 2, "boom")).steps["s"].status is StepStatus.FAILED


def test_a_step_fails_only_when_no_attempt_is_left() -> None:
    made = begun(step(TWICE), StepStarted("s", 1))
    assert "step 's' has attempts left: 1 of 2" in refused(made, StepFailed("s", 1, "boom"))
    assert fold(made, StepNonRetryable("s", 1, "boom")).steps["s"].status is StepStatus.FAILED


def test_retry_after_is_there_when_the_policy_has_a_delay() -> None:
    delayed = begun(step(LATER), StepStarted("s", 1))
    assert "has a delay, and retry_after is missing" in refused(delayed, StepRetrying("s", 1, "boom"))
    drawn = begun(step(RetryPolicy.exponential(2, 0.001, 1)), StepStarted("s", 1))
    assert "has a delay, and retry_after is missing" in refused(drawn, StepRetrying("s", 1, "boom"))
    at_once = begun(step(TWICE), StepStarted("s", 1))
    assert "has no delay" in refused(at_once, StepRetrying("s", 1, "boom", at(9)))
    assert fold(at_once, StepRetrying("s", 1, "boom")).status is RunStatus.RUNNING
    assert fold(delayed, StepRetrying("s", 1, "boom", at(99))).status is RunStatus.SUSPENDED


def test_the_life_of_a_step_that_is_tried_twice() -> None:
    made = begun(step(LATER))
    first = made.snapshot().steps["s"]
    assert (first.status, first.attempt, first.created_at, first.started_at) == ("pending", 0, at(3), None)
    fold(made, StepStarted("s", 1), StepRetrying("s", 1, "boom", at(99)))
    second = made.snapshot().steps["s"]
    assert (second.status, second.attempt, second.error, second.retry_after) == ("pending", 1, "boom", at(99))
    fold(made, StepStarted("s", 2))
    third = made.snapshot().steps["s"]
    assert (third.status, third.started_at, third.retry_after) == ("running", at(6), None)
    fold(made, StepCompleted("s", {"ok": True}))
    last = made.snapshot().steps["s"]
    assert (last.status, last.output, last.error, last.ended_at) == ("completed", {"ok": True}, None, at(7))
    assert (last.step_name, last.input, last.retry) == ("charge", {"n": 1}, LATER)


def test_an_open_step_is_canceled_with_its_attempt_and_nothing_else() -> None:
    for events, attempt in (
        ((step(),), 0),
        ((step(), StepStarted("s", 1)), 1),
        ((step(LATER), StepStarted("s", 1), StepRetrying("s", 1, "e", at(99))), 1),
    ):
        made = begun(*events)
        assert "step_cancelled is not allowed" in refused(made, StepCancelled("s", attempt + 1, "why"))
        fold(made, StepCancelled("s", attempt, "its outcome is unknown"))
        seen = made.snapshot().steps["s"]
        assert (seen.status, seen.error, seen.retry_after) == ("cancelled", "its outcome is unknown", None)
        assert made.wakeups() == []
        assert "step_cancelled is not allowed" in refused(made, StepCancelled("s", attempt, "why"))


def test_an_exhausted_run_names_the_failure_of_its_step() -> None:
    failed = (
        step(TWICE),
        StepStarted("s", 1),
        StepRetrying("s", 1, "a"),
        StepStarted("s", 2),
        StepFailed("s", 2, "b"),
    )
    made = begun(*failed)
    for wrong in (
        RunRetryExhausted("s", 1, "b"),
        RunRetryExhausted("s", 2, "a"),
        RunRetryExhausted("s", 2, "other"),
    ):
        assert "step 's' has not failed like that" in refused(made, wrong)
    fold(made, RunRetryExhausted("s", 2, "b"))
    assert (made.status, made.error, made.steps["s"].attempt) == (RunStatus.FAILED, "b", 2)


def test_a_run_is_not_exhausted_by_a_step_that_runs_or_lets_it_continue() -> None:
    running = begun(step(ONCE), StepStarted("s", 1))
    assert "has not failed like that" in refused(running, RunRetryExhausted("s", 1, "boom"))
    continued = begun(step(ONCE_AND_ON), StepStarted("s", 1), StepFailed("s", 1, "boom"))
    assert "the policy of step 's' lets the workflow continue" in refused(
        continued, RunRetryExhausted("s", 1, "boom")
    )
    assert (continued.interrupted, continued.status) == (None, RunStatus.RUNNING)


@pytest.mark.parametrize("failure", [StepFailed("s", 1, "boom"), StepNonRetryable("s", 1, "boom")])
def test_a_failure_that_ends_the_run_is_remembered_until_the_run_has_ended(failure: FlowEvent) -> None:
    made = begun(step(ONCE, "other"), step(ONCE), StepStarted("other", 1), StepStarted("s", 1), failure)
    assert made.interrupted is made.steps["s"]
    fold(made, StepNonRetryable("other", 1, "later"))
    assert made.interrupted is made.steps["s"]
    fold(made, CANCEL)
    assert made.interrupted is made.steps["s"]
    assert fold(made, RunFailed("boom")).status is RunStatus.FAILED


def test_a_failure_beats_a_cancellation_that_comes_before_the_end() -> None:
    made = begun(step(ONCE), StepStarted("s", 1), StepFailed("s", 1, "boom"), CANCEL)
    assert fold(made, RunRetryExhausted("s", 1, "boom")).status is RunStatus.FAILED


# -- waits and signals


def test_a_wait_has_an_id_of_its_own_and_no_blank_names() -> None:
    made = begun(WaitCreated("w", at(9)))
    for again in (WaitCreated("w", at(9)), SignalWaitCreated("w", "paid")):
        assert "wait 'w' exists" in refused(made, again)
        assert "wait 'w' exists" in refused(begun(WaitCreated("w", at(9)), WaitCompleted("w")), again)
    for blank in (
        WaitCreated(" ", at(9)),
        SignalWaitCreated("", "paid"),
        SignalWaitCreated("v", ""),
        SignalWaitCreated("v", " "),
    ):
        assert "wait_id and signal_name must not be blank" in refused(made, blank)
    assert begun(step(TWICE, "same"), WaitCreated("same", at(9))).status is RunStatus.RUNNING


def test_an_open_wait_for_an_instant_is_completed_once() -> None:
    made = begun(WaitCreated("w", at(9)), SignalWaitCreated("v", "paid"))
    for wrong in ("x", "v"):
        assert f"no open wait for an instant has the id '{wrong}'" in refused(made, WaitCompleted(wrong))
    fold(made, WaitCompleted("w"))
    seen = made.snapshot().waits["w"]
    assert (seen.status, seen.resume_at, seen.ended_at, seen.signal_name) == ("completed", at(9), at(5), None)
    assert "no open wait" in refused(made, WaitCompleted("w"))


def test_a_signal_has_an_id_of_its_own_and_no_blank_names() -> None:
    made = begun(signal("g"))
    for again in (signal("g"), signal("g", "other"), signal("g", payload=1)):
        assert "signal 'g' came before" in refused(made, again)
    for blank in (signal(""), signal(" "), signal("h", ""), signal("h", "\n")):
        assert "signal_id and name must not be blank" in refused(made, blank)


def test_signals_and_waits_pair_first_in_first_out_on_both_sides() -> None:
    made = begun(
        signal("g1", payload=1), signal("other", "refund"), signal("g2", payload=2),
        SignalWaitCreated("w1", "paid"), SignalWaitCreated("w2", "paid"),
    )  # fmt: skip
    for wait_id, signal_id in (("w2", "g1"), ("w1", "g2"), ("w2", "g2")):
        assert "the oldest wait for 'paid' takes the oldest signal" in refused(
            made, SignalWaitCompleted(wait_id, signal_id)
        )
    for wait_id, signal_id in (("w1", "other"), ("w1", "x"), ("x", "g1"), ("x", "x")):
        assert "don't belong together" in refused(made, SignalWaitCompleted(wait_id, signal_id))
    pairs: list[tuple[str, str]] = []
    while (pair := made.pair()) is not None:
        wait, found = pair
        pairs.append((wait.wait_id, found.signal_id))
        fold(made, SignalWaitCompleted(wait.wait_id, found.signal_id))
    assert pairs == [("w1", "g1"), ("w2", "g2")]
    seen = made.snapshot()
    assert (seen.waits["w2"].payload, seen.waits["w2"].signal_id, seen.waits["w2"].status) == (
        2,
        "g2",
        "completed",
    )
    assert (seen.signals["g2"].wait_id, seen.signals["other"].wait_id) == ("w2", None)
    assert "don't belong together" in refused(made, SignalWaitCompleted("w1", "g1"))


def test_a_signal_that_was_taken_is_not_taken_again() -> None:
    made = begun(
        signal("g"),
        SignalWaitCreated("w1", "paid"),
        SignalWaitCompleted("w1", "g"),
        SignalWaitCreated("w2", "paid"),
    )
    assert "takes the oldest signal" in refused(made, SignalWaitCompleted("w2", "g"))
    fold(made, signal("g2"))
    assert "takes the oldest signal" in refused(made, SignalWaitCompleted("w2", "g"))


def test_names_pair_in_the_order_in_which_they_can() -> None:
    made = begun(
        SignalWaitCreated("a", "A"), SignalWaitCreated("b", "B"), SignalWaitCreated("a2", "A"),
        signal("s1", "B"), signal("s2", "A"), signal("s3", "A"),
    )  # fmt: skip
    pairs = []
    while (pair := made.pair()) is not None:
        pairs.append((pair[0].wait_id, pair[1].signal_id))
        fold(made, SignalWaitCompleted(*pairs[-1]))
    assert pairs == [("b", "s1"), ("a", "s2"), ("a2", "s3")]


def test_nothing_is_kept_of_names_whose_waits_are_over() -> None:
    made = begun()
    for n in range(50):
        fold(
            made,
            SignalWaitCreated(f"w{n}", f"name-{n}"),
            signal(f"g{n}", f"name-{n}"),
            SignalWaitCompleted(f"w{n}", f"g{n}"),
        )
    assert (made.waiting_for, made.buffered, made.matched, made.waiting) == ({}, {}, {}, {})


# -- suspended


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ((), "running"),
        ((WaitCreated("w", at(0)),), "suspended"),
        ((SignalWaitCreated("w", "paid"),), "suspended"),
        ((SignalWaitCreated("w", "paid"), signal("g", "other")), "suspended"),
        ((signal("g"),), "running"),
        # a signal that fits is left to be paired
        ((SignalWaitCreated("w", "paid"), signal("g")), "running"),
        ((signal("g"), SignalWaitCreated("w", "paid")), "running"),
        (
            (
                WaitCreated("v", at(9)),
                signal("g"),
                SignalWaitCreated("w", "paid"),
                SignalWaitCompleted("w", "g"),
            ),
            "suspended",
        ),
        ((WaitCreated("w", at(9)), WaitCompleted("w")), "running"),
        # a step that could run is left to be run
        ((WaitCreated("w", at(9)), step()), "running"),
        ((WaitCreated("w", at(9)), step(), StepStarted("s", 1)), "running"),
        ((WaitCreated("w", at(9)), step(), StepStarted("s", 1), StepRetrying("s", 1, "e")), "running"),
        ((WaitCreated("w", at(9)), step(), StepStarted("s", 1), StepCompleted("s")), "suspended"),
        ((step(LATER), StepStarted("s", 1), StepRetrying("s", 1, "e", at(0))), "suspended"),
        ((step(LATER), StepStarted("s", 1), StepRetrying("s", 1, "e", at(9)), step(TWICE, "t")), "running"),
        (
            (step(LATER), StepStarted("s", 1), StepRetrying("s", 1, "e", at(9)), StepStarted("s", 2)),
            "running",
        ),
        (
            (step(LATER), StepStarted("s", 1), StepRetrying("s", 1, "e", at(9)), StepCancelled("s", 1, "x")),
            "running",
        ),
        # a failure that ends the run is left to be settled
        ((WaitCreated("w", at(9)), step(ONCE), StepStarted("s", 1), StepFailed("s", 1, "e")), "running"),
        (
            (WaitCreated("w", at(9)), step(ONCE_AND_ON), StepStarted("s", 1), StepFailed("s", 1, "e")),
            "suspended",
        ),
    ],
)
def test_a_run_is_suspended_only_if_nothing_is_left_to_do_inside(
    events: tuple[FlowEvent, ...], status: str
) -> None:
    made = begun(*events)
    assert (made.status, made.snapshot().status) == (status, status)


def test_wakeups_are_the_open_waits_and_the_delayed_retries() -> None:
    made = begun(
        WaitCreated("past", at(-5)), WaitCreated("w", at(50)), SignalWaitCreated("m", "paid"),
        step(LATER), StepStarted("s", 1), StepRetrying("s", 1, "e", at(40)),
        step(TWICE, "t"), StepStarted("t", 1),
    )  # fmt: skip
    assert sorted(made.wakeups(), key=lambda each: each.order) == [
        Wakeup("wait", "run-1", "past", at(-5)),
        Wakeup("retry", "run-1", "s", at(40)),
        Wakeup("wait", "run-1", "w", at(50)),
    ]
    fold(made, WaitCompleted("past"), StepStarted("s", 2))
    assert made.wakeups() == [Wakeup("wait", "run-1", "w", at(50))]
    assert fold(made, RunCompleted()).wakeups() == []


# -- copies


def test_a_snapshot_shares_nothing_with_the_projection() -> None:
    made = begun(
        step(TWICE), StepStarted("s", 1), StepCompleted("s", {"list": [1]}),
        signal("g", payload={"k": [1]}), SignalWaitCreated("w", "paid"), SignalWaitCompleted("w", "g"),
    )  # fmt: skip
    before = dump(made)
    seen = made.snapshot()
    seen.input["id"] = 8
    seen.steps["s"].input["n"] = 2
    seen.steps["s"].output["list"].append(2)
    seen.waits["w"].payload["k"].append(2)
    seen.signals["g"].payload["k"].append(2)
    for part in (seen.steps, seen.waits, seen.signals):
        part.clear()
    assert dump(made) == before
    assert made.snapshot() == made.snapshot()
    assert made.snapshot() is not made.snapshot()


def test_a_snapshot_can_be_told_in_json() -> None:
    form = (
        begun(step(LATER), StepStarted("s", 1), StepRetrying("s", 1, "e", at(60)), CANCEL)
        .snapshot()
        .to_dict()
    )
    assert form == {
        "run_id": "run-1",
        "workflow": "checkout",
        "version": "1",
        "status": "cancelling",
        "input": {"id": 7},
        "output": None,
        "error": None,
        "steps": {
            "s": {
                "step_id": "s",
                "step_name": "charge",
                "status": "cancelled",
                "attempt": 1,
                "input": {"n": 1},
                "output": None,
                "error": "e",
                "retry": {"max_attempts": 2, "delay_ms": 60000},
                "retry_after": None,
                "created_at": "2026-01-01T00:00:03.000000Z",
                "started_at": "2026-01-01T00:00:04.000000Z",
                "ended_at": "2026-01-01T00:00:06.000000Z",
            }
        },
        "waits": {},
        "signals": {},
        "cancellation_request": {"reason": "no stock", "at": "2026-01-01T00:00:06.000000Z"},
        "sequence": 6,
        "created_at": "2026-01-01T00:00:01.000000Z",
        "updated_at": "2026-01-01T00:00:06.000000Z",
    }
    assert {type(form["status"]), type(form["steps"]["s"]["status"])} == {str}


def test_terminal_is_what_an_ended_run_is() -> None:
    assert {each for each in RunStatus if each.terminal} == {"completed", "failed", "cancelled"}
    assert begun(RunCompleted()).snapshot().terminal
    assert not begun().snapshot().terminal


def test_the_history_is_kept_for_who_wants_it() -> None:
    wanted = envelopes([*BEGUN, RunCompleted()])
    made = Projection("run-1").keeping_history()
    for each in wanted:
        made.fold(each)
    assert made.history == wanted
    with pytest.raises(InvalidTransition):
        fold(made, RunStarted())
    assert made.history == wanted
    assert begun().history is None


def test_open_steps_come_in_order_of_creation() -> None:
    made = begun(
        step(TWICE, "b"), step(TWICE, "a"), step(TWICE, "c"), StepStarted("a", 1), StepCompleted("a")
    )
    assert [each.step_id for each in made.open_steps] == ["b", "c"]


def test_an_instant_far_away_is_kept() -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert begun(WaitCreated("w", last)).wakeups()[0].due_at == last
    assert last - timedelta(0) == last


def test_a_spec_may_hold_more_than_name_and_version() -> None:
    made = folded(RunCreated({"name": "w", "version": "2", "more": {"x": 1}}, None))
    assert (made.workflow, made.version, made.input) == ("w", "2", None)
