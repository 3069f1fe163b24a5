"""Several threads and steps that use one engine at once. Many interleavings, by the seed of the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from supervisor import Canceled
from supervisor.durable import FlowEngine, StepInvocation
from supervisor.testing import VirtualClock
from tests.durable.flowing import Steps, at, on_threads, types

SEEDS = pytest.mark.parametrize("seed", range(12))


def failed(results: list[Any]) -> list[BaseException]:
    return [each for each in results if isinstance(each, BaseException)]


def napping(steps: Steps, clock: VirtualClock) -> Callable[..., Any]:
    @steps.runtime.step
    def nap(seconds: float, invocation: StepInvocation) -> float:
        steps.note(invocation)
        clock.sleep(seconds)
        return seconds

    return nap


@SEEDS
def test_threads_that_drive_the_same_run_call_each_step_once(seed: int) -> None:
    clock, steps = VirtualClock(seed), Steps()
    nap = napping(steps, clock)

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return [ctx.step(each, nap, 1.0) for each in "abc"]

    with FlowEngine(steps.runtime, clock=clock) as engine:
        engine.submit(flow, run_id="r")
        found = on_threads(clock, [lambda: engine.drive("r").output] * 4)
        assert found == [[1.0, 1.0, 1.0]] * 4
        assert (steps.ids, clock.monotonic()) == (["a", "b", "c"], 3.0)


@SEEDS
def test_signals_from_eight_threads_are_all_taken_while_the_run_is_driven(seed: int) -> None:
    """Nobody else drives: a signal that meets the driver as it leaves must bring the run on itself."""
    clock, steps = VirtualClock(seed), Steps()

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return sorted(ctx.step(f"s{n}", steps.echo, ctx.wait_signal(f"w{n}", "go")) for n in range(16))

    with FlowEngine(steps.runtime, clock=clock) as engine:
        engine.start(flow, run_id="r")
        sends = [
            lambda number=number: [engine.signal("r", "go", number * 2 + each) for each in (0, 1)]
            for number in range(8)
        ]
        assert failed(on_threads(clock, sends)) == []
        assert engine.result("r", timeout=0) == list(range(16))
        assert len(steps.ids) == len(set(steps.ids)) == 16


def test_a_signal_that_meets_a_driver_as_it_leaves_drives_the_run_itself(clock: VirtualClock) -> None:
    """The seat is taken at the first look and free at the second: nobody else would look at the signal."""
    steps = Steps()

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.wait_signal("w", "go")

    with FlowEngine(steps.runtime, clock=clock) as engine:
        engine.start(flow, run_id="r")
        seat = engine.seats.enter("r", wait=True)
        assert seat is not None
        read, looks = engine.read, list[str]()

        def leaves(run_id: str) -> Any:
            looks.append(run_id)
            if len(looks) == 2:  # between its look at the seat and its append
                assert not engine.seats.leave(seat)
                assert engine.seats.leave(seat)
            return read(run_id)

        engine.read = leaves  # type: ignore[method-assign]
        engine.signal("r", "go", 5)
        assert engine.result("r", timeout=0) == 5
        assert engine.queue.pending() == 0


@SEEDS
def test_a_request_from_another_thread_ends_a_step_that_waits_on_its_token(seed: int) -> None:
    clock, steps = VirtualClock(seed), Steps()

    @steps.runtime.step
    def listens(data: Any, invocation: StepInvocation) -> None:
        steps.note(invocation)
        invocation.token.wait()
        invocation.token.check()

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.step("s", listens)
        finally:
            ctx.step("undo", steps.echo, 1)

    def cancel() -> None:
        clock.sleep(2.0)
        engine.cancel("r", "enough")

    with FlowEngine(steps.runtime, clock=clock) as engine:
        found = on_threads(clock, [lambda: engine.start(flow, run_id="r"), cancel])
        assert failed(found) == []
        assert (engine.snapshot("r").status, steps.ids) == ("cancelled", ["s", "undo"])
        assert clock.monotonic() == 2.0


@SEEDS
def test_signals_and_a_request_at_once_leave_a_history_that_holds(seed: int) -> None:
    from supervisor.durable import RunTerminal

    clock, steps = VirtualClock(seed), Steps()

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return [ctx.wait_signal(f"w{n}", "go") for n in range(8)]

    with FlowEngine(steps.runtime, clock=clock) as engine:
        engine.start(flow, run_id="r")
        calls: list[Callable[[], Any]] = [lambda: engine.signal("r", "go")] * 6
        found = on_threads(clock, [*calls, lambda: engine.cancel("r")])
        assert {type(each) for each in failed(found)} <= {RunTerminal}
        assert engine.snapshot("r").status == "cancelled"
        assert types(engine).count("run_cancelled") == 1
        assert engine.failures() == []


# -- steps that use the engine ---------------------------------------------------------------------


@SEEDS
def test_two_runs_whose_steps_drive_each_other_both_end(seed: int) -> None:
    clock, steps = VirtualClock(seed), Steps()

    @steps.runtime.step
    def drives(other: str, invocation: StepInvocation) -> str:
        steps.note(invocation)
        clock.sleep(1.0)
        engine.drive(other)
        return other

    @steps.runtime.workflow
    def flow(ctx: Any, other: str) -> Any:
        return ctx.step("s", drives, other)

    with FlowEngine(steps.runtime, clock=clock) as engine:
        engine.submit(flow, "b", run_id="a")
        engine.submit(flow, "a", run_id="b")
        found = on_threads(clock, [lambda: engine.drive("a"), lambda: engine.drive("b")])
        assert failed(found) == []
        assert [engine.result("a", timeout=0), engine.result("b", timeout=0)] == ["b", "a"]
        assert len(steps.calls) == 2


def test_a_run_whose_steps_drive_their_own_run_ends(clock: VirtualClock) -> None:
    steps = Steps()

    @steps.runtime.step
    def drives(data: Any, invocation: StepInvocation) -> str:
        return str(engine.drive(invocation.run_id).status)

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.gather([ctx.call("a", drives), ctx.call("b", drives)])

    with FlowEngine(steps.runtime, clock=clock) as engine:
        assert engine.result(engine.start(flow), timeout=0) == ["running", "running"]


@SEEDS
def test_steps_of_many_runs_that_start_the_same_child_share_it(seed: int) -> None:
    """Also when the one that was first has not written it yet."""
    clock, steps = VirtualClock(seed), Steps()
    nap = napping(steps, clock)

    @steps.runtime.workflow
    def child(ctx: Any) -> Any:
        return ctx.step("n", nap, 1.0)

    @steps.runtime.step
    def asks(data: Any, invocation: StepInvocation) -> Any:
        return engine.result(engine.start(child, run_id="c"))

    @steps.runtime.workflow
    def parent(ctx: Any) -> Any:
        return ctx.step("s", asks)

    with FlowEngine(steps.runtime, clock=clock) as engine:
        starts = [lambda n=n: engine.start(parent, run_id=f"p{n}") for n in range(4)]
        assert failed(on_threads(clock, starts)) == []
        assert [engine.result(f"p{n}", timeout=0) for n in range(4)] == [1.0] * 4
        assert steps.ids == ["n"]


def test_a_step_that_starts_a_run_which_another_thread_has_not_written_yet_writes_it(
    clock: VirtualClock,
) -> None:
    steps = Steps()

    @steps.runtime.workflow
    def child(ctx: Any) -> Any:
        return 1

    @steps.runtime.step
    def asks() -> Any:
        seat = engine.seats.enter("c", wait=True)  # as the thread that is just about to create it
        assert seat is not None
        engine.start(child, run_id="c")
        found = [types(engine, "c"), seat.again]
        engine.seats.leave(seat, look_again=False)
        engine.start(child, run_id="c")
        return found

    @steps.runtime.workflow
    def parent(ctx: Any) -> Any:
        return ctx.step("s", asks)

    with FlowEngine(steps.runtime, clock=clock) as engine:
        assert engine.result(engine.start(parent, run_id="p"), timeout=0) == [["run_created"], True]
        assert engine.result("c", timeout=0) == 1


@SEEDS
def test_a_step_may_cancel_another_run_that_is_driven(seed: int) -> None:
    clock, steps = VirtualClock(seed), Steps()

    @steps.runtime.step
    def listens(data: Any, invocation: StepInvocation) -> None:
        invocation.token.wait()
        invocation.token.check()

    @steps.runtime.step
    def ends(data: Any) -> str:
        clock.sleep(1.0)
        engine.cancel("victim")
        with pytest.raises(Canceled):
            engine.result("victim")
        return "done"

    @steps.runtime.workflow
    def victim(ctx: Any) -> Any:
        ctx.step("s", listens)

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.step("s", ends)

    with FlowEngine(steps.runtime, clock=clock) as engine:
        calls = [lambda: engine.start(victim, run_id="victim"), lambda: engine.start(flow, run_id="r")]
        assert failed(on_threads(clock, calls)) == []
        assert engine.result("r", timeout=0) == "done"
        assert engine.snapshot("victim").status == "cancelled"


@SEEDS
def test_many_runs_on_many_threads_do_not_mix(seed: int) -> None:
    clock, steps = VirtualClock(seed), Steps()
    nap = napping(steps, clock)

    @steps.runtime.workflow
    def flow(ctx: Any, seconds: float) -> Any:
        return ctx.gather([ctx.call("a", nap, seconds), ctx.call("b", steps.echo, ctx.run_id)])

    with FlowEngine(steps.runtime, clock=clock) as engine:
        starts = [lambda n=n: engine.start(flow, float(n), run_id=f"r{n}") for n in range(8)]
        assert failed(on_threads(clock, starts)) == []
        for n in range(8):
            assert engine.result(f"r{n}", timeout=0) == [float(n), f"r{n}"]
            assert engine.history(f"r{n}")[-1].at == at(n)
