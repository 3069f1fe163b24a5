"""What people see of durable runs: a table of runs, one run with its timeline, a history. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from textwrap import wrap
from typing import Any, cast

from supervisor.cli.bars import bars_of
from supervisor.cli.timeline import timeline
from supervisor.cli.times import absolute, relative, span
from supervisor.cli.words import Column, Line, Piece, Symbols, Tone, cut, shortened, table
from supervisor.durable.history import Envelope
from supervisor.durable.snapshot import (
    RunSnapshot,
    RunStatus,
    StepSnapshot,
    StepStatus,
    WaitSnapshot,
    WaitStatus,
)
from supervisor.durable.stores.protocol import Failure
from supervisor.kernel.text import printable

__all__ = ["WIDTH", "history_lines", "run_lines", "run_table", "tone_of"]

WIDTH = 100  # columns where lines may be of any length
_FACT = 10  # columns for the name of a fact
_LONG = 2_000  # characters of a value that has lines of its own
_VALUE = 200  # columns of a value in a table whose lines may be of any length
_ID = 32  # columns of an id in a table

_RUNS = (
    Column(title="RUN", least=8),
    Column(title="WORKFLOW", room=50),
    Column(title="STATUS", least=10),
    Column(title="EVENTS", right=True, room=90),
    Column(title="CREATED", room=112),
    Column(title="CHANGED", least=9),
    Column(title="", least=20, room=100),
    Column(title="WHAT", room=60),
)
_STEPS = (
    Column(title="  STEP", least=10),
    Column(title="NAME", room=70),
    Column(title="TRIES", right=True, room=60),
    Column(title="INPUT", room=80),
    Column(title="RESULT"),
)
_WAITS = (
    Column(title="  WAIT", least=10),
    Column(title="FOR"),
    Column(title="RESULT"),
)
_HISTORY = (
    Column(title="#", right=True),
    Column(title="AT", least=24, room=70),
    Column(title="AFTER", right=True, least=8),
    Column(title="EVENT", least=16),
    Column(title="WHAT"),
)

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


def _mark(status: RunStatus, symbols: Symbols) -> str:
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


# Many runs


def run_table(
    runs: Sequence[RunSnapshot],
    failures: Mapping[str, Failure],
    now: datetime,
    *,
    width: int | None,
    symbols: Symbols,
) -> list[Line]:
    """Return a head and a line for each run.  failures: by run.  width: None for lines of any length."""
    rows: list[Line] = []
    for run in runs:
        what = _what(run, failures.get(run.run_id), now)
        rows.append(
            [
                (shortened(run.run_id, _ID if width else 200, symbols), Tone.PLAIN),
                (shortened(f"{run.workflow} {run.version}", _ID, symbols), Tone.PLAIN),
                (str(run.status), _TONES[run.status]),
                (str(run.sequence), Tone.QUIET),
                (relative(run.created_at, now), Tone.PLAIN),
                (relative(run.updated_at, now), Tone.PLAIN),
                (absolute(run.updated_at), Tone.QUIET),
                (shortened(what[0], _VALUE, symbols), what[1]),
            ]
        )
    return [cut(line, width, symbols) for line in table(_RUNS, rows, width)]


def _what(run: RunSnapshot, failure: Failure | None, now: datetime) -> Piece:
    """Return what there is to say about a run in one line."""
    if failure is not None and not run.terminal:
        return f"waits for a person: {failure.reason}", Tone.BAD
    match run.status:
        case RunStatus.FAILED:
            return run.error or "", Tone.BAD
        case RunStatus.CANCELLED | RunStatus.CANCELLING:
            request = run.cancellation_request
            return (request.reason or "" if request is not None else ""), Tone.WARN
        case RunStatus.SUSPENDED | RunStatus.RUNNING:
            return "; ".join(_open(run, now)), Tone.QUIET
        case _:
            return "", Tone.PLAIN


def _open(run: RunSnapshot, now: datetime) -> list[str]:
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


# One run


def run_lines(
    run: RunSnapshot,
    history: Sequence[Envelope],
    now: datetime,
    *,
    failure: Failure | None = None,
    width: int | None,
    symbols: Symbols,
    most: int | None = 40,
) -> list[Line]:
    """Return the whole of a run: facts, timeline, values.

    failure: its mark, if it waits for a person.  width: None for lines of any length.  most: lines of the
    timeline and of the table of steps; the middle of more is folded.
    """
    room = width or WIDTH
    end = run.updated_at if run.terminal else max(now, run.updated_at)
    lines = _facts(run, failure, now, end, room, symbols)
    bars = timeline(bars_of(history), run.created_at, end, width=room, symbols=symbols, most=most)
    if bars:
        lines += [[], *bars]
    lines += [[], *_value("input", run.input, room, symbols)]
    if run.status is RunStatus.COMPLETED:
        lines += _value("output", run.output, room, symbols)
    if run.error is not None:
        lines += _fact("error", run.error, room, Tone.BAD)
    lines += _steps(list(run.steps.values()), now, width, symbols, most)
    lines += _waits(run, now, width, symbols, most)
    return [cut(line, width, symbols) for line in lines]


def _facts(
    run: RunSnapshot, failure: Failure | None, now: datetime, end: datetime, width: int, symbols: Symbols
) -> list[Line]:
    lasted = span((end - run.created_at).total_seconds())
    status = (
        f"{run.status} after {lasted}" if run.terminal else f"{run.status}, {lasted} after it was created"
    )
    title: Line = [
        (run.run_id, Tone.HEAD),
        (f"  {printable(f'{run.workflow} version {run.version}')}", Tone.PLAIN),
    ]
    lines: list[Line] = [
        title,
        [
            (f"  {'status':<{_FACT - 2}}", Tone.QUIET),
            (f"{_mark(run.status, symbols)} {status}", _TONES[run.status]),
        ],
        *_fact("created", _when(run.created_at, now), width),
        *_fact("ended" if run.terminal else "changed", _when(run.updated_at, now), width),
        *_fact("events", str(run.sequence), width),
    ]
    if not run.terminal:
        lines += [
            line
            for number, each in enumerate(_open(run, now)[:5])
            for line in _fact("" if number else "now", each, width)
        ]
    if run.cancellation_request is not None:
        request = run.cancellation_request
        reason = f": {request.reason}" if request.reason else ""
        lines += _fact("cancel", f"asked for {_when(request.at, now)}{reason}", width)
    if failure is not None:
        lines += _fact(
            "marked", f"waits for a person since {_when(failure.at, now)}: {failure.reason}", width
        )
    return lines


def _when(instant: datetime, now: datetime) -> str:
    return f"{absolute(instant)}, {relative(instant, now)}"


def _fact(label: str, text: str, width: int, tone: Tone = Tone.PLAIN) -> list[Line]:
    """Return a text beside its label, on as many lines as it takes."""
    clean = printable(text if len(text) <= _LONG else text[:_LONG] + "...")
    first, *rest = wrap(clean, max(12, width - _FACT)) or [""]
    return [
        [(f"  {label:<{_FACT - 2}}", Tone.QUIET), (first, tone)],
        *([(" " * _FACT + line, tone)] for line in rest),
    ]


def _value(label: str, value: Any, width: int, symbols: Symbols) -> list[Line]:
    text = shortened(_json(value), width - _FACT, symbols)
    return [[(f"  {label:<{_FACT - 2}}", Tone.QUIET), (text, Tone.PLAIN)]]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def _folded(rows: list[Line], most: int | None, columns: int, symbols: Symbols) -> list[Line]:
    if most is None or len(rows) <= most:
        return rows
    before = max(most, 3) // 2
    after = max(most, 3) - before - 1
    gap: Line = [
        (f"{symbols.more} {len(rows) - before - after} more", Tone.QUIET),
        *[("", Tone.PLAIN)] * (columns - 1),
    ]
    return [*rows[:before], gap, *rows[len(rows) - after :]]


def _steps(
    steps: list[StepSnapshot], now: datetime, width: int | None, symbols: Symbols, most: int | None
) -> list[Line]:
    if not steps:
        return []
    rows: list[Line] = []
    for step in steps:
        mark = {
            StepStatus.COMPLETED: (symbols.good, Tone.GOOD),
            StepStatus.FAILED: (symbols.bad, Tone.BAD),
            StepStatus.CANCELLED: (symbols.stopped, Tone.WARN),
            StepStatus.RUNNING: (symbols.running, Tone.BUSY),
            StepStatus.PENDING: (symbols.waiting, Tone.PLAIN),
        }[step.status]
        result = _result(step, now)
        rows.append(
            [
                (f"{mark[0]} {shortened(step.step_id, _ID, symbols)}", mark[1]),
                (shortened(step.step_name, _ID, symbols), Tone.PLAIN),
                (str(step.attempt), Tone.PLAIN if step.attempt < 2 else Tone.WARN),
                (shortened(_json(step.input), 30, symbols), Tone.QUIET),
                (shortened(result[0], _VALUE, symbols), result[1]),
            ]
        )
    rows = _folded(rows, most, len(_STEPS), symbols)
    return [[], *table(_STEPS, rows, width)]


def _result(step: StepSnapshot, now: datetime) -> Piece:
    match step.status:
        case StepStatus.COMPLETED:
            return _json(step.output), Tone.PLAIN
        case StepStatus.PENDING if step.retry_after is not None:
            return f"again {relative(step.retry_after, now)}: {step.error}", Tone.WARN
        case StepStatus.FAILED:
            return step.error or "", Tone.BAD
        case _:
            return step.error or "", Tone.WARN


def _waits(
    run: RunSnapshot, now: datetime, width: int | None, symbols: Symbols, most: int | None
) -> list[Line]:
    rows: list[Line] = []
    for wait in run.waits.values():
        mark, tone, result = {
            WaitStatus.COMPLETED: (symbols.good, Tone.GOOD, ""),
            WaitStatus.CANCELLED: (symbols.stopped, Tone.WARN, "cancelled"),
            WaitStatus.WAITING: (symbols.waiting, Tone.PLAIN, ""),
        }[wait.status]
        if wait.resume_at is not None:
            what = absolute(wait.resume_at)
            if wait.status is WaitStatus.WAITING:
                result = relative(wait.resume_at, now)
        else:
            what = f"signal {wait.signal_name!r}"
            if wait.status is WaitStatus.COMPLETED:
                result = _json(wait.payload)
        rows.append(_wait_row(mark, wait.wait_id, tone, what, result, symbols))
    for signal in run.signals.values():
        if signal.wait_id is None:
            what = f"a wait for {signal.name!r}"
            rows.append(
                _wait_row(
                    symbols.waiting, f"signal {signal.name}", Tone.PLAIN, what, _json(signal.payload), symbols
                )
            )
    if not rows:
        return []
    rows = _folded(rows, most, len(_WAITS), symbols)
    return [[], *table(_WAITS, rows, width)]


def _wait_row(mark: str, label: str, tone: Tone, what: str, result: str, symbols: Symbols) -> Line:
    return [
        (f"{mark} {shortened(label, _ID, symbols)}", tone),
        (shortened(what, 40, symbols), Tone.PLAIN),
        (shortened(result, _VALUE, symbols), Tone.PLAIN),
    ]


# A history

_GOOD = {"run_completed", "step_completed", "wait_completed", "signal_wait_completed"}
_BAD = {"run_failed", "run_retry_exhausted", "step_failed", "step_non_retryable"}
_WARN = {"step_retrying", "step_cancelled", "run_cancelled", "run_cancellation_requested"}


def history_lines(history: Iterable[Envelope], *, width: int | None, symbols: Symbols) -> list[Line]:
    """Return a head and a line for each event.  width: None for lines of any length."""
    rows: list[Line] = []
    before: datetime | None = None
    for envelope in history:
        kind = envelope.event.type
        tone = (
            Tone.GOOD
            if kind in _GOOD
            else Tone.BAD
            if kind in _BAD
            else Tone.WARN
            if kind in _WARN
            else Tone.PLAIN
        )
        passed = span(max(0.0, (envelope.at - (before or envelope.at)).total_seconds()))
        before = envelope.at
        rows.append(
            [
                (str(envelope.sequence), Tone.QUIET),
                (absolute(envelope.at, fine=True), Tone.QUIET),
                (passed, Tone.PLAIN),
                (kind, tone),
                (shortened(_details(envelope), _VALUE, symbols), Tone.PLAIN),
            ]
        )
    return [cut(line, width, symbols) for line in table(_HISTORY, rows, width)]


def _details(envelope: Envelope) -> str:
    """Return the fields of an event in one line: who it is about first, then what was given and got."""
    fields = envelope.event.to_dict()
    parts: list[str] = []
    for name, value in fields.items():
        if name == "type":
            continue
        if name in ("step_id", "wait_id"):
            parts.insert(0, str(value))
        elif isinstance(value, str) and name in ("error", "reason"):
            parts.append(value)
        elif name in ("spec", "signal", "request") and isinstance(value, dict):
            parts += [f"{key} {_plain(each)}" for key, each in cast("dict[str, Any]", value).items()]
        else:
            parts.append(f"{name} {_plain(value)}")
    return ", ".join(parts)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() and value else _json(value)
