"""`db`: tables are made, checked, or only printed; what has none is told."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.cli.main import main
from supervisor.durable import PostgresEventStore, SqliteEventStore
from tests.postgres_fixtures import pg_dsn, pg_server, pg_session_dsn, url_of

__all__ = ["pg_dsn", "pg_server", "pg_session_dsn"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUPERVISOR_STORE", raising=False)
    return tmp_path


@pytest.fixture
def pg_url(pg_dsn: str) -> str:
    return url_of(pg_dsn)


def test_a_sqlite_file_is_made_and_then_there_is_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    migrate = ["db", "migrate", "--store", "sqlite:new/flows.db"]
    assert main(migrate) == 0
    assert capsys.readouterr().out == (
        "sqlite:new/flows.db: applied 5 migrations: events, failures, wakeups, queue, tests-not-lists\n"
    )
    SqliteEventStore("new/flows.db", migrate=False).close()
    assert main(migrate) == 0
    assert capsys.readouterr() == ("sqlite:new/flows.db: nothing to do\n", "")


def test_the_status_names_each_migration(capsys: pytest.CaptureFixture[str]) -> None:
    SqliteEventStore("flows.db").close()
    assert main(["db", "status", "--store", "sqlite:flows.db"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["#", "MIGRATION", "APPLIED"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["1", "events"],
        ["2", "failures"],
        ["3", "wakeups"],
        ["4", "queue"],
        ["5", "tests-not-lists"],
    ]
    with closing(sqlite3.connect("flows.db")) as database, database:
        database.execute("DELETE FROM supervisor_migrations WHERE n = 5")
    assert main(["db", "status", "--store", "sqlite:flows.db"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "5  tests-not-lists  not yet"
    assert main(["db", "status", "--json", "--store", "sqlite:flows.db"]) == 1
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert documents[-1] == {"n": 5, "name": "tests-not-lists", "applied_at": None}


def test_the_sql_makes_the_same_tables_and_touches_no_database(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["db", "sql", "--store", "sqlite:flows.db"]) == 0
    sql = capsys.readouterr().out
    assert list(here.iterdir()) == []
    with closing(sqlite3.connect("flows.db")) as database:
        database.executescript(sql)
    assert main(["db", "migrate", "--store", "sqlite:flows.db"]) == 0
    assert capsys.readouterr().out == "sqlite:flows.db: nothing to do\n"


def test_a_postgresql_database_is_looked_at_and_made(pg_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--store", pg_url]
    assert main(["db", "status", *place]) == 1
    assert {line.split(maxsplit=2)[2] for line in capsys.readouterr().out.splitlines()[1:]} == {"not yet"}
    assert main(["runs", "list", *place]) == 2
    assert capsys.readouterr().err.splitlines()[0].endswith("; apply them with: db migrate")
    assert main(["db", "migrate", *place]) == 0
    assert " applied " in capsys.readouterr().out
    PostgresEventStore(pg_url, migrate=False).close()
    assert main(["db", "status", *place]) == 0
    assert main(["db", "migrate", *place]) == 0
    assert capsys.readouterr().out.endswith(": nothing to do\n")


def test_the_sql_for_postgresql_needs_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "sql", "--store", "postgresql://nobody@nowhere.invalid/none"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("BEGIN;\n")
    assert out.endswith("COMMIT;\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["migrate"], "no store is named; give --store URL or set SUPERVISOR_STORE: sqlite:PATH, jsonl:DIR or "
         "postgresql://USER@HOST/NAME"),
        (["migrate", "--store", "jsonl:flows"], "a jsonl store has no tables: there is nothing to migrate"),
        (["sql", "--store", "memory:"], "a memory store has no tables: there is nothing to migrate"),
        (["status", "--store", "sqlite:nope.db"], "there is no SQLite file 'nope.db'; check the path of --store, or "
         "make it with: db migrate"),
        (["migrate", "--store", "sqlite:."], "'.' is a directory; give the path of a file in it"),
    ],
)  # fmt: skip
def test_what_has_no_tables_is_told(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["db", *words]) == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")
    assert list(here.iterdir()) == []


def test_a_file_that_is_no_database_stays_as_it_is(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = here / "notes.txt"
    file.write_text("not a database" * 99)
    assert main(["db", "migrate", "--store", "sqlite:notes.txt"]) == 2
    assert capsys.readouterr().err == (
        f"error: the SQLite file '{file}': file is not a database; it was left as it is; give the path of "
        "another file\n"
    )
    assert file.read_text() == "not a database" * 99
