"""Periodic tasks: a fixed delay after each success, nothing caught up, a guard against spinning."""

from __future__ import annotations

import pytest

from supervisor import (
    AttemptFailed,
    AttemptStarting,
    AttemptSucceeded,
    BackoffPolicy,
    BackoffScheduled,
    Fail,
    Fatal,
    OutcomeKind,
    TaskContext,
    TaskFinished,
    TaskSpec,
)
from tests.bodies import Scripted


def test_the_interval_starts_when_a_successful_attempt_completes(supervisor, recorder, clock) -> None:
    supervisor.add(TaskSpec.periodic("t", lambda ctx: ctx.sleep(3), 5))
    clock.advance(24)
    assert recorder.times(AttemptStarting) == [0.0, 8.0, 16.0, 24.0]
    assert recorder.times(BackoffScheduled) == [3.0, 11.0, 19.0]
    assert {(event.delay, event.cause, event.error) for event in recorder.of(BackoffScheduled)} == {
        (5.0, "interval", None)
    }
    assert [event.attempt for event in recorder.of(BackoffScheduled)] == [1, 2, 3]


def test_runs_that_were_missed_are_not_caught_up(supervisor, recorder, clock) -> None:
    supervisor.add(TaskSpec.periodic("t", lambda ctx: ctx.sleep(100 if ctx.attempt == 1 else 0), 5))
    clock.advance(111)
    assert recorder.times(AttemptStarting) == [0.0, 105.0, 110.0]


def test_the_first_run_waits_for_nothing(supervisor, recorder, clock) -> None:
    supervisor.add(TaskSpec.periodic("t", lambda: None, 3600))
    clock.settle()
    assert recorder.times(AttemptStarting) == [0.0]


def test_without_an_interval_a_guard_keeps_a_millisecond_between_starts(supervisor, recorder, clock) -> None:
    supervisor.add(TaskSpec.periodic("t", lambda: None, 0))
    clock.advance(0.0255)
    assert recorder.times(AttemptStarting) == [n / 1000 for n in range(26)]
    assert recorder.of(BackoffScheduled) == []


def test_a_slow_body_gets_no_delay_from_the_guard(supervisor, recorder, clock) -> None:
    supervisor.add(TaskSpec.periodic("t", lambda ctx: ctx.sleep(2), 0))
    clock.advance(6)
    assert recorder.times(AttemptStarting) == [0.0, 2.0, 4.0, 6.0]


def test_the_guard_counts_from_the_start_of_the_attempt(supervisor, recorder, clock) -> None:
    supervisor.add(TaskSpec.periodic("t", lambda ctx: ctx.sleep(0.0004), 0))
    clock.advance(0.003)
    assert recorder.times(AttemptStarting) == [0.0, 0.001, 0.002, 0.003]


def test_an_interval_below_the_guard_is_stretched_to_it(supervisor, recorder, clock) -> None:
    supervisor.add(TaskSpec.periodic("t", lambda: None, 0.0001))
    clock.advance(0.003)
    assert recorder.times(AttemptStarting) == [0.0, 0.001, 0.002, 0.003]
    assert {event.delay for event in recorder.of(BackoffScheduled)} == {0.001}


def test_a_failure_waits_for_its_backoff_and_not_for_the_interval(supervisor, recorder, clock) -> None:
    body = Scripted("done", Fail("boom"), Fail("boom"), "done")
    supervisor.add(TaskSpec.periodic("t", body, 100, backoff=BackoffPolicy.constant(1)))
    clock.advance(202)
    assert recorder.times(AttemptStarting) == [0.0, 100.0, 101.0, 102.0, 202.0]
    causes = [event.cause for event in recorder.of(BackoffScheduled)]
    assert causes == ["interval", "failure", "failure", "interval", "interval"]


def test_one_failure_among_many_successes_does_not_end_it(supervisor, recorder, clock) -> None:
    body = Scripted(Fail("boom"), "done")
    supervisor.add(TaskSpec.periodic("t", body, 1, max_retries=1, backoff=BackoffPolicy.constant(1)))
    clock.advance(100)
    assert len(recorder.of(AttemptFailed)) == 1
    assert len(recorder.of(AttemptSucceeded)) == 100
    assert recorder.of(TaskFinished) == []


def test_a_fatal_ends_it_at_once(supervisor, recorder) -> None:
    handle = supervisor.add(TaskSpec.periodic("t", Scripted("done", Fatal("broken")), 0))
    outcome = handle.wait()
    assert (outcome.kind, outcome.reason, outcome.value) == (OutcomeKind.FATAL, "broken", "done")
    assert recorder.of(BackoffScheduled) == []


def test_a_cancel_cuts_the_interval(supervisor, clock) -> None:
    handle = supervisor.add(TaskSpec.periodic("t", lambda: "done", 3600))
    clock.advance(10)
    assert handle.cancel()
    assert (handle.wait().kind, handle.wait().value, clock.monotonic()) == (
        OutcomeKind.CANCELED,
        "done",
        10.0,
    )


def test_a_cancel_ends_a_task_without_an_interval(supervisor, clock) -> None:
    handle = supervisor.add(TaskSpec.periodic("t", lambda: None, 0))
    clock.advance(0.01)
    assert handle.cancel()
    assert handle.wait().attempts == 11


def test_its_state_is_idle_between_two_runs(supervisor, clock) -> None:
    from datetime import timedelta

    handle = supervisor.add(TaskSpec.periodic("t", lambda ctx: ctx.sleep(2), 5))
    start = clock.now()
    clock.advance(1)
    info = handle.info()
    assert (info.state, info.attempt, info.next_attempt_at) == ("running", 1, None)
    clock.advance(2)
    info = handle.info()
    assert (info.state, info.attempt, info.streak, info.last_error) == ("idle", 1, 0, None)
    assert info.started_at == start
    assert info.next_attempt_at == start + timedelta(seconds=7)


def test_its_state_is_backoff_after_a_failure(supervisor, clock) -> None:
    from datetime import timedelta

    body = Scripted(Fail("boom"))
    handle = supervisor.add(TaskSpec.periodic("t", body, 1, backoff=BackoffPolicy.constant(5)))
    start = clock.now()
    clock.advance(6)
    info = handle.info()
    assert (info.state, info.attempt, info.streak) == ("backoff", 2, 2)
    assert info.last_error is not None
    assert info.last_error.startswith("Fail: boom")
    assert info.started_at == start + timedelta(seconds=5)
    assert info.next_attempt_at == start + timedelta(seconds=10)


@pytest.mark.parametrize("every", [1e12, 1e300])
def test_a_very_long_interval_is_shown_to_the_end_of_the_calendar(supervisor, clock, every) -> None:
    handle = supervisor.add(TaskSpec.periodic("t", lambda: None, every))
    clock.settle()
    assert handle.info().next_attempt_at.year == 9999
    assert supervisor.tasks()[0].state == "idle"


def test_many_periodic_tasks_keep_their_times(supervisor, clock) -> None:
    starts: dict[int, list[float]] = {}

    def body(ctx: TaskContext, every: int) -> None:
        starts.setdefault(every, []).append(clock.monotonic())

    supervisor.add_all([TaskSpec.periodic(f"t{n}", body, n, args=(n,)) for n in range(1, 30)])
    clock.advance(60)
    assert starts == {n: [float(at) for at in range(0, 61, n)] for n in range(1, 30)}
