"""What a history says of one step, one wait, one signal: the parts of a projection."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from supervisor.durable.history import SignalReceived, StepCreated
from supervisor.durable.payload import Json, copied
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.snapshot import (
    SignalSnapshot,
    StepSnapshot,
    StepStatus,
    WaitSnapshot,
    WaitStatus,
)

__all__ = ["Signal", "Step", "Wait", "Wakeup", "WakeupKind"]

WakeupKind = str
"""`wait` or `retry`."""


class Wakeup(NamedTuple):
    """Something of a run that is due at an instant."""

    kind: WakeupKind
    run_id: str
    subject_id: str  # of the wait or the step
    due_at: datetime  # UTC

    @property
    def order(self) -> tuple[datetime, str, str, str]:
        """How they are listed: by due time, then run and subject."""
        return self.due_at, self.run_id, self.subject_id, self.kind


class Step:
    """A step as far as the history goes."""

    __slots__ = (
        "attempt",
        "created_at",
        "ended_at",
        "ended_seq",
        "error",
        "input",
        "name",
        "non_retryable",
        "output",
        "retry",
        "retry_after",
        "started_at",
        "status",
        "step_id",
    )

    def __init__(self, event: StepCreated, at: datetime) -> None:
        self.step_id: str = event.step_id
        self.name: str = event.step_name
        self.input: Json = event.input
        self.retry: RetryPolicy = event.retry
        self.status: StepStatus = StepStatus.PENDING
        self.attempt: int = 0
        self.retry_after: datetime | None = None
        self.output: Json = None
        self.error: str | None = None
        self.non_retryable: bool = False
        self.created_at: datetime = at
        self.started_at: datetime | None = None
        self.ended_at: datetime | None = None
        self.ended_seq: int = 0  # sequence of the event that ended it, 0 before

    @property
    def open(self) -> bool:
        """It has not ended."""
        return self.ended_seq == 0

    def snapshot(self) -> StepSnapshot:
        return StepSnapshot(
            step_id=self.step_id,
            step_name=self.name,
            status=self.status,
            attempt=self.attempt,
            input=copied(self.input),
            output=copied(self.output),
            error=self.error,
            retry=self.retry,
            retry_after=self.retry_after,
            created_at=self.created_at,
            started_at=self.started_at,
            ended_at=self.ended_at,
        )


class Wait:
    """A wait for an instant (`resume_at`) or for a signal (`signal_name`)."""

    __slots__ = (
        "created_at",
        "ended_at",
        "ended_seq",
        "payload",
        "resume_at",
        "signal_id",
        "signal_name",
        "status",
        "wait_id",
    )

    def __init__(
        self, wait_id: str, resume_at: datetime | None, signal_name: str | None, at: datetime
    ) -> None:
        self.wait_id: str = wait_id
        self.resume_at: datetime | None = resume_at
        self.signal_name: str | None = signal_name
        self.status: WaitStatus = WaitStatus.WAITING
        self.signal_id: str | None = None
        self.payload: Json = None
        self.created_at: datetime = at
        self.ended_at: datetime | None = None
        self.ended_seq: int = 0

    def snapshot(self) -> WaitSnapshot:
        return WaitSnapshot(
            wait_id=self.wait_id,
            status=self.status,
            resume_at=self.resume_at,
            signal_name=self.signal_name,
            signal_id=self.signal_id,
            payload=copied(self.payload),
            created_at=self.created_at,
            ended_at=self.ended_at,
        )


class Signal:
    """A signal that came."""

    __slots__ = ("at", "name", "payload", "signal_id", "wait_id")

    def __init__(self, event: SignalReceived, at: datetime) -> None:
        self.signal_id: str = event.signal_id
        self.name: str = event.name
        self.payload: Json = event.payload
        self.wait_id: str | None = None
        self.at: datetime = at

    def snapshot(self) -> SignalSnapshot:
        return SignalSnapshot(
            signal_id=self.signal_id,
            name=self.name,
            payload=copied(self.payload),
            wait_id=self.wait_id,
            at=self.at,
        )
