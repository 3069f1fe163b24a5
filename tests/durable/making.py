"""Events and histories that the tests of the durable layer share: short to write, and all at known instants."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from supervisor.durable.history import (
    Envelope,
    FlowEvent,
    RunCancellationRequested,
    RunCreated,
    RunStarted,
    SignalReceived,
    StepCreated,
    StepStarted,
    WaitCreated,
)
from supervisor.durable.projection import Projection
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.stores.protocol import FlowEventStore

AT = datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)


def later(seconds: float) -> datetime:
    """So many seconds after `AT`."""
    return AT + timedelta(seconds=seconds)


def created(workflow: str = "checkout", input: Any = None) -> RunCreated:
    return RunCreated({"name": workflow, "version": "1"}, input)


def signal(signal_id: str, name: str = "go", payload: Any = None) -> SignalReceived:
    return SignalReceived({"signal_id": signal_id, "name": name, "payload": payload})


def step(step_id: str, retry: RetryPolicy | None = None, input: Any = None) -> list[FlowEvent]:
    """A step, and its first attempt."""
    return [
        StepCreated(step_id, "work", input, RetryPolicy.default() if retry is None else retry),
        StepStarted(step_id, 1),
    ]


def wait(wait_id: str, seconds: float) -> WaitCreated:
    return WaitCreated(wait_id, later(seconds))


def begun(workflow: str = "checkout", input: Any = None) -> list[FlowEvent]:
    """The first two events of every run."""
    return [created(workflow, input), RunStarted()]


def cancellation(reason: str | None = None) -> RunCancellationRequested:
    return RunCancellationRequested({} if reason is None else {"reason": reason})


def add(store: FlowEventStore, run_id: str, *events: FlowEvent, at: datetime = AT) -> list[Envelope]:
    """Append at the end of what there is."""
    return store.append(run_id, tip(store, run_id), events, at)


def tip(store: FlowEventStore, run_id: str) -> int:
    """The sequence of the last event, 0 for a run that does not exist."""
    return len(store.read(run_id)) if run_id in store.list_run_ids() else 0


def begin(
    store: FlowEventStore,
    run_id: str,
    events: Sequence[FlowEvent] = (),
    workflow: str = "checkout",
    at: datetime = AT,
) -> list[Envelope]:
    """A new run that is running, and what happens to it then, in one append."""
    return store.append(run_id, 0, [*begun(workflow), *events], at)


def folded(*events: FlowEvent, input: Any = None) -> Projection:
    """A run of a second an event, as far as it has come."""
    projection = Projection("r").keeping_history()
    for number, event in enumerate([*begun(input=input), *events], 1):
        projection.fold(Envelope("r", number, f"e{number}", later(number), event))
    return projection


def names(step: object) -> str:
    """The name of a step, as a runtime would tell it."""
    return step if isinstance(step, str) else "named"
