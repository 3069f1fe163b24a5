"""The events of this layer, one class each.

The order of fields is the order in which the values are published.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from supervisor.kernel.event import Event

__all__ = [
    "BranchFinished",
    "FlowBackoff",
    "FlowCanceled",
    "FlowEvent",
    "FlowFailed",
    "FlowReset",
    "FlowScheduled",
    "FlowSkipped",
    "FlowStarted",
    "FlowSucceeded",
    "FlowTaskRetrying",
    "FlowTrippedEvent",
    "ResourceFailed",
    "StateEntered",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEvent(Event):
    """Something that happened to one flow, or to one run of a workflow."""

    flow_id: str  # of the schedule; of a direct run, the name of the run


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowScheduled(FlowEvent):
    """The next run is planned."""

    next_fire: datetime  # UTC


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStarted(FlowEvent):
    """A run was accepted."""

    run: int  # number of the run, from 1
    cause: str  # "schedule" or "trigger"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSkipped(FlowEvent):
    """A tick was refused; it is not made up for."""

    reason: str  # "running", "paused", "tripped" or "backoff"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSucceeded(FlowEvent):
    """A run reached an exit state, or the function returned."""

    run: int  # number of the run, from 1
    duration: float  # seconds
    exit_state: str | None  # label; None for a plain function


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFailed(FlowEvent):
    """A run failed."""

    run: int  # number of the run, from 1
    duration: float  # seconds
    error: str  # with state, attempt and path; for people, never parsed
    streak: int  # failures in a row, this one included


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowBackoff(FlowEvent):
    """Nothing is dispatched for a while."""

    delay: float  # seconds
    until: datetime  # UTC
    streak: int  # failures in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTrippedEvent(FlowEvent):
    """Nothing is dispatched until `reset_flow`."""

    streak: int  # failures in a row
    error: str  # for people, never parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowReset(FlowEvent):
    """Streak and backoff window were cleared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCanceled(FlowEvent):
    """A run was canceled; it counts neither way."""

    run: int  # number of the run, from 1
    duration: float  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEntered(FlowEvent):
    """A run entered a state, an exit state included."""

    state: str  # label


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTaskRetrying(FlowEvent):
    """An attempt of a state's task, or of a branch, failed; another follows."""

    state: str  # label
    task: str  # name
    attempt: int  # the one that failed, from 1
    delay: float  # seconds until the next
    error: str  # for people, never parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchFinished(FlowEvent):
    """A branch of a split has finished, before the verdict of its join."""

    state: str  # label
    index: int  # of the branch, from 0
    task: str  # name
    duration: float  # seconds
    error: str | None  # None for a success


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceFailed(FlowEvent):
    """The tear-down of a resource raised; the result of the run stands."""

    resource: str  # key
    error: str  # for people, never parsed
