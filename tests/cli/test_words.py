"""Texts side by side: they take the columns that a terminal gives them."""

from __future__ import annotations

import pytest

from supervisor.cli.words import ASCII, UNICODE, Column, Line, Tone, breadth, cut, plain, shortened, table


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("été", 3), ("日本", 4), ("e\u0301", 1), ("", 0), ("… ✓", 3)]
)
def test_wide_letters_take_two_columns_and_accents_none(text: str, columns: int) -> None:
    assert breadth(text) == columns


@pytest.mark.parametrize(
    ("width", "text"), [(None, "日本 and more"), (9, "日本 and…"), (4, "日…"), (3, "日…"), (1, "…"), (0, "")]
)
def test_a_line_is_cut_by_columns(width: int | None, text: str) -> None:
    line: Line = [("日本", Tone.GOOD), (" and more", Tone.PLAIN)]
    assert plain(cut(line, width, UNICODE)) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("short", "short"),
        ("a\nb\x1b[31m\tc", "a b\\x1b[31m~"),
        ("日本語の文字", "日本語の文~"),
        ("x" * 10_000, "xxxxxxxxxxx~"),
    ],
)
def test_a_text_is_put_on_one_line_that_no_terminal_obeys(text: str, shown: str) -> None:
    assert shortened(text, 12 if "日" not in text else 11, ASCII) == shown


def test_columns_are_aligned_below_wide_letters() -> None:
    rows: list[Line] = [
        [("日本", Tone.PLAIN), ("1", Tone.PLAIN), ("x", Tone.PLAIN)],
        [("a", Tone.PLAIN), ("22", Tone.PLAIN), ("y", Tone.PLAIN)],
    ]
    columns = [Column(title="A"), Column(title="N", right=True), Column(title="B")]
    assert [plain(line) for line in table(columns, rows, None)] == [
        "A      N  B",
        "日本   1  x",
        "a     22  y",
    ]
