"""A fault at every append of every kind of run: each ends as it would have ended without."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from supervisor.durable import (
    FlowEngine,
    FlowScheduler,
    MemoryWorkQueue,
    RetryPolicy,
    RunTerminal,
    StepFailed,
    StoreError,
)
from supervisor.durable.projection import Projection
from supervisor.kernel.errors import Canceled
from supervisor.testing import FaultyStore, VirtualClock
from tests.durable.conftest import STORES, Place
from tests.durable.flowing import Steps, at, plain, pump, work

RUN = "r"
LATER = RetryPolicy.fixed(3, 2.0)
Host = Callable[[FlowEngine, VirtualClock], None]


def start(engine: FlowEngine, clock: VirtualClock) -> None:
    """Start the run, and wait for whatever it waits for."""
    engine.start("flow", {"n": 1}, run_id=RUN)
    pump(engine, clock)


def start_and_signal(engine: FlowEngine, clock: VirtualClock) -> None:
    """Start, and send three signals, one before it is waited for."""
    engine.start("flow", {"n": 1}, run_id=RUN)
    for number in (1, 2, 3):
        try:
            engine.signal(RUN, "go", {"n": number}, signal_id=f"s{number}")
        except RunTerminal:
            pass
    pump(engine, clock)


def start_and_cancel(engine: FlowEngine, clock: VirtualClock) -> None:
    """Start, cancel, and wait for the clean-up."""
    engine.start("flow", {"n": 1}, run_id=RUN)
    try:
        engine.cancel(RUN, "enough")
    except RunTerminal:
        pass
    pump(engine, clock)


def start_and_force(engine: FlowEngine, clock: VirtualClock) -> None:
    """Start, and end it at once."""
    engine.start("flow", {"n": 1}, run_id=RUN)
    try:
        engine.force_cancel(RUN, "enough")
    except RunTerminal:
        pass


def submit_and_work(engine: FlowEngine, clock: VirtualClock) -> None:
    """Submit, and let a worker do it."""
    engine.submit("flow", {"n": 1}, run_id=RUN)
    work(engine, clock)
    pump(engine, clock)


# -- the runs ------------------------------------------------------------------------------------


def linear(steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any, data: Any) -> Any:
        first = ctx.step("a", steps.echo, data["n"])
        second = ctx.step("b", steps.echo, first + 1)
        return [first, second, ctx.step("c", steps.echo, second + 1)]


def linear_decider(steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        for step_id in ("a", "b", "c"):
            if not ctx.step_completed(step_id):
                return ctx.schedule_step(step_id, "echo", step_id)
        return ctx.complete([ctx.step_output(each) for each in "abc"])


def retries(steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        quick = ctx.step("quick", steps.flaky, 2)
        slow = ctx.step("slow", steps.flaky, 2, retry=LATER)
        return [quick, slow, ctx.step("draw", steps.flaky, 1, retry=RetryPolicy.exponential(3, 1.0, 4.0))]


def fallback(steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        if ctx.step_completed("case"):
            return ctx.complete(ctx.step_output("case"))
        if error := ctx.step_failed("reserve"):
            return ctx.schedule_step("case", "echo", {"reason": error})
        return ctx.schedule_step_with_retry(
            "reserve", "broken", "sold out", LATER.continue_workflow_on_failure()
        )


def fallback_straight(steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            return ctx.step("reserve", steps.refused, "sold out")
        except StepFailed as failure:
            return ctx.step("case", steps.echo, failure.error)


def together(steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        calls = [
            ctx.call("a", steps.echo, "A"),
            ctx.call("b", steps.flaky, 1, retry=LATER),
            ctx.call("c", steps.flaky, 1),
            ctx.call("d", steps.echo, "D"),
        ]
        found = ctx.gather(calls)
        try:
            ctx.gather([ctx.call("e", steps.refused, "no"), ctx.call("f", steps.echo, "F")])
        except StepFailed as failure:
            found.append(failure.error)
        return found


def batch_that_fails(steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.schedule_steps(
            [
                ctx.schedule_step_with_retry("late", "broken", "try again", RetryPolicy.fixed(2, 60.0)),
                ctx.schedule_step("well", "echo", 1),
                ctx.schedule_step_with_retry("bad", "broken", "no way", RetryPolicy.fixed(2, 1.0)),
            ]
        )


def waits(steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        first = ctx.step("a", steps.echo, 1)
        ctx.sleep("nap", 5.0)
        second = ctx.step("b", steps.echo, 2)
        ctx.wait_until("until", at(60))
        ctx.wait_until("past", at(1))
        return [first, second]


def wait_decider(steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        if not ctx.wait_completed("w"):
            return ctx.wait_until("w", at(30))
        if not ctx.step_completed("a"):
            return ctx.schedule_step("a", "echo", "after")
        return ctx.complete(ctx.step_output("a"))


def polling(steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        for round in range(1, 4):
            if ctx.step(f"look-{round}", steps.echo, round == 3):
                return round
            ctx.sleep(f"pause-{round}", 10.0)
        raise AssertionError


def signals(steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        one = ctx.wait_signal("first", "go")
        two = ctx.step("between", steps.echo, one["n"] * 10)
        ctx.sleep("pause", 3.0)
        return [one, two, ctx.wait_signal("second", "go")]


def signal_decider(steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        for number in (1, 2, 3):
            if not ctx.wait_completed(f"w{number}"):
                return ctx.wait_for_signal(f"w{number}", "go")
        return ctx.complete(ctx.signal("go"))


def signal_or_timeout(steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        if ctx.signal("go") is None and not ctx.wait_completed("timeout"):
            return ctx.wait_until("timeout", at(30))
        if not ctx.step_completed("end"):
            return ctx.schedule_step("end", "echo", ctx.signal("go"))
        return ctx.complete(ctx.step_output("end"))


def clean_up(steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.step("take", steps.echo, "taken")
        try:
            ctx.sleep("long", 1000.0)
        except Canceled:
            ctx.step("release", steps.flaky, 1, retry=LATER)
            ctx.gather([ctx.call("x", steps.echo, 1), ctx.call("y", steps.echo, 2)])
            raise
        finally:
            ctx.step("note", steps.echo, "noted")


def clean_up_decider(steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        if ctx.cancellation_request is None:
            return ctx.wait_until("long", at(1000))
        if not ctx.step_completed("release"):
            return ctx.schedule_step("release", "echo", ctx.cancellation_request.reason)
        return ctx.cancel()


def never_cleans_up(steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.step("a", steps.echo, 1)
        ctx.wait_signal("never", "never")


def non_retryable(steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        if not ctx.step_completed("a"):
            return ctx.schedule_step("a", "echo", 1)
        return ctx.schedule_step("b", "refused", "wrong card")


def exhausted(steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.schedule_step_with_retry("a", "broken", "down", RetryPolicy.fixed(3, 5.0))


def escapes(steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        raise ValueError(f"can't go on with {ctx.step('a', steps.echo, 7)}")


def fails(steps: Steps) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.fail("no reason") if ctx.step_completed("a") else ctx.schedule_step("a", "echo", 1)


@dataclass(frozen=True)
class Scenario:
    build: Callable[[Steps], None]
    host: Host
    status: str
    result: Any = None  # output or error


SCENARIOS = {
    "linear": Scenario(linear, start, "completed", [1, 2, 3]),
    "linear decider": Scenario(linear_decider, start, "completed", ["a", "b", "c"]),
    "submitted": Scenario(linear, submit_and_work, "completed", [1, 2, 3]),
    "retries": Scenario(retries, start, "completed", [3, 3, 2]),
    "fallback": Scenario(fallback, start, "completed", {"reason": "OSError: sold out"}),
    "fallback straight": Scenario(fallback_straight, start, "completed", "NonRetryable: sold out"),
    "gather": Scenario(together, start, "completed", ["A", 2, 2, "D", "NonRetryable: no"]),
    "batch that fails": Scenario(batch_that_fails, start, "failed", "OSError: no way"),
    "waits": Scenario(waits, start, "completed", [1, 2]),
    "wait decider": Scenario(wait_decider, start, "completed", "after"),
    "polling": Scenario(polling, start, "completed", 3),
    "signals": Scenario(signals, start_and_signal, "completed", [{"n": 1}, 10, {"n": 2}]),
    "signal decider": Scenario(signal_decider, start_and_signal, "completed", {"n": 3}),
    "signal or timeout": Scenario(signal_or_timeout, start_and_signal, "completed", {"n": 1}),
    "clean-up": Scenario(clean_up, start_and_cancel, "cancelled"),
    "clean-up decider": Scenario(clean_up_decider, start_and_cancel, "cancelled"),
    "canceled without clean-up": Scenario(never_cleans_up, start_and_cancel, "cancelled"),
    "forced": Scenario(waits, start_and_force, "cancelled"),
    "non-retryable": Scenario(non_retryable, start, "failed", "NonRetryable: wrong card"),
    "exhausted": Scenario(exhausted, start, "failed", "OSError: down"),
    "escaping exception": Scenario(escapes, start, "failed", "ValueError: can't go on with 7"),
    "failing decider": Scenario(fails, start, "failed", "no reason"),
}


# -- how the host resumes ------------------------------------------------------------------------


def again(engine: FlowEngine, clock: VirtualClock, host: Host) -> None:
    """Do the same once more, from the beginning."""
    host(engine, clock)


def served(engine: FlowEngine, clock: VirtualClock, host: Host) -> None:
    """Recover, as a process that starts does, and work off the queue; then go on."""
    engine.recover()
    FlowScheduler(engine).enqueue_due_work(clock.now())
    work(engine, clock)
    host(engine, clock)


RESUME = {"again": again, "recover": served}


class World:
    """One run of one scenario, with a fault at one append of it, or none."""

    def __init__(self, scenario: Scenario, kind: str, path: Path) -> None:
        path.mkdir()
        self.scenario = scenario
        self.kind = STORES[kind]
        self.place = Place(path, lambda name: None)
        self.clock = VirtualClock()
        self.steps = Steps()
        scenario.build(self.steps)
        self.store = self.kind.open(self.place)

    @contextmanager
    def engine(self, fails_when: Callable[[str, int], bool], after: bool = False) -> Generator[FlowEngine]:
        """An engine of a process of its own; at the end no thread of it is left."""
        store: Any = FaultyStore(self.store, fails_when, after)
        with FlowEngine(self.steps.runtime, store, clock=self.clock) as engine:
            try:
                yield engine
            finally:
                self.clock.settle()

    def reopen(self) -> None:
        if self.kind.persists:
            self.store.close()
            self.store = self.kind.open(self.place)

    def recorded(self) -> set[tuple[str, int]]:
        """The attempts whose end history knows."""
        if RUN not in self.store.list_run_ids():
            return set()
        found: set[tuple[str, int]] = set()
        attempts: dict[str, int] = {}
        for each in self.store.read(RUN):
            event = each.event.to_dict()
            if event["type"] == "step_started":
                attempts[event["step_id"]] = event["attempt"]
            elif event["type"] in ENDINGS:
                found.add((event["step_id"], attempts[event["step_id"]]))
        return found

    def end(self) -> End:
        history = self.store.read(RUN)
        assert [each.sequence for each in history] == list(range(1, len(history) + 1))
        assert len({each.event_id for each in history}) == len(history)
        projection = Projection.of(RUN, history)
        found = projection.snapshot()
        return End(
            found.status,
            plain(found.output if found.error is None else found.error),
            [subject(each.event.to_dict()) for each in history],
            projection.wakeups(),
        )


ENDINGS = ("step_completed", "step_retrying", "step_failed", "step_non_retryable")


@dataclass
class End:
    status: str
    result: Any
    events: list[tuple[Any, ...]]  # what happened to what
    wakeups: list[Any] = field(default_factory=list)


def subject(event: dict[str, Any]) -> tuple[Any, ...]:
    fields = ("type", "step_id", "wait_id", "signal_id", "attempt", "output", "error", "reason")
    nested = event.get("signal") or event.get("request") or {}
    return tuple(str(event.get(each, nested.get(each))) for each in fields)


def never(method: str, number: int) -> bool:
    return False


@pytest.fixture(params=list(SCENARIOS))
def scenario(request: pytest.FixtureRequest) -> Scenario:
    return SCENARIOS[request.param]


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """An empty directory, in memory if there is such a place: thousands of commits need not reach a disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as made:
        yield Path(made)


