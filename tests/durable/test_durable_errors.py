"""The errors of the durable layer: who catches what, what each says, and that each survives a copy."""

from __future__ import annotations

import copy
import pickle

import pytest

from supervisor.durable import errors
from supervisor.durable.errors import (
    CorruptHistory,
    EventConflict,
    FlowError,
    InvalidRunId,
    InvalidTransition,
    LeaseLost,
    NonDeterministic,
    NonRetryable,
    PayloadTooLarge,
    QueueFull,
    ReplayLimitExceeded,
    RunConflict,
    RunFailed,
    RunNotFound,
    RunTerminal,
    SerializationError,
    SignalConflict,
    StepFailed,
    StoreError,
    UnknownStep,
    UnknownWorkflow,
)
from supervisor.kernel.errors import SupervisorError

# error, what else catches it, its text, its fields
TABLE: list[tuple[FlowError, type[Exception], str, dict[str, object]]] = [
    (FlowError("what"), SupervisorError, "what", {}),
    (RunNotFound("r"), LookupError, "no run 'r' in this store", {"run_id": "r"}),
    (
        RunConflict("r", "its input differs"),
        ValueError,
        "run 'r': its input differs",
        {"run_id": "r", "reason": "its input differs"},
    ),
    (
        RunTerminal("r", "failed"),
        RuntimeError,
        "run 'r' has ended (failed)",
        {"run_id": "r", "status": "failed"},
    ),
    (InvalidRunId("why"), ValueError, "why", {}),
    (InvalidTransition("why"), RuntimeError, "why", {}),
    (
        NonDeterministic("r", "step 's' input differs"),
        RuntimeError,
        "run 'r' is not deterministic: step 's' input differs",
        {"run_id": "r", "reason": "step 's' input differs"},
    ),
    (
        EventConflict("r", 1, 2),
        RuntimeError,
        "run 'r': expected its last event to be 1, and it is 2",
        {"run_id": "r", "expected": 1, "actual": 2, "expected_sequence": 1, "actual_sequence": 2},
    ),
    (StoreError("disk full"), RuntimeError, "disk full", {}),
    (CorruptHistory("line 2"), StoreError, "line 2", {}),
    (
        SerializationError("input.a[1]", "must be a JSON value"),
        ValueError,
        "input.a[1] must be a JSON value",
        {"path": "input.a[1]", "reason": "must be a JSON value"},
    ),
    (
        PayloadTooLarge("output of step 's'", 7, 5),
        ValueError,
        "output of step 's' has 7 bytes of JSON, the limit is 5; keep large data elsewhere and pass a reference to it",
        {"what": "output of step 's'", "size": 7, "limit": 5},
    ),
    (
        ReplayLimitExceeded("r", 1024),
        RuntimeError,
        "run 'r' asked its workflow 1024 times in one drive; drive it again to go on, or give the engine a larger "
        "max_replays",
        {"run_id": "r", "limit": 1024},
    ),
    (UnknownWorkflow("why"), LookupError, "why", {}),
    (UnknownStep("why"), LookupError, "why", {}),
    (LeaseLost("why"), RuntimeError, "why", {}),
    (
        QueueFull(3, 3),
        RuntimeError,
        "3 tasks are queued, and the capacity is 3; try again later",
        {"pending": 3, "capacity": 3},
    ),
    (NonRetryable("card expired"), FlowError, "card expired", {}),
    (
        StepFailed("s", "ValueError: x", 1),
        FlowError,
        "step 's' failed after 1 attempt: ValueError: x",
        {"step_id": "s", "error": "ValueError: x", "attempts": 1},
    ),
    (RunFailed("r", "boom"), FlowError, "run 'r' failed: boom", {"run_id": "r", "error": "boom"}),
    (
        SignalConflict("r", "g"),
        ValueError,
        "run 'r' got signal 'g' before, with another name or payload",
        {"run_id": "r", "signal_id": "g"},
    ),
]
IDS = [type(error).__name__ for error, *_ in TABLE]


def test_the_table_has_every_class() -> None:
    assert sorted(IDS) == sorted(errors.__all__)


@pytest.mark.parametrize(("error", "family", "text", "values"), TABLE, ids=IDS)
def test_each_error_says_what_it_carries(
    error: FlowError, family: type[Exception], text: str, values: dict[str, object]
) -> None:
    assert isinstance(error, family)
    assert isinstance(error, FlowError)
    assert isinstance(error, SupervisorError)
    assert str(error) == text
    assert {name: getattr(error, name) for name in values} == values


@pytest.mark.parametrize(("error", "family", "text", "values"), TABLE, ids=IDS)
def test_each_error_survives_a_copy_and_a_pickle(
    error: FlowError, family: type[Exception], text: str, values: dict[str, object]
) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        check_copy(pickle.loads(pickle.dumps(error, protocol)), error, text, values)
    check_copy(copy.copy(error), error, text, values)
    check_copy(copy.deepcopy(error), error, text, values)


def check_copy(found: FlowError, error: FlowError, text: str, values: dict[str, object]) -> None:
    assert type(found) is type(error)
    assert (str(found), found.args, repr(found)) == (text, error.args, repr(error))
    assert {name: getattr(found, name) for name in values} == values


@pytest.mark.parametrize("kind", [each for each in errors.__all__ if each != "FlowError"])
def test_the_tree_in_the_docstring_names_every_class(kind: str) -> None:
    assert f"── {kind} " in (errors.__doc__ or "").replace("\n", " ")


def test_several_attempts_are_counted() -> None:
    assert str(StepFailed("s", "x", 3)) == "step 's' failed after 3 attempts: x"
