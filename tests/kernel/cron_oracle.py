"""What a cron schedule should do, found the slow way: walk UTC minute by minute and look at the wall clock.

Shares nothing with supervisor/kernel/cron.py: another reader, no croniter, and no `fold`. A wall time
is repeated when the walk has met it before, and skipped when the wall clock jumped over it. Whole-minute
offsets are taken for granted, as all zones have had since 1972.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
WARM_UP = timedelta(hours=27)  # no wall time has ever come back later than this
MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()  # noqa: SIM905
DAYS = "SUN MON TUE WED THU FRI SAT".split()  # noqa: SIM905
BOUNDS = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6), (1970, 2099)]


def value(index: int, word: str) -> int:
    if index == 4 and word.upper() in MONTHS:
        return MONTHS.index(word.upper()) + 1
    if index == 5 and word.upper() in DAYS:
        return DAYS.index(word.upper())
    return int(word)


def members(index: int, part: str) -> set[int]:
    """Count from the first number up to the last, round the end if need be, and keep every step-th."""
    low, high = BOUNDS[index]
    span, _, step = part.partition("/")
    first, dash, last = span.partition("-")
    if span in ("*", "?"):
        begin, end = low, high
    else:
        begin = value(index, first)
        end = value(index, last.replace("L", "31")) if dash else high if step else begin
        if index == 5 and begin == 7 and not dash:
            begin, end = 0, high if step else 0
    found: set[int] = set()
    number, count = begin, 0
    while True:
        if count % int(step or 1) == 0:
            found.add(0 if index == 5 and number == 7 else number)
        if number == end:
            return found
        count += 1
        number = number + 1 if number < high or (index == 5 and number == 6 and end == 7) else low
        if index == 5 and begin == 7 and count == 1:
            number = 1
            if end == 0:
                return found


class Schedule:
    """An expression of six or seven fields that is known to be right."""

    def __init__(self, expression: str) -> None:
        fields = expression.split()
        fields += ["*"] * (7 - len(fields))
        self.day, self.weekday = fields[3], fields[5]
        self.seconds, self.minutes, self.hours, self.months, self.years = (
            set[int]().union(*(members(n, part) for part in fields[n].split(","))) for n in (0, 1, 2, 4, 6)
        )
        self.any_year = fields[6] == "*"
        self.real_time = any(self._moves(part) for field in fields[:3] for part in field.split(","))
        self.on = cache(self._on)

    @staticmethod
    def _moves(part: str) -> bool:
        first, dash, last = part.partition("/")[0].partition("-")
        if dash:
            return int(first) != int(last)
        return "*" in part or "/" in part

    def _on(self, day: date) -> bool:
        if day.month not in self.months or not (self.any_year or day.year in self.years):
            return False
        by_day = any(self._day_matches(part, day) for part in self.day.split(","))
        by_weekday = any(self._weekday_matches(part, day) for part in self.weekday.split(","))
        if self.day in ("*", "?") or self.weekday in ("*", "?"):
            return by_day and by_weekday
        return by_day or by_weekday

    @staticmethod
    def _day_matches(part: str, day: date) -> bool:
        last = calendar.monthrange(day.year, day.month)[1]
        if part == "L":
            return day.day == last
        if part.endswith("W"):
            aim = min(int(part[:-1]), last)
            working = [n for n in range(1, last + 1) if date(day.year, day.month, n).weekday() < 5]
            return day.day == min(working, key=lambda n: (abs(n - aim), n))
        return day.day in members(3, part)

    @staticmethod
    def _weekday_matches(part: str, day: date) -> bool:
        name = day.isoweekday() % 7
        if part.startswith("L") and len(part) > 1:
            return name == int(part[1:]) % 7 and (day + 7 * DAY).month != day.month
        if "#" in part:
            which, nth = part.split("#")
            return name in members(5, which) and (day.day - 1) // 7 + 1 == int(nth)
        return name in members(5, part)

    def minute_matches(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours and self.on(wall.date())


class Walk:
    """The wall clock of a zone over some UTC minutes: which were seen before, which were skipped."""

    def __init__(self, zone: ZoneInfo, start: datetime, end: datetime) -> None:
        self.minutes: list[tuple[datetime, datetime, bool, list[datetime]]] = []
        seen: set[datetime] = set()
        previous: datetime | None = None
        instant = start - WARM_UP
        while instant < end:
            wall = instant.astimezone(zone).replace(tzinfo=None, fold=0)
            skipped: list[datetime] = []
            if previous is not None and wall > previous + MINUTE:
                skipped = [previous + n * MINUTE for n in range(1, (wall - previous) // MINUTE)]
            if instant >= start:
                self.minutes.append((instant, wall, wall in seen, skipped))
            seen.add(wall)
            previous = wall
            instant += MINUTE

    def fires(self, schedule: Schedule) -> Iterator[datetime]:
        seconds = sorted(schedule.seconds)
        for instant, wall, again, skipped in self.minutes:
            late = not schedule.real_time and any(schedule.minute_matches(lost) for lost in skipped)
            hit = schedule.minute_matches(wall) and (schedule.real_time or not again)
            if late and not (hit and seconds[0] == 0):
                yield instant
            if hit:
                for second in seconds:
                    yield instant + timedelta(seconds=second)


def fires_after(expression: str, zone: ZoneInfo, after: datetime, days: int) -> Iterator[datetime]:
    """Yield every instant after `after` at which the schedule fires, for so many days."""
    schedule = Schedule(expression)
    begin = after.astimezone(UTC).replace(second=0, microsecond=0)
    end = begin + days * DAY
    while begin < end:
        stop = min(begin + DAY, end)
        first = begin.astimezone(zone).date() - DAY  # a day is also touched by what was skipped just before
        last = stop.astimezone(zone).date()
        if any(schedule.on(first + n * DAY) for n in range((last - first).days + 1)):
            for fired in Walk(zone, begin, stop).fires(schedule):
                if fired > after:
                    yield fired
        begin = stop


def changes(zone: ZoneInfo, first_year: int, last_year: int) -> list[datetime]:
    """Return each UTC minute at which the offset of a zone becomes another one."""
    found: list[datetime] = []
    instant = datetime(first_year, 1, 1, tzinfo=UTC)
    while instant.year <= last_year:
        later = instant + DAY
        if instant.astimezone(zone).utcoffset() != later.astimezone(zone).utcoffset():
            low, high = instant, later
            while high - low > MINUTE:
                middle = low + (high - low) // MINUTE // 2 * MINUTE
                same = middle.astimezone(zone).utcoffset() == low.astimezone(zone).utcoffset()
                low, high = (middle, high) if same else (low, middle)
            found.append(high)
        instant = later
    return found
