"""`run` of a scheduler: until it stops or a signal comes; its exit codes, its lines, its events."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from supervisor.cli.main import main
from supervisor.cli.run_flows import flow_lines
from supervisor.cli.words import plain
from supervisor.flows import Backoff, Completed, FlowInfo, Idle, Running, Tripped
from supervisor.flows.status import Status
from tests.programs import ROOT

JOBS = """
import os
import signal
import threading
from supervisor import BackoffPolicy, Supervisor, TaskSpec
from supervisor.flows import Resources, Scheduler, Workflow

def stops_itself(*, breaks):
    scheduler = Scheduler()
    box = []
    first = threading.Event()

    @scheduler.every_seconds(60)
    def sync():
        if breaks:
            raise ValueError("boom")

    @scheduler.every_seconds(0.001)
    def ends():
        first.wait(10)
        if not breaks or running().status("sync").failure_streak:
            running().request_stop()

    def running():
        return box[0]

    scheduler.set_backoff("sync", BackoffPolicy(initial=0.01), streak_limit=1)
    start = scheduler.start
    def keep():
        box.append(start())
        first.set()
        return box[0]
    scheduler.start = keep
    return scheduler

def fine():
    return stops_itself(breaks=False)

def trips():
    return stops_itself(breaks=True)

def said(ctx=None):
    print("ready", flush=True)

forever = Scheduler()
forever.every("sync", said, interval=60)
forever.cron("report", said, "0 0 1 1 *")
forever.manual("export", said)

manual = Scheduler()
manual.manual("export", said)
manual.manual("import", said)

def deaf_run():
    import time
    print("ready", flush=True)
    time.sleep(30)

deaf = Scheduler()
deaf.every("deaf", deaf_run, interval=60)

def heeds(res, run):
    print("ready", flush=True)
    run.token.wait()
    run.token.check()

patient = Scheduler()
patient.every("patient", heeds, interval=60)

def on_a_supervisor():
    supervisor = Supervisor()
    supervisor.add(TaskSpec.once("task", lambda ctx: ctx.wait()))
    scheduler = Scheduler(supervisor=supervisor)
    scheduler.every("sync", said, interval=60)
    return scheduler

def hit():
    scheduler = Scheduler()
    scheduler.every("sync", said, interval=60)
    start = scheduler.start
    def keep():
        running = start()
        os.kill(os.getpid(), signal.SIGTERM)
        return running
    scheduler.start = keep
    return scheduler

empty = Scheduler()
invalid = Scheduler()
invalid.every("x", Workflow().add_exit_state(2), 1, 30)

class Broken:
    def setup(self):
        raise OSError("no database")

