"""What a workflow refuses: at registration what one call tells, in `validate` what only the whole tells."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from supervisor.flows import ConfigurationError, FlowError, JoinConfig, JoinStrategy, Resources, Workflow
from tests.flows.walking import S, one
from tests.naming import without_address

ALL = JoinConfig(JoinStrategy.ALL, S.DONE)
NAN, INF = float("nan"), float("inf")


def nothing() -> None:
    """A branch."""


def split(strategy: Any, branches: int = 3, **settings: Any) -> Workflow:
    join = JoinConfig(strategy, S.DONE, **settings)
    return Workflow().register_split(S.A, [nothing] * branches, join).add_exit_state(S.DONE)


# -- validate


def test_a_good_workflow_passes() -> None:
    workflow = one(lambda: S.DONE).register_router(S.B, lambda: S.DONE).register_split(S.C, [nothing], ALL)
    workflow.validate()
    for initial in (S.A, S.B, S.C, S.DONE):
        workflow.validate(initial)


@pytest.mark.parametrize(
    ("workflow", "words"),
    [
        (Workflow().add_exit_state(S.DONE), ["no state has a task", "register"]),
        (Workflow().register(S.A, lambda: S.A), ["no exit state", "add_exit_state"]),
        (split(JoinStrategy.ALL, branches=0), ["S.A", "at least one task"]),
        (split(JoinStrategy.ANY, branches=0), ["at least one task"]),
        (split(JoinStrategy.PARTIAL_TIMEOUT), ["S.A", "PARTIAL_TIMEOUT", "timeout"]),
        (split(JoinStrategy.PARTIAL_TIMEOUT, timeout=0), ["PARTIAL_TIMEOUT", "timeout"]),
        (split(JoinStrategy.percentage(0.0)), ["percentage", "0.0"]),
        (split(JoinStrategy.percentage(-0.5)), ["percentage", "-0.5"]),
        (split(JoinStrategy.percentage(1.5)), ["percentage", "1.5"]),
        (split(JoinStrategy.percentage(NAN)), ["percentage", "nan"]),
        (split(JoinStrategy.percentage(INF)), ["percentage", "inf"]),
        (split(JoinStrategy.percentage(True)), ["percentage", "True"]),
        (split(JoinStrategy.percentage("1")), ["percentage", "'1'"]),  # type: ignore[arg-type]
        (split(JoinStrategy.quorum(0)), ["quorum", "0"]),
        (split(JoinStrategy.quorum(-1)), ["quorum", "-1"]),
        (split(JoinStrategy.quorum(4)), ["quorum", "3", "4"]),
        (split(JoinStrategy.quorum(1.5)), ["quorum", "1.5"]),  # type: ignore[arg-type]
        (split(JoinStrategy.quorum(True)), ["quorum", "True"]),
        (split(JoinStrategy.partial(0)), ["partial", "0"]),
        (split(JoinStrategy.partial(4)), ["partial", "3", "4"]),
        (split(JoinStrategy.ALL, bulkhead=0), ["bulkhead", "0"]),
        (split(JoinStrategy.ALL, bulkhead=-1), ["bulkhead", "-1"]),
        (split(JoinStrategy.ALL, bulkhead=1.5), ["bulkhead", "1.5"]),
        (split(JoinStrategy.ALL, timeout=-1), ["timeout", "-1"]),
        (split(JoinStrategy.ALL, timeout=NAN), ["timeout", "nan"]),
        (split(JoinStrategy.ALL, timeout=True), ["timeout", "True"]),
        (split(JoinStrategy.quorum), ["strategy", "JoinStrategy"]),
        (split("all"), ["strategy", "'all'"]),
        (
            Workflow().register_split(S.A, [nothing], JoinConfig(JoinStrategy.ALL, S.B)).add_exit_state(S.DONE),
            ["S.A", "S.B", "neither registered nor exit"],
        ),
        (
            Workflow().register_split(S.A, [nothing], JoinConfig(JoinStrategy.ALL, [])).add_exit_state(S.DONE),  # type: ignore[arg-type]
            ["S.A", "[]", "neither registered nor exit"],
        ),
    ],
)  # fmt: skip
def test_a_fault_is_refused_with_words_that_name_it(workflow: Workflow, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        workflow.validate()
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert isinstance(caught.value, FlowError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "workflow",
    [
        split(JoinStrategy.quorum(1)),
        split(JoinStrategy.quorum(3)),
        split(JoinStrategy.partial(3)),
        split(JoinStrategy.percentage(1)),
        split(JoinStrategy.percentage(5e-324)),
        split(JoinStrategy.PARTIAL_TIMEOUT, timeout=timedelta(seconds=1)),
        split(JoinStrategy.PARTIAL_TIMEOUT, timeout=1),
        split(JoinStrategy.ALL, timeout=0),
        split(JoinStrategy.ALL, timeout=INF),
        split(JoinStrategy.ALL, bulkhead=1),
        split(JoinStrategy.ALL, bulkhead=99),
    ],
)
def test_the_edges_of_what_is_allowed_pass_and_run(workflow: Workflow) -> None:
    workflow.validate(S.A)
    assert workflow.run(S.A) is S.DONE


def test_a_join_may_lead_to_an_exit_state_to_a_task_or_back() -> None:
    for following in (S.DONE, S.B, S.A):
        workflow = one(lambda: S.DONE).register(S.B, lambda: S.DONE)
        workflow.register_split(S.A, [nothing], JoinConfig(JoinStrategy.ALL, following)).validate(S.A)


@pytest.mark.parametrize("initial", [S.B, "S.A", 1, [], {}])
def test_an_initial_state_that_is_neither_registered_nor_exit_is_refused(initial: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"initial state .* is neither registered nor exit"):
        one(lambda: S.DONE).validate(initial)


def test_validate_tells_every_fault_at_once() -> None:
    workflow = (
        Workflow()
        .register_split(S.A, [], JoinConfig(JoinStrategy.percentage(2), S.OTHER, bulkhead=0, timeout=-1))
        .register_split(S.B, [nothing], JoinConfig(JoinStrategy.quorum(2), S.A, bulkhead=-3))
        .register_split(S.C, [nothing], JoinConfig(JoinStrategy.PARTIAL_TIMEOUT, S.A))
    )
    with pytest.raises(ConfigurationError) as caught:
        workflow.validate("nowhere")
    text = str(caught.value)
    for words in (
        "no exit state", "split of S.A: timeout", "split of S.A: bulkhead", "split of S.A: a split needs at least",
        "S.OTHER", "split of S.B: quorum", "split of S.B: bulkhead", "split of S.C: PARTIAL_TIMEOUT", "'nowhere'",
    ):  # fmt: skip
        assert words in text, f"{words} is missing in {text}"


def test_run_validates_before_anything_is_set_up() -> None:
    log: list[str] = []

    class R:
        def setup(self) -> None:
            log.append("setup")

    workflow = Workflow(Resources(r=R())).register(S.A, lambda: log.append("body"))
    with pytest.raises(ConfigurationError, match="no exit state"):
        workflow.run(S.A)
    workflow.add_exit_state(S.DONE)
    with pytest.raises(ConfigurationError, match=r"initial state S\.B"):
        workflow.run(S.B)
    with pytest.raises(ConfigurationError, match="None"):
        workflow.run(None)
    assert log == []


def test_what_was_refused_can_be_completed_and_run() -> None:
    workflow = Workflow().register(S.A, lambda: S.DONE)
    with pytest.raises(ConfigurationError):
        workflow.run(S.A)
    assert workflow.add_exit_state(S.DONE).run(S.A) is S.DONE


# -- registration


async def coroutine() -> S:
    return S.DONE


def generator() -> Iterator[S]:
    yield S.DONE


async def async_generator() -> AsyncIterator[S]:
    yield S.DONE


class AsyncRun:
    async def run(self) -> S:
        return S.DONE


class AsyncCall:
    async def __call__(self) -> S:
        return S.DONE


REGISTRATIONS: dict[str, Callable[[Any], object]] = {
    "register": lambda task: Workflow().register(S.A, task),
    "register_router": lambda task: Workflow().register_router(S.A, task),
    "register_split": lambda task: Workflow().register_split(S.A, [nothing, task], ALL),
}


@pytest.mark.parametrize("how", REGISTRATIONS)
@pytest.mark.parametrize(
    "task",
    [None, 1, "fetch", object(), [nothing], coroutine, generator, async_generator, AsyncRun(), AsyncCall(),
     AsyncRun().run, lambda a, b, c: None],
    ids=without_address,
)  # fmt: skip
def test_what_can_not_be_a_task_is_refused_at_registration(how: str, task: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        REGISTRATIONS[how](task)
    assert "S.A" in str(caught.value)
    if how == "register_split":
        assert "branch 1" in str(caught.value)


def test_a_coroutine_function_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigurationError, match=r"coroutine function.*asyncio\.run"):
        Workflow().register(S.A, coroutine)


def test_too_many_required_arguments_are_refused_with_what_is_taken() -> None:
    with pytest.raises(ConfigurationError, match=r"needs 3 arguments.*\(res, run\)"):
        Workflow().register(S.A, lambda a, b, c: None)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_retries": -1}, {"max_retries": True}, {"max_retries": 1.0}, {"max_retries": None},
        {"timeout": -1}, {"timeout": NAN}, {"timeout": True}, {"timeout": "5"},
        {"backoff": 1.0}, {"backoff": "fast"},
        {"breaker": 1}, {"breaker": object()},
        {"compensate": 1}, {"compensate": coroutine}, {"compensate": lambda a, b, c: None},
        {"next_states": "DONE"}, {"next_states": 5},
    ],
    ids=without_address,
)  # fmt: skip
def test_settings_that_can_not_be_right_are_refused_with_their_name(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(ConfigurationError, match=name) as caught:
        Workflow().register(S.A, lambda: S.DONE, **settings)
    assert "S.A" in str(caught.value)
    if name in {"max_retries", "backoff", "timeout"}:
        with pytest.raises(ConfigurationError, match=name):
            Workflow().register_split(S.A, [nothing], ALL, **settings)


@pytest.mark.parametrize("settings", [{"timeout": 0}, {"timeout": INF}, {"timeout": None}, {"backoff": None}])
def test_settings_that_mean_none_are_taken(settings: dict[str, Any]) -> None:
    assert one(lambda: S.DONE, **settings).run(S.A) is S.DONE


@pytest.mark.parametrize("tasks", [nothing, None, 5, "ab"], ids=without_address)
def test_the_tasks_of_a_split_are_a_list(tasks: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"split of S\.A: tasks"):
        Workflow().register_split(S.A, tasks, ALL)


def test_the_tasks_of_a_split_may_come_lazily() -> None:
    calls: list[int] = []
    workflow = Workflow().register_split(S.A, (lambda n=n: calls.append(n) for n in range(3)), ALL)
    workflow.add_exit_state(S.DONE).run(S.A)
    assert sorted(calls) == [0, 1, 2]


@pytest.mark.parametrize("join", [None, JoinStrategy.ALL, S.DONE])
def test_the_join_of_a_split_is_a_join_config(join: Any) -> None:
    with pytest.raises(ConfigurationError, match="JoinConfig"):
        Workflow().register_split(S.A, [nothing], join)


@pytest.mark.parametrize("state", [[], {}, set(), None], ids=without_address)
def test_a_state_is_hashable_and_not_none(state: Any) -> None:
    for call in (
        lambda: Workflow().register(state, lambda: S.DONE),
        lambda: Workflow().register_router(state, lambda: S.DONE),
        lambda: Workflow().register_split(state, [nothing], ALL),
        lambda: Workflow().add_exit_state(state),
        lambda: Workflow().add_exit_states([S.DONE, state]),
    ):
        with pytest.raises(ConfigurationError, match="state must"):
            call()


@pytest.mark.parametrize("seconds", [-1, NAN, True, "5"])
def test_a_total_timeout_that_can_not_be_right_is_refused(seconds: Any) -> None:
    with pytest.raises(ConfigurationError, match="total timeout"):
        Workflow().with_total_timeout(seconds)


@pytest.mark.parametrize("states", ["DONE", 5, None])
def test_exit_states_are_a_list(states: Any) -> None:
    with pytest.raises(ConfigurationError, match="exit states"):
        Workflow().add_exit_states(states)


def test_a_refused_call_changes_nothing() -> None:
    workflow = one(lambda: S.DONE)
    for call in (
        lambda: workflow.register(S.A, lambda: S.OTHER, max_retries=-1),
        lambda: workflow.register_split(S.A, [nothing, None], ALL),
        lambda: workflow.add_exit_states([S.A, []]),
        lambda: workflow.with_total_timeout(-1),
    ):
        with pytest.raises(ConfigurationError):
            call()
    assert workflow.run(S.A) is S.DONE


def test_resources_are_resources() -> None:
    with pytest.raises(TypeError, match="resources must be Resources"):
        Workflow({"store": 1})  # type: ignore[arg-type]
