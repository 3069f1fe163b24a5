"""RunFiles: how one process reads and writes a directory of run files, and when it looks again.

What is known stands in the catalog. It is used only while the file is as it was: each call looks at its size
and times first. The writing process trusts its own listing of the directory as long as the directory is as
it was.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.durable.errors import CorruptHistory, InvalidRunId, StoreError
from supervisor.durable.history import Envelope
from supervisor.durable.projection import Wakeup
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.codec import Draft, check_run_id
from supervisor.durable.stores.disk import fsync_directory, storage
from supervisor.durable.stores.failure_file import FailureFile
from supervisor.durable.stores.protocol import Failure
from supervisor.durable.stores.run_catalog import RunCatalog
from supervisor.durable.stores.run_file import RunFile, Signature
from supervisor.durable.stores.writer_lock import WriterLock
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock, Lock

if TYPE_CHECKING:
    from supervisor.durable.queues.memory import MemoryWorkQueue

__all__ = ["RunFiles"]

_SUFFIX = ".jsonl"
_NEVER = -1  # no time of a directory: what is not known is looked at again
_STRIPES = 64  # locks for all runs: as many may be written at the same moment


class RunFiles:
    """The files of one directory. Any thread may call it; see the store for what the methods do.

    Locks are taken in this order: one of the stripes, then the one of the directory. What waits for the disk
    under a stripe holds up only the runs of that stripe.
    """

    def __init__(self, key: str) -> None:
        self.key = key  # the real path
        self.pid: int = os.getpid()
        self.users = 0  # guarded by whoever shares this
        self._stripes: tuple[Lock, ...] = tuple(SYSTEM_CLOCK.lock() for _ in range(_STRIPES))
        self._lock = SYSTEM_CLOCK.lock()  # guards every field below
        self._writer = WriterLock(Path(key))
        self._epoch = 0  # what was known before the right to write was taken is looked at again
        self._catalog = RunCatalog()
        self._listed: int | None = None  # time of the directory when all its files were known
        self._failures = FailureFile(Path(key))
        self._queue: MemoryWorkQueue | None = None
        self._closed = False

    # -- one run

    def append(self, entry: Draft, fsync: bool) -> None:
        """Write an append that was drafted, and return once it is durable."""
        with self._stripe(entry.run_id), storage(f"append to run {entry.run_id!r} in {self.key}"):
            run = self._run(entry.run_id, writes=True)
            fd = run.opened(writes=True)
            before = self._time() if fd is None else None
            try:
                self._refresh(run, fd)
                with self._lock:
                    projection = self._catalog.extended(run, entry)
                if fd is None:
                    fd = run.made()
                self._write(run, fd, entry, fsync)
                signature = self._signature(fd)
                with self._lock:
                    self._catalog.note(run, projection)
                    if (
                        before is not None and before == self._listed
                    ):  # nothing else has changed in the directory
                        self._listed = self._time()
                run.signature = signature  # last: if the append is interrupted, the next call looks again
            except BaseException:
                if run.signature is None:  # then what is known is not what the file holds
                    with self._lock:
                        self._listed = _NEVER if self._listed is not None else None
                raise
            finally:
                if fd is not None:
                    os.close(fd)

    def _write(self, run: RunFile, fd: int, entry: Draft, fsync: bool) -> None:
        # holds the stripe
        first = run.sequence == 0

        def sync(fd: int) -> None:
            if fsync:
                os.fsync(fd)
                if first:  # also if it was there: who made it may have died before its name was durable
                    fsync_directory(self.key)

        run.write(fd, entry, sync)

    def read(self, run_id: str, after: int, limit: int | None) -> list[Envelope] | None:
        """Return events; None if there is no such run."""
        if not _is_run_id(run_id):
            return None
        with self._stripe(run_id), storage(f"read run {run_id!r} in {self.key}"):
            run = self._run(run_id)
            fd = run.opened()
            try:
                found = self._refresh(run, fd)
                if fd is None or run.sequence == 0:
                    self._drop(run)
                    return None
                if found and found[0].sequence <= after + 1:
                    found = found[after + 1 - found[0].sequence :]
                elif after < run.sequence:
                    found = run.read_known(fd, after)
                else:
                    found = []
            finally:
                if fd is not None:
                    os.close(fd)
        return found[:limit]

    def _refresh(self, run: RunFile, fd: int | None) -> list[Envelope]:
        """Read what is new in a file and fold it; return what was read.

        fd: None if there is no file.  Raises CorruptHistory; then the run has no status and no wakeups.
        """
        # holds the stripe
        if fd is None:
            if run.signature is not None or run.exists:
                self._forget(run, exists=False)
            return []
        signature = self._signature(fd)
        if signature == run.signature:
            return []
        # While this process holds the right to write, nobody else should: what has changed is read anew.
        if self._writer.held or not run.continues(fd, signature):
            self._forget(run, exists=run.exists)
        run.signature = None
        try:
            found = run.read_new(fd, signature[2])
        except CorruptHistory:
            self._forget(run, exists=True)
            raise
        with self._lock:
            if run.sequence == 0:
                self._catalog.unnote(run, exists=False)
            elif found:
                self._catalog.fold(run, found)
        run.signature = signature
        return found

    def _forget(self, run: RunFile, exists: bool) -> None:
        # holds the stripe
        run.forget()
        with self._lock:
            self._catalog.unnote(run, exists)

    def _run(self, run_id: str, *, writes: bool = False) -> RunFile:
        # holds the stripe
        with self._lock:
            self._check_open()
            if writes:
                self._take_the_right()
            return self._catalog.entry(run_id, os.path.join(self.key, run_id + _SUFFIX))

    def _drop(self, run: RunFile) -> None:
        # holds the stripe
        with self._lock:
            self._catalog.drop(run)

    def _take_the_right(self) -> None:
        # holds _lock
        if not self._writer.held:
            self._writer.take()
            self._epoch += 1
            self._listed = None

    def _stripe(self, run_id: str) -> Lock:
        return self._stripes[hash(run_id) % _STRIPES]

    def _signature(self, fd: int) -> Signature:
        found = os.fstat(fd)
        return self._epoch, found.st_ino, found.st_size, found.st_mtime_ns

    # -- all runs

    def run_ids(self) -> list[str]:
        """Return the ids of all runs, sorted."""
        self._look()
        with self._lock:
            return self._catalog.run_ids()

    def due(self, now: datetime, limit: int) -> list[Wakeup]:
        """Return what is due, in order."""
        self._look()
        with self._lock:
            return self._catalog.due(now, limit)

    def next(self, after: datetime | None) -> datetime | None:
        """Return the next instant at which something is due."""
        self._look()
        with self._lock:
            return self._catalog.next(after)

    def find(
        self, statuses: Collection[RunStatus] | None, workflow: str | None, newest_first: bool
    ) -> list[str]:
        """Return ids of runs, sorted as asked; those that can't be read belong to every answer, and come first."""
        self._look()
        with self._lock:
            damaged, found = self._catalog.find(statuses, workflow)
        if newest_first:
            return sorted(damaged) + [run_id for _, run_id in sorted(found, reverse=True)]
        return sorted(damaged + [run_id for _, run_id in found])

    def _look(self) -> None:
        """Know every file as it is now; damaged ones are passed over."""
        with storage(f"list the runs in {self.key}"):
            time = self._time()
            with self._lock:
                self._check_open()
                epoch, listed, writes = self._epoch, self._listed, self._writer.held
                if writes and time == listed:
                    return
                # What this process alone writes, it knows; files that came from elsewhere it does not.
                trusted = writes and listed is not None
                known = self._catalog.read_whole() if trusted else set[str]()
                seen = self._catalog.entries()
            there = set(self._names())
            for run_id in sorted(there - known) + sorted(seen - there):
                self._look_at(run_id)
            with self._lock:
                if epoch == self._epoch:
                    self._listed = time

    def _look_at(self, run_id: str) -> None:
        with self._stripe(run_id):
            run = self._run(run_id)
            fd = run.opened()
            try:
                self._refresh(run, fd)
            except CorruptHistory:
                pass  # who reads the run is told
            finally:
                if fd is not None:
                    os.close(fd)
            self._drop(run)

    def _names(self) -> Iterator[str]:
        with os.scandir(self.key) as entries:
            for entry in entries:
                name, suffix = os.path.splitext(entry.name)
                if suffix == _SUFFIX and _is_run_id(name) and entry.is_file():
                    yield name

    def _time(self) -> int:
        return os.stat(self.key).st_mtime_ns

    # -- what stands beside

    def mark(self, failure: Failure) -> None:
        """Keep a failure; it replaces an earlier one of the run."""
        with self._lock, storage(f"mark a failure of run {failure.run_id!r} in {self.key}"):
            self._check_open()
            held = self._writer.held
            self._take_the_right()
            try:
                marks = self._failures.load()
                marks.pop(failure.run_id, None)
                marks[failure.run_id] = failure
                self._failures.save(marks)
            finally:
                if not held:  # who only looks and finds a damaged run must not keep those out who write
                    self._writer.release()

    def clear(self, run_id: str) -> None:
        """Take the mark of a run back."""
        with self._lock, storage(f"clear the failure of run {run_id!r} in {self.key}"):
            self._check_open()
            marks = self._failures.load()
            if marks.pop(run_id, None) is not None:
                self._take_the_right()
                self._failures.save(marks)

    def failures(self) -> list[Failure]:
        """Return the marks, oldest first."""
        with self._lock, storage(f"read the failures in {self.key}"):
            self._check_open()
            return list(self._failures.load().values())

    def work_queue(self, clock: Clock) -> MemoryWorkQueue:
        """Return the queue, made at the first call. Only who may write has use for it: takes the right."""
        from supervisor.durable.queues.memory import MemoryWorkQueue

        with self._lock:
            self._check_open()
            self._take_the_right()
            if self._queue is None:
                self._queue = MemoryWorkQueue(clock=clock)
            return self._queue

    # -- the end

    def close(self) -> MemoryWorkQueue | None:
        """Wait for what is being written and give up the right to write; return the queue, to be closed."""
        with self._lock:
            self._closed = True  # from here on nobody enters a stripe to write
        for each in self._stripes:
            with each:
                pass
        with self._lock:
            self._writer.release()
            return self._queue

    def abandon(self) -> None:
        """In a forked child: leave the right to write to the parent."""
        self._writer.abandon()

    def _check_open(self) -> None:
        # holds _lock
        if self._closed:
            raise StoreError(f"the store on {self.key} is closed; make a new one")


def _is_run_id(name: str) -> bool:
    try:
        check_run_id(name)
    except InvalidRunId:
        return False
    return True
