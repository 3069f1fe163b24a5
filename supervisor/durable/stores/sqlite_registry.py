"""The SQLite files that are open in this process: each once, for all who use it, and none across a fork."""

from __future__ import annotations

import os

from supervisor.durable.bell import Bell
from supervisor.durable.errors import StoreError
from supervisor.durable.stores.sqlite_file import Database, Synchronous
from supervisor.kernel.arguments import seconds
from supervisor.kernel.clock import SYSTEM_CLOCK, current_ident
from supervisor.kernel.text import shown

__all__ = ["BUSY_TIMEOUT", "add_bell", "drop_bell", "open_database"]

BUSY_TIMEOUT = 5.0  # seconds to wait for the lock that another process holds
_FORK_PATIENCE = 10.0  # seconds that a fork waits for what is being read and written
_LONGEST_WAIT = 2_000_000.0  # seconds; SQLite counts milliseconds in 32 bits

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
            found = Database(real, min(patience, _LONGEST_WAIT), _give_up)
            found.ask(synchronous)
            found.connect()
            _registry[real] = found
        else:
            found.ask(synchronous)
    return found


def _give_up(database: Database) -> bool:
    """Count one use less; return whether it was the last."""
    with _registry_lock:
        database.users -= 1
        if database.users > 0:
            return False
        if _registry.get(database.path) is database:
            del _registry[database.path]
        return True


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


# A fork. SQLite keeps its locks per process and its books about them in memory: a connection that is open across
# a fork is poison in the child, and so is another one on the same file. So there must be none.

_forking: list[Database] = []  # paused, while this process forks
_forker = 0  # ident of the thread that forks and holds _registry_lock


def _before_fork() -> None:
    global _forker
    if _registry_lock.acquire(timeout=_FORK_PATIENCE):
        _forker = current_ident()
        _forking.extend(_registry.values())
        for database in _forking:
            database.pause(_FORK_PATIENCE)


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
