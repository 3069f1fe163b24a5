"""A request to stop: what it interrupts, what it does not, and what wins over it."""

from __future__ import annotations

import pytest

from supervisor import (
    AttemptStarting,
    BackoffPolicy,
    BackoffScheduled,
    Canceled,
    CancelReason,
    Fail,
    Fatal,
    GraceExceeded,
    OutcomeKind,
    Supervisor,
    TaskCancelRequested,
    TaskContext,
    TaskFinished,
    TaskSpec,
    Timeout,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.bodies import Scripted, sleeps, waits

SECOND = BackoffPolicy.constant(1)
MAKERS = {
    "once": TaskSpec.once,
    "restartable": TaskSpec.restartable,
    "periodic": lambda name, task, **settings: TaskSpec.periodic(name, task, 5, **settings),
}
ONE_RETRY = {"max_retries": 1, "backoff": SECOND}


def then(result: object) -> object:
    """Make a body that waits to be asked to stop and then gives `result`."""

    def body(ctx: TaskContext) -> object:
        ctx.wait()
        if isinstance(result, BaseException):
            raise result
        return result

    return body


# -- what the body answers


@pytest.mark.parametrize("maker", MAKERS)
def test_a_body_that_returns_when_asked_to_stop_is_canceled(supervisor, recorder, clock, maker) -> None:
    handle = supervisor.add(MAKERS[maker]("t", waits))
    clock.advance(3)
    assert supervisor.cancel(handle) is True
    outcome = handle.wait()
    assert (outcome.kind, outcome.reason, outcome.value) == (OutcomeKind.CANCELED, None, "stopped")
    assert recorder.kinds(handle)[1:] == [
        "attempt_starting",
        "task_cancel_requested",
        "attempt_succeeded",
        "task_finished",
        "task_removed",
    ]
    assert recorder.of(TaskCancelRequested)[0].reason is CancelReason.REQUESTED


@pytest.mark.parametrize("maker", MAKERS)
def test_a_body_that_raises_canceled_when_asked_to_stop_is_canceled(
    supervisor, recorder, clock, maker
) -> None:
    handle = supervisor.add(MAKERS[maker]("t", sleeps, args=(100,)))
    clock.advance(3)
    assert supervisor.cancel(handle) is True
    outcome = handle.wait()
    assert (outcome.kind, outcome.reason, outcome.error) == (OutcomeKind.CANCELED, None, None)
    assert recorder.kinds(handle)[1:] == [
        "attempt_starting",
        "task_cancel_requested",
        "attempt_canceled",
        "task_finished",
        "task_removed",
    ]
    assert clock.monotonic() == 3.0


@pytest.mark.parametrize("error", [Fail("boom"), Timeout("slow"), ValueError("boom")])
def test_a_failure_of_a_task_that_runs_once_wins_over_the_request(supervisor, clock, error) -> None:
    handle = supervisor.add(TaskSpec.once("t", then(error)))
    clock.settle()
    handle.cancel()
    assert (handle.wait().kind, handle.wait().error) == (OutcomeKind.FAILED, error)


@pytest.mark.parametrize("maker", ["restartable", "periodic"])
def test_a_failure_at_the_limit_wins_over_the_request(supervisor, clock, maker) -> None:
    def body(ctx: TaskContext) -> None:
        if ctx.attempt == 2:
            ctx.wait()
        raise Fail("boom")

    handle = supervisor.add(MAKERS[maker]("t", body, **ONE_RETRY))
    clock.advance(5)
    handle.cancel()
    assert handle.wait().kind is OutcomeKind.FAILED
    assert handle.wait().reason == "retry limit reached after 1 of 1 retries: boom"


@pytest.mark.parametrize("maker", ["restartable", "periodic"])
def test_a_failure_below_the_limit_is_canceled_without_a_backoff(supervisor, recorder, clock, maker) -> None:
    handle = supervisor.add(MAKERS[maker]("t", then(Fail("boom")), **ONE_RETRY))
    clock.settle()
    handle.cancel()
    assert (handle.wait().kind, handle.wait().attempts) == (OutcomeKind.CANCELED, 1)
    assert recorder.of(BackoffScheduled) == []


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Fatal("broken"), OutcomeKind.FATAL),
        (SystemExit(3), OutcomeKind.FATAL),
        (KeyboardInterrupt(), OutcomeKind.PANICKED),
    ],
)
def test_a_permanent_failure_wins_over_the_request(supervisor, clock, maker, error, kind) -> None:
    handle = supervisor.add(MAKERS[maker]("t", then(error)))
    clock.settle()
    handle.cancel()
    assert handle.wait().kind is kind


