"""What the engine needs of a store. Every store behaves the same; one test suite runs over all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from supervisor.durable.history import Envelope, FlowEvent
from supervisor.durable.projection import Wakeup
from supervisor.durable.snapshot import RunStatus

if TYPE_CHECKING:
    from supervisor.durable.queues.protocol import WorkQueue
    from supervisor.kernel.clock import Clock

__all__ = ["DUE_LIMIT", "Failure", "FlowEventStore", "RunDirectory"]

DUE_LIMIT = 1000  # wakeups that one scan lists


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that waits for a person: driving it again would not help."""

    run_id: str
    reason: str
    at: datetime  # UTC


class FlowEventStore(Protocol):
    """Append-only histories of runs. Any thread may call it.

    Every method raises `StoreError` when the storage fails.
    """

    def append(
        self, run_id: str, expected_sequence: int, events: Sequence[FlowEvent], at: datetime
    ) -> list[Envelope]:
        """Append one or more events, all or nothing, and return them as they were stored, durably.

        expected_sequence: of the last event there is, 0 to create the run.  at: aware, of all of them.
        Checked in this order, and nothing is written if a check fails: values (`SerializationError`,
        `PayloadTooLarge`, `InvalidRunId`), sequence (`EventConflict`), legality (`InvalidTransition`).
        """
        ...

    def read(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Envelope]:
        """Return the events after a sequence, in order, at most `limit`. Raises RunNotFound."""
        ...

    def list_run_ids(self) -> list[str]:
        """Return the ids of all runs, sorted."""
        ...

    def list_due_wakeups(self, now: datetime, limit: int = DUE_LIMIT) -> list[Wakeup]:
        """Return what is due at `now` or before, by due time, then run and subject; at most `limit`."""
        ...

    def next_scheduled_wakeup(self, after: datetime | None = None) -> datetime | None:
        """Return the earliest instant at which something is due; only later ones than `after` if given."""
        ...

    def close(self) -> None:
        """Give up files and connections. Closing twice is the same as once; other calls then raise StoreError."""
        ...


@runtime_checkable
class RunDirectory(Protocol):
    """What a store may offer beside; without it the engine reads histories instead."""

    def find_runs(
        self,
        statuses: Collection[RunStatus] | None = None,
        workflow: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[str]:
        """Return ids of runs by id, or by age with the newest first.

        A run whose history can't be read, so that its status is not known, is among them whatever is asked for:
        who reads it is told. A store that keeps the status beside the history goes by that.
        """
        ...

    def mark_failure(self, run_id: str, reason: str, at: datetime) -> None:
        """Keep that the run waits for a person; a later mark replaces an earlier one."""
        ...

    def clear_failure(self, run_id: str) -> None:
        """Take the mark of a run back, if it has one. Cheap when it has none."""
        ...

    def failures(self) -> list[Failure]:
        """Return the marks, oldest first."""
        ...

    def work_queue(self, clock: Clock) -> WorkQueue:
        """Return the queue that lives where this store lives; the same for each call, closed with the store."""
        ...
