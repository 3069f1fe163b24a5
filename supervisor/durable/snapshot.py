"""What a history says now, for people: values that share nothing with the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, cast

from supervisor.durable.instants import written
from supervisor.durable.payload import Json
from supervisor.durable.retry import RetryPolicy

__all__ = [
    "CancellationRequest",
    "RunSnapshot",
    "RunStatus",
    "SignalSnapshot",
    "StepSnapshot",
    "StepStatus",
    "WaitSnapshot",
    "WaitStatus",
]


class RunStatus(StrEnum):
    """Where a run is."""

    PENDING = "pending"  # created, not driven yet
    RUNNING = "running"
    SUSPENDED = "suspended"  # waits for an instant, a signal, or a delayed retry
    CANCELLING = "cancelling"  # asked to end, may clean up
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """The run has ended."""
        return self in _TERMINAL


_TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})


class StepStatus(StrEnum):
    """Where a step is."""

    PENDING = "pending"  # not started yet, or waits for its next attempt
    RUNNING = "running"  # an attempt was started and has not been recorded
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class WaitStatus(StrEnum):
    """Where a wait is."""

    WAITING = "waiting"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class CancellationRequest:
    """Somebody wants the run to end."""

    reason: str | None
    at: datetime  # UTC


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSnapshot:
    """One step of a run."""

    step_id: str
    step_name: str
    status: StepStatus
    attempt: int  # the latest, from 1; 0 before the first
    input: Json
    output: Json  # None until it is completed
    error: str | None  # of the last failed attempt
    retry: RetryPolicy
    retry_after: datetime | None  # UTC, when the next attempt is due
    created_at: datetime
    started_at: datetime | None  # of the latest attempt
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSnapshot:
    """One wait of a run: for an instant, or for a signal."""

    wait_id: str
    status: WaitStatus
    resume_at: datetime | None  # UTC; None for a signal
    signal_name: str | None  # None for an instant
    signal_id: str | None  # of the signal that came
    payload: Json  # of the signal that came
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalSnapshot:
    """One signal that a run got."""

    signal_id: str
    name: str
    payload: Json
    wait_id: str | None  # of the wait that took it; None while it is buffered
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """A run as its history says it is. `steps`, `waits` and `signals` are dicts by id."""

    run_id: str
    workflow: str
    version: str
    status: RunStatus
    input: Json
    output: Json  # None until it is completed
    error: str | None  # of a failed run
    steps: dict[str, StepSnapshot]
    waits: dict[str, WaitSnapshot]
    signals: dict[str, SignalSnapshot]
    cancellation_request: CancellationRequest | None
    sequence: int  # of the last event
    created_at: datetime
    updated_at: datetime

    @property
    def terminal(self) -> bool:
        """The run has ended."""
        return self.status.terminal

    def to_dict(self) -> dict[str, Any]:
        """Return the snapshot as JSON-ready values."""
        return cast("dict[str, Any]", _plain(self))


def _plain(value: Any) -> Any:
    if isinstance(value, RetryPolicy):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, datetime):
        return written(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in cast("Mapping[str, Any]", value).items()}
    return str(value) if isinstance(value, StrEnum) else value
