"""Runs whose history can't be read: every list goes on without them, and says so."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from supervisor.durable import FlowEngine, FlowRuntime, JsonlEventStore, RunStatus, StoreError, open_store
from supervisor.durable.directory import directory_of
from supervisor.durable.history import RunCompleted
from tests.durable.making import begin
from tests.durable.test_directory import BareStore


def garbage(place: Path) -> None:
    with (place / "b.jsonl").open("ab") as file:
        file.write(b"garbage\n")


def no_history(place: Path) -> None:
    lines = (place / "b.jsonl").read_bytes()
    (place / "b.jsonl").write_bytes(
        lines + lines.replace(b'"sequence":1', b'"sequence":3').replace(b'"sequence":2', b'"sequence":4')
    )


def bad_row(place: Path) -> None:
    with closing(sqlite3.connect(place)) as database, database:
        database.execute("UPDATE flow_events SET body = 'x' WHERE run_id = 'b' AND sequence = 2")


Damage = Callable[[Path], None]
KINDS: dict[str, tuple[str, Damage, str]] = {
    "garbage": ("jsonl", garbage, "CorruptHistory: line 2 of "),
    "no history": ("jsonl", no_history, "InvalidTransition: "),
    "sqlite": ("sqlite", bad_row, "CorruptHistory: event 2 of run 'b' "),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[FlowEngine, str]]:
    """An engine on a store with three runs, of which `b` is damaged; and how its error begins."""
    kind, damage, text = request.param
    url = f"{kind}:{tmp_path / 'flows'}"
    with closing(open_store(url)) as store:
        for run_id in ("a", "b", "c"):
            begin(store, run_id)
    damage(tmp_path / "flows")
    with closing(open_store(url)) as store, FlowEngine(FlowRuntime(), store) as engine:
        yield engine, text


def ids(engine: FlowEngine, **what: Any) -> list[str]:
    return [each.run_id for each in engine.list_runs(**what)]


def test_a_damaged_run_is_left_out_of_a_list_logged_and_marked(
    damaged: tuple[FlowEngine, str], caplog: pytest.LogCaptureFixture
) -> None:
    engine, text = damaged
    assert ids(engine) == ["a", "c"]
    (mark,) = engine.failures()
    assert mark.run_id == "b"
    assert mark.reason.startswith(text)
    assert [(each.levelno, each.getMessage()) for each in caplog.records] == [
        (logging.ERROR, f"run 'b' was left out of a list: {mark.reason}")
    ]


def test_it_takes_no_place_of_another_run(damaged: tuple[FlowEngine, str]) -> None:
    engine, _ = damaged
    assert ids(engine, limit=2) == ["a", "c"]
    assert ids(engine, limit=1) == ["a"]
    assert ids(engine, limit=1, newest_first=True) == ["c"]
    assert ids(engine, limit=2, newest_first=True) == ["c", "a"]
    assert ids(engine, limit=None) == ["a", "c"]


def test_a_run_that_is_marked_keeps_its_mark(damaged: tuple[FlowEngine, str]) -> None:
    engine, _ = damaged
    engine.directory.mark_failure("b", "seen before", engine.clock.now())
    before = engine.failures()
    assert ids(engine, status="running") == ["a", "c"]
    assert engine.failures() == before


def test_it_is_recovered_so_that_a_worker_tells_of_it(damaged: tuple[FlowEngine, str]) -> None:
    engine, _ = damaged
    assert engine.recover() == ["a", "b", "c"]


def test_a_mark_that_cannot_be_written_does_not_spoil_the_list(
    damaged: tuple[FlowEngine, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = damaged

    def refuses(*_: object) -> None:
        raise StoreError("process 7 writes here")

    monkeypatch.setattr(engine.directory, "mark_failure", refuses)
    assert ids(engine) == ["a", "c"]
    text = caplog.records[-1].getMessage()
    assert text.startswith("runs that can't be read were not marked: StoreError: process 7 writes here")


def test_who_lists_runs_of_a_directory_does_not_keep_the_right_to_write(tmp_path: Path) -> None:
    with closing(JsonlEventStore(tmp_path)) as store:
        begin(store, "b")
    garbage(tmp_path)
    with closing(JsonlEventStore(tmp_path)) as store, FlowEngine(FlowRuntime(), store) as engine:
        assert ids(engine) == []
        assert [each.run_id for each in engine.failures()] == ["b"]
        assert (tmp_path / "writer.lock").read_bytes() == b""


def test_a_bare_store_names_them_whatever_is_asked_for() -> None:
    store: Any = BareStore()
    begin(store, "a", [RunCompleted(None)])
    begin(store, "b")
    begin(store, "c")
    whole = store.read
    store.read = lambda run_id, *more: whole(run_id, *more) * (2 if run_id == "b" else 1)
    directory = directory_of(store)
    assert directory.find_runs([RunStatus.COMPLETED]) == ["a", "b"]
    assert directory.find_runs(workflow="nothing") == ["b"]
    assert directory.find_runs(limit=1, newest_first=True) == ["b"]
