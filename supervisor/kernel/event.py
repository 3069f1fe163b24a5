"""Events: values, their labels, and a fast way to make them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import FrozenInstanceError, dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

from supervisor.kernel.text import shown

__all__ = ["Event", "EventsDropped", "SubscriberFailed", "event", "labels", "maker"]

_PLAIN = frozenset({int, float, str, bool, type(None)})
_known: dict[str, type[Event]] = {}  # by label
_names: dict[type[Event], tuple[str, ...]] = {}  # of the fields, by class
C = TypeVar("C")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def event(cls: type[C]) -> type[C]:
    """Make an event class: a frozen, slotted dataclass with keyword-only fields and no defaults.

    As `@dataclass` would, in a tenth of the time: that compiles six methods for each class, which for
    the twenty events was a third of `import supervisor`. Here they are inherited from `Event`.
    """
    frozen: list[Any] = [vars(base)["__dataclass_params__"] for base in cls.__mro__[1:-1]]
    for params in frozen:
        params.frozen = False  # else a subclass must be frozen too, and compiles what it inherits
    made: type[C] = dataclass(init=False, repr=False, eq=False, slots=True, kw_only=True)(cls)
    for params in [*frozen, vars(made)["__dataclass_params__"]]:
        params.frozen = True
    return made


@event
class Event:
    """Something that happened."""

    kind: ClassVar[str] = "event"  # snake_case label of the class
    seq: int  # from 1, without gaps, in order of publication
    at: datetime  # UTC, aware

    def __init_subclass__(cls) -> None:
        name = cls.__name__.removesuffix("Event")
        cls.kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        _known[cls.kind] = cls

    def __init__(self, **values: Any) -> None:
        """Take a value for each field."""
        names = _names_of(type(self))
        if values.keys() != set(names):
            cls = type(self).__name__
            raise TypeError(f"{cls} takes the fields {', '.join(names)}; got {', '.join(values) or 'none'}")
        for name in names:
            object.__setattr__(self, name, values[name])

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in _names_of(type(self)))
        return f"{type(self).__qualname__}({values})"

    def __eq__(self, other: object) -> bool:
        return _values(self) == _values(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(_values(self))

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), _values(self))

    def to_dict(self) -> dict[str, object]:
        """Return the event as JSON-ready values: its kind first, then every field."""
        cls = type(self)
        found: dict[str, object] = {"kind": cls.kind}
        for name in _names_of(cls):
            value = getattr(self, name)
            found[name] = value if type(value) in _PLAIN else _plain(value)
        return found


@event
class SubscriberFailed(Event):
    """A callback raised; it goes to the other subscribers."""

    subscriber: str  # name of the subscription
    error: str  # for people, never parsed


@event
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
    if not isinstance(wanted, Iterable):
        raise TypeError(f"kinds must be event classes or their labels, got {shown(kinds)}")
    found: set[str] = set()
    above = {base for cls in _known.values() for base in cls.__mro__[1:]}
    concrete = {label: cls for label, cls in _known.items() if cls not in above}
    for kind in wanted:
        if isinstance(kind, type) and issubclass(kind, Event):
            found.update(label for label, cls in concrete.items() if issubclass(cls, kind))
        elif not isinstance(kind, str):
            raise TypeError(f"kinds must be event classes or their labels, got {shown(kind)}")
        elif kind not in concrete:
            raise ValueError(f"no event has the label {kind!r}; there are {', '.join(sorted(concrete))}")
        else:
            found.add(kind)
    return frozenset(found)


def _names_of(cls: type[Event]) -> tuple[str, ...]:
    return _names.get(cls) or _names.setdefault(cls, tuple(each.name for each in fields(cls)))


def _values(each: Event) -> tuple[object, ...]:
    return tuple(getattr(each, name) for name in _names_of(type(each)))


def _again(cls: type[Event], values: tuple[object, ...]) -> Event:
    """Make an event that was pickled or copied."""
    return maker(cls)(*values[:2], values[2:])


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
    """Return `make(seq, at, rest)`, which fills the slots of a frozen event; rest: its other fields in order.

    The generated `__init__` of a frozen dataclass goes through `object.__setattr__` for each
    field; writing to the slots costs less than half, and events are the busiest path there is.
    """
    make = _makers.get(cls)
    if make is None:
        names = _names_of(cls)
        scope: dict[str, Any] = {f"set_{name}": _slot(cls, name).__set__ for name in names}
        scope |= {"new": object.__new__, "cls": cls}
        lines = ["def make(seq, at, rest):", "    event = new(cls)"]
        if rest := names[2:]:
            lines.append(f"    {', '.join(rest)}, = rest")
        lines += [f"    set_{name}(event, {name})" for name in names]
        exec("\n".join([*lines, "    return event"]), scope)
        make = _makers[cls] = cast("Callable[..., Event]", scope["make"])
    return make


def _slot(cls: type[Event], name: str) -> Any:
    return next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
