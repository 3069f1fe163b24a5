"""The timeline of a run: a line for each bar, drawn to scale, and a scale below. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

from supervisor.cli.bars import Bar, Fate, Kind
from supervisor.cli.times import span, ticks
from supervisor.cli.words import Line, Piece, Symbols, Tone, breadth, cut, shortened

__all__ = ["timeline"]

_LENGTH = 12  # columns for the length of a bar
_LABEL = 28  # columns for a label, at most
_LEAST = 10  # columns for bars
_TICK = 9  # columns between two ticks, about
_SHORTEST = 1e-6  # seconds that the scale covers at least


class _Scale:
    """Which column an instant is in."""

    def __init__(self, start: datetime, end: datetime, columns: int) -> None:
        self.start = start
        self.seconds: float = max((end - start).total_seconds(), _SHORTEST)
        self.columns = columns
        self.end = end

    def column(self, seconds: float) -> int:
        return max(0, min(self.columns, int(seconds / self.seconds * self.columns + 1e-9)))

    def cells(self, start: datetime, end: datetime | None) -> range:
        """Return the columns from one instant to another, None for the end of the scale; one at least."""
        first = min(self.column((start - self.start).total_seconds()), self.columns - 1)
        last = self.columns if end is None else self.column((end - self.start).total_seconds())
        return range(first, max(first + 1, last))


_Cells = list[Piece]


def timeline(
    bars: Sequence[Bar],
    start: datetime,
    end: datetime,
    *,
    width: int,
    symbols: Symbols,
    most: int | None = None,
) -> list[Line]:
    """Return the lines; none without bars.

    start, end: what the scale covers; open bars go on to its end.  most: lines for bars, the middle of more is
    folded into one; None for all of them.
    """
    if not bars:
        return []
    head, folded, tail = list(bars), list[Bar](), list[Bar]()
    if most is not None and len(bars) > most:
        before = max(most, 3) // 2
        after = max(most, 3) - before - 1
        head, folded, tail = head[:before], head[before : len(head) - after], head[len(head) - after :]
    summary = f"{symbols.more} {len(folded)} more"
    labels = [each.label for each in head + tail] + ([summary] if folded else [])
    margin = min(max(map(breadth, labels)), _LABEL, max(8, width // 3))
    scale = _Scale(start, end, max(_LEAST, width - margin - 3 - 1 - _LENGTH))
    lines = [_line(each, scale, margin, symbols) for each in head]
    if folded:
        lines.append(_folded(folded, summary, scale, margin, symbols))
        lines += [_line(each, scale, margin, symbols) for each in tail]
    lines.append(_axis(scale, margin, width))
    if folded:
        counts = Counter(str(each.fate) for each in folded)
        told = ", ".join(f"{count} {fate}" for fate, count in counts.most_common())
        lines.append([(f"{len(folded)} of {len(bars)} lines are folded: {told}", Tone.QUIET)])
    return [cut(line, width, symbols) for line in lines]


class _Look(NamedTuple):
    tone: Tone
    mark: str


def _look(bar: Bar, symbols: Symbols) -> _Look:
    match bar.fate:
        case Fate.COMPLETED:
            return _Look(Tone.GOOD, symbols.good)
        case Fate.FAILED:
            return _Look(Tone.BAD, symbols.bad)
        case Fate.CANCELLED:
            return _Look(Tone.WARN, symbols.stopped)
        case Fate.OPEN if bar.kind is Kind.ATTEMPT:
            return _Look(Tone.BUSY, symbols.running)
        case Fate.OPEN:
            return _Look(Tone.BUSY, symbols.waiting)


def _line(bar: Bar, scale: _Scale, margin: int, symbols: Symbols) -> Line:
    look = _look(bar, symbols)
    cells: _Cells = [(" ", Tone.PLAIN)] * scale.columns
    if bar.delayed and bar.end is not None:
        waiting = scale.cells(bar.end, bar.delay_end)
        _fill(cells, waiting, symbols.delay, Tone.WARN)
        if bar.delay_end is None:
            cells[-1] = (symbols.onward, Tone.WARN)
    body = {Kind.ATTEMPT: symbols.filled, Kind.WAIT: symbols.empty, Kind.CREATED: symbols.delay}
    place = scale.cells(bar.start, bar.end)
    _fill(cells, place, body.get(bar.kind, look.mark), look.tone)
    if bar.fate in (Fate.FAILED, Fate.CANCELLED):
        cells[place[-1]] = (look.mark, look.tone)
    elif bar.end is None:
        cells[place[-1]] = (symbols.onward, look.tone)
    length = ""
    if bar.kind is not Kind.MOMENT:
        length = span(((bar.end or scale.end) - bar.start).total_seconds())
    label = shortened(bar.label, margin, symbols)
    return _assembled(label, look, cells, length, margin)


def _folded(bars: list[Bar], label: str, scale: _Scale, margin: int, symbols: Symbols) -> Line:
    """Return one line for many bars: what any of them covers, and where some failed."""
    cells: _Cells = [(" ", Tone.PLAIN)] * scale.columns
    for bar in bars:
        _fill(cells, scale.cells(bar.start, bar.end), symbols.empty, Tone.QUIET)
    for bar in bars:
        if bar.fate is Fate.FAILED:
            cells[scale.cells(bar.start, bar.end)[-1]] = (symbols.bad, Tone.BAD)
        elif bar.fate is Fate.OPEN:
            cells[-1] = (symbols.onward, Tone.BUSY)
    ended = [bar.end for bar in bars if bar.end is not None]
    end = max(ended) if len(ended) == len(bars) else scale.end
    length = span((end - bars[0].start).total_seconds())
    return _assembled(
        shortened(label, margin, symbols), _Look(Tone.QUIET, symbols.more), cells, length, margin
    )


def _fill(cells: _Cells, place: range, text: str, tone: Tone) -> None:
    for column in place:
        cells[column] = (text, tone)


def _assembled(label: str, look: _Look, cells: _Cells, length: str, margin: int) -> Line:
    line: list[Piece] = [
        (label + " " * (margin - breadth(label) + 1), Tone.PLAIN),
        (look.mark, look.tone),
        (" ", Tone.PLAIN),
    ]
    for tone, group in groupby(cells, key=lambda cell: cell[1]):
        line.append(("".join(text for text, _ in group), tone))
    line.append((" " + length.rjust(_LENGTH), Tone.QUIET))
    return line


def _axis(scale: _Scale, margin: int, width: int) -> Line:
    text = " " * (margin + 3)
    for seconds, label in ticks(scale.seconds, max(1, scale.columns // _TICK)):
        column = margin + 3 + min(scale.column(seconds), scale.columns - 1)
        tick = f"|{label}"
        if len(text) <= column and column + len(tick) <= width:
            text = text.ljust(column) + tick
    return [(text, Tone.QUIET)]
