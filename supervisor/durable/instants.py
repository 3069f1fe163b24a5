"""Instants as text: UTC with six digits, so that the order of the texts is the order in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from supervisor.durable.errors import InvalidTransition
from supervisor.kernel.text import shown

__all__ = ["read_instant", "shifted", "written"]


def written(instant: datetime) -> str:
    """Return the text of an aware instant in UTC, such as `2026-01-31T12:00:00.000000Z`."""
    return instant.isoformat(timespec="microseconds").replace("+00:00", "Z")


def read_instant(text: object) -> datetime:
    """Return the instant of a text in ISO 8601 with an offset. Raises ValueError for anything else."""
    if not isinstance(text, str):
        raise ValueError(f"an instant must be text, got {shown(text)}")
    found = datetime.fromisoformat(text)
    if found.tzinfo is UTC:
        return found
    if found.tzinfo is None:
        raise ValueError(f"an instant must have an offset, got {shown(text)}")
    try:
        return found.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"an instant must be in the years 1 to 9999 of UTC, got {shown(text)}") from None


def shifted(instant: datetime, milliseconds: int, whose: str) -> datetime:
    """Return the instant so many milliseconds later.  whose: the delay is, for the error.

    Raises InvalidTransition if no UTC datetime can hold it.
    """
    try:
        return instant + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise InvalidTransition(
            f"{whose} has a delay of {milliseconds} ms, which can't be represented as a UTC instant; choose a shorter one"
        ) from None
