"""A very small terminal: it understands what the demo writes, and keeps every picture it was shown."""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"\x1b\[(?P<private>\??)(?P<number>[0-9;]*)(?P<command>[A-Za-z])|(?P<text>[^\x1b\r\n]+)|\r|\n"
)


class Screen:
    """Lines without a limit in height; a wider line than `width` is an error."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.lines: list[str] = [""]
        self.cursor_shown = True
        self.pictures: list[list[str]] = []  # lines as they were whenever the rest of the screen was erased
        self._row = 0
        self._column = 0

    def feed(self, output: str) -> None:
        end = 0
        for token in _TOKEN.finditer(output):
            assert token.start() == end, f"unknown output {output[end : end + 20]!r}"
            end = token.end()
            if token["text"]:
                self._write(token["text"])
            elif token["command"]:
                self._obey(token["private"] + token["command"], token["number"])
            elif token[0] == "\r":
                self._column = 0
            else:
                self._row += 1
                if self._row == len(self.lines):
                    self.lines.append("")
        assert end == len(output), f"unknown output {output[end : end + 20]!r}"

    def _write(self, text: str) -> None:
        line = self.lines[self._row].ljust(self._column)
        self.lines[self._row] = line[: self._column] + text + line[self._column + len(text) :]
        self._column += len(text)
        assert self._column < self.width, f"too wide: {self.lines[self._row]!r}"

    def _obey(self, command: str, number: str) -> None:
        match command, number:
            case "m", _:
                pass  # colors
            case "A", _:
                self._row -= int(number)
                assert self._row >= 0
            case "K", "":
                self.lines[self._row] = self.lines[self._row][: self._column]
            case "J", "":
                self.lines[self._row] = self.lines[self._row][: self._column]
                del self.lines[self._row + 1 :]
                self.pictures.append([line.rstrip() for line in self.lines])
            case (("?h" | "?l"), "25"):
                self.cursor_shown = command == "?h"
            case (("?h" | "?l"), "7"):
                pass  # wrapping
            case _:
                raise AssertionError(f"unknown command {number}{command}")
