"""The text of one JSONL file: what an append writes, and what is found when a file is read.

A line is one append: the object of an envelope, or the list of several. So a tear loses an append as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from supervisor.durable.errors import CorruptHistory
from supervisor.durable.history import FORMAT_VERSION, Envelope
from supervisor.durable.instants import written
from supervisor.durable.payload import decode

__all__ = ["Found", "Marks", "line_of", "scan"]

_STRIDE = 64  # events between two marks


def line_of(rows: Sequence[tuple[Envelope, str]]) -> bytes:
    """Return the line of an append, newline included.  rows: envelopes, each with the JSON text of its event."""
    texts = [
        f'{{"schema_version":{FORMAT_VERSION},"run_id":"{each.run_id}","sequence":{each.sequence},'
        f'"event_id":"{each.event_id}","at":"{written(each.at)}","event":{text}}}'
        for each, text in rows
    ]
    return (texts[0] if len(texts) == 1 else f"[{','.join(texts)}]").encode() + b"\n"


class Marks:
    """Where in a file the events begin, so that reading the end of a long one need not read all of it."""

    __slots__ = ("_lines", "_offsets", "_sequences")

    def __init__(self) -> None:
        self._sequences = [0]  # of the last event before the mark
        self._offsets = [0]  # bytes
        self._lines = [0]  # lines before it

    def add(self, sequence: int, offset: int, lines: int) -> None:
        """Tell that a line ends at `offset`, with the event `sequence`."""
        if sequence - self._sequences[-1] >= _STRIDE:
            self._sequences.append(sequence)
            self._offsets.append(offset)
            self._lines.append(lines)

    def before(self, sequence: int) -> tuple[int, int, int]:
        """Return the last mark that has the event after `sequence` behind it: sequence, offset, lines."""
        place = bisect_right(self._sequences, sequence) - 1
        return self._sequences[place], self._offsets[place], self._lines[place]


class Found(NamedTuple):
    """What a scan found."""

    envelopes: list[Envelope]
    end: int  # offset behind the last good line; what follows it is a torn tail
    bare: bool  # the last good line has no newline
    lines: int  # up to `end`
    last: int  # offset of the last good line


def scan(
    data: bytes,
    run_id: str,
    where: str,
    marks: Marks | None = None,
    *,
    sequence: int = 0,
    offset: int = 0,
    lines: int = 0,
) -> Found:
    """Read what follows the event `sequence`, which ends at `offset` after so many `lines`.

    where: the file, for errors.  marks: are told where lines end. An unterminated last line that is no JSON is a
    torn append, and is left out. Raises CorruptHistory for any other line that is none of this run.
    """
    found: list[Envelope] = []
    end, bare, last = offset, False, offset
    pieces = data.split(b"\n")
    tail = pieces.pop()
    for piece in pieces:
        lines += 1
        if piece and not piece.isspace():
            last = end
            found += _envelopes(piece, run_id, sequence + len(found), where, lines)
        end += len(piece) + 1
        if marks is not None:
            marks.add(sequence + len(found), end, lines)
    if _is_json(tail):
        last = end
        found += _envelopes(tail, run_id, sequence + len(found), where, lines + 1)
        end += len(tail)
        bare = True
    return Found(found, end, bare, lines, last)


def _is_json(piece: bytes) -> bool:
    try:
        decode(piece)
    except (ValueError, RecursionError):
        return False
    return True


def _envelopes(piece: bytes, run_id: str, sequence: int, where: str, line: int) -> list[Envelope]:
    try:
        value: Any = decode(piece)
        several: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]
        found = [_envelope(each) for each in several]
        if not found:
            raise ValueError("an append of no events")
        for number, each in enumerate(found, sequence + 1):
            if each.run_id != run_id or each.sequence != number:
                raise ValueError(
                    f"event {each.sequence} of run {each.run_id!r}, where event {number} of run {run_id!r} belongs"
                )
    except (CorruptHistory, ValueError, RecursionError) as error:
        raise CorruptHistory(
            f"line {line} of {where} can't be read: {error}; the file was left as it is, restore it or move it away"
        ) from error
    return found


def _envelope(value: Any) -> Envelope:
    if not isinstance(value, dict):
        raise ValueError(f"not an event: {value!r:.100}")
    return Envelope.from_dict(cast("dict[str, Any]", value))
