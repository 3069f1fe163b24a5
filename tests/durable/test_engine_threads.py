"""Many threads and one run; results that are waited for; steps that use the engine they run in."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from supervisor import Canceled
from supervisor.durable import (
    FlowEngine,
    FlowWorker,
    MemoryEventStore,
    RetryPolicy,
    RunFailed,
    RunTerminal,
    SignalConflict,
    StepInvocation,
    StoreError,
)
from supervisor.durable.projection import Projection
from supervisor.kernel.errors import ReentrantCall
from supervisor.testing import VirtualClock
from tests.durable.flowing import Steps, events, on_threads, plain, pump, types

MakeEngine = Callable[..., FlowEngine]


@pytest.fixture
def steps(clock: VirtualClock) -> Steps:
    made = Steps()

    @made.runtime.step
    def nap(seconds: float, invocation: StepInvocation) -> float:
        made.note(invocation)
        clock.sleep(seconds)
        return seconds

    @made.runtime.workflow
    def napping(ctx: Any, seconds: Any) -> Any:
        return [ctx.step("a", "nap", seconds), ctx.step("b", "nap", seconds)]

    @made.runtime.workflow
    def waiting(ctx: Any) -> Any:
        return ctx.wait_signal("w", "go")

    return made


# -- one run, many threads -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_one_thread_drives_and_the_others_wait_for_it(seed: int) -> None:
    clock = VirtualClock(seed)
    steps = Steps()
    running: list[int] = []

    @steps.runtime.step
    def nap(data: Any, invocation: StepInvocation) -> int:
        steps.note(invocation)
        running.append(1)
        clock.sleep(1.0)
        assert len(running) == 1
        running.pop()
        return 1

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return [ctx.step(f"s{n}", nap) for n in range(3)]

    with FlowEngine(steps.runtime, clock=clock) as engine:
        calls: list[Callable[[], Any]] = [lambda: engine.start(flow, run_id="r")] * 3
        calls += [lambda: engine.drive("r").status] * 3
        engine.submit(flow, run_id="r")
        found = on_threads(clock, calls)
        assert found == ["r"] * 3 + ["completed"] * 3
        assert clock.monotonic() == 3.0
        assert steps.calls == [("s0", 1), ("s1", 1), ("s2", 1)]


def test_different_runs_are_driven_at_once(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    calls: list[Callable[[], Any]] = [
        lambda n=n: engine.start("napping", 5.0, run_id=f"r{n}")  # type: ignore[misc]
        for n in range(20)
    ]
    on_threads(clock, calls)
    assert clock.monotonic() == 10.0
    assert {str(each.status) for each in engine.list_runs()} == {"completed"}


@pytest.mark.parametrize("seed", range(6))
def test_two_processes_that_drive_the_same_run_end_it_once(seed: int) -> None:
    """They may call a step twice, and record it once."""
    clock, steps, store = VirtualClock(seed), Steps(), MemoryEventStore()

    @steps.runtime.step
    def nap(data: Any, invocation: StepInvocation) -> Any:
        steps.note(invocation)
        clock.sleep(1.0)
        return data

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        first = [ctx.step(f"s{n}", nap, n) for n in range(3)]
        return first + ctx.gather([ctx.call(f"g{n}", nap, n) for n in range(3)])

    with (
        FlowEngine(steps.runtime, store, clock=clock) as one,
        FlowEngine(steps.runtime, store, clock=clock) as other,
    ):
        on_threads(clock, [lambda: one.start(flow, run_id="r"), lambda: other.start(flow, run_id="r")])
        assert one.result("r", timeout=0) == [0, 1, 2, 0, 1, 2]
        found = types(one)
        assert found.count("step_completed") == found.count("step_started") == 6
        assert found.count("run_created") == found.count("run_completed") == 1
        assert max(steps.calls.count(each) for each in set(steps.calls)) <= 2


def test_a_driver_that_fails_lets_the_next_one_in(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    broken = True

    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        if not ctx.step_completed("a"):
            return ctx.schedule_step("a", "nap", 1.0)
        if broken:
            raise OSError("no")
        return ctx.complete("well")

    engine = make_engine(steps.runtime)
    found = on_threads(clock, [lambda: engine.start(flow, run_id="r")] * 2)
    assert [type(each) for each in found] == [OSError, OSError]
    assert steps.calls == [("a", 1)]
    broken = False
    assert engine.drive("r").output == "well"
    assert engine.failures() == []


# -- results ---------------------------------------------------------------------------------------


def test_a_result_is_there_as_soon_as_the_run_has_ended(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    found = on_threads(
        clock,
        [
            lambda: engine.start("napping", 3.0, run_id="r"),
            lambda: (clock.sleep(0.1), engine.result("r", timeout=60.0), clock.monotonic())[1:],
        ],
    )
    assert found == ["r", ([3.0, 3.0], 6.0)]


@pytest.mark.parametrize("timeout", [0, 0.0, 0.001, 1.0, 7.25])
def test_a_result_that_does_not_come_is_a_timeout_after_exactly_so_long(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock, timeout: float
) -> None:
    engine = make_engine(steps.runtime)
    engine.start("waiting", run_id="r")
    with pytest.raises(TimeoutError, match=f"run 'r' is suspended after {timeout:g} s"):
        engine.result("r", timeout=timeout)
    assert clock.monotonic() == timeout


def test_the_end_of_a_run_in_another_process_is_seen_within_half_a_second(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    store = MemoryEventStore()
    here, there = make_engine(steps.runtime, store), make_engine(steps.runtime, store)
    there.start("waiting", run_id="r")

    def later() -> None:
        clock.sleep(10.1)
        there.signal("r", "go", "now")

    _, found = on_threads(clock, [later, lambda: (here.result("r", timeout=60.0), clock.monotonic())])
    output, when = found
    assert output == "now"
    assert 10.1 <= when <= 10.6


@pytest.mark.parametrize("timeout", [None, 100.0])
def test_who_waits_for_a_result_is_told_when_the_engine_is_closed(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock, timeout: float | None
) -> None:
    engine = make_engine(steps.runtime)
    engine.start("waiting", run_id="r")

    def close() -> None:
        clock.sleep(3.0)
        engine.close()

    found = on_threads(clock, [lambda: engine.result("r", timeout=timeout), close])
    assert type(found[0]) is StoreError
    assert "the engine was closed while run 'r' was suspended" in str(found[0])
    assert clock.monotonic() == 3.0


def test_a_closed_engine_still_tells_results_that_are_there(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("napping", 1.0, run_id="r")
    engine.close()
    assert engine.result("r") == [1.0, 1.0]


def test_a_result_is_a_copy(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("napping", 1.0, run_id="r")
    engine.result("r").append("changed")
    assert engine.result("r") == [1.0, 1.0]


@pytest.mark.parametrize("timeout", [-1, "5", float("nan")])
def test_a_timeout_that_is_none_is_refused(make_engine: MakeEngine, steps: Steps, timeout: Any) -> None:
    engine = make_engine(steps.runtime)
    engine.start("waiting", run_id="r")
    with pytest.raises((TypeError, ValueError), match="timeout"):
        engine.result("r", timeout=timeout)


def test_closing_cancels_the_step_that_runs_and_leaves_it_for_later(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    @steps.runtime.step
    def listens(data: Any, invocation: StepInvocation) -> str:
        steps.note(invocation)
        if len(steps.calls) == 1:
            invocation.token.wait()
            invocation.token.check()
        return "done"

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.step("a", listens)

    store = MemoryEventStore()
    engine = make_engine(steps.runtime, store)
    thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
    clock.settle()
    engine.close()
    thread.join()
    second = make_engine(steps.runtime, store)
    assert second.recover() == ["r"]
    assert second.drive("r").output == "done"
    assert steps.calls == [("a", 1), ("a", 1)]


# -- steps that use their engine -------------------------------------------------------------------


def using(steps: Steps, function: Callable[[StepInvocation], Any]) -> Callable[..., Any]:
    """A workflow that is a step which gets its invocation."""

    @steps.runtime.step(name="using")
    def step(data: Any, invocation: StepInvocation) -> Any:
        steps.note(invocation)
        return function(invocation)

    @steps.runtime.workflow
    def outer(ctx: Any) -> Any:
        return ctx.step("s", "using")

    return outer


def test_a_step_may_start_another_run_and_wait_for_it(make_engine: MakeEngine, steps: Steps) -> None:
    def child(invocation: StepInvocation) -> Any:
        run_id = engine.start("napping", 1.0, run_id=f"{invocation.run_id}-child")
        return engine.result(run_id, timeout=0)

    engine = make_engine(steps.runtime)
    engine.start(using(steps, child), run_id="r")
    assert engine.result("r", timeout=0) == [1.0, 1.0]


def test_a_step_that_drives_its_own_run_gets_it_as_it_is(make_engine: MakeEngine, steps: Steps) -> None:
    def own(invocation: StepInvocation) -> Any:
        found = engine.drive(invocation.run_id)
        assert engine.start("outer", run_id=invocation.run_id) == invocation.run_id
        engine.resume_scheduled_run(invocation.run_id, engine.clock.now())
        return [str(found.status), str(found.steps["s"].status)]

    engine = make_engine(steps.runtime)
    engine.start(using(steps, own), run_id="r")
    assert engine.result("r", timeout=0) == ["running", "running"]
    assert steps.calls == [("s", 1)]


def test_a_step_may_signal_its_own_run(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.step
    def answers(data: Any, invocation: StepInvocation) -> None:
        steps.note(invocation)
        engine.signal(invocation.run_id, "go", "from inside", signal_id=invocation.step_key)

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.step("a", answers)
        return ctx.wait_signal("w", "go")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert engine.result("r", timeout=0) == "from inside"
    assert steps.calls == [("a", 1)]


def test_a_step_may_cancel_its_own_run(make_engine: MakeEngine, steps: Steps) -> None:
    def cancel(invocation: StepInvocation) -> Any:
        engine.cancel(invocation.run_id, "enough")
        assert invocation.token.canceled
        invocation.token.check()

    engine = make_engine(steps.runtime)
    engine.start(using(steps, cancel), run_id="r")
    assert types(engine)[4:] == ["run_cancellation_requested", "run_cancelled"]


def test_a_step_that_ends_its_own_run_by_force_is_the_last(make_engine: MakeEngine, steps: Steps) -> None:
    def force(invocation: StepInvocation) -> Any:
        engine.force_cancel(invocation.run_id)
        return "not recorded"

    engine = make_engine(steps.runtime)
    engine.start(using(steps, force), run_id="r")
    assert types(engine)[4:] == ["run_cancelled"]


def test_a_step_that_waits_for_its_own_run_is_refused(make_engine: MakeEngine, steps: Steps) -> None:
    def own(invocation: StepInvocation) -> Any:
        with pytest.raises(ReentrantCall, match="step 's' would wait for its own run 'r'"):
            engine.result(invocation.run_id)
        return "refused"

    engine = make_engine(steps.runtime)
    engine.start(using(steps, own), run_id="r")
    assert engine.result("r", timeout=0) == "refused"


@pytest.mark.parametrize("seed", range(4))
def test_two_runs_whose_steps_drive_each_other_both_end(seed: int) -> None:
    clock, steps = VirtualClock(seed), Steps()

    @steps.runtime.step
    def other(data: str, invocation: StepInvocation) -> str:
        steps.note(invocation)
        clock.sleep(1.0)
        engine.drive(data)
        clock.sleep(1.0)
        engine.signal(data, "hello", invocation.run_id, signal_id=invocation.step_key)
        return data

    @steps.runtime.workflow
    def flow(ctx: Any, partner: Any) -> Any:
        ctx.step(f"of-{ctx.run_id}", other, partner)
        return ctx.wait_signal("w", "hello")

    with FlowEngine(steps.runtime, clock=clock) as engine:
        engine.submit(flow, "b", run_id="a")
        engine.submit(flow, "a", run_id="b")
        on_threads(clock, [lambda: engine.drive("a"), lambda: engine.drive("b")])
        assert engine.result("a", timeout=0) == "b"
        assert engine.result("b", timeout=0) == "a"
        assert sorted(steps.calls) == [("of-a", 1), ("of-b", 1)]


def test_members_of_a_batch_may_run_batches_of_their_own(make_engine: MakeEngine, steps: Steps) -> None:
    """More of them than the engine has threads for: nobody may wait for a thread that waits for him."""

    @steps.runtime.workflow
    def inner(ctx: Any, n: Any) -> Any:
        return sum(ctx.gather([ctx.call(f"i{each}", steps.echo, each) for each in (n, n + 1)]))

    @steps.runtime.step
    def nested(n: int, invocation: StepInvocation) -> Any:
        return engine.result(engine.start(inner, n, run_id=f"{invocation.run_id}-{n}"), timeout=0)

    @steps.runtime.workflow
    def outer(ctx: Any) -> Any:
        return ctx.gather([ctx.call(f"o{n}", nested, n) for n in range(130)])

    engine = make_engine(steps.runtime)
    engine.start(outer, run_id="r")
    assert engine.result("r", timeout=0) == [2 * n + 1 for n in range(130)]


def test_a_workflow_that_drives_its_own_run_is_refused(make_engine: MakeEngine, steps: Steps) -> None:
    """A workflow only decides. One that calls the engine for its own run would wait for itself."""

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        engine.drive(ctx.run_id)

    @steps.runtime.decider
    def decided(ctx: Any) -> Any:
        engine.start("decided", run_id=ctx.run_id)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert plain(engine.snapshot("r").error).startswith("ReentrantCall: ")
    with pytest.raises(ReentrantCall, match="run 'd'"):
        engine.start(decided, run_id="d")


def test_a_result_that_a_step_waits_for_ends_with_its_token(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    def other(invocation: StepInvocation) -> Any:
        return engine.result("other")

    engine = make_engine(steps.runtime)
    engine.start("waiting", run_id="other")
    flow = using(steps, other)
    thread = clock.spawn(lambda: engine.start(flow, run_id="r"), "caller")
    clock.advance(5.0)
    engine.cancel("r")
    thread.join()
    assert engine.snapshot("r").status == "cancelled"
    assert clock.monotonic() == 5.0
    with pytest.raises(Canceled):
        engine.result("r")


def test_a_run_that_fails_fails_whoever_waits_for_it_in_a_step(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def bad(ctx: Any) -> Any:
        raise ValueError("no")

    def other(invocation: StepInvocation) -> Any:
        with pytest.raises(RunFailed, match="run 'bad' failed: ValueError: no"):
            engine.result(engine.start(bad, run_id="bad"))
        return "seen"

    engine = make_engine(steps.runtime)
    engine.start(using(steps, other), run_id="r")
    assert engine.result("r", timeout=0) == "seen"


# -- storms ----------------------------------------------------------------------------------------


def stormy(clock: Any) -> Steps:
    """A workflow of all there is: steps that run at once, retries, waits, signals, and a clean-up."""
    steps = Steps()

    @steps.runtime.step
    def work(data: Any, invocation: StepInvocation) -> Any:
        steps.note(invocation)
        invocation.token.wait(0.3)
        invocation.token.check()
        if invocation.attempt < data:
            raise OSError("again")
        return data

    @steps.runtime.workflow
    def storm(ctx: Any) -> Any:
        try:
            found = ctx.gather(
                [ctx.call(f"g{n}", work, n % 3, retry=RetryPolicy.fixed(3, 0.5)) for n in range(4)]
            )
            found.append(ctx.wait_signal("w", "go"))
            ctx.sleep("nap", 1.0)
            found.append(ctx.step("s", work, 2))
            found.append(ctx.wait_signal("v", "go"))
            return found
        finally:
            if ctx.cancellation_request is not None:
                ctx.step("undo", work, 1)

    return steps


@pytest.mark.parametrize("seed", range(40))
def test_a_storm_of_calls_on_one_run_ends_it_once(seed: int) -> None:
    """Two processes, six threads, calls drawn by the seed; then whatever is left is done."""
    clock, draw, store = VirtualClock(seed), Random(seed), MemoryEventStore()
    steps = stormy(clock)
    with (
        FlowEngine(steps.runtime, store, clock=clock) as one,
        FlowEngine(steps.runtime, store, clock=clock, queue=one.queue) as other,
    ):
        one.submit("storm", run_id="r")
        calls: list[Callable[[FlowEngine], Any]] = [
            lambda engine: engine.drive("r"),
            lambda engine: engine.start("storm", run_id="r"),
            lambda engine: engine.resume_scheduled_run("r", clock.now()),
            lambda engine: engine.signal("r", "go", draw.randrange(3), signal_id=f"s{draw.randrange(4)}"),
            lambda engine: engine.result("r", timeout=draw.random()),
            lambda engine: FlowWorker(engine).run_once(),
            lambda engine: engine.recover(),
        ]
        if seed % 4 == 0:
            calls.append(lambda engine: engine.cancel("r", "storm"))
        if seed % 8 == 1:
            calls.append(lambda engine: engine.force_cancel("r"))

        def caller() -> None:
            for _ in range(12):
                try:
                    draw.choice(calls)(draw.choice([one, other]))
                except (RunTerminal, SignalConflict, TimeoutError, Canceled):
                    pass
                clock.sleep(draw.choice([0.0, 0.0, 0.2, 0.7]))

        found = on_threads(clock, [caller] * 6)
        assert found == [None] * 6, found
        for number in range(2):
            if not one.snapshot("r").terminal:
                one.drive("r")
                pump(one, clock)
                if not one.snapshot("r").terminal:
                    one.signal("r", "go", number, signal_id=f"last-{number}")
                    pump(one, clock)
        clock.settle()
        history = store.read("r")
        projection = Projection.of("r", history)
        assert projection.terminal
        assert one.failures() == []
        assert [each.sequence for each in history] == list(range(1, len(history) + 1))
        found_types = types(one)
        assert found_types.count("run_created") == 1
        assert found_types.count("run_started") <= 1  # none if it was ended before
        assert sum(each in ENDS for each in found_types) == 1
        ended = [each["step_id"] for each in events(one, "step_completed")]
        assert len(set(ended)) == len(ended)


ENDS = ("run_completed", "run_failed", "run_cancelled", "run_retry_exhausted")


@pytest.mark.parametrize("round", range(20))
def test_a_storm_on_the_real_clock_leaves_nothing_undone(round: int) -> None:
    """Virtual threads switch only where they wait; real ones anywhere, and here as often as can be.

    Nobody serves: when the last call has returned, every signal has been taken.
    """
    steps, store = Steps(), MemoryEventStore()

    @steps.runtime.workflow
    def storm(ctx: Any) -> Any:
        found = ctx.gather([ctx.call(f"g{n}", steps.echo, n) for n in range(4)])
        return found + [ctx.wait_signal(f"w{n}", "go") for n in range(16)]

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with FlowEngine(steps.runtime, store) as engine:

            def caller(number: int) -> None:
                engine.start("storm", run_id="r")
                for each in (2 * number, 2 * number + 1):
                    engine.signal("r", "go", each, signal_id=str(each))

            threads = [threading.Thread(target=caller, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            output = engine.result("r", timeout=0)
            assert output[:4] == [0, 1, 2, 3]
            assert sorted(output[4:]) == list(range(16))
            assert len(engine.history("r")) == 2 + 3 * 4 + 3 * 16 + 1
            assert sorted(steps.ids) == ["g0", "g1", "g2", "g3"]
    finally:
        sys.setswitchinterval(before)
