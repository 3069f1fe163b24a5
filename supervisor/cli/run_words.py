"""How a run is put in words: how its status is meant, what it is at, what a value is. Pure."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from supervisor.cli.times import absolute, relative
from supervisor.cli.words import Symbols, Tone
from supervisor.durable.snapshot import RunSnapshot, RunStatus, StepStatus, WaitSnapshot, WaitStatus

__all__ = ["ID", "VALUE", "json_text", "mark_of", "tone_of", "under_way"]

ID = 32  # columns of an id in a table
VALUE = 200  # columns of a value in a table whose lines may be of any length

_TONES = {
    RunStatus.PENDING: Tone.PLAIN,
    RunStatus.RUNNING: Tone.BUSY,
    RunStatus.SUSPENDED: Tone.PLAIN,
    RunStatus.CANCELLING: Tone.WARN,
    RunStatus.COMPLETED: Tone.GOOD,
    RunStatus.FAILED: Tone.BAD,
    RunStatus.CANCELLED: Tone.WARN,
}


def tone_of(status: RunStatus) -> Tone:
    """Return how a status is meant."""
    return _TONES[status]


def mark_of(status: RunStatus, symbols: Symbols) -> str:
    """Return the one character that stands for a status."""
    match status:
        case RunStatus.COMPLETED:
            return symbols.good
        case RunStatus.FAILED:
            return symbols.bad
        case RunStatus.CANCELLED:
            return symbols.stopped
        case RunStatus.RUNNING | RunStatus.CANCELLING:
            return symbols.running
        case RunStatus.PENDING | RunStatus.SUSPENDED:
            return symbols.waiting


def under_way(run: RunSnapshot, now: datetime) -> list[str]:
    """Return what a run is at, or waits for."""
    found: list[str] = []
    for wait in run.waits.values():
        if wait.status is WaitStatus.WAITING:
            found.append(_awaited(wait, now))
    for step in run.steps.values():
        if step.status is StepStatus.PENDING and step.retry_after is not None:
            following = f"attempt {step.attempt + 1} of {step.step_id}"
            found.append(f"{following} {relative(step.retry_after, now)}")
        elif step.status is StepStatus.RUNNING:
            attempt = "" if step.attempt == 1 else f", attempt {step.attempt}"
            found.append(f"runs {step.step_id}{attempt}")
    return found


def _awaited(wait: WaitSnapshot, now: datetime) -> str:
    if wait.signal_name is not None:
        return f"waits for signal {wait.signal_name!r}"
    assert wait.resume_at is not None
    return f"{wait.wait_id} until {absolute(wait.resume_at)} ({relative(wait.resume_at, now)})"


def json_text(value: Any) -> str:
    """Return a value of a run in one line."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
