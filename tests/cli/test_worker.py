"""`worker`: it serves what a module has, says what, and stops in order; a second signal ends it at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.cli.main import main
from supervisor.durable import FlowEngine, FlowRuntime, RunStatus, SqliteEventStore
from tests.programs import ROOT

SHOP = """
import sys
import time
from supervisor import TaskSpec
from supervisor.durable import FlowEngine, FlowRuntime, MemoryEventStore, SqliteEventStore, current_step

flows = FlowRuntime()

@flows.step
def charge(order):
    print("charge", order["id"], flush=True)
    return order["id"]

@flows.step
def deaf():
    print("ready", flush=True)
    time.sleep(30)

@flows.step
def heeds():
    print("ready", flush=True)
    current_step().token.wait()
    current_step().token.check()

@flows.step
def short():
    print("ready", flush=True)
    sys.stdin.readline()
    return "done"

@flows.workflow(version="2")
def checkout(ctx, order):
    return ctx.step("charge", charge, order)

@flows.workflow
def breaks(ctx):
    raise ValueError("no such customer")

@flows.workflow
def stuck(ctx, name):
    return ctx.step("it", name)

def engine():
    return FlowEngine(flows, SqliteEventStore("flows.db"))

def served():
    made = engine()
    made.serve(workers=1, grace=0).__enter__()
    sys.stdin.readline()
    return made

def in_memory():
    return FlowEngine(FlowRuntime())

def broken():
    raise OSError("no configuration")

task = TaskSpec.once("task", print)
number = 4
"""

Program = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a module that no other test has imported."""
    name = f"shop_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUPERVISOR_STORE", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / f"{name}.py"


