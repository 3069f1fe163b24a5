"""Instants and lengths of time for people, from a microsecond to years. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from supervisor.cli.words import duration

__all__ = ["absolute", "relative", "span", "ticks"]

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_STEPS = (
    *(digit * 10.0**power for power in range(-6, 0) for digit in (1, 2, 5)),
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(_MINUTE * each for each in (1, 2, 5, 10, 15, 30)),
    *(_HOUR * each for each in (1, 2, 3, 6, 12)),
    *(_DAY * each for each in (1, 2, 7, 14)),
    *(_DAY * digit * 10.0**power for power in range(1, 8) for digit in (3, 5, 10)),
)
_UNITS = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (1.0, "s"), (0.001, "ms"), (0.0, "us"))


def span(seconds: float) -> str:
    """Return a length of time: `12 us`, `4.2 ms`, `0.31 s`, `75 s`, `12 min 5 s`, `5 h 12 min`, `16 d 4 h`."""
    if seconds < 0.00095:
        return f"{seconds * 1e6:.0f} us" if seconds > 0.0 else "0 s"
    if seconds < 0.00995:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 99.5:
        return duration(seconds)
    if seconds < _HOUR - 0.5:
        return _two(round(seconds), 60, "min", "s")
    if seconds < 2 * _DAY - 30:
        return _two(round(seconds / _MINUTE), 60, "h", "min")
    return _two(round(seconds / _HOUR), 24, "d", "h")


def _two(number: int, parts: int, large: str, small: str) -> str:
    whole, rest = divmod(number, parts)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"


def relative(instant: datetime, now: datetime) -> str:
    """Return when an instant is, seen from another: `5 s ago`, `in 3 h`, `now`; one unit, whole numbers."""
    seconds = (instant - now).total_seconds()
    passed = abs(seconds)
    if round(passed) == 0:
        return "now"
    text = f"{passed:.0f} s"
    for unit, name, least in ((_DAY, "d", 2 * _DAY), (_HOUR, "h", 2 * _HOUR), (_MINUTE, "min", 2 * _MINUTE)):
        if passed >= least:
            text = f"{passed // unit:.0f} {name}"
            break
    return f"in {text}" if seconds > 0.0 else f"{text} ago"


def absolute(instant: datetime, *, fine: bool = False) -> str:
    """Return an instant in UTC: `2026-01-31 12:00:00Z`.  fine: with milliseconds."""
    return (
        instant.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "milliseconds" if fine else "seconds")
        + "Z"
    )


def ticks(seconds: float, most: int) -> Iterator[tuple[float, str]]:
    """Yield round times from 0 on, with their texts, at most `most` + 1 of them, not beyond `seconds`."""
    step = next((each for each in _STEPS if seconds / each <= most), seconds / most)
    size, unit = next(each for each in _UNITS if step >= each[0] * 0.999)
    for number in range(int(seconds / step + 1e-9) + 1):
        value = number * step / (size or 1e-6)
        yield number * step, f"{value:.6g} {unit}" if number else "0"
