"""The events of this layer, one class each.

The order of fields is the order in which the values are published.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.kernel.cancellation import CancelReason
from supervisor.kernel.errors import StuckTask
from supervisor.kernel.event import Event
from supervisor.tasks.outcome import OutcomeKind, RejectionKind

__all__ = [
    "AttemptCanceled",
    "AttemptFailed",
    "AttemptOverrunning",
    "AttemptReturnedLate",
    "AttemptStarting",
    "AttemptSucceeded",
    "AttemptTimedOut",
    "BackoffScheduled",
    "GraceExceededEvent",
    "ShutdownCompleted",
    "ShutdownRequested",
    "SlotChanged",
    "TaskAdded",
    "TaskCancelRequested",
    "TaskEvent",
    "TaskFinished",
    "TaskRejected",
    "TaskRemoved",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvent(Event):
    """Something that happened to one task."""

    task_id: int | None  # from 1, never reused; None when none was given out
    task: str  # name


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAdded(TaskEvent):
    """Registered; the body has not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRejected(TaskEvent):
    """Not admitted; the body never runs."""

    rejection: RejectionKind
    reason: str  # for people, never parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarting(TaskEvent):
    """The permit is held and the body is about to run."""

    attempt: int  # from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSucceeded(TaskEvent):
    """The body returned and its cleanup went well."""

    attempt: int  # from 1
    duration: float  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed(TaskEvent):
    """One attempt raised; another may follow."""

    attempt: int  # from 1
    duration: float  # seconds
    error: str  # type, message and place; for people, never parsed
    exit_code: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTimedOut(TaskEvent):
    """The configured deadline has passed; the body was asked to stop and may still run."""

    attempt: int  # from 1
    duration: float  # seconds from the start to the verdict
    timeout: float  # seconds, as configured


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOverrunning(TaskEvent):
    """The body ignores its deadline; told 10, 30, 70, … seconds after it."""

    attempt: int  # from 1
    late_by: float  # seconds since the deadline
    stack: str  # where its thread is


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReturnedLate(TaskEvent):
    """The body that had timed out ended after all; a retry may follow now."""

    attempt: int  # from 1
    late_by: float  # seconds since the deadline
    ended: str  # "returned", or the type of what it raised


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCanceled(TaskEvent):
    """The body stopped because it was asked to, or by itself."""

    attempt: int  # from 1
    duration: float  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffScheduled(TaskEvent):
    """The next attempt waits."""

    attempt: int  # the one that has just ended
    delay: float  # seconds
    cause: str  # "failure" or "interval"
    error: str | None  # of the failure


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCancelRequested(TaskEvent):
    """The task was asked to stop."""

    reason: CancelReason


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFinished(TaskEvent):
    """The task has ended; told once for each task that was added."""

    outcome: OutcomeKind
    attempts: int  # started
    reason: str | None  # for people; the same text as on the outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRemoved(TaskEvent):
    """The outcome is set and the name is free, unless a thread is stuck in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChanged(Event):
    """A slot got an owner, lost it, or waits for it to stop."""

    slot: str
    state: str  # "running", "terminating" or "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownRequested(Event):
    """Nothing is admitted any more and every task is asked to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownCompleted(Event):
    """The last event: every task has ended or was given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraceExceededEvent(Event):
    """Tasks still ran when the grace of the shutdown was over."""

    stuck: tuple[StuckTask, ...]
