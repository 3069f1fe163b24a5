"""JSON values: what goes into a history comes out of it equal, or is refused.

Allowed: None, bool, str, int of any size, finite float, list, tuple (it becomes a list), and dict
with str keys. Refused, naming the place: NaN and infinities, sets, bytes, dates, objects, other
keys, text that UTF-8 can't hold, and values that contain themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from supervisor.durable.errors import PayloadTooLarge, SerializationError
from supervisor.kernel.text import shown

__all__ = ["LARGEST", "Json", "brief", "copied", "decode", "encode", "normal", "same"]

Json = Any
"""None, bool, int, float, str, list of these, or dict of str to these."""

LARGEST: Final = 1024 * 1024  # bytes of the JSON text of one event
_DEPTH: Final = 200  # nested lists and dicts; json itself gives up at about a thousand
_VALUES: Final = LARGEST // 2  # in one value: each takes two bytes at least, its comma included
_DIGITS: Final = 4000  # Python itself refuses to read more than 4300
_BITS: Final = 13287  # of a number with so many digits
_SMALL: Final = 2**63  # ints below need no look at their length
_KEY: Final = 100  # characters of one key in a path
_kind: Callable[[Any], object] = type  # for type checkers: the type of Any would be unknown
_AS_IS: Final[frozenset[object]] = frozenset({bool, type(None)})


def normal(value: object, path: str) -> Json:
    """Return a fresh copy of plain types that JSON holds exactly.

    path: names the value in errors. Raises SerializationError, which names the place, and PayloadTooLarge
    for more values than any text of at most `LARGEST` bytes has: one list in many places counts each time.
    """
    return _normal(value, path, 0, [_VALUES])


def _normal(value: Any, path: str, depth: int, room: list[int]) -> Json:
    kind = _kind(value)
    if kind is str:
        return _text(value, path)
    if kind in _AS_IS:
        return value
    if kind is int:
        if value.bit_length() > _BITS:
            raise SerializationError(path, f"must be an int of at most {_DIGITS} digits; send it as a str")
        return value
    if kind is float:
        if value - value != 0.0:
            raise SerializationError(path, f"must be a finite number, got {value!r}")
        return value
    # in dicts and lists, most values are short cuts: no call, and no path that nobody reads
    if isinstance(value, dict):
        members: dict[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        _enter(len(members), path, depth, room)
        found: dict[str, Json] = {}
        for key, each in members.items():
            name: str = key if type(key) is str and key.isascii() else _key(key, path)
            kind = _kind(each)
            if (
                (kind is str and each.isascii())
                or (kind is int and -_SMALL < each < _SMALL)
                or (kind is float and each - each == 0.0)
                or kind in _AS_IS
            ):
                found[name] = each
            else:
                place = f"{path}.{name if len(name) <= _KEY else name[:_KEY] + '…'}"
                found[name] = _normal(each, place, depth + 1, room)
        if len(found) != len(members):  # str subclasses may differ and have the same text
            raise SerializationError(path, f"must not have two keys with the same text, got {shown(members)}")
        return found
    if isinstance(value, list | tuple):
        items: list[Any] | tuple[Any, ...] = value  # pyright: ignore[reportUnknownVariableType]
        _enter(len(items), path, depth, room)
        copy: list[Json] = []
        for each in items:
            kind = _kind(each)
            if (
                (kind is str and each.isascii())
                or (kind is int and -_SMALL < each < _SMALL)
                or (kind is float and each - each == 0.0)
                or kind in _AS_IS
            ):
                copy.append(each)
            else:
                copy.append(_normal(each, f"{path}[{len(copy)}]", depth + 1, room))
        return copy
    # what is a kind of these is taken for what it is: members of a StrEnum, numbers of other libraries
    if isinstance(value, str):
        return _text(str.__str__(value), path)
    if isinstance(value, int):
        return _normal(int.__int__(value), path, depth, room)
    if isinstance(value, float):
        return _normal(float.__float__(value), path, depth, room)
    raise SerializationError(
        path,
        f"must be a JSON value (None, bool, int, float, str, list, dict), got {shown(value)} "
        f"of type {type(value).__name__}{_cure(value)}",
    )


def _enter(size: int, path: str, depth: int, room: list[int]) -> None:
    """Count the values of a list or dict, and refuse what never ends."""
    if depth >= _DEPTH:
        raise SerializationError(
            path[:200], f"must not contain itself, or be nested deeper than {_DEPTH} levels"
        )
    room[0] -= size
    if room[0] < 0:
        raise PayloadTooLarge(path[:200], 2 * (_VALUES - room[0]) + 1, LARGEST)


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise SerializationError(path, f"must have str keys, got the key {shown(key)}")
    return _text(str.__str__(key), path)


def _text(value: str, path: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise SerializationError(path, f"must be text that UTF-8 can hold, got {shown(value)}") from None
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
    kind = _kind(value)
    if kind is dict:
        return {key: copied(each) for key, each in value.items()}
    if kind is list:
        return [copied(each) for each in value]
    return value


def same(one: Json, other: Json) -> bool:
    """Return whether two JSON values are the same text, the order of keys aside.

    So `1`, `1.0` and `True` all differ, and `0.0` and `-0.0` do.
    """
    kind = _kind(one)
    if kind is not type(other):
        return False
    if kind is str or kind is int:
        return bool(one == other)
    if kind is dict:
        return len(one) == len(other) and all(
            key in other and same(each, other[key]) for key, each in one.items()
        )
    if kind is list:
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


def encode(value: Json, what: str) -> str:
    """Return the JSON text of a value of plain types.  what: names it if it is larger than `LARGEST`."""
    text = _write(value)
    if len(text) * 4 > LARGEST and (size := len(text.encode())) > LARGEST:
        raise PayloadTooLarge(what, size, LARGEST)
    return text


def decode(text: str | bytes) -> Json:
    """Return the value of a JSON text. Raises ValueError for anything else, and for what `normal` refuses."""
    if not isinstance(text, str):
        text = text.decode()
    value, end = None, -1
    try:
        value, end = _scan(text, 0)
    except StopIteration:  # nothing, or blank space before it
        pass
    if end != len(text):  # blank space, or what is no JSON
        value = _read(text)
    if "\\ud" in text or "\\uD" in text:  # half a character, perhaps; we write none of these
        _write(value).encode()
    return value


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0.0:
        raise ValueError(f"a number too large for a float: {text}")
    return value


def _no_number(text: str) -> Json:
    raise ValueError(f"no JSON: {text}")


def _writer() -> Callable[[Json], str]:
    plain = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
    try:
        # `plain` makes one of these for each call, which takes longer than to write a small event
        encoder: Any = json.encoder
        chunks: Callable[[Json, int], Iterable[str]] = encoder.c_make_encoder(
            None, _refuse, encoder.encode_basestring, None, ":", ",", False, False, False
        )
        if "".join(chunks({"a": [1.5, None, "é"]}, 0)) == '{"a":[1.5,null,"é"]}':
            return lambda value: "".join(chunks(value, 0))
    except (AttributeError, TypeError):  # another Python
        pass
    return plain


def _refuse(value: object) -> Json:
    raise TypeError(f"no JSON value: {shown(value)}")


_write = _writer()
_decoder: Any = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)
_read: Callable[[str], Json] = _decoder.decode
_scan: Callable[[str, int], tuple[Json, int]] = _decoder.scan_once  # the same without looking for blank space


def brief(value: Json, limit: int = 300) -> str:
    """Return the JSON text of a value for an error message, with sorted keys, cut to `limit` characters."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text if len(text) <= limit else text[:limit] + "…"
