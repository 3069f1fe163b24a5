"""PostgresDatabase: a few connections to one PostgreSQL, each lent to one thread at a time.

What failed with the connection is done again on a new one, for some seconds: so a server that is restarted
is a pause, not an error. Whoever gives work to `run` makes it safe to be done twice.
"""

from __future__ import annotations

import os
from typing import Any, Final, Protocol, TypeVar

from supervisor.durable.errors import StoreError
from supervisor.kernel.arguments import count, seconds, text
from supervisor.kernel.clock import SYSTEM_CLOCK

try:
    import psycopg
    from psycopg import Connection, OperationalError, conninfo
except ModuleNotFoundError as _error:
    raise ImportError("PostgreSQL needs psycopg 3; pip install 'threadvisor[postgres]'") from _error

__all__ = [
    "NUL_SIGN",
    "PATIENCE",
    "POOL_SIZE",
    "ConnectionFailure",
    "PostgresDatabase",
    "Session",
    "Work",
    "as_it_was",
    "held",
    "store_error",
]

POOL_SIZE: Final = 10  # connections of one store or queue
PATIENCE: Final = 10.0  # seconds for which lost connections are replaced

NUL_SIGN: Final = "\ufdd0"
"""Stands for a NUL character, which columns can't hold. It is none of the characters that texts are made of."""

_FIRST_DELAY = 0.05  # seconds before the second try; doubles from try to try
_LONGEST_DELAY = 1.0
_STATEMENT_LIMIT = "30s"
_LOCK_LIMIT = "10s"
_DEFAULTS: Final = {  # of a connection; what the dsn says goes first
    "connect_timeout": 5,
    "application_name": "supervisor",
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # ms
}
# Every statement has one good plan, by an index, whatever its values: planning it anew costs more than running it,
# and a plan made while a table was small must not be a scan.
_SETTINGS: Final = f"""
    SET plan_cache_mode = force_generic_plan;
    SET enable_seqscan = off;
    SET TimeZone = 'UTC';
    SET client_min_messages = warning;
    SET default_transaction_isolation = 'read committed';
    SET statement_timeout = '{_STATEMENT_LIMIT}';
    SET lock_timeout = '{_LOCK_LIMIT}';
    SET idle_in_transaction_session_timeout = '{_STATEMENT_LIMIT}'
"""
# The server went away or is not the one that writes any more; the same statement may work on the next connection.
_GONE: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25006", "25P03"})
# Nothing is wrong with it, two transactions stood in each other's way.
_COLLISIONS: Final = frozenset({"40001", "40P01"})

Session = Connection[tuple[Any, ...]]
"""A connection in autocommit mode."""

