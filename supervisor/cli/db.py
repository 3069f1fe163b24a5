"""The command `db`: make and check the tables of a store, or print the SQL for who does it by hand."""

from __future__ import annotations

import json
import os
import sys

from supervisor.cli.main import TASK_FAILED
from supervisor.cli.store import RefusedError, address, answered, must_exist, shown_address
from supervisor.cli.terminal import Terminal
from supervisor.cli.times import absolute
from supervisor.cli.words import Column, Line, Tone, table
from supervisor.durable.instants import written
from supervisor.durable.stores.migrations import Step
from supervisor.durable.stores.opening import StoreAddress

__all__ = ["db"]

_COLUMNS = (Column(title="#", right=True), Column(title="MIGRATION", least=12), Column(title="APPLIED"))


def db(action: str, url: str | None, *, as_json: bool = False) -> int:
    """Do `migrate`, `status` or `sql`; return the exit code."""
    out = Terminal(sys.stdout, {} if as_json or action == "sql" else os.environ)

    def work() -> int:
        where = address(url)
        if where.kind in ("memory", "jsonl"):
            raise RefusedError(f"a {where.kind} store has no tables: there is nothing to migrate")
        match action:
            case "migrate":
                applied = _migrate(where)
                names = ", ".join(applied)
                text = f"applied {len(applied)} migrations: {names}" if applied else "nothing to do"
                out.say([[(f"{shown_address(where)}: {text}", Tone.PLAIN)]])
                return 0
            case "sql":
                out.say([(line, Tone.PLAIN)] for line in _sql(where).splitlines())
                return 0
            case _:
                steps = _status(where)
                if as_json:
                    out.say([(json.dumps(_plain(each)), Tone.PLAIN)] for each in steps)
                else:
                    out.say(table(_COLUMNS, [_row(each) for each in steps], None))
                return TASK_FAILED if any(each.applied_at is None for each in steps) else 0

    return answered(Terminal(sys.stderr, os.environ), work)


def _row(step: Step) -> Line:
    applied = ("not yet", Tone.WARN) if step.applied_at is None else (absolute(step.applied_at), Tone.GOOD)
    return [(str(step.n), Tone.QUIET), (step.name, Tone.PLAIN), applied]


def _plain(step: Step) -> dict[str, object]:
    at = None if step.applied_at is None else written(step.applied_at)
    return {"n": step.n, "name": step.name, "applied_at": at}


def _migrate(where: StoreAddress) -> list[str]:
    if where.kind == "sqlite":
        from supervisor.durable.stores.migrations import sqlite
        from supervisor.durable.stores.sqlite_registry import open_database

        database = open_database(where.place)
        try:
            return sqlite.migrate(database)
        finally:
            database.close()
    return _postgres().migrate(where.place)


def _status(where: StoreAddress) -> list[Step]:
    if where.kind == "sqlite":
        from supervisor.durable.stores.migrations import sqlite
        from supervisor.durable.stores.sqlite_registry import open_database

        must_exist(where.place)
        database = open_database(where.place, create=False)
        try:
            return sqlite.status(database)
        finally:
            database.close()
    return _postgres().status(where.place)


def _sql(where: StoreAddress) -> str:
    if where.kind == "sqlite":
        from supervisor.durable.stores.migrations import sqlite

        return sqlite.sql()
    return _postgres().sql()


class _Postgres:
    """The functions of the migrations, loaded when they are first asked for."""

    def __init__(self) -> None:
        try:
            from supervisor.durable.stores.migrations import postgres
        except ImportError as error:
            raise RefusedError(str(error)) from None
        self.migrate = postgres.migrate
        self.status = postgres.status
        self.sql = postgres.sql


def _postgres() -> _Postgres:
    return _Postgres()
