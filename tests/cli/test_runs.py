"""`runs`: what it prints and writes on every store that other processes share, and each refusal in one line."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli import runs
from supervisor.cli.durable_parser import STATUSES
from supervisor.cli.main import main
from supervisor.cli.store import shown_address
from supervisor.durable import FlowEngine, FlowRuntime, RunStatus, WorkflowContext, open_store
from supervisor.durable.stores.opening import read_address
from supervisor.kernel.clock import SYSTEM_CLOCK
from tests.cli.test_terminal import Stream
from tests.durable.making import AT, begun, later, step
from tests.postgres_fixtures import pg_dsn, pg_server, pg_session_dsn, url_of
from tests.programs import ROOT

__all__ = ["pg_dsn", "pg_server", "pg_session_dsn"]

Run = Callable[..., list[str]]


def flows() -> FlowRuntime:
    made = FlowRuntime()

    @made.workflow
    def checkout(ctx: WorkflowContext) -> Any:
        return ctx.wait_signal("approval", "approve")

    @made.workflow
    def cleans(ctx: WorkflowContext) -> None:
        try:
            ctx.wait_signal("approval", "approve")
        finally:
            ctx.step("undo", undo)

    @made.step
    def undo() -> str:
        return "undone"

    return made


class Place:
    """A store with an address, and an engine on it that knows the workflows, for as long as it is needed."""

    def __init__(self, url: str) -> None:
        self.url = url
        open_store(url).close()

    def engine(self, work: Callable[[FlowEngine], object]) -> None:
        with closing(open_store(self.url)) as store, FlowEngine(flows(), store) as engine:
            work(engine)

    def begin(self, *run_ids: str, workflow: str = "checkout") -> None:
        def start(engine: FlowEngine) -> None:
            for run_id in run_ids:
                engine.start(workflow, run_id=run_id)

        self.engine(start)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SUPERVISOR_STORE", "sqlite:flows.db")
    return Place("sqlite:flows.db")


@pytest.fixture(params=["sqlite", "jsonl", "postgresql"])
def any_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param != "postgresql":
        return Place(f"{request.param}:{tmp_path / 'flows'}")
    return Place(url_of(request.getfixturevalue("pg_dsn")))


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Run:
    """Call `runs`; return the lines of stdout, or of stderr where that is asked for, the other must be empty."""

    def run(*arguments: str, code: int = 0, errors: bool = False) -> list[str]:
        assert main(["runs", *arguments]) == code
        captured = capsys.readouterr()
        told, silent = (captured.err, captured.out) if errors or code else (captured.out, captured.err)
        assert silent == ""
        return told.splitlines()

    return run


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let it be so many seconds after `AT` for the command."""

    class Clock:
        instant = AT

        def now(self) -> datetime:
            return self.instant

    clock = Clock()
    monkeypatch.setattr(runs, "SYSTEM_CLOCK", clock)

    def set_to(seconds: float) -> None:
        clock.instant = later(seconds)

    return set_to


# On every store


def test_a_signal_reaches_a_run_of_another_program(any_place: Place, call: Run) -> None:
    any_place.begin("order-7")
    said = call(
        "signal", "order-7", "approve", "--payload", '{"by": "Ann"}', "--id", "s1", "--store", any_place.url
    )
    assert said[0].startswith(
        "signal 'approve' was sent to run 'order-7' as s1: wait 'approval' has got it, and "
    )

    def check(engine: FlowEngine) -> None:
        engine.recover()
        with engine.serve(workers=1):
            assert engine.result("order-7", timeout=20) == {"by": "Ann"}

    any_place.engine(check)


def test_a_run_of_another_program_is_asked_to_end_and_cleans_up(any_place: Place, call: Run) -> None:
    any_place.begin("order-7", workflow="cleans")
    said = call("cancel", "order-7", "--reason", "not wanted", "--store", any_place.url)
    assert said[0].startswith("run 'order-7' is asked to cancel: it may clean up, and ")

    def check(engine: FlowEngine) -> None:
        run = engine.drive("order-7")
        assert (run.status, run.steps["undo"].output) == (RunStatus.CANCELLED, "undone")

    any_place.engine(check)