ConnectionFailure = psycopg.Error
"""What `open` and a session raise."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Work(Protocol[T_co]):
    """What `run` does.  again: an earlier try may have been committed without our being told."""

    def __call__(self, session: Session, again: bool, /) -> T_co: ...


class PostgresDatabase:
    """Lends connections and replaces lost ones. Any thread may call it.

    dsn: of libpq, `postgresql://…` or `key=value …`.  size: connections at most; further threads wait in line.
    patience: seconds for which a lost connection is replaced before the caller is told.
    """

    def __init__(self, dsn: str, *, size: int = POOL_SIZE, patience: float = PATIENCE) -> None:
        try:
            parts = conninfo.conninfo_to_dict(text(dsn, "dsn"))
        except psycopg.ProgrammingError as error:
            raise ValueError(f"dsn is no connection string of PostgreSQL: {_line(error)}") from None
        self.dsn = dsn
        self.name: str = f"{parts.get('host', 'localhost')}/{parts.get('dbname', '')}"  # without the password
        self._arguments = {**_DEFAULTS, **parts}
        self._patience = seconds(patience, "patience")
        self._size = count(size, "pool_size", 1)
        self._process = os.getpid()
        self._lock = SYSTEM_CLOCK.lock()  # guards the fields below
        self._changed = SYSTEM_CLOCK.condition(self._lock)
        self._idle: list[Session] = []  # the last one given back is lent first
        self._lent = 0
        self._closed = False

    def run(self, what: str, work: Work[T], *, patience: float | None = None) -> T:
        """Do the work on a connection and return what it returns.

        what: completes "PostgreSQL could not …" in errors.  Raises StoreError for everything that
        PostgreSQL or the network says; what the work raises itself passes through.
        """
        allowed = self._patience if patience is None else patience
        end = SYSTEM_CLOCK.monotonic() + allowed
        delay, again = _FIRST_DELAY, False
        while True:
            try:
                return self._once(work, again)
            except psycopg.Error as error:
                now = SYSTEM_CLOCK.monotonic()
                if now >= end or not _may_pass(error):
                    raise store_error(what, error) from error
                again = True
                pause = 0.0 if error.sqlstate in _COLLISIONS else min(delay, end - now)
            if pause:
                self._rest(pause)
                delay = min(delay * 2.0, _LONGEST_DELAY)

    def open(self) -> Session:
        """Return a connection that belongs to the caller, who closes it. Raises psycopg.Error, StoreError."""
        self.check()
        session = psycopg.connect(**self._arguments, autocommit=True)  # type: ignore[arg-type]
        try:
            session.execute(_SETTINGS)
        except BaseException:
            session.close()
            raise
        return session

    def close(self) -> None:
        """Close what is not lent; the rest is closed when it comes back. Who waits is told."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._changed.notify_all()
        if os.getpid() == self._process:
            for each in idle:
                each.close()

    @property
    def closed(self) -> bool:
        """`close` was called."""
        return self._closed

    def _once(self, work: Work[T], again: bool) -> T:
        session = self._take()
        try:
            if session is None:
                session = self.open()
            return work(session, again)
        except psycopg.Error as error:
            if session is not None and error.sqlstate in _GONE:
                session.close()  # not all of these close it by themselves
            raise
        finally:
            self._give_back(session)

    def _take(self) -> Session | None:
        """Return an idle connection, or None when the caller may open one."""
        with self._lock:
            self.check()
            if not self._idle and self._lent >= self._size:
                self._changed.wait_for(self._may_take)
                self.check()
            self._lent += 1
            return self._idle.pop() if self._idle else None

    def _may_take(self) -> bool:
        # holds _lock
        return self._closed or bool(self._idle) or self._lent < self._size

    def _give_back(self, session: Session | None) -> None:
        useless: list[Session] = []
        with self._lock:
            self._lent -= 1
            if session is not None:
                if session.closed:  # the server has gone, and with it what the others were connected to
                    useless, self._idle = self._idle, []
                elif self._closed or session.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                    useless = [session]
                else:
                    self._idle.append(session)
            self._changed.notify_all()
        for each in useless:
            each.close()

    def _rest(self, pause: float) -> None:
        with self._lock:
            self._changed.wait_for(lambda: self._closed, pause)
            self.check()

    def check(self) -> None:
        """Raise StoreError if it is closed, or belongs to another process."""
        if self._closed:
            raise StoreError(f"the connections to {self.name} are closed; make a new store or queue")
        if os.getpid() != self._process:
            raise StoreError(
                f"the connections to {self.name} belong to process {self._process}; a forked child makes a "
                "store of its own"
            )


def _may_pass(error: psycopg.Error) -> bool:
    """Whether the same may work on a new connection, or at a second try."""
    if error.sqlstate is not None:
        return error.sqlstate in _GONE or error.sqlstate in _COLLISIONS or error.sqlstate.startswith("08")
    return isinstance(error, OperationalError)


def store_error(what: str, error: psycopg.Error) -> StoreError:
    """Return the error to raise.  what: completes "PostgreSQL could not …"."""
    return StoreError(f"PostgreSQL could not {what}: {_line(error)}{_cure(error)}")


def _line(error: psycopg.Error) -> str:
    primary = error.diag.message_primary
    lines = (primary or str(error)).strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    return line[:300] + (f" ({error.sqlstate})" if error.sqlstate else "")


def _cure(error: psycopg.Error) -> str:
    match error.sqlstate:
        case "42P01" | "3F000":
            return "; the tables are not there (or not in the search_path): open the store once with migrate=True"
        case "42501":
            return "; grant the role what the tables need, or connect as their owner"
        case "57014":
            return f"; it took longer than {_STATEMENT_LIMIT}"
        case _:
            return ""


def held(value: str) -> str:
    """Return text as a column can hold it: `NUL_SIGN` for NUL, lone surrogates spelled out."""
    return value.encode("utf-8", "backslashreplace").decode().replace("\0", NUL_SIGN)


def as_it_was(value: str) -> str:
    """Return the text of a column as it was before `held`."""
    return value.replace(NUL_SIGN, "\0")
