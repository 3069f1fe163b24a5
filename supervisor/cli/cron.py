"""The command `cron`: when an expression fires, and why it is refused."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, tzinfo

from supervisor.cli.main import NEVER_AGAIN
from supervisor.cli.run import refused
from supervisor.cli.terminal import Terminal
from supervisor.cli.words import Column, Line, Piece, Tone, labeled, table
from supervisor.kernel.clock import SYSTEM_CLOCK
from supervisor.kernel.cron import Cron
from supervisor.kernel.cron_text import read
from supervisor.kernel.text import shown

__all__ = ["cron"]

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")  # not those of the locale
_REAL_TIME = (
    "interval-like, because the second, minute or hour has *, - or /: it follows real time. Wall times "
    "that a change of the clock skips are skipped, those that come twice fire twice."
)
_TIME_OF_DAY = (
    "a time of day: where a change of the clock skips it, it fires at the first instant after the gap; "
    "where it comes twice, it fires the first time only."
)


def cron(expression: str, zone: str, count: int, after: str | None) -> int:
    """Print the next `count` times of an expression; return the exit code.

    after: an ISO time, in the zone where it has no offset; None takes now.
    """
    errors = Terminal(sys.stderr, os.environ)
    try:
        schedule = Cron(expression, zone)
        start = SYSTEM_CLOCK.now() if after is None else _instant(after, schedule.tz)
    except ValueError as error:
        return refused(errors, str(error))
    times: list[datetime] = []
    while len(times) < count and (found := schedule.next_after(times[-1] if times else start)) is not None:
        times.append(found)
    if not times:
        since = f" after {after}" if after is not None else ""
        errors.say(
            [[("error: ", Tone.BAD), (f"{shown(expression, 300)} never fires again{since}", Tone.PLAIN)]]
        )
        return NEVER_AGAIN
    terminal = Terminal(sys.stdout, os.environ)
    if schedule.tz is not UTC:
        rule = _REAL_TIME if read(expression).real_time else _TIME_OF_DAY
        terminal.say([*labeled("rule", rule, terminal.width), []])
    columns = (Column(title="DAY"), Column(title=zone, least=25), Column(title="UTC"))
    of_use = columns[:2] if schedule.tz is UTC else columns
    terminal.say(table(of_use, _rows(times, start, schedule.tz), None))
    if len(times) < count:
        terminal.say([[("and never again after that", Tone.WARN)]])
    return 0


def _instant(text: str, zone: tzinfo) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"--after {text!r} is no time; write one such as 2026-10-25T02:00") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=zone)


def _rows(times: list[datetime], start: datetime, zone: tzinfo) -> list[Line]:
    """Return a row for each time; an offset that is new is marked."""
    offset = _local(start, zone).utcoffset()
    rows: list[Line] = []
    for each in times:
        local = _local(each, zone)
        tone = Tone.PLAIN if local.utcoffset() == offset else Tone.WARN
        offset = local.utcoffset()
        row: list[Piece] = [
            (_DAYS[local.weekday()], Tone.PLAIN),
            (local.isoformat(" "), tone),
            (each.strftime("%Y-%m-%d %H:%M:%SZ") if each.year > 999 else each.isoformat(" "), Tone.QUIET),
        ]
        rows.append(row)
    return rows


def _local(instant: datetime, zone: tzinfo) -> datetime:
    try:
        return instant.astimezone(zone)
    except OverflowError:  # the first or last hours of the calendar
        return instant
