"""result(): what it returns and raises, how long it waits, and what ends the wait."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from supervisor import Canceled, ReentrantCall
from supervisor.durable import FlowEngine, InvalidRunId, RunFailed, RunNotFound, StepInvocation, StoreError
from supervisor.testing import VirtualClock
from tests.durable.flowing import Steps, on_threads

MakeEngine = Callable[..., FlowEngine]


@pytest.fixture
def steps() -> Steps:
    made = Steps()

    @made.runtime.workflow
    def waits(ctx: Any) -> Any:
        return ctx.wait_signal("w", "go")

    @made.runtime.workflow
    def fails(ctx: Any) -> Any:
        raise OSError("no")

    return made


def test_looking_once_does_not_wait(make_engine: MakeEngine, steps: Steps, clock: VirtualClock) -> None:
    engine = make_engine(steps.runtime)
    engine.start("waits", run_id="r")
    with pytest.raises(TimeoutError, match=r"^run 'r' is suspended after 0 s$"):
        engine.result("r", timeout=0)
    assert clock.monotonic() == 0.0
    engine.signal("r", "go", [1])
    assert engine.result("r", timeout=0) == [1]


@pytest.mark.parametrize("timeout", [0.01, 2.5, timedelta(minutes=1)])
def test_a_wait_ends_exactly_at_its_timeout(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock, timeout: Any
) -> None:
    engine = make_engine(steps.runtime)
    engine.start("waits", run_id="r")
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    with pytest.raises(TimeoutError, match=rf"is suspended after {seconds:g} s"):
        engine.result("r", timeout=timeout)
    assert clock.monotonic() == seconds


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), "1"])
def test_a_timeout_that_is_none_is_refused(make_engine: MakeEngine, steps: Steps, timeout: Any) -> None:
    engine = make_engine(steps.runtime)
    engine.start("waits", run_id="r")
    with pytest.raises((ValueError, TypeError), match="timeout"):
        engine.result("r", timeout=timeout)


def test_an_unknown_run_is_not_waited_for(make_engine: MakeEngine, steps: Steps, clock: VirtualClock) -> None:
    engine = make_engine(steps.runtime)
    with pytest.raises(RunNotFound):
        engine.result("none")
    assert clock.monotonic() == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_an_end_in_this_process_is_seen_at_once_by_all_who_wait(seed: int) -> None:
    clock, steps = VirtualClock(seed), Steps()

    @steps.runtime.workflow
    def waits(ctx: Any) -> Any:
        return ctx.wait_signal("w", "go")

    def seen() -> tuple[Any, float]:
        return engine.result("r"), clock.monotonic()

    def send() -> None:
        clock.sleep(7.123)
        engine.signal("r", "go", {"a": []})

    with FlowEngine(steps.runtime, clock=clock) as engine:
        engine.start(waits, run_id="r")
        found = on_threads(clock, [seen, send, seen, seen])
        assert [found[0], found[2], found[3]] == [({"a": []}, 7.123)] * 3
        found[0][0]["a"].append(1)  # each has a copy of its own
        assert found[2][0] == engine.result("r") == {"a": []}


def test_an_end_in_another_process_is_seen_within_half_a_second(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    other = make_engine(steps.runtime, engine.store)  # knows nothing of the first
    engine.start("waits", run_id="r")

    def send() -> None:
        clock.sleep(9.999)
        other.signal("r", "go", 1)

    found = on_threads(clock, [lambda: (engine.result("r"), clock.monotonic()), send])
    assert found[0][0] == 1
    assert 9.999 <= found[0][1] <= 10.499


def test_what_the_end_of_a_run_raises(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("fails", run_id="failed")
    engine.start("waits", run_id="cancelled")
    engine.cancel("cancelled", "enough")
    engine.start("waits", run_id="unreasoned")
    engine.force_cancel("unreasoned")
    with pytest.raises(RunFailed, match="run 'failed' failed: OSError: no") as raised:
        engine.result("failed")
    assert raised.value.error == engine.snapshot("failed").error
    with pytest.raises(Canceled, match=r"^enough$"):
        engine.result("cancelled")
    with pytest.raises(Canceled, match=r"^run 'unreasoned' was cancelled$"):
        engine.result("unreasoned")


def test_closing_the_engine_ends_every_wait(steps: Steps, clock: VirtualClock) -> None:
    engine = FlowEngine(steps.runtime, clock=clock)
    engine.start("waits", run_id="r")

    def close() -> None:
        clock.sleep(3.3)
        engine.close()

    found = on_threads(clock, [lambda: engine.result("r"), close, lambda: engine.result("r", timeout=60.0)])
    for each in (found[0], found[2]):
        assert isinstance(each, StoreError)
        assert str(each) == "the engine was closed while run 'r' was suspended"
    assert clock.monotonic() == 3.3


def test_the_result_of_a_run_that_has_ended_is_there_after_closing(steps: Steps, clock: VirtualClock) -> None:
    engine = FlowEngine(steps.runtime, clock=clock)
    engine.start("waits", run_id="r")
    engine.signal("r", "go", 1)
    engine.close()
    assert engine.result("r") == 1


# -- steps that wait -------------------------------------------------------------------------------


def test_a_step_that_would_wait_for_its_own_run_is_refused(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)

    @steps.runtime.step
    def selfish(data: Any, invocation: StepInvocation) -> str:
        with pytest.raises(ReentrantCall, match="step 's' would wait for its own run 'r'"):
            engine.result(invocation.run_id, timeout=data)
        return "refused"

    @steps.runtime.workflow
    def flow(ctx: Any, timeout: Any) -> Any:
        return ctx.step("s", selfish, timeout)

    assert engine.result(engine.start(flow, None, run_id="r")) == "refused"
    assert clock.monotonic() == 0.0


def test_a_step_that_waits_for_another_run_is_ended_by_its_token(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    ended: list[float] = []

    @steps.runtime.step
    def asks(run_id: str) -> Any:
        try:
            return engine.result(run_id)
        finally:
            ended.append(clock.monotonic())

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.step("s", asks, "other")

    def cancel() -> None:
        clock.sleep(4.4)
        engine.cancel("r", "enough")

    engine.start("waits", run_id="other")
    found = on_threads(clock, [lambda: engine.start(flow, run_id="r"), cancel])
    assert found == ["r", None]
    assert (ended, engine.snapshot("r").status) == ([4.4], "cancelled")
    assert engine.snapshot("other").status == "suspended"


def test_a_step_that_waits_for_another_run_is_ended_by_its_timeout(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)

    @steps.runtime.step(timeout=2.0)
    def asks(run_id: str) -> Any:
        return engine.result(run_id)

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.step("s", asks, "other")

    engine.start("waits", run_id="other")
    engine.start(flow, run_id="r")
    with pytest.raises(RunFailed, match="Timeout: asks took longer than 2 s"):
        engine.result("r")
    assert clock.monotonic() == 6.0  # three attempts


def test_closing_the_engine_ends_a_step_that_waits_and_leaves_its_run_for_redelivery(
    steps: Steps, clock: VirtualClock
) -> None:
    engine = FlowEngine(steps.runtime, clock=clock)

    @steps.runtime.step
    def asks(run_id: str) -> Any:
        return engine.result(run_id)

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.step("s", asks, "other")

    def close() -> None:
        clock.sleep(1.0)
        engine.close()

    engine.start("waits", run_id="other")
    on_threads(clock, [lambda: engine.start(flow, run_id="r"), close])
    assert engine.snapshot("r").steps["s"].status == "running"
    assert clock.monotonic() == 1.0


def test_the_failure_of_a_child_fails_the_step_that_waits_for_it(
    make_engine: MakeEngine, steps: Steps
) -> None:
    engine = make_engine(steps.runtime)

    @steps.runtime.step
    def asks() -> Any:
        return engine.result(engine.start("fails", run_id="child"))

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.step("s", asks)

    engine.start(flow, run_id="r")
    with pytest.raises(RunFailed, match="RunFailed: run 'child' failed: OSError: no"):
        engine.result("r")


def test_a_cancelled_child_fails_the_step_that_waits_for_it_and_does_not_cancel_the_parent(
    make_engine: MakeEngine, steps: Steps
) -> None:
    engine = make_engine(steps.runtime)

    @steps.runtime.step
    def asks() -> Any:
        if not engine.list_runs(workflow="waits"):
            engine.start("waits", run_id="child")
            engine.cancel("child", "enough")
        return engine.result("child")

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.step("s", asks)

    engine.start(flow, run_id="r")
    assert engine.snapshot("r").status == "failed"
    assert "Canceled: enough" in str(engine.snapshot("r").error)


@pytest.mark.parametrize(
    "call", ["result", "signal", "cancel", "force_cancel", "snapshot", "drive", "history"]
)
def test_what_is_no_run_id_is_told_as_such(make_engine: MakeEngine, steps: Steps, call: str) -> None:
    engine = make_engine(steps.runtime)
    arguments = (None, "name") if call == "signal" else (None,)
    with pytest.raises(InvalidRunId, match="got None"):
        getattr(engine, call)(*arguments)


def test_runs_are_not_listed_by_what_can_not_be_a_status_or_a_name(
    make_engine: MakeEngine, steps: Steps
) -> None:
    engine = make_engine(steps.runtime)
    with pytest.raises(ValueError, match=r"status must be one of pending, running, suspended, .* got 'done'"):
        engine.list_runs(status="done")
    for workflow in (5, lambda ctx: None):
        with pytest.raises(TypeError, match="workflow must be the name of one, got"):
            engine.list_runs(workflow=workflow)  # type: ignore[arg-type]
