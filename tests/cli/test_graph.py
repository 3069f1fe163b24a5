"""`graph`: what `Workflow.to_mermaid` says, on standard output and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from supervisor.cli.main import main

JOBS = """
from enum import Enum, auto
from supervisor.flows import JoinConfig, JoinStrategy, Scheduler, Workflow

class S(Enum):
    LOOK = auto()
    WORK = auto()
    DONE = auto()

workflow = (Workflow()
    .register(S.LOOK, lambda: S.WORK, next_states=[S.WORK, S.DONE])
    .register_split(S.WORK, [print, print], JoinConfig(JoinStrategy.ALL, S.DONE))
    .add_exit_state(S.DONE))
scheduler = Scheduler()

def make():
    return workflow
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the current directory that no other test has imported."""
    name = f"graph_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


@pytest.mark.parametrize("target", ["workflow", "make"])
def test_a_workflow_is_printed_as_it_draws_itself(
    jobs: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["graph", f"{jobs}:{target}"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out == sys.modules[jobs].workflow.to_mermaid()
    assert captured.out.startswith("stateDiagram-v2\n")


def test_a_scheduler_is_refused_with_a_hint(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", f"{jobs}:scheduler"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"error: {jobs}:scheduler is a scheduler, which has no graph; name one of its workflows\n"
    )
