"""A deadline decides at its instant; what a body that ignores it does later changes nothing."""

from __future__ import annotations

import pytest

from supervisor import (
    AttemptFailed,
    AttemptOverrunning,
    AttemptReturnedLate,
    AttemptStarting,
    AttemptTimedOut,
    BackoffPolicy,
    BackoffScheduled,
    Canceled,
    CancelReason,
    Fail,
    Fatal,
    OutcomeKind,
    TaskContext,
    TaskFinished,
    TaskRemoved,
    TaskSpec,
    Timeout,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.bodies import Scripted, sleeps, waits

SECOND = BackoffPolicy.constant(1)


# -- 1: the verdict


def test_the_verdict_falls_at_the_deadline_and_not_before(supervisor, recorder, clock) -> None:
    handle = supervisor.add(TaskSpec.once("t", waits, timeout=5))
    clock.advance(4.999)
    assert recorder.of(AttemptTimedOut) == []
    outcome = handle.wait()
    (verdict,) = recorder.of(AttemptTimedOut)
    assert recorder.times(AttemptTimedOut) == [5.0]
    assert (verdict.attempt, verdict.duration, verdict.timeout) == (1, 5.0, 5.0)
    assert (outcome.kind, outcome.reason, outcome.attempts) == (OutcomeKind.FAILED, "timed out after 5 s", 1)
    assert isinstance(outcome.error, Timeout)
    assert (outcome.value, outcome.traceback, outcome.exit_code) == (None, None, None)
    assert recorder.kinds(handle)[1:3] == ["attempt_starting", "attempt_timed_out"]


def test_the_verdict_is_published_at_once_although_the_body_is_stuck(
    supervisor, stubborn, recorder, clock
) -> None:
    supervisor.add(TaskSpec.once("t", stubborn, timeout=5))
    clock.advance(6)
    assert recorder.times(AttemptTimedOut) == [5.0]
    assert recorder.of(TaskFinished) == []


def test_a_deadline_cancels_the_attempt_with_its_reason(supervisor, clock) -> None:
    seen: list[object] = []

    def body(ctx: TaskContext) -> None:
        seen.append((ctx.canceled, ctx.cancel_reason, ctx.deadline, ctx.remaining()))
        assert ctx.wait()
        seen.append((ctx.canceled, ctx.cancel_reason, ctx.deadline, ctx.remaining()))

    supervisor.add(TaskSpec.once("t", body, timeout=5)).wait()
    assert seen == [(False, None, 5.0, 5.0), (True, CancelReason.TIMEOUT, 5.0, 0.0)]


@pytest.mark.parametrize("wait", ["wait", "sleep", "check"])
def test_a_deadline_wakes_what_the_context_waits_with(supervisor, clock, wait) -> None:
    def body(ctx: TaskContext) -> None:
        if wait == "wait":
            ctx.wait(3600)
        elif wait == "sleep":
            ctx.sleep(3600)
        else:
            clock.sleep(5.5)
            ctx.check()

    outcome = supervisor.add(TaskSpec.once("t", body, timeout=5)).wait()
    assert clock.monotonic() == (5.5 if wait == "check" else 5.0)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.FAILED, "timed out after 5 s")


def test_callbacks_on_cancel_run_at_the_deadline_while_the_body_is_stuck(supervisor, clock) -> None:
    calls: list[object] = []
    opened = clock.latch()

    def body(ctx: TaskContext) -> None:
        ctx.on_cancel(lambda: calls.append((clock.monotonic(), ctx.cancel_reason)))
        ctx.on_cancel(lambda: 1 / 0)
        ctx.on_cancel(opened.open)
        opened.wait()  # as a blocking call that only closing its socket ends

    outcome = supervisor.add(TaskSpec.once("t", body, timeout=5)).wait()
    assert calls == [(5.0, CancelReason.TIMEOUT)]
    assert outcome.reason == "timed out after 5 s"
    assert clock.monotonic() == 5.0


def test_a_callback_that_blocks_holds_up_no_other_task(supervisor, recorder, clock) -> None:
    gate = clock.latch()

    def body(ctx: TaskContext) -> None:
        ctx.on_cancel(gate.wait)
        ctx.wait()

    supervisor.add(TaskSpec.once("blocked", body, timeout=5))
    supervisor.add(TaskSpec.once("other", waits, timeout=6))
    clock.advance(10)
    assert recorder.times(AttemptTimedOut) == [5.0, 6.0]
    assert len(recorder.of(TaskRemoved)) == 2
    gate.open()


