"""What the tests of the engine share: a runtime whose steps write down their calls, and looks at histories."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from supervisor.durable import FlowEngine, FlowRuntime, FlowWorker, StepInvocation
from supervisor.durable.history import Envelope, FlowEvent
from supervisor.testing import VirtualClock

START = datetime(2000, 1, 1, tzinfo=UTC)  # what a virtual clock shows at first


def at(seconds: float) -> datetime:
    """So many seconds after the start of the virtual clock."""
    return START + timedelta(seconds=seconds)


class Steps:
    """A runtime with steps that write down which attempt of which step was called."""

    def __init__(self) -> None:
        self.runtime = FlowRuntime()
        self.calls: list[tuple[str, int]] = []  # step id, attempt
        self.seen: list[StepInvocation] = []
        self.runtime.step(self.echo)
        self.runtime.step(self.flaky)
        self.runtime.step(self.broken)
        self.runtime.step(self.refused)

    def note(self, invocation: StepInvocation) -> None:
        self.calls.append((invocation.step_id, invocation.attempt))
        self.seen.append(invocation)

    @property
    def ids(self) -> list[str]:
        """The steps that were called, in order."""
        return [step_id for step_id, _ in self.calls]

    def echo(self, value: Any, invocation: StepInvocation) -> Any:
        """Return the input."""
        self.note(invocation)
        return value

    def flaky(self, failures: int, invocation: StepInvocation) -> int:
        """Fail so many times, then return the number of the attempt."""
        self.note(invocation)
        if invocation.attempt <= failures:
            raise OSError(f"attempt {invocation.attempt} failed")
        return invocation.attempt

    def broken(self, text: str, invocation: StepInvocation) -> None:
        """Fail always."""
        self.note(invocation)
        raise OSError(text)

    def refused(self, text: str, invocation: StepInvocation) -> None:
        """Fail for good."""
        from supervisor.durable import NonRetryable

        self.note(invocation)
        raise NonRetryable(text)


class Tape:
    """Passes everything on to a store, and writes down the events of each append that succeeded."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.appends: list[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def append(
        self, run_id: str, expected_sequence: int, events: Sequence[FlowEvent], at: datetime
    ) -> list[Envelope]:
        stored: list[Envelope] = self._inner.append(run_id, expected_sequence, events, at)
        self.appends.append([each.type for each in events])
        return stored


def types(engine: FlowEngine, run_id: str = "r") -> list[str]:
    """The types of the events of a run, in order."""
    return [each.event.type for each in engine.history(run_id)]


def events(engine: FlowEngine, type: str, run_id: str = "r") -> list[dict[str, Any]]:
    """The fields of the events of one type, in order."""
    found = [each.event.to_dict() for each in engine.history(run_id) if each.event.type == type]
    return [{key: value for key, value in each.items() if key != "type"} for each in found]


def times(engine: FlowEngine, type: str, run_id: str = "r") -> list[float]:
    """When the events of one type were recorded, in seconds after the start."""
    return [(each.at - START).total_seconds() for each in engine.history(run_id) if each.event.type == type]


def plain(value: Any) -> Any:
    """The same with error texts that don't say where in the code the error was raised."""
    if isinstance(value, str):
        return re.sub(r" \(in \w+, \w+\.py:\d+\)", "", value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value


def work(engine: FlowEngine, clock: VirtualClock) -> None:
    """Do what a worker does until the queue is empty; what it gave back comes again after its delay."""
    worker = FlowWorker(engine)
    while (soon := engine.queue.seconds_to_next()) is not None:
        clock.advance(soon)
        engine.queue.reclaim_expired()
        worker.run_until_idle()


def pump(engine: FlowEngine, clock: VirtualClock) -> None:
    """Do what a scheduler does until nothing is scheduled any more: wait for what is due, and drive it."""
    while (due := engine.next_wakeup()) is not None:
        clock.advance(max((due - clock.now()).total_seconds(), 0.0))
        for each in engine.list_due_wakeups(clock.now()):
            engine.resume_scheduled_run(each.run_id, clock.now())


def on_threads(clock: VirtualClock, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Make calls at once, each on a thread of the clock; return what they returned or raised, when all have."""
    results: list[Any] = [None] * len(calls)

    def one(number: int, call: Callable[[], Any]) -> None:
        try:
            results[number] = call()
        except BaseException as error:
            results[number] = error

    threads = [
        clock.spawn(lambda number=number, call=call: one(number, call), f"caller-{number}")  # type: ignore[misc]
        for number, call in enumerate(calls)
    ]
    for each in threads:
        each.join()
    return results
