"""An outcome is a value: what came out last, with no memory of the frames it came from."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable

import pytest

from supervisor import (
    AttemptFailed,
    BackoffPolicy,
    Fail,
    Fatal,
    OutcomeKind,
    OutcomeUnavailable,
    RejectionKind,
    TaskContext,
    TaskFinished,
    TaskOutcome,
    TaskSpec,
    Timeout,
)
from tests.bodies import Scripted

SECOND = BackoffPolicy.constant(1)


# -- the value


def test_the_kinds_and_their_labels() -> None:
    assert {kind.name: kind.value for kind in OutcomeKind} == {
        "COMPLETED": "completed",
        "FAILED": "failed",
        "FATAL": "fatal",
        "CANCELED": "canceled",
        "FORCE_ABORTED": "force_aborted",
        "PANICKED": "panicked",
        "REJECTED": "rejected",
    }


def test_the_kinds_of_rejection() -> None:
    assert {kind.name for kind in RejectionKind} == {
        "ALREADY_EXISTS",
        "BATCH_REJECTED",
        "SLOT_BUSY",
        "QUEUE_FULL",
        "SUPERSEDED",
        "CAPACITY",
    }


@pytest.mark.parametrize("kind", OutcomeKind)
def test_only_a_completed_task_is_ok(kind) -> None:
    assert TaskOutcome(kind=kind).ok is (kind is OutcomeKind.COMPLETED)


def test_an_outcome_is_frozen_and_has_these_fields() -> None:
    outcome = TaskOutcome(kind=OutcomeKind.FAILED)
    assert [field.name for field in dataclasses.fields(outcome)] == [
        "kind",
        "reason",
        "error",
        "traceback",
        "exit_code",
        "value",
        "attempts",
        "rejection",
    ]
    with pytest.raises(dataclasses.FrozenInstanceError):
        outcome.value = 5  # type: ignore[misc]
    assert not hasattr(outcome, "__dict__")


# -- the error


def test_the_error_is_the_object_that_was_raised(supervisor) -> None:
    error = PermissionError(13, "Permission denied")
    outcome = supervisor.add(TaskSpec.once("t", Scripted(error))).wait()
    assert outcome.error is error
    assert error.errno == 13


def test_the_cause_of_a_failure_is_kept(supervisor) -> None:
    source = PermissionError("locked")

    def body() -> None:
        try:
            raise source
        except PermissionError as error:
            raise Fail("no access", exit_code=13) from error

    outcome = supervisor.add(TaskSpec.once("t", body)).wait()
    assert (outcome.reason, outcome.exit_code) == ("no access", 13)
    assert outcome.error is not None
    assert outcome.error.__cause__ is source
    assert "PermissionError: locked" in outcome.traceback
    assert "direct cause" in outcome.traceback


def test_the_traceback_is_kept_as_text_and_the_frames_are_not(supervisor) -> None:
    def inner() -> None:
        raise ValueError("boom")

    def body() -> None:
        try:
            inner()
        except ValueError as error:
            raise KeyError("outer") from error

    outcome = supervisor.add(TaskSpec.once("t", body)).wait()
    assert outcome.traceback is not None
    assert "in inner\n" in outcome.traceback
    assert "in body\n" in outcome.traceback
    assert outcome.traceback.endswith("KeyError: 'outer'\n")
    assert "supervisor/kernel" not in outcome.traceback
    assert outcome.error is not None
    assert outcome.error.__traceback__ is None
    assert outcome.error.__cause__ is not None
    assert outcome.error.__cause__.__traceback__ is None


def test_a_success_has_no_error_and_no_traceback(supervisor) -> None:
    body = Scripted(Fail("first"), "done")
    outcome = supervisor.add(TaskSpec.restartable("t", body, backoff=SECOND)).wait()
    assert (outcome.kind, outcome.error, outcome.traceback, outcome.reason, outcome.exit_code) == (
        OutcomeKind.COMPLETED,
        None,
        None,
        None,
        None,
    )


class Big:
    """Something that must not be kept alive."""


def failing_with(keep: Callable[[Big], None], error: type[BaseException]) -> Callable[[], None]:
    def body() -> None:
        local = Big()
        keep(local)
        raise error("boom")

    return body


@pytest.mark.parametrize("error", [ValueError, Fail, Fatal, KeyboardInterrupt])
def test_an_outcome_holds_no_object_of_the_body(supervisor, error) -> None:
    seen: list[weakref.ref[Big]] = []
    handle = supervisor.add(
        TaskSpec.once("t", failing_with(lambda big: seen.append(weakref.ref(big)), error))
    )
    assert not handle.wait().ok
    gc.collect()
    assert [ref() for ref in seen] == [None]


def test_a_long_backoff_holds_no_object_of_the_failed_attempt(supervisor, clock) -> None:
    seen: list[weakref.ref[Big]] = []
    body = failing_with(lambda big: seen.append(weakref.ref(big)), ValueError)
    supervisor.add(TaskSpec.restartable("t", body, backoff=BackoffPolicy.constant(3600)))
    clock.advance(1)
    gc.collect()
    assert [ref() for ref in seen] == [None]


def test_one_error_object_raised_again_and_again_does_not_grow(supervisor) -> None:
    error = ValueError("boom")
    spec = TaskSpec.restartable("t", Scripted(error), max_retries=100, backoff=None)
    outcome = supervisor.add(spec).wait()
    assert outcome.attempts == 101
    assert outcome.traceback.count("in __call__") == 1


# -- texts of hostile errors


class NoTextError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class ExitCodeRaises(Fail):
    @property
    def exit_code(self) -> int:  # type: ignore[override]
        raise ValueError("no code")

    @exit_code.setter
    def exit_code(self, value: object) -> None:
        """Forget it."""


class FalseClassError(Exception):
    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise ValueError("no class")


class OwnTracebackError(Exception):
    def with_traceback(self, tb: object) -> OwnTracebackError:
        raise ValueError("not mine")

    @property
    def __traceback__(self) -> None:  # type: ignore[override]
        raise ValueError("not mine")


class CodeRaises(SystemExit):
    @property
    def code(self) -> int:  # type: ignore[override]
        raise ValueError("no code")


class LooseFatal(Fatal):
    def __init__(self) -> None:
        """Skip what Fatal would set."""


HOSTILE: dict[str, tuple[Callable[[], BaseException], OutcomeKind, str, int | None]] = {
    "no text": (NoTextError, OutcomeKind.FAILED, "NoTextError: <no text, __str__ raised ValueError>", None),
    "exit code raises": (lambda: ExitCodeRaises("boom"), OutcomeKind.FAILED, "boom", None),
    "class raises": (lambda: FalseClassError("boom"), OutcomeKind.FAILED, "FalseClassError: boom", None),
    "traceback raises": (
        lambda: OwnTracebackError("boom"),
        OutcomeKind.FAILED,
        "OwnTracebackError: boom",
        None,
    ),
    "code raises": (lambda: CodeRaises("boom"), OutcomeKind.FATAL, "boom", 1),
    "no init": (LooseFatal, OutcomeKind.FATAL, "", None),
    "long": (lambda: ValueError("x" * 10**7), OutcomeKind.FAILED, "ValueError: " + "x" * 487 + "…", None),
    "control": (lambda: ValueError("one\ntwo\x00"), OutcomeKind.FAILED, r"ValueError: one two\x00", None),
    "surrogate": (lambda: ValueError("\ud800"), OutcomeKind.FAILED, r"ValueError: \ud800", None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_error_is_a_failure_like_any_other(supervisor, recorder, name) -> None:
    make, kind, reason, exit_code = HOSTILE[name]
    error = make()

    def body() -> None:
        raise error

    handle = supervisor.add(TaskSpec.restartable("t", body, max_retries=1, backoff=SECOND))
    outcome = handle.wait()
    retried = "" if kind is OutcomeKind.FATAL else "retry limit reached after 1 of 1 retries: "
    assert outcome.kind is kind
    assert outcome.reason == retried + reason
    assert outcome.exit_code == exit_code
    assert outcome.error is error
    assert len(recorder.of(AttemptFailed)) == (1 if kind is OutcomeKind.FATAL else 2)
    assert all(len(event.error) <= 500 for event in recorder.of(AttemptFailed))
    recorder.wait_for(TaskFinished).to_dict()


def test_a_reason_that_the_body_states_is_kept_up_to_two_thousand_characters(supervisor) -> None:
    outcome = supervisor.add(TaskSpec.once("t", Scripted(Fatal("a\nb" * 5000)))).wait()
    assert outcome.reason.startswith("a\nba\nb")
    assert len(outcome.reason) == 2000


@pytest.mark.parametrize("text", ["sorry", "x" * 100_000])
def test_a_system_exit_with_a_text_has_it_as_reason(supervisor, text) -> None:
    outcome = supervisor.add(TaskSpec.once("t", Scripted(SystemExit(text)))).wait()
    assert (outcome.kind, outcome.exit_code, outcome.reason) == (OutcomeKind.FATAL, 1, text[:2000])


@pytest.mark.parametrize(("code", "kept"), [(True, 1), (False, 0), (-1, -1), ([1], 1), (1.5, 1)])
def test_an_odd_exit_code_is_what_the_interpreter_would_make_of_it(supervisor, code, kept) -> None:
    outcome = supervisor.add(TaskSpec.once("t", Scripted(SystemExit(code)))).wait()
    assert (outcome.exit_code, outcome.reason) == (kept, f"exit code {kept}")
    assert type(outcome.exit_code) is int


# -- value, attempts


def test_the_value_is_what_the_last_success_returned(supervisor, clock) -> None:
    values = Scripted("first", Fail("boom"), "second", Fail("boom"), Fail("boom"))
    spec = TaskSpec.periodic("t", values, 1, max_retries=1, backoff=SECOND)
    outcome = supervisor.add(spec).wait()
    assert (outcome.kind, outcome.value, outcome.attempts) == (OutcomeKind.FAILED, "second", 5)


@pytest.mark.parametrize("error", [Fatal("broken"), SystemExit(3), KeyboardInterrupt(), Timeout("slow")])
def test_the_value_survives_whatever_ends_the_task(supervisor, error) -> None:
    spec = TaskSpec.periodic("t", Scripted("done", error), 1, max_retries=1, backoff=SECOND)
    assert supervisor.add(spec).wait().value == "done"


def test_a_task_that_never_ran_has_no_attempts(make_supervisor, clock) -> None:
    supervisor = make_supervisor(max_concurrent=1)
    supervisor.add(TaskSpec.once("first", lambda ctx: ctx.wait()))
    handle = supervisor.add(TaskSpec.once("second", lambda: None))
    clock.settle()
    handle.cancel()
    assert handle.wait() == TaskOutcome(kind=OutcomeKind.CANCELED)


def test_the_outcome_stays_after_the_shutdown(supervisor) -> None:
    handle = supervisor.add(TaskSpec.once("t", lambda: 5))
    supervisor.shutdown()
    assert handle.done()
    assert handle.outcome is not None
    assert handle.wait() is handle.outcome
    assert handle.info().state == "finished"


def test_a_wait_for_an_outcome_that_cannot_come_is_told_so(supervisor, clock) -> None:
    handle = supervisor.add(TaskSpec.once("t", lambda ctx: ctx.wait()))
    clock.settle()
    handle._actor.outcome.set(None)  # as the supervising thread does when it ends early
    with pytest.raises(OutcomeUnavailable, match="'t'"):
        handle.wait()
    assert handle.outcome is None


def test_finished_tasks_leave_nothing_behind_in_the_supervisor(supervisor, clock) -> None:
    seen: list[weakref.ref[TaskContext]] = []

    class Body:
        def __call__(self, ctx: TaskContext) -> None:
            seen.append(weakref.ref(ctx.token))  # type: ignore[arg-type]

    body = Body()
    dead = weakref.ref(body)
    supervisor.add(TaskSpec.once("t", body)).wait()
    clock.settle()
    del body
    gc.collect()
    assert dead() is None
    assert seen[0]() is None


def test_an_outcome_can_be_shown_whatever_its_error_and_value_do(supervisor) -> None:
    class LoudError(Exception):
        def __repr__(self) -> str:
            raise KeyboardInterrupt

    def body() -> None:
        raise LoudError("x")

    assert repr(supervisor.add(TaskSpec.once("t", body)).wait()).startswith(
        "TaskOutcome(kind='failed', reason='LoudError: x'"
    )
