"""RunCatalog: what is known of the runs of a directory: where each stands, which is older, what is due."""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import datetime

from supervisor.durable.errors import CorruptHistory, InvalidTransition
from supervisor.durable.history import Envelope
from supervisor.durable.projection import Projection, Wakeup
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.codec import Draft, Folds
from supervisor.durable.stores.index import WakeupIndex
from supervisor.durable.stores.run_file import RunFile

__all__ = ["RunCatalog"]


class RunCatalog:
    """One entry for each file that somebody asked for or that was found.

    For one thread at a time: guarded by whoever owns it. Whoever names a run owns its file, too.
    """

    __slots__ = ("_folds", "_index", "_ordinal", "_runs")

    def __init__(self) -> None:
        self._runs: dict[str, RunFile] = {}
        self._ordinal = 0
        self._folds = Folds(self._rows)
        self._index = WakeupIndex()

    # -- entries

    def entry(self, run_id: str, path: str) -> RunFile:
        """Return the entry of a run, made if there is none."""
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = RunFile(run_id, path)
        return run

    def drop(self, run: RunFile) -> None:
        """Take an entry out if its file is not there."""
        if not run.exists:
            self._runs.pop(run.run_id, None)

    def entries(self) -> set[str]:
        """Return the ids of all entries."""
        return set(self._runs)

    def read_whole(self) -> set[str]:
        """Return the ids of the entries whose files were read to the end."""
        return {run.run_id for run in self._runs.values() if run.signature is not None}

    # -- what one run says

    def extended(self, run: RunFile, draft: Draft) -> Projection:
        """Return what a run says with a draft folded on it; see `Folds.extend`. Noted once that is written."""
        return self._folds.extend(draft, run.sequence, run.event_id or None)

    def fold(self, run: RunFile, envelopes: list[Envelope]) -> None:
        """Note what a run says with events that were just read, its last ones."""
        run.fresh = envelopes
        try:
            self.note(run, self._folds.at(run.run_id, run.sequence, run.event_id))
        except (InvalidTransition, CorruptHistory):  # readable, but no history: told to who appends
            self.unnote(run, exists=True)
        finally:
            run.fresh = []

    def note(self, run: RunFile, projection: Projection) -> None:
        """Note what a run says."""
        run.exists = True
        run.status, run.workflow = projection.status, projection.workflow
        if projection.created_at is not None and (
            run.created is None or run.created[0] != projection.created_at
        ):
            self._ordinal += 1
            run.created = (projection.created_at, self._ordinal)
        self._index.put(run.run_id, projection.wakeups())
        self._folds.keep(projection)

    def unnote(self, run: RunFile, exists: bool) -> None:
        """Note that a run says nothing: it has no file, or one that can't be understood (`exists`)."""
        run.exists, run.status = exists, None
        self._index.put(run.run_id, [])
        self._folds.forget(run.run_id)

    def _rows(self, run_id: str, after: int) -> list[Envelope]:
        run = self._runs[run_id]
        if run.fresh and run.fresh[0].sequence <= after + 1:
            return run.fresh[after + 1 - run.fresh[0].sequence :]
        fd = run.opened()
        if fd is None:
            return []
        try:
            return run.read_known(fd, after)
        finally:
            os.close(fd)

    # -- what all runs say

    def run_ids(self) -> list[str]:
        """Return the ids of all runs, sorted."""
        return sorted(run.run_id for run in self._runs.values() if run.exists)

    def find(
        self, statuses: Collection[RunStatus] | None, workflow: str | None
    ) -> tuple[list[str], list[tuple[tuple[datetime, int], str]]]:
        """Return the ids of runs that say nothing, and place and id of those that are asked for."""
        damaged = [run.run_id for run in self._runs.values() if run.exists and run.status is None]
        found = [
            (run.created, run.run_id)
            for run in self._runs.values()
            if run.status is not None
            and run.created is not None
            and (statuses is None or run.status in statuses)
            and workflow in (None, run.workflow)
        ]
        return damaged, found

    def due(self, now: datetime, limit: int) -> list[Wakeup]:
        """Return what is due, in order."""
        return self._index.due(now, limit)

    def next(self, after: datetime | None) -> datetime | None:
        """Return the next instant at which something is due."""
        return self._index.next(after)
