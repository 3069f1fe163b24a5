"""Fixtures that give tests a PostgreSQL; a `conftest.py` imports what its tests ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlencode
from uuid import uuid4

import psycopg
import pytest
from psycopg import conninfo

from supervisor.durable.stores.migrations.postgres import migrate
from tests.postgres_server import DSN_VARIABLE, PostgresServer

TABLES = ("flow_events", "flow_runs", "flow_failures", "flow_wakeups", "flow_tasks", "flow_dead_letters")

__all__ = ["pg_dsn", "pg_empty_tables", "pg_of_our_own", "pg_server", "pg_session_dsn", "pg_tables"]


@pytest.fixture(scope="session")
def pg_server() -> Iterator[PostgresServer]:
    """A server of this run alone, made when the first test asks for it."""
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def pg_session_dsn(request: pytest.FixtureRequest) -> str:
    """The server that the environment names, or ours."""
    if named := os.environ.get(DSN_VARIABLE):
        return named
    server: PostgresServer = request.getfixturevalue("pg_server")
    return server.dsn


@pytest.fixture
def pg_dsn(pg_session_dsn: str) -> Iterator[str]:
    """Leads to an empty schema, which is dropped afterwards."""
    with _schema(pg_session_dsn) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def pg_tables(pg_session_dsn: str) -> Iterator[str]:
    """A schema with all tables; making them takes 50 ms, too long for each of some hundred tests."""
    with _schema(pg_session_dsn) as dsn:
        migrate(dsn)
        yield dsn


@pytest.fixture
def pg_empty_tables(pg_tables: str) -> Iterator[str]:
    """Leads to tables without rows, which the next test uses again."""
    yield pg_tables
    _execute(pg_tables, "; ".join(f"DELETE FROM {table}" for table in TABLES))


@pytest.fixture
def pg_of_our_own(pg_server: PostgresServer) -> Iterator[str]:
    """The same, on a server that the test may restart; ask for `pg_server` beside it."""
    with _schema(pg_server.dsn) as dsn:
        yield dsn


def url_of(dsn: str) -> str:
    """The same connection as a URL."""
    parts = conninfo.conninfo_to_dict(dsn)
    name = parts.pop("dbname", "postgres")
    return f"postgresql:///{name}?{urlencode(parts, quote_via=quote)}"


@contextmanager
def _schema(dsn: str) -> Iterator[str]:
    name = f"t_{uuid4().hex[:12]}"
    _execute(dsn, f"CREATE SCHEMA {name}")
    try:
        yield conninfo.make_conninfo(dsn, options=f"-csearch_path={name}")
    finally:
        _execute(dsn, f"DROP SCHEMA {name} CASCADE")


def _execute(dsn: str, query: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(query.encode())
