"""Branches side by side: when their join lets the run go on, what becomes of the others, how many at once.

`SUPERVISOR_SEEDS=2000` or `SUPERVISOR_SEEDS=137-138` runs other seeds than the first sixty.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest

from supervisor import Canceled, CancelReason, CancelToken, Fail, Fatal
from supervisor.flows import (
    BranchFinished,
    BranchResult,
    CircuitBreaker,
    FlowTimeout,
    JoinConfig,
    JoinFailed,
    JoinStrategy,
    MemoryStore,
    Resources,
    RetryExhausted,
    Workflow,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.bodies import Scripted
from tests.flows.walking import DOUBLING, S, Split, Timed, Walk


def seeds() -> range:
    first, _, last = os.environ.get("SUPERVISOR_SEEDS", "60").rpartition("-")
    return range(int(first or 0), int(last))


ALL, ANY, PARTIAL_TIMEOUT = JoinStrategy.ALL, JoinStrategy.ANY, JoinStrategy.PARTIAL_TIMEOUT
quorum, percentage, partial = JoinStrategy.quorum, JoinStrategy.percentage, JoinStrategy.partial
BAD = ValueError("bad")


@pytest.fixture
def timed(clock: VirtualClock) -> Iterator[Timed]:
    yield Timed(clock)
    clock.advance(1e4)  # stragglers come back


# -- when a join goes on, to the second


@pytest.mark.parametrize(
    ("strategy", "timeout", "branches", "ends", "values", "errors", "canceled"),
    [
        # all of them; the first failure makes it impossible
        (ALL, None, [(1, "a"), (3, "b"), (2, "c")], 3.0, "abc", [], []),
        (ALL, None, [(0, "a"), (0, "b")], 0.0, "ab", [], []),
        (ALL, None, [(1, "a"), (2, Fail("no")), (3, "c")], "2 fails", "a", [1], [2]),
        (ALL, 5, [(1, "a"), (2, "b")], 2.0, "ab", [], []),
        (ALL, 2, [(1, "a"), (2, "b")], 2.0, "ab", [], []),
        (ALL, 2, [(1, "a"), (2.001, "b")], "2 fails", "a", [], [1]),
        # the first success
        (ANY, None, [(3, "a"), (1, "b"), (2, "c")], 1.0, "b", [], [0, 2]),
        (ANY, None, [(3, "a"), (1, Fail("no")), (2, "c")], 2.0, "c", [1], [0]),
        (ANY, None, [(1, Fail("no")), (3, Fail("no")), (2, Fail("no"))], "3 fails", "", [0, 1, 2], []),
        (ANY, 2, [(1, Fail("no")), (3, "b")], "2 fails", "", [0], [1]),
        (ANY, None, [(0, "a"), (0, "b"), (0, "c")], 0.0, "a", [], [1, 2]),
        # n successes, or as soon as they are out of reach
        (quorum(2), None, [(1, "a"), (2, "b"), (3, "c")], 2.0, "ab", [], [2]),
        (quorum(2), None, [(1, "a"), (2, Fail("no")), (3, "c")], 3.0, "ac", [1], []),
        (quorum(2), None, [(9, "a"), (2, Fail("no")), (3, Fail("no"))], "3 fails", "", [1, 2], [0]),
        (quorum(2), None, [(0, "a"), (0, "b"), (0, "c")], 0.0, "ab", [], [2]),
        (quorum(3), 4, [(1, "a"), (2, "b"), (5, "c")], "4 fails", "ab", [], [2]),
        # ceil(p * branches) successes
        (percentage(0.5), None, [(1, "a"), (2, "b"), (3, "c")], 2.0, "ab", [], [2]),
        (percentage(0.75), None, [(1, "a"), (2, "b"), (3, "c"), (4, "d")], 3.0, "abc", [], [3]),
        (
            percentage(0.75),
            None,
            [(1, "a"), (2, Fail("1")), (3, Fail("2")), (4, "d")],
            "3 fails",
            "a",
            [1, 2],
            [3],
        ),
        (percentage(1.0), None, [(1, "a"), (2, "b")], 2.0, "ab", [], []),
        (percentage(0.01), None, [(1, "a"), (2, "b")], 1.0, "a", [], [1]),
        # n finished, well or not
        (partial(2), None, [(0.05, "a"), (0.1, "b"), (0.5, "c"), (0.6, "d")], 0.1, "ab", [], [2, 3]),
        (partial(2), None, [(0.05, "a"), (0.1, Fail("no")), (0.5, "c")], 0.1, "a", [1], [2]),
        (partial(2), None, [(1, Fail("1")), (2, Fail("2")), (3, "c")], 2.0, "", [0, 1], [2]),
        (partial(3), 1, [(0.5, "a"), (5, "b"), (5, "c")], "1 fails", "a", [], [1, 2]),
        # all, or the timeout with at least one
        (PARTIAL_TIMEOUT, 0.2, [(0.05, "a"), (0.1, "b"), (0.5, "c"), (0.6, "d")], 0.2, "ab", [], [2, 3]),
        (PARTIAL_TIMEOUT, 0.2, [(0.05, Fail("no")), (0.5, "b")], 0.2, "", [0], [1]),
        (PARTIAL_TIMEOUT, 9, [(1, "a"), (2, "b")], 2.0, "ab", [], []),
        (PARTIAL_TIMEOUT, 9, [(1, "a"), (2, Fail("no"))], 2.0, "a", [1], []),
        (PARTIAL_TIMEOUT, 9, [(1, Fail("1")), (2, Fail("2"))], 2.0, "", [0, 1], []),
        (PARTIAL_TIMEOUT, 1, [(2, "a"), (3, "b")], "1 fails", "", [], [0, 1]),
        (PARTIAL_TIMEOUT, timedelta(seconds=1), [(1, "a"), (3, "b")], 1.0, "a", [], [1]),
    ],
)
@pytest.mark.parametrize("deaf", [False, True], ids=["heeding", "deaf"])
def test_a_join_returns_at_its_verdict_and_never_waits_for_a_straggler(
    clock: VirtualClock, timed: Timed, strategy: JoinStrategy, timeout: Any,
    branches: list[tuple[float, Any]], ends: Any, values: str, errors: list[int], canceled: list[int], deaf: bool,
) -> None:  # fmt: skip
    split = Split(
        strategy, [timed(seconds, gives, deaf=deaf) for seconds, gives in branches], timeout=timeout
    )
    walk = split.walk(clock)
    if isinstance(ends, str):
        assert type(walk.error) is JoinFailed
        assert walk.ended == float(ends.partition(" ")[0])
    else:
        assert walk.error is None
        assert walk.ended == ends
    result = split.result
    assert result.values == list(values)
    assert list(result.errors) == errors
    assert all(result.errors[index] is branches[index][1] for index in errors)
    assert result.canceled == tuple(canceled)
    assert [branch.index for branch in result.branches] == [
        n for n in range(len(branches)) if n not in canceled
    ]
    assert result.abandoned == (tuple(canceled) if deaf else ())


def test_what_a_branch_did_is_told_in_input_order(clock: VirtualClock) -> None:
    timed = Timed(clock)
    split = Split(partial(3), [timed(3, "a"), timed(1, BAD), timed(2, "c")])
    split.walk(clock)
    assert list(split.result.branches) == [
        BranchResult(index=0, name="body", value="a", duration=3.0),
        BranchResult(index=1, name="body", error=BAD, duration=1.0),
        BranchResult(index=2, name="body", value="c", duration=2.0),
    ]
    assert [branch.ok for branch in split.result.branches] == [True, False, True]


@pytest.mark.parametrize("value", [None, 0, S.OTHER, ["a"], ValueError("returned, not raised")])
def test_a_branch_may_return_any_value_and_never_chooses_the_next_state(
    clock: VirtualClock, value: Any
) -> None:
    split = Split(ALL, [lambda: value, lambda: S.DONE])
    assert split.walk(clock).result is S.DONE
    assert split.result.values == [value, S.DONE]
    assert split.result.errors == {}


def test_the_result_is_there_for_every_later_state(clock: VirtualClock) -> None:
    seen: list[Any] = []
    join = JoinConfig(ALL, S.B)
    workflow = (
        Workflow()
        .register_split(S.A, [lambda: 1], join)
        .register_split(
            S.B, [lambda res, run: seen.append(dict(run.splits)), lambda: 2], JoinConfig(ALL, S.C)
        )
        .register(S.C, lambda res, run: seen.append(dict(run.splits)) or S.DONE)
        .add_exit_state(S.DONE)
    )
    workflow.run(S.A, clock=clock)
    in_branch, after = seen
    assert list(in_branch) == [S.A]
    assert list(after) == [S.A, S.B]
    assert after[S.B].values == [None, 2]


def test_a_split_that_is_entered_again_keeps_its_newest_result(clock: VirtualClock) -> None:
    values: list[Any] = []
    counter = Scripted(1, 2)

    def look(res: Any, run: Any) -> S:
        values.append(run.splits[S.A].values)
        return S.A if len(values) < 2 else S.DONE

    workflow = Workflow().register_split(S.A, [counter], JoinConfig(ALL, S.B)).register(S.B, look)
    workflow.add_exit_state(S.DONE).run(S.A, clock=clock)
    assert values == [[1], [2]]


def test_one_branch_is_a_split_too(clock: VirtualClock) -> None:
    for strategy in (ALL, ANY, quorum(1), percentage(0.01), partial(1)):
        split = Split(strategy, [lambda: "only"])
        assert split.walk(clock).result is S.DONE
        assert split.result.values == ["only"]


def test_a_split_may_lead_to_an_exit_state(clock: VirtualClock) -> None:
    workflow = Workflow().register_split(S.A, [lambda: 1], JoinConfig(ALL, S.DONE)).add_exit_state(S.DONE)
    assert workflow.run(S.A, clock=clock) is S.DONE


# -- stragglers


def test_a_straggler_is_asked_to_stop_at_the_verdict(clock: VirtualClock) -> None:
    told: list[Any] = []

    def straggler(res: Any, run: Any) -> None:
        run.token.on_cancel(lambda: told.append(("callback", clock.monotonic())))
        run.token.wait()
        told.append((run.token.reason, clock.monotonic()))

    timed = Timed(clock)
    Split(ANY, [timed(2, "a"), straggler]).walk(clock)
    clock.settle()
    assert sorted(told, key=str) == sorted([("callback", 2.0), (CancelReason.REQUESTED, 2.0)], key=str)


def test_a_straggler_that_heeds_is_no_longer_abandoned_once_it_is_gone(clock: VirtualClock) -> None:
    timed = Timed(clock)
    split = Split(ANY, [timed(1, "a"), timed(50, "b"), timed(20, "c", deaf=True)])
    walk = split.walk(clock)
    clock.settle()
    assert walk.ended == 1.0
    assert split.result.canceled == (1, 2)
    assert split.result.abandoned == (2,)
    clock.advance(18.5)
    assert split.result.abandoned == (2,)
    clock.advance(0.5)
    assert split.result.abandoned == ()
    assert split.result.canceled == (1, 2)


@pytest.mark.parametrize("late", ["value", ValueError("late"), KeyboardInterrupt()])
def test_a_stragglers_late_result_is_discarded(
    clock: VirtualClock, recorder: EventRecorder, late: Any
) -> None:
    timed = Timed(clock)
    split = Split(ANY, [timed(1, "a"), timed(5, late, deaf=True)])
    split.walk(clock, subscribers=[recorder])
    before = (split.result.branches, split.result.canceled)
    clock.advance(10.0)
    assert timed.ended[late] == 5.0
    assert (split.result.branches, split.result.canceled) == before
    assert [event.index for event in recorder.of(BranchFinished)] == [0]


def test_a_stragglers_retries_end_at_the_verdict(clock: VirtualClock) -> None:
    body = Scripted(Fail("no"))
    Split(ANY, [lambda: clock.sleep(2.5), body], max_retries=99, backoff=DOUBLING).walk(clock)
    clock.advance(1000.0)
    assert body.calls == 2  # at 0 and 1 s; the third would have been at 3 s


@pytest.mark.parametrize("round", range(20))
def test_on_the_real_clock_a_branch_that_does_not_queue_is_called_although_the_verdict_was_quicker(
    round: int,
) -> None:
    asked = [threading.Event() for _ in range(3)]

    def straggler(n: int) -> Any:
        def body(res: Any, run: Any) -> None:
            run.token.wait()
            asked[n].set()

        return body

    split = Split(ANY, [lambda: "at once", *(straggler(n) for n in range(3))])
    assert split.workflow.run(S.A) is S.DONE
    assert all(event.wait(10) for event in asked)


def test_a_deaf_straggler_does_not_start_another_attempt(clock: VirtualClock) -> None:
    calls: list[float] = []

    def deaf() -> None:
        calls.append(clock.monotonic())
        clock.sleep(5.0)
        raise Fail("again")

    Split(ANY, [lambda: clock.sleep(1.0), deaf], max_retries=9, backoff=None).walk(clock)
    clock.advance(100.0)
    assert calls == [0.0]


# -- deadlines of branches


def test_a_deaf_branch_with_no_retry_left_counts_as_failed_at_its_deadline(clock: VirtualClock) -> None:
    timed = Timed(clock)
    split = Split(partial(2), [timed(1, "a"), timed(60, "b", deaf=True)], timeout=30.0, deadline=5.0)
    walk = split.walk(clock)
    assert walk.ended == 5.0
    error = split.result.errors[1]
    assert type(error) is FlowTimeout
    assert (error.elapsed, error.limit, error.state, error.attempt, error.path) == (5.0, 5.0, S.A, 1, (S.A,))
    assert split.result.branches[1].duration == 5.0
    assert split.result.abandoned == (1,), "its thread still runs"
    clock.advance(55.0)
    assert split.result.abandoned == ()
    assert timed.ended["b"] == 60.0


def test_a_deaf_branch_fails_an_all_join_at_its_deadline(clock: VirtualClock) -> None:
    timed = Timed(clock)
    walk = Split(ALL, [timed(1, "a"), timed(60, "b", deaf=True), timed(4, "c")], deadline=5.0).walk(clock)
    assert type(walk.error) is JoinFailed
    assert walk.ended == 5.0
    assert walk.error.result.values == ["a", "c"]
    clock.advance(60.0)


def test_a_deaf_branch_with_retries_left_is_no_failure_until_its_last_deadline(clock: VirtualClock) -> None:
    starts: list[float] = []

    def deaf() -> None:
        starts.append(clock.monotonic())
        clock.sleep(20.0)

    split = Split(partial(1), [deaf], max_retries=1, backoff=DOUBLING, deadline=5.0)
    walk = split.walk(clock)
    assert starts == [0.0, 21.0]
    assert walk.ended == 26.0
    error = split.result.errors[0]
    assert isinstance(error, RetryExhausted)
    assert isinstance(error, FlowTimeout)
    assert error.attempts == 2
    clock.advance(60.0)


def test_a_branch_that_heeds_its_deadline_is_retried(clock: VirtualClock) -> None:
    def branch(res: Any, run: Any) -> str:
        if run.attempt < 3:
            run.token.sleep(60)
        return "third time"

    split = Split(ALL, [branch], deadline=2.0, max_retries=2, backoff=DOUBLING)
    assert split.walk(clock).ended == 2 + 1 + 2 + 2
    assert split.result.values == ["third time"]


def test_the_timeout_of_a_join_covers_retries_and_the_queue(clock: VirtualClock) -> None:
    timed = Timed(clock)
    split = Split(ALL, [timed(2, "a"), timed(2, "b"), timed(2, "c")], timeout=5, bulkhead=1)
    walk = split.walk(clock)
    assert walk.ended == 5.0
    assert split.result.values == ["a", "b"]
    assert split.result.canceled == (2,)
    split = Split(ALL, [Scripted(Fail("no"))], timeout=5, max_retries=9, backoff=DOUBLING)
    assert split.walk(clock).ended == 5.0


# -- the bulkhead


@pytest.mark.parametrize(("bulkhead", "ends"), [(1, 6.0), (2, 4.0), (3, 3.0), (99, 3.0), (None, 3.0)])
def test_at_most_so_many_branches_run_at_once(clock: VirtualClock, bulkhead: int | None, ends: float) -> None:
    timed = Timed(clock)
    split = Split(ALL, [timed(1, "a"), timed(2, "b"), timed(3, "c")], bulkhead=bulkhead)
    assert split.walk(clock).ended == ends
    assert timed.most == min(bulkhead or 99, 3)
    assert split.result.values == ["a", "b", "c"]


def test_branches_that_queue_start_in_input_order_as_soon_as_there_is_room(clock: VirtualClock) -> None:
    timed = Timed(clock)
    Split(ALL, [timed(3, "a"), timed(1, "b"), timed(1, "c"), timed(2, "d")], bulkhead=2).walk(clock)
    assert timed.began == {"a": 0.0, "b": 0.0, "c": 1.0, "d": 2.0}


def test_a_branch_keeps_its_place_through_its_retries(clock: VirtualClock) -> None:
    starts: list[tuple[str, float]] = []

    def flaky(res: Any, run: Any) -> None:
        starts.append(("flaky", clock.monotonic()))
        if run.attempt < 3:
            raise Fail("no")

    def other() -> None:
        starts.append(("other", clock.monotonic()))

    Split(ALL, [flaky, other], bulkhead=1, max_retries=2, backoff=DOUBLING).walk(clock)
    assert starts == [("flaky", 0.0), ("flaky", 1.0), ("flaky", 3.0), ("other", 3.0)]


@pytest.mark.parametrize("strategy", [ANY, quorum(1), partial(1), percentage(0.1)])
def test_a_branch_that_queues_at_the_verdict_never_starts(
    clock: VirtualClock, strategy: JoinStrategy
) -> None:
    timed = Timed(clock)
    split = Split(strategy, [timed(1, "a"), timed(1, "b"), timed(1, "c")], bulkhead=1)
    assert split.walk(clock).ended == 1.0
    clock.advance(100.0)
    assert timed.began == {"a": 0.0}
    assert split.result.canceled == (1, 2)
    assert split.result.abandoned == ()


@pytest.mark.parametrize("cause", ["failure", "timeout", "cancel"])
def test_a_branch_that_queues_when_the_split_fails_never_starts(clock: VirtualClock, cause: str) -> None:
    timed, token = Timed(clock), CancelToken(clock=clock)
    first = timed(2, BAD if cause == "failure" else "a", deaf=True)
    split = Split(ALL, [first, timed(1, "b")], bulkhead=1, timeout=1 if cause == "timeout" else None)
    walk = Walk(clock, split.workflow, token=token)
    if cause == "cancel":
        clock.advance(1.0)
        token.cancel()
    walk.finish()
    assert walk.ended == (2.0 if cause == "failure" else 1.0)
    clock.advance(100.0)
    assert list(timed.began) == [BAD if cause == "failure" else "a"]


def test_a_deaf_branch_holds_its_place_until_its_thread_ends(clock: VirtualClock) -> None:
    timed = Timed(clock)
    walk = Split(partial(2), [timed(60, "a", deaf=True), timed(1, "b")], bulkhead=1, deadline=5.0).walk(clock)
    assert timed.began["b"] == 60.0
    assert timed.most == 1
    assert walk.ended == 61.0


# -- branches that die


@pytest.mark.parametrize(
    "error", [ValueError("x"), Fatal("x"), KeyboardInterrupt(), SystemExit(1), GeneratorExit(), Canceled()]
)
def test_a_branch_that_dies_in_any_way_is_a_failed_branch(clock: VirtualClock, error: BaseException) -> None:
    split = Split(partial(2), [Scripted(error), lambda: "b"])
    assert split.walk(clock).result is S.DONE
    assert split.result.errors == {0: error}
    assert "state S.A" in error.__notes__[0]
    walk = Split(ALL, [Scripted(error), lambda: "b"]).walk(clock)
    assert type(walk.error) is JoinFailed


def test_a_thread_that_can_not_be_had_is_a_failed_branch(clock: VirtualClock, monkeypatch: Any) -> None:
    spawn = clock.spawn

    def refuse(target: Any, name: str) -> Any:
        if name.endswith(":1"):
            raise RuntimeError("can't start new thread")
        return spawn(target, name)

    monkeypatch.setattr(clock, "spawn", refuse)
    split = Split(partial(3), [lambda: "a", lambda: "b", lambda: "c"])
    assert split.walk(clock).result is S.DONE
    assert split.result.values == ["a", "c"]
    assert "can't start new thread" in str(split.result.errors[1])


def test_a_failed_join_tells_at_most_three_errors_and_how_many_more(clock: VirtualClock) -> None:
    walk = Split(ANY, [Scripted(ValueError(f"reason {n}")) for n in range(5)]).walk(clock)
    text = str(walk.error)
    assert "0 of 5 branches succeeded" in text
    assert [n for n in range(5) if f"branch {n}: ValueError: reason {n}" in text] == [0, 1, 2]
    assert "2 more" in text


def test_a_failed_join_tells_its_timeout(clock: VirtualClock) -> None:
    walk = Split(ALL, [lambda res, run: run.token.sleep(9)], timeout=1.5).walk(clock)
    assert "timeout of 1.5 s" in str(walk.error)


# -- what branches share


def test_branches_share_resources_and_see_one_run(clock: VirtualClock) -> None:
    store, seen = MemoryStore(), list[Any]()

    def branch(n: int) -> Any:
        def body(res: Any, run: Any) -> None:
            res["store"].put(n, n)
            seen.append((run.id, run.flow_id, run.state, run.attempt, run.path))

        return body

    join = JoinConfig(ALL, S.DONE)
    workflow = Workflow(Resources(store=store)).register_split(S.A, [branch(n) for n in range(3)], join)
    workflow.add_exit_state(S.DONE).run(S.A, clock=clock)
    assert sorted(store.keys()) == [0, 1, 2]
    assert len(set(seen)) == 1
    assert seen[0][2:] == (S.A, 1, (S.A,))


def test_each_branch_counts_its_own_attempts(clock: VirtualClock) -> None:
    attempts: dict[str, list[int]] = {"a": [], "b": []}

    def flaky(name: str, failures: int) -> Any:
        def body(res: Any, run: Any) -> None:
            attempts[name].append(run.attempt)
            clock.sleep(0.4)
            attempts[name].append(run.attempt)
            if run.attempt <= failures:
                raise Fail("no")

        return body

    Split(ALL, [flaky("a", 0), flaky("b", 2)], max_retries=2, backoff=DOUBLING).walk(clock)
    assert attempts == {"a": [1, 1], "b": [1, 1, 2, 2, 3, 3]}


def test_contextvars_of_the_caller_are_visible_in_branches_and_not_changed_by_them() -> None:
    var: ContextVar[str] = ContextVar("var", default="default")
    seen: list[str] = []

    def branch() -> None:
        seen.append(var.get())
        var.set("changed in a branch")

    def walk() -> S:
        var.set("of the walk")
        return S.B

    workflow = (
        Workflow()
        .register(S.A, walk)
        .register_split(S.B, [branch] * 3, JoinConfig(ALL, S.C, bulkhead=1))
        .register(S.C, lambda: seen.append(var.get()) or S.DONE)
        .add_exit_state(S.DONE)
    )
    workflow.run(S.A)
    assert seen == ["of the walk"] * 4


def test_each_branch_has_a_thread_of_its_own_with_a_name_that_tells(clock: VirtualClock) -> None:
    threads: list[threading.Thread] = []

    def branch() -> None:
        threads.append(threading.current_thread())

    Split(ALL, [branch] * 3).walk(clock)
    assert len(set(threads)) == 3
    assert all(thread.daemon for thread in threads)
    assert {thread.name.rpartition("S.A:")[2] for thread in threads} == {"0", "1", "2"}


def test_branches_share_one_breaker_through_the_workflows_they_run(clock: VirtualClock) -> None:
    breaker, calls = CircuitBreaker(2), list[int]()

    def call(res: Any) -> str:
        calls.append(1)
        raise Fail("no")

    inner = Workflow().register("i", call, breaker=breaker).add_exit_state("end")
    split = Split(partial(5), [lambda: inner.run("i", clock=clock)] * 5, bulkhead=1)
    split.walk(clock)
    assert len(calls) == 2
    assert (
        sorted(type(error).__name__ for error in split.result.errors.values())
        == ["CircuitOpen"] * 3 + ["Fail"] * 2
    )


def test_a_branch_may_run_a_workflow_with_a_split_of_its_own(clock: VirtualClock) -> None:
    timed = Timed(clock)

    def inner(n: int) -> Any:
        def body(res: Any, run: Any) -> Any:
            split = Split(ALL, [timed(1, (n, 0)), timed(2, (n, 1))])
            assert split.workflow.run(S.A, clock=clock, token=run.token) is S.DONE
            return split.result.values

        return body

    outer = Split(ALL, [inner(n) for n in range(3)], bulkhead=2)
    assert outer.walk(clock).ended == 4.0
    assert outer.result.values == [[(n, 0), (n, 1)] for n in range(3)]
    assert timed.most == 4


def test_nested_splits_need_no_shared_pool_and_so_never_wait_for_each_other(clock: VirtualClock) -> None:
    def nest(depth: int) -> Any:
        def body(res: Any, run: Any) -> int:
            if depth == 0:
                return 1
            split = Split(ALL, [nest(depth - 1)] * 2, bulkhead=1)
            split.workflow.run(S.A, clock=clock)
            return sum(split.result.values)

        return body

    assert nest(5)(None, None) == 32


def test_a_verdict_reaches_the_branches_of_a_workflow_inside_a_branch(clock: VirtualClock) -> None:
    told: list[float] = []

    def innermost(res: Any, run: Any) -> None:
        run.token.wait()
        told.append(clock.monotonic())

    inner = Split(ALL, [innermost]).workflow
    Split(
        ANY, [lambda: clock.sleep(3.0), lambda res, run: inner.run(S.A, clock=clock, token=run.token)]
    ).walk(clock)
    clock.settle()
    assert told == [3.0]


# -- any interleaving


def oracle(
    strategy: JoinStrategy, plan: list[tuple[float, bool]], bulkhead: int, timeout: float | None
) -> Any:
    """When the verdict is, and what had finished: a small simulation with distinct instants."""
    from supervisor.flows.join import verdict

    waiting, running, time = list(range(len(plan))), dict[int, float](), 0.0
    done: dict[int, bool] = {}
    while True:
        while waiting and len(running) < bulkhead:
            index = waiting.pop(0)
            running[index] = time + plan[index][0]
        index = min(running, key=lambda i: running[i])
        if timeout is not None and running[index] > timeout:
            good = sum(done.values())
            return timeout, verdict(strategy, len(plan), good, len(done) - good, late=True), done
        time = running.pop(index)
        done[index] = plan[index][1]
        good = sum(done.values())
        made = verdict(strategy, len(plan), good, len(done) - good, late=False)
        if made != "wait":
            return time, made, done


@pytest.mark.parametrize("seed", seeds())
def test_whatever_the_interleaving_the_verdict_is_that_of_a_simulation(seed: int) -> None:
    clock, rng = VirtualClock(seed), random.Random(seed)
    total = rng.randint(1, 8)
    # powers of two: no two sums are equal, so no two branches end at one instant
    spans = [2.0**n for n in range(total)]
    rng.shuffle(spans)
    plan = [(span, rng.random() < 0.6) for span in spans]
    strategy = rng.choice(
        [ALL, ANY, PARTIAL_TIMEOUT, quorum(rng.randint(1, total)), partial(rng.randint(1, total)),
         percentage(rng.randint(1, 100) / 100)]
    )  # fmt: skip
    timeout = rng.randint(1, 2**total) + 0.5 if rng.random() < 0.5 or strategy is PARTIAL_TIMEOUT else None
    bulkhead = rng.randint(1, total)
    timed, deaf = Timed(clock), rng.random() < 0.5
    branches = [timed(span, n if good else ValueError(n), deaf=deaf) for n, (span, good) in enumerate(plan)]
    split = Split(strategy, branches, timeout=timeout, bulkhead=bulkhead)
    walk = split.walk(clock)
    ends, made, done = oracle(strategy, plan, bulkhead, timeout)
    assert walk.ended == ends
    assert (type(walk.error) is JoinFailed) == (made == "fail")
    result = split.result
    assert {branch.index: branch.ok for branch in result.branches} == done
    assert result.canceled == tuple(n for n in range(total) if n not in done)
    assert timed.most <= bulkhead
    clock.settle()
    assert result.abandoned == (tuple(n for n in result.canceled if _began(timed, n)) if deaf else ())
    clock.advance(1e4)
    assert result.abandoned == ()
    assert max(timed.began.values()) <= ends, "nobody starts after the verdict"


def _began(timed: Timed, index: int) -> bool:
    return any(
        each == index or (isinstance(each, ValueError) and each.args == (index,)) for each in timed.began
    )


@pytest.mark.parametrize("seed", seeds())
def test_at_one_instant_the_counts_are_exact_and_every_branch_is_accounted_for(seed: int) -> None:
    clock, rng = VirtualClock(seed), random.Random(seed)
    total = rng.randint(2, 6)
    amount = rng.randint(1, total)
    strategy = rng.choice([ALL, ANY, quorum(amount), partial(amount)])
    good = [rng.random() < 0.7 for _ in range(total)]
    timed = Timed(clock)
    split = Split(
        strategy,
        [timed(1.0, n if ok else ValueError(n)) for n, ok in enumerate(good)],
        bulkhead=rng.randint(1, total),
    )
    walk = split.walk(clock)
    result = split.result
    values, errors = len(result.values), len(result.errors)
    assert values + errors + len(result.canceled) == total
    if walk.error is None:
        needed = {ALL: total, ANY: 1}.get(strategy, amount)
        assert (values + errors if strategy == partial(amount) else values) == needed
    else:
        needed = {ALL: total, ANY: 1}.get(strategy, amount)
        assert total - errors == needed - 1, "it failed with the first failure that made it impossible"
    clock.advance(100.0)


# -- the machine's own clock


@pytest.fixture
def hectic() -> Iterator[None]:
    """Threads are switched all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Crowd:
    """Counts who is inside."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = 0
        self.started: list[int] = []

    def pass_through(self, n: int) -> int:
        with self.lock:
            self.started.append(n)
            self.inside += 1
            self.most = max(self.most, self.inside)
        total = sum(range(200))
        with self.lock:
            self.inside -= 1
        return total


@pytest.mark.parametrize("strategy", [ALL, ANY, quorum(3), partial(3), percentage(0.5)])
def test_on_the_real_clock_counts_are_exact_and_the_bulkhead_holds(
    hectic: None, strategy: JoinStrategy
) -> None:
    needed = {ALL: 6, ANY: 1}.get(strategy, 3)
    for bulkhead in (None, 1, 3):
        crowd = Crowd()
        for _ in range(12):
            crowd.started.clear()
            split = Split(
                strategy,
                [lambda n=n, crowd=crowd: crowd.pass_through(n) for n in range(6)],
                bulkhead=bulkhead,
            )
            assert split.workflow.run(S.A) is S.DONE
            result = split.result
            assert len(result.values) == needed
            assert len(result.canceled) == 6 - needed
            assert set(crowd.started) >= {branch.index for branch in result.branches}
        assert crowd.most <= (bulkhead or 6)


def test_on_the_real_clock_many_runs_of_one_split_leave_no_thread(hectic: None) -> None:
    before = threading.active_count()
    split = Workflow().register_split(
        S.A, [lambda: None] * 4, JoinConfig(ALL, S.DONE, timeout=60.0), timeout=60.0
    )
    workflow = split.add_exit_state(S.DONE)
    threads = [threading.Thread(target=lambda: [workflow.run(S.A) for _ in range(25)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for thread in threading.enumerate():
        if thread.name.startswith(("run-", "supervisor:")):
            thread.join(5)
    assert threading.active_count() == before
