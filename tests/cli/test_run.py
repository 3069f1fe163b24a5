"""`run`: exit codes, signals, the account of outcomes on stderr, the file of events."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor import OutcomeKind, TaskFinished
from supervisor.cli.main import main
from supervisor.cli.run import Tally
from supervisor.cli.words import plain
from supervisor.testing import VirtualClock
from tests.programs import ROOT

JOBS = """
import sys
from supervisor import BackoffPolicy, Canceled, Fatal, Supervisor, TaskSpec

def works():
    return 3

def crashes():
    raise ValueError("boom")

def gives_up():
    raise Fatal("no such customer", exit_code=7)

def panics():
    raise KeyboardInterrupt

def stops():
    raise Canceled("enough")

def waits(ctx):
    print("ready", flush=True)
    ctx.wait()

def deaf(ctx):
    import time
    print("ready", flush=True)
    time.sleep(20)

at_once = BackoffPolicy.constant(0.001)
good = [TaskSpec.once("good", works), TaskSpec.once("stopped", stops)]
failed = [TaskSpec.once("good", works), TaskSpec.restartable("bad", crashes, max_retries=2, backoff=at_once)]
fatal = TaskSpec.once("bad", gives_up)
panicked = TaskSpec.once("bad", panics)
forever = TaskSpec.once("forever", waits)
stuck = [TaskSpec.once("deaf", deaf)]
given_up = TaskSpec.once("deaf", deaf, timeout=0.05, overrun=0.05)
twice = [good[0], good[0]]
nothing = []

sup = Supervisor()
sup.once(name="declared")(works)
sup.restartable(name="broken", max_retries=1, backoff=at_once)(crashes)

def added():
    supervisor = Supervisor()
    supervisor.add(TaskSpec.once("early", crashes))
    return supervisor

def shut_down():
    supervisor = Supervisor()
    with supervisor:
        pass
    return supervisor

def empty():
    return Supervisor()

def fruitful():
    supervisor = Supervisor()
    @supervisor.once
    def parent():
        supervisor.add(TaskSpec.once("child", crashes))
    return supervisor
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a module that no other test has imported."""
    name = f"jobs_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / f"{name}.py"


def run(jobs: Path, target: str, *options: str) -> int:
    return main(["run", f"{jobs.stem}:{target}", *options])


def outcomes(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines on stderr that no logger wrote, in an order that doesn't depend on threads."""
    return sorted(capsys.readouterr().err.splitlines())


Program = Callable[..., "subprocess.Popen[str]"]
LIMIT = "bad: failed after 3 attempts: retry limit reached after 2 of 2 retries: ValueError: boom"


@pytest.mark.parametrize(
    ("target", "code", "lines"),
    [
        ("good", 0, ["good: completed", "stopped: canceled"]),
        ("failed", 1, [LIMIT, "good: completed"]),
        ("fatal", 1, ["bad: fatal: no such customer"]),
        ("panicked", 1, ["bad: panicked: KeyboardInterrupt"]),
        (
            "sup",
            1,
            [
                "broken: failed after 2 attempts: retry limit reached after 1 of 1 retries: ValueError: boom",
                "declared: completed",
            ],
        ),
        ("fruitful", 1, ["child: failed: ValueError: boom", "parent: completed"]),
    ],
)
def test_the_exit_code_tells_whether_a_task_failed(
    jobs: Path, capsys: pytest.CaptureFixture[str], target: str, code: int, lines: list[str]
) -> None:
    assert run(jobs, target) == code
    assert outcomes(capsys) == lines


def test_a_task_that_was_given_up_is_a_failure_and_shows_where_it_is_stuck(program: Program) -> None:
    done = program("given_up")
    _, errors = done.communicate(timeout=20)
    assert done.returncode == 1
    assert "deaf: force_aborted: still running 0.05 s after its deadline; it is stuck at:" in errors
    assert "time.sleep(20)" in errors


