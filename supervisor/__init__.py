"""Keeps work running in synchronous Python programs.

Not supervisord, the process manager: this library supervises threads inside a Python program.
"""

from __future__ import annotations

import os as _os
import warnings as _warnings

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

if _os.path.exists(_os.path.join(_os.path.dirname(__file__), "supervisord.py")):
    _warnings.warn(
        "the process manager supervisord is installed into the same folder as threadvisor, and each has "
        "overwritten files of the other; give them separate environments, or restore this one with: "
        "pip install --force-reinstall --no-deps threadvisor",
        RuntimeWarning,
        stacklevel=2,
    )