@pytest.fixture(params=["memory", "jsonl", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def without_fault(scenario: Scenario, path: Path) -> tuple[End, list[tuple[str, int]], int]:
    """How the run ends, which attempts are called, and how many appends that takes."""
    world = World(scenario, "memory", path)
    with world.engine(never) as engine:
        scenario.host(engine, world.clock)
    return world.end(), world.steps.calls, engine.store.calls["append"]  # type: ignore[attr-defined]


def faults(scenario: Scenario, kind: str, path: Path) -> Iterator[tuple[World, int, bool]]:
    """A world for each append and each side of it."""
    _, _, appends = without_fault(scenario, path / "plain")
    for number in range(1, appends + 1):
        for after in (False, True):
            world = World(scenario, kind, path / f"{number}-{after}")
            yield world, number, after
            world.store.close()


@pytest.mark.parametrize("name", SCENARIOS)
def test_without_a_fault_each_run_ends_as_it_should(name: str, path: Path) -> None:
    scenario = SCENARIOS[name]
    end, calls, _ = without_fault(scenario, path / "plain")
    assert (end.status, end.result, end.wakeups) == (scenario.status, scenario.result, [])
    assert len(set(calls)) == len(calls)
    assert len(set(end.events)) == len(end.events)


@pytest.mark.parametrize("resume", RESUME)
def test_a_crash_at_any_append_changes_nothing_about_the_end(
    scenario: Scenario, kind: str, resume: str, path: Path
) -> None:
    expected, calls, _ = without_fault(scenario, path / "expected")
    for world, number, after in faults(scenario, kind, path):
        where = f"fault {'after' if after else 'before'} append {number}"
        with world.engine(lambda method, n, at=number: method == "append" and n == at, after) as engine:
            try:
                scenario.host(engine, world.clock)
            except StoreError:
                pass
            assert engine.store.faults == 1, where  # type: ignore[attr-defined]
        world.reopen()
        recorded, before = world.recorded(), len(world.steps.calls)
        with world.engine(never) as engine:
            RESUME[resume](engine, world.clock, scenario.host)
            assert engine.failures() == [], where
        end = world.end()
        assert (end.status, end.result, end.wakeups) == (expected.status, expected.result, []), where
        assert sorted(end.events) == sorted(expected.events), where
        assert not recorded & set(world.steps.calls[before:]), where
        assert set(world.steps.calls) == set(calls), where


def test_an_engine_that_lives_on_after_a_fault_does_the_same(
    scenario: Scenario, kind: str, path: Path
) -> None:
    expected, calls, _ = without_fault(scenario, path / "expected")
    for world, number, after in faults(scenario, kind, path):
        where = f"fault {'after' if after else 'before'} append {number}"
        with world.engine(lambda method, n, at=number: method == "append" and n == at, after) as engine:
            try:
                scenario.host(engine, world.clock)
            except StoreError:
                pass
            recorded, before = world.recorded(), len(world.steps.calls)
            scenario.host(engine, world.clock)
        end = world.end()
        assert (end.status, end.result, end.wakeups) == (expected.status, expected.result, []), where
        assert sorted(end.events) == sorted(expected.events), where
        assert not recorded & set(world.steps.calls[before:]), where
        assert set(world.steps.calls) == set(calls), where


def test_a_fault_at_each_append_in_turn_does_not_keep_a_run_from_its_end(
    scenario: Scenario, path: Path
) -> None:
    """Every first try of an append is lost; a new process goes on each time."""
    expected, _, appends = without_fault(scenario, path / "expected")
    world = World(scenario, "memory", path / "world")
    for crash in range(1, 4 * appends):
        try:
            with world.engine(lambda method, n: method == "append" and n == 2) as engine:
                scenario.host(engine, world.clock)
            break
        except StoreError:
            assert crash < 3 * appends
    end = world.end()
    assert (end.status, end.result) == (expected.status, expected.result)
    assert sorted(end.events) == sorted(expected.events)


def test_the_clock_may_have_gone_on_while_nobody_drove(path: Path) -> None:
    """What was due meanwhile is done at once; what was recorded keeps its instants."""
    world = World(SCENARIOS["waits"], "memory", path / "world")
    with world.engine(lambda method, n: method == "append" and n == 3) as engine, pytest.raises(StoreError):
        start(engine, world.clock)
    world.clock.advance(timedelta(days=1).total_seconds())
    with world.engine(never) as engine:
        start(engine, world.clock)
        found = engine.snapshot(RUN)
    assert found.status == "completed"
    assert [found.waits[each].resume_at for each in ("nap", "until", "past")] == [at(5), at(60), at(1)]


# -- a fault at any call of store or queue ---------------------------------------------------------


def serve_by_hand(engine: FlowEngine, clock: VirtualClock) -> None:
    """Submit, and do in turn what a scheduler and a worker do, until nothing is left to do."""
    scheduler = FlowScheduler(engine)
    engine.submit("flow", {"n": 1}, run_id=RUN)
    while True:
        work(engine, clock)
        due = scheduler.next_scheduled_wakeup()
        if due is None:
            return
        clock.advance(max((due - clock.now()).total_seconds(), 0.0))
        scheduler.enqueue_due_work(clock.now())


class Countdown:
    """Lets one of all calls of a store and of a queue fail, the n-th."""

    def __init__(self, fails_at: int | None) -> None:
        self.fails_at = fails_at
        self.calls = 0
        self.last = ""

    def __call__(self, method: str, number: int) -> bool:
        if method == "close":
            return False
        self.calls += 1
        if self.calls == self.fails_at:
            self.last = method
        return self.calls == self.fails_at


def served_with(world: World, queue: MemoryWorkQueue, count: Countdown, after: bool) -> FlowEngine:
    store: Any = FaultyStore(world.store, count, after)
    line: Any = FaultyStore(queue, count, after)
    return FlowEngine(world.steps.runtime, store, queue=line, clock=world.clock)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["linear", "retries", "gather", "waits", "exhausted"])
def test_a_crash_at_any_call_of_store_or_queue_loses_no_run(name: str, after: bool, path: Path) -> None:
    """Between due work that was found and its task, between the task and its lease, before its ack, ..."""
    scenario = SCENARIOS[name]
    plain_world = World(scenario, "memory", path / "plain")
    count = Countdown(None)
    with served_with(plain_world, MemoryWorkQueue(clock=plain_world.clock), count, after) as engine:
        serve_by_hand(engine, plain_world.clock)
        plain_world.clock.settle()
    expected, calls = plain_world.end(), count.calls
    assert (expected.status, expected.result) == (scenario.status, scenario.result)
    met: set[str] = set()
    for number in range(1, calls + 1):
        world = World(scenario, "memory", path / str(number))
        queue, count = MemoryWorkQueue(clock=world.clock), Countdown(number)
        with served_with(world, queue, count, after) as engine:
            try:
                serve_by_hand(engine, world.clock)
            except StoreError:
                pass
            world.clock.settle()
        where = f"fault {'after' if after else 'before'} call {number}, {count.last}"
        met.add(count.last)
        recorded, before = world.recorded(), len(world.steps.calls)
        world.clock.advance(30.0)  # the lease of whoever is gone ends
        with served_with(world, queue, Countdown(None), after) as engine:
            queue.reclaim_expired()
            engine.recover()
            serve_by_hand(engine, world.clock)
            world.clock.settle()
        end = world.end()
        assert (end.status, end.result, end.wakeups) == (expected.status, expected.result, []), where
        assert sorted(end.events) == sorted(expected.events), where
        assert not recorded & set(world.steps.calls[before:]), where
        assert (queue.pending(), queue.seconds_to_next(), queue.dead_letters()) == (0, None, []), where
    assert met >= {"append", "read", "enqueue", "lease", "ack", "next_scheduled_wakeup"}
