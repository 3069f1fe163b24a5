"""The JSON form of events: how they are written, read and checked.

A form follows from the fields of its class. Which classes there are is said by `history`, which stands above.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from supervisor.durable.errors import SerializationError
from supervisor.durable.instants import written
from supervisor.durable.payload import Json, encode, normal
from supervisor.durable.retry import RetryPolicy
from supervisor.kernel.text import shown

if TYPE_CHECKING:
    from supervisor.durable.history import FlowEvent

__all__ = ["LONGEST_NAME", "Forms", "check_size"]

LONGEST_NAME = 500  # characters of an id or a name: what the index of any database holds
_FEW_DIGITS = 2**63  # ints below need no look at their length
_SURELY_FITS = 1000  # characters; a text that can't be near the limit
_LEFT_OUT = {"reason", "retry_after"}  # when None


class Forms:
    """The forms of all events that a history may hold, one for each class."""

    def __init__(self, base: type[FlowEvent], classes: Iterable[type[FlowEvent]]) -> None:
        self._base = base
        self._shapes: dict[type[FlowEvent], _Shape] = {each: _Shape(each) for each in classes}
        self._labels: dict[str, _Shape] = {each.label: each for each in self._shapes.values()}

    def write(self, event: FlowEvent) -> dict[str, Any]:
        """Return the JSON form of an event as it is: `type` first, then the fields in order."""
        shape = self._shapes[type(event)]
        found: dict[str, Any] = {"type": shape.label}
        for name, convert in shape.writers:
            value = getattr(event, name)
            if convert is not None and value is not None:
                value = convert(value)
            if value is not None or name in shape.required:
                found[name] = value
        return found

    def read(self, data: Mapping[str, Any]) -> FlowEvent:
        """Return the event of a JSON form. Raises SerializationError for what is none."""
        given: object = data
        if type(given) is not dict and not isinstance(given, Mapping):
            raise SerializationError("event", f"must be an object, got {shown(data)}")
        values = dict(data)
        label = values.pop("type", None)
        shape = self._labels.get(label) if isinstance(label, str) else None
        if shape is None:
            raise SerializationError(
                "event", f"has the unknown type {shown(label)}; known: {', '.join(self._labels)}"
            )
        if not shape.required <= values.keys():
            missing = ", ".join(sorted(shape.required - values.keys()))
            raise SerializationError("event", f"is no {label}: it lacks {missing}")
        for name, check, wanted in shape.checks:
            if name in values and not check(values[name]):
                raise _unlike(shape, name, wanted, values[name])
        try:
            return shape.cls(**values)
        except (TypeError, ValueError) as error:
            raise SerializationError("event", f"is no {label}: {error}") from None

    def check(self, event: object) -> tuple[FlowEvent, dict[str, Any]]:
        """Return the event with every value checked and made plain, and its JSON form.

        They share their values, so write the form and let it go.
        Raises TypeError for what is no event, SerializationError for values that JSON can't hold.
        """
        if not isinstance(event, self._base) or type(event) not in self._shapes:
            raise TypeError(f"events must be events of a history, such as RunStarted(), got {shown(event)}")
        shape = self._shapes[type(event)]
        form: dict[str, Any] = {"type": shape.label}
        copied = False
        for name, convert, optional, check, wanted in shape.plan:
            value = getattr(event, name)
            if value is None:
                if optional:
                    continue
            elif convert is not None:
                value = convert(value)
            else:
                kind = type(value)  # pyright: ignore[reportUnknownVariableType]
                if not (
                    (kind is str and value.isascii()) or (kind is int and -_FEW_DIGITS < value < _FEW_DIGITS)
                ):
                    value = normal(value, f"{shape.label}.{name}")
                    copied = copied or kind is not int
            if check is not None and not check(value):
                raise _unlike(shape, name, wanted, value)
            form[name] = value
        if not copied:
            return event, form  # it is frozen, and so is all that it holds
        values = {name: form.get(name) for name in shape.names}
        for name in shape.converted:
            values[name] = getattr(event, name)
        return shape.cls(**values), form


def check_size(event: FlowEvent, value: Json, what: str) -> None:
    """Raise PayloadTooLarge if an event is too large for any store because of a value in it.

    what: names the value. Asked before the event stands among others in one append, which would all be refused.
    """
    if type(value) in (dict, list) or (type(value) is str and len(value) > _SURELY_FITS):
        encode(event.to_dict(), what)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME and "\0" not in value


def _is_attempt(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**32


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_spec(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_name(value.get(each)) for each in ("name", "version"))  # pyright: ignore[reportUnknownMemberType]


def _is_signal(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_name(value.get(each)) for each in ("signal_id", "name"))  # pyright: ignore[reportUnknownMemberType]


def _is_request(value: Any) -> bool:
    return isinstance(value, dict) and _is_text_or_none(value.get("reason"))  # pyright: ignore[reportUnknownMemberType]


_Check = tuple[Callable[[Any], bool], str]
"""What a field must be, as a test and in words."""

_NAME: _Check = _is_name, f"text of at most {LONGEST_NAME} characters without NUL"
# Whatever is not named here is any JSON value, or is checked by its own class: instants.
_CHECKS: dict[str, _Check] = {
    "attempt": (_is_attempt, "a number from 0 to 4294967295"),
    "error": (_is_text, "text"),
    "reason": (_is_text, "text"),
    "request": (_is_request, "an object whose reason, if it has one, is text"),
    "retry": (_is_object, "an object"),
    "signal": (_is_signal, f"an object with signal_id and name, each {_NAME[1]}"),
    "signal_id": _NAME,
    "signal_name": _NAME,
    "spec": (_is_spec, f"an object with name and version, each {_NAME[1]}"),
    "step_id": _NAME,
    "step_name": _NAME,
    "wait_id": _NAME,
}
_WRITERS: dict[str, Callable[[Any], Any]] = {
    "retry": RetryPolicy.to_dict,
    "retry_after": written,
    "resume_at": written,
}


_Field = tuple[str, Callable[[Any], Any] | None, bool, Callable[[Any], bool] | None, str]
"""Its name, how it is written, whether it is left out when None, and what it must be, as a test and in words."""


class _Shape:
    """How the events of one class are written and read."""

    __slots__ = ("checks", "cls", "converted", "label", "names", "plan", "required", "writers")

    def __init__(self, cls: type[FlowEvent]) -> None:
        names = tuple(each.name for each in fields(cls))
        optional = {each.name for each in fields(cls) if each.default is None and each.name in _LEFT_OUT}
        self.cls = cls
        self.label: str = cls.type
        self.names = names
        self.converted = tuple(name for name in names if name in _WRITERS)  # checked when they are made
        self.required = frozenset(names) - optional
        self.writers = tuple((name, _WRITERS.get(name)) for name in names)
        self.checks: list[tuple[str, Callable[[Any], bool], str]] = []
        for name in names:
            if name in _CHECKS:
                check, wanted = (_is_text_or_none, "text") if name in optional else _CHECKS[name]
                self.checks.append((name, check, wanted))
        tests = {name: (check, wanted) for name, check, wanted in self.checks}
        self.plan: list[_Field] = []
        for name, convert in self.writers:
            test, wanted = tests.get(name, (None, ""))
            self.plan.append((name, convert, name in optional, test, wanted))


def _unlike(shape: _Shape, name: str, wanted: str, value: object) -> SerializationError:
    return SerializationError(f"{shape.label}.{name}", f"must be {wanted}, got {shown(value)}")
