"""JsonlEventStore: a directory of text files, one for each run, that any tool can read.

One process writes; any number may read, without a lock. All stores that one process opens on a directory share
what is known of it, and the right to write to it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.durable.errors import RunNotFound, StoreError
from supervisor.durable.history import Envelope, FlowEvent
from supervisor.durable.projection import Wakeup
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.codec import draft
from supervisor.durable.stores.disk import made, storage
from supervisor.durable.stores.protocol import DUE_LIMIT, Failure
from supervisor.durable.stores.run_directory import RunFiles
from supervisor.kernel.arguments import count, count_or_none, instant
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock
from supervisor.kernel.text import shown

if TYPE_CHECKING:
    from supervisor.durable.queues.memory import MemoryWorkQueue

__all__ = ["JsonlEventStore"]


class _Shelf:
    """The directories that this process has open, each once."""

    def __init__(self) -> None:
        self.lock = SYSTEM_CLOCK.lock()  # guards _open, and the user counts of what is in it
        self._open: dict[str, RunFiles] = {}

    def take(self, path: Path) -> RunFiles:
        # holds lock
        key = os.path.realpath(path)
        files = self._open.get(key)
        if files is None:
            files = self._open[key] = RunFiles(key)
        files.users += 1
        return files

    def give_back(self, files: RunFiles) -> MemoryWorkQueue | None:
        # holds lock; returns the queue that is to be closed
        files.users -= 1
        if files.users:
            return None
        del self._open[files.key]
        return files.close()

    def forked(self) -> None:
        """In a child: what the parent has open is the parent's; a lock that was held here stays held for ever."""
        self.lock = SYSTEM_CLOCK.lock()
        for files in self._open.values():
            files.abandon()
        self._open = {}


_SHELF = _Shelf()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SHELF.forked)


class JsonlEventStore:
    """Keeps each run in a file `RUN_ID.jsonl`, one line an append; see `FlowEventStore`.

    directory: made, with its parents, if it is not there; files of other kinds in it are left alone.  fsync: an
    append returns once the disk has it; without, once the operating system has it.

    The first append, or the first use of the work queue, takes the right to write to the directory, until `close`:
    `StoreError` in any other process.
    A forked child has to take it for itself. Raises StoreError if the directory can't be made.
    """

    def __init__(self, directory: str | os.PathLike[str], *, fsync: bool = True) -> None:
        if not isinstance(directory, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"directory must be a str or a Path, got {shown(directory)}")
        given = os.fspath(directory)
        if "\0" in str(given):
            raise ValueError(f"directory must be a path without NUL, got {directory!r}")
        if not given:
            raise ValueError("directory must be the path of one, got ''; write '.' for the current directory")
        self._path = Path(directory)
        self._fsync = bool(fsync)
        self._closed = False
        with _SHELF.lock:
            self._files = _SHELF.take(made(self._path))

    def __repr__(self) -> str:
        return f"<JsonlEventStore {str(self._path)!r}{' closed' if self._closed else ''}>"

    def append(
        self, run_id: str, expected_sequence: int, events: Sequence[FlowEvent], at: datetime
    ) -> list[Envelope]:
        """See `FlowEventStore.append`."""
        entry = draft(run_id, expected_sequence, events, at)
        self._open_files().append(entry, self._fsync)
        return entry.envelopes

    def read(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Envelope]:
        """See `FlowEventStore.read`. Raises CorruptHistory for a file with a damaged line."""
        count(after, "after", 0)
        count_or_none(limit, "limit", 1)
        found = self._open_files().read(run_id, after, limit)
        if found is None:
            raise RunNotFound(run_id)
        return found

    def list_run_ids(self) -> list[str]:
        """See `FlowEventStore.list_run_ids`. Runs whose file is damaged are among them."""
        return self._open_files().run_ids()

    def list_due_wakeups(self, now: datetime, limit: int = DUE_LIMIT) -> list[Wakeup]:
        """See `FlowEventStore.list_due_wakeups`. Runs whose file is damaged have none."""
        return self._open_files().due(instant(now, "now"), count(limit, "limit", 1))

    def next_scheduled_wakeup(self, after: datetime | None = None) -> datetime | None:
        """See `FlowEventStore.next_scheduled_wakeup`."""
        return self._open_files().next(None if after is None else instant(after, "after"))

    def close(self) -> None:
        """See `FlowEventStore.close`. The last store on a directory gives up the right to write to it."""
        queue = None
        with _SHELF.lock, storage(f"close {self._path}"):
            if not self._closed:
                self._closed = True
                if self._files.pid == os.getpid():
                    queue = _SHELF.give_back(self._files)
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
        """See `RunDirectory.find_runs`. Runs whose file is damaged are always among them, as if they were the newest."""
        return self._open_files().find(statuses, workflow, newest_first)[:limit]

    def mark_failure(self, run_id: str, reason: str, at: datetime) -> None:
        """See `RunDirectory.mark_failure`. Needs the right to write; if it was not held before, it is given back."""
        self._open_files().mark(Failure(run_id, reason, instant(at, "at")))

    def clear_failure(self, run_id: str) -> None:
        """See `RunDirectory.clear_failure`."""
        self._open_files().clear(run_id)

    def failures(self) -> list[Failure]:
        """See `RunDirectory.failures`."""
        return self._open_files().failures()

    def work_queue(self, clock: Clock) -> MemoryWorkQueue:
        """See `RunDirectory.work_queue`: in memory, and one for all stores of this process on the directory.

        Raises StoreError if another process writes to the directory.
        """
        return self._open_files().work_queue(clock)

    def _open_files(self) -> RunFiles:
        if self._closed:
            raise StoreError(f"the store on {self._path} is closed; make a new one")
        files = self._files
        return files if files.pid == os.getpid() else self._opened_in_child()

    def _opened_in_child(self) -> RunFiles:
        with _SHELF.lock:
            if self._files.pid != os.getpid():
                self._files = _SHELF.take(made(self._path))
            return self._files