def test_a_run_is_ended_by_force(any_place: Place, call: Run) -> None:
    any_place.begin("order-7")
    assert call("cancel", "order-7", "--force", "--store", any_place.url) == ["run 'order-7' is cancelled"]
    (line,) = call("list", "--json", "--store", any_place.url)
    assert json.loads(line)["status"] == "cancelled"


def test_looking_writes_nothing_and_needs_no_right_to_write(any_place: Place, call: Run) -> None:
    any_place.begin("order-7")

    def look(engine: FlowEngine) -> None:  # holds the right to write, where there is one
        engine.signal("order-7", "other")
        assert (
            json.loads("\n".join(call("show", "order-7", "--json", "--store", any_place.url)))["sequence"]
            == 4
        )
        assert len(call("history", "order-7", "--store", any_place.url)) == 5
        assert call("failures", "--store", any_place.url, errors=True) == ["no run waits for a person"]
        assert call("redrive", "--store", any_place.url, errors=True) == ["nothing is to be redriven"]

    any_place.engine(look)


# What is printed


def test_runs_are_listed_the_newest_first(place: Place, call: Run, at: Callable[[float], None]) -> None:
    with closing(open_store(place.url)) as store:
        store.append("b", 0, begun(), AT)
        store.append("a", 0, [*begun("refund"), *step("pay")], later(60))
    at(90)
    assert call("list") == [
        "RUN       WORKFLOW    STATUS      EVENTS  CREATED   CHANGED                          WHAT",
        "a         refund 1    running          4  30 s ago  30 s ago   2026-01-31 12:01:00Z  runs pay",
        "b         checkout 1  running          2  90 s ago  90 s ago   2026-01-31 12:00:00Z",
    ]
    assert [line.split()[0] for line in call("list", "--workflow", "checkout")] == ["RUN", "b"]
    assert call("list", "--status", "failed", errors=True) == ["there are no runs of that kind"]


def test_a_list_for_machines_has_a_snapshot_a_line(place: Place, call: Run) -> None:
    place.begin("a", "b")
    documents = [json.loads(line) for line in call("list", "--json")]

    def check(engine: FlowEngine) -> None:
        assert documents == [engine.snapshot("b").to_dict(), engine.snapshot("a").to_dict()]

    place.engine(check)


