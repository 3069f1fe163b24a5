"""MemoryEventStore: for tests, and for what need not survive the process."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from supervisor.durable.errors import RunNotFound, StoreError
from supervisor.durable.history import Envelope, FlowEvent
from supervisor.durable.projection import Wakeup
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.codec import Draft, Folds, decode_event, draft
from supervisor.durable.stores.index import WakeupIndex
from supervisor.durable.stores.protocol import DUE_LIMIT, Failure
from supervisor.kernel.arguments import count, count_or_none, instant
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from supervisor.durable.queues.memory import MemoryWorkQueue

__all__ = ["MemoryEventStore"]


class _Row(NamedTuple):
    """One event as it is kept: text, so that nobody can change it through a value it shares."""

    event_id: str
    at: datetime
    text: str


class _Run:
    """One run: its rows, and what a directory says of it."""

    __slots__ = ("created", "rows", "status", "workflow")

    def __init__(self, created: int) -> None:
        self.rows: list[_Row] = []
        self.created = created  # place in the order of creation
        self.status = RunStatus.PENDING
        self.workflow = ""


class MemoryEventStore:
    """Keeps histories in this process. As strict as the others, and gone with the process."""

    def __init__(self) -> None:
        self._lock = SYSTEM_CLOCK.lock()  # guards every field below; no user code runs under it
        self._runs: dict[str, _Run] = {}
        self._folds = Folds(self._rows)
        self._index = WakeupIndex()
        self._failures: dict[str, Failure] = {}
        self._queue: MemoryWorkQueue | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<MemoryEventStore {'closed' if self._closed else f'{len(self._runs)} runs'}>"

    def append(
        self, run_id: str, expected_sequence: int, events: Sequence[FlowEvent], at: datetime
    ) -> list[Envelope]:
        """See `FlowEventStore.append`."""
        entry = draft(run_id, expected_sequence, events, at)
        with self._lock:
            self._check_open()
            self._write(entry)
        return entry.envelopes

    def _write(self, entry: Draft) -> None:
        # holds _lock
        run = self._runs.get(entry.run_id)
        projection = self._folds.extend(entry, 0 if run is None else len(run.rows))
        if run is None:
            run = self._runs[entry.run_id] = _Run(len(self._runs))
        run.rows += [_Row(each.event_id, each.at, text) for each, text in entry.rows]
        run.status, run.workflow = projection.status, projection.workflow
        self._index.put(entry.run_id, projection.wakeups())
        self._folds.keep(projection)

    def read(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Envelope]:
        """See `FlowEventStore.read`."""
        count(after, "after", 0)
        count_or_none(limit, "limit", 1)
        with self._lock:
            self._check_open()
            if run_id not in self._runs:
                raise RunNotFound(run_id)
            rows = self._runs[run_id].rows[after : None if limit is None else after + limit]
        return _envelopes(run_id, after, rows)

    def _rows(self, run_id: str, after: int) -> list[Envelope]:
        # holds _lock
        run = self._runs.get(run_id)
        return [] if run is None else _envelopes(run_id, after, run.rows[after:])

    def list_run_ids(self) -> list[str]:
        """See `FlowEventStore.list_run_ids`."""
        with self._lock:
            self._check_open()
            return sorted(self._runs)

    def list_due_wakeups(self, now: datetime, limit: int = DUE_LIMIT) -> list[Wakeup]:
        """See `FlowEventStore.list_due_wakeups`."""
        when, most = instant(now, "now"), count(limit, "limit", 1)
        with self._lock:
            self._check_open()
            return self._index.due(when, most)

    def next_scheduled_wakeup(self, after: datetime | None = None) -> datetime | None:
        """See `FlowEventStore.next_scheduled_wakeup`."""
        when = None if after is None else instant(after, "after")
        with self._lock:
            self._check_open()
            return self._index.next(when)

    def close(self) -> None:
        """See `FlowEventStore.close`. What was stored is gone."""
        with self._lock:
            self._closed = True
            queue = self._queue
        if queue is not None:
            queue.close()

    # RunDirectory

    def find_runs(
        self,
        statuses: Collection[RunStatus] | None = None,
        workflow: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[str]:
        """See `RunDirectory.find_runs`."""
        with self._lock:
            self._check_open()
            found = [
                (-run.created if newest_first else 0, run_id)
                for run_id, run in self._runs.items()
                if (statuses is None or run.status in statuses) and workflow in (None, run.workflow)
            ]
        return [run_id for _, run_id in sorted(found)[:limit]]

    def mark_failure(self, run_id: str, reason: str, at: datetime) -> None:
        """See `RunDirectory.mark_failure`."""
        with self._lock:
            self._check_open()
            self._failures.pop(run_id, None)
            self._failures[run_id] = Failure(run_id, reason, instant(at, "at"))

    def clear_failure(self, run_id: str) -> None:
        """See `RunDirectory.clear_failure`."""
        with self._lock:
            self._failures.pop(run_id, None)

    def failures(self) -> list[Failure]:
        """See `RunDirectory.failures`."""
        with self._lock:
            self._check_open()
            return list(self._failures.values())

    def work_queue(self, clock: Clock) -> MemoryWorkQueue:
        """See `RunDirectory.work_queue`."""
        from supervisor.durable.queues.memory import MemoryWorkQueue

        with self._lock:
            self._check_open()
            if self._queue is None:
                self._queue = MemoryWorkQueue(clock=clock)
            return self._queue

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the memory store is closed; make a new one")


def _envelopes(run_id: str, after: int, rows: list[_Row]) -> list[Envelope]:
    return [
        Envelope(run_id, number, row.event_id, row.at, decode_event(row.text, run_id, number))
        for number, row in enumerate(rows, after + 1)
    ]