@pytest.fixture
def program(shop: Path) -> Iterator[Program]:
    """Start `worker` in a process of its own; none is left when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def start(target: str, *options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "worker", f"{shop.stem}:{target}", *options],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
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


def submit(workflow: str, version: str, run_id: str, input: object = None) -> None:
    """Queue a run in the store of the module, as another program would."""
    runtime = FlowRuntime()

    def stand_in(ctx: object, order: object) -> None: ...

    runtime.workflow(stand_in, name=workflow, version=version)
    with closing(SqliteEventStore("flows.db")) as store, FlowEngine(runtime, store) as engine:
        engine.submit(workflow, input, run_id=run_id)


def status(run_id: str) -> RunStatus:
    with closing(SqliteEventStore("flows.db")) as store, FlowEngine(FlowRuntime(), store) as engine:
        return engine.snapshot(run_id).status


def until(stream: object, mark: str) -> None:
    """Read lines of a stream until one has the mark in it."""
    for line in stream:  # type: ignore[attr-defined]
        if mark in line:
            return
    raise AssertionError(f"it ended without {mark!r}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_serves_until_a_signal_and_tells_of_each_run_when_asked(
    program: Program, shop: Path, number: int, code: int
) -> None:
    submit("checkout", "2", "order-7", {"id": 7})
    submit("breaks", "1", "order-8")
    running = program("engine", "-v", "--workers", "1", "--poll", "0.05")
    assert running.stdout is not None
    assert running.stdout.readline() == "charge 7\n"
    until(running.stderr, "order-8")
    running.send_signal(number)
    output, errors = running.communicate(timeout=20)
    assert (running.returncode, output) == (code, "")
    assert errors == "stopping: steps that run have 30 s to end; another signal ends it at once\n"
    assert (status("order-7"), status("order-8")) == (RunStatus.COMPLETED, RunStatus.FAILED)


def test_it_says_what_it_serves_and_nothing_of_runs_unless_asked(program: Program, shop: Path) -> None:
    submit("checkout", "2", "order-7", {"id": 7})
    running = program("flows", "--store", "sqlite:flows.db", "--workers", "2")
    assert running.stdout is not None
    assert running.stdout.readline() == "charge 7\n"
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=20)
    assert errors.splitlines() == [
        f"serving {shop.stem}:flows with 2 workers, Ctrl-C stops it",
        f"  store   SqliteEventStore '{shop.parent}/flows.db'",
        "  flows   breaks 1, checkout 2, stuck 1",
        "  steps   charge, deaf, heeds, short",
        "stopping: steps that run have 30 s to end; another signal ends it at once",
    ]


def test_the_lines_of_runs_tell_how_each_ended(program: Program, shop: Path) -> None:
    submit("checkout", "2", "order-7", {"id": 7})
    submit("breaks", "1", "order-8")
    running = program("engine", "-v", "--workers", "1")
    told: list[str] = []
    assert running.stderr is not None
    for line in running.stderr:
        told += [line] if line.startswith("order-") else []
        if len(told) == 2:
            break
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=20)
    assert [line.split(" after ")[0] for line in told] == [
        "order-7 (checkout) completed",
        "order-8 (breaks) failed",
    ]
    assert ": ValueError: no such customer (in breaks, shop_" in told[1]


def test_a_step_that_runs_may_end_after_the_first_signal(program: Program, shop: Path) -> None:
    submit("stuck", "1", "order-7", "short")
    running = program("engine")
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGTERM)
    until(running.stderr, "stopping: ")
    running.communicate("go on\n", timeout=20)
    assert running.returncode == 143
    assert status("order-7") is RunStatus.COMPLETED


@pytest.mark.parametrize(
    ("step", "last"),
    [
        ("heeds", ""),
        ("deaf", "ended at once: steps that ran are run again when their lease is over\n"),
    ],
)
def test_a_second_signal_ends_it_at_once_and_the_step_is_run_again_later(
    program: Program, shop: Path, step: str, last: str
) -> None:
    submit("stuck", "1", "order-7", step)
    running = program("engine", "--lease", "1")
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGTERM)
    until(running.stderr, "stopping: ")
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=20)
    assert running.returncode == 143
    assert errors == last
    assert status("order-7") is RunStatus.RUNNING


@pytest.mark.parametrize(("step", "code"), [("heeds", 143), pytest.param("deaf", 1, marks=pytest.mark.slow)])
def test_after_the_grace_steps_are_asked_to_cancel_and_those_that_do_not_are_exit_code_1(
    program: Program, shop: Path, step: str, code: int
) -> None:
    submit("stuck", "1", "order-7", step)
    running = program("engine", "--grace", "0")
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGTERM)
    until(running.stderr, "stopping: ")
    _, errors = running.communicate(timeout=20)
    assert running.returncode == code
    assert len(errors.splitlines()) == (code == 1), errors
    if code == 1:
        assert errors.startswith(
            "error: steps ran on after the grace, and are run again when their lease is "
        )
        assert errors.endswith("in deaf: time.sleep(30); let long steps watch current_step().token\n")
    assert status("order-7") is RunStatus.RUNNING


@pytest.mark.slow
def test_steps_that_run_on_in_a_serve_of_the_module_itself_are_told_in_one_line(
    program: Program, shop: Path
) -> None:
    submit("stuck", "1", "order-7", "deaf")
    submit("checkout", "2", "order-8", {"id": 8})
    running = program("served")
    assert running.stdout is not None
    assert running.stdin is not None
    assert running.stdout.readline() == "ready\n"
    running.stdin.write("go on\n")
    running.stdin.flush()
    assert running.stdout.readline() == "charge 8\n"  # by the workers of the command: it listens to signals
    running.send_signal(signal.SIGTERM)
    until(running.stderr, "stopping: ")
    _, errors = running.communicate(timeout=20)
    assert (running.returncode, len(errors.splitlines())) == (1, 1), errors
    assert errors.startswith("error: steps ran on after the grace")


FORM = "a FlowEngine, a FlowRuntime beside --store, or a function that returns one of these"


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("flows", [], "SHOP:flows is a FlowRuntime, which has no store; give --store URL, or name a FlowEngine"),
        ("flows", ["--store", "mysql:x"], "--store: the address of a store names kind 'mysql'; write one of memory:, "
         "jsonl:DIR, sqlite:PATH, postgresql://USER@HOST/NAME"),
        ("engine", ["--store", "sqlite:x"], "--store can't change SHOP:engine, which has its own; name its "
         "FlowRuntime, or leave --store out"),
        ("number", [], f"SHOP:number is an int: 4; name {FORM}"),
        ("task", [], "SHOP:task is a TaskSpec: TaskSpec("),
        ("checkout", [], "SHOP:checkout(ctx, order) needs arguments (missing a required argument: 'ctx'); name a "
         "function that can be called without"),
        ("flow", [], "module SHOP has no 'flow'; did you mean flows?"),
        ("zzz", [], "module SHOP has no 'zzz'; it has flows"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_told_in_one_line(
    shop: Path, capsys: pytest.CaptureFixture[str], target: str, options: list[str], message: str
) -> None:
    assert main(["worker", f"{shop.stem}:{target}", *options]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"error: {message}".replace("SHOP", shop.stem))


def test_a_module_that_is_not_there_is_told(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "nope_at_all:engine"]) == 2
    assert capsys.readouterr().err == f"error: no module 'nope_at_all' in {shop.parent} or on the path\n"
    assert main(["worker", "nope"]) == 2
    assert capsys.readouterr().err == (
        "error: 'nope' names no object; write module:object, for example nope:engine\n"
    )


def test_a_mistake_in_the_own_code_is_told_with_its_traceback(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", f"{shop.stem}:broken"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1].startswith(f"error: calling {shop.stem}:broken failed: OSError: no configuration")


def test_a_store_in_memory_and_a_runtime_without_workflows_are_noted(program: Program) -> None:
    running = program("in_memory")
    until(running.stderr, "note: the store is in memory: runs come only from this process, and end with it")
    until(running.stderr, "note: no workflow is registered: every run is left to others")
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=20)
    assert running.returncode == 130
