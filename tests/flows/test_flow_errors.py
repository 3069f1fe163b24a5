"""What a run ends with: which class, where it says it happened, once, and what it keeps alive."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from supervisor import Canceled, Fail, Fatal, SupervisorError, flows
from supervisor.flows import (
    CircuitBreaker,
    CircuitOpen,
    CompensationFailed,
    FlowError,
    FlowTimeout,
    JoinConfig,
    JoinFailed,
    JoinStrategy,
    RetryExhausted,
    StopTimeout,
    Workflow,
)
from supervisor.testing import VirtualClock
from tests.bodies import Scripted
from tests.flows.walking import DOUBLING, S, Split, failure, one

BASES: dict[str, type[Exception]] = {
    "ConfigurationError": ValueError,
    "FlowTimeout": TimeoutError,
    "RetryExhausted": FlowError,
    "JoinFailed": FlowError,
    "CircuitOpen": FlowError,
    "CompensationFailed": FlowError,
    "ResourceNotFound": KeyError,
    "ResourceTypeMismatch": TypeError,
    "FlowNotFound": LookupError,
    "FlowAlreadyRunning": RuntimeError,
    "FlowTripped": RuntimeError,
    "SchedulerStopped": RuntimeError,
    "StopTimeout": TimeoutError,
}


@pytest.mark.parametrize("name", BASES)
def test_every_error_is_a_flow_error_and_what_python_calls_it(name: str) -> None:
    kind = getattr(flows, name)
    assert issubclass(kind, FlowError)
    assert issubclass(kind, SupervisorError)
    assert issubclass(kind, BASES[name])


@pytest.mark.parametrize("name", ["ConfigurationError", "CircuitOpen", "ResourceNotFound", "FlowTripped"])
def test_an_error_that_happened_nowhere_has_its_plain_text(name: str) -> None:
    error = getattr(flows, name)("just so")
    assert str(error) == "just so"
    assert (error.flow_id, error.state, error.attempt, error.path) == (None, None, 0, ())


# -- where: every way to fail, and the same four facts


def opened() -> CircuitBreaker:
    breaker = CircuitBreaker(1)
    breaker.failure(breaker.admit())  # type: ignore[arg-type]
    return breaker


def fails() -> Any:
    raise ValueError("boom")


WAYS: dict[str, tuple[Callable[[], Workflow], type[BaseException], int]] = {
    "retries": (lambda: two(fails, max_retries=2), RetryExhausted, 3),
    "timeout": (lambda: two(lambda res, run: run.token.sleep(9), timeout=1.0), FlowTimeout, 1),
    "timeouts": (
        lambda: two(lambda res, run: run.token.sleep(9), timeout=1.0, max_retries=1),
        FlowTimeout,
        2,
    ),
    "breaker": (lambda: two(lambda: S.DONE, breaker=opened()), CircuitOpen, 0),
    "unknown": (lambda: two(lambda: S.OTHER), FlowError, 1),
    "none": (lambda: two(lambda: None), FlowError, 1),
    "unknown after a retry": (lambda: two(Scripted(Fail("no"), S.OTHER), max_retries=1), FlowError, 2),
    "join": (
        lambda: two(None).register_split(S.B, [fails], JoinConfig(JoinStrategy.ALL, S.C)),
        JoinFailed,
        1,
    ),
    "compensation": (lambda: two(fails, undo=fails), CompensationFailed, 1),
}


def two(task: Any, undo: Any = None, **settings: Any) -> Workflow:
    first = (lambda: (S.B, 1)) if undo else (lambda: S.B)
    compensate = (lambda res, value: undo()) if undo else None
    workflow = one(first, compensate=compensate).register(S.C, lambda: S.DONE)
    return workflow if task is None else workflow.register(S.B, task, **settings)


@pytest.mark.parametrize("way", WAYS)
def test_an_error_carries_where_it_happened_and_shows_it_once(clock: VirtualClock, way: str) -> None:
    build, kind, attempt = WAYS[way]
    error = failure(clock, build())
    assert isinstance(error, kind)
    assert isinstance(error, FlowError)
    assert (error.state, error.attempt, error.path) == (S.B, attempt, (S.A, S.B))
    assert isinstance(error.flow_id, str)
    text = str(error)
    assert text.count(repr(error.flow_id)) == 1, text
    assert text.count(f"attempt {attempt}, path") == 1, text
    assert text.count("S.A > S.B") == 1, text
    assert text.count("state S.B") == 1, text
    assert not getattr(error, "__notes__", ()), "what the text says is in no note"


def test_the_total_timeout_carries_where_the_run_was(clock: VirtualClock) -> None:
    error = failure(clock, two(lambda res, run: run.token.sleep(9)).with_total_timeout(1.0))
    assert type(error) is FlowTimeout
    assert (error.state, error.path) == (S.B, (S.A, S.B))
    assert str(error).count("S.A > S.B") == 1


@pytest.mark.parametrize(
    "own", [ValueError("boom"), Fatal("boom"), KeyboardInterrupt(), SystemExit(2), Canceled()]
)
def test_an_error_of_the_users_surfaces_unchanged_with_one_note(
    clock: VirtualClock, own: BaseException
) -> None:
    text = str(own)
    error = failure(clock, two(Scripted(own)))
    assert error is own
    assert str(error) == text
    (note,) = error.__notes__
    assert "flow 'run-" in note
    assert note.endswith("state S.B, attempt 1, path S.A > S.B")


def test_one_error_object_that_is_raised_again_at_the_same_place_has_its_note_once(
    clock: VirtualClock,
) -> None:
    own = ValueError("again and again")

    Split(JoinStrategy.partial(3), [Scripted(own) for _ in range(3)]).walk(clock)
    assert len(own.__notes__) == 1


def test_an_error_without_room_for_notes_surfaces_all_the_same(clock: VirtualClock) -> None:
    class ClosedError(Exception):
        def add_note(self, note: str) -> None:
            raise TypeError("no notes")

    assert isinstance(failure(clock, one(Scripted(ClosedError()))), ClosedError)


def test_an_error_from_a_workflow_inside_a_workflow_tells_the_inner_place(clock: VirtualClock) -> None:
    inner = Workflow().register("i", fails, max_retries=1).add_exit_state("end")
    error = failure(clock, one(lambda: inner.run("i", clock=clock)))
    assert type(error) is RetryExhausted
    assert (error.state, error.path) == ("i", ("i",))
    assert str(error).count("path 'i'") == 1


def test_a_users_error_from_a_workflow_inside_a_workflow_has_both_places(clock: VirtualClock) -> None:
    inner = Workflow().register("i", fails).add_exit_state("end")
    notes = failure(clock, one(lambda: inner.run("i", clock=clock))).__notes__
    assert [note.rpartition("path ")[2] for note in notes] == ["'i'", "S.A"]


def test_a_flow_error_that_a_user_raises_gets_its_place(clock: VirtualClock) -> None:
    error = failure(clock, one(Scripted(FlowError("by hand"))))
    assert (error.state, error.attempt, error.path) == (S.A, 1, (S.A,))
    assert str(error).startswith("by hand (flow ")


def test_the_text_of_a_long_path_is_short_and_the_path_is_whole(clock: VirtualClock) -> None:
    def again(res: Any, run: Any) -> S:
        return S.A if len(run.path) < 5000 else S.OTHER

    error = failure(clock, one(again))
    assert len(error.path) == 5000
    assert len(str(error)) < 500
    assert "(4988 more)" in str(error)


# -- a state that nobody knows


@pytest.mark.parametrize("returned", [S.OTHER, "S.DONE", 0, False, (S.DONE, 1)], ids=repr)
def test_an_unknown_state_is_named_with_where_it_came_from_and_what_is_known(
    clock: VirtualClock, returned: Any
) -> None:
    error = failure(clock, one(lambda: returned).register(S.B, lambda: S.DONE))
    assert type(error) is FlowError
    text = str(error)
    for words in (repr(returned) if not isinstance(returned, S) else "OTHER", "S.A", "S.B", "S.DONE"):
        assert words in text


def test_returning_nothing_is_told_with_a_hint(clock: VirtualClock) -> None:
    error = failure(clock, one(lambda: None))
    assert type(error) is FlowError
    for words in ("None", "return", "S.A", "S.DONE"):
        assert words in str(error)


@pytest.mark.parametrize("returned", [[], {}, {S.DONE}], ids=repr)
def test_an_unhashable_state_is_an_unknown_one(clock: VirtualClock, returned: Any) -> None:
    error = failure(clock, one(lambda: returned))
    assert type(error) is FlowError
    assert repr(returned) in str(error)


def test_an_unknown_state_is_not_retried(clock: VirtualClock) -> None:
    body = Scripted(S.OTHER)
    failure(clock, one(body, max_retries=5))
    assert body.calls == 1


def test_a_hostile_state_spoils_no_text(clock: VirtualClock) -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

        def __hash__(self) -> int:
            raise OverflowError("no hash")

    error = failure(clock, one(lambda: Hostile()))
    assert isinstance(error, Exception)


@pytest.mark.parametrize("router", [False, True])
def test_a_router_that_names_an_unknown_state_fails_in_the_same_way(
    clock: VirtualClock, router: bool
) -> None:
    workflow = Workflow().add_exit_state(S.DONE)
    (workflow.register_router if router else workflow.register)(S.A, lambda: S.OTHER)
    assert "OTHER" in str(failure(clock, workflow))


# -- causes and frames


def test_the_error_of_the_last_attempt_is_the_cause_with_its_traceback(clock: VirtualClock) -> None:
    error = failure(clock, one(fails, max_retries=1))
    trace, names = error.__cause__.__traceback__, []
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names[-1] == "fails"


def test_the_text_of_retries_has_the_type_and_message_of_the_last_error(clock: VirtualClock) -> None:
    assert "failed 2 times, the last with ValueError: boom" in str(failure(clock, one(fails, max_retries=1)))


def test_a_chain_of_causes_is_kept(clock: VirtualClock) -> None:
    def body() -> S:
        try:
            fails()
        except ValueError as error:
            raise OSError("outer") from error
        return S.DONE

    assert isinstance(failure(clock, one(body)).__cause__, ValueError)


class Big:
    """Stands for a megabyte of locals."""


@pytest.mark.parametrize("settings", [{}, {"max_retries": 2, "backoff": None}, {"timeout": 60.0}], ids=str)
def test_a_run_that_failed_holds_nothing_once_its_error_is_dropped(settings: dict[str, Any]) -> None:
    held: list[weakref.ref[Big]] = []

    def body() -> S:
        big = Big()
        held.append(weakref.ref(big))
        raise ValueError("boom")

    workflow = one(body, **settings)
    gc.collect()
    gc.disable()  # a cycle counts as held
    try:
        try:
            workflow.run(S.A)
        except (ValueError, RetryExhausted):
            pass
        assert [ref() for ref in held] == [None] * len(held)
    finally:
        gc.enable()


def test_a_backoff_holds_nothing_of_the_attempt_before_it(clock: VirtualClock) -> None:
    held: list[weakref.ref[Big]] = []

    def body(res: Any, run: Any) -> S:
        assert [ref() for ref in held] == [None] * len(held)
        big = Big()
        held.append(weakref.ref(big))
        if run.attempt < 3:
            raise ValueError("boom")
        return S.DONE

    gc.disable()
    try:
        assert one(body, max_retries=3, backoff=DOUBLING).run(S.A, clock=clock) is S.DONE
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "error",
    [
        FlowTimeout(1.0, 0.5, "the run"),
        RetryExhausted(3, ValueError("boom")),
        CompensationFailed(ValueError("boom"), [("A", KeyError("x"))]),
        StopTimeout(["a"], 1.0, ["b"]),
        FlowError("plain"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_can_be_pickled_and_copied(error: FlowError) -> None:
    error.at("flow", "state", 2, ("first", "state"))
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(same) is type(error)
        assert str(same) == str(error)
        assert (same.flow_id, same.state, same.attempt, same.path) == ("flow", "state", 2, ("first", "state"))
