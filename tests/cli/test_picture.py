"""The picture: exact at a moment, never larger than its room, the same in ASCII."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor import OutcomeKind
from supervisor.cli.account import Account, Entry, Row, State
from supervisor.cli.picture import live, summary
from supervisor.cli.words import ASCII, UNICODE, Symbols, Tone, cut, duration, labeled, plain

BEGAN = datetime(2000, 1, 1, tzinfo=UTC)
NOW = BEGAN + timedelta(seconds=4)


def account() -> Account:
    rows = (
        Row(task="poll", state=State.BACKOFF, since=BEGAN, until=NOW + timedelta(seconds=0.5), attempt=7,
            retries=2, timeouts=1, said="timed out after 1 s", tone=Tone.WARN),
        Row(task="scan", state=State.IDLE, since=BEGAN, until=NOW + timedelta(seconds=2), attempt=3, said="ok in 7 ms"),
        Row(task="import", state=State.ENDED, since=BEGAN, attempt=1, outcome=OutcomeKind.COMPLETED),
        Row(task="worker", state=State.ENDED, since=BEGAN, attempt=5, retries=4, outcome=OutcomeKind.FAILED,
            reason="retry limit reached after 4 of 4 retries: ValueError: could not convert string to float"),
        Row(task="server", state=State.RUNNING, since=BEGAN, attempt=1),
    )  # fmt: skip
    entries = (Entry(after=0.25, task="poll", text="added"), Entry(after=4.0, task="", text="every task ..."))
    return Account(began=BEGAN, rows={row.task: row for row in rows}, entries=entries, told=2)


def shown(width: int = 100, height: int = 30, symbols: Symbols = UNICODE) -> list[str]:
    return [
        plain(line).rstrip()
        for line in live(account(), NOW, 10.0, width=width, height=height, symbols=symbols)
    ]


def test_the_live_picture_tells_what_every_task_does_now() -> None:
    assert shown()[:12] == [
        "━━━━━━━━━───────────────   4.0 s of about 10 s  · 3 tasks at work",
        "",
        "  TASK        STATE               ATTEMPT  RETRIES  TIMEOUTS  LAST RESULT",
        "○ poll        backoff 0.5 s             7        2         1  timed out after 1 s",
        "○ scan        next in 2.0 s             3        0         0  ok in 7 ms",
        "✓ import      completed                 1        0         0",
        "✗ worker      failed                    5        4         0",
        "● server      running 4.0 s             1        0         0",
        "",
        "  0.25 s  poll        added",
        "  4.00 s  every task ...",
        "",
    ]


def test_ascii_has_the_same_shape() -> None:
    assert all(line.isascii() for line in shown(symbols=ASCII))
    assert [len(line) for line in shown(symbols=ASCII)] == [len(line) for line in shown()]


@pytest.mark.parametrize("width", range(10, 120, 7))
@pytest.mark.parametrize("height", [1, 3, 8, 12, 40])
def test_the_picture_fits_into_its_room(width: int, height: int) -> None:
    lines = shown(width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_the_height_of_the_picture_does_not_depend_on_how_much_was_told() -> None:
    empty = Account(began=BEGAN, rows=account().rows)
    lines = live(empty, NOW, 10.0, width=100, height=30, symbols=UNICODE)
    assert len(lines) == len(shown())


def test_a_flow_shows_what_it_waits_for_and_is_no_task_at_work() -> None:
    common: dict[str, Any] = {"flow": True, "since": BEGAN, "attempt": 3, "retries": 2}
    rows = (
        Row(task="tripped", state=State.TRIPPED, said="no folder", tone=Tone.BAD, **common),
        Row(task="waits", state=State.BACKOFF, until=NOW + timedelta(seconds=2), **common),
        Row(task="manual", state=State.IDLE, **common),
    )
    flows = Account(began=BEGAN, rows={row.task: row for row in rows})
    lines = live(flows, NOW, 10.0, width=100, height=7, symbols=UNICODE)
    assert [plain(line).rstrip() for line in lines[:6]] == [
        "━━━━━━━━━───────────────   4.0 s of about 10 s  · 0 tasks at work",
        "",
        "  TASK        STATE               ATTEMPT  RETRIES  TIMEOUTS  LAST RESULT",
        "✗ tripped     tripped 4.0 s             3        2         0  no folder",
        "○ waits       backoff 2.0 s             3        2         0",
        "○ manual      idle                      3        2         0",
    ]


def test_columns_that_have_no_room_are_left_out() -> None:
    assert shown(width=45)[2] == "  TASK        STATE               ATTEMPT"


def test_the_summary_wraps_a_long_reason_below_its_column() -> None:
    lines = [plain(line).rstrip() for line in summary(account(), width=90, symbols=UNICODE)]
    assert lines == [
        "  TASK        ATTEMPTS  RETRIES  TIMEOUTS  OUTCOME    REASON",
        "○ poll               7        2         1  running",
        "○ scan               3        0         0  running",
        "✓ import             1        0         0  completed",
        "✗ worker             5        4         0  failed     retry limit reached after 4 of 4",
        "                                                      retries: ValueError: could not",
        "                                                      convert string to float",
        "● server             1        0         0  running",
    ]


def test_the_summary_of_a_pipe_keeps_each_task_on_one_line() -> None:
    lines = [plain(line) for line in summary(account(), width=None, symbols=UNICODE)]
    assert len(lines) == 6
    assert lines[4].endswith("retries: ValueError: could not convert string to float")


@given(st.integers(10, 200))
def test_the_summary_fits_into_its_width_and_loses_no_word(width: int) -> None:
    lines = [plain(line) for line in summary(account(), width=width, symbols=UNICODE)]
    assert max(map(len, lines)) <= width
    if width >= 24:
        assert "limit reached after" in " ".join(" ".join(lines).split())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.004, "4 ms"),
        (0.0994, "99 ms"),
        (0.0996, "0.10 s"),
        (0.31, "0.31 s"),
        (0.994, "0.99 s"),
        (0.996, "0.996 s"),
        (1.0, "1 s"),
        (2.54, "2.54 s"),
        (99.9, "99.9 s"),
        (3600.4, "3600 s"),
    ],
)
def test_a_duration_is_told_in_about_three_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.lists(st.text("ab ", max_size=9), max_size=5), st.integers(1, 30))
def test_a_cut_line_is_a_beginning_of_the_line_with_a_mark(texts: list[str], width: int) -> None:
    line = [(text, Tone.PLAIN) for text in texts]
    whole, short = plain(line), plain(cut(line, width, UNICODE))
    assert short == (whole if len(whole) <= width else whole[: width - 1] + "…")


def test_a_labeled_paragraph_hangs_below_its_text() -> None:
    assert [plain(line) for line in labeled("scan", "hashes a directory tree", 26)] == [
        "  scan    hashes a",
        "          directory tree",
    ]