def test_a_deadline_cancels_the_attempt_and_not_the_task(supervisor, recorder, clock) -> None:
    def body(ctx: TaskContext) -> str:
        if ctx.attempt == 1:
            ctx.wait()
        assert not ctx.canceled
        return f"attempt {ctx.attempt}"

    handle = supervisor.add(TaskSpec.restartable("t", body, timeout=5, backoff=SECOND))
    outcome = handle.wait()
    assert (outcome.kind, outcome.value, outcome.reason) == (OutcomeKind.COMPLETED, "attempt 2", None)
    assert recorder.kinds(handle)[1:-2] == [
        "attempt_starting",
        "attempt_timed_out",
        "backoff_scheduled",
        "attempt_starting",
        "attempt_succeeded",
    ]


def test_each_attempt_has_the_whole_timeout(supervisor, recorder, clock) -> None:
    handle = supervisor.add(TaskSpec.restartable("t", waits, timeout=5, max_retries=2, backoff=SECOND))
    outcome = handle.wait()
    assert recorder.times(AttemptTimedOut) == [5.0, 11.0, 17.0]
    assert [event.attempt for event in recorder.of(AttemptTimedOut)] == [1, 2, 3]
    assert recorder.of(AttemptFailed) == []
    assert [(event.delay, event.cause, event.error) for event in recorder.of(BackoffScheduled)] == [
        (1.0, "failure", "timed out after 5 s")
    ] * 2
    assert outcome.reason == "retry limit reached after 2 of 2 retries: timed out after 5 s"


def test_the_verdict_of_a_periodic_task_is_retried_by_backoff(supervisor, recorder, clock) -> None:
    supervisor.add(TaskSpec.periodic("t", waits, 100, timeout=5, backoff=SECOND))
    clock.advance(12)
    assert recorder.times(AttemptStarting) == [0.0, 6.0, 12.0]


def test_a_timeout_that_the_body_raises_is_an_ordinary_failure(supervisor, recorder) -> None:
    handle = supervisor.add(TaskSpec.once("t", Scripted(Timeout("7 s are over")), timeout=60))
    assert (handle.wait().kind, handle.wait().reason) == (OutcomeKind.FAILED, "7 s are over")
    assert len(recorder.of(AttemptFailed)) == 1
    assert recorder.of(AttemptTimedOut) == []


@pytest.mark.parametrize("timeout", [0, None, float("inf")])
def test_no_timeout_is_no_deadline(supervisor, recorder, clock, timeout) -> None:
    def body(ctx: TaskContext) -> object:
        ctx.sleep(1e6)
        return ctx.deadline, ctx.remaining()

    handle = supervisor.add(TaskSpec.once("t", body, timeout=timeout))
    assert handle.wait().value == (None, None)
    assert recorder.of(AttemptTimedOut) == []


def test_the_deadline_counts_from_the_attempt_after_the_wait_for_a_permit(make_supervisor, recorder) -> None:
    supervisor = make_supervisor(max_concurrent=1)
    supervisor.add(TaskSpec.once("first", sleeps, args=(30,)))
    handle = supervisor.add(TaskSpec.once("second", waits, timeout=5))
    handle.wait()
    assert recorder.times(AttemptStarting, "second") == [30.0]
    assert recorder.times(AttemptTimedOut, "second") == [35.0]
    assert recorder.of(AttemptTimedOut)[0].duration == 5.0


# -- who wins at the deadline


def in_steps(ctx: TaskContext, step: float, count: int) -> str:
    for _ in range(count):
        ctx.sleep(step)
    return "in time"


@pytest.mark.parametrize(
    ("timeout", "step", "count"), [(5, 5, 1), (0.3, 0.1, 3), (1, 0.1, 10), (0.7, 0.1, 7), (2.1, 0.7, 3)]
)
def test_a_body_that_returns_exactly_at_its_deadline_has_won(
    supervisor, recorder, clock, timeout, step, count
) -> None:
    handle = supervisor.add(TaskSpec.once("t", in_steps, timeout=timeout, args=(step, count)))
    assert handle.wait().value == "in time"
    assert clock.monotonic() == timeout
    assert recorder.of(AttemptTimedOut) == []


@pytest.mark.parametrize("seed", range(10))
def test_a_return_at_the_deadline_wins_in_every_interleaving(seed) -> None:
    from supervisor import Supervisor

    clock = VirtualClock(seed)
    with Supervisor(clock=clock) as supervisor:
        specs = [TaskSpec.once(f"t{n}", in_steps, timeout=0.3, args=(0.1, 3)) for n in range(3)]
        handles = supervisor.add_all(specs)
        late = supervisor.add(TaskSpec.once("late", in_steps, timeout=0.3, args=(0.30001, 1)))
        assert [handle.wait().value for handle in handles] == ["in time"] * 3
        assert late.wait().reason == "timed out after 0.3 s"


