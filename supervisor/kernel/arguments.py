"""The one place that checks and converts arguments: durations, instants, counts, names, bodies.

Each function takes the value and the name of its field; TypeError and ValueError name the field and show
the value. A hint, where there is one, says what to write instead.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from supervisor.kernel.text import printable, shown

_INFINITY = float("inf")
_COROUTINE, _GENERATOR, _ASYNC_GENERATOR = 0x80 | 0x100, 0x20, 0x200  # co_flags
_INNER: dict[type, str] = {  # what a call of these ends up in, by the attribute that holds it
    functools.partial: "func",
    staticmethod: "__func__",
    type(functools.cache(int)): "__wrapped__",
}
_NOTHING: frozenset[str] = frozenset()
_VARARGS, _VARKEYWORDS = 0x04, 0x08  # co_flags
_SELF_DESCRIBED = frozenset({"__wrapped__", "__signature__"})  # a function with one of these needs inspect


def number(value: object, field: str) -> float:
    """Return an int or float as a float, NaN excepted; infinity when an int is too large for one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} must be a number, got {shown(value)}")
    try:
        result = float(value)
    except OverflowError:
        result = _INFINITY if value > 0 else -_INFINITY
    if result != result:
        raise ValueError(f"{field} must be a number, got {result!r}")
    return result


def seconds(value: object, field: str) -> float:
    """Return a finite duration >= 0 as float seconds.  value: seconds, or `timedelta`."""
    result = _duration(value, field)
    if result == _INFINITY:
        raise ValueError(f"{field} must be finite, got {shown(value)}")
    return result


def patience(value: object, field: str) -> float | None:
    """Return how long a call may wait: seconds, where 0 is "only look"; None and infinity are for ever."""
    if type(value) is float and 0.0 <= value < _INFINITY:
        return value
    if value is None:
        return None
    result = _duration(value, field)
    return None if result == _INFINITY else result


def duration(value: object, field: str) -> float:
    """Return a duration >= 0 as float seconds, infinity included.  value: seconds, or `timedelta`."""
    return value if type(value) is float and 0.0 <= value < _INFINITY else _duration(value, field)


def limit(value: object, field: str) -> float | None:
    """Return a configured limit in seconds; None, 0 and infinity mean that there is none."""
    return patience(value, field) or None


def count(value: object, field: str, minimum: int = 1, hint: str = "") -> int:
    """Return an int >= minimum."""
    result = whole(value, field)
    if result < minimum:
        raise ValueError(f"{field} must be >= {minimum}, got {shown(value)}{hint and '; ' + hint}")
    return result


def whole(value: object, field: str) -> int:
    """Return an int, whatever its size."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field} must be an int, got {shown(value)}")
    return int(value)


def count_or_none(value: object, field: str, minimum: int = 1, hint: str = "") -> int | None:
    """Return an int >= minimum, or None for no limit."""
    return None if value is None else count(value, field, minimum, hint)


def probability(value: object, field: str) -> float:
    """Return a number in [0, 1]."""
    result = number(value, field)
    if not 0.0 <= result <= 1.0:
        raise ValueError(f"{field} must be in [0, 1], got {shown(value)}")
    return result + 0.0


def text(value: object, field: str) -> str:
    """Return a non-empty str."""
    if not isinstance(value, str):
        raise TypeError(f"{field} must be a str, got {shown(value)}")
    if not value:
        raise ValueError(f"{field} must not be empty, got ''")
    return str.__str__(value)


def instant(value: object, field: str) -> datetime:
    """Return an aware datetime in UTC. A naive one is a ValueError: it names no instant."""
    if not isinstance(value, datetime):
        raise TypeError(f"{field} must be a datetime, got {shown(value)}")
    if value.utcoffset() is None:
        raise ValueError(
            f"{field} must be an aware datetime, got {shown(value)}; give it tzinfo=datetime.UTC"
        )
    try:
        utc = value.astimezone(UTC)
    except OverflowError:
        raise ValueError(
            f"{field} has no UTC time between the years 1 and 9999, got {shown(value)}"
        ) from None
    if type(utc) is datetime:
        return utc
    return datetime(utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second, utc.microsecond, UTC)


def _duration(value: object, field: str) -> float:
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field} must be seconds (a number or a timedelta), got {shown(value)}")
    else:
        result = number(value, field)
    if result < 0.0:
        raise ValueError(f"{field} must not be negative, got {shown(value)}")
    return result + 0.0  # turns -0.0 into 0.0


def positional(value: object, field: str) -> tuple[Any, ...]:
    """Return the positional arguments of a body as a tuple of their own."""
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Sequence):
        raise TypeError(
            f"{field} must be a tuple or another sequence, got {shown(value)}; one argument is (x,)"
        )
    return tuple(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def keywords(value: object, field: str) -> dict[str, Any]:
    """Return the keyword arguments of a body as a dict of their own."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{field} must be a mapping of names to values, got {shown(value)}")
    result: dict[Any, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType]
    for name in result:
        if not isinstance(name, str):
            raise TypeError(f"{field} must have str keys, got {shown(name)}")
    return result


def callable_name(body: object) -> str:
    """Return a printable name for any callable, such as `load`, `Jobs.sync` or `partial(load)`."""
    if isinstance(body, functools.partial):
        return f"partial({callable_name(body.func)})"  # pyright: ignore[reportUnknownMemberType]
    for attribute in ("__qualname__", "__name__"):
        try:
            name = getattr(body, attribute)
        except BaseException:
            continue
        if isinstance(name, str) and name:
            return printable(name.rpartition("<locals>.")[2])[:100]
    return printable(type.__dict__["__name__"].__get__(type(body)))[:100]


