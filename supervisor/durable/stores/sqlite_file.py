"""One SQLite file: its connections, shared by everything in this process that uses the file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, TypeVar, cast

from supervisor.durable.bell import Bell
from supervisor.durable.errors import StoreError
from supervisor.durable.stores.group import GroupCommit, Job, Together
from supervisor.kernel.arguments import seconds
from supervisor.kernel.clock import SYSTEM_CLOCK, current_ident
from supervisor.kernel.text import shown

__all__ = ["BUSY_TIMEOUT", "Database", "Synchronous", "open_database"]

BUSY_TIMEOUT = 5.0  # seconds to wait for the lock that another process holds
_FORK_PATIENCE = 10.0  # seconds that a fork waits for what is being read and written
_IDLE_READERS = 8  # connections that are kept
_WAL_TRIES = 100
_LONGEST_WAIT = 2_000_000.0  # seconds; SQLite counts milliseconds in 32 bits

Synchronous = Literal["full", "normal"]
"""When a commit is done: on the disk (`full`), or with the system, which a power loss may undo (`normal`)."""

T = TypeVar("T")

_CURES = {
    sqlite3.SQLITE_BUSY: "another program has held its lock too long; look for a transaction that it left open, "
    "or give a longer busy_timeout",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable for this user",
    sqlite3.SQLITE_IOERR: "look at the disk, and at the log of the system",
    sqlite3.SQLITE_CORRUPT: "the file is damaged and was left as it is; restore it from a backup",
    sqlite3.SQLITE_FULL: "nothing was written; free some space and try again",
    sqlite3.SQLITE_CANTOPEN: "look at the folder, and at the permissions of this user",
    sqlite3.SQLITE_NOTADB: "it was left as it is; give the path of another file",
}


class Database:
    """The writer with its group commit, and a stack of readers, of one file.

    Made by `open_database`, and given back with `close` as often as it was opened.
    """

    def __init__(self, path: str, busy_timeout: float) -> None:
        self.path = path
        self._busy_timeout = busy_timeout
        self.users: int = 0  # guarded by _registry_lock, as is _asked
        self._asked: list[Synchronous] = []
        self._writer: sqlite3.Connection | None = None  # of the thread that leads
        self._written_with: Synchronous | None = None  # how _writer is set
        self._group: GroupCommit[sqlite3.Connection] = GroupCommit(self._write_all)
        self._inherited: list[sqlite3.Connection] = []  # of the parent, see `reset`
        self._idle: list[sqlite3.Connection] = []
        self._new_readers()
        self.bells: tuple[Bell, ...] = ()  # of the queues on this file; guarded by _registry_lock

    def _new_readers(self) -> None:
        self._lock = SYSTEM_CLOCK.lock()  # guards the fields below, and _idle
        self._returned = SYSTEM_CLOCK.condition(self._lock)
        self._lent = 0
        self._paused = False
        self._closed = False

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
            reader = self._lend()
            return reader.execute(sql, values).fetchall()  # pyright: ignore[reportArgumentType]
        except sqlite3.Error as error:
            raise self._failure(error) from error
        finally:
            self._give_back(reader)

    def ring(self) -> None:
        """Wake who waits for a task, in this process."""
        for bell in self.bells:
            bell.ring()

    def ask(self, synchronous: Synchronous | None) -> None:
        # holds _registry_lock
        self.users += 1
        if synchronous is not None:
            self._asked.append(synchronous)

    @property
    def synchronous(self) -> Synchronous:
        """How commits are made: the strictest that somebody asked for."""
        return "normal" if self._asked and "full" not in self._asked else "full"

    def close(self) -> None:
        """Give up one use of it. The last one waits for what is being written, and closes all connections."""
        with _registry_lock:
            self.users -= 1
            if self.users > 0:
                return
            if _registry.get(self.path) is self:
                del _registry[self.path]
        self.shut()

    def shut(self) -> None:
        """Close all connections, for good."""
        self._group.close(f"the SQLite file {self.path!r} was closed; open it again")
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()
        self._close_writer()

    # Connections

    def connect(self) -> None:
        """Make the file if there is none, and see that it is what it must be. Raises StoreError."""
        try:
            self._open_writer()
        except sqlite3.Error as error:
            self._close_writer()
            raise self._failure(error) from error
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

    def _lend(self) -> sqlite3.Connection:
        with self._lock:
            if self._paused:
                self._returned.wait_for(lambda: not self._paused)
            if self._closed:
                raise StoreError(f"the SQLite file {self.path!r} was closed; open it again")
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

    def _give_back(self, reader: sqlite3.Connection | None) -> None:
        if reader is None:
            return
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

    # Writing; only one thread at a time is in here

    def _write_all(self, jobs: list[Job[sqlite3.Connection]]) -> None:
        """Settle all jobs, in one transaction if that goes well."""
        try:
            self._transact(jobs)
        except Exception as error:
            if len(jobs) == 1 or _busy(error):
                self._fail(jobs, error)
                return
            # One of them spoiled it, and the others must not suffer: each by itself.
            left = [job for job in jobs if not job.settled]
            for place, job in enumerate(left):
                try:
                    self._transact([job])
                except Exception as own:
                    if _busy(own):
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
            if failed and not _busy(error):
                self._close_writer()  # after an error of the disk a new one may do better
            raise

    def _fail(self, jobs: list[Job[sqlite3.Connection]], error: Exception) -> None:
        for job in jobs:
            if isinstance(error, sqlite3.Error):
                own: Exception = self._failure(error)
                own.__cause__ = error
            else:
                own = error
            job.fail(own)

    def _failure(self, error: sqlite3.Error) -> StoreError:
        code = getattr(error, "sqlite_errorcode", None)
        cure = (
            _cure(str(error))
            if code is None or code & 0xFF == sqlite3.SQLITE_ERROR
            else _CURES.get(code & 0xFF, "")
        )
        return StoreError(f"the SQLite file {self.path!r}: {error}{cure and '; ' + cure}")

    # A fork. SQLite keeps its locks per process and its books about them in memory: a connection that is open
    # across a fork is poison in the child, and so is another one on the same file. So there must be none.

    def pause(self) -> None:
        """Before a fork: let what is being done end, close all connections, and begin nothing until `resume`."""
        rests = self._group.pause(_FORK_PATIENCE)
        with self._lock:
            self._paused = True
            self._returned.wait_for(lambda: self._lent == 0, _FORK_PATIENCE)
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()
        if rests:
            self._close_writer()

    def resume(self) -> None:
        """After a fork, in the parent."""
        with self._lock:
            self._paused = False
            self._returned.notify_all()
        self._group.resume()

    def reset(self) -> None:
        """After a fork, in the child: only the forking thread exists, and nothing of the parent may be touched."""
        # Normally there are none. Not even closed: that would write to the file.
        self._inherited += self._idle
        self._idle = []
        if self._writer is not None:
            self._inherited.append(self._writer)
            self._writer = None
        closed = self._closed
        self._group.reset()
        self._new_readers()
        self._closed = closed


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


def _cure(text: str) -> str:
    """Return what helps where SQLite has one code for many things. Stores look at the tables when they are opened."""
    if text.startswith("no such "):  # table, column or index
        return "it was there and was taken away or changed by hand; restore the file from a backup"
    if text.endswith("already exists"):
        return (
            "it is not one that was made here, or the record of what was made is gone; give the path of another "
            "file, or restore this one from a backup"
        )
    return ""


def _busy(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


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
            if not _busy(error):
                raise
            # The switch does not wait for others by itself; this does.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("COMMIT")
    if mode != "wal":
        raise StoreError(
            f"the SQLite file {path!r} can't have a write-ahead log (it is {mode!r}); put it on a local disk"
        )


# Files that are open in this process.

_registry_lock = SYSTEM_CLOCK.lock()  # guards the registry, and of each Database what says so
_registry: dict[str, Database] = {}


def open_database(
    path: str | os.PathLike[str],
    *,
    synchronous: Synchronous | None = None,
    busy_timeout: float | None = None,
    create: bool = True,
) -> Database:
    """Return the database of a file, the same for everybody in this process. Give it back with `close`.

    synchronous: None leaves it to others, the strictest wins.  busy_timeout: seconds, `BUSY_TIMEOUT` by default;
    the first one counts.  create: make the file and its folders if there are none.
    Raises StoreError.
    """
    real = _checked(path, create)
    if synchronous not in (None, "full", "normal"):
        raise ValueError(f"synchronous must be 'full' or 'normal', got {shown(synchronous)}")
    patience = BUSY_TIMEOUT if busy_timeout is None else seconds(busy_timeout, "busy_timeout")
    with _registry_lock:
        found = _registry.get(real)
        if found is None:
            found = Database(real, min(patience, _LONGEST_WAIT))
            found.ask(synchronous)
            found.connect()
            _registry[real] = found
        else:
            found.ask(synchronous)
    return found


def add_bell(database: Database, bell: Bell) -> None:
    """Let a bell ring for tasks that anybody in this process queues in a file."""
    with _registry_lock:
        database.bells += (bell,)


def drop_bell(database: Database, bell: Bell) -> None:
    """Take a bell back."""
    with _registry_lock:
        database.bells = tuple(each for each in database.bells if each is not bell)


def _checked(path: str | os.PathLike[str], create: bool) -> str:
    given: object = path
    if isinstance(given, os.PathLike):
        given = os.fspath(given)  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(given, str):
        raise TypeError(f"path must be a str or a Path, got {shown(path)}")
    if not given or given == ":memory:" or "\0" in given:
        raise ValueError(f"path must be that of a file, got {given!r}; MemoryEventStore keeps runs in memory")
    real = os.path.realpath(given)
    if os.path.isdir(real):
        raise StoreError(f"{given!r} is a directory; give the path of a file in it")
    if not create and not os.path.exists(real):
        raise StoreError(f"there is no SQLite file {given!r}; open it once with migrate=True")
    try:
        os.makedirs(os.path.dirname(real), exist_ok=True)
    except OSError as error:
        raise StoreError(f"the folder of {given!r} can't be made: {error}; choose another path") from error
    return real


_forking: list[Database] = []  # paused, while this process forks
_forker = 0  # ident of the thread that forks and holds _registry_lock


def _before_fork() -> None:
    global _forker
    if _registry_lock.acquire(timeout=_FORK_PATIENCE):
        _forker = current_ident()
        _forking.extend(_registry.values())
        for database in _forking:
            database.pause()


def _after_fork_in_parent() -> None:
    global _forker
    if _forker == current_ident():
        _forker = 0
        for database in _forking:
            database.resume()
        _forking.clear()
        _registry_lock.release()


def _after_fork_in_child() -> None:
    global _registry_lock, _forker
    _forker = 0
    _forking.clear()
    _registry_lock = SYSTEM_CLOCK.lock()
    for database in _registry.values():
        database.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
