"""Building a workflow and walking it: tasks of every form, states of every kind, what a task sees."""

from __future__ import annotations

import functools
import threading
from contextvars import ContextVar
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor import CancelToken, Fail
from supervisor.flows import FlowRun, JoinConfig, JoinStrategy, MemoryStore, Resources, Workflow
from supervisor.testing import VirtualClock
from tests.flows.walking import S, one


def test_the_program_of_the_readme_runs() -> None:
    class P(Enum):
        FETCH = auto()
        PROCESS = auto()
        REPORT = auto()
        DONE = auto()

    saved: list[int] = []

    def fetch(res: Any) -> P:
        res["store"].put("batch", list(range(100)))
        return P.PROCESS

    def part(i: int) -> Any:
        return lambda res: sum(res["store"].get("batch")[i::4])

    def report(res: Any, run: Any) -> P:
        saved.append(sum(run.splits[P.PROCESS].values))
        return P.DONE

    workflow = (
        Workflow(Resources(store=MemoryStore()))
        .register(P.FETCH, fetch, max_retries=3, timeout=20.0)
        .register_split(
            P.PROCESS, [part(i) for i in range(4)], JoinConfig(JoinStrategy.ALL, P.REPORT, timeout=60.0)
        )
        .register(P.REPORT, report)
        .add_exit_state(P.DONE)
    )
    assert workflow.run(P.FETCH) is P.DONE
    assert saved == [4950]


def test_every_builder_call_returns_the_workflow() -> None:
    workflow = Workflow()
    join = JoinConfig(JoinStrategy.ALL, S.DONE)
    assert workflow.register(S.A, lambda: S.B) is workflow
    assert workflow.register_router(S.B, lambda: S.C) is workflow
    assert workflow.register_split(S.C, [lambda: None], join) is workflow
    assert workflow.add_exit_state(S.DONE) is workflow
    assert workflow.add_exit_states([S.OTHER]) is workflow
    assert workflow.with_total_timeout(60.0) is workflow
    assert workflow.run(S.A) is S.DONE


def test_a_chain_visits_its_states_in_order_and_hands_data_on_through_the_store() -> None:
    seen: list[Any] = []

    def first(res: Any) -> S:
        res["store"].put("x", 7)
        return S.B

    def second(res: Any, run: Any) -> S:
        seen.append((res["store"].get("x"), run.path))
        return S.C

    def third(res: Any, run: Any) -> S:
        seen.append(run.path)
        return S.DONE

    workflow = Workflow(Resources(store=MemoryStore()))
    workflow.register(S.C, third).register(S.B, second).register(S.A, first).add_exit_state(S.DONE)
    assert workflow.run(S.A) is S.DONE
    assert seen == [(7, (S.A, S.B)), (S.A, S.B, S.C)]


# -- what may be a task


def takes_nothing() -> S:
    return S.DONE


def takes_res(res: Resources) -> S:
    assert isinstance(res, Resources)
    return S.DONE


def takes_both(res: Resources, run: FlowRun) -> S:
    assert isinstance(run, FlowRun)
    return S.DONE


def only_optional(res: object = None, run: object = None) -> S:
    assert (res, run) == (None, None)
    return S.DONE


def one_required(res: Resources, run: object = None) -> S:
    assert isinstance(res, Resources)
    assert run is None
    return S.DONE


def open_ended(*args: object, **kwargs: object) -> S:
    assert (args, kwargs) == ((), {})
    return S.DONE


def three(extra: str, res: Resources, run: FlowRun) -> S:
    assert extra == "x"
    assert isinstance(run, FlowRun)
    return S.DONE


class CallableObject:
    def __call__(self, res: Resources) -> S:
        return takes_res(res)


class WithRun:
    def run(self, res: Resources, run: FlowRun) -> S:
        return takes_both(res, run)


class WithRunOfRes:
    def run(self, res: Resources) -> S:
        return takes_res(res)


class WithStatic:
    @staticmethod
    def run() -> S:
        return S.DONE


@pytest.mark.parametrize(
    "task",
    [
        takes_nothing,
        takes_res,
        takes_both,
        only_optional,
        one_required,
        open_ended,
        functools.partial(three, "x"),
        functools.partial(takes_both, run=FlowRun.__new__(FlowRun)),
        lambda: S.DONE,
        lambda res: takes_res(res),
        lambda res, run: takes_both(res, run),
        CallableObject(),
        CallableObject().__call__,
        WithRun(),
        WithRunOfRes(),
        WithStatic(),
        WithRun().run,
        SimpleNamespace(run=takes_res),
        functools.lru_cache(takes_nothing),
    ],
    ids=lambda task: getattr(task, "__name__", type(task).__name__),
)
def test_a_task_gets_as_many_arguments_as_it_requires(task: Any) -> None:
    assert one(task).run(S.A) is S.DONE


@pytest.mark.parametrize("task", [takes_nothing, takes_res, takes_both, WithRun()])
def test_a_branch_and_a_router_take_the_same_forms(task: Any) -> None:
    join = JoinConfig(JoinStrategy.ALL, S.B)
    workflow = Workflow().register_split(S.A, [task], join).register_router(S.B, task).add_exit_state(S.DONE)
    assert workflow.run(S.A) is S.DONE


