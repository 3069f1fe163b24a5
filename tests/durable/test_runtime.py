"""FlowRuntime: what may be registered, under which name, and how it is found."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from supervisor.durable import FlowEngine, FlowRuntime, UnknownStep, UnknownWorkflow

MakeEngine = Callable[..., FlowEngine]
KINDS = pytest.mark.parametrize("kind", ["step", "workflow", "decider"])


@pytest.fixture
def flows() -> FlowRuntime:
    return FlowRuntime()


@KINDS
def test_a_decorator_returns_the_function_itself(flows: FlowRuntime, kind: str) -> None:
    def plain(ctx: Any) -> None: ...

    def named(ctx: Any) -> None: ...

    assert getattr(flows, kind)(plain) is plain
    assert getattr(flows, kind)(name="other")(named) is named
    workflows, steps = flows.names()
    found = steps if kind == "step" else [name for name, _ in workflows]
    assert found == ["other", "plain"]


async def coroutine(ctx: Any) -> None: ...


def generator(ctx: Any) -> Any:
    yield


def too_many(a: Any, b: Any, c: Any) -> None: ...


def keyword(ctx: Any, *, needed: Any) -> None: ...


@KINDS
@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda ctx: None, ValueError, "needs a name that stays the same"),
        (functools.partial(too_many, 1, 2), ValueError, "needs a name that stays the same"),
        (coroutine, TypeError, "would never run"),
        (generator, TypeError, "runs nothing"),
        (too_many, TypeError, "must take"),
        (keyword, TypeError, "must take"),
        (5, TypeError, "must be callable, got 5"),
    ],
    ids=["lambda", "partial", "coroutine", "generator", "three", "keyword", "number"],
)
def test_what_can_not_be_called_or_has_no_name_is_refused(
    flows: FlowRuntime, kind: str, function: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        getattr(flows, kind)(function)
    assert flows.names() == ([], [])


@KINDS
def test_a_lambda_or_a_partial_with_a_name_may_be_registered(flows: FlowRuntime, kind: str) -> None:
    register = getattr(flows, kind)
    register(lambda ctx: None, name="short")
    register(functools.partial(too_many, 1, 2), name="bound")
    workflows, steps = flows.names()
    assert sorted(steps or [name for name, _ in workflows]) == ["bound", "short"]


def test_a_name_is_taken_once(flows: FlowRuntime) -> None:
    def it(ctx: Any) -> None: ...

    def other(ctx: Any) -> None: ...

    flows.step(it)
    flows.workflow(it)  # steps and workflows don't share their names
    with pytest.raises(ValueError, match="a step named 'it' is registered"):
        flows.step(other, name="it")
    for register in (flows.workflow, flows.decider):
        with pytest.raises(ValueError, match="workflow 'it' is registered with version '1'"):
            register(other, name="it")
    flows.decider(other, name="it", version="2")
    assert flows.names() == ([("it", "1"), ("it", "2")], ["it"])


@KINDS
@pytest.mark.parametrize("name", ["", "  ", "a\nb", "x" * 501])
def test_a_name_that_is_blank_or_unprintable_is_refused(flows: FlowRuntime, kind: str, name: str) -> None:
    with pytest.raises(ValueError, match="name must"):
        getattr(flows, kind)(print, name=name)
    assert flows.names() == ([], [])


@KINDS
@pytest.mark.parametrize("name", ["a b", "注文　済", "👩\u200d🚀", "soft\xadhyphen", "क्\u200dष"])
def test_any_line_of_text_is_a_name(flows: FlowRuntime, kind: str, name: str) -> None:
    getattr(flows, kind)(print, name=name)
    assert flows.names() == (([], [name]) if kind == "step" else ([(name, "1")], []))


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), "1"])
def test_a_timeout_that_is_none_is_refused(flows: FlowRuntime, timeout: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="timeout"):
        flows.step(timeout=timeout)


@pytest.mark.parametrize("version", ["", None, 1])
def test_a_version_is_text(flows: FlowRuntime, version: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="version must"):
        flows.workflow(version=version)


def test_what_is_unknown_is_named_with_what_is_known(flows: FlowRuntime) -> None:
    @flows.workflow(version="7")
    def known(ctx: Any) -> None: ...

    with pytest.raises(UnknownWorkflow, match="no workflow 'other' is registered here; known: known"):
        flows.newest("other")
    with pytest.raises(UnknownWorkflow, match=r"no workflow 'known' of version '1'.*known versions: 7"):
        flows.find_workflow("known", "1")
    with pytest.raises(UnknownStep, match="no step 'known' is registered here; known: none"):
        flows.find_step("known")
    with pytest.raises(UnknownStep, match=r"decorate it with @runtime.step"):
        flows.step_name(known)


def test_methods_are_found_as_steps(flows: FlowRuntime, make_engine: MakeEngine) -> None:
    class Shop:
        __hash__ = None  # type: ignore[assignment]

        def __init__(self, price: int) -> None:
            self.price = price

        def __eq__(self, other: object) -> bool:
            return True

        def charge(self, count: int) -> int:
            return self.price * count

    shop = Shop(3)
    flows.step(shop.charge)

    @flows.workflow
    def flow(ctx: Any) -> Any:
        return [ctx.step("by-method", shop.charge, 2), ctx.step("by-name", "charge", 5)]

    engine = make_engine(flows)
    assert engine.result(engine.start(flow)) == [6, 15]


def test_runs_keep_their_version_and_new_ones_take_the_last_registered(
    flows: FlowRuntime, make_engine: MakeEngine
) -> None:
    def first(ctx: Any) -> str:
        ctx.wait_signal("w", "go")
        return "one"

    def second(ctx: Any) -> str:
        return "two"

    flows.workflow(first, name="flow", version="1")
    engine = make_engine(flows)
    engine.start("flow", run_id="old")
    flows.workflow(second, name="flow", version="2")
    assert engine.result(engine.start("flow", run_id="new")) == "two"
    engine.signal("old", "go")
    assert engine.result("old") == "one"
    assert [engine.snapshot(each).version for each in ("old", "new")] == ["1", "2"]
