"""When a flow fires: pure decisions on instants handed in."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.flows import next_fire
from supervisor.flows.trigger import Cron, Every, Manual
from supervisor.kernel import cron

INSTANTS = st.floats(0.0, 1e9, allow_nan=False)


def test_the_first_run_of_an_interval_is_at_the_start() -> None:
    assert Every(30.0).due(5.0, None, None) == 5.0


def test_the_interval_counts_from_the_end_of_the_last_run() -> None:
    assert Every(30.0).due(5.0, 45.0, None) == 75.0


@pytest.mark.parametrize(
    ("ended", "eligible", "due"),
    [(45.0, 60.0, 75.0), (45.0, 75.0, 75.0), (45.0, 90.0, 90.0), (None, 9.0, 9.0)],
)
def test_the_longer_of_interval_and_backoff_counts(ended: float | None, eligible: float, due: float) -> None:
    assert Every(30.0).due(5.0, ended, eligible) == due


@given(
    interval=st.floats(1e-6, 1e6), started=INSTANTS, ended=st.none() | INSTANTS, eligible=st.none() | INSTANTS
)
def test_nothing_is_due_before_the_end_of_the_window_nor_before_the_interval_is_over(
    interval: float, started: float, ended: float | None, eligible: float | None
) -> None:
    due = Every(interval).due(started, ended, eligible)
    floor = started if ended is None else ended + interval
    assert due in (floor, eligible)
    assert due >= floor
    assert eligible is None or due >= eligible


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_a_tick_is_what_next_fire_says(zone: str) -> None:
    after = datetime(2026, 3, 29, 0, 59, 59, tzinfo=UTC)
    trigger = Cron(cron.Cron("0 30 2 * * *", zone))
    assert trigger.tick_after(after) == next_fire("0 30 2 * * *", after, zone)


def test_a_tick_is_strictly_later() -> None:
    trigger = Cron(cron.Cron("0 0 9 * * *"))
    nine = datetime(2026, 1, 1, 9, tzinfo=UTC)
    assert trigger.tick_after(nine) == nine.replace(day=2)
    assert trigger.tick_after(nine.replace(hour=8, minute=59, second=59, microsecond=999999)) == nine


def test_an_expression_whose_years_are_over_has_no_tick() -> None:
    assert Cron(cron.Cron("0 0 0 1 1 * 2001")).tick_after(datetime(2001, 1, 1, tzinfo=UTC)) is None


def test_triggers_are_values() -> None:
    assert Every(5.0) == Every(5.0) != Every(6.0)
    assert Manual() == Manual()
    assert Cron(cron.Cron("@daily")) == Cron(cron.Cron("@daily"))
