"""Short words for tests of histories: a clock of events, and a dump of everything a projection knows."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from supervisor.durable.history import Envelope, FlowEvent, RunCreated, RunStarted
from supervisor.durable.projection import Projection
from supervisor.durable.records import Signal, Step, Wait
from supervisor.durable.retry import RetryPolicy

START = datetime(2026, 1, 1, tzinfo=UTC)
CREATED = RunCreated(spec={"name": "checkout", "version": "1"}, input={"id": 7})
BEGUN: tuple[FlowEvent, ...] = (CREATED, RunStarted())


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def envelopes(events: Iterable[FlowEvent], first: int = 1, run_id: str = "run-1") -> list[Envelope]:
    """One event a second; the event with sequence n comes at second n."""
    return [Envelope(run_id, n, f"event-{n}", at(n), event) for n, event in enumerate(events, first)]


def folded(*events: FlowEvent) -> Projection:
    return Projection.of("run-1", envelopes(events))


def begun(*events: FlowEvent) -> Projection:
    return folded(*BEGUN, *events)


def fold(projection: Projection, *events: FlowEvent) -> Projection:
    for each in envelopes(events, projection.sequence + 1, projection.run_id):
        projection.fold(each)
    return projection


def dump(projection: Projection) -> Any:
    """All fields, the private ones too, as plain values that share nothing; objects by their place of birth."""
    return copy.deepcopy({name: _plain(getattr(projection, name)) for name in Projection.__slots__})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}, list(value)
    if isinstance(value, list | deque):
        return [_plain(each) for each in value]
    if isinstance(value, Envelope | RetryPolicy) or not hasattr(type(value), "__slots__"):
        return value
    if isinstance(value, Step | Wait | Signal):
        return type(value).__name__, {name: _plain(getattr(value, name)) for name in type(value).__slots__}
    return value
