"""Layer 3: survive a crash."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from supervisor.durable.context import WorkflowContext
    from supervisor.durable.due_work import FlowScheduler, SchedulerTick
    from supervisor.durable.engine import FlowEngine
    from supervisor.durable.errors import (
        CorruptHistory,
        EventConflict,
        FlowError,
        InvalidRunId,
        InvalidTransition,
        LeaseLost,
        NonDeterministic,
        NonRetryable,
        PayloadTooLarge,
        QueueFull,
        ReplayLimitExceeded,
        RunConflict,
        RunFailed,
        RunNotFound,
        RunTerminal,
        SerializationError,
        SignalConflict,
        StepFailed,
        StoreError,
        UnknownStep,
        UnknownWorkflow,
    )
    from supervisor.durable.history import Envelope
    from supervisor.durable.lifecycle import RunUnserved, StoreFailed
    from supervisor.durable.projection import Wakeup
    from supervisor.durable.queues.memory import MemoryWorkQueue
    from supervisor.durable.queues.postgres import PostgresWorkQueue
    from supervisor.durable.queues.protocol import Lease, WorkQueue
    from supervisor.durable.queues.sqlite import SqliteWorkQueue
    from supervisor.durable.retry import RetryPolicy, StepFailureAction
    from supervisor.durable.runtime import FlowRuntime, StepInvocation, current_step
    from supervisor.durable.snapshot import RunSnapshot, RunStatus, StepSnapshot, WaitSnapshot
    from supervisor.durable.stores.jsonl import JsonlEventStore
    from supervisor.durable.stores.memory import MemoryEventStore
    from supervisor.durable.stores.opening import open_store
    from supervisor.durable.stores.postgres import PostgresEventStore
    from supervisor.durable.stores.protocol import FlowEventStore
    from supervisor.durable.stores.sqlite import SqliteEventStore
    from supervisor.durable.worker import FlowWorker

__all__ = [
    "CorruptHistory",
    "Envelope",
    "EventConflict",
    "FlowEngine",
    "FlowError",
    "FlowEventStore",
    "FlowRuntime",
    "FlowScheduler",
    "FlowWorker",
    "InvalidRunId",
    "InvalidTransition",
    "JsonlEventStore",
    "Lease",
    "LeaseLost",
    "MemoryEventStore",
    "MemoryWorkQueue",
    "NonDeterministic",
    "NonRetryable",
    "PayloadTooLarge",
    "PostgresEventStore",
    "PostgresWorkQueue",
    "QueueFull",
    "ReplayLimitExceeded",
    "RetryPolicy",
    "RunConflict",
    "RunFailed",
    "RunNotFound",
    "RunSnapshot",
    "RunStatus",
    "RunTerminal",
    "RunUnserved",
    "SchedulerTick",
    "SerializationError",
    "SignalConflict",
    "SqliteEventStore",
    "SqliteWorkQueue",
    "StepFailed",
    "StepFailureAction",
    "StepInvocation",
    "StepSnapshot",
    "StoreError",
    "StoreFailed",
    "UnknownStep",
    "UnknownWorkflow",
    "WaitSnapshot",
    "Wakeup",
    "WorkQueue",
    "WorkflowContext",
    "current_step",
    "open_store",
]

# Where each name lives; loaded when it is first asked for, so that nobody pays for stores they don't use.
_HOMES = {
    "context": "WorkflowContext",
    "due_work": "FlowScheduler SchedulerTick",
    "engine": "FlowEngine",
    "errors": "CorruptHistory EventConflict FlowError InvalidRunId InvalidTransition LeaseLost NonDeterministic NonRetryable PayloadTooLarge QueueFull ReplayLimitExceeded RunConflict RunFailed RunNotFound RunTerminal SerializationError SignalConflict StepFailed StoreError UnknownStep UnknownWorkflow",
    "history": "Envelope",
    "lifecycle": "RunUnserved StoreFailed",
    "projection": "Wakeup",
    "queues.memory": "MemoryWorkQueue",
    "queues.postgres": "PostgresWorkQueue",
    "queues.protocol": "Lease WorkQueue",
    "queues.sqlite": "SqliteWorkQueue",
    "retry": "RetryPolicy StepFailureAction",
    "runtime": "FlowRuntime StepInvocation current_step",
    "snapshot": "RunSnapshot RunStatus StepSnapshot WaitSnapshot",
    "stores.jsonl": "JsonlEventStore",
    "stores.memory": "MemoryEventStore",
    "stores.opening": "open_store",
    "stores.postgres": "PostgresEventStore",
    "stores.protocol": "FlowEventStore",
    "stores.sqlite": "SqliteEventStore",
    "worker": "FlowWorker",
}
_homes = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Load a public name from its home (PEP 562)."""
    home = _homes.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value: object = getattr(__import__(f"{__name__}.{home}", fromlist=[name]), name)
    except ImportError as error:
        if not name.startswith("Postgres"):
            raise
        from supervisor.kernel.extras import stand_in

        return stand_in(name, __name__, error)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