def test_a_list_that_was_cut_says_so(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.begin("a", "b", "c")
    assert main(["runs", "list", "--limit", "2", "--json"]) == 0
    captured = capsys.readouterr()
    assert [json.loads(line)["run_id"] for line in captured.out.splitlines()] == ["c", "b"]
    assert captured.err == "these are the newest 2; --limit N shows more\n"


def test_a_store_without_runs_says_so(place: Place, call: Run) -> None:
    assert call("list", errors=True) == ["there are no runs"]
    assert call("list", "--json") == []


def test_one_damaged_history_does_not_hide_the_others(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.begin("a", "b")
    with closing(sqlite3.connect("flows.db")) as database, database:
        database.execute("UPDATE flow_events SET body = 'x' WHERE run_id = 'a' AND sequence = 2")
    assert main(["runs", "list"]) == 1
    captured = capsys.readouterr()
    assert [line.split()[0] for line in captured.out.splitlines()] == ["RUN", "b"]
    assert captured.err.startswith("error: event 2 of run 'a' ")
    assert len(captured.err.splitlines()) == 1


def test_a_damaged_file_of_a_directory_is_told_whatever_is_asked_for(tmp_path: Path, call: Run) -> None:
    directory = Place(f"jsonl:{tmp_path}")
    directory.begin("a")
    (tmp_path / "a.jsonl").write_bytes(b"garbage\n")
    for more in ([], ["--status", "completed"], ["--limit", "1"]):
        (line,) = call("list", *more, "--store", directory.url, code=1)
        assert line.startswith(f"error: line 1 of {tmp_path}/a.jsonl can't be read")


def test_a_run_is_shown_with_its_timeline(place: Place, call: Run, at: Callable[[float], None]) -> None:
    with closing(open_store(place.url)) as store:
        store.append("order-7", 0, [*begun(input={"id": 7}), *step("pay")], AT)
    at(4)
    assert call("show", "order-7") == [
        "order-7  checkout version 1",
        "  status  ● running, 4 s after it was created",
        "  created 2026-01-31 12:00:00Z, 4 s ago",
        "  changed 2026-01-31 12:00:00Z, 4 s ago",
        "  events  4",
        "  now     runs pay",
        "",
        "pay ● " + "━" * 80 + "▶          4 s",
        "      |0        |500 ms   |1000 ms  |1500 ms  |2000 ms  |2500 ms  |3000 ms  |3500 ms  |4000 ms",
        "",
        '  input   {"id": 7}',
        "",
        "  STEP      NAME  TRIES  INPUT  RESULT",
        "● pay       work      1  null",
    ]


def test_all_steps_are_shown_when_asked_for(place: Place, call: Run, at: Callable[[float], None]) -> None:
    with closing(open_store(place.url)) as store:
        store.append("many", 0, [*begun(), *(event for n in range(99) for event in step(f"s{n}"))], AT)
    at(1)
    assert len(call("show", "many", "--all")) - len(call("show", "many")) == 2 * (99 - 40) - 1


def test_a_terminal_gets_colors_and_no_line_wraps(
    place: Place, monkeypatch: pytest.MonkeyPatch, at: Callable[[float], None]
) -> None:
    with closing(open_store(place.url)) as store:
        store.append("order-7", 0, [*begun(input={"text": "long " * 99}), *step("pay" * 30)], AT)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    at(4)
    for no_color in (False, True):
        if no_color:
            monkeypatch.setenv("NO_COLOR", "1")
        else:
            monkeypatch.delenv("NO_COLOR", raising=False)
        stream = Stream()
        monkeypatch.setattr(sys, "stdout", stream)
        for action in (["list"], ["show", "order-7"], ["history", "order-7"]):
            assert main(["runs", *action]) == 0
        written = "".join(stream.writes)
        assert ("\x1b[" in written) is not no_color
    assert max(map(len, written.splitlines())) == 59


def test_json_is_the_same_on_a_terminal(place: Place, monkeypatch: pytest.MonkeyPatch, call: Run) -> None:
    place.begin("order-7")
    expected = call("history", "order-7", "--json")
    stream = Stream()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["runs", "history", "order-7", "--json"]) == 0
    assert "".join(stream.writes).splitlines() == expected
    assert [json.loads(line)["sequence"] for line in expected] == [1, 2, 3]
    assert set(json.loads(expected[0])) == {"schema_version", "run_id", "sequence", "event_id", "at", "event"}


def test_a_reader_that_is_gone_is_no_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.begin("order-7")
    stream = Stream(terminal=False)
    stream.fault = BrokenPipeError()
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["runs", "list", "--json"]) == 141


def test_a_full_disk_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place.begin("order-7")
    stream = Stream(terminal=False)
    stream.fault = OSError(28, "No space left on device")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["runs", "list"]) == 2
    assert capsys.readouterr().err == (
        "error: standard output can't be written: [Errno 28] No space left on device\n"
    )


# Signals and ends


def test_a_signal_that_nobody_waits_for_is_kept(place: Place, call: Run) -> None:
    place.begin("order-7")
    said = "signal 'later' was sent to run 'order-7' as s1: nothing waits for it yet, it is kept"
    assert call("signal", "order-7", "later", "--id", "s1") == [said]
    assert call("signal", "order-7", "later", "--id", "s1") == [said]  # the same signal, once
    assert call("signal", "order-7", "later", "--id", "s1", "--payload", "2", code=1) == [
        "error: run 'order-7' got signal 's1' before, with another name or payload"
    ]
    assert call("signal", "order-7", "later", "--id", "", code=2) == [
        "error: signal_id must not be empty, got ''"
    ]


def test_a_signal_that_was_sent_before_to_a_run_that_has_ended_since_is_told(place: Place, call: Run) -> None:
    place.begin("order-7")
    call("signal", "order-7", "approve", "--id", "s1")
    place.engine(lambda engine: engine.drive("order-7"))
    assert call("signal", "order-7", "approve", "--id", "s1") == [
        "signal 'approve' was sent to run 'order-7' as s1 before, and the run has ended (completed)"
    ]


