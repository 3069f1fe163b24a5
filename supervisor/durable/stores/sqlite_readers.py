"""The connections that read a SQLite file: lent to one thread at a time, kept for the next, none during a fork."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from supervisor.durable.errors import StoreError
from supervisor.kernel.clock import SYSTEM_CLOCK

__all__ = ["Readers"]

_IDLE_READERS = 8  # connections that are kept


class Readers:
    """As many connections as threads that read at the same moment."""

    def __init__(self, path: str, connect: Callable[[], sqlite3.Connection]) -> None:
        self._path = path
        self._connect = connect
        self._idle: list[sqlite3.Connection] = []
        self._inherited: list[sqlite3.Connection] = []  # of the parent, see `reset`
        self._renew()

    def _renew(self) -> None:
        self._lock = SYSTEM_CLOCK.lock()  # guards the fields below, and _idle
        self._returned = SYSTEM_CLOCK.condition(self._lock)
        self._lent = 0
        self._paused = False
        self._closed = False

    def lend(self) -> sqlite3.Connection:
        """Return one, to be given back. Raises StoreError once they are closed, and what SQLite raises."""
        with self._lock:
            if self._paused:
                self._returned.wait_for(lambda: not self._paused)
            if self._closed:
                raise StoreError(f"the SQLite file {self._path!r} was closed; open it again")
            self._lent += 1
            if self._idle:
                return self._idle.pop()
        try:
            reader = self._connect()
            reader.execute("PRAGMA query_only=ON")
        except BaseException:
            with self._lock:
                self._lent -= 1
            raise
        return reader

    def give_back(self, reader: sqlite3.Connection) -> None:
        """Keep it for the next, or close it."""
        with self._lock:
            if not self._paused and not self._closed and len(self._idle) < _IDLE_READERS:
                self._idle.append(reader)
                self._lent -= 1
                return
        reader.close()
        with self._lock:  # after it was closed: a fork waits for that
            self._lent -= 1
            if self._paused:
                self._returned.notify_all()

    def close(self) -> None:
        """Lend no more, for good. What is lent is closed when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()

    def pause(self, patience: float) -> None:
        """Close all, and lend none until `resume`.  patience: seconds to wait for what is lent."""
        with self._lock:
            self._paused = True
            self._returned.wait_for(lambda: self._lent == 0, patience)
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()

    def resume(self) -> None:
        """Lend again."""
        with self._lock:
            self._paused = False
            self._returned.notify_all()

    def reset(self) -> None:
        """After a fork, in the child: begin anew, and touch nothing of the parent."""
        # Normally there are none. Not even closed: that would write to the file.
        self._inherited += self._idle
        self._idle = []
        closed = self._closed
        self._renew()
        self._closed = closed