def test_an_except_exception_of_the_body_does_not_swallow_the_stop(supervisor, clock) -> None:
    def body(ctx: TaskContext) -> None:
        while True:
            try:
                ctx.sleep(1)
            except Exception:
                continue

    handle = supervisor.add(TaskSpec.once("t", body))
    clock.advance(10)
    assert handle.cancel()
    assert clock.monotonic() == 10.0


def test_a_body_that_swallows_canceled_is_judged_by_what_it_does_next(supervisor, clock) -> None:
    def body(ctx: TaskContext) -> None:
        try:
            ctx.sleep(100)
        except Canceled:
            pass
        raise Fail("could not tidy up")

    handle = supervisor.add(TaskSpec.once("t", body))
    clock.settle()
    handle.cancel()
    assert (handle.wait().kind, handle.wait().reason) == (OutcomeKind.FAILED, "could not tidy up")


# -- when it comes


def test_a_task_that_is_stopped_before_its_thread_runs_has_no_attempt(supervisor, recorder) -> None:
    body = Scripted("ran")
    handle = supervisor.add(TaskSpec.periodic("t", body, 0))
    assert handle.cancel()
    assert (handle.wait().kind, handle.wait().attempts, body.calls) == (OutcomeKind.CANCELED, 0, 0)
    assert recorder.kinds(handle) == ["task_added", "task_cancel_requested", "task_finished", "task_removed"]


def test_a_request_cuts_a_backoff(supervisor, recorder, clock) -> None:
    spec = TaskSpec.restartable("t", Scripted(Fail("boom")), backoff=BackoffPolicy.constant(60))
    handle = supervisor.add(spec)
    clock.advance(10)
    assert handle.info().state == "backoff"
    assert handle.cancel()
    assert clock.monotonic() == 10.0
    assert (handle.wait().kind, handle.wait().attempts) == (OutcomeKind.CANCELED, 1)
    assert recorder.kinds(handle)[1:] == [
        "attempt_starting",
        "attempt_failed",
        "backoff_scheduled",
        "task_cancel_requested",
        "task_finished",
        "task_removed",
    ]


def test_a_request_ends_the_wait_for_a_permit(make_supervisor, recorder, clock) -> None:
    supervisor = make_supervisor(max_concurrent=1)
    supervisor.add(TaskSpec.once("holder", waits))
    handle = supervisor.add(TaskSpec.once("waiter", waits))
    clock.settle()
    assert handle.info().state == "waiting"
    assert handle.cancel() is True
    assert handle.wait().kind is OutcomeKind.CANCELED
    assert recorder.of(AttemptStarting, "waiter") == []
    assert len(recorder.of(TaskFinished, "waiter")) == 1


def test_a_canceled_waiter_gives_its_place_to_the_next(make_supervisor, recorder, clock) -> None:
    supervisor = make_supervisor(max_concurrent=1)
    supervisor.add(TaskSpec.once("holder", sleeps, args=(10,)))
    clock.settle()
    for name in ("a", "b", "c"):
        supervisor.add(TaskSpec.once(name, sleeps, args=(1,)))
        clock.settle()
    assert supervisor.cancel("a")
    assert supervisor.get("c").wait().ok
    assert [event.task for event in recorder.of(AttemptStarting)] == ["holder", "b", "c"]
    assert recorder.times(AttemptStarting) == [0.0, 10.0, 11.0]


@pytest.mark.parametrize("body", [waits, lambda ctx: ctx.sleep(1e9), lambda ctx: ctx.child().wait()])
def test_what_waits_on_the_context_ends_at_the_instant_of_the_request(supervisor, clock, body) -> None:
    handle = supervisor.add(TaskSpec.once("t", body))
    clock.advance(123.5)
    assert handle.cancel()
    assert clock.monotonic() == 123.5


# -- remove and cancel


def test_remove_asks_and_does_not_wait(supervisor, stubborn, clock) -> None:
    handle = supervisor.add(TaskSpec.once("t", stubborn))
    clock.settle()
    assert supervisor.remove("t") is True
    assert (handle.done(), handle.info().state) == (False, "stopping")
    stubborn.release()
    assert handle.wait().kind is OutcomeKind.CANCELED


def test_only_one_caller_claims_a_task(supervisor, stubborn, recorder, clock) -> None:
    handle = supervisor.add(TaskSpec.once("t", stubborn))
    clock.settle()
    assert [supervisor.remove("t"), handle.remove(), supervisor.remove(handle.id)] == [True, False, False]
    stubborn.release()
    assert handle.cancel() is False
    assert len(recorder.of(TaskCancelRequested)) == 1