def test_a_supervisor_without_tasks_says_so(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(jobs, "empty") == 0
    assert outcomes(capsys) == [f"{jobs.stem}:empty had no tasks to run"]


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("zzz", [], "error: module JOBS has no 'zzz'; it has failed, fatal, forever, given_up, good, panicked, stuck or sup"),
        ("nothing", [], "error: JOBS:nothing is an empty list: there is nothing to run"),
        ("shut_down", [], "error: JOBS:shut_down can't be run: supervisor 'supervisor' is shutting down or has; "
         "make a new one for new work"),
        ("twice", [], "error: JOBS:twice can't be run: the name 'good' occurs twice in the batch; choose another name"),
        ("sup", ["--grace", "3"], "error: --grace can't change JOBS:sup; give it a SupervisorConfig(grace=3)"),
        ("good", ["--events", "no/such/folder.jsonl"], "error: --events no/such/folder.jsonl: its folder is missing"),
        ("good", ["--events", "."], "error: --events .: Is a directory"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_told_in_one_line(
    jobs: Path, capsys: pytest.CaptureFixture[str], target: str, options: list[str], message: str
) -> None:
    assert run(jobs, target, *options) == 2
    assert outcomes(capsys) == [message.replace("JOBS", jobs.stem)]


def test_a_mistake_in_the_own_code_is_told_with_its_traceback(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs.write_text("def divide():\n    return 1 / 0\n\ndivide()\n")
    assert run(jobs, "tasks") == 2
    error = capsys.readouterr().err.splitlines()
    assert error[0] == "Traceback (most recent call last):"
    assert error[-1].startswith(f"error: importing {jobs.stem} failed: ZeroDivisionError: division by zero")


def test_every_event_goes_to_the_file_one_object_a_line(jobs: Path, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    assert run(jobs, "failed", "--events", str(file)) == 1
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    bad = [event["kind"] for event in events if event.get("task") == "bad"]
    again = ["attempt_starting", "attempt_failed"]
    assert bad == [
        "task_added",
        *again,
        "backoff_scheduled",
        *again,
        "backoff_scheduled",
        *again,
        "task_finished",
        "task_removed",
    ]
    assert events[-1]["kind"] == "shutdown_completed"


def test_the_file_of_events_is_appended_to(jobs: Path, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    run(jobs, "good", "--events", str(file))
    first = file.read_text()
    run(jobs, "good", "--events", str(file))
    assert file.read_text().startswith(first)
    assert len(file.read_text().splitlines()) == 2 * len(first.splitlines())


# Signals, and what needs a process of its own.


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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_tasks_and_is_the_exit_code(program: Program, number: int, code: int) -> None:
    running = ready(program("forever"))
    running.send_signal(number)
    output, errors = running.communicate(timeout=20)
    assert (running.returncode, output, errors) == (code, "", "forever: canceled\n")


def test_a_second_signal_ends_the_grace_at_once(program: Program) -> None:
    running = ready(program("stuck", "--log-level", "info"))
    running.send_signal(signal.SIGTERM)
    assert running.stderr is not None
    while "shutdown requested" not in running.stderr.readline():
        pass
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=20)
    assert running.returncode == 143
    assert "deaf: force_aborted" in errors
    assert "time.sleep(20)" in errors


def test_the_grace_is_the_one_that_was_given(program: Program) -> None:
    running = ready(program("stuck", "--grace", "0.1"))
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "deaf: force_aborted: did not stop within the 0.1 s of the shutdown; it is stuck at:" in errors


@pytest.mark.parametrize(
    ("options", "levels"),
    [
        ([], {"ERROR", "WARNING"}),
        (["--log-level", "DEBUG"], {"ERROR", "WARNING", "INFO", "DEBUG"}),
        (["--log-level", "critical"], set[str]()),
    ],
)
def test_events_are_logged_from_the_level_up(program: Program, options: list[str], levels: set[str]) -> None:
    running = program("failed", *options)
    _, errors = running.communicate(timeout=20)
    logged = [line.split() for line in errors.splitlines() if "supervisor.events: " in line]
    assert {words[2] for words in logged} == levels


def test_a_supervisor_logs_only_what_it_has_set_up_itself(program: Program) -> None:
    _, quiet = program("sup").communicate(timeout=20)
    _, asked = program("sup", "--log-level", "error").communicate(timeout=20)
    assert "supervisor.events" not in quiet
    assert "ERROR   supervisor.events: task 'broken' attempt 1 failed" in asked


def test_a_closed_stderr_changes_no_exit_code(jobs: Path) -> None:
    command = f'"{sys.executable}" -m supervisor run {jobs.stem}:failed 2>&- >&-'
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=jobs.parent, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=20
    )
    assert done.returncode == 1


# The tally


def test_the_tally_of_very_many_tasks_stays_small_and_names_the_failed_ones(clock: VirtualClock) -> None:
    tally = Tally()
    for seq in range(1, 1001):
        outcome = OutcomeKind.FATAL if seq == 900 else OutcomeKind.COMPLETED
        tally(
            TaskFinished(
                seq=seq, at=clock.now(), task_id=seq, task=f"t{seq}", outcome=outcome, attempts=1, reason=None
            )
        )
    lines = [plain(line) for line in tally.lines()]
    assert lines[:2] == ["t1: completed", "t2: completed"]
    assert lines[-2:] == ["t900: fatal", "... and more, in all 999 completed, 1 fatal"]
    assert len(lines) == 102
    assert tally.failed
