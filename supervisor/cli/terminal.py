"""Where the command line writes: colors and a picture redrawn in place on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from typing import TextIO

from supervisor.cli.words import ASCII, UNICODE, Line, Symbols, Tone, plain

__all__ = ["Terminal"]

_COLORS = {
    Tone.HEAD: "1",
    Tone.GOOD: "32",
    Tone.WARN: "33",
    Tone.BAD: "31",
    Tone.QUIET: "2",
    Tone.BUSY: "36",
}
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_REST_OF_LINE, _REST_OF_SCREEN = "\x1b[K", "\x1b[J"


class Terminal:
    """A stream for people. One thread writes at a time; nothing here raises when the reader is gone."""

    def __init__(
        self,
        stream: TextIO | None,
        environ: Mapping[str, str],
        *,
        on_lost: Callable[[], object] | None = None,
    ) -> None:
        """Look at what the stream can do.

        stream: None stands for a closed one, as `sys.stdout` can be.  on_lost: called once, when nothing
        can be written any more.
        """
        self._stream = stream
        self._on_lost = on_lost
        self.lost: Exception | None = None  # why nothing can be written any more
        self._picture: str | None = None  # drawn last, and still on the screen
        self._drawn = 0  # lines of it
        self.redraws: bool = stream is not None and _redraws(stream, environ)
        self._colors = self.redraws and not environ.get("NO_COLOR")
        self._encoding = (stream and stream.encoding) or "ascii"
        self.symbols: Symbols = UNICODE if _can_say(self._encoding, UNICODE) else ASCII

    @property
    def width(self) -> int | None:
        """Characters of a line; None where lines may be of any length."""
        return self.size()[0] if self.redraws else None

    def size(self) -> tuple[int, int]:
        """Return the columns and lines there is room for; `COLUMNS` and `LINES` overrule the terminal.

        The last column stays free: erasing the rest of a full line would take its last character. The
        last line stays free for the cursor.
        """
        columns, lines = shutil.get_terminal_size()
        return max(10, columns - 1), max(3, lines - 1)

    def say(self, lines: Iterable[Line]) -> None:
        """Write lines, below what is there."""
        self._write("".join(f"{self._painted(line)}\n" for line in lines))

    def draw(self, picture: Iterable[Line]) -> None:
        """Put a picture in the place of the last one: one write, no flicker, nothing when it is the same."""
        lines = [self._painted(line) for line in picture]
        text = "".join(f"{line}{_REST_OF_LINE}\n" for line in lines)
        if text == self._picture:
            return
        start = f"\x1b[{self._drawn}A" if self._drawn else _HIDE_CURSOR
        self._picture, self._drawn = text, len(lines)
        self._write(f"{_NO_WRAP}{start}\r{text}{_REST_OF_SCREEN}{_WRAP}")

    def wipe(self) -> None:
        """Take the picture away and give the cursor back."""
        if self._picture is not None:
            start = f"\x1b[{self._drawn}A" if self._drawn else ""
            self._picture, self._drawn = None, 0
            self._write(f"{start}\r{_REST_OF_SCREEN}{_SHOW_CURSOR}")

    def _painted(self, line: Line) -> str:
        if not self._colors:
            return self._sayable(plain(line)).rstrip()
        return "".join(
            f"\x1b[{color}m{self._sayable(text)}\x1b[0m"
            if (color := _COLORS.get(tone))
            else self._sayable(text)
            for text, tone in line
        )

    def _sayable(self, text: str) -> str:
        return text.encode(self._encoding, "replace").decode(self._encoding)

    def _write(self, text: str) -> None:
        if self._stream is None or self.lost is not None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError) as error:  # a closed pipe, a full disk, a terminal that hung up
            self.lost = error
            _discard(self._stream)
            if self._on_lost is not None:
                self._on_lost()


def _redraws(stream: TextIO, environ: Mapping[str, str]) -> bool:
    if not stream.isatty() or environ.get("TERM", "") in ("dumb", ""):
        return os.name == "nt" and stream.isatty() and "WT_SESSION" in environ
    return True


def _can_say(encoding: str, symbols: Symbols) -> bool:
    try:
        for name in symbols.__slots__:
            str(getattr(symbols, name)).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _discard(stream: TextIO) -> None:
    """Let what is buffered go nowhere, so that the interpreter doesn't complain when it exits."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass
