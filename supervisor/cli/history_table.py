"""A history of a durable run, a line for each event. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, cast

from supervisor.cli.run_words import VALUE, json_text
from supervisor.cli.times import absolute, span
from supervisor.cli.words import Column, Line, Symbols, Tone, cut, shortened, table
from supervisor.durable.history import Envelope

__all__ = ["history_lines"]

_COLUMNS = (
    Column(title="#", right=True),
    Column(title="AT", least=24, room=70),
    Column(title="AFTER", right=True, least=8),
    Column(title="EVENT", least=16),
    Column(title="WHAT"),
)

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
                (shortened(_details(envelope), VALUE, symbols), Tone.PLAIN),
            ]
        )
    return [cut(line, width, symbols) for line in table(_COLUMNS, rows, width)]


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
    return value if isinstance(value, str) and value.isprintable() and value else json_text(value)
