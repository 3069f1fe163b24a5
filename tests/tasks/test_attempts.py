"""What each result of a body leads to: outcome, events, exit code, under each restart policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor import (
    AlreadyRunning,
    AttemptFailed,
    AttemptStarting,
    AttemptSucceeded,
    BackoffPolicy,
    BackoffScheduled,
    Canceled,
    Fail,
    Fatal,
    Jitter,
    OutcomeKind,
    RejectionKind,
    Supervisor,
    TaskAlreadyExists,
    TaskContext,
    TaskFinished,
    TaskHandle,
    TaskOutcome,
    TaskRejected,
    TaskRemoved,
    TaskSpec,
    Timeout,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.bodies import Scripted, waits

SECOND = BackoffPolicy.constant(1)
ONE_RETRY = {"max_retries": 1, "backoff": SECOND}
MAKERS: dict[str, Callable[..., TaskSpec]] = {
    "once": lambda task: TaskSpec.once("t", task),
    "restartable": lambda task: TaskSpec.restartable("t", task, **ONE_RETRY),
    "periodic": lambda task: TaskSpec.periodic("t", task, 5, **ONE_RETRY),
}
END = ["task_finished", "task_removed"]


class Custom(BaseException):
    """Neither an Exception nor one of ours."""


# -- the table


@pytest.mark.parametrize("value", [None, 0, False, "text", [1, 2]])
@pytest.mark.parametrize("maker", ["once", "restartable"])
def test_a_body_that_returns_completes_with_its_value(supervisor, recorder, maker, value) -> None:
    handle = supervisor.add(MAKERS[maker](lambda: value))
    assert handle.wait() == TaskOutcome(kind=OutcomeKind.COMPLETED, value=value, attempts=1)
    assert handle.wait().value is value
    assert handle.wait().ok
    assert recorder.kinds(handle) == ["task_added", "attempt_starting", "attempt_succeeded", *END]


def test_a_periodic_body_that_returns_is_repeated_until_it_is_asked_to_stop(
    supervisor, recorder, clock
) -> None:
    handle = supervisor.add(MAKERS["periodic"](Scripted("first", "second")))
    clock.advance(6)
    assert supervisor.cancel(handle)
    outcome = handle.wait()
    assert (outcome.kind, outcome.value, outcome.attempts) == (OutcomeKind.CANCELED, "second", 2)
    round_ = ["attempt_starting", "attempt_succeeded", "backoff_scheduled"]
    assert recorder.kinds(handle) == ["task_added", *round_, *round_, "task_cancel_requested", *END]


RETRYABLE = [
    (Fail("boom"), "boom", None),
    (Fail("boom", exit_code=7), "boom", 7),
    (Fail(""), "", None),
    (Timeout("too slow"), "too slow", None),
    (Timeout("too slow", exit_code=124), "too slow", 124),
    (ValueError("boom"), "ValueError: boom", None),
    (KeyError("x"), "KeyError: 'x'", None),
    (ExceptionGroup("many", [ValueError("boom")]), "ExceptionGroup: many (1 sub-exception)", None),
]


@pytest.mark.parametrize(("error", "reason", "exit_code"), RETRYABLE)
def test_a_retryable_failure_ends_a_task_that_runs_once(
    supervisor, recorder, error, reason, exit_code
) -> None:
    handle = supervisor.add(MAKERS["once"](Scripted(error)))
    outcome = handle.wait()
    assert (outcome.kind, outcome.reason, outcome.exit_code) == (OutcomeKind.FAILED, reason, exit_code)
    assert (outcome.error, outcome.value, outcome.attempts, outcome.ok) == (error, None, 1, False)
    assert recorder.kinds(handle) == ["task_added", "attempt_starting", "attempt_failed", *END]


@pytest.mark.parametrize("maker", ["restartable", "periodic"])
@pytest.mark.parametrize(("error", "reason", "exit_code"), RETRYABLE)
def test_a_retryable_failure_is_retried_and_fails_at_the_limit(
    supervisor, recorder, maker, error, reason, exit_code
) -> None:
    handle = supervisor.add(MAKERS[maker](Scripted(error)))
    outcome = handle.wait()
    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.reason == f"retry limit reached after 1 of 1 retries: {reason}"
    assert (outcome.error, outcome.exit_code, outcome.attempts) == (error, exit_code, 2)
    failed = ["attempt_starting", "attempt_failed"]
    assert recorder.kinds(handle) == ["task_added", *failed, "backoff_scheduled", *failed, *END]
    assert recorder.times(AttemptStarting) == [0.0, 1.0]
    assert {event.exit_code for event in recorder.of(AttemptFailed)} == {exit_code}


PERMANENT = [
    (Fatal("broken"), OutcomeKind.FATAL, "broken", None),
    (Fatal("broken", exit_code=137), OutcomeKind.FATAL, "broken", 137),
    (SystemExit(), OutcomeKind.FATAL, "exit code 0", 0),
    (SystemExit(None), OutcomeKind.FATAL, "exit code 0", 0),
    (SystemExit(0), OutcomeKind.FATAL, "exit code 0", 0),
    (SystemExit(3), OutcomeKind.FATAL, "exit code 3", 3),
    (SystemExit("sorry"), OutcomeKind.FATAL, "sorry", 1),
    (KeyboardInterrupt(), OutcomeKind.PANICKED, "KeyboardInterrupt", None),
    (GeneratorExit("x"), OutcomeKind.PANICKED, "GeneratorExit: x", None),
    (Custom("odd"), OutcomeKind.PANICKED, "Custom: odd", None),
]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(("error", "kind", "reason", "exit_code"), PERMANENT)
def test_a_permanent_failure_ends_every_task_at_once(
    supervisor, recorder, maker, error, kind, reason, exit_code
) -> None:
    handle = supervisor.add(MAKERS[maker](Scripted(error)))
    outcome = handle.wait()
    assert (outcome.kind, outcome.reason, outcome.exit_code) == (kind, reason, exit_code)
    assert (outcome.error, outcome.attempts) == (error, 1)
    assert recorder.kinds(handle) == ["task_added", "attempt_starting", "attempt_failed", *END]
    (failed,) = recorder.of(AttemptFailed)
    assert failed.exit_code == exit_code


@pytest.mark.parametrize("maker", MAKERS)
def test_canceled_that_nobody_asked_for_ends_every_task(supervisor, recorder, maker) -> None:
    handle = supervisor.add(MAKERS[maker](Scripted(Canceled("enough"))))
    assert handle.wait() == TaskOutcome(kind=OutcomeKind.CANCELED, attempts=1)
    assert recorder.kinds(handle) == ["task_added", "attempt_starting", "attempt_canceled", *END]


def test_the_actors_own_threads_survive_every_result(supervisor) -> None:
    for error in (SystemExit(3), KeyboardInterrupt(), Custom("odd"), MemoryError(), RecursionError()):
        assert not supervisor.add(TaskSpec.once("t", Scripted(error))).wait().ok
    assert supervisor.add(TaskSpec.once("t", lambda: 5)).wait().value == 5


def test_what_the_events_of_an_attempt_say(supervisor, recorder, clock) -> None:
    def body(ctx: TaskContext) -> None:
        ctx.sleep(0.25)
        if ctx.attempt == 1:
            raise Fail("boom", exit_code=7)

    handle = supervisor.add(TaskSpec.restartable("t", body, backoff=SECOND))
    handle.wait()
    (failed,) = recorder.of(AttemptFailed)
    assert (failed.task_id, failed.task, failed.attempt) == (handle.id, "t", 1)
    assert (failed.duration, failed.exit_code) == (0.25, 7)
    assert failed.error.startswith("Fail: boom (in body, test_attempts.py:")
    (backoff,) = recorder.of(BackoffScheduled)
    assert (backoff.attempt, backoff.delay, backoff.cause) == (1, 1.0, "failure")
    assert backoff.error == failed.error
    (succeeded,) = recorder.of(AttemptSucceeded)
    assert (succeeded.attempt, succeeded.duration) == (2, 0.25)
    (finished,) = recorder.of(TaskFinished)
    assert (finished.outcome, finished.attempts, finished.reason) == (OutcomeKind.COMPLETED, 2, None)
    assert [event.seq for event in recorder.events] == list(range(1, len(recorder) + 1))


# -- retry limit


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("maker", [TaskSpec.restartable, lambda *a, **s: TaskSpec.periodic(*a, 5, **s)])
def test_n_retries_are_n_backoffs_and_n_plus_one_attempts(supervisor, recorder, maker, limit) -> None:
    body = Scripted(Fail("boom", exit_code=42))
    handle = supervisor.add(maker("t", body, max_retries=limit, backoff=SECOND))
    outcome = handle.wait()
    assert (outcome.kind, outcome.exit_code, outcome.attempts) == (OutcomeKind.FAILED, 42, limit + 1)
    assert outcome.reason == f"retry limit reached after {limit} of {limit} retries: boom"
    assert body.calls == limit + 1
    assert len(recorder.of(BackoffScheduled)) == limit
    assert [event.exit_code for event in recorder.of(AttemptFailed)] == [42] * (limit + 1)


def test_without_a_limit_a_failing_body_is_retried_for_ever(supervisor, recorder, clock) -> None:
    supervisor.add(TaskSpec.restartable("t", Scripted(Fail("boom")), backoff=SECOND))
    clock.advance(100)
    assert len(recorder.of(AttemptFailed)) == 101
    assert recorder.of(TaskFinished) == []


def test_a_success_resets_the_streak_and_the_backoff(supervisor, recorder, clock) -> None:
    body = Scripted(Fail("a"), Fail("b"), "done", Fail("c"), Fail("d"), "done", Fail("e"), "done")
    policy = BackoffPolicy(initial=1, jitter=Jitter.NONE)
    supervisor.add(TaskSpec.periodic("t", body, 100, max_retries=2, backoff=policy))
    clock.advance(400)
    failures = [event.delay for event in recorder.of(BackoffScheduled) if event.cause == "failure"]
    assert failures == [1.0, 2.0, 1.0, 2.0, 1.0]
    assert recorder.of(TaskFinished) == []


def test_the_limit_counts_failures_in_a_row(supervisor, clock) -> None:
    body = Scripted(Fail("a"), "done", Fail("b"), "done", Fail("c"), Fail("d"))
    handle = supervisor.add(TaskSpec.periodic("t", body, 5, max_retries=1, backoff=SECOND))
    outcome = handle.wait()
    assert (outcome.kind, body.calls) == (OutcomeKind.FAILED, 6)
    assert (outcome.reason, outcome.value) == ("retry limit reached after 1 of 1 retries: d", "done")


def test_deadlines_and_failures_count_in_one_streak(supervisor, recorder) -> None:
    def body(ctx: TaskContext) -> None:
        if ctx.attempt % 2:
            ctx.wait()
        raise Fail("boom")

    handle = supervisor.add(TaskSpec.restartable("t", body, timeout=2, max_retries=3, backoff=SECOND))
    assert handle.wait().attempts == 4
    failed, timed_out = ["attempt_failed"], ["attempt_timed_out"]
    results = [kind for kind in recorder.kinds(handle) if kind in failed + timed_out]
    assert results == timed_out + failed + timed_out + failed


# -- backoff


def test_each_retry_waits_twice_as_long_up_to_the_cap(supervisor, recorder, clock) -> None:
    policy = BackoffPolicy(initial=1, max_delay=4, jitter=Jitter.NONE)
    supervisor.add(TaskSpec.restartable("t", Scripted(Fail("boom")), backoff=policy))
    clock.advance(15)
    assert recorder.times(AttemptStarting) == [0.0, 1.0, 3.0, 7.0, 11.0, 15.0]


def test_the_backoff_begins_when_the_failed_attempt_has_ended(supervisor, recorder, clock) -> None:
    def body(ctx: TaskContext) -> None:
        ctx.sleep(10)
        raise Fail("boom")

    supervisor.add(TaskSpec.restartable("t", body, backoff=SECOND))
    clock.advance(33)
    assert recorder.times(AttemptStarting) == [0.0, 11.0, 22.0, 33.0]


@pytest.mark.parametrize("policy", [None, BackoffPolicy(initial=0)])
def test_without_a_delay_retries_follow_at_once_and_untold(supervisor, recorder, clock, policy) -> None:
    handle = supervisor.add(TaskSpec.restartable("t", Scripted(Fail("boom")), max_retries=9, backoff=policy))
    assert handle.wait().attempts == 10
    assert clock.monotonic() == 0.0
    assert recorder.of(BackoffScheduled) == []


class Draws:
    """A source of known draws."""

    def __init__(self, *draws: float) -> None:
        self._draws = iter(draws)

    def random(self) -> float:
        return next(self._draws)


def test_the_jitter_of_a_backoff_is_drawn_from_the_rng_of_the_supervisor(clock, recorder) -> None:
    rng = Draws(0.0, 0.5, 0.25)
    with Supervisor(clock=clock, subscribers=[recorder], rng=rng) as supervisor:
        spec = TaskSpec.restartable("t", Scripted(Fail("boom")), backoff=BackoffPolicy(1), max_retries=3)
        supervisor.add(spec).wait()
    assert [event.delay for event in recorder.of(BackoffScheduled)] == [0.5, 1.5, 2.5]


def test_the_same_seed_gives_the_same_delays() -> None:
    from random import Random

    runs = []
    for _ in range(2):
        recorder = EventRecorder()
        with Supervisor(clock=VirtualClock(), subscribers=[recorder], rng=Random(7)) as supervisor:
            supervisor.add(TaskSpec.restartable("t", Scripted(Fail("boom")), max_retries=5)).wait()
        runs.append([event.delay for event in recorder.of(BackoffScheduled)])
    assert runs[0] == runs[1]
    assert all(
        base / 2 <= delay <= base for delay, base in zip(runs[0], [0.2, 0.4, 0.8, 1.6, 3.2], strict=True)
    )


def test_steps_of_the_wall_clock_move_no_retry(supervisor, clock) -> None:
    starts: list[float] = []

    def body() -> None:
        starts.append(clock.monotonic())
        raise Fail("boom")

    supervisor.add(TaskSpec.restartable("t", body, backoff=SECOND))
    clock.advance(1.5)
    clock.step_wall(-3600)
    clock.advance(1)
    clock.step_wall(7200)
    clock.advance(1)
    assert starts == [0.0, 1.0, 2.0, 3.0]


def test_two_attempts_of_a_task_never_overlap(supervisor, clock) -> None:
    inside, most = 0, 0

    def body(ctx: TaskContext) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        clock.sleep(3)  # three times its deadline
        inside -= 1

    supervisor.add(TaskSpec.periodic("t", body, 0, timeout=1, backoff=None))
    clock.advance(31)
    assert (most, inside) == (1, 1)


# -- a life in `run`


def test_run_returns_the_outcomes_in_the_order_of_the_specs(supervisor, recorder, clock) -> None:
    specs = [
        TaskSpec.once("slow", lambda ctx: ctx.sleep(3) or "slow"),
        TaskSpec.once("failing", Scripted(Fail("boom"))),
        TaskSpec.once("quick", lambda: "quick"),
    ]
    outcomes = supervisor.run(specs)
    assert [outcome.kind.value for outcome in outcomes] == ["completed", "failed", "completed"]
    assert [outcome.value for outcome in outcomes] == ["slow", None, "quick"]
    assert clock.monotonic() == 3.0
    for name in ("slow", "failing", "quick"):
        kinds = recorder.kinds(name)
        assert (kinds[0], kinds[1], kinds[-2:]) == ("task_added", "attempt_starting", END)
    assert recorder.events[-1].kind == "shutdown_completed"
    assert "shutdown_requested" not in recorder.kinds()


def test_a_refused_batch_runs_nothing_and_is_no_use_of_run(supervisor, recorder) -> None:
    body = Scripted("done")
    with pytest.raises(TaskAlreadyExists, match="'dup' occurs twice"):
        supervisor.run([TaskSpec.once(name, body) for name in ("unique", "dup", "dup")])
    assert body.calls == 0
    assert supervisor.tasks() == []
    assert supervisor.run([TaskSpec.once("dup", body)])[0].ok
    with pytest.raises(AlreadyRunning):
        supervisor.run()
    rejected = [(event.task, event.rejection) for event in recorder.of(TaskRejected)]
    assert rejected == [
        ("unique", RejectionKind.BATCH_REJECTED),
        ("dup", RejectionKind.BATCH_REJECTED),
        ("dup", RejectionKind.ALREADY_EXISTS),
    ]


def test_a_body_can_add_and_wait_for_another_task(supervisor) -> None:
    def parent(ctx: TaskContext) -> object:
        return supervisor.add(TaskSpec.once("child", lambda: "from the child")).wait().value

    assert supervisor.add(TaskSpec.once("parent", parent)).wait().value == "from the child"


# -- threads and contextvars


def test_all_attempts_of_a_task_run_on_its_one_thread(supervisor) -> None:
    import threading

    threads: list[tuple[str, int]] = []

    def body() -> None:
        threads.append((threading.current_thread().name, threading.get_ident()))
        raise Fail("boom")

    supervisor.add(TaskSpec.restartable("t", body, max_retries=3, backoff=SECOND)).wait()
    assert len(threads) == 4
    assert len(set(threads)) == 1
    assert threads[0][0] == "supervisor:t"


def test_a_body_sees_the_contextvars_of_the_caller_of_add_afresh_in_each_attempt(supervisor) -> None:
    from contextvars import ContextVar

    request: ContextVar[str] = ContextVar("request", default="unset")
    seen: list[str] = []

    def body() -> None:
        seen.append(request.get())
        request.set("changed by the body")
        raise Fail("boom")

    token = request.set("of the caller")
    handle = supervisor.add(TaskSpec.restartable("t", body, max_retries=2, backoff=SECOND))
    request.reset(token)
    handle.wait()
    assert seen == ["of the caller"] * 3
    assert request.get() == "unset"


# -- waiting for the end


def test_a_wait_can_be_repeated_from_many_threads(supervisor, clock) -> None:
    handle = supervisor.add(TaskSpec.once("t", lambda ctx: ctx.sleep(5) or "done"))
    got: list[object] = []
    threads = [clock.spawn(lambda: got.append(handle.wait()), f"waiter {n}") for n in range(5)]
    for thread in threads:
        thread.join()
    assert got == [handle.wait()] * 5
    assert all(each is handle.outcome for each in got)


@pytest.mark.parametrize("timeout", [0, 2.0])
def test_a_wait_that_is_over_raises_timeout_error_and_the_task_goes_on(supervisor, clock, timeout) -> None:
    handle = supervisor.add(TaskSpec.once("t", lambda ctx: ctx.sleep(5) or "done"))
    for n in (1, 2):
        with pytest.raises(
            TimeoutError, match=rf"task 't' \(#{handle.id}\) has not ended within {timeout:g} s"
        ):
            handle.wait(timeout)
        assert clock.monotonic() == n * timeout
    assert (handle.done(), handle.outcome) == (False, None)
    assert handle.wait().value == "done"
    assert clock.monotonic() == 5.0


def test_a_periodic_task_has_no_outcome_while_it_lives(supervisor, clock) -> None:
    handle = supervisor.add(TaskSpec.periodic("t", lambda: None, 0.02))
    with pytest.raises(TimeoutError):
        handle.wait(0.2)
    assert handle.outcome is None


def test_a_task_whose_handle_is_dropped_goes_on(supervisor, clock) -> None:
    ticks: list[float] = []
    supervisor.add(TaskSpec.periodic("t", lambda: ticks.append(clock.monotonic()), 1))
    clock.advance(3)
    assert ticks == [0.0, 1.0, 2.0, 3.0]
    assert supervisor.cancel("t") is True


def test_the_outcome_says_the_same_as_task_finished(supervisor, recorder) -> None:
    body = Scripted(Fail("boom", exit_code=9))
    handle = supervisor.add(TaskSpec.restartable("t", body, max_retries=2, backoff=SECOND))
    outcome = handle.wait()
    finished = recorder.wait_for(TaskFinished)
    assert (finished.outcome, finished.reason, finished.attempts) == (outcome.kind, outcome.reason, 3)
    assert (finished.task_id, finished.task) == (handle.id, "t")


def test_an_outcome_arrives_although_events_are_lost(make_supervisor) -> None:
    supervisor = make_supervisor(event_capacity=2, subscriber_capacity=1)
    spec = TaskSpec.restartable("t", Scripted(Fail("boom")), max_retries=50, backoff=None)
    assert supervisor.add(spec).wait().attempts == 51


def test_when_the_end_is_told_the_name_is_free_and_the_outcome_set(clock) -> None:
    seen: list[tuple[str, object, object]] = []
    handles: list[TaskHandle] = []

    def look(event: TaskFinished | TaskRemoved) -> None:
        seen.append((event.kind, supervisor.get("t"), handles[0].outcome is not None))

    with Supervisor(clock=clock) as supervisor:
        supervisor.subscribe(look, kinds=[TaskFinished, TaskRemoved])
        handles.append(supervisor.add(TaskSpec.once("t", lambda: None)))
        handles[0].wait()
    assert [kind for kind, _, _ in seen] == END
    assert [owner for _, owner, _ in seen] == [None, None]
    assert seen[1][2] is True


def test_every_seed_gives_the_same_life(recorder) -> None:
    for seed in range(20):
        clock, recorder = VirtualClock(seed), EventRecorder()
        with Supervisor(clock=clock, subscribers=[recorder]) as supervisor:
            body = Scripted(Fail("a"), Fail("b"), "done")
            handles = [supervisor.add(TaskSpec.restartable(n, body, backoff=SECOND)) for n in "t"]
            other = supervisor.add(TaskSpec.once("other", waits, timeout=1))
            assert handles[0].wait().value == "done"
            other.wait()
        failed = ["attempt_starting", "attempt_failed", "backoff_scheduled"]
        assert recorder.kinds("t") == [
            "task_added", *failed, *failed, "attempt_starting", "attempt_succeeded", *END
        ]  # fmt: skip
        assert recorder.kinds("other") == ["task_added", "attempt_starting", "attempt_timed_out", *END]
        assert recorder.times(AttemptStarting, "t") == [0.0, 1.0, 2.0]
