"""The events of this layer, one class each.

The order of fields is the order in which the values are published.
"""

from __future__ import annotations

from supervisor.kernel.cancellation import CancelReason
from supervisor.kernel.errors import StuckTask
from supervisor.kernel.event import Event, event
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


@event
class TaskEvent(Event):
    """Something that happened to one task."""

    task_id: int | None  # from 1, never reused; None when none was given out
    task: str  # name


@event
class TaskAdded(TaskEvent):
    """Registered; the body has not started."""


@event
class TaskRejected(TaskEvent):
    """Not admitted; the body never runs."""

    rejection: RejectionKind
    reason: str  # for people, never parsed


@event
class AttemptStarting(TaskEvent):
    """The permit is held and the body is about to run."""

    attempt: int  # from 1


@event
class AttemptSucceeded(TaskEvent):
    """The body returned and its cleanup went well."""

    attempt: int  # from 1
    duration: float  # seconds


@event
class AttemptFailed(TaskEvent):
    """One attempt raised; another may follow."""

    attempt: int  # from 1
    duration: float  # seconds
    error: str  # type, message and place; for people, never parsed
    exit_code: int | None


@event
class AttemptTimedOut(TaskEvent):
    """The configured deadline has passed; the body was asked to stop and may still run."""

    attempt: int  # from 1
    duration: float  # seconds from the start to the verdict
    timeout: float  # seconds, as configured


@event
class AttemptOverrunning(TaskEvent):
    """The body ignores its deadline; told 10, 30, 70, … seconds after it."""

    attempt: int  # from 1
    late_by: float  # seconds since the deadline
    stack: str  # where its thread is


@event
class AttemptReturnedLate(TaskEvent):
    """The body that had timed out ended after all; a retry may follow now."""

    attempt: int  # from 1
    late_by: float  # seconds since the deadline
    ended: str  # "returned", or the type of what it raised


@event
class AttemptCanceled(TaskEvent):
    """The body stopped because it was asked to, or by itself."""

    attempt: int  # from 1
    duration: float  # seconds


@event
class BackoffScheduled(TaskEvent):
    """The next attempt waits."""

    attempt: int  # the one that has just ended
    delay: float  # seconds
    cause: str  # "failure" or "interval"
    error: str | None  # of the failure


@event
class TaskCancelRequested(TaskEvent):
    """The task was asked to stop."""

    reason: CancelReason


@event
class TaskFinished(TaskEvent):
    """The task has ended; told once for each task that was added."""

    outcome: OutcomeKind
    attempts: int  # started
    reason: str | None  # for people; the same text as on the outcome


@event
class TaskRemoved(TaskEvent):
    """The outcome is set and the name is free, unless a thread is stuck in it."""


@event
class SlotChanged(Event):
    """A slot got an owner, lost it, or waits for it to stop."""

    slot: str
    state: str  # "running", "terminating" or "idle"


@event
class ShutdownRequested(Event):
    """Nothing is admitted any more and every task is asked to stop."""


@event
class ShutdownCompleted(Event):
    """The last event: every task has ended or was given up."""


@event
class GraceExceededEvent(Event):
    """Tasks still ran when the grace of the shutdown was over."""

    stuck: tuple[StuckTask, ...]
