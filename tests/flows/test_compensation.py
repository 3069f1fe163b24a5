"""Undoing what had finished: what, in which order, when, and what the run ends with."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor import Canceled, CancelToken, Fail, Fatal
from supervisor.flows import (
    CircuitBreaker,
    CircuitOpen,
    CompensationFailed,
    FlowError,
    FlowTimeout,
    JoinConfig,
    JoinFailed,
    JoinStrategy,
    MemoryStore,
    Resources,
    RetryExhausted,
    Workflow,
)
from supervisor.testing import VirtualClock
from tests.bodies import Scripted
from tests.flows.walking import DOUBLING, S, Walk, failure, one


class Saga:
    """A workflow whose states log what they do and what is undone."""

    def __init__(self, clock: VirtualClock) -> None:
        self.log: list[str] = []
        self.clock = clock
        self.workflow = Workflow(Resources(log=self.log)).add_exit_state("end")

    def step(self, name: str, following: Any, value: Any = None, fails: BaseException | None = None) -> Saga:
        """A state that can be undone; `fails` is what undoing it raises."""

        def run(res: Any) -> Any:
            self.log.append(name)
            return following, value

        def undo(res: Any, value: Any) -> None:
            assert res["log"] is self.log
            self.log.append(f"undo {name} {value}" if value is not None else f"undo {name}")
            if fails is not None:
                raise fails

        self.workflow.register(name, run, compensate=undo)
        return self

    def plain(self, name: str, body: Any, **settings: Any) -> Saga:
        self.workflow.register(name, body, **settings)
        return self


def boom() -> Any:
    raise ValueError("boom")


def test_after_a_failure_what_had_finished_is_undone_last_first(clock: VirtualClock) -> None:
    saga = Saga(clock).step("a", "b", 1).step("b", "c", 2).plain("c", boom)
    error = failure(clock, saga.workflow, initial="a")
    assert type(error) is ValueError, "the original error"
    assert saga.log == ["a", "b", "undo b 2", "undo a 1"]


@pytest.mark.parametrize("position", range(6))
def test_a_failure_at_any_place_undoes_exactly_what_stands_before_it(
    clock: VirtualClock, position: int
) -> None:
    saga = Saga(clock)
    for n in range(5):
        if n == position:
            saga.plain(str(n), boom)
        else:
            saga.step(str(n), str(n + 1) if n < 4 else "end")
    walk = Walk(clock, saga.workflow, "0").finish()
    done = [str(n) for n in range(min(position, 5))]
    if position == 5:
        assert walk.result == "end"
        assert saga.log == done
    else:
        assert saga.log == done + [f"undo {name}" for name in reversed(done)]


def test_a_success_undoes_nothing(clock: VirtualClock) -> None:
    saga = Saga(clock).step("a", "b").step("b", "end")
    assert Walk(clock, saga.workflow, "a").finish().result == "end"
    assert saga.log == ["a", "b"]


def test_states_that_can_not_be_undone_are_passed_over(clock: VirtualClock) -> None:
    saga = Saga(clock).step("a", "b").plain("b", lambda: "c").step("c", "d").plain("d", boom)
    failure(clock, saga.workflow, initial="a")
    assert saga.log == ["a", "c", "undo c", "undo a"]


def test_the_state_that_failed_is_not_undone(clock: VirtualClock) -> None:
    undone: list[Any] = []
    workflow = one(boom, compensate=lambda res, value: undone.append(value), max_retries=2, backoff=None)
    assert type(failure(clock, workflow)) is RetryExhausted
    assert undone == []


def test_a_state_that_is_visited_twice_is_undone_twice_each_with_its_value(clock: VirtualClock) -> None:
    undone: list[int] = []
    steps = Scripted((S.A, 1), (S.A, 2), (S.B, 3))
    workflow = one(steps, compensate=lambda res, value: undone.append(value)).register(S.B, boom)
    failure(clock, workflow)
    assert undone == [3, 2, 1]


def test_sixty_states_are_undone_in_reverse(clock: VirtualClock) -> None:
    saga = Saga(clock)
    for n in range(60):
        saga.step(str(n), str(n + 1))
    saga.plain("60", boom)
    failure(clock, saga.workflow, initial="0")
    assert saga.log[60:] == [f"undo {n}" for n in reversed(range(60))]


@pytest.mark.parametrize("value", [None, 0, "text", (1, 2), [1], object()])
def test_compensate_gets_the_very_value_of_its_task(clock: VirtualClock, value: Any) -> None:
    undone: list[Any] = []
    failure(clock, one(lambda: (S.B, value), compensate=lambda res, v: undone.append(v)).register(S.B, boom))
    assert undone[0] is value


def test_only_the_attempt_that_succeeded_is_undone(clock: VirtualClock) -> None:
    undone: list[Any] = []
    body = Scripted(Fail("no"), Fail("no"), (S.B, "third"))
    workflow = one(body, compensate=lambda res, v: undone.append(v), max_retries=2).register(S.B, boom)
    failure(clock, workflow)
    assert undone == ["third"]


def test_a_task_that_names_an_unknown_state_has_finished_and_is_undone(clock: VirtualClock) -> None:
    saga = Saga(clock).step("a", "b").step("b", "nowhere", 7)
    error = failure(clock, saga.workflow, initial="a")
    assert type(error) is FlowError
    assert "nowhere" in str(error)
    assert saga.log == ["a", "b", "undo b 7", "undo a"]


@pytest.mark.parametrize("returned", [S.B, None, (S.B,), (S.B, 1, 2), [S.B, 1]], ids=repr)
def test_a_task_with_compensate_that_gives_no_pair_is_told_so(clock: VirtualClock, returned: Any) -> None:
    undone: list[Any] = []
    workflow = one(lambda: returned, compensate=lambda res, v: undone.append(v)).register(S.B, lambda: S.DONE)
    error = failure(clock, workflow)
    assert type(error) is FlowError
    assert "(next_state, value)" in str(error)
    assert "S.A" in str(error)
    assert undone == []


def test_what_led_to_an_exit_state_is_never_undone(clock: VirtualClock) -> None:
    undone: list[Any] = []
    assert (
        Walk(clock, one(lambda: (S.DONE, 1), compensate=lambda res, v: undone.append(v))).finish().result
        is S.DONE
    )
    assert undone == []


def test_a_state_that_is_registered_again_is_undone_as_it_was_registered_last(clock: VirtualClock) -> None:
    undone: list[Any] = []
    workflow = one(lambda: (S.B, 1), compensate=lambda res, v: undone.append("old")).register(S.B, boom)
    workflow.register(S.A, lambda: (S.B, 1), compensate=lambda res, v: undone.append("new"))
    failure(clock, workflow)
    workflow.register(S.A, lambda: S.B)
    failure(clock, workflow)
    assert undone == ["new"]


# -- after every kind of end


def opened() -> CircuitBreaker:
    breaker = CircuitBreaker(1)
    breaker.failure(breaker.admit())  # type: ignore[arg-type]
    return breaker


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ({"task": boom}, ValueError),
        ({"task": boom, "max_retries": 2}, RetryExhausted),
        ({"task": Scripted(Fatal("x"))}, Fatal),
        ({"task": Scripted(KeyboardInterrupt())}, KeyboardInterrupt),
        ({"task": Scripted(SystemExit(1))}, SystemExit),
        ({"task": Scripted(Canceled())}, Canceled),
        ({"task": lambda: S.DONE, "breaker": opened()}, CircuitOpen),
        ({"task": lambda res, run: run.token.sleep(9), "timeout": 1.0}, FlowTimeout),
        ({"task": lambda: None}, FlowError),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_after_every_kind_of_failure_it_is_undone_and_the_original_error_surfaces(
    clock: VirtualClock, last: dict[str, Any], kind: type[BaseException]
) -> None:
    undone: list[Any] = []
    workflow = one(lambda: (S.B, 1), compensate=lambda res, v: undone.append(v)).register(
        S.B, **{"backoff": None, **last}
    )
    assert type(failure(clock, workflow)) is kind
    assert undone == [1]


def test_after_a_failed_join_it_is_undone(clock: VirtualClock) -> None:
    saga = Saga(clock).step("a", "s", 1)
    saga.workflow.register_split("s", [boom], JoinConfig(JoinStrategy.ALL, "end"))
    assert type(failure(clock, saga.workflow, initial="a")) is JoinFailed
    assert saga.log == ["a", "undo a 1"]


def test_a_cancel_undoes_at_once_what_had_finished(clock: VirtualClock) -> None:
    times: list[float] = []
    token = CancelToken(clock=clock)
    workflow = one(lambda: (S.B, 1), compensate=lambda res, v: times.append(clock.monotonic()))
    workflow.register(S.B, lambda res, run: run.token.sleep(60))
    walk = Walk(clock, workflow, token=token)
    clock.advance(2.0)
    token.cancel()
    walk.finish()
    assert type(walk.error) is Canceled
    assert times == [2.0]


def test_a_cancel_during_a_body_that_finishes_undoes_that_too_and_nothing_follows(
    clock: VirtualClock,
) -> None:
    undone, later, token = list[Any](), list[Any](), CancelToken(clock=clock)
    workflow = one(lambda: clock.sleep(5.0) or (S.B, "deaf"), compensate=lambda res, v: undone.append(v))
    workflow.register(S.B, lambda: later.append(1) or S.DONE)
    walk = Walk(clock, workflow, token=token)
    clock.advance(2.0)
    token.cancel()
    walk.finish()
    assert type(walk.error) is Canceled
    assert (undone, later) == (["deaf"], [])


def test_the_total_timeout_undoes_what_had_finished(clock: VirtualClock) -> None:
    times: list[float] = []
    workflow = one(
        lambda: (S.B, 1), compensate=lambda res, v: times.append(clock.monotonic())
    ).with_total_timeout(5.0)
    error = failure(clock, workflow.register(S.B, lambda res, run: run.token.sleep(60)))
    assert type(error) is FlowTimeout
    assert times == [5.0]


def test_a_body_that_returned_after_its_own_deadline_has_not_finished(clock: VirtualClock) -> None:
    undone: list[Any] = []
    workflow = one(
        lambda: clock.sleep(5.0) or (S.DONE, 1), compensate=lambda res, v: undone.append(v), timeout=2.0
    )
    assert type(failure(clock, workflow)) is FlowTimeout
    assert undone == []


def test_once_begun_undoing_goes_on_to_its_end_whatever_is_asked(clock: VirtualClock) -> None:
    undone, token = list[str](), CancelToken(clock=clock)

    def slowly(name: str) -> Any:
        def undo(res: Any, value: Any) -> None:
            clock.sleep(10.0)
            undone.append(name)

        return undo

    workflow = one(lambda: (S.B, 1), compensate=slowly("a")).register(
        S.B, lambda: (S.C, 1), compensate=slowly("b")
    )
    walk = Walk(clock, workflow.register(S.C, boom).with_total_timeout(5.0), token=token)
    clock.advance(7.0)
    token.cancel()
    walk.finish()
    assert type(walk.error) is ValueError
    assert undone == ["b", "a"]
    assert walk.ended == 20.0


def test_it_is_undone_before_the_resources_are_torn_down(clock: VirtualClock) -> None:
    log: list[str] = []

    class R:
        def teardown(self) -> None:
            log.append("teardown")

    workflow = Workflow(Resources(r=R(), store=MemoryStore())).add_exit_state(S.DONE).register(S.B, boom)
    workflow.register(S.A, lambda: (S.B, 1), compensate=lambda res, v: log.append("undo"))
    failure(clock, workflow)
    assert log == ["undo", "teardown"]


# -- undoing that fails


def test_a_failing_compensation_is_told_with_the_original_error_and_the_rest_goes_on(
    clock: VirtualClock,
) -> None:
    lost = OSError("no way back")
    saga = Saga(clock).step("a", "b").step("b", "c", fails=lost).step("c", "d").plain("d", boom)
    error = failure(clock, saga.workflow, initial="a")
    assert type(error) is CompensationFailed
    assert saga.log == ["a", "b", "c", "undo c", "undo b", "undo a"]
    assert type(error.original) is ValueError
    assert error.failures == [("b", lost)]
    assert error.__cause__ is error.original
    for words in ("'b'", "OSError: no way back", "ValueError: boom"):
        assert words in str(error)
    assert (error.state, error.attempt, error.path) == ("d", 1, ("a", "b", "c", "d"))
    assert "state 'd'" in error.original.__notes__[0]


@pytest.mark.parametrize(
    "lost", [ValueError("x"), Fatal("x"), KeyboardInterrupt(), SystemExit(1), Canceled(), GeneratorExit()]
)
def test_whatever_a_compensation_raises_the_others_still_run(
    clock: VirtualClock, lost: BaseException
) -> None:
    saga = Saga(clock).step("a", "b").step("b", "c", fails=lost).plain("c", boom)
    error = failure(clock, saga.workflow, initial="a")
    assert type(error) is CompensationFailed
    assert error.failures == [("b", lost)]
    assert saga.log[-1] == "undo a"


def test_every_failure_is_listed_in_the_order_of_undoing(clock: VirtualClock) -> None:
    first, second = ValueError("1"), ValueError("2")
    saga = (
        Saga(clock).step("a", "b", fails=second).step("b", "c").step("c", "d", fails=first).plain("d", boom)
    )
    assert failure(clock, saga.workflow, initial="a").failures == [("c", first), ("a", second)]


@pytest.mark.parametrize("why", ["cancel", "timeout"])
def test_a_failing_compensation_after_a_stop_keeps_the_stop_as_the_original(
    clock: VirtualClock, why: str
) -> None:
    def lost(res: Any, value: Any) -> None:
        raise OSError("no way back")

    token = CancelToken(clock=clock)
    workflow = one(lambda: (S.B, 1), compensate=lost).register(S.B, lambda res, run: run.token.sleep(60))
    if why == "timeout":
        workflow.with_total_timeout(3.0)
    walk = Walk(clock, workflow, token=token)
    clock.advance(2.0)
    if why == "cancel":
        token.cancel()
    walk.finish()
    assert type(walk.error) is CompensationFailed
    assert type(walk.error.original) is (Canceled if why == "cancel" else FlowTimeout)


def test_a_compensation_is_not_retried(clock: VirtualClock) -> None:
    undo = Scripted(Fail("no"))
    workflow = one(
        lambda: (S.B, 1), compensate=lambda res, v: undo(), max_retries=5, backoff=DOUBLING
    ).register(S.B, boom)
    failure(clock, workflow)
    assert undo.calls == 1


def test_many_runs_undo_only_their_own(clock: VirtualClock) -> None:
    log: list[tuple[str, int]] = []

    def last(res: Any, run: Any) -> S:
        clock.sleep(1.0)
        if run.id % 2:
            raise ValueError("odd")
        return S.DONE

    workflow = one(lambda res, run: (S.B, run.id), compensate=lambda res, id: log.append(("undo", id)))
    workflow.register(S.B, last)
    walks = [Walk(clock, workflow) for _ in range(20)]
    for walk in walks:
        walk.finish()
    assert len(log) == 10
    assert all(id % 2 for _, id in log)
    assert len(set(log)) == 10
