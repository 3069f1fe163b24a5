"""open_store: a store by its address, for what is configured by text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from supervisor.kernel.text import shown

if TYPE_CHECKING:
    from supervisor.durable.stores.protocol import FlowEventStore

__all__ = ["StoreAddress", "open_store", "read_address"]

_FORMS: Final = "memory:, jsonl:DIR, sqlite:PATH, postgresql://USER@HOST/NAME"


class StoreAddress(NamedTuple):
    """Where a store is."""

    kind: Literal["memory", "jsonl", "sqlite", "postgresql"]
    place: str  # a path; for PostgreSQL what libpq reads; nothing for memory


def read_address(url: str) -> StoreAddress:
    """Return what an address says, see `open_store`. Looks at no store. Raises ValueError."""
    if not isinstance(url, str):
        raise TypeError(f"the address of a store must be a str, got {shown(url)}; write one of {_FORMS}")
    scheme, colon, rest = url.strip().partition(":")
    match scheme.lower() if colon else "":
        case "memory":
            if rest.strip("/"):
                raise ValueError("a memory store has no path; write memory:, or jsonl:DIR to keep the runs")
            return StoreAddress("memory", "")
        case "jsonl":
            return StoreAddress("jsonl", _path(rest, "jsonl"))
        case "sqlite":
            return StoreAddress("sqlite", _path(_without_query(rest), "sqlite"))
        case "postgresql" | "postgres":
            if not rest.startswith("//"):
                raise ValueError("the address of a PostgreSQL server begins with postgresql://")
            return StoreAddress("postgresql", url.strip())
        case _:
            # not the whole of it: it may hold a password
            what = f"kind {scheme!r:.30}" if colon else "no kind"
            raise ValueError(f"the address of a store names {what}; write one of {_FORMS}")


def open_store(url: str) -> FlowEventStore:
    """Open the store at an address; each kind is imported only when it is asked for.

    url: `memory:`, `jsonl:DIR`, `sqlite:PATH`, or `postgresql://…` (also `postgres://…`), which libpq reads. A
    path may also stand behind `///`, as in `sqlite:///flows.db`; an absolute one then has four slashes. A path that
    begins with `~` is in the home of a user. What follows a `?` in that of a SQLite file is refused.
    Raises ValueError for another address, ImportError for a kind whose library is missing, and what the store
    raises.
    """
    kind, place = read_address(url)
    match kind:
        case "memory":
            from supervisor.durable.stores.memory import MemoryEventStore

            return MemoryEventStore()
        case "jsonl":
            from supervisor.durable.stores.jsonl import JsonlEventStore

            return JsonlEventStore(place)
        case "sqlite":
            from supervisor.durable.stores.sqlite import SqliteEventStore

            return SqliteEventStore(place)
        case "postgresql":
            from supervisor.durable.stores.postgres import PostgresEventStore

            return PostgresEventStore(place)


def _without_query(rest: str) -> str:
    _, mark, query = rest.partition("?")
    if mark:
        raise ValueError(
            f"the address of a sqlite store takes no query, got {'?' + query!r:.60}; make the store in Python: "
            "SqliteEventStore(path, busy_timeout=...)"
        )
    return rest


def _path(rest: str, kind: str) -> str:
    path = rest
    if rest.startswith("//"):
        if not rest.startswith("///"):
            raise ValueError(
                f"a {kind} store is on this machine and its address names no host; write {kind}:PATH"
            )
        path = rest[3:]
    if not path:
        raise ValueError(f"the address of a {kind} store lacks its path; write one of {_FORMS}")
    return os.path.expanduser(path)