def test_a_run_that_has_ended_takes_nothing(place: Place, call: Run) -> None:
    place.begin("order-7")
    call("cancel", "order-7", "--force")
    ended = "error: run 'order-7' has ended (cancelled), and nothing can be done with it any more; see `runs show`"
    assert call("signal", "order-7", "approve", code=1) == [ended]
    assert call("cancel", "order-7", code=1) == [ended]
    assert call("cancel", "order-7", "--force", code=1) == [ended]


def test_asking_twice_with_another_reason_is_refused(place: Place, call: Run) -> None:
    place.begin("order-7")
    call("cancel", "order-7", "--reason", "not wanted")
    assert call("cancel", "order-7", "--reason", "too late", code=1) == [
        "error: run 'order-7': it was asked to end before, with the reason 'not wanted'"
    ]


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ("yes", "Expecting value: line 1 column 1 (char 0)"),
        ("", "Expecting value: line 1 column 1 (char 0)"),
        ("{'a': 1}", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
    ],
)
def test_a_payload_that_is_no_json_is_refused(place: Place, call: Run, payload: str, why: str) -> None:
    place.begin("order-7")
    assert call("signal", "order-7", "approve", "--payload", payload, code=2) == [
        f"error: --payload is no JSON ({why}); text needs quotes of its own: --payload '\"yes\"'"
    ]


def test_a_payload_that_json_cannot_hold_exactly_is_refused(place: Place, call: Run) -> None:
    place.begin("order-7")
    (line,) = call("signal", "order-7", "approve", "--payload", '{"a": [NaN]}', code=2)
    assert line == "error: payload.a[0] must be a finite number, got nan"
    (line,) = call("signal", "order-7", "approve", "--payload", "[" * 100_000, code=2)
    assert line.startswith("error: --payload is no JSON (maximum recursion depth exceeded")


# What was given up


def give_up(place: Place, run_id: str) -> None:
    def work(engine: FlowEngine) -> None:
        engine.queue.enqueue(run_id)
        lease = engine.queue.lease(30.0)
        assert lease is not None
        engine.queue.dead_letter(lease, "StoreError: the disk is full")

    place.engine(work)


def mark(place: Place, run_id: str) -> None:
    place.engine(lambda engine: engine.directory.mark_failure(run_id, "it is not deterministic", later(5)))


def pending(place: Place) -> int:
    found: list[int] = []
    place.engine(lambda engine: found.append(engine.queue.pending()))
    return found[0]


def test_runs_that_wait_for_a_person_are_listed(place: Place, call: Run, at: Callable[[float], None]) -> None:
    place.begin("a")
    mark(place, "a")
    at(65)
    assert call("failures") == [
        "RUN       SINCE                           REASON",
        "a         60 s ago  2026-01-31 12:00:05Z  it is not deterministic",
    ]
    (line,) = call("failures", "--json")
    assert json.loads(line) == {
        "id": None,
        "run_id": "a",
        "reason": "it is not deterministic",
        "at": "2026-01-31T12:00:05.123456Z",
    }


def test_a_run_that_waits_for_a_person_is_listed_with_its_newest_dead_letter(place: Place, call: Run) -> None:
    place.begin("a", "b")
    give_up(place, "a")
    give_up(place, "a")
    mark(place, "a")
    mark(place, "b")
    letters = [json.loads(line)["id"] for line in call("redrive", "--json") if '"a"' in line]
    rows = [json.loads(line) for line in call("failures", "--json")]
    assert [(row["run_id"], row["id"]) for row in rows] == [("a", letters[-1]), ("b", None)]
    assert [line.split()[:2] for line in call("failures")][:2] == [["ID", "RUN"], [str(letters[-1]), "a"]]


def test_what_was_given_up_is_listed_and_queued_again_by_its_number(place: Place, call: Run) -> None:
    place.begin("a")
    give_up(place, "a")
    (line,) = call("redrive", "--json")
    letter = json.loads(line)
    assert (letter["run_id"], letter["reason"]) == ("a", "StoreError: the disk is full")
    assert call("redrive", str(letter["id"])) == ["run 'a' is queued again"]
    assert pending(place) == 1
    assert call("redrive", errors=True) == ["nothing is to be redriven"]