def test_a_callable_object_is_called_even_if_it_has_a_run_method() -> None:
    class Both:
        def __call__(self) -> S:
            return S.DONE

        def run(self) -> S:
            raise AssertionError

    assert one(Both()).run(S.A) is S.DONE


# -- states


@pytest.mark.parametrize(
    "states", [("a", "b"), (1, 2), ((1, "x"), (2, "y")), (S.A, S.B), (0, ""), (False, 1.5)]
)
def test_any_hashable_value_is_a_state(states: tuple[Any, Any]) -> None:
    first, last = states
    assert Workflow().register(first, lambda: last).add_exit_state(last).run(first) is last


def test_a_state_that_is_registered_again_has_the_second_task_only() -> None:
    calls: list[str] = []
    workflow = one(lambda: calls.append("first") or S.DONE)
    workflow.register(S.A, lambda: calls.append("second") or S.DONE)
    workflow.run(S.A)
    assert calls == ["second"]


def test_a_split_that_is_registered_again_as_a_task_is_no_split() -> None:
    workflow = Workflow().register_split(S.A, [], JoinConfig(JoinStrategy.ANY, S.C)).add_exit_state(S.DONE)
    assert workflow.register(S.A, lambda: S.DONE).run(S.A) is S.DONE


def test_an_exit_state_wins_over_its_task() -> None:
    calls: list[int] = []
    workflow = one(lambda: S.B).register(S.B, lambda: calls.append(1) or S.DONE).add_exit_state(S.B)
    assert workflow.run(S.A) is S.B
    assert calls == []


def test_an_initial_exit_state_is_returned_at_once() -> None:
    calls: list[int] = []
    assert one(lambda: calls.append(1) or S.DONE).run(S.DONE) is S.DONE
    assert calls == []


def test_exit_states_may_be_given_lazily_and_twice() -> None:
    workflow = Workflow().register(S.A, lambda: S.C).add_exit_states(s for s in (S.B, S.C, S.B))
    assert workflow.run(S.A) is S.C


@pytest.mark.parametrize("times", [1, 5, 20_000])
def test_a_state_may_lead_to_itself(times: int) -> None:
    calls = [0]

    def again() -> S:
        calls[0] += 1
        return S.A if calls[0] < times else S.DONE

    assert one(again).run(S.A) is S.DONE
    assert calls == [times]


def test_a_cycle_of_states_is_legal_and_every_entry_is_in_the_path() -> None:
    paths: list[Any] = []

    def second(res: Any, run: Any) -> S:
        paths.append(run.path)
        return S.A if len(run.path) < 6 else S.DONE

    assert one(lambda: S.B).register(S.B, second).run(S.A) is S.DONE
    assert paths[-1] == (S.A, S.B) * 3


def test_a_router_looks_and_is_not_retried() -> None:
    calls: list[int] = []

    def route(res: Any) -> S:
        calls.append(1)
        raise Fail("no way")

    with pytest.raises(Fail):
        Workflow().register_router(S.A, route).add_exit_state(S.DONE).run(S.A)
    assert calls == [1]


@pytest.mark.parametrize("answer", [S.B, S.DONE])
def test_a_router_decides_where_to_go(answer: S) -> None:
    workflow = Workflow().register_router(S.A, lambda: answer).register(S.B, lambda: S.OTHER)
    assert workflow.add_exit_states([S.DONE, S.OTHER]).run(S.A) is (S.OTHER if answer is S.B else S.DONE)


# -- what a task sees


def test_a_task_sees_its_run() -> None:
    seen: list[Any] = []

    def look(res: Any, run: Any) -> S:
        seen.append(
            (run.id, run.flow_id, run.state, run.attempt, run.path, dict(run.splits), run.token.canceled)
        )
        return S.B if run.state is S.A else S.DONE

    workflow = one(look).register(S.B, look)
    workflow.run(S.A)
    (id1, flow1, *first), (id2, flow2, *second) = seen
    assert (id1, flow1) == (id2, flow2)
    assert isinstance(flow1, str)
    assert first == [S.A, 1, (S.A,), {}, False]
    assert second == [S.B, 1, (S.A, S.B), {}, False]


def test_every_run_has_its_own_id() -> None:
    seen: list[tuple[int, str]] = []
    workflow = one(lambda res, run: seen.append((run.id, run.flow_id)) or S.DONE)
    for _ in range(3):
        workflow.run(S.A)
    assert len(set(seen)) == 3


def test_the_token_of_a_run_is_a_cancel_token() -> None:
    seen: list[Any] = []
    one(lambda res, run: seen.append(run.token) or S.DONE).run(S.A)
    assert isinstance(seen[0], CancelToken)


def test_the_path_of_a_run_is_a_value_that_stays() -> None:
    paths: list[Any] = []
    one(lambda res, run: paths.append(run.path) or S.B).register(S.B, lambda: S.DONE).run(S.A)
    assert paths == [(S.A,)]


