"""What a workflow asks for: one command for each decision."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from supervisor.durable.payload import Json
from supervisor.durable.retry import RetryPolicy

__all__ = [
    "Cancel",
    "Command",
    "Complete",
    "Fail",
    "ScheduleStep",
    "ScheduleSteps",
    "WaitForSignal",
    "WaitUntil",
]


@dataclass(frozen=True, slots=True)
class Complete:
    """End the run well."""

    output: Json


@dataclass(frozen=True, slots=True)
class Fail:
    """End the run as failed."""

    error: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the run as somebody requested."""


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """Run a step, or go on with it."""

    step_id: str
    step_name: str
    input: Json
    retry: RetryPolicy


@dataclass(frozen=True, slots=True)
class ScheduleSteps:
    """Run several steps at once."""

    steps: tuple[ScheduleStep, ...]


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Wait for an instant."""

    wait_id: str
    resume_at: datetime  # UTC


@dataclass(frozen=True, slots=True)
class WaitForSignal:
    """Wait for a signal."""

    wait_id: str
    signal_name: str


Command = Complete | Fail | Cancel | ScheduleStep | ScheduleSteps | WaitUntil | WaitForSignal
