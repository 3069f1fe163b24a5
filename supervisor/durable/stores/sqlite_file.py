"""One SQLite file: who writes to it, in transactions that several share, and who reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, TypeVar, cast

from supervisor.durable.bell import Bell
from supervisor.durable.errors import StoreError
from supervisor.durable.stores.group import GroupCommit, Job, Together
from supervisor.durable.stores.sqlite_errors import busy, failure
from supervisor.durable.stores.sqlite_readers import Readers

__all__ = ["Database", "Synchronous"]

_WAL_TRIES = 100

Synchronous = Literal["full", "normal"]
"""When a commit is done: on the disk (`full`), or with the system, which a power loss may undo (`normal`)."""

T = TypeVar("T")


class Database:
    """The writer of one file, with its group commit, and the readers.

    Made by `open_database` of the registry, and given back with `close` as often as it was opened.
    """

    def __init__(self, path: str, busy_timeout: float, give_up: Callable[[Database], bool]) -> None:
        self.path = path
        self._busy_timeout = busy_timeout
        self._give_up = give_up  # counts one use less, and says whether it was the last
        self.users: int = 0  # guarded by the lock of the registry, as is _asked
        self._asked: list[Synchronous] = []
        self._writer: sqlite3.Connection | None = None  # of the thread that leads
        self._written_with: Synchronous | None = None  # how _writer is set
        self._group: GroupCommit[sqlite3.Connection] = GroupCommit(self._write_all)
        self._inherited: list[sqlite3.Connection] = []  # of the parent, see `reset`
        self._readers = Readers(path, self._connect)
        self.bells: tuple[Bell, ...] = ()  # of the queues on this file; guarded by the lock of the registry

    def __repr__(self) -> str:
        return f"<Database {self.path!r}>"

    def write(self, work: Callable[[sqlite3.Connection], T], done: Callable[[T], object] | None = None) -> T:
        """Run `work` in a transaction, which it may share with others, and return its result once it is durable.

        See `Job` for what it may do. Raises StoreError, and what `work` raises.
        """
        return cast("T", self._group.submit(work, done))

    def write_together(
        self,
        work: Callable[[sqlite3.Connection, Sequence[Any]], Sequence[Any]],
        argument: object,
        done: Callable[[Any], object] | None = None,
    ) -> Any:
        """The same for a work that takes the arguments of several calls at once, see `Together`."""
        return self._group.submit(Together(work), done, argument)

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        """Return the rows of a query, as they are at one instant. Raises StoreError."""
        reader: sqlite3.Connection | None = None
        try:
            reader = self._readers.lend()
            return reader.execute(sql, values).fetchall()  # pyright: ignore[reportArgumentType]
        except sqlite3.Error as error:
            raise failure(self.path, error) from error
        finally:
            if reader is not None:
                self._readers.give_back(reader)

    def ring(self) -> None:
        """Wake who waits for a task, in this process."""
        for bell in self.bells:
            bell.ring()

    def ask(self, synchronous: Synchronous | None) -> None:
        # holds the lock of the registry
        self.users += 1
        if synchronous is not None:
            self._asked.append(synchronous)

    @property
    def synchronous(self) -> Synchronous:
        """How commits are made: the strictest that somebody asked for."""
        return "normal" if self._asked and "full" not in self._asked else "full"

    def close(self) -> None:
        """Give up one use of it. The last one waits for what is being written, and closes all connections."""
        if self._give_up(self):
            self.shut()

    def shut(self) -> None:
        """Close all connections, for good."""
        self._group.close(f"the SQLite file {self.path!r} was closed; open it again")
        self._readers.close()
        self._close_writer()

    # Connections

    def connect(self) -> None:
        """Make the file if there is none, and see that it is what it must be. Raises StoreError."""
        try:
            self._open_writer()
        except sqlite3.Error as error:
            self._close_writer()
            raise failure(self.path, error) from error
        except BaseException:
            self._close_writer()
            raise

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self.path,
            timeout=self._busy_timeout,
            isolation_level=None,  # transactions begin where we say so
            check_same_thread=False,  # one thread at a time, guarded here
        )

    def _open_writer(self) -> sqlite3.Connection:
        if self._writer is None:
            writer = self._writer = self._connect()
            self._written_with = None
            _use_wal(writer, self.path)
            writer.execute("PRAGMA foreign_keys=ON")
        if self._written_with != self.synchronous:
            self._written_with = self.synchronous
            self._writer.execute(f"PRAGMA synchronous={self.synchronous}")
        return self._writer

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except sqlite3.Error:
                pass  # what was committed is safe, and it rolls the rest back

    # Writing; only one thread at a time is in here

    def _write_all(self, jobs: list[Job[sqlite3.Connection]]) -> None:
        """Settle all jobs, in one transaction if that goes well."""
        try:
            self._transact(jobs)
        except Exception as error:
            if len(jobs) == 1 or busy(error):
                self._fail(jobs, error)
                return
            # One of them spoiled it, and the others must not suffer: each by itself.
            left = [job for job in jobs if not job.settled]
            for place, job in enumerate(left):
                try:
                    self._transact([job])
                except Exception as own:
                    if busy(own):
                        self._fail(left[place:], own)
                        return
                    self._fail([job], own)

    def _transact(self, jobs: list[Job[sqlite3.Connection]]) -> None:
        """Settle all jobs in one transaction, or roll all back and raise."""
        committing = False
        writer: sqlite3.Connection | None = None
        try:
            writer = self._open_writer()
            if writer.in_transaction:  # a second Ctrl-C came before the rollback for the first
                writer.execute("ROLLBACK")
            writer.execute("BEGIN IMMEDIATE")
            for work, neighbors in groupby(jobs, key=attrgetter("work")):
                if isinstance(work, Together):
                    _do_together(list(neighbors), cast("Together[sqlite3.Connection]", work), writer)
                else:
                    for job in neighbors:
                        _do(job, work, writer)
            committing = True
            writer.execute("COMMIT")
            for job in jobs:
                job.settle()
        except BaseException as error:
            failed = isinstance(error, sqlite3.Error)
            if writer is not None and writer.in_transaction:
                _roll_back(writer)
            elif committing and not failed:  # interrupted, and what is committed stays so
                for job in jobs:
                    job.settle()
            if failed and not busy(error):
                self._close_writer()  # after an error of the disk a new one may do better
            raise

    def _fail(self, jobs: list[Job[sqlite3.Connection]], error: Exception) -> None:
        for job in jobs:
            if isinstance(error, sqlite3.Error):
                own: Exception = failure(self.path, error)
                own.__cause__ = error
            else:
                own = error
            job.fail(own)

    # A fork, see the registry

    def pause(self, patience: float) -> None:
        """Before a fork: let what is being done end, close all connections, and begin nothing until `resume`.

        patience: seconds to wait for what is being written, and again for what is being read.
        """
        rests = self._group.pause(patience)
        self._readers.pause(patience)
        if rests:
            self._close_writer()

    def resume(self) -> None:
        """After a fork, in the parent."""
        self._readers.resume()
        self._group.resume()

    def reset(self) -> None:
        """After a fork, in the child: only the forking thread exists, and nothing of the parent may be touched."""
        if self._writer is not None:  # normally there is none
            self._inherited.append(self._writer)
            self._writer = None
        self._group.reset()
        self._readers.reset()


def _do_together(
    jobs: list[Job[sqlite3.Connection]], work: Together[sqlite3.Connection], writer: sqlite3.Connection
) -> None:
    for job, result in zip(jobs, work.work(writer, [job.argument for job in jobs]), strict=True):
        failed = isinstance(result, Exception)
        job.result, job.error = (None, result) if failed else (result, None)


def _do(
    job: Job[sqlite3.Connection], work: Callable[[sqlite3.Connection], Any], writer: sqlite3.Connection
) -> None:
    before = writer.total_changes
    job.error = None
    try:
        job.result = work(writer)
    except sqlite3.Error:
        raise
    except Exception as error:
        if writer.total_changes != before:
            raise
        job.error = error


def _roll_back(writer: sqlite3.Connection) -> None:
    try:
        writer.execute("ROLLBACK")
    except sqlite3.Error:
        pass  # it has done so by itself


def _use_wal(connection: sqlite3.Connection, path: str) -> None:
    """Switch to a write-ahead log, in a race with others who do."""
    mode = ""
    for _ in range(_WAL_TRIES):
        try:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            if mode != "wal":
                (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            break
        except sqlite3.OperationalError as error:
            if not busy(error):
                raise
            # The switch does not wait for others by itself; this does.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("COMMIT")
    if mode != "wal":
        raise StoreError(
            f"the SQLite file {path!r} can't have a write-ahead log (it is {mode!r}); put it on a local disk"
        )
