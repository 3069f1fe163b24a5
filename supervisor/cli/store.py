"""`--store URL`: the store that a command works on, opened without making anything, and what can be wrong with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

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
from supervisor.durable.stores.protocol import FlowEventStore
from supervisor.kernel.text import printable

__all__ = ["NOT_ALLOWED", "VARIABLE", "Address", "RefusedError", "address", "answered", "opened", "prepared"]

VARIABLE = "SUPERVISOR_STORE"
NOT_ALLOWED = 1  # there is no such run, or it does not allow it
_FORMS = "sqlite:PATH, jsonl:DIRECTORY or postgresql://USER@HOST/NAME"


class RefusedError(Exception):
    """The command can't do what was asked; the message is one line for the person who typed it."""

    def __init__(self, message: str, code: int = WRONG_USE) -> None:
        super().__init__(message)
        self.code = code


class Address(NamedTuple):
    """A store by its URL."""

    kind: str  # memory, jsonl, sqlite or postgresql
    place: str  # path, or the whole URL of PostgreSQL

    @property
    def shown(self) -> str:
        """For people; without a password."""
        if self.kind != "postgresql":
            return f"{self.kind}:{self.place}"
        scheme, _, rest = self.place.partition("://")
        login, at, host = rest.rpartition("@")
        return f"{scheme}://{login.partition(':')[0]}{at}{host}"


def address(url: str | None) -> Address:
    """Return where a store is.  url: None for that of the environment. Raises RefusedError."""
    text = os.environ.get(VARIABLE, "") if url is None else url
    if not text:
        raise RefusedError(f"no store is named; give --store URL or set {VARIABLE}: {_FORMS}")
    kind, colon, place = text.partition(":")
    if kind in ("postgresql", "postgres") and place.startswith("//"):
        return Address("postgresql", text)
    if text in ("memory", "memory:"):
        return Address("memory", "")
    if not colon or kind not in ("sqlite", "jsonl"):
        known = kind if kind in ("postgresql", "postgres", "memory") else ""
        given = f"{known}:..." if known else repr(_without_password(text))
        raise RefusedError(f"{given} is no URL of a store; write {_FORMS}")
    if not place or place.startswith("//"):
        noun = "path of a file" if kind == "sqlite" else "directory"
        raise RefusedError(
            f"{text!r} names no {noun}; write {kind}:{place.lstrip('/') or 'flows'}, or an absolute path"
        )
    return Address(kind, place)


def _without_password(text: str) -> str:
    login, at, rest = text.rpartition("@")
    return f"...@{rest}" if at and ":" in login else text


def prepared(where: Address) -> FlowEventStore:
    """Open a store for a worker, which makes what is not there. Raises RefusedError, StoreError."""
    return _made(where, migrate=True)


def _made(where: Address, migrate: bool) -> FlowEventStore:
    match where.kind:
        case "memory":
            from supervisor.durable.stores.memory import MemoryEventStore

            return MemoryEventStore()
        case "jsonl":
            from supervisor.durable.stores.jsonl import JsonlEventStore

            return JsonlEventStore(where.place)
        case "sqlite":
            from supervisor.durable.stores.sqlite import SqliteEventStore

            return SqliteEventStore(where.place, migrate=migrate)
        case _:
            try:
                from supervisor.durable.stores.postgres import PostgresEventStore
            except ImportError as error:
                raise RefusedError(str(error)) from None
            return PostgresEventStore(where.place, migrate=migrate)


def _existing(where: Address) -> FlowEventStore:
    """Open a store that must be there, and change nothing. Raises RefusedError, StoreError."""
    match where.kind:
        case "memory":
            raise RefusedError(
                f"memory: is gone with the process that had it, and can't be looked at from here; give {_FORMS}"
            )
        case "jsonl" if not Path(where.place).is_dir():
            raise RefusedError(f"there is no directory {where.place!r}; check the path of --store")
        case "sqlite" if not Path(where.place).exists():
            raise RefusedError(
                f"there is no SQLite file {where.place!r}; check the path of --store, or make it with: db migrate"
            )
        case _:
            pass
    try:
        return _made(where, migrate=False)
    except StoreError as error:
        text = str(error)
        if "lacks the migrations" in text:
            raise RefusedError(f"{text.partition(';')[0]}; apply them with: db migrate") from None
        raise


@contextmanager
def opened(where: Address) -> Generator[FlowEngine]:
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
