"""How a task ended: a value that is set once and kept for good."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from supervisor.kernel.text import shown

__all__ = ["OutcomeKind", "RejectionKind", "TaskOutcome"]


class OutcomeKind(StrEnum):
    """The ways a task can end."""

    COMPLETED = "completed"  # the last attempt succeeded and no other follows
    FAILED = "failed"  # a retryable failure, and no retry is left
    FATAL = "fatal"  # the body said that trying again is pointless, or raised SystemExit
    CANCELED = "canceled"  # somebody asked it to stop, or the body stopped by itself
    FORCE_ABORTED = "force_aborted"  # it was given up; its thread may still run
    PANICKED = "panicked"  # a BaseException got out of the body, or its cleanup raised
    REJECTED = "rejected"  # it was not admitted; the body never ran


class RejectionKind(StrEnum):
    """Why a task was not admitted."""

    ALREADY_EXISTS = "already_exists"  # the name is in use
    BATCH_REJECTED = "batch_rejected"  # another task of the same batch was refused
    SLOT_BUSY = "slot_busy"  # DROP_IF_RUNNING, and the slot had an owner
    QUEUE_FULL = "queue_full"  # QUEUE, and the slot's line was full
    SUPERSEDED = "superseded"  # a newer REPLACE took its place in line
    CAPACITY = "capacity"  # max_tasks, or no thread was to be had


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """How a task ended."""

    kind: OutcomeKind
    reason: str | None = None  # for people; the same text as on TaskFinished
    error: BaseException | None = None  # what the last attempt raised, without frames
    traceback: str | None = None  # of that error, as text
    exit_code: int | None = None  # of SystemExit, or given with Fail, Fatal, Timeout
    value: Any = None  # what the last successful attempt returned
    attempts: int = 0  # attempts that were started
    rejection: RejectionKind | None = None  # for REJECTED only

    def __repr__(self) -> str:
        told = [f"kind={self.kind.value!r}"]
        for name in ("reason", "error", "exit_code", "value", "rejection"):
            if (content := getattr(self, name)) is not None:
                told.append(f"{name}={shown(content)}")
        return f"TaskOutcome({', '.join([*told, f'attempts={self.attempts}'])})"

    @property
    def ok(self) -> bool:
        """True if the task completed."""
        return self.kind is OutcomeKind.COMPLETED