@pytest.mark.parametrize("seed", range(30))
def test_a_return_at_the_deadline_wins_whatever_the_body_waits_on(seed) -> None:
    from supervisor import Supervisor

    clock = VirtualClock(seed)
    with Supervisor(clock=clock) as supervisor:
        waits = (clock.sleep, clock.latch().wait, lambda seconds: clock.latch().wait(seconds))
        specs = [TaskSpec.once(f"t{n}", wait, timeout=5, args=(5,)) for n, wait in enumerate(waits)]
        assert [handle.wait().kind.value for handle in supervisor.add_all(specs)] == ["completed"] * 3
        assert clock.monotonic() == 5.0


def test_a_body_that_raises_exactly_at_its_deadline_has_failed_by_itself(supervisor, recorder) -> None:
    def body(ctx: TaskContext) -> None:
        ctx.sleep(5)
        raise Fatal("broken")

    assert supervisor.add(TaskSpec.once("t", body, timeout=5)).wait().kind is OutcomeKind.FATAL
    assert recorder.of(AttemptTimedOut) == []


def test_a_return_right_after_the_deadline_has_lost(supervisor, clock) -> None:
    handle = supervisor.add(TaskSpec.once("t", lambda: clock.sleep(5.000001), timeout=5))
    assert handle.wait().kind is OutcomeKind.FAILED


# -- 2: what a late body does


@pytest.mark.parametrize(
    "late",
    [
        "a value",
        Fatal("late", exit_code=3),
        Fail("late"),
        ValueError("late"),
        Canceled("late"),
        SystemExit(3),
        KeyboardInterrupt(),
    ],
)
def test_what_a_late_body_returns_or_raises_changes_nothing(supervisor, recorder, clock, late) -> None:
    def body(ctx: TaskContext) -> object:
        if ctx.attempt == 2:
            return "second"
        clock.sleep(8)
        if isinstance(late, BaseException):
            raise late
        return late

    handle = supervisor.add(TaskSpec.restartable("t", body, timeout=5, backoff=SECOND))
    outcome = handle.wait()
    assert (outcome.kind, outcome.value, outcome.attempts) == (OutcomeKind.COMPLETED, "second", 2)
    assert recorder.of(AttemptFailed) == []
    (returned,) = recorder.of(AttemptReturnedLate)
    ended = type(late).__name__ if isinstance(late, BaseException) else "returned"
    assert (returned.attempt, returned.late_by, returned.ended) == (1, 3.0, ended)


def test_the_next_attempt_starts_only_after_the_late_body_has_returned(supervisor, recorder, clock) -> None:
    def body() -> None:
        clock.sleep(8)

    supervisor.add(TaskSpec.restartable("t", body, timeout=5, backoff=SECOND))
    clock.advance(20)
    assert recorder.times(AttemptTimedOut) == [5.0, 14.0]
    assert recorder.times(AttemptReturnedLate) == [8.0, 17.0]
    assert recorder.times(BackoffScheduled) == [8.0, 17.0]
    assert recorder.times(AttemptStarting) == [0.0, 9.0, 18.0]


def test_a_body_that_answers_its_deadline_did_not_return_late(supervisor, recorder) -> None:
    supervisor.add(TaskSpec.once("t", waits, timeout=5)).wait()
    assert recorder.of(AttemptReturnedLate) == []


def test_a_late_body_keeps_its_permit(make_supervisor, stubborn, recorder, clock) -> None:
    supervisor = make_supervisor(max_concurrent=1)
    supervisor.add(TaskSpec.once("stuck", stubborn, timeout=5))
    other = supervisor.add(TaskSpec.once("other", lambda: "done"))
    clock.advance(100)
    assert recorder.times(AttemptStarting, "other") == []
    stubborn.release()
    assert other.wait().value == "done"
    assert recorder.times(AttemptStarting, "other") == [100.0]


# -- 3: given up


