"""Readers that hammer the status while flows run, fail, trip and are stopped: no step in between is seen.

Each seed is another program and another interleaving, which the same seed repeats exactly.
`SUPERVISOR_SEEDS=2000` or `SUPERVISOR_SEEDS=137-138` runs other seeds than the first thirty.
"""

from __future__ import annotations

import os
import random
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from supervisor import BackoffPolicy
from supervisor.flows import (
    Backoff,
    Completed,
    FlowAlreadyRunning,
    FlowInfo,
    FlowRun,
    FlowTripped,
    Idle,
    Resources,
    Running,
    RunningScheduler,
    Scheduler,
    SchedulerStopped,
    StopTimeout,
    Tripped,
    Workflow,
)
from supervisor.flows.lifecycle import FlowEvent
from supervisor.testing import EventRecorder, VirtualClock
from tests.flows.scheduling import S, Traced

FLOWS, READERS, CALLERS, CALLS = 8, 3, 3, 15
LIMIT = 3

# The story of a flow, one letter for each event, without what is planned, skipped or reset.
LETTERS = {
    "flow_started": "s",
    "flow_succeeded": "+",
    "flow_failed": "-",
    "flow_backoff": "b",
    "flow_tripped": "t",
    "flow_canceled": "!",
}
STORY = re.compile(r"(?:s(?:\+|-b|-t|!))*s?")


def seeds() -> range:
    first, _, last = os.environ.get("SUPERVISOR_SEEDS", "30").rpartition("-")
    return range(int(first or 0), int(last))


def check_snapshot(info: FlowInfo, limit: int | None) -> None:
    """Hold what one reader saw at one moment to the rules that bind the fields together."""
    streak, window = info.failure_streak, info.next_eligible
    match info.status:
        case Idle():
            assert limit is None or streak < limit
        case Running(started):
            assert started == info.last_run
            assert info.run_count >= 1
            assert limit is None or streak < limit
        case Completed(ended):
            assert (streak, window) == (0, None)
            assert info.last_run is not None
            assert ended >= info.last_run
        case Backoff(until, count, text):
            assert (until, count) == (window, streak)
            assert count >= 1
            assert limit is None or count < limit
            assert "as drawn" in text
        case Tripped(count, text):
            assert (count, window) == (streak, None)
            assert count == limit
            assert "as drawn" in text
    if streak == 0:
        assert window is None
    assert (info.run_count == 0) == (info.last_run is None)


class Reader:
    """Looks again and again, and holds each look to the one before."""

    def __init__(self, running: RunningScheduler, limits: dict[str, int | None]) -> None:
        self.running, self.limits = running, limits
        self.seen: dict[str, FlowInfo] = {}
        self.looks = 0
        self.kinds: set[str] = set()

    def look(self) -> None:
        infos = (
            self.running.list()
            if self.looks % 2
            else [info for id in self.limits if (info := self.running.status(id)) is not None]
        )
        assert [info.id for info in infos] == list(self.limits)
        for info in infos:
            self.looks += 1
            check_snapshot(info, self.limits[info.id])
            self.kinds.add(type(info.status).__name__)
            before = self.seen.get(info.id)
            if before is not None:
                assert info.run_count >= before.run_count
                assert info.skipped >= before.skipped
                assert before.last_run is None or (
                    info.last_run is not None and info.last_run >= before.last_run
                )
                grew = info.failure_streak - before.failure_streak
                assert grew <= info.run_count - before.run_count + isinstance(before.status, Running)
            self.seen[info.id] = info