def test_a_marked_run_is_queued_again_by_its_id(place: Place, call: Run) -> None:
    place.begin("a", "b")
    mark(place, "a")
    assert call("redrive", "a") == ["run 'a' is queued again"]
    assert call("redrive", "a") == ["run 'a' is in the queue already"]
    assert call("redrive", "b", code=1) == [
        "error: run 'b' is suspended and does not wait for a person; there is nothing to redrive"
    ]
    assert call("redrive", "7", code=1) == [
        "error: '7' is neither a dead letter nor a run that waits for a person; `runs redrive` lists them"
    ]


def test_everything_is_queued_again_at_once(
    place: Place, call: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    place.begin("a", "b", "c")
    give_up(place, "a")
    mark(place, "a")
    mark(place, "b")
    assert main(["runs", "redrive"]) == 0
    captured = capsys.readouterr()
    assert [line.split()[-1] for line in captured.out.splitlines()] == ["REASON", "full", "deterministic"]
    assert captured.err == "queue one again with: runs redrive ID or RUN; all of them with --all\n"
    assert call("redrive", "--all") == ["run 'a' is queued again", "run 'b' is queued again"]
    assert pending(place) == 2
    assert call("redrive", "a", "--all", code=2) == [
        "error: --all and a run are given; leave one of them out"
    ]


def test_a_run_that_was_ended_by_force_waits_for_nobody(place: Place, call: Run) -> None:
    place.begin("a")
    mark(place, "a")
    call("cancel", "a", "--force")
    assert call("redrive", errors=True) == ["nothing is to be redriven"]
    assert call("failures", errors=True) == ["no run waits for a person"]


def test_the_queue_of_a_jsonl_directory_is_out_of_reach(tmp_path: Path, call: Run) -> None:
    place = Place(f"jsonl:{tmp_path}")
    place.begin("a")
    mark(place, "a")
    (line,) = call("redrive", "a", "--store", place.url, code=2)
    assert line == (
        "error: the queue of a JSONL directory is in the memory of the process that serves it; that one queues "
        "every unfinished run when it is started, so start it again"
    )


# Refusals


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("sqlite:nope.db", "there is no SQLite file 'nope.db'; check the path of --store, or make it with: db migrate"),
        ("jsonl:nope", "there is no directory 'nope'; check the path of --store"),
        ("memory:", "memory: is gone with the process that had it, and can't be looked at from here; "
         "give sqlite:PATH, jsonl:DIR or postgresql://USER@HOST/NAME"),
        ("mysql://u:secret@host", "--store: the address of a store names kind 'mysql'; write one of memory:, "
         "jsonl:DIR, sqlite:PATH, postgresql://USER@HOST/NAME"),
        ("flows.db", "--store: the address of a store names no kind; write one of memory:, jsonl:DIR, sqlite:PATH, "
         "postgresql://USER@HOST/NAME"),
        ("sqlite:", "--store: the address of a sqlite store lacks its path; write one of memory:, jsonl:DIR, "
         "sqlite:PATH, postgresql://USER@HOST/NAME"),
        ("sqlite:.", "'.' is a directory; give the path of a file in it"),
    ],
)  # fmt: skip
def test_a_store_that_cannot_be_opened_is_told(place: Place, call: Run, store: str, message: str) -> None:
    before = sorted(Path().iterdir())
    assert call("list", "--store", store, code=2) == [f"error: {message}"]
    assert sorted(Path().iterdir()) == before, "looking makes no file"


def test_a_file_that_is_no_database_is_told(place: Place, call: Run) -> None:
    Path("notes.txt").write_text("not a database, and it must stay as it is" * 99)
    (line,) = call("list", "--store", "sqlite:notes.txt", code=2)
    assert line.startswith("error: the SQLite file ")
    assert line.endswith("file is not a database; it was left as it is; give the path of another file")


