"""Instants as text: in order, in UTC, and read from nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.durable.instants import read_instant, written

INSTANTS = st.datetimes(timezones=st.just(UTC))


@given(INSTANTS, INSTANTS)
def test_texts_have_the_order_of_their_instants(one: datetime, other: datetime) -> None:
    assert (written(one) < written(other)) == (one < other)
    assert read_instant(written(one)) == one
    assert len(written(one)) == 27


def test_an_instant_has_six_digits_and_a_z() -> None:
    assert written(datetime(2026, 1, 31, 12, tzinfo=UTC)) == "2026-01-31T12:00:00.000000Z"
    assert written(datetime(1, 1, 1, 0, 0, 0, 7, tzinfo=UTC)) == "0001-01-01T00:00:00.000007Z"


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00.25+02:00", datetime(2026, 1, 31, 10, 0, 0, 250000, tzinfo=UTC)),
    ],
)
def test_other_offsets_are_read_as_utc(text: str, instant: datetime) -> None:
    found = read_instant(text)
    assert found == instant
    assert found.tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "2026-01-31T12:00:00",
        "2026-01-31",
        "2026-02-30T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        1767225600,
        None,
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    ],
)
def test_what_names_no_instant_is_a_value_error(text: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (some are in Python's words)
        read_instant(text)
