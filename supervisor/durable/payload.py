"""JSON values: what goes into a history comes out of it equal, or is refused.

Allowed: None, bool, str, int of any size, finite float, list, tuple (it becomes a list), and dict
with str keys. Refused, naming the place: NaN and infinities, sets, bytes, dates, objects, other
keys, text that UTF-8 can't hold, and values that contain themselves.
"""

from __future__ import annotations

import json
from typing import Any, Final

from supervisor.durable.errors import PayloadTooLarge, SerializationError
from supervisor.kernel.text import shown

__all__ = ["LARGEST", "Json", "brief", "copied", "decode", "encode", "normal", "same"]

Json = Any
"""None, bool, int, float, str, list of these, or dict of str to these."""

LARGEST: Final = 1024 * 1024  # bytes of the JSON text of one event
_DEPTH: Final = 200  # nested lists and dicts; json itself gives up at about a thousand
_SCALARS: Final = frozenset({int, bool, type(None)})
_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_read = json.JSONDecoder().decode


def normal(value: object, path: str) -> Json:
    """Return a fresh copy of plain types that JSON holds exactly.

    path: names the value in errors. Raises SerializationError, which names the place.
    """
    return _normal(value, path, 0)


def _normal(value: Any, path: str, depth: int) -> Json:
    kind = type(value)
    if kind in _SCALARS:
        if kind is int and value.bit_length() > _BITS:
            raise SerializationError(path, f"must be an int of at most {_DIGITS} digits; send it as a str")
        return value
    if kind is str:
        return _text(value, path)
    if kind is float:
        if value - value != 0.0:
            raise SerializationError(path, f"must be a finite number, got {value!r}")
        return value
    if depth >= _DEPTH:
        raise SerializationError(
            path[:200], f"must not contain itself, or be nested deeper than {_DEPTH} levels"
        )
    if isinstance(value, dict):
        found: dict[str, Json] = {}
        for key, each in value.items():  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            if not isinstance(key, str):
                raise SerializationError(path, f"must have str keys, got the key {shown(key)}")
            name = _text(str.__str__(key), path)
            found[name] = _normal(each, f"{path}.{name}", depth + 1)
        return found
    if isinstance(value, list | tuple):
        return [_normal(each, f"{path}[{i}]", depth + 1) for i, each in enumerate(value)]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    # what is a kind of these is taken for what it is: members of a StrEnum, numbers of other libraries
    if isinstance(value, str):
        return _text(str.__str__(value), path)
    if isinstance(value, int):
        return _normal(int.__int__(value), path, depth)
    if isinstance(value, float):
        return _normal(float.__float__(value), path, depth)
    raise SerializationError(
        path,
        f"must be a JSON value (None, bool, int, float, str, list, dict), got {shown(value)} "
        f"of type {type(value).__name__}{_cure(value)}",
    )


_DIGITS: Final = 4000  # Python itself refuses to read more than 4300
_BITS: Final = 13287  # of a number with so many digits


def _text(value: str, path: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise SerializationError(path, f"must be text that UTF-8 can hold, got {value!r:.100}") from None
    return value


def _cure(value: object) -> str:
    if hasattr(value, "isoformat"):
        return "; send it as text, value.isoformat()"
    if isinstance(value, set | frozenset):
        return "; send it as a sorted list"
    if isinstance(value, bytes | bytearray):
        return "; send it as text"
    return ""


def copied(value: Json) -> Json:
    """Return a copy of a JSON value that shares nothing with it."""
    kind = type(value)
    if kind is dict:
        return {key: copied(each) for key, each in value.items()}
    if kind is list:
        return [copied(each) for each in value]
    return value


def same(one: Json, other: Json) -> bool:
    """Return whether two JSON values are the same text: `1`, `1.0` and `True` all differ."""
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is dict:
        return len(one) == len(other) and all(
            key in other and same(each, other[key]) for key, each in one.items()
        )
    if kind is list:
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def encode(value: Json, what: str) -> str:
    """Return the JSON text of a value of plain types.  what: names it if it is larger than `LARGEST`."""
    text = _write(value)
    if len(text) * 4 > LARGEST and (size := len(text.encode())) > LARGEST:
        raise PayloadTooLarge(what, size, LARGEST)
    return text


def decode(text: str | bytes) -> Json:
    """Return the value of a JSON text. Raises ValueError for anything else."""
    return _read(text if isinstance(text, str) else text.decode())


def brief(value: Json, limit: int = 300) -> str:
    """Return the JSON text of a value for an error message, with sorted keys, cut to `limit` characters."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text if len(text) <= limit else text[:limit] + "…"
