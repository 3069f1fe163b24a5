"""What an attempt leaves to be closed is closed when it ends, last first, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from supervisor import (
    AttemptFailed,
    AttemptReturnedLate,
    AttemptStarting,
    AttemptSucceeded,
    AttemptTimedOut,
    BackoffPolicy,
    Canceled,
    Fail,
    Fatal,
    OutcomeKind,
    TaskContext,
    TaskSpec,
    Timeout,
)

SECOND = BackoffPolicy.constant(1)


class Log(list[str]):
    """What happened, in order."""

    @contextmanager
    def resource(self, name: str) -> Iterator[str]:
        self.append(f"open {name}")
        try:
            yield name
        finally:
            self.append(f"close {name}")


def raises(error: BaseException) -> None:
    raise error


ENDINGS = [
    (None, OutcomeKind.COMPLETED),
    (Fail("boom"), OutcomeKind.FAILED),
    (Fatal("broken"), OutcomeKind.FATAL),
    (Canceled(), OutcomeKind.CANCELED),
    (SystemExit(3), OutcomeKind.FATAL),
    (KeyboardInterrupt(), OutcomeKind.PANICKED),
]


@pytest.mark.parametrize(("error", "kind"), ENDINGS)
def test_closers_run_last_first_after_the_body_however_it_ended(supervisor, error, kind) -> None:
    log = Log()

    def body(ctx: TaskContext) -> None:
        assert ctx.enter_context(log.resource("a")) == "a"
        ctx.callback(log.append, "callback")
        ctx.callback(lambda *, word: log.append(word), word="named")
        ctx.enter_context(log.resource("b"))
        log.append("body ends")
        if error is not None:
            raise error

    assert supervisor.add(TaskSpec.once("t", body)).wait().kind is kind
    assert log == ["open a", "open b", "body ends", "close b", "named", "callback", "close a"]


def test_closers_run_at_the_end_of_each_attempt(supervisor) -> None:
    log = Log()

    def body(ctx: TaskContext) -> None:
        ctx.enter_context(log.resource(f"{ctx.attempt}"))
        if ctx.attempt < 3:
            raise Fail("boom")

    supervisor.add(TaskSpec.restartable("t", body, backoff=SECOND)).wait()
    assert log == ["open 1", "close 1", "open 2", "close 2", "open 3", "close 3"]


def test_closers_run_on_the_thread_of_the_task(supervisor) -> None:
    import threading

    idents: list[int] = []

    def body(ctx: TaskContext) -> None:
        ctx.callback(lambda: idents.append(threading.get_ident()))
        idents.append(threading.get_ident())

    supervisor.add(TaskSpec.once("t", body)).wait()
    assert len(set(idents)) == 1


def test_closers_run_before_the_result_is_told(supervisor, recorder, clock) -> None:
    def body(ctx: TaskContext) -> str:
        ctx.callback(clock.sleep, 2)
        ctx.sleep(1)
        return "done"

    handle = supervisor.add(TaskSpec.once("t", body))
    assert handle.wait().value == "done"
    assert recorder.times(AttemptSucceeded) == [3.0]
    assert recorder.of(AttemptSucceeded)[0].duration == 3.0


def test_the_permit_is_held_until_everything_is_closed(make_supervisor, recorder, clock) -> None:
    supervisor = make_supervisor(max_concurrent=1)
    supervisor.add(TaskSpec.once("first", lambda ctx: ctx.callback(clock.sleep, 7)))
    supervisor.add(TaskSpec.once("second", lambda: None)).wait()
    assert recorder.times(AttemptStarting) == [0.0, 7.0]


def test_what_cannot_be_entered_is_an_error_of_the_body_and_not_closed(supervisor) -> None:
    log = Log()

    class Broken:
        def __enter__(self) -> None:
            raise ValueError("no entry")

        def __exit__(self, *exc: object) -> None:
            log.append("closed")

    handle = supervisor.add(TaskSpec.once("t", lambda ctx: ctx.enter_context(Broken())))
    assert (handle.wait().kind, handle.wait().reason) == (OutcomeKind.FAILED, "ValueError: no entry")
    assert log == []


def test_a_closer_may_register_another(supervisor) -> None:
    log = Log()

    def body(ctx: TaskContext) -> None:
        ctx.callback(log.append, "first registered")
        ctx.callback(lambda: ctx.callback(log.append, "registered by a closer"))

    assert supervisor.add(TaskSpec.once("t", body)).wait().ok
    assert log == ["registered by a closer", "first registered"]


def test_nothing_can_be_registered_once_the_attempt_has_ended(supervisor) -> None:
    kept: list[TaskContext] = []
    supervisor.add(TaskSpec.once("t", kept.append)).wait()
    with pytest.raises(RuntimeError, match="attempt 1 of 't' has ended"):
        kept[0].callback(print)
    with pytest.raises(RuntimeError, match="attempt 1 of 't' has ended"):
        kept[0].enter_context(Log().resource("late"))


def test_a_callback_that_cannot_be_called_is_refused(supervisor) -> None:
    outcome = supervisor.add(TaskSpec.once("t", lambda ctx: ctx.callback(5))).wait()
    assert outcome.reason == "TypeError: callback needs a callable, got 5"


# -- what a context manager is told


class Transaction:
    """Commits when it is left without an error, rolls back otherwise."""

    def __init__(self, *, swallows: bool = False, reraises: bool = False) -> None:
        self.exits: list[tuple[object, ...]] = []
        self.swallows = swallows
        self.reraises = reraises

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> bool:
        self.exits.append((kind, error, tb is not None))
        if self.reraises and error is not None:
            raise error
        return self.swallows


@pytest.mark.parametrize("settings", [{}, {"swallows": True}, {"reraises": True}])
@pytest.mark.parametrize(("error", "kind"), ENDINGS)
def test_a_context_manager_is_told_the_error_and_changes_nothing(supervisor, error, kind, settings) -> None:
    transactions = [Transaction(**settings), Transaction(**settings)]

    def body(ctx: TaskContext) -> None:
        for each in transactions:
            ctx.enter_context(each)
        if error is not None:
            raise error

    outcome = supervisor.add(TaskSpec.once("t", body)).wait()
    told = (None, None, False) if error is None else (type(error), error, True)
    assert [each.exits for each in transactions] == [[told], [told]]
    assert outcome.kind is kind
    assert outcome.error is (None if kind in (OutcomeKind.COMPLETED, OutcomeKind.CANCELED) else error)


def test_a_context_manager_is_told_of_a_missed_deadline(supervisor, clock) -> None:
    transaction = Transaction()

    def body(ctx: TaskContext) -> str:
        ctx.enter_context(transaction)
        clock.sleep(8)
        return "too late"

    outcome = supervisor.add(TaskSpec.once("t", body, timeout=5)).wait()
    assert transaction.exits == [(Timeout, outcome.error, False)]
    assert outcome.reason == "timed out after 5 s"


def test_a_generator_may_catch_the_error_and_the_failure_stands(supervisor) -> None:
    seen: list[BaseException] = []

    @contextmanager
    def catching() -> Iterator[None]:
        try:
            yield
        except Fail as error:
            seen.append(error)

    def body(ctx: TaskContext) -> None:
        ctx.enter_context(catching())
        raise Fail("boom")

    outcome = supervisor.add(TaskSpec.once("t", body)).wait()
    assert (outcome.kind, seen) == (OutcomeKind.FAILED, [outcome.error])


def test_a_real_database_rolls_back_what_a_failed_attempt_wrote(supervisor) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as database:
        database.execute("create table orders (attempt integer)")

        def body(ctx: TaskContext) -> None:
            ctx.enter_context(database)
            database.execute("insert into orders values (?)", (ctx.attempt,))
            if ctx.attempt == 1:
                raise Fail("boom")

        assert supervisor.add(TaskSpec.restartable("t", body, backoff=SECOND)).wait().ok
        assert database.execute("select attempt from orders").fetchall() == [(2,)]


# -- closers that raise


@pytest.mark.parametrize("maker", [TaskSpec.once, TaskSpec.restartable, lambda *a: TaskSpec.periodic(*a, 5)])
@pytest.mark.parametrize("result", [None, Fail("boom"), Fatal("broken"), Canceled(), SystemExit(3)])
def test_a_closer_that_raises_makes_it_panicked_and_is_never_retried(
    supervisor, recorder, maker, result
) -> None:
    def body(ctx: TaskContext) -> None:
        ctx.callback(raises, OSError("disk full"))
        if result is not None:
            raise result

    handle = supervisor.add(maker("t", body))
    outcome = handle.wait()
    assert (outcome.kind, outcome.reason, outcome.attempts) == (
        OutcomeKind.PANICKED,
        "OSError: disk full",
        1,
    )
    assert isinstance(outcome.error, OSError)
    assert (outcome.exit_code, outcome.value) == (None, None)
    assert recorder.kinds(handle)[1:-2] == ["attempt_starting", "attempt_failed"]
    assert recorder.of(AttemptFailed)[0].error.startswith("OSError: disk full (in raises, test_cleanup.py:")


@pytest.mark.parametrize("error", [OSError("disk full"), SystemExit(3), KeyboardInterrupt(), Canceled()])
def test_the_other_closers_run_although_one_raises(supervisor, error) -> None:
    log = Log()

    def body(ctx: TaskContext) -> None:
        ctx.enter_context(log.resource("a"))
        ctx.callback(raises, error)
        ctx.enter_context(log.resource("b"))
        ctx.callback(raises, ValueError("a second one"))

    outcome = supervisor.add(TaskSpec.once("t", body)).wait()
    assert log == ["open a", "open b", "close b", "close a"]
    assert (outcome.kind, outcome.reason) == (OutcomeKind.PANICKED, "ValueError: a second one")


def test_what_the_body_raised_is_kept_with_what_a_closer_raised(supervisor) -> None:
    def body(ctx: TaskContext) -> None:
        ctx.callback(raises, OSError("disk full"))
        raise Fail("boom")

    outcome = supervisor.add(TaskSpec.once("t", body)).wait()
    assert outcome.error is not None
    assert isinstance(outcome.error.__context__, Fail)
    assert "Fail: boom" in outcome.traceback
    assert "OSError: disk full" in outcome.traceback


def test_a_closer_that_raises_after_a_deadline_is_one_failure_and_no_retry(
    supervisor, recorder, clock
) -> None:
    def body(ctx: TaskContext) -> None:
        ctx.callback(raises, OSError("disk full"))
        ctx.wait()

    handle = supervisor.add(TaskSpec.restartable("t", body, timeout=5))
    outcome = handle.wait()
    assert (outcome.kind, outcome.reason, outcome.attempts) == (
        OutcomeKind.PANICKED,
        "OSError: disk full",
        1,
    )
    assert recorder.kinds(handle)[1:-2] == ["attempt_starting", "attempt_timed_out", "attempt_failed"]


def test_a_late_return_is_told_before_the_failure_of_its_closers(supervisor, recorder, clock) -> None:
    def body(ctx: TaskContext) -> None:
        ctx.callback(raises, OSError("disk full"))
        clock.sleep(20)

    handle = supervisor.add(TaskSpec.restartable("t", body, timeout=5))
    assert handle.wait().kind is OutcomeKind.PANICKED
    assert recorder.kinds(handle)[1:-2] == [
        "attempt_starting",
        "attempt_timed_out",
        "attempt_overrunning",
        "attempt_returned_late",
        "attempt_failed",
    ]
    assert recorder.of(AttemptReturnedLate)[0].ended == "returned"


# -- closers and deadlines


def test_a_body_that_returned_in_time_has_won_however_long_its_closers_take(
    supervisor, recorder, clock
) -> None:
    def body(ctx: TaskContext) -> str:
        ctx.callback(clock.sleep, 100)
        ctx.sleep(4)
        return "done"

    handle = supervisor.add(TaskSpec.once("t", body, timeout=5, overrun=3))
    assert (handle.wait().value, clock.monotonic()) == ("done", 104.0)
    assert recorder.of(AttemptTimedOut) == []


def test_a_late_body_has_returned_when_its_closers_have(supervisor, recorder, clock) -> None:
    def body(ctx: TaskContext) -> None:
        if ctx.attempt == 1:
            ctx.callback(clock.sleep, 3)
            clock.sleep(6)

    supervisor.add(TaskSpec.restartable("t", body, timeout=5, backoff=SECOND)).wait()
    assert recorder.times(AttemptReturnedLate) == [9.0]
    assert recorder.of(AttemptReturnedLate)[0].late_by == 4.0
    assert recorder.times(AttemptStarting) == [0.0, 10.0]


def test_closers_of_a_late_body_count_for_its_overrun(supervisor, clock) -> None:
    def body(ctx: TaskContext) -> None:
        ctx.callback(clock.sleep, 4)
        clock.sleep(6)

    outcome = supervisor.add(TaskSpec.once("t", body, timeout=5, overrun=3)).wait()
    assert (outcome.kind, clock.monotonic()) == (OutcomeKind.FORCE_ABORTED, 8.0)
    clock.advance(10)


def test_closers_of_a_body_that_was_given_up_still_run(supervisor, clock) -> None:
    log = Log()
    gate = clock.latch()

    def body(ctx: TaskContext) -> None:
        ctx.enter_context(log.resource("a"))
        gate.wait()

    supervisor.add(TaskSpec.once("t", body, timeout=5, overrun=3)).wait()
    assert log == ["open a"]
    gate.open()
    clock.settle()
    assert log == ["open a", "close a"]