class Shape(NamedTuple):
    """The parameters of a callable, as far as a call can tell them apart."""

    names: tuple[str, ...]  # positional parameters, in order
    positional_only: int  # how many of them, from the first
    required: int  # how many of them, from the first, have no default
    keyword_only: frozenset[str]
    keyword_required: frozenset[str]
    any_positional: bool  # *args
    any_keyword: bool  # **kwargs

    def fits(self, given: int, keys: Mapping[str, object]) -> bool:
        """Return whether a call with `given` positional arguments and these keywords is accepted."""
        names, positional_only = self.names, self.positional_only
        if given > len(names) and not self.any_positional:
            return False
        for key in keys:
            if key in names and (index := names.index(key)) >= positional_only:
                if index < given:
                    return False
            elif key not in self.keyword_only and not self.any_keyword:
                return False
        for index in range(given, self.required):
            if index < positional_only or names[index] not in keys:
                return False
        return not self.keyword_required or self.keyword_required.issubset(keys)


def bind_body(
    task: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str
) -> bool:
    """Return whether the body takes the context, as the argument before `args`.

    It does when one required positional parameter is left after `args` and `kwargs` are bound. A body with
    none left, and one without a readable signature, is called without.  what: names the task in errors.
    Raises TypeError for what can't be called, what returns before it has run (coroutine and generator
    functions), and for arguments that don't fit.
    """
    if not callable(task):
        raise TypeError(f"{what}: the body must be callable, got {shown(task)}")
    _refuse_deferred(task, what)
    shape = fast_shape(task) or read_shape(task)
    if shape is None or shape.fits(len(args), kwargs):
        return False
    if shape.fits(len(args) + 1, kwargs):
        return True  # what the first call lacked was one required positional parameter
    raise TypeError(
        f"{what}: {callable_name(task)}({', '.join(shape.names)}) can't be called with {len(args)} positional "
        f"arguments and the keywords {sorted(kwargs)!r}, with or without the context before them; "
        "set args and kwargs so that they leave at most one required positional parameter"
    )


def arity(task: Callable[..., object], what: str) -> int:
    """Return how many positional arguments a callable requires; 0 without a readable signature.

    Raises TypeError like `bind_body` for what is called in vain.
    """
    _refuse_deferred(task, what)
    shape = fast_shape(task) or read_shape(task)
    return 0 if shape is None else shape.required


def fast_shape(task: object) -> Shape | None:
    """Return the shape of a plain function or bound method without `inspect`, None for anything else."""
    bound = type(task) is MethodType
    function = task.__func__ if isinstance(task, MethodType) else task
    if type(function) is not FunctionType:
        return None
    if function.__dict__ and not _SELF_DESCRIBED.isdisjoint(function.__dict__):
        return None
    code = function.__code__
    positionals, flags = code.co_argcount, code.co_flags
    if bound and not positionals:
        return None
    end = positionals + code.co_kwonlyargcount
    only = code.co_varnames[positionals:end]
    skip = 1 if bound else 0
    return Shape(
        code.co_varnames[skip:positionals],
        max(code.co_posonlyargcount - skip, 0),
        max(positionals - len(function.__defaults__ or ()) - skip, 0),
        frozenset(only) if only else _NOTHING,
        frozenset(only).difference(function.__kwdefaults__ or ()) if only else _NOTHING,
        bool(flags & _VARARGS),
        bool(flags & _VARKEYWORDS),
    )


def read_shape(task: Callable[..., object]) -> Shape | None:
    """Return the shape of any callable by `inspect`, None when it has no signature.

    A function that wraps another is read by its own parameters, which decide what a call may pass, unless
    it takes *args: then by those of the function it wraps.
    """
    import inspect

    for follow in (False, True):
        try:
            parameters = inspect.signature(task, follow_wrapped=follow).parameters.values()
        except Exception:
            continue
        if follow or not any(each.kind is each.VAR_POSITIONAL for each in parameters):
            break
    else:
        return None
    names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    only = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    return Shape(
        names,
        sum(p.kind is p.POSITIONAL_ONLY for p in parameters),
        sum(p.name in names and p.default is p.empty for p in parameters),
        frozenset(p.name for p in only),
        frozenset(p.name for p in only if p.default is p.empty),
        any(p.kind is p.VAR_POSITIONAL for p in parameters),
        any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def _refuse_deferred(task: Callable[..., object], what: str) -> None:
    """Refuse what a call only prepares: coroutine functions, generator functions and their like."""
    target: object = task
    while inner := _INNER.get(type(target)):
        target = getattr(target, inner)
    flags = _code_flags(target)
    if flags is None:
        kind: Any = type(target)
        flags = _code_flags(kind.__call__) or 0
    if flags & (_COROUTINE | _ASYNC_GENERATOR) or _marked_coroutine(target):
        raise TypeError(
            f"{what}: {callable_name(task)} is a coroutine function and would never run in a thread; "
            "call asyncio.run inside a plain function"
        )
    if flags & _GENERATOR:
        raise TypeError(
            f"{what}: {callable_name(task)} is a generator function, and calling it runs nothing; "
            "loop over it inside a plain function"
        )


def _code_flags(target: object) -> int | None:
    function = target.__func__ if isinstance(target, MethodType) else target
    return function.__code__.co_flags if isinstance(function, FunctionType) else None


def _marked_coroutine(target: object) -> bool:
    """Return whether `asyncio` or `inspect` was told that this callable makes coroutines (AsyncMock is)."""
    if type(target) is FunctionType and not target.__dict__:
        return False
    for module, attribute in (("asyncio.coroutines", "_is_coroutine"), ("inspect", "_is_coroutine_mark")):
        mark = getattr(sys.modules.get(module), attribute, None)
        try:
            if mark is not None and getattr(target, attribute, None) is mark:
                return True
        except Exception:  # from the callable's own __getattr__
            continue
    return False
