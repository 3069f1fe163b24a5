"""Lengths and instants for people: from microseconds to years, one form each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from supervisor.cli.times import absolute, relative, span, ticks

NOON = datetime(2026, 1, 31, 12, 0, 0, 250_000, UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (1e-6, "1 us"),
        (0.000_94, "940 us"),
        (0.004_21, "4.2 ms"),
        (0.082, "82 ms"),
        (0.31, "0.31 s"),
        (2.5, "2.5 s"),
        (75.0, "75 s"),
        (120.0, "2 min"),
        (725.0, "12 min 5 s"),
        (3599.7, "1 h"),
        (18_720.0, "5 h 12 min"),
        (172_800.0, "2 d"),
        (1_396_800.0, "16 d 4 h"),
    ],
)
def test_a_length_of_time_is_told_in_two_units_at_most(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "now"),
        (-0.4, "now"),
        (-5, "5 s ago"),
        (119, "in 119 s"),
        (120, "in 2 min"),
        (-7199, "119 min ago"),
        (-7200, "2 h ago"),
        (47 * 3600, "in 47 h"),
        (-16 * 86400, "16 d ago"),
    ],
)
def test_an_instant_is_told_as_seen_from_now(seconds: float, text: str) -> None:
    assert relative(NOON + timedelta(seconds=seconds), NOON) == text


def test_an_instant_is_told_in_utc() -> None:
    berlin = NOON.astimezone(timezone(timedelta(hours=1)))
    assert (absolute(berlin), absolute(berlin, fine=True)) == (
        "2026-01-31 12:00:00Z",
        "2026-01-31 12:00:00.250Z",
    )


@pytest.mark.parametrize(
    ("seconds", "most", "texts"),
    [
        (1e-6, 4, ["0", "1 us"]),
        (0.01, 4, ["0", "5 ms", "10 ms"]),
        (1.1, 6, ["0", "200 ms", "400 ms", "600 ms", "800 ms", "1000 ms"]),
        (10.0, 5, ["0", "2 s", "4 s", "6 s", "8 s", "10 s"]),
        (100.0, 4, ["0", "30 s", "60 s", "90 s"]),
        (5400.0, 3, ["0", "30 min", "60 min", "90 min"]),
        (3 * 86400.0, 3, ["0", "1 d", "2 d", "3 d"]),
        (40 * 365 * 86400.0, 3, ["0", "5000 d", "10000 d"]),
        (1e12, 2, ["0", "1e+07 d"]),
    ],
)
def test_ticks_are_round(seconds: float, most: int, texts: list[str]) -> None:
    assert [text for _, text in ticks(seconds, most)] == texts