def test_a_body_that_overruns_is_given_up_with_its_stack(supervisor, stubborn, recorder, clock) -> None:
    handle = supervisor.add(TaskSpec.restartable("t", stubborn, timeout=5, overrun=3))
    outcome = handle.wait()
    assert clock.monotonic() == 8.0
    assert (outcome.kind, outcome.attempts, outcome.error) == (OutcomeKind.FORCE_ABORTED, 1, None)
    assert outcome.reason is not None
    assert outcome.reason.startswith("still running 3 s after its deadline")
    assert "in __call__" in outcome.reason
    assert "self._latch.wait()" in outcome.reason
    assert recorder.kinds(handle) == [
        "task_added",
        "attempt_starting",
        "attempt_timed_out",
        "task_finished",
        "task_removed",
    ]
    assert recorder.of(TaskFinished)[0].reason == outcome.reason
    clock.advance(1000)
    assert stubborn.calls == 1


@pytest.mark.parametrize("late", ["a value", Fatal("late"), ValueError("late")])
def test_the_end_of_a_body_that_was_given_up_is_not_told(supervisor, recorder, clock, late) -> None:
    gate = clock.latch()

    def body() -> object:
        gate.wait()
        if isinstance(late, BaseException):
            raise late
        return late

    handle = supervisor.add(TaskSpec.restartable("t", body, timeout=5, overrun=3))
    outcome, events = handle.wait(), recorder.kinds(handle)
    gate.open()
    clock.advance(100)
    assert recorder.kinds(handle) == events
    assert handle.wait() is outcome
    assert handle.info().state == "finished"


def test_a_body_that_returns_within_its_overrun_is_retried(supervisor, recorder, clock) -> None:
    def body(ctx: TaskContext) -> str:
        if ctx.attempt == 1:
            clock.sleep(7.5)
        return "done"

    handle = supervisor.add(TaskSpec.restartable("t", body, timeout=5, overrun=3, backoff=SECOND))
    assert (handle.wait().value, clock.monotonic()) == ("done", 8.5)


def test_an_overrun_of_zero_gives_up_at_the_deadline(supervisor, stubborn, clock) -> None:
    outcome = supervisor.add(TaskSpec.once("t", stubborn, timeout=5, overrun=0)).wait()
    assert (outcome.kind, clock.monotonic()) == (OutcomeKind.FORCE_ABORTED, 5.0)


@pytest.mark.parametrize("seed", [None, *range(10)])
def test_an_overrun_of_zero_leaves_no_time_to_answer(seed) -> None:
    from supervisor import Supervisor

    with Supervisor(clock=VirtualClock(seed)) as supervisor:
        handle = supervisor.add(TaskSpec.restartable("t", waits, timeout=5, overrun=0))
        assert handle.wait().kind is OutcomeKind.FORCE_ABORTED


def test_without_an_overrun_a_stuck_body_is_waited_for(supervisor, stubborn, clock) -> None:
    handle = supervisor.add(TaskSpec.once("t", stubborn, timeout=5))
    clock.advance(1e6)
    assert not handle.done()
    stubborn.release()
    assert handle.wait().reason == "timed out after 5 s"


def test_a_body_that_was_given_up_keeps_its_name_until_its_thread_ends(supervisor, stubborn, clock) -> None:
    from supervisor import TaskAlreadyExists

    handle = supervisor.add(TaskSpec.once("t", stubborn, timeout=5, overrun=3))
    handle.wait()
    assert handle.info().state == "stuck"
    assert [(info.name, info.state) for info in supervisor.tasks()] == [("t", "stuck")]
    assert supervisor.get("t") == handle
    assert supervisor.wait(0) is True
    with pytest.raises(TaskAlreadyExists, match="stuck"):
        supervisor.add(TaskSpec.once("t", lambda: "again"))
    stubborn.release()
    clock.settle()
    assert supervisor.tasks() == []
    assert supervisor.add(TaskSpec.once("t", lambda: "again")).wait().value == "again"


def test_a_body_that_was_given_up_keeps_its_permit_until_its_thread_ends(
    make_supervisor, stubborn, recorder, clock
) -> None:
    supervisor = make_supervisor(max_concurrent=1)
    supervisor.add(TaskSpec.once("stuck", stubborn, timeout=5, overrun=3)).wait()
    other = supervisor.add(TaskSpec.once("other", lambda: "done"))
    clock.advance(100)
    assert recorder.of(AttemptStarting, "other") == []
    stubborn.release()
    assert other.wait().value == "done"


def test_a_body_that_was_given_up_counts_as_a_task_until_its_thread_ends(
    make_supervisor, stubborn, clock
) -> None:
    from supervisor import CapacityExceeded

    supervisor = make_supervisor(max_tasks=1)
    supervisor.add(TaskSpec.once("stuck", stubborn, timeout=5, overrun=3)).wait()
    with pytest.raises(CapacityExceeded, match="max_tasks"):
        supervisor.add(TaskSpec.once("other", lambda: "done"))
    stubborn.release()
    clock.settle()
    assert supervisor.add(TaskSpec.once("other", lambda: "done")).wait().value == "done"


