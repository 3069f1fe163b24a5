"""Events: values, their labels, and a fast way to make them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any, ClassVar, cast

from supervisor.kernel.text import shown

__all__ = ["Event", "EventsDropped", "SubscriberFailed", "labels", "maker"]

_PLAIN = frozenset({int, float, str, bool, type(None)})
_known: dict[str, type[Event]] = {}  # by label
_names: dict[type[Event], tuple[str, ...]] = {}  # of the fields, by class


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened."""

    kind: ClassVar[str] = "event"  # snake_case label of the class
    seq: int  # from 1, without gaps, in order of publication
    at: datetime  # UTC, aware

    def __init_subclass__(cls) -> None:
        name = cls.__name__.removesuffix("Event")
        cls.kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        _known[cls.kind] = cls

    def to_dict(self) -> dict[str, object]:
        """Return the event as JSON-ready values: its kind first, then every field."""
        cls = type(self)
        names = _names.get(cls) or _names.setdefault(cls, tuple(each.name for each in fields(self)))
        found: dict[str, object] = {"kind": cls.kind}
        for name in names:
            value = getattr(self, name)
            found[name] = value if type(value) in _PLAIN else _plain(value)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberFailed(Event):
    """A callback raised; it goes to the other subscribers."""

    subscriber: str  # name of the subscription
    error: str  # for people, never parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsDropped(Event):
    """Events were lost; it goes to the subscriber that lost them, or to all for the line itself."""

    subscriber: str  # name of the subscription, or "bus"
    dropped: int  # how many


def labels(kinds: Iterable[type[Event] | str] | type[Event] | str | None) -> frozenset[str] | None:
    """Return the labels that event classes (with all below them) and labels stand for.

    Raises ValueError for a label that no event has, TypeError for anything else. None stays None.
    """
    if kinds is None:
        return None
    wanted: Iterable[object] = (kinds,) if isinstance(kinds, str | type) else kinds
    found: set[str] = set()
    for kind in wanted:
        if isinstance(kind, type) and issubclass(kind, Event):
            found.update(label for label, cls in _known.items() if issubclass(cls, kind))
        elif not isinstance(kind, str):
            raise TypeError(f"kinds must be event classes or their labels, got {shown(kind)}")
        elif kind not in _known:
            raise ValueError(f"no event has the label {kind!r}; there are {', '.join(sorted(_known))}")
        else:
            found.add(kind)
    return frozenset(found)


def _plain(value: Any) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        return [_plain(each) for each in cast("tuple[object, ...]", value)]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return str(value) if isinstance(value, str) else value


_makers: dict[type[Event], Callable[..., Event]] = {}


def maker(cls: type[Event]) -> Callable[..., Event]:
    """Return a constructor that fills the slots of a frozen event, in the order of its fields.

    The generated `__init__` of a frozen dataclass goes through `object.__setattr__` for each
    field; writing to the slots costs less than half, and events are the busiest path there is.
    """
    make = _makers.get(cls)
    if make is None:
        names = [field.name for field in fields(cls)]
        scope: dict[str, Any] = {f"set_{name}": _slot(cls, name).__set__ for name in names}
        scope |= {"new": object.__new__, "cls": cls}
        lines = [f"def make({', '.join(names)}):", "    event = new(cls)"]
        lines += [f"    set_{name}(event, {name})" for name in names]
        exec("\n".join([*lines, "    return event"]), scope)
        make = _makers[cls] = cast("Callable[..., Event]", scope["make"])
    return make


def _slot(cls: type[Event], name: str) -> Any:
    return next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
