"""What a store that offers no directory can be asked all the same, by reading its histories."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from math import inf
from typing import cast

from supervisor.durable.errors import CorruptHistory, InvalidTransition
from supervisor.durable.projection import Projection
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.protocol import Failure, FlowEventStore, RunDirectory
from supervisor.kernel.clock import SYSTEM_CLOCK

__all__ = ["ReadDirectory", "directory_of"]


class ReadDirectory:
    """Finds runs by folding every history; keeps failures in this process only."""

    def __init__(self, store: FlowEventStore) -> None:
        self._store = store
        self._lock = SYSTEM_CLOCK.lock()  # guards _failures
        self._failures: dict[str, Failure] = {}

    def find_runs(
        self,
        statuses: Collection[RunStatus] | None = None,
        workflow: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[str]:
        """See `RunDirectory.find_runs`. Runs that can't be read are taken for the newest."""
        found: list[tuple[float, str]] = []
        for run_id in self._store.list_run_ids():
            try:
                run = Projection.of(run_id, self._store.read(run_id))
            except (CorruptHistory, InvalidTransition):
                found.append((-inf if newest_first else 0.0, run_id))
                continue
            if (statuses is None or run.status in statuses) and workflow in (None, run.workflow):
                assert run.created_at is not None
                found.append((-run.created_at.timestamp() if newest_first else 0.0, run_id))
        return [run_id for _, run_id in sorted(found)[:limit]]

    def mark_failure(self, run_id: str, reason: str, at: datetime) -> None:
        """See `RunDirectory.mark_failure`."""
        with self._lock:
            self._failures[run_id] = Failure(run_id, reason, at)

    def clear_failure(self, run_id: str) -> None:
        """See `RunDirectory.clear_failure`."""
        with self._lock:
            self._failures.pop(run_id, None)

    def failures(self) -> list[Failure]:
        """See `RunDirectory.failures`."""
        with self._lock:
            return sorted(self._failures.values(), key=lambda each: each.at)


Directory = RunDirectory | ReadDirectory


def directory_of(store: FlowEventStore) -> Directory:
    """Return the directory that a store offers, or one that reads it."""
    # asked by hand: from Python 3.12 on, isinstance does not see what a wrapper passes on by __getattr__
    offers = all(callable(getattr(store, name, None)) for name in _OFFERED)
    return cast("RunDirectory", store) if offers else ReadDirectory(store)


_OFFERED = ("find_runs", "mark_failure", "clear_failure", "failures")
