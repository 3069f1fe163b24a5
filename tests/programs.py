"""Run small programs, two at a time, each in a process, a folder and a time limit of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
AT_ONCE = 2
LIMIT = 20.0  # seconds, for one program


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a program left behind."""

    returncode: int
    stdout: str
    stderr: str

    def report(self) -> str:
        return f"exit code {self.returncode}\n-- stdout\n{self.stdout}\n-- stderr\n{self.stderr}"


def run_program(*arguments: str, limit: float = LIMIT, path: Path = ROOT) -> Finished:
    """Run `python ARGUMENTS` with `supervisor` taken from `path`; the working folder is empty and goes away."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["PYTHONPATH"] = str(path)
    env["PYTHONIOENCODING"] = "utf-8"
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, *arguments],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=limit,
                encoding="utf-8",
                errors="replace",
            )
        except subprocess.TimeoutExpired as late:
            return Finished(
                returncode=-1,
                stdout=_text(late.stdout),
                stderr=f"{_text(late.stderr)}\nstill running after {limit:g} s and killed",
            )
    return Finished(returncode=done.returncode, stdout=done.stdout, stderr=done.stderr)


def run_code(code: str, *, path: Path = ROOT, limit: float = LIMIT) -> Finished:
    """Run a few lines of Python as a program."""
    return run_program("-c", code, path=path, limit=limit)


def run_files(files: Mapping[str, Path]) -> dict[str, Finished]:
    """Run every file, two at a time; no thread is left when this returns."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = pool.map(lambda file: run_program(str(file)), files.values())
        return dict(zip(files, results, strict=True))


def selected(request: pytest.FixtureRequest, parameter: str) -> list[Any]:
    """Return the values of `parameter` with which tests that use the asking fixture run in this session.

    So `pytest -k NAME` runs one program, not all of them.
    """
    asking = [
        item
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and request.fixturename in item.fixturenames
    ]
    return list(dict.fromkeys(item.callspec.params[parameter] for item in asking))


def _text(output: bytes | str | None) -> str:
    if output is None:
        return ""
    return output if isinstance(output, str) else output.decode("utf-8", "replace")
