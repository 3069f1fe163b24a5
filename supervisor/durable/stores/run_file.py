"""RunFile: one file of a run, and what is known of it. It never changes a line that is there."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from zlib import crc32

from supervisor.durable.history import Envelope
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.codec import Draft
from supervisor.durable.stores.disk import BINARY, read_between, write_all
from supervisor.durable.stores.lines import Marks, line_of, scan

__all__ = ["RunFile", "Signature"]

_READ = os.O_RDONLY | BINARY
_WRITE = os.O_RDWR | os.O_APPEND | BINARY
Signature = tuple[int, int, int, int]
"""Epoch of who looked, inode, size, time: the same as long as nobody has touched the file."""


class RunFile:
    """For one thread at a time: guarded by whoever owns it. Every method may raise OSError."""

    __slots__ = (
        "_bare",
        "_check",
        "_end",
        "_last",
        "_lines",
        "_marks",
        "created",
        "event_id",
        "exists",
        "fresh",
        "path",
        "run_id",
        "sequence",
        "signature",
        "status",
        "workflow",
    )

    def __init__(self, run_id: str, path: str) -> None:
        self.run_id: str = run_id
        self.path: str = path
        # what the text means; told by whoever folds it
        self.exists: bool = False  # there is something in it, readable or not
        self.status: RunStatus | None = None  # None for what is no history
        self.workflow: str = ""
        self.created: tuple[datetime, int] | None = (
            None  # when, and its place among those of the same instant
        )
        self.fresh: list[Envelope] = []  # what was just decoded, while it is folded
        # what the text is
        self.signature: Signature | None = None  # of the file when all of it was known
        self.sequence: int = 0  # of the last event
        self.event_id: str = ""
        self._end: int = 0  # bytes that are good; behind them is a torn tail
        self._lines: int = 0  # complete lines up to there
        self._bare: bool = False  # the last good line has no newline
        self._last: int = 0  # offset of the last good line
        self._check: int = 0  # the sum of it and of what is behind it
        self._marks = Marks()

    def forget(self) -> None:
        """Know nothing of the text any more."""
        self.signature = None
        self.sequence, self.event_id = 0, ""
        self._end, self._lines, self._bare = 0, 0, False
        self._last, self._check = 0, 0
        self._marks = Marks()

    def opened(self, *, writes: bool = False) -> int | None:
        """Open it, to append if `writes`; None if it is not there."""
        try:
            return os.open(self.path, _WRITE if writes else _READ)
        except FileNotFoundError:
            return None

    def made(self) -> int:
        """Open it to append; make it if it is not there."""
        return os.open(self.path, _WRITE | os.O_CREAT, 0o666)

    def continues(self, fd: int, now: Signature) -> bool:
        """Return whether the text that is known still stands there, as far as its last line tells."""
        before = self.signature
        if before is None or before[:2] != now[:2] or now[2] < self._end or self._bare or not self.sequence:
            return False
        return crc32(read_between(fd, self._last, self._end)) == self._check

    def read_new(self, fd: int, size: int) -> list[Envelope]:
        """Read what stands behind the text that is known, up to `size`. Raises CorruptHistory."""
        start = self._end
        data = read_between(fd, start, size)
        found = scan(
            data, self.run_id, self.path, self._marks, sequence=self.sequence, offset=start, lines=self._lines
        )
        self._end, self._lines, self._bare = found.end, found.lines, found.bare
        if found.envelopes:
            self.sequence, self.event_id = found.envelopes[-1].sequence, found.envelopes[-1].event_id
            self._last, self._check = found.last, crc32(data[found.last - start : found.end - start])
        return found.envelopes

    def read_known(self, fd: int, after: int) -> list[Envelope]:
        """Return the events after `after`, of those that are known. Raises CorruptHistory."""
        sequence, offset, lines = self._marks.before(after)
        data = read_between(fd, offset, self._end)
        found = scan(data, self.run_id, self.path, sequence=sequence, offset=offset, lines=lines)
        return found.envelopes[after - sequence :]

    def write(self, fd: int, entry: Draft, sync: Callable[[int], None]) -> None:
        """Append a line behind the text that is known, in one write, and call `sync`.

        A torn tail is cut off before. If anything is raised, the file ends where it did, or in a torn tail.
        """
        line = line_of(entry.rows)
        data = b"\n" + line if self._bare else line
        torn = self.signature is not None and self.signature[2] > self._end
        self.signature = None  # whatever ends this early: the next call looks again
        try:
            if torn:
                os.ftruncate(fd, self._end)
            write_all(fd, data)
            sync(fd)
        except BaseException:
            self._cut_back(fd)
            raise
        self._end += len(data)
        self._last, self._check = self._end - len(line), crc32(line)
        self._lines += 2 if self._bare else 1
        self._bare = False
        self.sequence, self.event_id = entry.sequence, entry.rows[-1][0].event_id
        self._marks.add(self.sequence, self._end, self._lines)

    def _cut_back(self, fd: int) -> None:
        try:
            os.ftruncate(fd, self._end)
            if self.sequence == 0:
                os.unlink(self.path)
        except OSError:
            pass  # a torn tail is cut off by the next append; a line that is whole was appended after all