def test_many_callers_of_cancel_at_once_are_one_claim(supervisor, clock) -> None:
    handle = supervisor.add(TaskSpec.once("t", waits))
    clock.settle()
    claims: list[bool] = []
    threads = [clock.spawn(lambda: claims.append(handle.cancel()), f"caller {n}") for n in range(5)]
    for thread in threads:
        thread.join()
    assert sorted(claims) == [False] * 4 + [True]


def test_when_cancel_returns_the_name_is_free(supervisor) -> None:
    for _ in range(5):
        supervisor.add(TaskSpec.once("t", waits))
        assert supervisor.cancel("t") is True
        assert supervisor.get("t") is None
        assert supervisor.cancel("t") is False


def test_cancel_raises_timeout_error_when_its_time_is_over_and_the_stop_goes_on(
    supervisor, stubborn, clock
) -> None:
    handle = supervisor.add(TaskSpec.once("t", stubborn))
    clock.settle()
    for elapsed in (2.0, 4.0):
        with pytest.raises(TimeoutError, match=rf"task 't' \(#{handle.id}\) has not ended within 2 s"):
            supervisor.cancel("t", timeout=2)
        assert clock.monotonic() == elapsed
    stubborn.release()
    assert handle.wait().kind is OutcomeKind.CANCELED


def test_a_body_that_ignores_a_request_is_given_up_after_the_grace(
    make_supervisor, stubborn, recorder, clock
) -> None:
    supervisor = make_supervisor(grace=2)
    handle = supervisor.add(TaskSpec.restartable("t", stubborn))
    clock.advance(1)
    assert supervisor.cancel("t") is True
    assert clock.monotonic() == 3.0
    outcome = handle.wait()
    assert (outcome.kind, outcome.attempts) == (OutcomeKind.FORCE_ABORTED, 1)
    assert outcome.reason.startswith("did not stop within 2 s; it is stuck at:\n")
    assert "self._latch.wait()" in outcome.reason
    assert recorder.kinds(handle)[1:] == [
        "attempt_starting",
        "task_cancel_requested",
        "task_finished",
        "task_removed",
    ]
    assert supervisor.remove("t") is False
    assert supervisor.cancel("t") is False
    stubborn.release()
    clock.settle()
    assert recorder.kinds(handle)[-1] == "task_removed"
    assert stubborn.calls == 1


def test_a_stuck_task_is_force_aborted_by_the_shutdown_and_named(
    make_supervisor, stubborn, recorder, clock
) -> None:
    supervisor = make_supervisor(grace=0.15)
    handle = supervisor.add(TaskSpec.once("t", stubborn))
    clock.settle()
    with pytest.raises(GraceExceeded) as info:
        supervisor.shutdown()
    assert [(task.name, task.id) for task in info.value.stuck] == [("t", handle.id)]
    assert handle.wait().kind is OutcomeKind.FORCE_ABORTED
    assert clock.monotonic() == 0.15


def test_a_shutdown_cancels_with_its_own_reason(supervisor, recorder, clock) -> None:
    handle = supervisor.add(TaskSpec.once("t", waits))
    clock.settle()
    supervisor.shutdown()
    assert handle.wait().kind is OutcomeKind.CANCELED
    assert [event.reason for event in recorder.of(TaskCancelRequested)] == [CancelReason.SHUTDOWN]


def test_a_task_that_ends_by_itself_within_the_grace_keeps_its_own_outcome(make_supervisor, clock) -> None:
    supervisor = make_supervisor(grace=10)
    handle = supervisor.add(TaskSpec.once("t", lambda: clock.sleep(5) or 1 / 0))
    clock.advance(1)
    handle.remove()
    assert handle.wait().kind is OutcomeKind.FAILED
    assert clock.monotonic() == 5.0


@pytest.mark.parametrize("seed", range(20))
def test_a_cancel_at_any_moment_ends_with_one_outcome_and_a_free_name(seed) -> None:
    clock, recorder = VirtualClock(seed), EventRecorder()
    with Supervisor(clock=clock, subscribers=[recorder]) as supervisor:
        body = Scripted("done", Fail("boom"))
        handle = supervisor.add(TaskSpec.periodic("t", body, 1, backoff=SECOND, timeout=3))
        clock.advance(seed / 4)
        assert supervisor.cancel("t")
        assert supervisor.get("t") is None
        assert handle.wait().kind is OutcomeKind.CANCELED
    assert len(recorder.of(TaskFinished)) == 1
    assert recorder.kinds("t")[-2:] == ["task_finished", "task_removed"]
