"""Storms: many threads add, remove, cancel, submit and shut down at once, and the promises hold.

Each seed is another program and another interleaving, which the same seed repeats exactly.
`SUPERVISOR_SEEDS=2000` or `SUPERVISOR_SEEDS=137-138` runs other seeds than the first sixty.
"""

from __future__ import annotations

import os
import random
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from supervisor import (
    Admission,
    BackoffPolicy,
    Canceled,
    CapacityExceeded,
    Event,
    EventsDropped,
    Fatal,
    GraceExceeded,
    OutcomeKind,
    ShuttingDown,
    Supervisor,
    SupervisorConfig,
    TaskAlreadyExists,
    TaskContext,
    TaskHandle,
    TaskSpec,
)
from supervisor.testing import EventRecorder, VirtualClock

CALLERS, CALLS, NAMES, SLOTS = 5, 12, 6, 3


def seeds() -> range:
    first, _, last = os.environ.get("SUPERVISOR_SEEDS", "60").rpartition("-")
    return range(int(first or 0), int(last))


# The story of a task, one letter for each event.
LETTERS = {
    "task_added": "A",
    "task_rejected": "X",
    "task_cancel_requested": "c",
    "attempt_starting": "s",
    "attempt_succeeded": "+",
    "attempt_failed": "-",
    "attempt_timed_out": "t",
    "attempt_overrunning": "o",
    "attempt_returned_late": "l",
    "attempt_canceled": "!",
    "backoff_scheduled": "b",
    "task_finished": "F",
    "task_removed": "R",
}
ATTEMPT = r"sc?(?:\+|-|!|tc?o*c?l?c?)c?"
STORY = re.compile(rf"X|cFR|Ac?(?:{ATTEMPT}b?c?)*(?:sc?t?c?o*c?)?FR")


