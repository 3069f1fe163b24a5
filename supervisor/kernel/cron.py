"""When a cron expression fires next: croniter's calendar behind one rule for daylight saving.

croniter is called here and nowhere else, and sees only wall-clock times without a zone: on those it is
right, and its own ways with zones would fire a daily job twice in autumn and invent times in spring.

The rule. If the second, minute or hour contains `*`, `-` or `/` (after `a-a` became `a`), a schedule is
interval-like and follows real time: wall times that are skipped are skipped, repeated ones fire in both
passes. Any other is a time of day: one that falls in a gap fires once, at the first instant after it;
one that occurs twice fires on the first pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING

from supervisor.kernel.cron_text import CronText, read
from supervisor.kernel.text import shown

if TYPE_CHECKING:
    from croniter import croniter

_SECOND = timedelta(seconds=1)
_GAPS = 100  # gaps that a schedule may fall into one after the other before it is held to fire never
_CALENDAR = 400  # years after which leap days and weekdays repeat
_FIRST, _BEYOND = 1970, 2300  # years that croniter is asked about
_NOT_IANA = ("right/", "posix/", "localtime", "posixrules")  # files beside the zones, which are none


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Cron:
    """A cron expression in a time zone, read once. Immutable; any thread may ask it.

    expression: as given.  tz: the zone its wall-clock times are in.
    Raises as `next_fire` does.
    """

    expression: str
    tz: tzinfo
    _text: CronText = field(compare=False)
    _calendar: croniter = field(compare=False)  # never asked itself: asking changes it, so a copy is

    def __init__(self, expression: str, tz: str | tzinfo = "UTC") -> None:
        if not isinstance(expression, str):
            raise TypeError(f"a cron expression must be a str, got {shown(expression)}")
        expression = str.__str__(expression)  # a subclass may override what is called below
        text = read(expression)
        object.__setattr__(self, "expression", expression)
        object.__setattr__(self, "tz", _zone(tz))
        object.__setattr__(self, "_text", text)
        object.__setattr__(self, "_calendar", _calendar(text))

    def __repr__(self) -> str:
        return f"Cron({self.expression!r}, tz={str(self.tz)!r})"

    def __reduce__(self) -> tuple[type[Cron], tuple[str, tzinfo]]:
        return type(self), (self.expression, self.tz)

    def next_after(self, after: datetime) -> datetime | None:
        """Return the first instant strictly after `after` at which the schedule fires; None for never.

        after: aware.  Result: aware, UTC, a whole second. None is also what lies past the year 9999.
        Raises TypeError if `after` is no datetime, ValueError if it is naive.
        """
        now = _whole_second(after)
        try:
            if now is None or self.tz is not UTC:
                return now and self._in_zone(now)
            found = self._wall_after(now.replace(tzinfo=None))
            return found and found.replace(tzinfo=UTC)
        except OverflowError:  # the next one has no date in UTC
            return None

    def _in_zone(self, now: datetime) -> datetime | None:
        real_time = self._text.real_time
        wall = self._wall(now)
        one, other = self._readings(wall)
        if real_time and one == now < other:  # in the first pass of a stretch that comes again
            second_pass = self._change(one, other)
            found = self._wall_after(wall)
            if found is None or found > self._wall(second_pass - _SECOND):
                wall = self._wall(second_pass) - _SECOND
        for _ in range(_GAPS):
            found = self._wall_after(wall)
            if found is None:
                return None
            one, other = self._readings(found)
            if one == other:
                return one
            if one > other:  # `found` is in a gap
                change = self._change(other, one)
                if not real_time:
                    return change
                wall = self._wall(change) - _SECOND
            elif one > now:
                return one
            elif real_time:
                return other
            else:  # `found` fired on the first pass, and so did all up to the end of it
                wall = self._wall(self._change(one, other) - _SECOND)
        return None

    def _wall_after(self, wall: datetime) -> datetime | None:
        """Return the first matching wall time after `wall`, both naive; None for never."""
        years = self._text.years
        if years is not None and wall.year < years[0]:
            wall = datetime(years[0], 1, 1) - _SECOND
        if years is not None and wall.year > years[1]:
            return None
        shift = 0
        if years is None and not _FIRST <= wall.year < _BEYOND:  # where croniter's floats and dates end
            shift = wall.year // _CALENDAR * _CALENDAR - 2000
            wall = wall.replace(year=wall.year - shift)
        from copy import copy

        from croniter import CroniterBadDateError

        try:
            found = copy(self._calendar).get_next(datetime, start_time=wall)
        except CroniterBadDateError:
            return None
        if years is not None and found.year > years[1]:
            return None
        if shift:
            return found.replace(year=found.year + shift) if found.year + shift <= 9999 else None
        return found

    def _wall(self, instant: datetime) -> datetime:
        try:
            return instant.astimezone(self.tz).replace(tzinfo=None, fold=0)
        except OverflowError:
            if instant.year > 1:
                raise
            return datetime.min  # west of Greenwich the first hours of UTC have no wall time

    def _readings(self, wall: datetime) -> tuple[datetime, datetime]:
        """Return the instants of a wall time, read by the offset before and by that after a change near it.

        The same twice as a rule; ascending where the wall time occurs twice, descending in a gap (PEP 495).
        """
        wall = wall.replace(tzinfo=self.tz)
        return wall.astimezone(UTC), wall.replace(fold=1).astimezone(UTC)

    def _change(self, before: datetime, after: datetime) -> datetime:
        """Return the first second in (before, after] that has another offset than `before`."""
        offset = before.astimezone(self.tz).utcoffset()
        span = int((after - before).total_seconds())
        low, high = 0, span
        while high - low > 1:
            middle = (low + high) // 2
            if (before + middle * _SECOND).astimezone(self.tz).utcoffset() == offset:
                low = middle
            else:
                high = middle
        return before + high * _SECOND


def next_fire(expression: str, after: datetime, tz: str | tzinfo = "UTC") -> datetime | None:
    """Return the first instant strictly after `after` at which `expression` fires in `tz`; None for never.

    expression: six fields with the second first (`0 0 9 * * MON`: Mondays at 9), five as in crontab(5),
    seven with a year, or `@hourly @daily @midnight @weekly @monthly @yearly @annually`.
    after: aware.  tz: IANA name, `ZoneInfo` or UTC.  Result: aware, UTC, a whole second.
    Raises ValueError for an expression that can't be used (it shows your text), an unknown zone and a
    naive `after`; TypeError for a wrong type and for a fixed offset as `tz`, which keeps no daylight saving.
    To ask again and again keep a `Cron`: it reads the expression once.
    """
    return Cron(expression, tz).next_after(after)


@lru_cache(maxsize=256)
def _calendar(text: CronText) -> croniter:
    from croniter import croniter

    reach = 50 if text.years is None else 130  # years; two matches are never further apart
    return croniter(
        text.plain, datetime(2000, 1, 1), second_at_beginning=True, max_years_between_matches=reach
    )


def _zone(tz: object) -> tzinfo:
    if tz is UTC or (isinstance(tz, str) and tz == "UTC"):
        return UTC
    from zoneinfo import ZoneInfo

    if isinstance(tz, ZoneInfo):
        return tz
    if not isinstance(tz, str):
        raise TypeError(
            f"tz must be an IANA name, a ZoneInfo or UTC, got {shown(tz)}; a fixed offset would miss "
            "daylight saving, so name the place, such as 'Europe/Berlin'"
        )
    try:
        if tz.startswith(_NOT_IANA):
            raise ValueError(tz)
        return ZoneInfo(tz)
    except (LookupError, ValueError, OSError) as error:
        raise ValueError(
            f"tz {shown(tz)} is no known time zone; use an IANA name such as 'Europe/Berlin', and install "
            "tzdata if this machine has no zones"
        ) from error


def _whole_second(after: datetime) -> datetime | None:
    """Return `after` in UTC without the fraction; None past the end of the calendar."""
    if not isinstance(after, datetime):
        raise TypeError(f"after must be an aware datetime, got {shown(after)}")
    if after.utcoffset() is None:
        raise ValueError(f"after must be aware, got the naive {shown(after)}; give it a tzinfo, such as UTC")
    try:
        utc = after.astimezone(UTC)
    except OverflowError:
        return None if after.year > 1 else datetime.min.replace(tzinfo=UTC)
    return datetime(utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second, tzinfo=UTC)
