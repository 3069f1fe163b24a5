"""Instants as text: UTC with six digits, so that the order of the texts is the order in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from supervisor.durable.errors import InvalidTransition

__all__ = ["read_instant", "shifted", "written"]


def written(instant: datetime) -> str:
    """Return the text of an aware instant in UTC, such as `2026-01-31T12:00:00.000000Z`."""
    return instant.isoformat(timespec="microseconds").replace("+00:00", "Z")


def read_instant(text: object) -> datetime:
    """Return the instant of a text. Raises ValueError for any other form, naive times included."""
    if not isinstance(text, str):
        raise ValueError(f"an instant must be text, got {text!r}")
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"an instant must have an offset, got {text!r}")
    return found.astimezone(UTC)


def shifted(instant: datetime, milliseconds: int) -> datetime:
    """Return the instant so many milliseconds later.

    Raises InvalidTransition if no UTC datetime can hold it.
    """
    try:
        return instant + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise InvalidTransition(
            f"a delay of {milliseconds} ms can't be represented as a UTC instant; choose a shorter one"
        ) from None
