"""The terminal: one write for a picture, plain text elsewhere, and no fuss when nobody reads."""

from __future__ import annotations

import io

import pytest

from supervisor.cli.terminal import Terminal
from supervisor.cli.words import ASCII, UNICODE, Line, Tone

PICTURE: list[Line] = [[("good", Tone.GOOD), (" plain", Tone.PLAIN)], [("second", Tone.QUIET)]]
XTERM = {"TERM": "xterm-256color"}


class Stream(io.TextIOWrapper):
    """A text stream that remembers its writes and may say that it is a terminal."""

    def __init__(self, *, terminal: bool = True, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, errors="strict")
        self.terminal = terminal
        self.writes: list[str] = []
        self.fault: Exception | None = None

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        if self.fault is not None:
            raise self.fault
        text.encode(self.encoding)
        self.writes.append(text)
        return len(text)


def test_a_picture_is_one_write_and_the_next_takes_its_place() -> None:
    stream = Stream()
    terminal = Terminal(stream, XTERM | {"NO_COLOR": "1"})
    terminal.draw(PICTURE)
    terminal.draw([[("new", Tone.GOOD)]])
    assert stream.writes == [
        "\x1b[?7l\x1b[?25l\rgood plain\x1b[K\nsecond\x1b[K\n\x1b[J\x1b[?7h",
        "\x1b[?7l\x1b[2A\rnew\x1b[K\n\x1b[J\x1b[?7h",
    ]


def test_the_same_picture_is_not_written_again() -> None:
    stream = Stream()
    terminal = Terminal(stream, XTERM)
    terminal.draw(PICTURE)
    terminal.draw(PICTURE)
    assert len(stream.writes) == 1


def test_wiping_takes_the_picture_away_and_shows_the_cursor() -> None:
    stream = Stream()
    terminal = Terminal(stream, XTERM)
    terminal.wipe()
    assert stream.writes == []
    terminal.draw(PICTURE)
    terminal.wipe()
    terminal.wipe()
    assert stream.writes[1:] == ["\x1b[2A\r\x1b[J\x1b[?25h"]


def test_tones_are_colors_on_a_terminal() -> None:
    stream = Stream()
    Terminal(stream, XTERM).say(PICTURE)
    assert stream.writes == ["\x1b[32mgood\x1b[0m plain\n\x1b[2msecond\x1b[0m\n"]


@pytest.mark.parametrize(
    ("stream", "environ"),
    [
        (Stream(terminal=False), XTERM),
        (Stream(), {"TERM": "dumb"}),
        (Stream(), {}),
        (Stream(), XTERM | {"NO_COLOR": "1"}),
    ],
    ids=["pipe", "dumb", "no TERM", "NO_COLOR"],
)
def test_no_color_where_none_is_wanted(stream: Stream, environ: dict[str, str]) -> None:
    terminal = Terminal(stream, environ)
    terminal.say(PICTURE)
    assert stream.writes == ["good plain\nsecond\n"]
    assert terminal.redraws == ("NO_COLOR" in environ)


def test_no_color_still_redraws_a_terminal_and_a_pipe_has_no_width() -> None:
    assert Terminal(Stream(), XTERM | {"NO_COLOR": "1"}).redraws
    assert Terminal(Stream(terminal=False), XTERM).width is None


def test_the_last_column_and_line_stay_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("LINES", "20")
    assert Terminal(Stream(), XTERM).size() == (49, 19)
    assert Terminal(Stream(), XTERM).width == 49


@pytest.mark.parametrize(
    ("encoding", "symbols"), [("utf-8", UNICODE), ("ascii", ASCII), ("latin-1", ASCII), ("utf-16", UNICODE)]
)
def test_symbols_are_those_that_the_encoding_has(encoding: str, symbols: object) -> None:
    assert Terminal(Stream(encoding=encoding), XTERM).symbols == symbols


def test_text_that_the_encoding_lacks_becomes_a_question_mark() -> None:
    stream = Stream(encoding="ascii", terminal=False)
    Terminal(stream, XTERM).say([[("caf\u00e9 \ud800", Tone.PLAIN)]])
    assert stream.writes == ["caf? ?\n"]


@pytest.mark.parametrize("fault", [BrokenPipeError(), OSError(28, "disk full"), ValueError("closed file")])
def test_a_reader_that_is_gone_is_told_once_and_never_raised(fault: Exception) -> None:
    stream = Stream(terminal=False)
    told: list[str] = []
    terminal = Terminal(stream, XTERM, on_lost=lambda: told.append("lost"))
    stream.fault = fault
    terminal.say(PICTURE)
    terminal.say(PICTURE)
    assert (terminal.lost, told) == (fault, ["lost"])


def test_a_closed_stream_takes_everything() -> None:
    terminal = Terminal(None, XTERM)
    terminal.say(PICTURE)
    terminal.draw(PICTURE)
    terminal.wipe()
    assert terminal.lost is None
    assert not terminal.redraws