broken = Scheduler()
broken.every("x", Workflow(Resources(db=Broken())).register(1, print).add_exit_state(2), 1, 30)
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a module that no other test has imported."""
    name = f"flows_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / f"{name}.py"


Program = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def program(jobs: Path) -> Iterator[Program]:
    """Start `run` in a process of its own; none is left when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def start(target: str, *options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "run", f"{jobs.stem}:{target}", *options],
            cwd=jobs.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ready(running: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    return running


def run(jobs: Path, target: str, *options: str) -> int:
    return main(["run", f"{jobs.stem}:{target}", *options])


def test_a_scheduler_that_stops_by_itself_with_no_flow_tripped_is_exit_code_0(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(jobs, "fine") == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "sync: completed"
    assert lines[1].startswith("ends: completed")


def test_a_tripped_flow_is_exit_code_1(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(jobs, "trips", "--log-level", "critical") == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("sync: tripped: 1 failure: ValueError: boom (in ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_flows_and_is_the_exit_code(program: Program, number: int, code: int) -> None:
    running = ready(program("forever"))
    running.send_signal(number)
    output, errors = running.communicate(timeout=20)
    lines = ["sync: completed", "report: idle, never run", "export: idle, never run"]
    assert (running.returncode, output, errors.splitlines()) == (code, "", lines)


def test_a_scheduler_of_manual_flows_says_that_nothing_will_trigger_them(program: Program) -> None:
    running = program("manual")
    assert running.stderr is not None
    note = "note: nothing will trigger export, import (manual), unless the module does it on a thread of its own\n"
    assert running.stderr.readline() == note
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=20)
    assert (running.returncode, errors) == (130, "export: idle, never run\nimport: idle, never run\n")


def test_a_second_signal_asks_runs_to_cancel_at_once(program: Program) -> None:
    running = ready(program("patient"))
    running.send_signal(signal.SIGTERM)
    assert running.stderr is not None
    waits = "waiting up to 30 s for patient; another signal asks for an end at once\n"
    assert running.stderr.readline() == waits
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=20)
    assert (running.returncode, errors) == (143, "patient: idle\n")


def test_runs_that_ignore_the_stop_are_exit_code_1_signal_or_not(program: Program) -> None:
    running = ready(program("deaf", "--grace", "0.1"))
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=20)
    waits, line, error = errors.splitlines()
    assert running.returncode == 1
    assert waits == "waiting up to 0.1 s for deaf; another signal asks for an end at once"
    assert line == "deaf: still running"
    assert error.startswith("error: flows still run after 0.1 s and a request to cancel: 'deaf'")


def test_a_signal_that_comes_while_it_starts_stops_it_in_order(program: Program) -> None:
    running = program("hit")
    _, errors = running.communicate(timeout=20)
    assert (running.returncode, errors.splitlines()[-1].partition(":")[0]) == (143, "sync")


def test_the_supervisor_that_a_scheduler_was_given_ends_with_the_command(
    program: Program, tmp_path: Path
) -> None:
    file = tmp_path / "events.jsonl"
    running = ready(program("on_a_supervisor", "--events", str(file)))
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=20)
    assert (running.returncode, errors) == (143, "sync: completed\n")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert events[-1]["kind"] == "shutdown_completed"
    assert ("task_finished", "task") in {(event["kind"], event.get("task")) for event in events}


def test_every_event_of_its_flows_goes_to_the_file(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    running = ready(program("forever", "--events", str(file)))
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=20)
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [event["kind"] for event in events if event.get("flow_id") == "sync"] == [
        "flow_scheduled",
        "flow_started",
        "flow_succeeded",
        "flow_scheduled",
    ]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["kind"] == "shutdown_completed"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("empty", "error: JOBS:empty is a scheduler without flows: there is nothing to run"),
        ("invalid", "error: JOBS:invalid can't be run: no state has a task; use register()"),
        ("broken", "error: starting JOBS:broken failed: OSError: no database (in setup, JOBS.py:"),
    ],
)
def test_what_cannot_be_started_is_told_and_exit_code_2(
    jobs: Path, capsys: pytest.CaptureFixture[str], target: str, message: str
) -> None:
    assert run(jobs, target) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(message.replace("JOBS", jobs.stem))


NOW = datetime(2026, 11, 30, tzinfo=UTC)


def info(id: str, status: Status, runs: int) -> FlowInfo:
    return FlowInfo(
        id=id,
        status=status,
        run_count=runs,
        last_run=None,
        last_duration=None,
        failure_streak=0,
        next_eligible=None,
        next_fire=None,
        skipped=0,
        paused=False,
    )


def test_each_flow_is_told_in_one_line() -> None:
    flows = [
        info("a", Completed(NOW), 3),
        info("b", Backoff(NOW, 1, "no luck"), 1),
        info("c", Tripped(4, "first\nsecond"), 9),
        info("d", Idle(), 0),
        info("e", Idle(), 2),
        info("f", Running(NOW), 1),
    ]
    assert [plain(line) for line in flow_lines(flows)] == [
        "a: completed after 3 runs",
        "b: backoff: 1 failure: no luck",
        "c: tripped after 9 runs: 4 failures in a row: first\n    second",
        "d: idle, never run",
        "e: idle after 2 runs",
        "f: still running",
    ]


def test_many_flows_are_counted_and_what_tripped_is_still_told() -> None:
    flows = [info(f"f{n}", Completed(NOW), 1) for n in range(1000)]
    flows[900] = info("f900", Tripped(1, "boom"), 1)
    lines = [plain(line) for line in flow_lines(flows)]
    assert len(lines) == 102
    assert lines[0] == "f0: completed"
    assert lines[-2:] == ["f900: tripped: 1 failure: boom", "... and more, in all 999 completed, 1 tripped"]
