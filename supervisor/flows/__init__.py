"""Layer 2: walk a state machine, on a schedule."""

from __future__ import annotations

from supervisor.flows.breaker import CircuitBreaker
from supervisor.flows.errors import (
    CircuitOpen,
    CompensationFailed,
    ConfigurationError,
    FlowAlreadyRunning,
    FlowError,
    FlowNotFound,
    FlowTimeout,
    FlowTripped,
    JoinFailed,
    ResourceNotFound,
    ResourceTypeMismatch,
    RetryExhausted,
    SchedulerStopped,
    StopTimeout,
)
from supervisor.flows.join import BranchResult, JoinConfig, JoinStrategy, SplitResult
from supervisor.flows.lifecycle import (
    BranchFinished,
    FlowBackoff,
    FlowCanceled,
    FlowFailed,
    FlowReset,
    FlowScheduled,
    FlowSkipped,
    FlowStarted,
    FlowSucceeded,
    FlowTaskRetrying,
    FlowTrippedEvent,
    ResourceFailed,
    StateEntered,
)
from supervisor.flows.models import Pending, Ready, batch, poll, timer
from supervisor.flows.resources import Health, Resource, Resources
from supervisor.flows.running import RunningScheduler
from supervisor.flows.scheduler import Scheduler
from supervisor.flows.status import FLOW_BACKOFF, Backoff, Completed, FlowInfo, Idle, Running, Tripped
from supervisor.flows.store import MemoryStore
from supervisor.flows.task import FLOW_TASK_BACKOFF, FlowRun
from supervisor.flows.workflow import Workflow
from supervisor.kernel.cron import next_fire

__all__ = [
    "FLOW_BACKOFF",
    "FLOW_TASK_BACKOFF",
    "Backoff",
    "BranchFinished",
    "BranchResult",
    "CircuitBreaker",
    "CircuitOpen",
    "CompensationFailed",
    "Completed",
    "ConfigurationError",
    "FlowAlreadyRunning",
    "FlowBackoff",
    "FlowCanceled",
    "FlowError",
    "FlowFailed",
    "FlowInfo",
    "FlowNotFound",
    "FlowReset",
    "FlowRun",
    "FlowScheduled",
    "FlowSkipped",
    "FlowStarted",
    "FlowSucceeded",
    "FlowTaskRetrying",
    "FlowTimeout",
    "FlowTripped",
    "FlowTrippedEvent",
    "Health",
    "Idle",
    "JoinConfig",
    "JoinFailed",
    "JoinStrategy",
    "MemoryStore",
    "Pending",
    "Ready",
    "Resource",
    "ResourceFailed",
    "ResourceNotFound",
    "ResourceTypeMismatch",
    "Resources",
    "RetryExhausted",
    "Running",
    "RunningScheduler",
    "Scheduler",
    "SchedulerStopped",
    "SplitResult",
    "StateEntered",
    "StopTimeout",
    "Tripped",
    "Workflow",
    "batch",
    "next_fire",
    "poll",
    "timer",
]