def test_a_database_without_our_tables_is_told_what_to_do(place: Place, call: Run) -> None:
    with closing(sqlite3.connect("other.db")) as database, database:
        database.execute("CREATE TABLE orders (id)")
    (line,) = call("list", "--store", "sqlite:other.db", code=2)
    assert line.endswith(
        "other.db' lacks the migrations 'events', 'failures', 'wakeups', 'queue', 'tests-not-lists'; apply them with: db migrate"
    )


def test_without_a_store_it_is_told_how_to_name_one(
    place: Place, call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUPERVISOR_STORE")
    assert call("list", code=2) == [
        "error: no store is named; give --store URL or set SUPERVISOR_STORE: sqlite:PATH, jsonl:DIR or "
        "postgresql://USER@HOST/NAME"
    ]
    monkeypatch.setenv("SUPERVISOR_STORE", "flows")
    assert call("list", code=2)[0].startswith("error: SUPERVISOR_STORE: the address of a store names no kind")


def test_the_store_may_stand_on_either_side_of_the_subcommand(place: Place, call: Run) -> None:
    place.begin("order-7")
    for words in (["--store", "sqlite:flows.db", "list"], ["list", "--store", "sqlite:flows.db"]):
        assert call(*words)[1].split()[0] == "order-7"


@pytest.mark.parametrize(
    "action", [["show"], ["history"], ["signal", "NAME"], ["cancel"], ["cancel", "--force"]]
)
def test_a_run_that_does_not_exist_is_exit_code_1(place: Place, call: Run, action: list[str]) -> None:
    name, *rest = action
    more = ["approve"] if rest == ["NAME"] else rest
    assert call(name, "nope", *more, code=1) == [
        "error: no run 'nope' in this store; `runs list` shows the runs that it has"
    ]


def test_an_id_that_no_run_can_have_is_told(place: Place, call: Run) -> None:
    assert call("show", "a/b", code=2) == [
        "error: a run id has 1 to 200 ASCII letters, digits, '-' and '_', got 'a/b'"
    ]


def test_a_server_that_is_not_there_is_told_without_the_password(call: Run) -> None:
    lines = call("list", "--store", "postgresql://me:secret@127.0.0.1:1/x", code=2)
    assert len(lines) == 1
    assert lines[0].startswith("error: PostgreSQL could not open the store")
    assert "secret" not in lines[0]


def test_a_library_that_is_missing_is_told_with_what_to_install(
    call: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if "postgres" in each and each.startswith("supervisor.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert call("list", "--store", "postgresql://me@host/x", code=2) == [
        "error: PostgreSQL needs psycopg 3; pip install 'threadvisor[postgres]'"
    ]


HOLDER = """
import sys
from supervisor.durable import JsonlEventStore
from supervisor.durable.history import RunCreated
from datetime import UTC, datetime
store = JsonlEventStore(sys.argv[1])
store.append("other", 0, [RunCreated({"name": "x", "version": "1"})], datetime(2026, 1, 31, tzinfo=UTC))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[tuple[Place, int]]:
    """A JSONL directory that another process writes to, and that process."""
    place = Place(f"jsonl:{tmp_path}")
    place.begin("order-7")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield place, process.pid
        process.communicate()


def test_a_jsonl_directory_of_a_running_program_can_be_read_and_not_written(
    locked: tuple[Place, int], call: Run, tmp_path: Path
) -> None:
    place, pid = locked
    assert [json.loads(line)["run_id"] for line in call("list", "--json", "--store", place.url)] == [
        "order-7",
        "other",
    ]
    (line,) = call("signal", "order-7", "approve", "--store", place.url, code=2)
    assert line == (
        f"error: process {pid} writes to {tmp_path}, and only one may; end that one, or use a SqliteEventStore "
        "where several processes write"
    )


# Details


def test_the_statuses_are_those_that_there_are() -> None:
    assert tuple(RunStatus) == STATUSES


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:flows.db", "sqlite:flows.db"),
        ("postgresql://me:secret@host:5432/shop?sslpassword=secret", "postgresql://me@host:5432/shop"),
        ("postgres://host/shop", "postgres://host/shop"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert shown_address(read_address(url)) == shown


def test_the_clock_of_the_command_is_that_of_the_machine() -> None:
    assert runs.SYSTEM_CLOCK is SYSTEM_CLOCK
