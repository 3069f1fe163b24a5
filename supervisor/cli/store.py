"""`--store URL`: the store that a command works on, opened without making anything, and what can be wrong with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from supervisor.cli.main import WRONG_USE
from supervisor.cli.terminal import Terminal
from supervisor.cli.words import Tone
from supervisor.durable.engine import FlowEngine
from supervisor.durable.errors import (
    FlowError,
    RunConflict,
    RunNotFound,
    RunTerminal,
    SignalConflict,
    StoreError,
)
from supervisor.durable.runtime import FlowRuntime
from supervisor.durable.stores.opening import StoreAddress, open_store, read_address
from supervisor.durable.stores.protocol import FlowEventStore
from supervisor.kernel.text import printable

__all__ = [
    "NOT_ALLOWED",
    "VARIABLE",
    "RefusedError",
    "address",
    "answered",
    "must_exist",
    "opened",
    "prepared",
    "shown_address",
]

VARIABLE = "SUPERVISOR_STORE"
NOT_ALLOWED = 1  # there is no such run, or it does not allow it
_FORMS = "sqlite:PATH, jsonl:DIR or postgresql://USER@HOST/NAME"


class RefusedError(Exception):
    """The command can't do what was asked; the message is one line for the person who typed it."""

    def __init__(self, message: str, code: int = WRONG_USE) -> None:
        super().__init__(message)
        self.code = code


def address(url: str | None) -> StoreAddress:
    """Return where a store is.  url: None for that of the environment. Raises RefusedError."""
    text = os.environ.get(VARIABLE, "") if url is None else url
    if not text:
        raise RefusedError(f"no store is named; give --store URL or set {VARIABLE}: {_FORMS}")
    try:
        return read_address(text)
    except ValueError as error:
        raise RefusedError(f"{'--store' if url is not None else VARIABLE}: {error}") from None


def shown_address(where: StoreAddress) -> str:
    """Return an address for people; without a password."""
    if where.kind != "postgresql":
        return f"{where.kind}:{where.place}"
    scheme, _, rest = where.place.partition("://")
    login, at, host = rest.partition("?")[0].rpartition("@")
    return f"{scheme}://{login.partition(':')[0]}{at}{host}"


def prepared(url: str | None) -> FlowEventStore:
    """Open a store for a worker, which makes what is not there. Raises RefusedError, StoreError."""
    address(url)
    try:
        return open_store(os.environ.get(VARIABLE, "") if url is None else url)
    except ImportError as error:
        raise RefusedError(str(error)) from None


def _existing(where: StoreAddress) -> FlowEventStore:
    """Open a store that must be there, and change nothing. Raises RefusedError, StoreError."""
    match where.kind:
        case "memory":
            raise RefusedError(
                f"memory: is gone with the process that had it, and can't be looked at from here; give {_FORMS}"
            )
        case "jsonl":
            if not Path(where.place).is_dir():
                raise RefusedError(f"there is no directory {where.place!r}; check the path of --store")
            from supervisor.durable.stores.jsonl import JsonlEventStore

            return JsonlEventStore(where.place)
        case "sqlite":
            must_exist(where.place)
        case "postgresql":
            pass
    try:
        return _as_it_is(where)
    except StoreError as error:
        text = str(error)
        if "lacks the migrations" in text:
            raise RefusedError(f"{text.partition(';')[0]}; apply them with: db migrate") from None
        raise


def _as_it_is(where: StoreAddress) -> FlowEventStore:
    """Open a database without a change to its tables. Raises RefusedError, StoreError."""
    if where.kind == "sqlite":
        from supervisor.durable.stores.sqlite import SqliteEventStore

        return SqliteEventStore(where.place, migrate=False)
    try:
        from supervisor.durable.stores.postgres import PostgresEventStore
    except ImportError as error:
        raise RefusedError(str(error)) from None
    return PostgresEventStore(where.place, migrate=False)


def must_exist(path: str) -> None:
    """Raise RefusedError unless there is something at the path of a SQLite file."""
    if not Path(path).exists():
        raise RefusedError(
            f"there is no SQLite file {path!r}; check the path of --store, or make it with: db migrate"
        )


@contextmanager
def opened(where: StoreAddress) -> Generator[FlowEngine]:
    """Open a store that must be there, behind an engine that knows no workflows. Raises RefusedError, StoreError."""
    store = _existing(where)
    try:
        with FlowEngine(FlowRuntime(), store) as engine:
            yield engine
    finally:
        store.close()


def answered(errors: Terminal, work: Callable[[], Any]) -> int:
    """Call `work` and return its exit code, 0 for None; what it raises for a person is told in one line."""
    try:
        code = work()
        return 0 if code is None else int(code)
    except RefusedError as error:
        return _told(errors, str(error), error.code)
    except RunNotFound as error:
        return _told(errors, f"{error}; `runs list` shows the runs that it has", NOT_ALLOWED)
    except RunTerminal as error:
        return _told(
            errors, f"{error}, and nothing can be done with it any more; see `runs show`", NOT_ALLOWED
        )
    except (RunConflict, SignalConflict) as error:
        return _told(errors, str(error), NOT_ALLOWED)
    except (FlowError, ValueError, OSError) as error:
        return _told(errors, str(error), WRONG_USE)


def _told(errors: Terminal, message: str, code: int) -> int:
    errors.say([[("error: ", Tone.BAD), (printable(message), Tone.PLAIN)]])
    return code
