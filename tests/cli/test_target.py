"""`module:object`: what is found is run, what is not is named, with what to do about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor import Supervisor, TaskSpec
from supervisor.cli.target import TargetError, load, load_engine, load_workflow
from supervisor.durable import FlowEngine, FlowRuntime
from supervisor.flows import Scheduler, Workflow

JOBS = """
from supervisor import Supervisor, TaskSpec
from supervisor.flows import Scheduler, Workflow

def body():
    return 3

tasks = [TaskSpec.once("a", body), TaskSpec.once("b", body)]
one = tasks[0]
pair = (tasks[0], tasks[1])
sup = Supervisor()
schedule = Scheduler()
graph = Workflow()
number = 4
table = {"a": tasks[0]}
mixed = [tasks[0], "abc"]

def make():
    return tasks

def make_supervisor():
    return sup

def make_scheduler():
    return schedule

def make_started():
    return schedule.start()

def make_graph():
    return graph

def generate():
    yield from tasks

def needs(path, *, mode):
    return tasks

def nothing():
    pass

def breaks():
    return {}["missing"]

def leaves():
    raise SystemExit(3)

async def coroutine():
    return tasks

class App:
    tasks = tasks

class Made(Supervisor):
    pass
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current directory with a few modules, which are forgotten afterwards."""
    (tmp_path / "jobs.py").write_text(JOBS)
    (tmp_path / "only_bodies.py").write_text("from os.path import join\ndef work(): pass\nLIMIT = 3\n")
    (tmp_path / "lacking.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "zero.py").write_text("def divide():\n    return 1 / 0\n\ndivide()\n")
    (tmp_path / "script.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "torn.py").write_text("tasks = [\n")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "night.py").write_text("from jobs import tasks\n")
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("jobs:tasks", ["a", "b"]),
        ("jobs:pair", ["a", "b"]),
        ("jobs:one", ["a"]),
        ("jobs:make", ["a", "b"]),
        ("jobs:generate", ["a", "b"]),
        ("jobs:App.tasks", ["a", "b"]),
        ("shop.night:tasks", ["a", "b"]),
    ],
)
def test_specs_are_found(target: str, names: list[str]) -> None:
    found = load(target)
    assert isinstance(found, list)
    assert all(isinstance(spec, TaskSpec) for spec in found)
    assert [spec.name for spec in found] == names


@pytest.mark.parametrize("target", ["jobs:sup", "jobs:make_supervisor", "jobs:Made"])
def test_a_supervisor_is_found(target: str) -> None:
    assert isinstance(load(target), Supervisor)


@pytest.mark.parametrize("target", ["jobs:schedule", "jobs:make_scheduler"])
def test_a_scheduler_is_found(target: str) -> None:
    assert isinstance(load(target), Scheduler)


@pytest.mark.parametrize("target", ["jobs:graph", "jobs:make_graph"])
def test_a_workflow_is_found_to_draw_it(target: str) -> None:
    assert isinstance(load_workflow(target), Workflow)


FORM = "a Supervisor, a Scheduler, a TaskSpec or a list of them, or a function that returns one of these"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("jobs", "'jobs' names no object; write module:object, for example jobs:tasks"),
        ("jobs:", "'jobs:' is not of the form module:object; write for example jobs:tasks"),
        (":tasks", "':tasks' is not of the form module:object; write for example jobs:tasks"),
        ("jobs:a b", "'jobs:a b' is not of the form module:object; write for example jobs:tasks"),
        ("", "'' is not of the form module:object; write for example jobs:tasks"),
        ("jobs.py:tasks", "'jobs.py:tasks' names a file; name the module, as in `import`: jobs:tasks"),
        ("./shop/night.py", "'./shop/night.py' names a file; name the module, as in `import`: shop.night:tasks"),
        ("jobs:taks", "module jobs has no 'taks'; did you mean tasks or breaks?"),
        ("jobs:zzz", "module jobs has no 'zzz'; it has mixed, one, pair, schedule, sup or tasks"),
        ("jobs:App.work", "jobs.App has no 'work'; it has tasks"),
        ("json.tool:zzz", "module json.tool has no 'zzz'; it has main"),
        ("keyword:zzz", f"module keyword has no 'zzz'; there is nothing in it to run: write {FORM}"),
        ("only_bodies:zzz", "module only_bodies has no 'zzz'; it has work"),
        ("jobs:number", f"jobs:number is an int: 4; name {FORM}"),
        ("jobs:graph", "jobs:graph is a Workflow, which needs somebody to run it; give it to a Scheduler, and name that"),
        ("jobs:mixed", "item 1 of jobs:mixed is a str: 'abc', not a TaskSpec"),
        ("sys:path", "item 0 of sys:path is a str: "),
        ("os:path", f"os:path is a module (posixpath); name {FORM}"),
        ("jobs:needs", "jobs:needs(path, *, mode) needs arguments (missing a required argument: 'path'); "
         "name a function that can be called without"),
        ("jobs:nothing", "jobs:nothing() returned None; it must return a Supervisor, a Scheduler, a TaskSpec or a list"),
        ("jobs:coroutine", "jobs:coroutine is a coroutine function; make it a plain function that returns the tasks"),
        ("jobs:breaks", "calling jobs:breaks failed: KeyError: 'missing' (in breaks, jobs.py:"),
        ("jobs:leaves", "calling jobs:leaves ended with SystemExit(3)"),
        ("lacking:tasks", "importing lacking failed: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("zero:tasks", "importing zero failed: ZeroDivisionError: division by zero (in divide, zero.py:2)"),
        ("script:tasks", "importing script ended with SystemExit(3); guard what runs in it by if __name__ == '__main__'"),
        ("torn:tasks", "importing torn failed: it is not valid Python"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_named_with_what_to_do(target: str, message: str) -> None:
    with pytest.raises(TargetError) as refused:
        load(target)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("jobs", "'jobs' names no object; write module:object, for example jobs:workflow"),
        ("jobs:schedule", "jobs:schedule is a scheduler, which has no graph; name one of its workflows"),
        ("jobs:tasks", "jobs:tasks is a list: ["),
        ("jobs:number", "jobs:number is an int: 4; name a Workflow, or a function that returns one"),
        ("jobs:grahp", "module jobs has no 'grahp'; did you mean graph"),
        ("jobs:zzz", "module jobs has no 'zzz'; it has graph"),
        (
            "keyword:zzz",
            "module keyword has no 'zzz'; there is nothing in it to draw: write a Workflow, or a function",
        ),
        ("jobs:nothing", "jobs:nothing() returned None; it must return a Workflow"),
        (
            "jobs:coroutine",
            "jobs:coroutine is a coroutine function; make it a plain function that returns the workflow",
        ),
    ],
)
def test_what_cannot_be_drawn_is_named_with_what_to_do(target: str, message: str) -> None:
    with pytest.raises(TargetError) as refused:
        load_workflow(target)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("target", ["shop.flows:engine", "shop.flows:make", "shop.flows:runtime"])
def test_an_engine_or_a_runtime_is_found_to_serve_it(here: Path, target: str) -> None:
    (here / "shop" / "flows.py").write_text(
        "from supervisor.durable import FlowEngine, FlowRuntime\n"
        "runtime = FlowRuntime()\nengine = FlowEngine(runtime)\ndef make():\n    return engine\n"
    )
    found = load_engine(target)
    assert isinstance(found, FlowRuntime if target.endswith("runtime") else FlowEngine)


def test_a_scheduler_that_runs_is_not_run_again() -> None:
    with pytest.raises(TargetError) as refused:
        load("jobs:make_started")
    assert str(refused.value) == (
        "jobs:make_started is a scheduler that was started; name the Scheduler, before its start()"
    )
    sys.modules["jobs"].schedule.supervisor.shutdown()


def test_a_module_that_is_not_there_is_told_with_its_near_names(here: Path) -> None:
    with pytest.raises(TargetError) as refused:
        load("jbos:tasks")
    assert str(refused.value) == f"no module 'jbos' in {here} or on the path; did you mean jobs?"
    with pytest.raises(TargetError) as refused:
        load("shop.day:tasks")
    assert str(refused.value) == f"no module 'shop.day' in {here} or on the path"


@pytest.mark.parametrize(
    ("target", "first", "last"),
    [
        ("zero:tasks", "Traceback (most recent call last):", "ZeroDivisionError: division by zero"),
        ("jobs:breaks", "Traceback (most recent call last):", "KeyError: 'missing'"),
        ("torn:tasks", '  File "', "SyntaxError: '[' was never closed"),
    ],
)
def test_an_error_of_the_own_code_comes_with_its_traceback(target: str, first: str, last: str) -> None:
    with pytest.raises(TargetError) as refused:
        load(target)
    lines = refused.value.traceback.splitlines()
    assert lines[0].startswith(first)
    assert lines[-1] == last
    assert not any("target.py" in line for line in lines)


def test_a_target_that_is_merely_wrong_has_no_traceback() -> None:
    with pytest.raises(TargetError) as refused:
        load("jobs:taks")
    assert refused.value.traceback == ""