class Storm:
    """One random program on one scheduler."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.clock = clock = VirtualClock(seed)
        self.recorder = EventRecorder()
        self.log: list[str] = []
        self.most: dict[str, int] = defaultdict(int)
        self.runs: dict[str, int] = defaultdict(int)
        self.inside: dict[str, int] = defaultdict(int)
        self.limits: dict[str, int | None] = {}
        self.accepted: dict[str, int] = defaultdict(int)
        scheduler = Scheduler(
            clock=clock, rng=draw, subscribers=[self.recorder], workers=draw.choice([None, None, 1, 3])
        )
        for number in range(FLOWS):
            id = f"{number}"
            flow = self.body(id)
            resources = Resources(r=Traced(id, self.log))
            workflow = Workflow(resources).register(S.WORK, flow).add_exit_state(S.DONE)
            kind = draw.choice(["every", "cron", "manual"])
            if kind == "every":
                scheduler.every(id, workflow, S.WORK, draw.choice([0.1, 1.0, 7.0]))
            elif kind == "cron":
                scheduler.cron(id, workflow, S.WORK, draw.choice(["* * * * * *", "*/3 * * * * *"]))
            else:
                scheduler.manual(id, workflow, S.WORK)
            self.limits[id] = draw.choice([None, 1, LIMIT])
            scheduler.set_backoff(
                id,
                BackoffPolicy(initial=draw.choice([0.0, 0.1, 2.0]), max_delay=5.0, jitter=0.5),
                streak_limit=self.limits[id],
            )
        self.running = scheduler.start()
        self.readers = [Reader(self.running, self.limits) for _ in range(READERS)]

    def body(self, id: str) -> Callable[[Resources, FlowRun], S]:
        draw, clock = self.draw, self.clock

        def run(res: Resources, run: FlowRun) -> S:
            self.runs[id] += 1
            self.inside[id] += 1
            self.most[id] = max(self.most[id], self.inside[id])
            try:
                what = draw.choice(["ends", "fails", "heeds", "sleeps", "looks"])
                if what == "heeds":
                    run.token.sleep(draw.choice([0.0, 0.5, 5.0]))
                elif what == "sleeps":
                    clock.sleep(draw.choice([0.1, 1.0, 3.0]))
                elif what == "looks":
                    info = self.running.status(id)
                    assert info is not None
                    assert isinstance(info.status, Running)
                if what == "fails" or draw.random() < 0.3:
                    raise ValueError("as drawn")
                return S.DONE
            finally:
                self.inside[id] -= 1

        return run

    def run(self) -> None:
        clock, draw, running = self.clock, self.draw, self.running
        self.stopped: list[object] = []

        def read(reader: Reader) -> None:
            for _ in range(40):
                reader.look()
                clock.sleep(draw.choice([0.0, 0.05, 0.3]))

        def call(_: int) -> None:
            for _ in range(CALLS):
                clock.sleep(draw.choice([0.0, 0.1, 1.0]))
                id = f"{draw.randrange(FLOWS)}"
                try:
                    match draw.choice(["trigger", "trigger", "reset", "pause", "resume", "cancel"]):
                        case "trigger":
                            running.trigger(id)
                            self.accepted[id] += 1
                        case "reset":
                            running.reset_flow(id)
                        case "pause":
                            running.pause(id)
                        case "resume":
                            running.resume(id)
                        case _:
                            running.cancel_flow(id)
                except (FlowAlreadyRunning, FlowTripped, SchedulerStopped):
                    pass

        def stop(_: int) -> None:
            clock.sleep(draw.choice([4.0, 8.0, 12.0]))
            try:
                running.stop(timeout=draw.choice([0.0, 1.0, 30.0]))
                self.stopped.append(None)
            except StopTimeout as error:
                self.stopped.append(str(error))

        jobs: list[Callable[[], None]] = [lambda reader=reader: read(reader) for reader in self.readers]
        jobs += [lambda n=n: call(n) for n in range(CALLERS)]
        jobs += [lambda n=n: stop(n) for n in range(2)]
        for thread in [clock.spawn(job, f"job {n}") for n, job in enumerate(jobs)]:
            thread.join()
        self.infos = running.list()
        clock.advance(30.0)  # deaf runs come back

    def check(self) -> None:
        assert len(set(self.stopped)) == 1
        for reader in self.readers:
            reader.look()
        assert [line for line in self.log if line.startswith("setup")] == [f"setup {n}" for n in range(FLOWS)]
        torn = [line for line in self.log if line.startswith("teardown")]
        assert torn == [f"teardown {n}" for n in reversed(range(FLOWS))]
        assert set(self.most.values()) <= {1}
        stories: dict[str, str] = defaultdict(str)
        numbers: dict[str, list[int]] = defaultdict(list)
        for event in self.recorder.events:
            if isinstance(event, FlowEvent) and event.kind in LETTERS:
                stories[event.flow_id] += LETTERS[event.kind]
                if event.kind == "flow_started":
                    numbers[event.flow_id].append(event.run)  # type: ignore[attr-defined]
        for info in self.infos:
            story = stories[info.id]
            assert STORY.fullmatch(story), (info.id, story)
            assert numbers[info.id] == list(range(1, info.run_count + 1))
            assert self.runs[info.id] <= info.run_count
            assert self.accepted[info.id] <= info.run_count
            assert not story.endswith("s") or self.stopped[0] is not None
        skips = defaultdict(int)
        for skip in self.recorder.of("flow_skipped"):
            skips[skip.flow_id] += 1
        assert {info.id: info.skipped for info in self.infos if info.skipped} == dict(skips)


@pytest.mark.parametrize("seed", seeds())
def test_every_look_is_a_whole_one_in_a_storm(seed: int) -> None:
    storm = Storm(seed)
    storm.run()
    storm.check()


def test_the_same_seed_gives_the_same_storm() -> None:
    def story(seed: int) -> list[tuple[object, ...]]:
        storm = Storm(seed)
        storm.run()
        return [(event.kind, event.at, getattr(event, "flow_id", "")) for event in storm.recorder.events]

    assert story(7) == story(7) != story(8)


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
def test_on_real_threads_that_switch_all_the_time_every_look_is_a_whole_one() -> None:
    flows = 12
    left = {f"{n}": 60 for n in range(flows)}
    done = threading.Event()

    def body(id: str) -> Callable[[], None]:
        draw = random.Random(id)

        def run() -> None:
            left[id] -= 1
            if left[id] <= 0 and all(rest <= 0 for rest in left.values()):
                done.set()
            if draw.random() < 0.5:
                raise ValueError("as drawn")

        return run

    scheduler = Scheduler()
    for id in left:
        scheduler.every(id, body(id), interval=1e-4)
        scheduler.set_backoff(id, BackoffPolicy(initial=0.0, max_delay=0.001, jitter=0.5))
    faults: list[BaseException] = []
    with scheduler.start() as running:
        readers = [Reader(running, dict.fromkeys(left)) for _ in range(4)]

        def read(reader: Reader) -> None:
            try:
                while not done.is_set():
                    reader.look()
            except BaseException as error:
                faults.append(error)
                done.set()

        threads = [threading.Thread(target=read, args=(reader,)) for reader in readers]
        for thread in threads:
            thread.start()
        assert done.wait(20.0)
        for thread in threads:
            thread.join()
    assert faults == []
    assert all(reader.looks > 100 for reader in readers)
    assert {"Running", "Completed", "Backoff"} >= set().union(*(reader.kinds for reader in readers)) - {
        "Idle"
    }
    assert all(rest <= 0 for rest in left.values())
