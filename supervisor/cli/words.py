"""Pieces of text with a tone, and how they are cut, counted and put side by side. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from textwrap import wrap
from unicodedata import combining, east_asian_width

from supervisor.kernel.text import printable

__all__ = [
    "ASCII",
    "UNICODE",
    "Column",
    "Line",
    "Piece",
    "Symbols",
    "Tone",
    "breadth",
    "cut",
    "duration",
    "labeled",
    "plain",
    "shortened",
    "table",
]


class Tone(StrEnum):
    """How a piece of text is meant; a terminal gives it a color."""

    PLAIN = "plain"
    HEAD = "head"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    QUIET = "quiet"
    BUSY = "busy"


Piece = tuple[str, Tone]
Line = Sequence[Piece]


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """The few characters beyond letters that pictures are made of; each one column wide."""

    waiting: str
    running: str
    good: str
    bad: str
    stopped: str
    filled: str
    empty: str
    more: str  # text goes on
    dot: str  # between two texts
    delay: str  # time in which nothing is done
    onward: str  # it has not ended


UNICODE = Symbols(
    waiting="○",
    running="●",
    good="✓",
    bad="✗",
    stopped="■",
    filled="━",
    empty="─",
    more="…",
    dot="·",
    delay="·",
    onward="▶",
)
ASCII = Symbols(
    waiting="o",
    running="*",
    good="+",
    bad="x",
    stopped="=",
    filled="#",
    empty="-",
    more="~",
    dot="-",
    delay=".",
    onward=">",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table."""

    title: str
    least: int = 0  # characters it takes even when its cells are shorter, so that nothing jumps
    right: bool = False  # aligned to the right
    room: int = 0  # it is left out where the table has less width than this


def duration(seconds: float) -> str:
    """Return seconds for people: `4 ms`, `0.31 s`, `2.5 s`, `75 s`."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    return (
        f"{seconds:.2f} s" if seconds < 0.995 else f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"
    )


def plain(line: Line) -> str:
    """Return the text of a line."""
    return "".join(text for text, _ in line)


def breadth(text: str) -> int:
    """Return the columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


def cut(line: Line, width: int | None, symbols: Symbols) -> Line:
    """Return the line, cut to `width` columns where it is longer."""
    if width is None or sum(breadth(text) for text, _ in line) <= width:
        return line
    kept: list[Piece] = []
    left = max(0, width - 1)
    for text, tone in line:
        size = breadth(text)
        if size >= left:
            kept.append((_start(text, left) + (symbols.more if width else ""), tone))
            break
        kept.append((text, tone))
        left -= size
    return kept


def shortened(text: str, width: int, symbols: Symbols) -> str:
    """Return a text on one line, without control characters, cut to `width` columns."""
    most = 4 * width + 400  # characters that are looked at; blanks among them may go
    clean = printable(text[:most])
    if len(text) <= most and breadth(clean) <= width:
        return clean
    return _start(clean, width - 1) + symbols.more


def _start(text: str, width: int) -> str:
    width = max(width, 0)
    text = text[:width]
    while breadth(text) > width:
        text = text[:-1]
    return text


def labeled(label: str, text: str, width: int | None) -> list[Line]:
    """Return a paragraph beside a label, its further lines below the text. width: None takes 88."""
    margin = 10
    first, *rest = wrap(text, max(12, (width or 88) - margin))
    return [
        [(f"  {label:<{margin - 2}}", Tone.BUSY), (first, Tone.PLAIN)],
        *([(" " * margin + line, Tone.PLAIN)] for line in rest),
    ]


def table(columns: Sequence[Column], rows: Sequence[Line], width: int | None) -> list[Line]:
    """Return a head and a line for each row of as many cells as there are columns.

    width: of the whole, decides which columns have room; lines may be longer, `cut` them.
    """
    shown = [n for n, column in enumerate(columns) if width is None or width >= column.room]
    widths = {
        n: max(len(columns[n].title), columns[n].least, *(breadth(row[n][0]) for row in rows), 0)
        for n in shown
    }
    head = [(column.title, Tone.QUIET) for column in columns]
    lines: list[Line] = []
    for row in [head, *rows]:
        line: list[Piece] = []
        for n in shown:
            text, tone = row[n]
            if n == shown[-1] and not columns[n].right:
                line.append((text, tone))
            else:
                blank = " " * (widths[n] - breadth(text))
                aligned = blank + text if columns[n].right else text + blank
                line += [(aligned, tone), ("  ", Tone.PLAIN)]
        lines.append(line)
    return lines