class Storm:
    """One random program on one supervisor."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.clock = VirtualClock(seed)
        self.recorder = EventRecorder()
        self.limit = draw.choice([None, 1, 3])
        self.supervisor = Supervisor(
            SupervisorConfig(
                max_concurrent=self.limit,
                max_tasks=draw.choice([None, None, 4]),
                slot_capacity=draw.choice([0, 2, 100]),
                grace=draw.choice([0.5, 5.0]),
                event_capacity=10**6,
                subscriber_capacity=10**6,
            ),
            clock=self.clock,
            subscribers=[self.recorder],
            rng=random.Random(seed),
        )
        self.handles: list[TaskHandle] = []
        self.claims: Counter[int] = Counter()  # True results of remove and cancel, by id
        self.inside: Counter[str] = Counter()  # bodies in progress, by task and in all
        self.stuck = self.clock.latch()
        self.refused = 0

    def body(self, ctx: TaskContext, seconds: float, ending: str) -> str:
        self.inside[ctx.name] += 1
        self.inside["all"] += 1
        try:
            assert self.inside[ctx.name] == 1, "two attempts of one name overlap"
            assert self.limit is None or self.inside["all"] <= self.limit, "too many attempts at once"
            match ending:
                case "deaf":
                    self.clock.sleep(seconds)
                case "stuck":
                    self.stuck.wait(20.0)
                case _:
                    ctx.wait(seconds)
            match ending:
                case "fail":
                    raise ValueError("fail")
                case "fatal":
                    raise Fatal("fatal")
                case "canceled":
                    raise Canceled
                case "panic":
                    raise GeneratorExit
                case _:
                    return ending
        finally:
            self.inside[ctx.name] -= 1
            self.inside["all"] -= 1

    def spec(self, draw: random.Random) -> TaskSpec:
        ending = draw.choice(["ok", "ok", "fail", "fatal", "canceled", "panic", "deaf", "stuck"])
        settings = {
            "args": (draw.choice([0.0, 0.1, 1.0, 3.0]), ending),
            "timeout": draw.choice([None, None, 0.5]),
        }
        if settings["timeout"]:
            settings["overrun"] = draw.choice([None, 0.5])
        name, body = f"t{draw.randrange(NAMES)}", self.body
        match draw.choice(["once", "restartable", "periodic"]):
            case "once":
                return TaskSpec.once(name, body, **settings)
            case "restartable":
                backoff = draw.choice([None, BackoffPolicy(initial=0.1)])
                return TaskSpec.restartable(name, body, backoff=backoff, max_retries=3, **settings)
            case _:
                return TaskSpec.periodic(name, body, 0.3, max_retries=2, **settings)

    def call(self, draw: random.Random) -> None:
        supervisor, handles = self.supervisor, self.handles
        target = draw.choice(handles) if handles and draw.random() < 0.5 else f"t{draw.randrange(NAMES)}"
        known = target if isinstance(target, TaskHandle) else supervisor.get(target)
        match draw.choice(["add", "add", "add_all", "submit", "submit", "remove", "cancel", "pause", "look"]):
            case "add":
                handles.append(supervisor.add(self.spec(draw)))
            case "add_all":
                handles.extend(supervisor.add_all([self.spec(draw) for _ in range(3)]))
            case "submit":
                slot, admission = f"s{draw.randrange(SLOTS)}", draw.choice(list(Admission))
                handles.append(supervisor.submit(self.spec(draw), slot=slot, admission=admission))
            case "remove" if known is not None:
                self.claims[known.id] += supervisor.remove(known)
            case "cancel" if known is not None:
                self.claims[known.id] += supervisor.cancel(known)
                assert known.done()
                if known.outcome is not None and known.outcome.kind is not OutcomeKind.FORCE_ABORTED:
                    assert supervisor.get(known.id) is None
            case "pause":
                self.clock.sleep(draw.choice([0.0, 0.05, 0.5, 2.0]))
            case _:
                ids = [info.id for info in supervisor.tasks()]
                assert ids == sorted(ids)

    def caller(self, seed: int, shuts_down: bool) -> None:
        draw = random.Random(seed)
        for _ in range(CALLS):
            try:
                self.call(draw)
            except (TaskAlreadyExists, CapacityExceeded):
                self.refused += 1
            except ShuttingDown:
                return
        if shuts_down:
            try:
                self.supervisor.shutdown(draw.choice([None, 0.0, 1.0]))
            except GraceExceeded:
                pass

    def run(self) -> None:
        base = self.draw.randrange(10**9)
        threads = [
            self.clock.spawn(
                lambda n=n: self.caller(base + n, shuts_down=n == 0 and base % 2 == 0), f"caller {n}"
            )
            for n in range(CALLERS)
        ]
        for thread in threads:
            thread.join()
        self.clock.advance(self.draw.choice([0.0, 1.0]))
        try:
            self.supervisor.shutdown()
        except GraceExceeded:
            pass
        self.stuck.open()
        self.clock.advance(60.0)

    def check(self) -> None:
        events = self.recorder.events
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        outcomes = {handle.id: handle.outcome for handle in self.handles}
        assert all(outcome is not None for outcome in outcomes.values())
        assert self.supervisor.tasks() == []
        assert self.supervisor.wait(timeout=0) is True
        assert sum(self.inside.values()) == 0
        check_stories(events, {id: outcome.kind for id, outcome in outcomes.items() if outcome is not None})
        assert all(count <= 1 for count in self.claims.values()), "claimed twice"
        asked = Counter(event.task_id for event in self.recorder.of("task_cancel_requested"))
        assert all(asked[id] == 1 for id, count in self.claims.items() if count)
        permits = self.supervisor._running.permits
        if permits is not None:
            assert permits._free == self.limit, "a permit was lost"
            assert not permits._line


def check_stories(events: list[Event], outcomes: dict[int, OutcomeKind]) -> None:
    """Each task has one story that keeps its order, and ends as its outcome says."""
    stories: dict[int, str] = {}
    for event in events:
        id = getattr(event, "task_id", None)
        if id is not None:
            stories[id] = stories.get(id, "") + LETTERS[event.kind]
    for event in events:
        if event.kind == "task_finished":
            assert outcomes[event.task_id] is event.outcome
    for id, story in stories.items():
        assert STORY.fullmatch(story), f"task #{id}: {story}"
        assert story.count("c") <= 1, f"task #{id}: {story}"
        assert (story == "X") == (outcomes[id] is OutcomeKind.REJECTED), f"task #{id}: {story}"
    assert set(outcomes) == set(stories)


@pytest.mark.parametrize("seed", seeds())
def test_every_promise_holds_in_a_storm(seed: int) -> None:
    storm = Storm(seed)
    storm.run()
    storm.check()


def test_the_same_seed_gives_the_same_storm() -> None:
    def story(seed: int) -> list[tuple[object, ...]]:
        storm = Storm(seed)
        storm.run()
        first = min(handle.id for handle in storm.handles)
        return [
            (
                event.kind,
                event.at,
                (getattr(event, "task_id", None) or first) - first,
                getattr(event, "task", ""),
            )
            for event in storm.recorder.events
        ]

    assert story(7) == story(7)
    assert story(7) != story(8)


# One kind of storm each


def on_threads(clock: VirtualClock, call: Callable[[int], object], count: int) -> list[object]:
    """Call `call(n)` on `count` threads of the clock at once; return results and exceptions in order."""
    results: list[object] = [None] * count

    def run(n: int) -> None:
        try:
            results[n] = call(n)
        except Exception as error:
            results[n] = error

    for thread in [clock.spawn(lambda n=n: run(n), f"caller {n}") for n in range(count)]:
        thread.join()
    return results


def stays(ctx: TaskContext) -> None:
    ctx.wait()


@pytest.fixture(params=range(3))
def stormy(request: pytest.FixtureRequest) -> Iterator[tuple[VirtualClock, Supervisor, EventRecorder]]:
    clock, recorder = VirtualClock(request.param), EventRecorder()
    with Supervisor(clock=clock, subscribers=[recorder]) as supervisor:
        yield clock, supervisor, recorder


Stormy = tuple[VirtualClock, Supervisor, EventRecorder]


def test_all_who_add_at_once_get_ids_of_their_own_and_all_who_remove_succeed(stormy: Stormy) -> None:
    clock, supervisor, _ = stormy
    handles = on_threads(clock, lambda n: supervisor.add(TaskSpec.once(f"t{n}", stays)), 64)
    assert len({handle.id for handle in handles if isinstance(handle, TaskHandle)}) == 64
    assert len(supervisor.tasks()) == 64
    assert on_threads(clock, lambda n: supervisor.remove(f"t{n}"), 64) == [True] * 64
    assert supervisor.wait()
    assert supervisor.tasks() == []


def test_of_all_who_add_one_name_one_gets_it(stormy: Stormy) -> None:
    clock, supervisor, recorder = stormy
    results = on_threads(clock, lambda _: supervisor.add(TaskSpec.once("t", stays)), 32)
    assert Counter(type(each) for each in results) == {TaskHandle: 1, TaskAlreadyExists: 31}
    clock.settle()
    assert len(recorder.of("task_added")) == 1
    assert len(recorder.of("task_rejected")) == 31
    assert len(supervisor.tasks()) == 1


def test_of_all_who_add_and_remove_nothing_is_left(stormy: Stormy) -> None:
    clock, supervisor, _ = stormy
    results = on_threads(clock, lambda n: supervisor.add(TaskSpec.once(f"t{n}", stays)).remove(), 64)
    assert results == [True] * 64
    assert supervisor.wait()
    assert supervisor.tasks() == []


@pytest.mark.parametrize("call", ["remove", "cancel"])
def test_of_all_who_stop_one_task_one_has_claimed_it(stormy: Stormy, call: str) -> None:
    clock, supervisor, _ = stormy
    handle = supervisor.add(TaskSpec.once("t", stays))
    assert sorted(on_threads(clock, lambda _: getattr(handle, call)(), 16)) == [False] * 15 + [True]  # type: ignore[type-var]


def test_all_who_cancel_their_own_task_succeed(stormy: Stormy) -> None:
    clock, supervisor, _ = stormy
    supervisor.add_all(TaskSpec.once(f"t{n}", stays) for n in range(48))
    assert on_threads(clock, lambda n: supervisor.cancel(f"t{n}"), 48) == [True] * 48
    assert supervisor.tasks() == []


def test_adds_that_race_a_shutdown_are_run_or_refused(stormy: Stormy) -> None:
    clock, supervisor, _ = stormy

    def call(n: int) -> object:
        return supervisor.shutdown() if n == 20 else supervisor.add(TaskSpec.once(f"t{n}", stays))

    results = on_threads(clock, call, 48)
    assert {type(each) for each in results} <= {TaskHandle, ShuttingDown, type(None)}
    for each in results:
        if isinstance(each, TaskHandle):
            assert each.wait(timeout=0).kind is OutcomeKind.CANCELED
    assert supervisor.tasks() == []


def test_of_many_replacements_of_one_slot_one_runs_in_the_end(stormy: Stormy) -> None:
    clock, supervisor, _ = stormy
    results = on_threads(
        clock,
        lambda n: supervisor.submit(TaskSpec.once(f"t{n}", stays), slot="s", admission=Admission.REPLACE),
        32,
    )
    clock.settle()
    assert [info.state for info in supervisor.tasks()] == ["running"]
    ended = [each.outcome for each in results if isinstance(each, TaskHandle) and each.outcome is not None]
    assert {outcome.kind for outcome in ended} <= {OutcomeKind.CANCELED, OutcomeKind.REJECTED}
    assert len(ended) == 31


def test_of_many_drops_into_one_slot_one_runs(stormy: Stormy) -> None:
    clock, supervisor, _ = stormy
    results = on_threads(
        clock,
        lambda n: (
            supervisor.submit(
                TaskSpec.once(f"t{n}", stays), slot="s", admission=Admission.DROP_IF_RUNNING
            ).outcome
        ),
        32,
    )
    assert results.count(None) == 1
    assert [info.state for info in supervisor.tasks()] in (["running"], ["waiting"])


@pytest.mark.parametrize("seed", range(20))
def test_what_subscribers_do_to_each_other_is_counted_to_the_last_event(seed: int) -> None:
    draw, clock, recorder = random.Random(seed), VirtualClock(seed), EventRecorder()
    slow: list[Event] = []
    failing: list[Event] = []
    passing: list[Event] = []
    supervisor = Supervisor(clock=clock, subscribers=[recorder])

    def is_slow(event: Event) -> None:
        clock.sleep(draw.choice([0.0, 0.3]))
        slow.append(event)

    def fails(event: Event) -> None:
        failing.append(event)
        if draw.random() < 0.5:
            raise ValueError("deaf")

    def passes(event: Event) -> None:
        passing.append(event)
        supervisor.subscribe(lambda _: None).close()

    supervisor.subscribe(is_slow, name="slow", capacity=draw.choice([1, 4]), dedicated=draw.random() < 0.5)
    supervisor.subscribe(fails, name="failing", dedicated=draw.random() < 0.5)
    supervisor.subscribe(passes, dedicated=draw.random() < 0.5)

    def call(n: int) -> None:
        for _ in range(5):
            clock.sleep(draw.choice([0.0, 0.1]))
            supervisor.add(TaskSpec.once(f"t{n}", lambda: None)).wait()

    on_threads(clock, call, 4)
    supervisor.shutdown()
    for heard in (recorder.events, slow, failing, passing):
        seqs = [event.seq for event in heard]
        assert seqs == sorted(set(seqs))
    everything = {event.seq: event for event in [*recorder.events, *slow, *failing]}
    assert sorted(everything) == list(range(1, len(everything) + 1))
    assert passing == recorder.events
    dropped = sum(event.dropped for event in slow if isinstance(event, EventsDropped))
    assert dropped + sum(not isinstance(event, EventsDropped) for event in slow) == len(recorder.events)
    assert len(recorder.of("task_finished")) == 20


# The machine's own threads, switched as often as it can


@pytest.fixture
def restless() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.usefixtures("restless")
def test_every_promise_holds_on_real_threads_that_switch_all_the_time() -> None:
    recorder = EventRecorder()
    handles: list[TaskHandle] = []
    config = SupervisorConfig(max_concurrent=8, event_capacity=10**6, subscriber_capacity=10**6)
    with Supervisor(config, subscribers=[recorder]) as supervisor:

        def body(ctx: TaskContext) -> int:
            if ctx.attempt < 2:
                raise ValueError("again")
            return ctx.id

        def caller(n: int) -> None:
            for k in range(25):
                spec = TaskSpec.restartable(f"t{n}-{k}", body, backoff=None)
                match k % 4:
                    case 0:
                        handle = supervisor.add(spec)
                    case 1:
                        handle = supervisor.submit(spec, slot=f"s{n % 2}")
                    case 2:
                        handle = supervisor.add(TaskSpec.once(spec.name, stays))
                        assert supervisor.cancel(handle) is True
                        assert supervisor.get(spec.name) is None
                    case _:
                        handle = supervisor.add(TaskSpec.periodic(spec.name, stays, 0.001))
                        assert handle.remove() is True
                handles.append(handle)

        threads = [threading.Thread(target=caller, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert supervisor.wait(30.0)
        assert supervisor.tasks() == []
    outcomes = {handle.id: handle.wait(0).kind for handle in handles}
    assert len(outcomes) == 100
    assert Counter(outcomes.values()) == {OutcomeKind.COMPLETED: 52, OutcomeKind.CANCELED: 48}
    check_stories(recorder.events, outcomes)
    assert [event.seq for event in recorder.events] == list(range(1, len(recorder.events) + 1))


@pytest.mark.usefixtures("restless")
def test_no_event_is_lost_uncounted_on_real_threads_that_switch_all_the_time() -> None:
    heard: list[Event] = []
    lossy: list[Event] = []
    with Supervisor(SupervisorConfig(event_capacity=16)) as supervisor:
        reader = threading.Thread(target=lambda: heard.extend(supervisor.events()))
        ready = supervisor.events()
        reader.start()
        supervisor.subscribe(lossy.append, capacity=2)

        def body(ctx: TaskContext) -> None:
            if ctx.attempt < 50:
                raise ValueError("again")

        supervisor.add_all(TaskSpec.restartable(f"t{n}", body, backoff=None) for n in range(6))
        assert supervisor.wait(30.0)
    reader.join()
    seqs = sorted({event.seq for event in [*heard, *ready, *lossy]})
    assert seqs == list(range(1, len(seqs) + 1))
    bus = sum(event.dropped for event in heard if isinstance(event, EventsDropped))
    told = Counter(event.kind for event in heard)
    of_attempts = told["attempt_starting"] + told["attempt_failed"] + told["attempt_succeeded"]
    assert of_attempts + told["task_added"] + bus == 6 * (2 * 50 + 1)
    assert told["task_finished"] == told["task_removed"] == 6
    own = sum(
        event.dropped for event in lossy if isinstance(event, EventsDropped) and event.subscriber != "bus"
    )
    assert own + sum(getattr(event, "subscriber", "bus") == "bus" for event in lossy) == len(list(heard))
