"""What people write as a cron expression, read into plain lists of numbers.

All that can be wrong with a text is found here, so that croniter sees only numbers and the marks of the
day fields; it would read `5-5` as "every", and step past a wrap one too far (`50-10/15` as 50 and 6).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from supervisor.kernel.text import ERROR_LIMIT, shown

LONGEST = 256  # characters of an expression
ALIASES = {
    "@hourly": "0 0 * * * *",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@weekly": "0 0 0 * * 0",
    "@monthly": "0 0 0 1 * *",
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
}


class _Field(NamedTuple):
    name: str
    low: int
    high: int  # the highest that `*` and `a/b` reach
    names: dict[str, int] = {}  # noqa: RUF012  (never written to)
    most: int = 0  # the highest that may be written, where that is more


_MONTH_NAMES = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAY_NAMES = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_DAY = _Field("day of month", 1, 31)
_WEEKDAY = _Field("day of week", 0, 6, {name: n for n, name in enumerate(_DAY_NAMES)}, most=7)
_YEAR = _Field("year", 1970, 2099)
_FIELDS = (
    _Field("second", 0, 59),
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _DAY,
    _Field("month", 1, 12, {name: n for n, name in enumerate(_MONTH_NAMES, start=1)}),
    _WEEKDAY,
    _YEAR,
)
_TIMES = 3  # the first fields are a time of day
_PART = re.compile(r"(\*|[0-9a-z]+)(?:-([0-9a-z]+))?(/[^/]*)?")
_NEAREST = re.compile(r"w?([0-9]+)w?")
_LAST = re.compile(r"l([0-9]+)")


class CronText(NamedTuple):
    """An expression that was understood."""

    plain: str  # six or seven fields, seconds first, of `*`, lists of numbers, and L, 15W, 5#2, L5
    real_time: bool  # interval-like: follows real time where the clock is put forward or back
    years: tuple[int, int] | None  # the first and the last, where there is a restriction


@lru_cache(maxsize=256)
def read(expression: str) -> CronText:
    """Return what the expression says.

    expression: five fields as in crontab(5), six with the second first, seven with a year, or an alias
    such as `@daily`; at most 256 characters.
    Raises ValueError that shows the expression, what is wrong with it and what to write instead.
    """
    try:
        return _read(expression)
    except ValueError as error:
        why = str(error)
    raise ValueError(f"cron expression {shown(expression, ERROR_LIMIT)} {why}")


def _read(expression: str) -> CronText:
    if len(expression) > LONGEST:
        raise ValueError(f"has {len(expression)} characters; at most {LONGEST} are read")
    text = expression.strip(" \t\r\n")
    if not text.replace("\t", " ").isprintable() or not text.isascii():
        raise ValueError("holds a character that no field has; write ASCII on one line")
    if text.startswith("@"):
        alias = ALIASES.get(text.lower())
        if alias is None:
            raise ValueError(f"is no known alias; use {' '.join(ALIASES)}, or write the fields")
        text = alias
    fields = text.split()
    if len(fields) == 5:
        fields.insert(0, "0")
    if len(fields) not in (6, 7):
        raise ValueError(
            f"has {len(fields)} field{'' if len(fields) == 1 else 's'}; write six (second minute hour "
            "day-of-month month day-of-week), five without the second, or seven with a year"
        )
    plain: list[str] = []
    real_time = False
    years = None
    for index, (field, written) in enumerate(zip(_FIELDS, fields, strict=False)):
        if written == "*" or (written == "?" and (field is _DAY or field is _WEEKDAY)):
            real_time |= index < _TIMES
            if field is not _YEAR:
                plain.append("*")
            continue
        numbers: set[int] = set()
        marks: list[str] = []
        parts = written.split(",")
        for part in parts:
            mark = _day_mark(field, part, len(parts)) if field is _DAY or field is _WEEKDAY else None
            if mark is not None:
                marks += mark
                continue
            found, alone = _numbers(field, part)
            numbers.update(found)
            real_time |= index < _TIMES and not alone
        if marks and numbers and field is _WEEKDAY:
            raise ValueError(
                f"mixes plain days and # or L in the day of week {written!r}; make two schedules of it"
            )
        if field is _YEAR:
            years = min(numbers), max(numbers)
        whole = field is not _DAY and field is not _WEEKDAY and len(numbers) == field.high - field.low + 1
        plain.append("*" if whole or "*" in parts else ",".join([*map(str, sorted(numbers)), *marks]))
    _refuse_mixed_days(plain[3], plain[5], fields[3], fields[5])
    return CronText(" ".join(plain), real_time, years)


def _numbers(field: _Field, part: str) -> tuple[range | list[int], bool]:
    """Return the numbers that a part of a field means, and whether it was one number written as such."""
    if part.isdigit():
        return [_number(field, part, part) % _cycle(field)], True
    found = _PART.fullmatch(part.lower())
    if found is None:
        raise _not_understood(field, part)
    first, last, slash = found.groups()
    step = 1
    if slash is not None and not (slash[1:].isdigit() and (step := int(slash[1:]))):
        raise ValueError(f"has a step that is no whole number from 1 in the {field.name} {part!r}")
    if first == "*":
        if last is not None:
            raise _not_understood(field, part)
        return range(field.low, field.high + 1, step), False
    low = _number(field, first, part)
    if last is None:
        low %= _cycle(field)
        return range(low, (low if slash is None else field.high) + 1, step), slash is None
    high = field.high if field is _DAY and last == "l" else _number(field, last, part)
    if low == high:
        return [low % _cycle(field)], True
    size = field.high - field.low + 1
    if low > high:
        if field is _YEAR:
            raise ValueError(f"has a range of years that ends before it begins, {part!r}")
        high += size
    return [(n - field.low) % size + field.low for n in range(low, high + 1, step)], False


def _cycle(field: _Field) -> int:
    """Return what numbers are taken modulo of, so that a Sunday written as 7 becomes 0."""
    return 7 if field is _WEEKDAY else 10_000


def _number(field: _Field, token: str, part: str) -> int:
    """Return the number that a token of lower case stands for."""
    number = field.names.get(token)
    if number is None:
        if not token.isdigit():
            raise _not_understood(field, part)
        number = int(token)
        if not field.low <= number <= (field.most or field.high):
            raise ValueError(
                f"has a {field.name} out of range, {part!r}; it goes from {field.low} to {field.most or field.high}"
            )
    return number


def _day_mark(field: _Field, part: str, parts: int) -> list[str] | None:
    """Return what croniter is to read for `L`, `15W`, `FRI#2`, `L5`; None for a part that is none of them."""
    text = part.lower()
    if field is _DAY:
        if text == "l":
            return ["l"]
        if "w" in text and (nearest := _NEAREST.fullmatch(text)) and text.count("w") == 1:
            if parts > 1:
                raise ValueError(f"has {part!r} in a list of days; W stands alone")
            return [f"{_number(field, nearest[1], part)}w"]
        return None
    if last := _LAST.fullmatch(text):
        return [f"l{_number(field, last[1], part) % 7}"]
    days, mark, nth = text.partition("#")
    if not mark:
        return None
    if "*" in days or "/" in days or not nth.isdigit() or not 1 <= int(nth) <= 5:
        raise ValueError(f"has {part!r} for the day of week; write a day and its number, as FRI#1 to FRI#5")
    return [f"{day}#{int(nth)}" for day in _numbers(field, days)[0]]


def _refuse_mixed_days(day: str, weekday: str, day_written: str, weekday_written: str) -> None:
    special = "w" in day or "#" in weekday or "l" in weekday
    if special and day != "*" and weekday != "*":
        raise ValueError(
            f"restricts the day of month ({day_written!r}) and the day of week ({weekday_written!r}), which "
            "W, # and L with a number don't allow; write * for the other one, or make two schedules of it"
        )


def _not_understood(field: _Field, part: str) -> ValueError:
    if not part:
        return ValueError(f"has an empty part in the {field.name}; write a number between commas")
    if part[0] in "hHrR" and part.lower() not in field.names:
        return ValueError(f"has {part!r} for the {field.name}; H and R are not supported, write a number")
    use = f"numbers from {field.low} to {field.most or field.high}, *, a-b, a/b, */b and lists of these"
    if field.names:
        use += f", or the names {' '.join(field.names).upper()}"
    return ValueError(f"has {part!r} for the {field.name}, which is not understood; use {use}")