def test_the_last_success_stays_the_value_of_a_task_that_is_given_up(supervisor, stubborn) -> None:
    body = iter([lambda: 42, stubborn])
    handle = supervisor.add(TaskSpec.periodic("t", lambda: next(body)(), 1, timeout=5, overrun=3))
    assert (handle.wait().kind, handle.wait().value) == (OutcomeKind.FORCE_ABORTED, 42)


# -- 4: reports


def test_an_overrun_is_reported_10_30_and_70_seconds_after_the_deadline(
    supervisor, stubborn, recorder, clock
) -> None:
    supervisor.add(TaskSpec.restartable("t", stubborn, timeout=5, backoff=SECOND))
    clock.advance(5 + 149)
    assert recorder.times(AttemptOverrunning) == [15.0, 35.0, 75.0]
    clock.advance(1)
    reports = recorder.of(AttemptOverrunning)
    assert [report.late_by for report in reports] == [10.0, 30.0, 70.0, 150.0]
    assert {report.attempt for report in reports} == {1}
    assert all("self._latch.wait()" in report.stack for report in reports)
    stubborn.release()
    clock.settle()
    (returned,) = recorder.of(AttemptReturnedLate)
    assert (returned.attempt, returned.late_by, returned.ended) == (1, 150.0, "returned")
    clock.advance(1000)
    assert len(recorder.of(AttemptOverrunning)) == 4


def test_the_reports_end_when_the_body_is_given_up(supervisor, stubborn, recorder, clock) -> None:
    supervisor.add(TaskSpec.once("t", stubborn, timeout=5, overrun=20)).wait()
    clock.advance(1000)
    assert recorder.times(AttemptOverrunning) == [15.0]


def test_the_backoff_counts_from_the_late_return(supervisor, recorder, clock) -> None:
    def body(ctx: TaskContext) -> str:
        if ctx.attempt == 1:
            clock.sleep(45)
        return "done"

    handle = supervisor.add(TaskSpec.restartable("t", body, timeout=5, backoff=SECOND))
    handle.wait()
    assert recorder.times(AttemptStarting) == [0.0, 46.0]
    assert recorder.kinds(handle)[1:-2] == [
        "attempt_starting",
        "attempt_timed_out",
        "attempt_overrunning",
        "attempt_overrunning",
        "attempt_returned_late",
        "backoff_scheduled",
        "attempt_starting",
        "attempt_succeeded",
    ]


# -- together with a request to stop


def test_a_deadline_under_a_task_that_was_asked_to_stop_wins_where_no_retry_is_left(
    supervisor, clock, recorder
) -> None:
    handle = supervisor.add(TaskSpec.once("t", lambda: clock.sleep(8), timeout=5))
    clock.advance(1)
    assert supervisor.remove(handle)
    assert handle.wait().reason == "timed out after 5 s"
    assert recorder.times(AttemptTimedOut) == [5.0]


def test_a_deadline_under_a_task_that_was_asked_to_stop_is_not_retried(supervisor, clock, recorder) -> None:
    handle = supervisor.add(TaskSpec.restartable("t", lambda: clock.sleep(8), timeout=5))
    clock.advance(1)
    assert supervisor.remove(handle)
    assert handle.wait().kind is OutcomeKind.CANCELED
    assert (clock.monotonic(), recorder.of(BackoffScheduled)) == (8.0, [])


def test_the_first_reason_stays_when_the_deadline_comes_after_the_request(supervisor, clock) -> None:
    reasons: list[object] = []

    def body(ctx: TaskContext) -> None:
        ctx.wait()
        reasons.append(ctx.cancel_reason)
        clock.sleep(5)
        reasons.append(ctx.cancel_reason)

    handle = supervisor.add(TaskSpec.once("t", body, timeout=5))
    clock.advance(1)
    supervisor.remove(handle)
    handle.wait()
    assert reasons == [CancelReason.REQUESTED] * 2


def test_many_deadlines_at_one_instant_are_all_judged_then(supervisor, recorder: EventRecorder) -> None:
    handles = supervisor.add_all([TaskSpec.once(f"t{n}", waits, timeout=5) for n in range(100)])
    assert {handle.wait().kind for handle in handles} == {OutcomeKind.FAILED}
    assert recorder.times(AttemptTimedOut) == [5.0] * 100
