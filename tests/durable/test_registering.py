"""FlowRuntime: what may be registered, under which name, and how it is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from supervisor.durable import FlowEngine, FlowRuntime, UnknownStep, UnknownWorkflow
from supervisor.durable.runtime import idempotency_key


@pytest.fixture
def flows() -> FlowRuntime:
    return FlowRuntime()


def work(data: Any) -> Any:
    return data


def deciding(ctx: Any) -> Any:
    return ctx.complete(None)


# -- names -----------------------------------------------------------------------------------------


def test_a_decorated_function_is_returned_as_it_is(flows: FlowRuntime) -> None:
    assert flows.step(work) is work
    assert flows.step(name="again")(work) is work
    assert flows.workflow(deciding) is deciding
    assert flows.decider(name="d")(deciding) is deciding


def test_names_default_to_those_of_the_functions(flows: FlowRuntime) -> None:
    flows.step(work)
    flows.step(work, name="other")
    flows.workflow(deciding)
    flows.decider(deciding, version="2")
    assert flows.names() == ([("deciding", "1"), ("deciding", "2")], ["other", "work"])
    assert flows.find_step("work").function is work
    assert flows.find_workflow("deciding", "1").straight
    assert not flows.find_workflow("deciding", "2").straight


def test_a_step_and_a_workflow_may_share_a_name(flows: FlowRuntime) -> None:
    flows.step(deciding)
    flows.workflow(deciding)
    assert flows.names() == ([("deciding", "1")], ["deciding"])


# -- shapes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda: None, 0),
        (lambda data: None, 1),
        (lambda data, invocation: None, 2),
        (lambda data=1: None, 1),
        (lambda data, other=1: None, 1),
        (lambda *args: None, 1),
        (lambda **kwargs: None, 0),
        (lambda data, *, flag=True: None, 1),
    ],
)
def test_a_step_is_called_with_as_many_arguments_as_it_asks_for(
    flows: FlowRuntime, function: Callable[..., Any], arguments: int
) -> None:
    flows.step(function, name="it")
    got = flows.find_step("it")
    assert got._arguments == arguments


@pytest.mark.parametrize("function", [lambda a, b, c: None, lambda *, flag: None])
def test_a_step_of_another_shape_is_refused(flows: FlowRuntime, function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="step 'it'"):
        flows.step(function, name="it")
    assert flows.names() == ([], [])


def test_a_workflow_of_another_shape_is_refused(flows: FlowRuntime) -> None:
    with pytest.raises(TypeError, match="workflow 'w'"):
        flows.workflow(lambda: None, name="w")
    with pytest.raises(TypeError, match="workflow 'w'"):
        flows.workflow(lambda ctx, a, b: None, name="w")
    with pytest.raises(TypeError, match="workflow 'w'"):
        flows.decider(lambda ctx, order: None, name="w")


def test_what_a_call_would_not_run_is_refused(flows: FlowRuntime) -> None:
    async def later(ctx: Any) -> None:
        pass

    def piecemeal(ctx: Any) -> Any:
        yield

    for register in (flows.step, flows.workflow, flows.decider):
        for function in (later, piecemeal):
            with pytest.raises(TypeError):
                register(function)
    assert flows.names() == ([], [])


# -- finding ---------------------------------------------------------------------------------------


def test_the_version_that_was_registered_last_is_started(
    flows: FlowRuntime, make_engine: Callable[..., FlowEngine]
) -> None:
    for version in ("2", "10", "1"):
        flows.workflow(deciding, name="w", version=version)
    engine = make_engine(flows)
    engine.submit("w", run_id="r")
    assert engine.snapshot("r").version == "1"


def test_a_callable_that_cannot_be_hashed_is_found_as_a_step(
    flows: FlowRuntime, make_engine: Callable[..., FlowEngine]
) -> None:
    class Odd:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, data: Any) -> Any:
            return data

        def __eq__(self, other: object) -> bool:
            return True

    odd = Odd()
    flows.step(odd, name="odd")

    @flows.workflow
    def w(ctx: Any) -> Any:
        return ctx.step("a", odd, 3)

    engine = make_engine(flows)
    assert engine.result(engine.start(w)) == 3


def test_what_is_not_registered_is_told_with_what_is(flows: FlowRuntime) -> None:
    with pytest.raises(UnknownStep, match="known: none"):
        flows.find_step("work")
    flows.step(work)
    flows.workflow(deciding)
    with pytest.raises(UnknownStep, match=r"'gone'.*known: work"):
        flows.find_step("gone")
    with pytest.raises(UnknownWorkflow, match="known versions: 1"):
        flows.find_workflow("deciding", "2")
    with pytest.raises(UnknownWorkflow, match="known: deciding"):
        flows.newest("gone")
    with pytest.raises(
        UnknownStep,
        match=r"deciding is not registered as a step of this runtime; decorate it with @runtime.step",
    ):
        flows.step_name(deciding)


def test_keys_can_not_be_mistaken_for_those_of_another_attempt() -> None:
    keys = {
        idempotency_key(run_id, step_id, attempt)
        for run_id, step_id in (("r", "1:s"), ("r1", "s"), ("r", "1s"), ("r1:", "s"))
        for attempt in (1, 11)
    }
    assert len(keys) == 8
    assert idempotency_key("run-1", "日本", 3) == "flow.step.v1/5/run-16:日本/3"
