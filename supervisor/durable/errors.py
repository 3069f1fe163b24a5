# ruff: noqa: N818  (the names say what happened; an Error suffix would add nothing)
"""The error tree of the durable layer.

SupervisorError
└── FlowError
    ├── RunNotFound           (LookupError)   no such run: .run_id
    ├── RunConflict           (ValueError)    the run exists and is another one: .run_id
    ├── RunTerminal           (RuntimeError)  the run has ended: .run_id, .status
    ├── InvalidRunId          (ValueError)
    ├── InvalidTransition     (RuntimeError)  history does not allow it; nothing was written
    ├── NonDeterministic      (RuntimeError)  the workflow differs from its history: .run_id
    ├── EventConflict         (RuntimeError)  somebody else appended first: .run_id, .expected, .actual
    ├── StoreError            (RuntimeError)  the store could not do it; it may work later
    │   └── CorruptHistory                    what is stored can't be read; it was left as it is
    ├── SerializationError    (ValueError)    no JSON value: .path
    ├── PayloadTooLarge       (ValueError)    .size, .limit
    ├── ReplayLimitExceeded   (RuntimeError)  .run_id, .limit
    ├── UnknownWorkflow       (LookupError)   not registered in this process
    ├── UnknownStep           (LookupError)   not registered in this process
    ├── LeaseLost             (RuntimeError)  the task belongs to somebody else, or is done
    ├── QueueFull             (RuntimeError)  .pending, .capacity
    ├── NonRetryable                          raised by step bodies: no further attempt
    ├── StepFailed                            a step has failed for good: .step_id, .error, .attempts
    ├── RunFailed                             a run has failed: .run_id, .error
    └── SignalConflict        (ValueError)    the signal id was used with another payload
"""

from __future__ import annotations

from supervisor.kernel.errors import SupervisorError

__all__ = [
    "CorruptHistory",
    "EventConflict",
    "FlowError",
    "InvalidRunId",
    "InvalidTransition",
    "LeaseLost",
    "NonDeterministic",
    "NonRetryable",
    "PayloadTooLarge",
    "QueueFull",
    "ReplayLimitExceeded",
    "RunConflict",
    "RunFailed",
    "RunNotFound",
    "RunTerminal",
    "SerializationError",
    "SignalConflict",
    "StepFailed",
    "StoreError",
    "UnknownStep",
    "UnknownWorkflow",
]


class FlowError(SupervisorError):
    """Root of what the durable layer raises.

    Its text comes from its fields, which are its arguments: so a copy or a pickle is the same error.
    """


class RunNotFound(FlowError, LookupError):
    """There is no run with this id."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(run_id)

    def __str__(self) -> str:
        return f"no run {self.run_id!r} in this store"


class RunConflict(FlowError, ValueError):
    """The id belongs to a run that was started, or canceled, in another way."""

    def __init__(self, run_id: str, reason: str) -> None:
        self.run_id = run_id
        self.reason = reason
        super().__init__(run_id, reason)

    def __str__(self) -> str:
        return f"run {self.run_id!r}: {self.reason}"


class RunTerminal(FlowError, RuntimeError):
    """The run has ended; nothing more can happen to it."""

    def __init__(self, run_id: str, status: str) -> None:
        self.run_id = run_id
        self.status = status
        super().__init__(run_id, status)

    def __str__(self) -> str:
        return f"run {self.run_id!r} has ended ({self.status})"


class InvalidRunId(FlowError, ValueError):
    """The id has other characters than ASCII letters, digits, `-` and `_`, or is too long."""


class InvalidTransition(FlowError, RuntimeError):
    """History does not allow this now. Nothing was written."""


class NonDeterministic(FlowError, RuntimeError):
    """The workflow asked for something else than its history says. Nothing was written."""

    def __init__(self, run_id: str, reason: str) -> None:
        self.run_id = run_id
        self.reason = reason
        super().__init__(run_id, reason)

    def __str__(self) -> str:
        return f"run {self.run_id!r} is not deterministic: {self.reason}"


class EventConflict(FlowError, RuntimeError):
    """The history is longer, or shorter, than the writer expected. Nothing was written."""

    def __init__(self, run_id: str, expected: int, actual: int) -> None:
        self.run_id = run_id
        self.expected = expected  # sequence of the last event as the writer knew it, 0 for none
        self.actual = actual
        super().__init__(run_id, expected, actual)

    @property
    def expected_sequence(self) -> int:
        """The same as `expected`."""
        return self.expected

    @property
    def actual_sequence(self) -> int:
        """The same as `actual`."""
        return self.actual

    def __str__(self) -> str:
        return f"run {self.run_id!r}: expected its last event to be {self.expected}, and it is {self.actual}"


class StoreError(FlowError, RuntimeError):
    """The store or the queue could not do what was asked. It may work later."""


class CorruptHistory(StoreError):
    """What is stored can't be read as a history. The bytes were left as they are."""


