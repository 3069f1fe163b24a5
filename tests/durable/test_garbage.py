"""A run leaves no reference cycles: what it held is freed at once, not when the collector comes by.

A workflow is unwound at every decision by an exception that knows the frames it came through, and those hold the
inputs and outputs of the run.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from supervisor.durable import (
    FlowEngine,
    FlowRuntime,
    MemoryEventStore,
    RetryPolicy,
    RunFailed,
    SqliteEventStore,
    StepFailed,
)

flows = FlowRuntime()


@flows.step
def echo(value: object) -> object:
    return value


@flows.step
def refuses() -> None:
    raise ValueError("no")


@flows.workflow
def steps(ctx: Any) -> object:
    return [ctx.step("one", echo, 1), ctx.step("two", echo, 2)]


@flows.workflow
def at_once(ctx: Any) -> object:
    return ctx.gather([ctx.call("one", echo, 1), ctx.call("two", echo, 2)])


@flows.workflow
def caught(ctx: Any) -> object:
    try:
        return ctx.step("one", refuses, retry=RetryPolicy.fixed(2, 0))
    except StepFailed as failure:
        return ctx.step("two", echo, str(failure))


@flows.workflow
def failed(ctx: Any) -> object:
    return ctx.step("one", refuses, retry=RetryPolicy.none())


@flows.workflow
def waited(ctx: Any) -> object:
    return ctx.wait_signal("wait", "go")


def start(engine: FlowEngine, workflow: str) -> None:
    run_id = engine.start(workflow)
    if workflow == "waited":
        engine.signal(run_id, "go")
    try:
        engine.result(run_id, timeout=0)
    except RunFailed:
        assert workflow == "failed"


@pytest.fixture(params=["memory", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FlowEngine]:
    store = MemoryEventStore() if request.param == "memory" else SqliteEventStore(tmp_path / "f.db")
    with closing(store), FlowEngine(flows, store) as made:
        yield made


def garbage_of(call: Callable[[], None]) -> list[str]:
    """Return the types of our own objects that only the collector could free."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        call()
        gc.collect()
        return [type(each).__name__ for each in gc.garbage if type(each).__module__.startswith("supervisor.")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("workflow", ["steps", "at_once", "caught", "failed", "waited"])
def test_a_run_leaves_nothing_for_the_garbage_collector(engine: FlowEngine, workflow: str) -> None:
    start(engine, workflow)
    assert garbage_of(lambda: start(engine, workflow)) == []
