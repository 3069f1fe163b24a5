"""Cron expressions fire when they say, in every zone, whatever the clocks there do."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
import time
from dataclasses import FrozenInstanceError
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.kernel.cron import Cron, next_fire
from tests.kernel.cron_oracle import Schedule, Walk, changes, fires_after

LONG = os.environ.get("CRON_TESTS") == "long"  # all zones, more years: minutes instead of seconds
ZONES = [
    "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Chatham", "Pacific/Apia",
    "Asia/Beirut", "America/Havana", "Africa/Casablanca", "Antarctica/Troll", "Europe/Dublin",
    "Asia/Kathmandu", "America/Sao_Paulo", "America/Santiago", "Asia/Tehran", "Asia/Gaza", "America/Nuuk",
]  # fmt: skip
START = datetime(2026, 11, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def fires(expression: str, after: datetime, tz: str = "UTC", count: int = 2) -> list[datetime]:
    """Return the next few fires, each asked for from the last."""
    found: list[datetime] = []
    for _ in range(count):
        fired = next_fire(expression, after, tz)
        if fired is None:
            break
        assert fired > after
        found.append(fired)
        after = fired
    return found


# -- what an expression means ------------------------------------------------------------------

# Expression, start and the next two fires, in UTC.
IN_UTC = [
    # strictly after, fractions, weekdays by name and number
    ("0 0 9 * * *", "2026-11-30T08:59:59", "2026-11-30T09:00:00", "2026-12-01T09:00:00"),
    ("0 0 9 * * *", "2026-11-30T09:00:00", "2026-12-01T09:00:00", "2026-12-02T09:00:00"),
    ("0 0 9 * * *", "2026-11-30T08:59:59.999999", "2026-11-30T09:00:00", "2026-12-01T09:00:00"),
    ("0 0 9 * * *", "2026-11-30T09:00:00.000001", "2026-12-01T09:00:00", "2026-12-02T09:00:00"),
    ("0 0 9 * * MON", "2026-11-30T09:00:00", "2026-12-07T09:00:00", "2026-12-14T09:00:00"),
    ("0 0 9 * * 1", "2026-11-29T00:00:00", "2026-11-30T09:00:00", "2026-12-07T09:00:00"),
    ("0 0 9 * * 0", "2026-11-30T00:00:00", "2026-12-06T09:00:00", "2026-12-13T09:00:00"),
    ("0 0 9 * * 7", "2026-11-30T00:00:00", "2026-12-06T09:00:00", "2026-12-13T09:00:00"),
    ("0 0 9 * * sun", "2026-11-30T00:00:00", "2026-12-06T09:00:00", "2026-12-13T09:00:00"),
    ("0 0 9 * * MON-FRI", "2026-12-04T09:00:00", "2026-12-07T09:00:00", "2026-12-08T09:00:00"),
    ("0 0 9 * * FRI-MON", "2026-12-01T00:00:00", "2026-12-04T09:00:00", "2026-12-05T09:00:00"),
    ("0 0 9 * * Sat-Sun", "2026-12-01T00:00:00", "2026-12-05T09:00:00", "2026-12-06T09:00:00"),
    # steps, lists, wraps
    ("0 */5 * * * *", "2026-11-30T23:57:30", "2026-12-01T00:00:00", "2026-12-01T00:05:00"),
    ("*/20 * * * * *", "2026-11-30T23:59:41", "2026-12-01T00:00:00", "2026-12-01T00:00:20"),
    ("*/7 * * * * *", "2026-11-30T12:00:55", "2026-11-30T12:00:56", "2026-11-30T12:01:00"),
    ("5,10 30 8-10 * * *", "2026-11-30T10:30:05", "2026-11-30T10:30:10", "2026-12-01T08:30:05"),
    ("0 7/15 * * * *", "2026-11-30T12:52:00", "2026-11-30T13:07:00", "2026-11-30T13:22:00"),
    ("0 59/15 * * * *", "2026-11-30T12:00:00", "2026-11-30T12:59:00", "2026-11-30T13:59:00"),
    ("0 0 22-2 * * *", "2026-11-30T22:30:00", "2026-11-30T23:00:00", "2026-12-01T00:00:00"),
    ("0 50-10/15 * * * *", "2026-11-30T12:20:00", "2026-11-30T12:50:00", "2026-11-30T13:05:00"),
    # lengths of months, leap days, L, W, #, L5
    ("0 0 0 1 * *", "2026-12-15T00:00:00", "2027-01-01T00:00:00", "2027-02-01T00:00:00"),
    ("0 0 0 31 * *", "2027-01-31T00:00:00", "2027-03-31T00:00:00", "2027-05-31T00:00:00"),
    ("0 0 0 30 * *", "2027-01-30T00:00:00", "2027-03-30T00:00:00", "2027-04-30T00:00:00"),
    ("0 0 0 29 2 *", "2026-11-30T00:00:00", "2028-02-29T00:00:00", "2032-02-29T00:00:00"),
    ("0 0 0 29 2 *", "2096-03-01T00:00:00", "2104-02-29T00:00:00", "2108-02-29T00:00:00"),
    ("0 0 12 L * *", "2028-02-01T00:00:00", "2028-02-29T12:00:00", "2028-03-31T12:00:00"),
    ("0 0 12 l 2 *", "2026-11-30T00:00:00", "2027-02-28T12:00:00", "2028-02-29T12:00:00"),
    ("0 0 9 15W * *", "2026-08-01T00:00:00", "2026-08-14T09:00:00", "2026-09-15T09:00:00"),
    ("0 0 9 1W * *", "2026-07-31T00:00:00", "2026-08-03T09:00:00", "2026-09-01T09:00:00"),
    ("0 0 9 31W * *", "2026-02-01T00:00:00", "2026-02-27T09:00:00", "2026-03-31T09:00:00"),
    ("0 0 9 * * FRI#2", "2026-11-30T00:00:00", "2026-12-11T09:00:00", "2027-01-08T09:00:00"),
    ("0 0 9 ? * MON#5", "2026-11-30T09:00:00", "2027-03-29T09:00:00", "2027-05-31T09:00:00"),
    ("0 0 9 * * L5", "2026-11-30T00:00:00", "2026-12-25T09:00:00", "2027-01-29T09:00:00"),
    ("0 0 9 * * MON#1,WED#2", "2026-11-30T00:00:00", "2026-12-07T09:00:00", "2026-12-09T09:00:00"),
    ("0 0 0 ? 2 MON#5", "2026-11-30T00:00:00", "2044-02-29T00:00:00", "2072-02-29T00:00:00"),
    # both day fields restricted: either one matches
    ("0 0 9 1,15 * MON", "2026-11-30T10:00:00", "2026-12-01T09:00:00", "2026-12-07T09:00:00"),
    ("0 0 9 13 * FRI", "2026-11-14T00:00:00", "2026-11-20T09:00:00", "2026-11-27T09:00:00"),
    ("0 0 9 */10 * MON", "2026-11-30T10:00:00", "2026-12-01T09:00:00", "2026-12-07T09:00:00"),
    ("0 0 0 30 2 MON", "2026-11-30T00:00:00", "2027-02-01T00:00:00", "2027-02-08T00:00:00"),
    ("0 0 0 L * MON", "2026-11-29T00:00:00", "2026-11-30T00:00:00", "2026-12-07T00:00:00"),
    # months, years, the question mark
    ("0 0 9 * JAN,jul *", "2026-11-30T00:00:00", "2027-01-01T09:00:00", "2027-01-02T09:00:00"),
    ("0 0 9 * 11-2 *", "2027-02-28T10:00:00", "2027-11-01T09:00:00", "2027-11-02T09:00:00"),
    ("59 59 23 31 12 *", "2026-12-31T23:59:59", "2027-12-31T23:59:59", "2028-12-31T23:59:59"),
    ("0 0 9 * * * 2028", "2026-11-30T00:00:00", "2028-01-01T09:00:00", "2028-01-02T09:00:00"),
    ("0 0 9 1 1 ? 2090,2099", "2001-11-30T00:00:00", "2090-01-01T09:00:00", "2099-01-01T09:00:00"),
    ("0 0 9 1 1 ? 2001,2090", "2000-11-30T00:00:00", "2001-01-01T09:00:00", "2090-01-01T09:00:00"),
    ("0 0 9 ? * MON", "2026-11-30T09:00:00", "2026-12-07T09:00:00", "2026-12-14T09:00:00"),
    ("0 0 9 *,5 * MON", "2026-11-30T09:00:00", "2026-12-07T09:00:00", "2026-12-14T09:00:00"),
    # a-a is a alone, however it is written
    ("0 0 9 * * 1-1", "2026-11-30T10:00:00", "2026-12-07T09:00:00", "2026-12-14T09:00:00"),
    ("0 0 9 * * MON-1", "2026-11-30T10:00:00", "2026-12-07T09:00:00", "2026-12-14T09:00:00"),
    ("5-5 * * * * *", "2026-11-30T12:00:00", "2026-11-30T12:00:05", "2026-11-30T12:01:05"),
    ("05-5/3 * * * * *", "2026-11-30T12:00:00", "2026-11-30T12:00:05", "2026-11-30T12:01:05"),
    ("0 0 0 1 JAN-1 *", "2026-11-30T12:00:00", "2027-01-01T00:00:00", "2028-01-01T00:00:00"),
    # Sunday at both ends of the week
    ("0 0 0 * * 0-7", "2026-11-30T00:00:00", "2026-12-01T00:00:00", "2026-12-02T00:00:00"),
    ("0 0 0 * * 7-0", "2026-11-30T00:00:00", "2026-12-06T00:00:00", "2026-12-13T00:00:00"),
    ("0 0 0 * * 5-7/2", "2026-11-30T00:00:00", "2026-12-04T00:00:00", "2026-12-06T00:00:00"),
    ("0 0 0 * * 7/3", "2026-11-30T00:00:00", "2026-12-02T00:00:00", "2026-12-05T00:00:00"),
    # five fields, blanks, aliases
    ("30 4 * * *", "2026-11-30T04:30:00", "2026-12-01T04:30:00", "2026-12-02T04:30:00"),
    (" 0\t0  9 * * *\n", "2026-11-30T09:00:00", "2026-12-01T09:00:00", "2026-12-02T09:00:00"),
    ("000 00 009 * * *", "2026-11-30T09:00:00", "2026-12-01T09:00:00", "2026-12-02T09:00:00"),
    ("@hourly", "2026-11-30T09:10:00", "2026-11-30T10:00:00", "2026-11-30T11:00:00"),
    ("@daily", "2026-11-30T09:10:00", "2026-12-01T00:00:00", "2026-12-02T00:00:00"),
    ("@Midnight", "2026-11-30T09:10:00", "2026-12-01T00:00:00", "2026-12-02T00:00:00"),
    ("@weekly", "2026-11-30T09:10:00", "2026-12-06T00:00:00", "2026-12-13T00:00:00"),
    ("@monthly", "2026-11-30T09:10:00", "2026-12-01T00:00:00", "2027-01-01T00:00:00"),
    ("@yearly", "2026-11-30T09:10:00", "2027-01-01T00:00:00", "2028-01-01T00:00:00"),
    ("@ANNUALLY", "2026-11-30T09:10:00", "2027-01-01T00:00:00", "2028-01-01T00:00:00"),
]


@pytest.mark.parametrize(("expression", "start", "first", "second"), IN_UTC)
def test_an_expression_fires_when_it_says(expression: str, start: str, first: str, second: str) -> None:
    expected = [utc(f"{first}+00:00"), utc(f"{second}+00:00")]
    assert fires(expression, utc(f"{start}+00:00")) == expected
    assert fires(expression, utc(f"{start}+00:00"), "Etc/UTC") == expected


# Expression, zone, start on the wall clock there, and the next two fires.
IN_ZONES = [
    # spring: a time of day in the gap fires at its end, an interval leaves it out
    ("30 2 * * *", "America/New_York", "2026-03-07T12:00:00-05:00",
     "2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"),
    ("0 30 2 * * *", "America/New_York", "2026-03-08T03:00:00-04:00",
     "2026-03-09T02:30:00-04:00", "2026-03-10T02:30:00-04:00"),
    ("0 0,30 2 * * *", "America/New_York", "2026-03-08T01:59:59-05:00",
     "2026-03-08T03:00:00-04:00", "2026-03-09T02:00:00-04:00"),
    ("0 0,30 2,3 * * *", "America/New_York", "2026-03-08T01:59:59-05:00",
     "2026-03-08T03:00:00-04:00", "2026-03-08T03:30:00-04:00"),
    ("0 0 */2 * * *", "America/New_York", "2026-03-08T00:30:00-05:00",
     "2026-03-08T04:00:00-04:00", "2026-03-08T06:00:00-04:00"),
    ("0 */20 2 * * *", "America/New_York", "2026-03-08T00:30:00-05:00",
     "2026-03-09T02:00:00-04:00", "2026-03-09T02:20:00-04:00"),
    ("0 0 * * * *", "America/New_York", "2026-03-08T01:00:00-05:00",
     "2026-03-08T03:00:00-04:00", "2026-03-08T04:00:00-04:00"),
    ("0 30 2 1-31 */1 SUN-SAT", "America/New_York", "2026-03-08T00:30:00-05:00",
     "2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"),
    ("0 30-30 2 * * *", "America/New_York", "2026-03-08T01:00:00-05:00",
     "2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"),
    ("0 30 2 * * *", "Europe/Berlin", "2026-03-29T00:00:00+01:00",
     "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"),
    ("@hourly", "Europe/Berlin", "2026-03-29T01:00:00+01:00",
     "2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"),
    ("0 0 0 * * *", "US/Pacific", "2022-03-13T00:00:07-08:00",
     "2022-03-14T00:00:00-07:00", "2022-03-15T00:00:00-07:00"),
    ("0 0 8 * * *", "Europe/Berlin", "2016-03-26T21:00:00+01:00",
     "2016-03-27T08:00:00+02:00", "2016-03-28T08:00:00+02:00"),
    ("0 0 9 * * *", "Europe/Berlin", "2026-03-28T09:00:00+01:00",
     "2026-03-29T09:00:00+02:00", "2026-03-30T09:00:00+02:00"),
    # autumn: a time of day fires on the first pass only, an interval on both
    ("0 30 1 * * *", "America/New_York", "2026-10-31T12:00:00-04:00",
     "2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"),
    ("0 30 1 * * *", "America/New_York", "2026-11-01T01:30:00-04:00",
     "2026-11-02T01:30:00-05:00", "2026-11-03T01:30:00-05:00"),
    ("0 30 1 * * *", "America/New_York", "2026-11-01T01:00:00-05:00",
     "2026-11-02T01:30:00-05:00", "2026-11-03T01:30:00-05:00"),
    ("0 30 1 1 11 *", "America/New_York", "2026-11-01T01:30:00-04:00",
     "2027-11-01T01:30:00-04:00", "2028-11-01T01:30:00-04:00"),
    ("0 0 * * * *", "America/New_York", "2026-11-01T00:30:00-04:00",
     "2026-11-01T01:00:00-04:00", "2026-11-01T01:00:00-05:00"),
    ("0 */30 1 * * *", "America/New_York", "2026-11-01T00:59:00-04:00",
     "2026-11-01T01:00:00-04:00", "2026-11-01T01:30:00-04:00"),
    ("0 */30 1 * * *", "America/New_York", "2026-11-01T01:30:00-04:00",
     "2026-11-01T01:00:00-05:00", "2026-11-01T01:30:00-05:00"),
    ("0 30 2 * * *", "Europe/Berlin", "2026-10-25T00:00:00+02:00",
     "2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"),
    ("0 */30 1 1 11 * 2026", "America/New_York", "2026-11-01T01:30:00-04:00",
     "2026-11-01T01:00:00-05:00", "2026-11-01T01:30:00-05:00"),
    # half an hour, three quarters past, midnight, a whole day
    ("0 15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00+10:30",
     "2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"),
    ("0 45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00:00+11:00",
     "2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"),
    ("0 */15 3 * * *", "Pacific/Chatham", "2026-04-05T03:30:00+13:45",
     "2026-04-05T03:00:00+12:45", "2026-04-05T03:15:00+12:45"),
    ("0 0 0 * * *", "Asia/Beirut", "2026-03-28T12:00:00+02:00",
     "2026-03-29T01:00:00+03:00", "2026-03-30T00:00:00+03:00"),
    ("0 0 12 * * *", "Pacific/Apia", "2011-12-29T12:00:00-10:00",
     "2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"),
    ("0 0 */12 * * *", "Pacific/Apia", "2011-12-29T12:00:00-10:00",
     "2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "tz", "start", "first", "second"), IN_ZONES)
def test_where_the_clock_jumps_the_one_rule_holds(
    expression: str, tz: str, start: str, first: str, second: str
) -> None:
    assert fires(expression, utc(start), tz) == [utc(first), utc(second)]


def test_the_thirteenth_or_friday_are_sixty_one_days_of_2026() -> None:
    found = fires("0 0 0 13 * FRI", datetime(2025, 12, 31, tzinfo=UTC), count=70)
    assert len([fired for fired in found if fired.year == 2026]) == 61


# -- what is refused -----------------------------------------------------------------------------

REFUSED = [
    "", " ", "invalid cron", "* * * *", "* * * * * * * *", "0 0 9 * *  * 2028 *", "0",
    "60 * * * * *", "* 60 * * * *", "* * 24 * * *", "* * * 32 * *", "* * * * 13 *", "* * * * * 8",
    "* * * 0 * *", "* * * * 0 *", "0 0 9 * * * 1969", "0 0 9 * * * 2100", "0 0 9 * * * 26",
    "*/0 * * * * *", "5-5/0 * * * * *", "5/0 * * * * *", "1-5/0 * * * * *", "0 */x * * * *",
    "0 */ * * * *", "0 */-1 * * * *", "0 1/2/3 * * * *", "0 */1.5 * * * *", "0 1,,2 * * * *",
    "0 ,1 * * * *", "0 1, * * * *", "0 , * * * *", "0 1- * * * *", "0 -1 * * * *", "0 1-2-3 * * * *",
    "0 +5 * * * *", "0 5.0 * * * *", "0 1e1 * * * *", "0 *-5 * * * *", "0 5-* * * * *", "0 ** * * * *",
    "0 0-60 * * * *", "0 60-0 * * * *", "0 0 24/2 * * *", "0 ? * * * *", "? 0 0 * * *", "0 0 0 * ? *",
    "0 0 0 ?,1 * *", "0 0 0 * * ?/2", "0 0 9 * * * ?",
    "0 0 0 * * MONDAY", "0 0 0 * JANUARY *", "0 0 0 * MON *", "0 0 0 * * JAN", "0 MON * * * *",
    "0 0 0 * * 5L", "0 0 0 * * L", "0 0 0 * * FRIL", "0 0 0 LW * *", "0 0 0 L-3 * *", "0 0 0 L/2 * *",
    "0 0 0 W * *", "0 0 0 1,15W * *", "0 0 0 15W,L * *", "0 0 0 1-5W * *", "0 0 0 0W * *",
    "0 0 0 32W * *", "0 0 0 15W/2 * *", "0 0 0 * * L8", "0 0 0 * * MON#6", "0 0 0 * * MON#0",
    "0 0 0 * * MON#", "0 0 0 * * #2", "0 0 0 * * MON#2#3", "0 0 0 * * 8#1", "0 0 0 * * MON,WED#2",
    "0 0 0 * * *#2", "0 0 9 15W * MON", "0 0 9 1 * FRI#2", "0 0 9 1 * L5", "0 0 9 L * L5",
    "0 0 9 15W * */2", "H * * * * *", "0 H H * * *", "0 H(0-10) * * * *", "0 H/5 * * * *", "R * * * * *",
    "0 R(1-9) 0 * * *", "0 0 h * * *",
    "@every 5m", "@reboot", "@", "@ daily", "@daily 5", "@hourlyy", "0 0 @daily * * *",
    "0 0 9 * * * 2028-2026", "TZ=UTC 0 0 9 * * *",
    "0 0 ٩ * * *", "0 0 \uff19 * * *", "0 0 9 * * mon\u2011fri", "0 0 9\u00a0* * *", "0 0 9 * * *\u3000",
    "0 0 9\n* * *", "0 0 9 * *\r\n*", "0 0 9 * *\x0b*", "0 0 9 * * *\x00", "\x000 0 9 * * *", "0 0 ² * * *",
    "0 0 9 * * \ud800", "0 0 9 * * \u017fun", "'0 0 9 * * *'", "0 0 9 * * *;", "5" * 200, "0 " + "9" * 200,
]  # fmt: skip


@pytest.mark.parametrize("expression", REFUSED)
def test_what_cannot_be_read_is_refused_with_the_text_as_written(expression: str) -> None:
    with pytest.raises(ValueError, match=r"^cron expression ") as caught:
        next_fire(expression, START)
    assert repr(expression) in str(caught.value)
    assert caught.value.__cause__ is None
    with pytest.raises(ValueError, match=r"^cron expression "):
        Cron(expression)


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("* * * *", "has 4 fields; write six"),
        ("0 60 * * * *", "has a minute out of range, '60'; it goes from 0 to 59"),
        ("0 0 0 * * 8", "has a day of week out of range, '8'; it goes from 0 to 7"),
        ("0 0 0 * * MONDAY", "has 'MONDAY' for the day of week, which is not understood; use numbers from 0 to 7"),
        ("0 5-5/0 * * * *", "has a step that is no whole number from 1 in the minute '5-5/0'"),
        ("0 1,,2 * * * *", "has an empty part in the minute; write a number between commas"),
        ("0 0 H * * *", "has 'H' for the hour; H and R are not supported, write a number"),
        ("0 0 9 15W * MON", "restricts the day of month ('15W') and the day of week ('MON')"),
        ("@reboot", "is no known alias; use @hourly @daily"),
        ("* " * 129, "has 258 characters; at most 256 are read"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_wrong_and_what_to_do(expression: str, told: str) -> None:
    with pytest.raises(ValueError, match=r"^cron expression ") as caught:
        next_fire(expression, START)
    assert f"cron expression {expression!r} {told}" in str(caught.value)


def test_256_characters_are_read_and_257_are_not() -> None:
    seconds = "0 0 0 * * *"
    assert next_fire(seconds + " " * (256 - len(seconds)), START) == datetime(2026, 12, 1, tzinfo=UTC)
    with pytest.raises(ValueError, match="257 characters; at most 256"):
        next_fire(seconds + " " * (257 - len(seconds)), START)


@pytest.mark.parametrize("expression", [None, 5, b"0 0 9 * * *", ["0", "0"], 1.5, datetime(2026, 1, 1)])
def test_an_expression_that_is_no_str_is_a_type_error(expression: Any) -> None:
    with pytest.raises(TypeError, match="a cron expression must be a str, got "):
        next_fire(expression, START)


@pytest.mark.parametrize("after", [None, 0, 1.5, "2026-11-30", date(2026, 11, 30)])
def test_an_after_that_is_no_datetime_is_a_type_error(after: Any) -> None:
    with pytest.raises(TypeError, match="after must be an aware datetime, got "):
        next_fire("0 0 9 * * *", after)


class _NoOffset(tzinfo):
    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return None

    def dst(self, dt: datetime | None) -> timedelta | None:
        return None

    def tzname(self, dt: datetime | None) -> str | None:
        return None


@pytest.mark.parametrize("after", [datetime(2026, 11, 30), datetime(2026, 11, 30, tzinfo=_NoOffset())])
def test_a_naive_after_is_refused(after: datetime) -> None:
    with pytest.raises(ValueError, match="after must be aware, got the naive "):
        next_fire("0 0 9 * * *", after)


@pytest.mark.parametrize(
    "tz",
    [timezone(2 * HOUR), timezone(-HOUR, "CET"), START.astimezone(timezone(HOUR)).tzinfo, _NoOffset(), None, 2, b"UTC"],
)  # fmt: skip
def test_a_fixed_offset_is_no_zone(tz: Any) -> None:
    with pytest.raises(TypeError, match="tz must be an IANA name, a ZoneInfo or UTC, got "):
        next_fire("0 0 9 * * *", START, tz)


@pytest.mark.parametrize(
    "tz",
    ["Mars/Olympus", "", " ", "Europe", "Europe/", "../UTC", "/etc/passwd", "Europe/Berlin\x00", "UTC+2", "+02:00",
     "Europe/\ud800", "zone.tab", "tzdata.zi", "a" * 10_000, "localtime", "right/Europe/Berlin", "posixrules",
     "Europe\\Berlin", "__init__.py"],
)  # fmt: skip
def test_an_unknown_zone_is_refused(tz: str) -> None:
    with pytest.raises(ValueError, match="is no known time zone; use an IANA name such as 'Europe/Berlin'"):
        next_fire("0 0 9 * * *", START, tz)


def test_the_zone_may_be_a_name_a_zone_or_utc() -> None:
    nine = datetime(2026, 11, 30, 9, tzinfo=UTC)
    assert [next_fire("0 0 9 * * *", START, tz) for tz in ("UTC", UTC, timezone(timedelta(0)))] == [nine] * 3
    assert next_fire("0 0 9 * * *", START, ZoneInfo("UTC")) == nine
    assert next_fire("0 0 9 * * *", START, "Europe/Berlin") == nine - HOUR
    assert next_fire("0 0 9 * * *", START, ZoneInfo.no_cache("Europe/Berlin")) == nine - HOUR


# -- the answer --------------------------------------------------------------------------------


@pytest.mark.parametrize("tz", ["UTC", "Etc/UTC", "Asia/Kathmandu"])
def test_the_answer_is_a_plain_whole_second_in_utc(tz: str) -> None:
    class Stamp(datetime):
        pass

    after = Stamp(2026, 11, 30, 8, 7, 6, 543_210, tzinfo=ZoneInfo("America/Havana"))
    fired = next_fire("* * * * * *", after, tz)
    assert fired == datetime(2026, 11, 30, 13, 7, 7, tzinfo=UTC)
    assert type(fired) is datetime
    assert fired.tzinfo is UTC
    assert (fired.fold, fired.microsecond) == (0, 0)


def test_the_zone_of_after_never_matters() -> None:
    instant = datetime(2026, 11, 1, 5, 30, tzinfo=UTC)
    for zone in [*map(ZoneInfo, ZONES), timezone(5 * HOUR)]:
        for expression in ("0 30 1 * * *", "0 */30 * * * *"):
            expected = next_fire(expression, instant, "America/New_York")
            assert next_fire(expression, instant.astimezone(zone), "America/New_York") == expected


@pytest.mark.parametrize(
    "expression",
    ["0 0 0 30 2 *", "0 0 0 31 4,6,9,11 *", "0 0 9 * * * 2020", "0 0 0 29 2 * 2027,2029", "* * * 31 2 *",
     "0 0 0 30 2 * 1971-2099/2", "0 0 0 30 2 * 1970-2098", "0 0 0 29 2 * 2097-2099", "0 0 0 31 2,4,6,9,11 *",
     "*/2 */2 */2 30,31 2 ?", "0 0 0 ? 2 MON#5 2045-2071"],
)  # fmt: skip
def test_what_never_fires_is_none_at_once(expression: str) -> None:
    next_fire("0 0 0 * * *", START)  # croniter is imported
    for tz in ("UTC", "Europe/Berlin"):
        began = time.process_time()
        assert next_fire(expression, START, tz) is None
        assert time.process_time() - began < 0.05


@pytest.mark.parametrize(
    ("expression", "tz"),
    [("0 */30 2 ? 3 SUN#2", "America/New_York"), ("* * 2 ? 3 L7", "Europe/Berlin"), ("* 0 0 ? 3 L0", "Asia/Beirut")],
)  # fmt: skip
def test_an_interval_that_lies_in_the_gap_every_year_never_fires(expression: str, tz: str) -> None:
    next_fire("0 0 0 * * *", START)
    began = time.process_time()
    assert next_fire(expression, START, tz) is None
    assert time.process_time() - began < 0.05


def test_a_skipped_day_is_passed_over_in_one_step() -> None:
    after = datetime(2011, 12, 30, 9, 59, 59, tzinfo=UTC)  # the last second of the 29th in Apia; no 30th came
    next_fire("* * * * * *", after, "Pacific/Apia")
    began = time.process_time()
    assert next_fire("* * * * * *", after, "Pacific/Apia") == after + timedelta(seconds=1)
    assert time.process_time() - began < 0.02


def test_hundreds_of_times_that_fired_on_the_first_pass_are_passed_over_in_one_step() -> None:
    seconds, minutes = (",".join(map(str, range(count))) for count in (30, 20))
    after = utc("2026-10-25T02:00:00+01:00")  # the second pass begins
    fired = next_fire(f"{seconds} {minutes} 2 * * *", after, "Europe/Berlin")
    assert fired == utc("2026-10-26T02:00:00+01:00")


END = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
EDGES = [
    END,
    END - HOUR,
    END - timedelta(days=1),
    END - timedelta(days=400),
    datetime.min.replace(tzinfo=UTC),
]


@pytest.mark.parametrize("expression", ["* * * * * *", "0 0 12 * * *", "0 0 0 30 2 MON", "0 0 0 29 2 *",
                                        "0 0 9 * * * 2028", "0 0 9 1W * *", "0 0 9 ? * L5"])  # fmt: skip
@pytest.mark.parametrize("tz", ["UTC", "America/New_York", "Asia/Tokyo", "Pacific/Kiritimati", "Etc/GMT+12"])
def test_at_the_ends_of_the_calendar_there_is_an_answer(expression: str, tz: str) -> None:
    for after in EDGES:
        for zone in (UTC, timezone(14 * HOUR), timezone(-12 * HOUR)):
            there = after.replace(tzinfo=zone)
            fired = next_fire(expression, there, tz)
            assert fired is None or fired > there


def test_the_last_days_of_the_calendar_are_found() -> None:
    assert next_fire("0 0 0 31 12 *", datetime(9998, 12, 31, tzinfo=UTC)) == datetime(
        9999, 12, 31, tzinfo=UTC
    )
    after = datetime(9999, 12, 20, tzinfo=UTC)
    assert next_fire("0 0 0 1 * MON", after) == datetime(9999, 12, 20, tzinfo=UTC) + timedelta(days=7)
    assert next_fire("59 59 23 31 12 *", END - timedelta(seconds=1)) == END.replace(microsecond=0)
    assert next_fire("* * * * * *", END) is None
    assert next_fire("0 0 9 * * * 2099", datetime(2099, 12, 31, 9, tzinfo=UTC)) is None
    assert next_fire("0 0 9 * * * 1970-2099", datetime(2099, 12, 31, 9, tzinfo=UTC)) is None
    assert next_fire("0 0 0 1 1 * 1970-2099", datetime.min.replace(tzinfo=UTC)) == datetime(
        1970, 1, 1, tzinfo=UTC
    )
    assert next_fire("0 0 9 * * *", datetime.min.replace(tzinfo=UTC)) == datetime(1, 1, 1, 9, tzinfo=UTC)
    noon = next_fire("0 0 12 * * *", datetime.min.replace(tzinfo=UTC), "America/New_York")
    assert noon == datetime(1, 1, 1, 16, 56, 2, tzinfo=UTC)  # local mean time
    late = datetime(5000, 6, 1, 8, 59, 59, 999_999, tzinfo=UTC)  # a float of seconds would round this up
    assert next_fire("0 0 9 * * *", late) == datetime(5000, 6, 1, 9, tzinfo=UTC)


# -- the kept form -----------------------------------------------------------------------------


def test_a_cron_shows_the_text_and_the_zone() -> None:
    assert repr(Cron("0 0 9 * * Mon", "Europe/Berlin")) == "Cron('0 0 9 * * Mon', tz='Europe/Berlin')"
    assert repr(Cron(" @daily ")) == "Cron(' @daily ', tz='UTC')"
    assert Cron("0 0 9 * * Mon", UTC).expression == "0 0 9 * * Mon"


def test_a_cron_is_a_value() -> None:
    cron = Cron("0 0 9 * * *", "Europe/Berlin")
    assert cron == Cron("0 0 9 * * *", ZoneInfo("Europe/Berlin"))
    assert cron != Cron("0 0 9 * * *")
    assert len({cron, Cron("0 0 9 * * *", "Europe/Berlin")}) == 1
    with pytest.raises(FrozenInstanceError):
        cron.expression = "0 0 8 * * *"  # type: ignore[misc]
    for twin in (pickle.loads(pickle.dumps(cron)), copy.copy(cron), copy.deepcopy(cron)):
        assert twin == cron
        assert twin.next_after(START) == cron.next_after(START)


def test_asking_changes_nothing() -> None:
    cron = Cron("0 0 9 ? * FRI#2,L1", "Europe/Berlin")
    instants = [START + n * timedelta(days=5) for n in (3, 0, 50, 1, 0)]
    first = [cron.next_after(after) for after in instants]
    assert [cron.next_after(after) for after in instants] == first
    assert [next_fire(cron.expression, after, cron.tz) for after in instants] == first


@pytest.mark.parametrize(
    "expression", ["* * * * * *", "0 0 9 ? * FRI#2,L1", "0 0 9 1,L */5 MON", "0 0 9 31W * *"]
)
def test_asking_leaves_the_kept_form_as_it_was(expression: str) -> None:
    cron = Cron(expression, "Europe/Berlin")
    before = copy.deepcopy(vars(cron._calendar))
    cron.next_after(START)
    assert vars(cron._calendar) == before


def test_threads_that_share_a_cron_get_their_own_answers() -> None:
    crons = [Cron("*/7 */3 * * * *", tz) for tz in ("UTC", "America/New_York")]
    starts = [datetime(2026, 11, 1, n, tzinfo=UTC) for n in range(24)]
    expected = {(cron, start): cron.next_after(start) for cron in crons for start in starts}
    wrong: list[object] = []

    def ask(turn: int) -> None:
        for n in range(200):
            cron, start = crons[n % 2], starts[(n * 5 + turn) % 24]
            if cron.next_after(start) != expected[cron, start]:
                wrong.append((cron, start))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=ask, args=[turn]) for turn in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_a_hostile_str_is_read_by_its_characters() -> None:
    class Liar(str):
        __slots__ = ()

        def __len__(self) -> int:
            return 0

        def strip(self, chars: str | None = None, /) -> str:
            return "* * * * * *"

        def __hash__(self) -> int:
            raise RuntimeError

    assert next_fire(Liar("0 0 9 * * *"), START) == datetime(2026, 11, 30, 9, tzinfo=UTC)


TABLE = """
from datetime import datetime, UTC
from supervisor.kernel.cron import next_fire
for expression in ("0 30 2 * * *", "0 */30 * * * *", "0 0 9 * * MON", "@daily"):
    for tz in ("UTC", "Europe/Berlin", "America/New_York"):
        after = datetime(2026, 10, 24, 20, 10, tzinfo=UTC)
        for _ in range(30):
            after = next_fire(expression, after, tz)
            print(expression, tz, after.isoformat())
