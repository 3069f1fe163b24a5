"""open_store: which address opens what, and what is said of the others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from supervisor.durable import open_store
from supervisor.durable.stores.jsonl import JsonlEventStore
from supervisor.durable.stores.memory import MemoryEventStore
from supervisor.durable.stores.sqlite import SqliteEventStore
from tests.durable.making import begin
from tests.programs import run_code


@pytest.mark.parametrize("url", ["memory:", "MEMORY:", " memory: ", "memory://"])
def test_memory(url: str) -> None:
    store = open_store(url)
    assert type(store) is MemoryEventStore
    store.close()


@pytest.mark.parametrize("form", ["jsonl:{}", "jsonl:///{}", "JSONL:{}"])
def test_a_directory_of_text_files(form: str, tmp_path: Path) -> None:
    store = open_store(form.format(tmp_path / "runs"))
    assert type(store) is JsonlEventStore
    begin(store, "r")
    store.close()
    assert (tmp_path / "runs" / "r.jsonl").is_file()


@pytest.mark.parametrize("form", ["sqlite:{}", "sqlite:///{}", "SQLite:{}"])
def test_a_sqlite_file(form: str, tmp_path: Path) -> None:
    store = open_store(form.format(tmp_path / "flows.db"))
    assert type(store) is SqliteEventStore
    begin(store, "r")
    store.close()
    assert (tmp_path / "flows.db").is_file()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("jsonl:runs", "runs"),
        ("jsonl:///runs", "runs"),
        ("sqlite:a b.db", "a b.db"),
        ("sqlite:///c.db", "c.db"),
    ],
)
def test_a_relative_path_is_taken_from_the_working_folder(
    url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    open_store(url).close()
    assert (tmp_path / name).exists()


@pytest.mark.parametrize("form", ["sqlite:~/flows", "sqlite:///~/flows", "jsonl:~/flows", "jsonl:///~/flows"])
def test_a_tilde_is_the_home_of_the_user(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    open_store(form).close()
    assert (tmp_path / "flows").exists()


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_postgresql_server_is_given_the_whole_address(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from supervisor.durable.stores import postgres

    class Chosen:
        def __init__(self, dsn: str) -> None:
            self.dsn = dsn

    monkeypatch.setattr(postgres, "PostgresEventStore", Chosen)
    store: Any = open_store(f"{scheme}://me:secret@host:5432/flows?sslmode=require")
    assert type(store) is Chosen
    assert store.dsn == f"{scheme}://me:secret@host:5432/flows?sslmode=require"


def test_postgresql_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.split(".")[0] in ("psycopg", "psycopg_pool")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("stores.postgres", "queues.postgres", "queues.listener", "postgres"):
        monkeypatch.delitem(sys.modules, f"supervisor.durable.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=r"pip install 'threadvisor\[postgres\]'"):
        open_store("postgresql://host/flows")


FORMS = "write one of memory:, jsonl:DIR, sqlite:PATH, postgresql://USER@HOST/NAME"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", f"the address of a store names no kind; {FORMS}"),
        ("flows.db", f"the address of a store names no kind; {FORMS}"),
        ("mysql://me:secret@host/flows", f"the address of a store names kind 'mysql'; {FORMS}"),
        ("postgress://me:secret@host", f"the address of a store names kind 'postgress'; {FORMS}"),
        ("memory:runs", "a memory store has no path; write memory:, or jsonl:DIR to keep the runs"),
        ("jsonl:", f"the address of a jsonl store lacks its path; {FORMS}"),
        ("sqlite:", f"the address of a sqlite store lacks its path; {FORMS}"),
        ("sqlite:///", f"the address of a sqlite store lacks its path; {FORMS}"),
        (
            "sqlite://flows.db",
            "a sqlite store is on this machine and its address names no host; write sqlite:PATH",
        ),
        (
            "sqlite:flows.db?timeout=5",
            "the address of a sqlite store takes no query, got '?timeout=5'; make the store in Python: "
            "SqliteEventStore(path, busy_timeout=...)",
        ),
        ("postgresql:flows", "the address of a PostgreSQL server begins with postgresql://"),
    ],
)
def test_another_address_is_refused_and_the_cure_is_told(url: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the whole text is compared)
        open_store(url)
    assert str(caught.value) == message


@pytest.mark.parametrize("url", [None, 7, Path("flows.db"), b"memory:"])
def test_an_address_is_text(url: Any) -> None:
    with pytest.raises(TypeError, match="the address of a store must be a str"):
        open_store(url)


def test_only_the_kind_that_is_asked_for_is_imported() -> None:
    done = run_code(
        "import sys\n"
        "from supervisor.durable import open_store\n"
        "open_store('memory:').close()\n"
        "print([name for name in ('sqlite3', 'psycopg', 'supervisor.durable.stores.jsonl') if name in sys.modules])"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
