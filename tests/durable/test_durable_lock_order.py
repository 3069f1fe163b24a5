"""The locks of the durable layer are taken in the order that docs/architecture.md tells."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from supervisor import Canceled
from supervisor.durable import (
    FlowEngine,
    FlowRuntime,
    NonDeterministic,
    RetryPolicy,
    StepInvocation,
    WorkflowContext,
    open_store,
)
from supervisor.durable.stores import jsonl, sqlite_registry
from supervisor.kernel.clock import SYSTEM_CLOCK
from tests.programs import ROOT
from tests.tasks.test_lock_order import LEAVES, ORDER, NamedLock, RecordingClock

OF_RUNS = ["Held", "Observers", "FlowEngine"]
OF_JSONL = ["_Shelf", "stripe", "RunFiles"]
OF_SQLITE = ["SqliteEventStore", "registry", "GroupCommit", "Readers"]
AS_LEAVES = [
    *["Seats", "Bell", "Heart", "FlowRuntime", "MemoryEventStore", "MemoryWorkQueue", "SqliteWorkQueue"],
    *["PostgresEventStore", "PostgresDatabase", "Listener"],
]


class Naming(RecordingClock):
    """Names locks after their class also where they are made in a comprehension."""

    __slots__ = ()

    def _named_lock(self) -> Any:
        frame, inside = sys._getframe(1), False
        while "self" not in frame.f_locals:
            assert frame.f_back is not None
            frame, inside = frame.f_back, True
        owner = type(frame.f_locals["self"])
        names = [cls.__name__ for cls in owner.__mro__ if cls.__name__ in ORDER + LEAVES]
        name = names[0] if names else owner.__name__
        return NamedLock(self.recorder, "stripe" if inside and name == "RunFiles" else name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Naming:
    found = Naming()
    monkeypatch.setattr(SYSTEM_CLOCK, "lock", found.lock)
    monkeypatch.setattr(sqlite_registry, "_registry_lock", NamedLock(found.recorder, "registry"))
    monkeypatch.setattr(jsonl._SHELF, "lock", NamedLock(found.recorder, "_Shelf"))
    return found


@pytest.fixture(params=["memory", "jsonl", "sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    match request.param:
        case "memory":
            yield "memory:"
        case "postgresql":
            from psycopg.conninfo import conninfo_to_dict

            parts = conninfo_to_dict(request.getfixturevalue("pg_dsn"))
            schema = str(parts["options"]).replace("=", "%3D")
            yield f"postgresql://{parts['user']}@/{parts['dbname']}?host={parts['host']}&options={schema}"
        case kind:
            yield f"{kind}:{tmp_path / 'runs'}"


def flows() -> FlowRuntime:
    """Workflows that go through everything that takes locks."""
    found = FlowRuntime()
    drift = iter(range(1000))

    @found.step(timeout=5)
    def flaky(number: int, step: StepInvocation) -> int:
        step.token.on_cancel(lambda: None)
        if step.attempt < 2:
            raise ValueError
        return number

    @found.step
    def waits(_: None, step: StepInvocation) -> None:
        step.token.sleep(20)

    @found.workflow
    def busy(ctx: WorkflowContext) -> Any:
        retry = RetryPolicy.exponential(3, 0.001, 0.002)
        ctx.gather([ctx.call(f"s{n}", flaky, n, retry=retry) for n in range(3)])
        ctx.sleep("pause", 0.005)
        return ctx.wait_signal("signal", "go")

    @found.workflow
    def stubborn(ctx: WorkflowContext) -> None:
        try:
            ctx.step("waits", waits)
        except Canceled:
            ctx.step("clean-up", flaky, 1)
            raise

    @found.workflow
    def drifts(ctx: WorkflowContext) -> None:
        ctx.step("flaky", flaky, next(drift))

    return found


def busy_life(clock: Naming, url: str, subscribers: list[Callable[[Any], object]]) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(closing(open_store(url)))
        engine = stack.enter_context(FlowEngine(flows(), store, clock=clock, subscribers=subscribers))
        stack.enter_context(engine.serve(workers=3, poll=0.02, lease_seconds=0.06, grace=5))
        runs = [engine.submit("busy", run_id=f"run-{number}") for number in range(4)]
        engine.submit("stubborn", run_id="stubborn")
        for run_id in runs:
            engine.signal(run_id, "go", 1)
            assert engine.result(run_id, timeout=20) == 1
        engine.cancel("stubborn", "enough")
        with pytest.raises(Canceled):
            engine.result("stubborn", timeout=20)
        with pytest.raises(NonDeterministic):
            engine.start("drifts", run_id="drifts")
        engine.force_cancel("drifts")
        engine.list_runs()
        engine.failures()
        engine.next_wakeup()
        engine.recover()


@pytest.mark.parametrize("watched", [False, True], ids=["alone", "watched"])
def test_locks_of_durable_runs_are_taken_in_the_order_that_the_architecture_page_tells(
    clock: Naming, url: str, watched: bool
) -> None:
    busy_life(clock, url, [lambda told: None] if watched else [])
    order = [*OF_RUNS, *OF_JSONL, *OF_SQLITE, "Workers", *ORDER]
    leaves = [*AS_LEAVES, *LEAVES]
    recorder = clock.recorder
    assert recorder.owners - set(order + leaves) == set()
    assert {*OF_RUNS, "Seats", "Bell", "Heart"} - recorder.owners == set()
    allowed = {(above, below) for number, above in enumerate(order) for below in order[number + 1 :] + leaves}
    assert recorder.pairs - allowed == set()


def test_the_architecture_page_tells_the_order() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for chain in (OF_RUNS, OF_JSONL, OF_SQLITE):
        assert " -> ".join(f"`{name}`" for name in chain) in page
    rows = {name for name in AS_LEAVES if f"| `{name}` |" in page}
    assert rows == set(AS_LEAVES)