"""


def test_the_zone_of_the_machine_never_matters() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", TABLE], env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=True
        ).stdout
        for zone in ("UTC", "Asia/Tokyo", "America/New_York", "Europe/Berlin")
    }  # fmt: skip
    assert len(told) == 1
    assert len(told.pop().splitlines()) == 360


def test_croniter_and_zoneinfo_are_imported_when_first_used() -> None:
    code = (
        "import sys, supervisor.kernel.cron as cron\n"
        "print([name for name in ('croniter', 'zoneinfo', 'copy') if name in sys.modules])\n"
        "from datetime import datetime, UTC\n"
        "cron.next_fire('@daily', datetime(2026, 1, 1, tzinfo=UTC)); print('croniter' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"
    assert "croniter" not in done.stdout.splitlines()[0]
    assert "zoneinfo" not in done.stdout.splitlines()[0]


# -- beside the slow way -----------------------------------------------------------------------

ACROSS = [
    "0 30 2 * * *", "0 0 0 * * *", "0 15,45 0,1,2,3 * * *", "30 0 0,1,2,3 * * SUN",
    "0 30 1,2 1-31 1-12 SUN-SAT", "0 */20 * * * *", "0 0 */2 * * *", "15 30 1-2 * * *", "0 0 22-4 ? * SAT-SUN",
]  # fmt: skip


def across(zone: ZoneInfo, change: datetime, expressions: list[str]) -> None:
    """Follow each schedule over a change and compare every fire with the walk; from each, start anew."""
    start, end = change - 4 * HOUR, change + 5 * HOUR
    walk = Walk(zone, start, end)
    for expression in expressions:
        expected = [fired for fired in walk.fires(Schedule(expression)) if fired > start]
        cron, after, found = Cron(expression, zone), start, []
        while (fired := cron.next_after(after)) is not None and fired < end:
            assert fired > after
            found.append(fired)
            after = fired
        assert found == expected, (expression, zone, change)


@pytest.mark.parametrize("name", ZONES)
def test_over_every_change_of_2020_to_2030_all_schedules_fire_as_the_slow_way(name: str) -> None:
    zone = ZoneInfo(name)
    for change in changes(zone, 2020, 2030):
        across(zone, change, ACROSS)


def test_over_old_and_odd_changes_all_schedules_fire_as_the_slow_way() -> None:
    for name, year in [("Pacific/Apia", 2011), ("Pacific/Kwajalein", 1993), ("Asia/Pyongyang", 2018),
                       ("America/Caracas", 2016), ("Asia/Kathmandu", 1985), ("Europe/Dublin", 1971),
                       ("Antarctica/Casey", 2010), ("Africa/Cairo", 2010), ("Europe/Lisbon", 1996)]:  # fmt: skip
        zone = ZoneInfo(name)
        found = changes(zone, year, year)
        assert found
        for change in found:
            across(zone, change, ACROSS)


def parts(low: int, high: int, names: list[str] | None = None) -> st.SearchStrategy[str]:
    number = st.integers(low, high).map(str)
    if names:
        number |= st.sampled_from(names)
    step = st.integers(1, 40).map(str)
    return (
        number
        | st.builds("{}-{}".format, number, number)
        | st.builds("{}-{}/{}".format, number, number, step)
        | st.builds("{}/{}".format, number, step)
        | st.builds("*/{}".format, step)
    )


def fields(*args: Any) -> st.SearchStrategy[str]:
    return st.just("*") | st.lists(parts(*args), min_size=1, max_size=3).map(",".join)


MONTHS = ["JAN", "feb", "Mar", "NOV", "DEC"]
WEEKDAYS = ["SUN", "mon", "Fri", "SAT"]
day_pairs = (
    st.tuples(fields(1, 31) | st.sampled_from(["L", "?", "1,L", "10-L/4"]), fields(0, 7, WEEKDAYS) | st.just("?"))
    | st.tuples(st.sampled_from(["*", "?"]), st.builds("{}#{}".format, st.integers(0, 7), st.integers(1, 5)))
    | st.tuples(st.just("*"), st.integers(0, 7).map("L{}".format))
    | st.tuples(st.integers(1, 31).map("{}W".format), st.sampled_from(["*", "?"]))
)  # fmt: skip
expressions = st.builds(
    lambda second, minute, hour, days, month, year: " ".join(
        [second, minute, hour, days[0], month, days[1], *year]
    ),
    fields(0, 59) | st.just("0"),
    fields(0, 59) | st.just("0"),
    fields(0, 23) | st.sampled_from(["1", "2", "3", "0"]),
    st.just(("*", "*")) | day_pairs,
    st.just("*") | fields(1, 12, MONTHS),
    st.just([]) | st.lists(parts(2020, 2032).filter(lambda part: "-" not in part), min_size=1, max_size=1),
)


@settings(max_examples=4000 if LONG else 80, deadline=None)
@given(
    expressions, st.sampled_from(ZONES), st.integers(0, 10**7), st.booleans(), st.integers(-40_000, 40_000)
)
def test_any_schedule_fires_as_the_slow_way_does(
    expression: str, name: str, pick: int, near: bool, seconds: int
) -> None:
    zone = ZoneInfo(name)
    found = changes_of(name)
    after = (
        found[pick % len(found)]
        if near and found
        else datetime(2020, 1, 1, tzinfo=UTC) + pick * timedelta(seconds=30)
    )
    after += timedelta(seconds=seconds)
    expected = list(islice(fires_after(expression, zone, after, 45), 4))
    cron = Cron(expression, zone)
    got: list[datetime] = []
    for _ in range(len(expected) or 1):
        fired = cron.next_after(got[-1] if got else after)
        if fired is None:
            break
        got.append(fired)
    if expected:
        assert got == expected
    else:
        assert not got or got[0] > after + timedelta(days=44, hours=23)


_changes: dict[str, list[datetime]] = {}


def changes_of(name: str) -> list[datetime]:
    if name not in _changes:
        _changes[name] = changes(ZoneInfo(name), 2020, 2030)
    return _changes[name]


@settings(max_examples=1000 if LONG else 150, deadline=None)
@given(expressions, st.sampled_from(ZONES), st.datetimes(timezones=st.just(UTC)))
def test_progress_is_strict_and_a_restart_goes_on_alike(expression: str, name: str, after: datetime) -> None:
    cron = Cron(expression, name)
    for _ in range(3):
        fired = cron.next_after(after)
        if fired is None:
            return
        assert fired > after
        assert (
            next_fire(expression, fired - timedelta(microseconds=1), name) == fired
        )  # nothing came before it
        after = fired


@settings(max_examples=2000 if LONG else 300)
@given(st.text(alphabet="0123456789*/-,?LWHR#@ \t\nmonJAN\x00٣", max_size=40))
def test_any_text_is_read_or_refused_as_a_value_error(text: str) -> None:
    try:
        fired = next_fire(text, START)
    except ValueError as error:
        told = str(error)
    else:
        assert fired is None or fired > START
        told = repr(text)
    assert repr(text) in told


@pytest.mark.parametrize("share", range(8 if LONG else 0) or [None])
@pytest.mark.timeout(3600)
def test_over_the_changes_of_all_zones_since_1972_in_the_long_form(share: int | None) -> None:
    from zoneinfo import available_timezones

    names = ["Europe/London"] if share is None else sorted(available_timezones() - {"localtime"})[share::8]
    for name in names:
        for change in changes(
            ZoneInfo(name), 2019 if share is None else 1973, 2019 if share is None else 2037
        ):
            across(ZoneInfo(name), change, ACROSS[1:8:3])