def test_splits_can_be_read_and_not_changed() -> None:
    def meddle(res: Any, run: Any) -> S:
        run.splits[S.A] = None
        return S.DONE

    with pytest.raises(TypeError):
        one(meddle).run(S.A)


def test_a_direct_run_is_on_the_callers_thread_with_its_contextvars() -> None:
    var: ContextVar[str] = ContextVar("var")
    seen: list[Any] = []

    def look() -> S:
        seen.append((threading.get_ident(), var.get()))
        var.set("changed")
        return S.DONE

    var.set("caller's")
    one(look).run(S.A)
    assert seen == [(threading.get_ident(), "caller's")]
    assert var.get() == "changed"


def test_resources_are_set_up_and_torn_down_around_each_run() -> None:
    log: list[str] = []

    class R:
        def setup(self) -> None:
            log.append("setup")

        def teardown(self) -> None:
            log.append("teardown")

    def body(res: Any, run: Any) -> S:
        log.append("body")
        if len(log) > 3:
            raise ValueError("second time")
        return S.DONE

    workflow = Workflow(Resources(r=R())).register(S.A, body).add_exit_state(S.DONE)
    workflow.run(S.A)
    with pytest.raises(ValueError, match="second time"):
        workflow.run(S.A)
    assert log == ["setup", "body", "teardown"] * 2


def test_a_failed_set_up_ends_the_run_before_its_first_state() -> None:
    log: list[str] = []

    class R:
        def __init__(self, name: str) -> None:
            self.name = name

        def setup(self) -> None:
            log.append(f"setup {self.name}")
            if self.name == "second":
                raise OSError("no disk")

        def teardown(self) -> None:
            log.append(f"teardown {self.name}")

    workflow = Workflow(Resources(first=R("first"), second=R("second"), third=R("third")))
    with pytest.raises(OSError, match="no disk"):
        workflow.register(S.A, lambda: log.append("body") or S.DONE).add_exit_state(S.DONE).run(S.A)
    assert log == ["setup first", "setup second", "teardown first"]


def test_a_tear_down_that_fails_never_changes_a_result() -> None:
    class R:
        def teardown(self) -> None:
            raise OSError("stuck")

    workflow = Workflow(Resources(r=R())).add_exit_state(S.DONE)
    assert workflow.register(S.A, lambda: S.DONE).run(S.A) is S.DONE
    with pytest.raises(ZeroDivisionError):
        workflow.register(S.A, lambda: 1 / 0).run(S.A)


# -- one workflow, many runs


def test_several_threads_run_one_workflow_at_once() -> None:
    barrier = threading.Barrier(8)
    ends: list[Any] = []

    def work(res: Any, run: Any) -> S:
        barrier.wait(10)
        ends.append((run.id, run.path))
        return S.B if run.state is S.A else S.DONE

    workflow = one(work).register(S.B, work)
    threads = [threading.Thread(target=workflow.run, args=(S.A,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    by_run: dict[int, list[Any]] = {}
    for id, path in ends:
        by_run.setdefault(id, []).append(path)
    assert list(by_run.values()) == [[(S.A,), (S.A, S.B)]] * 8


def test_a_run_does_not_notice_what_is_built_on_meanwhile() -> None:
    workflow = Workflow()

    def grow() -> S:
        workflow.register(S.B, lambda: S.DONE).add_exit_state(S.B)
        return S.B

    workflow.register(S.A, grow).register(S.B, lambda: S.OTHER).add_exit_states([S.DONE, S.OTHER])
    assert workflow.run(S.A) is S.OTHER
    assert workflow.run(S.A) is S.B


def test_a_task_may_run_another_workflow(clock: VirtualClock) -> None:
    inner = Workflow().register("i", lambda res, run: run.token.sleep(2.0) or "end").add_exit_state("end")

    def outer(res: Any, run: Any) -> S:
        assert inner.run("i", token=run.token, clock=clock) == "end"
        return S.DONE

    assert one(outer).run(S.A, clock=clock) is S.DONE
    assert clock.monotonic() == 2.0


def test_a_run_leaves_no_thread_behind_although_its_timeouts_were_long() -> None:
    before = threading.active_count()
    workflow = one(lambda: S.B, timeout=3600.0).with_total_timeout(7200.0)
    join = JoinConfig(JoinStrategy.ALL, S.DONE, timeout=3600.0)
    workflow.register_split(S.B, [lambda: None] * 3, join, timeout=1800.0)
    assert workflow.run(S.A) is S.DONE
    for thread in threading.enumerate():
        if thread.name.startswith(("supervisor:", "run-")):
            thread.join(5)
    assert threading.active_count() == before


def test_a_workflow_tells_what_it_is() -> None:
    assert repr(one(lambda: S.DONE)) == "<Workflow of 1 states, 1 exit states>"
    seen: list[str] = []
    one(lambda res, run: seen.append(repr(run)) or S.DONE).run(S.A)
    assert "S.A, attempt 1" in seen[0]
