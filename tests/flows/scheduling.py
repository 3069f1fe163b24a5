"""What the tests of schedules share: bodies that note when they ran, and workflows of one state."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import Enum, auto

from supervisor import BackoffPolicy
from supervisor.flows import FlowRun, Resources, RunningScheduler, Workflow
from supervisor.flows.lifecycle import FlowEvent
from supervisor.testing import EventRecorder, VirtualClock

BEGIN = datetime(2000, 1, 1, tzinfo=UTC)  # what a virtual clock shows at first
EXACT = BackoffPolicy(initial=1.0, multiplier=2.0, max_delay=60.0, jitter=0.0)


class S(Enum):
    WORK = auto()
    MORE = auto()
    DONE = auto()


def at(seconds: float) -> datetime:
    """The instant `seconds` after the begin of virtual time."""
    return BEGIN + timedelta(seconds=seconds)


def one_state(task: Callable[..., object], resources: Resources | None = None) -> Workflow:
    """A workflow that calls `task` once."""

    def work(res: Resources, run: FlowRun) -> S:
        task()
        return S.DONE

    return Workflow(resources).register(S.WORK, work).add_exit_state(S.DONE)


class Body:
    """A flow that notes when each run started. `steps`: how long a run takes, or what it raises.

    It goes through `steps`, one a run, and stays at the last.
    """

    def __init__(self, clock: VirtualClock, *steps: float | BaseException) -> None:
        self.clock = clock
        self.steps = steps or (0.0,)
        self.starts: list[float] = []
        self.inside = self.most = 0

    def __call__(self) -> None:
        step = self.steps[min(len(self.starts), len(self.steps) - 1)]
        self.starts.append(self.clock.monotonic())
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            if isinstance(step, BaseException):
                raise step
            if step:
                self.clock.sleep(step)
        finally:
            self.inside -= 1


class Deaf:
    """A run that no request to stop can move; `release` lets it go."""

    def __init__(self, clock: VirtualClock) -> None:
        self._latch = clock.latch()
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        self._latch.wait()

    def release(self) -> None:
        self._latch.open()


class Traced:
    """A resource that notes its set-up and tear-down in a common log."""

    def __init__(self, name: str, log: list[str], *, fails: str = "") -> None:
        self.name, self.log, self.fails = name, log, fails

    def setup(self) -> None:
        self._note("setup")

    def teardown(self) -> None:
        self._note("teardown")

    def _note(self, what: str) -> None:
        self.log.append(f"{what} {self.name}")
        if self.fails == what:
            raise ValueError(f"{what} of {self.name} fails")


def heeds(run_or_res: object, run: FlowRun) -> None:
    """A run that goes on until it is asked to stop."""
    run.token.wait()


def story(recorder: EventRecorder, flow_id: str) -> list[str]:
    """The labels of what happened to one flow, in order."""
    return [event.kind for event in of_flow(recorder, flow_id)]


def of_flow(recorder: EventRecorder, flow_id: str) -> list[FlowEvent]:
    """What happened to one flow, in order."""
    return [event for event in recorder.events if isinstance(event, FlowEvent) and event.flow_id == flow_id]


def kind_of(running: RunningScheduler, flow_id: str) -> str:
    """The name of a flow's status."""
    info = running.status(flow_id)
    assert info is not None
    return type(info.status).__name__


Start = Callable[..., RunningScheduler]
