"""The error tree: who catches what, what an error says, and that it survives a copy."""

from __future__ import annotations

import copy
import pickle
from enum import StrEnum

import pytest

from supervisor.kernel import errors
from supervisor.kernel.errors import (
    AlreadyRunning,
    Canceled,
    CapacityExceeded,
    Fail,
    Fatal,
    ForkedProcess,
    GraceExceeded,
    OutcomeUnavailable,
    ReentrantCall,
    ShuttingDown,
    StuckTask,
    SupervisorError,
    TaskAlreadyExists,
    TaskError,
    Timeout,
)

BODY_ERRORS = (Fail, Timeout, Fatal)
LIBRARY_ERRORS = (
    ShuttingDown,
    TaskAlreadyExists,
    AlreadyRunning,
    CapacityExceeded,
    ReentrantCall,
    OutcomeUnavailable,
    ForkedProcess,
)
STACK = '  File "jobs.py", line 7, in sync\n    pull()\n  File "jobs.py", line 12, in pull\n    wait_for_ever()\n    ^^^^\n'


@pytest.mark.parametrize("kind", BODY_ERRORS)
def test_a_body_error_shows_its_reason_and_keeps_the_exit_code(kind: type[TaskError]) -> None:
    error = kind("no rows", exit_code=3)
    assert (str(error), error.reason, error.exit_code, error.args) == ("no rows", "no rows", 3, ("no rows",))
    assert kind("x").exit_code is None
    assert issubclass(kind, TaskError)
    assert issubclass(TaskError, Exception)


@pytest.mark.parametrize("kind", BODY_ERRORS)
@pytest.mark.parametrize(
    ("reason", "text"), [(None, "None"), (7, "7"), (ValueError("no rows"), "ValueError: no rows")]
)
def test_a_reason_that_is_no_str_is_taken_as_text(kind: type[TaskError], reason: object, text: str) -> None:
    assert (kind(reason).reason, str(kind(reason))) == (text, text)


@pytest.mark.parametrize("code", [True, False, "1", 1.0])
def test_an_exit_code_that_is_no_int_is_refused(code: object) -> None:
    with pytest.raises(TypeError, match="exit_code of Fatal must be an int or None"):
        Fatal("x", exit_code=code)  # type: ignore[arg-type]


def test_the_exit_code_is_given_by_name_only() -> None:
    with pytest.raises(TypeError):
        Fail("x", 3)  # type: ignore[misc]


@pytest.mark.parametrize("kind", BODY_ERRORS)
@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_body_error_survives_a_copy(kind: type[TaskError], clone) -> None:
    same = clone(kind("no rows", exit_code=3))
    assert (type(same), str(same), same.reason, same.exit_code) == (kind, "no rows", "no rows", 3)


def test_a_subclass_that_skips_init_still_has_both_attributes() -> None:
    class Quiet(Fail):
        def __init__(self) -> None:
            pass

    assert (Quiet().reason, Quiet().exit_code) == ("", None)


def test_except_exception_lets_a_cancellation_pass() -> None:
    def body() -> None:
        try:
            raise Canceled
        except Exception:
            pytest.fail("swallowed")

    with pytest.raises(Canceled):
        body()


def test_canceled_takes_any_printable_reason() -> None:
    class Reason(StrEnum):
        SHUTDOWN = "shutdown"

    assert (str(Canceled()), Canceled().reason) == ("canceled", "canceled")
    error = Canceled(Reason.SHUTDOWN)
    assert (str(error), error.reason) == ("shutdown", Reason.SHUTDOWN)
    assert pickle.loads(pickle.dumps(Canceled("stop"))).reason == "stop"


@pytest.mark.parametrize("kind", LIBRARY_ERRORS)
def test_every_library_error_is_a_supervisor_error_and_a_builtin_one(kind: type[SupervisorError]) -> None:
    assert issubclass(kind, SupervisorError)
    assert issubclass(kind, ValueError if kind is TaskAlreadyExists else RuntimeError)
    assert not issubclass(kind, TaskError)
    assert str(pickle.loads(pickle.dumps(kind("why")))) == "why"


def test_the_drawing_at_the_top_names_every_error() -> None:
    drawn = errors.__doc__ or ""
    kinds = [
        each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, BaseException)
    ]
    assert len(kinds) == 14
    assert [kind.__name__ for kind in kinds if f" {kind.__name__} " not in drawn.replace("\n", " ")] == []


def test_grace_exceeded_names_each_stuck_task_and_where_it_is() -> None:
    error = GraceExceeded([StuckTask("orders", 3, STACK), StuckTask("rates", 4, "")], 60.0)
    assert error.stuck == (StuckTask("orders", 3, STACK), StuckTask("rates", 4, ""))
    assert str(error) == (
        "2 tasks did not stop within 60 s; let the body watch ctx.canceled\n"
        "  'orders' (#3) is at File \"jobs.py\", line 12, in pull: wait_for_ever()\n"
        "  'rates' (#4) is running (no stack)"
    )


def test_grace_exceeded_spells_out_ten_tasks_and_counts_the_rest() -> None:
    lines = str(GraceExceeded([StuckTask(f"t{n}", n, STACK) for n in range(1, 1001)], 0.5)).splitlines()
    assert (lines[0].partition(" did")[0], len(lines), lines[-1]) == ("1000 tasks", 12, "  and 990 more")


def test_one_stuck_task_is_one_task() -> None:
    assert str(GraceExceeded([StuckTask("t", 1, "odd text")])).startswith("1 task did not stop in time;")
    assert "is at odd text" in str(GraceExceeded([StuckTask("t", 1, "odd text")]))


@pytest.mark.parametrize("clone", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_grace_exceeded_survives_a_copy(clone) -> None:
    error = GraceExceeded((StuckTask("orders", 3, STACK),), 1.5)
    same = clone(error)
    assert (same.stuck, same.grace, str(same)) == (error.stuck, 1.5, str(error))


def test_a_stuck_task_is_frozen() -> None:
    with pytest.raises(AttributeError):
        StuckTask("t", 1, "").name = "u"  # type: ignore[misc]
    assert not hasattr(StuckTask("t", 1, ""), "__dict__")
