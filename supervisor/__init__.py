"""Keeps work running in synchronous Python programs.

Not supervisord, the process manager: this library supervises threads inside a Python program.
"""

from __future__ import annotations

import os as _os

TYPE_CHECKING = False  # known to type checkers by its name; `typing` is not loaded for it
if TYPE_CHECKING:
    from supervisor.kernel.backoff import BackoffPolicy, Jitter
    from supervisor.kernel.cancellation import CancelReason, CancelToken
    from supervisor.kernel.errors import (
        AlreadyRunning,
        Canceled,
        CapacityExceeded,
        Fail,
        Fatal,
        ForkedProcess,
        GraceExceeded,
        OutcomeUnavailable,
        ReentrantCall,
        ShuttingDown,
        StuckTask,
        SupervisorError,
        TaskAlreadyExists,
        TaskError,
        Timeout,
    )
    from supervisor.kernel.event import Event, EventsDropped, SubscriberFailed
    from supervisor.kernel.mailbox import Subscription
    from supervisor.tasks.config import SupervisorConfig
    from supervisor.tasks.context import TaskContext, current_context
    from supervisor.tasks.handle import TaskHandle, TaskInfo
    from supervisor.tasks.lifecycle import (
        AttemptCanceled,
        AttemptFailed,
        AttemptOverrunning,
        AttemptReturnedLate,
        AttemptStarting,
        AttemptSucceeded,
        AttemptTimedOut,
        BackoffScheduled,
        GraceExceededEvent,
        ShutdownCompleted,
        ShutdownRequested,
        SlotChanged,
        TaskAdded,
        TaskCancelRequested,
        TaskFinished,
        TaskRejected,
        TaskRemoved,
    )
    from supervisor.tasks.outcome import OutcomeKind, RejectionKind, TaskOutcome
    from supervisor.tasks.registry import TaskId
    from supervisor.tasks.slot import Admission
    from supervisor.tasks.spec import INHERIT, RestartPolicy, TaskDefaults, TaskSpec
    from supervisor.tasks.supervisor import Supervisor

__all__ = [
    "INHERIT",
    "Admission",
    "AlreadyRunning",
    "AttemptCanceled",
    "AttemptFailed",
    "AttemptOverrunning",
    "AttemptReturnedLate",
    "AttemptStarting",
    "AttemptSucceeded",
    "AttemptTimedOut",
    "BackoffPolicy",
    "BackoffScheduled",
    "CancelReason",
    "CancelToken",
    "Canceled",
    "CapacityExceeded",
    "Event",
    "EventsDropped",
    "Fail",
    "Fatal",
    "ForkedProcess",
    "GraceExceeded",
    "GraceExceededEvent",
    "Jitter",
    "OutcomeKind",
    "OutcomeUnavailable",
    "ReentrantCall",
    "RejectionKind",
    "RestartPolicy",
    "ShutdownCompleted",
    "ShutdownRequested",
    "ShuttingDown",
    "SlotChanged",
    "StuckTask",
    "SubscriberFailed",
    "Subscription",
    "Supervisor",
    "SupervisorConfig",
    "SupervisorError",
    "TaskAdded",
    "TaskAlreadyExists",
    "TaskCancelRequested",
    "TaskContext",
    "TaskDefaults",
    "TaskError",
    "TaskFinished",
    "TaskHandle",
    "TaskId",
    "TaskInfo",
    "TaskOutcome",
    "TaskRejected",
    "TaskRemoved",
    "TaskSpec",
    "Timeout",
    "current_context",
]
__version__ = "0.1.0"

# Where each name lives. A name is loaded when it is first asked for: a program that only mentions this
# package, or only looks at `--help`, does not pay for all of it.
_HOMES = {
    "kernel.backoff": "BackoffPolicy Jitter",
    "kernel.cancellation": "CancelReason CancelToken",
    "kernel.errors": "AlreadyRunning Canceled CapacityExceeded Fail Fatal ForkedProcess GraceExceeded OutcomeUnavailable ReentrantCall ShuttingDown StuckTask SupervisorError TaskAlreadyExists TaskError Timeout",
    "kernel.event": "Event EventsDropped SubscriberFailed",
    "kernel.mailbox": "Subscription",
    "tasks.config": "SupervisorConfig",
    "tasks.context": "TaskContext current_context",
    "tasks.handle": "TaskHandle TaskInfo",
    "tasks.lifecycle": "AttemptCanceled AttemptFailed AttemptOverrunning AttemptReturnedLate AttemptStarting AttemptSucceeded AttemptTimedOut BackoffScheduled GraceExceededEvent ShutdownCompleted ShutdownRequested SlotChanged TaskAdded TaskCancelRequested TaskFinished TaskRejected TaskRemoved",
    "tasks.outcome": "OutcomeKind RejectionKind TaskOutcome",
    "tasks.registry": "TaskId",
    "tasks.slot": "Admission",
    "tasks.spec": "INHERIT RestartPolicy TaskDefaults TaskSpec",
    "tasks.supervisor": "Supervisor",
}
_homes = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Load a public name from its home (PEP 562)."""
    home = _homes.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(__import__(f"{__name__}.{home}", fromlist=[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if _os.path.exists(_os.path.join(_os.path.dirname(__file__), "supervisord.py")):
    import warnings as _warnings

    _warnings.warn(
        "the process manager supervisord is installed into the same folder as threadvisor, and each has "
        "overwritten files of the other; give them separate environments, or restore this one with: "
        "pip install --force-reinstall --no-deps threadvisor",
        RuntimeWarning,
        stacklevel=2,
    )
