"""What people see of one durable run: facts, timeline, values, a table of steps and one of waits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from textwrap import wrap
from typing import Any

from supervisor.cli.bars import bars_of
from supervisor.cli.run_words import ID, VALUE, json_text, mark_of, tone_of, under_way
from supervisor.cli.timeline import timeline
from supervisor.cli.times import absolute, relative, span
from supervisor.cli.words import Column, Line, Piece, Symbols, Tone, cut, shortened, table
from supervisor.durable.history import Envelope
from supervisor.durable.snapshot import (
    RunSnapshot,
    RunStatus,
    StepSnapshot,
    StepStatus,
    WaitStatus,
)
from supervisor.durable.stores.protocol import Failure
from supervisor.kernel.text import printable

__all__ = ["WIDTH", "run_lines"]

WIDTH = 100  # columns where lines may be of any length
_FACT = 10  # columns for the name of a fact
_LONG = 2_000  # characters of a value that has lines of its own

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
            (f"{mark_of(run.status, symbols)} {status}", tone_of(run.status)),
        ],
        *_fact("created", _when(run.created_at, now), width),
        *_fact("ended" if run.terminal else "changed", _when(run.updated_at, now), width),
        *_fact("events", str(run.sequence), width),
    ]
    if not run.terminal:
        lines += [
            line
            for number, each in enumerate(under_way(run, now)[:5])
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
    text = shortened(json_text(value), width - _FACT, symbols)
    return [[(f"  {label:<{_FACT - 2}}", Tone.QUIET), (text, Tone.PLAIN)]]


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
                (f"{mark[0]} {shortened(step.step_id, ID, symbols)}", mark[1]),
                (shortened(step.step_name, ID, symbols), Tone.PLAIN),
                (str(step.attempt), Tone.PLAIN if step.attempt < 2 else Tone.WARN),
                (shortened(json_text(step.input), 30, symbols), Tone.QUIET),
                (shortened(result[0], VALUE, symbols), result[1]),
            ]
        )
    rows = _folded(rows, most, len(_STEPS), symbols)
    return [[], *table(_STEPS, rows, width)]


def _result(step: StepSnapshot, now: datetime) -> Piece:
    match step.status:
        case StepStatus.COMPLETED:
            return json_text(step.output), Tone.PLAIN
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
                result = json_text(wait.payload)
        rows.append(_wait_row(mark, wait.wait_id, tone, what, result, symbols))
    for signal in run.signals.values():
        if signal.wait_id is None:
            what = f"a wait for {signal.name!r}"
            rows.append(
                _wait_row(
                    symbols.waiting,
                    f"signal {signal.name}",
                    Tone.PLAIN,
                    what,
                    json_text(signal.payload),
                    symbols,
                )
            )
    if not rows:
        return []
    rows = _folded(rows, most, len(_WAITS), symbols)
    return [[], *table(_WAITS, rows, width)]


def _wait_row(mark: str, label: str, tone: Tone, what: str, result: str, symbols: Symbols) -> Line:
    return [
        (f"{mark} {shortened(label, ID, symbols)}", tone),
        (shortened(what, 40, symbols), Tone.PLAIN),
        (shortened(result, VALUE, symbols), Tone.PLAIN),
    ]