class SerializationError(FlowError, ValueError):
    """A value that JSON can't hold exactly.

    path: where in the value, such as `input.items[3]`.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(path, reason)

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


class PayloadTooLarge(FlowError, ValueError):
    """One event would be larger than the limit.

    size, limit: bytes of its JSON text; of a value too large to be written out, `size` is what it takes at least.
    """

    def __init__(self, what: str, size: int, limit: int) -> None:
        self.what = what
        self.size = size
        self.limit = limit
        super().__init__(what, size, limit)

    def __str__(self) -> str:
        return (
            f"{self.what} has {self.size} bytes of JSON, the limit is {self.limit}; "
            "keep large data elsewhere and pass a reference to it"
        )


class ReplayLimitExceeded(FlowError, RuntimeError):
    """One drive asked the workflow more often than `max_replays` allows. What it got done is kept."""

    def __init__(self, run_id: str, limit: int) -> None:
        self.run_id = run_id
        self.limit = limit
        super().__init__(run_id, limit)

    def __str__(self) -> str:
        return (
            f"run {self.run_id!r} asked its workflow {self.limit} times in one drive; drive it again to go "
            "on, or give the engine a larger max_replays"
        )


class UnknownWorkflow(FlowError, LookupError):
    """No workflow of this name and version is registered in this process."""


class UnknownStep(FlowError, LookupError):
    """No step of this name is registered in this process."""


class LeaseLost(FlowError, RuntimeError):
    """The lease was reclaimed, given up, or replaced by a newer one. What was done under it does not count."""


class QueueFull(FlowError, RuntimeError):
    """The queue holds as many tasks as it may."""

    def __init__(self, pending: int, capacity: int) -> None:
        self.pending = pending
        self.capacity = capacity
        super().__init__(pending, capacity)

    def __str__(self) -> str:
        return f"{self.pending} tasks are queued, and the capacity is {self.capacity}; try again later"


class NonRetryable(FlowError):
    """Raise it in a step body: the step has failed for good, whatever its retry policy."""


class StepFailed(FlowError):
    """A step has failed and is not tried again.

    step_id.  error: text of its last error.  attempts: how often it was tried.
    """

    def __init__(self, step_id: str, error: str, attempts: int) -> None:
        self.step_id = step_id
        self.error = error
        self.attempts = attempts
        super().__init__(step_id, error, attempts)

    def __str__(self) -> str:
        tries = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        return f"step {self.step_id!r} failed after {tries}: {self.error}"


class RunFailed(FlowError):
    """A run has failed.  error: text of why."""

    def __init__(self, run_id: str, error: str) -> None:
        self.run_id = run_id
        self.error = error
        super().__init__(run_id, error)

    def __str__(self) -> str:
        return f"run {self.run_id!r} failed: {self.error}"


class SignalConflict(FlowError, ValueError):
    """A signal with this id was sent with another name or payload."""

    def __init__(self, run_id: str, signal_id: str) -> None:
        self.run_id = run_id
        self.signal_id = signal_id
        super().__init__(run_id, signal_id)

    def __str__(self) -> str:
        return f"run {self.run_id!r} got signal {self.signal_id!r} before, with another name or payload"
