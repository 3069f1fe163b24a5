"""Arguments are checked in one place: what is accepted, what is refused, and who gets the context."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
from collections import UserDict, deque
from collections.abc import Callable
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from types import MethodType
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.kernel import arguments
from supervisor.kernel.arguments import bind_body, callable_name, fast_shape, read_shape

DURATIONS: list[Callable[[object, str], float | None]] = [
    arguments.seconds,
    arguments.patience,
    arguments.limit,
]

# --- durations


@pytest.mark.parametrize("check", DURATIONS)
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2, 2.0),
        (0.25, 0.25),
        (timedelta(milliseconds=1500), 1.5),
        (timedelta(days=1), 86400.0),
        (1e300, 1e300),
    ],
)
def test_a_duration_is_given_in_seconds_or_as_timedelta(check, value: object, expected: float) -> None:
    result = check(value, "grace")
    assert (result, type(result)) == (expected, float)


@pytest.mark.parametrize("check", DURATIONS)
@pytest.mark.parametrize("value", [True, False, "1", b"1", Decimal(1), 1j, [1], object])
def test_a_duration_of_another_type_is_refused(check, value: object) -> None:
    with pytest.raises(TypeError, match=r"^grace must be seconds"):
        check(value, "grace")


@pytest.mark.parametrize("check", DURATIONS)
@pytest.mark.parametrize("value", [-1, -1e-9, -math.inf, math.nan, timedelta(microseconds=-1), -(10**400)])
def test_a_duration_that_is_negative_or_nan_is_refused(check, value: object) -> None:
    with pytest.raises(ValueError, match=r"^grace must"):
        check(value, "grace")


def test_the_three_durations_differ_in_none_zero_and_infinity() -> None:
    for value in (math.inf, 10**400):
        assert arguments.patience(value, "timeout") is None
        assert arguments.limit(value, "timeout") is None
        with pytest.raises(ValueError, match="every must be finite"):
            arguments.seconds(value, "every")
    assert [arguments.patience(value, "timeout") for value in (None, 0, timedelta())] == [None, 0.0, 0.0]
    assert [arguments.limit(value, "timeout") for value in (None, 0, 0.0, timedelta())] == [None] * 4
    with pytest.raises(TypeError, match=r"every must be seconds.*got None"):
        arguments.seconds(None, "every")


@pytest.mark.parametrize("check", [arguments.seconds, arguments.patience, arguments.probability])
def test_minus_zero_becomes_zero(check) -> None:
    assert math.copysign(1.0, check(-0.0, "x")) in (1.0, -1.0)
    assert math.copysign(1.0, arguments.seconds(-0.0, "x")) == 1.0


# --- numbers, names, instants


@pytest.mark.parametrize("value", [0, 1, 0.5, 1.0])
def test_a_probability_is_a_number_from_zero_to_one(value: float) -> None:
    assert arguments.probability(value, "p") == float(value)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, 2, 10**400])
def test_a_probability_outside_zero_to_one_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"^p must be"):
        arguments.probability(value, "p")


def test_a_count_is_an_int_of_at_least_its_minimum() -> None:
    assert (arguments.count(1, "n"), arguments.count(0, "n", 0), arguments.count_or_none(None, "n")) == (
        1,
        0,
        None,
    )
    with pytest.raises(ValueError, match=r"^max_retries must be >= 1, got 0; use TaskSpec\.once$"):
        arguments.count_or_none(0, "max_retries", hint="use TaskSpec.once")
    with pytest.raises(ValueError, match=r"^n must be >= 5, got 4$"):
        arguments.count(4, "n", 5)


@pytest.mark.parametrize("value", [True, False, 1.0, "1", math.nan])
def test_a_count_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"^n must be an int, got"):
        arguments.count(value, "n")
    with pytest.raises(TypeError, match=r"^n must be an int, got"):
        arguments.count_or_none(value, "n")


def test_a_text_is_a_str_that_is_not_empty() -> None:
    assert arguments.text("orders", "name") == "orders"
    with pytest.raises(ValueError, match=r"^name must not be empty, got ''$"):
        arguments.text("", "name")
    for value in (None, b"orders", 3):
        with pytest.raises(TypeError, match=r"^name must be a str, got"):
            arguments.text(value, "name")


def test_a_subclass_of_str_becomes_a_plain_str() -> None:
    class Loud(str):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    assert type(arguments.text(Loud("orders"), "name")) is str


def test_an_instant_is_converted_to_utc() -> None:
    noon = datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert arguments.instant(noon, "at") == datetime(2024, 5, 1, 10, tzinfo=UTC)
    assert arguments.instant(noon, "at").tzinfo is UTC


def test_an_instant_of_a_subclass_becomes_a_plain_datetime() -> None:
    class Stamp(datetime):
        pass

    result = arguments.instant(Stamp(2024, 5, 1, 12, 30, 1, 7, tzinfo=UTC), "at")
    assert (type(result), result) == (datetime, datetime(2024, 5, 1, 12, 30, 1, 7, tzinfo=UTC))


def test_a_naive_datetime_is_no_instant() -> None:
    with pytest.raises(ValueError, match=r"^at must be an aware datetime, got datetime"):
        arguments.instant(datetime(2024, 5, 1), "at")
    with pytest.raises(TypeError, match=r"^at must be a datetime, got '2024"):
        arguments.instant("2024-05-01", "at")
    with pytest.raises(ValueError, match=r"^at has no UTC time"):
        arguments.instant(datetime.min.replace(tzinfo=timezone(timedelta(hours=2))), "at")


def test_args_are_a_sequence_but_no_text() -> None:
    given = [1, 2]
    result = arguments.positional(given, "args")
    given.append(3)
    assert result == (1, 2)
    assert arguments.positional((), "args") == ()
    assert arguments.positional(deque([1]), "args") == (1,)
    for value in ("abc", b"abc", {1}, {1: 2}, 7, None, iter([1])):
        with pytest.raises(TypeError, match=r"^args must be a tuple"):
            arguments.positional(value, "args")


def test_kwargs_are_a_mapping_with_str_keys() -> None:
    assert arguments.keywords({"a": 1}, "kwargs") == {"a": 1}
    assert arguments.keywords(UserDict(a=1), "kwargs") == {"a": 1}
    for value in ([("a", 1)], None, "a"):
        with pytest.raises(TypeError, match=r"^kwargs must be a mapping"):
            arguments.keywords(value, "kwargs")
    with pytest.raises(TypeError, match=r"^kwargs must have str keys, got 1$"):
        arguments.keywords({1: 2}, "kwargs")


def test_a_value_with_a_broken_repr_still_gives_the_right_error() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise KeyboardInterrupt

    for check in (
        arguments.seconds,
        arguments.count,
        arguments.text,
        arguments.instant,
        arguments.positional,
    ):
        with pytest.raises(TypeError, match=r"x must .*<Broken whose repr fails>"):
            check(Broken(), "x")


# --- who gets the context


class Job:
    """A body of every kind; `self` is bound in all of them."""

    def __init__(self, ctx: object = None) -> None:
        pass

    def __call__(self, ctx: object) -> None:
        pass

    def none(self) -> None:
        pass

    def one(self, ctx: object) -> None:
        pass

    def any(*args: object) -> None:
        pass

    @classmethod
    def of_class(cls, ctx: object) -> None:
        pass

    @staticmethod
    def static(ctx: object) -> None:
        pass

    @functools.cache  # noqa: B019
    def cached(self, ctx: object) -> None:
        pass


class NeedsContext:
    def __init__(self, ctx: object) -> None:
        pass


def with_ctx(ctx: object) -> None:
    pass


def passes_on(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


def adds_a_database(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(ctx: object) -> Any:
        return function(ctx, "db")

    return inner


@pytest.mark.parametrize(
    ("body", "args", "kwargs", "takes"),
    [
        (lambda: None, (), {}, False),
        (lambda ctx: None, (), {}, True),
        (lambda ctx=None: None, (), {}, False),
        (lambda *args: None, (), {}, False),
        (lambda ctx, *args: None, (), {}, True),
        (lambda ctx, *args: None, (1, 2), {}, False),
        (lambda ctx, /: None, (), {}, True),
        (lambda ctx, n=3: None, (), {}, True),
        (lambda ctx, n=3: None, (5,), {}, False),
        (lambda ctx, n: None, (5,), {}, True),
        (lambda ctx, n: None, (), {"n": 5}, True),
        (lambda ctx, a, b: None, (1,), {"b": 2}, True),
        (lambda ctx, *, n: None, (), {"n": 5}, True),
        (lambda *, n: None, (), {"n": 5}, False),
        (lambda **kwargs: None, (), {"n": 5}, False),
        (lambda ctx, /, **kwargs: None, (), {"ctx": 5}, True),
        (lambda n=1, /, **kwargs: None, (), {"n": 5}, False),
        (with_ctx, (), {}, True),
        (with_ctx, (1,), {}, False),
        (Job().none, (), {}, False),
        (Job().one, (), {}, True),
        (Job().any, (), {}, False),
        (Job().of_class, (), {}, True),
        (Job.of_class, (), {}, True),
        (Job.static, (), {}, True),
        (Job().cached, (), {}, True),
        (Job(), (), {}, True),
        (Job, (), {}, False),
        (NeedsContext, (), {}, True),
        (functools.partial(with_ctx), (), {}, True),
        (functools.partial(with_ctx, 1), (), {}, False),
        (functools.partial(with_ctx, ctx=1), (), {}, False),
        (functools.partial(lambda ctx, a, b: None, b=1), (2,), {}, True),
        (functools.partial(functools.partial(lambda ctx, a: None), a=1), (), {}, True),
        (passes_on(with_ctx), (), {}, True),
        (passes_on(lambda: None), (), {}, False),
        (passes_on(passes_on(with_ctx)), (), {}, True),
        (adds_a_database(lambda ctx, db: None), (), {}, True),
        (functools.partial(adds_a_database(lambda ctx, db: None)), (), {}, True),
        (functools.cache(with_ctx), (), {}, True),
        (staticmethod(with_ctx), (), {}, True),
        (contextmanager(with_ctx), (), {}, True),
        (print, (), {}, False),
        (print, ("hello",), {"end": ""}, False),
        (len, (), {}, True),
        ([].append, (), {}, True),
        (threading.Event().wait, (), {}, False),
        (threading.Event().set, (), {}, False),
        (int, (), {}, False),
        (dict, (), {"a": 1}, False),
        (Mock(), (), {}, False),
    ],
)
def test_one_required_parameter_left_over_gets_the_context(
    body: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object], takes: bool
) -> None:
    assert bind_body(body, args, kwargs, "task 't'") is takes


@pytest.mark.parametrize(
    ("body", "args", "kwargs"),
    [
        (lambda a, b: None, (), {}),
        (lambda a, b, c: None, (1,), {}),
        (lambda: None, (1,), {}),
        (lambda: None, (), {"n": 1}),
        (lambda ctx: None, (1, 2), {}),
        (lambda ctx: None, (), {"nn": 1}),
        (lambda ctx, *, n: None, (), {}),
        (lambda *, n: None, (), {}),
        (lambda a, ctx: None, (), {"a": 1}),  # the context comes first, so `a` would be given twice
        (lambda ctx, /: None, (), {"ctx": 1}),
        (lambda ctx, a, /: None, (), {"a": 1}),
        (Job().none, (1,), {}),
        (NeedsContext, (1, 2), {}),
        (functools.partial(with_ctx), (1, 2), {}),
        (adds_a_database(lambda ctx, db: None), (1, 2), {}),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    body: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    with pytest.raises(TypeError, match=r"^task 't': .* can't be called with"):
        bind_body(body, args, kwargs, "task 't'")


def test_the_refusal_says_what_was_given_and_what_to_do() -> None:
    def load(ctx: object, day: str, limit: int) -> None:
        pass

    with pytest.raises(TypeError) as refused:
        bind_body(load, (), {"zone": 1}, "task 'rates'")
    assert str(refused.value) == (
        "task 'rates': load(ctx, day, limit) can't be called with 0 positional arguments and the keywords ['zone'], "
        "with or without the context before them; set args and kwargs so that they leave at most one required "
        "positional parameter"
    )


@pytest.mark.parametrize("body", [None, 7, "load", object(), [with_ctx]])
def test_what_cannot_be_called_is_no_body(body: object) -> None:
    with pytest.raises(TypeError, match=r"^task 't': the body must be callable, got"):
        bind_body(body, (), {}, "task 't'")  # type: ignore[arg-type]


async def fetch(ctx: object) -> None:
    pass


async def fetch_many(ctx: object) -> Any:
    yield ctx


def rows(ctx: object) -> Any:
    yield ctx


class AsyncJob:
    async def __call__(self, ctx: object) -> None:
        pass

    async def method(self, ctx: object) -> None:
        pass

    @classmethod
    async def of_class(cls, ctx: object) -> None:
        pass


def marked() -> Callable[..., object]:
    def body(ctx: object) -> None:
        pass

    body._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return body


@pytest.mark.parametrize(
    "body",
    [
        fetch,
        fetch_many,
        functools.partial(fetch),
        functools.partial(functools.partial(fetch, 1)),
        AsyncJob(),
        functools.partial(AsyncJob()),
        AsyncJob().method,
        AsyncJob.of_class,
        functools.partial(AsyncJob().method),
        functools.cache(fetch),
        staticmethod(fetch),
        AsyncMock(),
        marked(),
    ],
)
def test_a_coroutine_function_is_refused_with_a_hint(body: Callable[..., object]) -> None:
    with pytest.raises(
        TypeError, match=r"^task 't': .* is a coroutine function .*asyncio\.run inside a plain"
    ):
        bind_body(body, (), {}, "task 't'")


@pytest.mark.parametrize("body", [rows, functools.partial(rows), lambda ctx: (yield), functools.cache(rows)])
def test_a_generator_function_is_refused_with_a_hint(body: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match=r"^task 't': .* is a generator function, .* inside a plain function"):
        bind_body(body, (), {}, "task 't'")


def test_a_plain_function_around_a_coroutine_function_is_welcome() -> None:
    @functools.wraps(fetch)
    def run(ctx: object) -> None:
        asyncio.run(fetch(ctx))

    assert bind_body(run, (), {}, "task 't'") is True


def test_a_body_whose_signature_cannot_be_read_is_called_without_the_context() -> None:
    class Odd:
        __signature__ = "nonsense"

        def __call__(self, ctx: object) -> None:
            pass

    assert read_shape(Odd()) is None
    assert bind_body(Odd(), (), {}, "task 't'") is False


# --- the fast path agrees with inspect, and both with a real call

NAMES = ("a", "b", "c", "d", "e")


@st.composite
def sources(draw: st.DrawFn) -> str:
    """The parameter list of a random function."""
    kinds = sorted(draw(st.lists(st.sampled_from("POK"), max_size=4)), key="POK".index)
    first_default = draw(st.integers(0, 4))
    parts: list[str] = []
    starred = draw(st.booleans())
    for number, kind in enumerate(kinds):
        if kind == "K" and "K" not in kinds[:number]:
            parts.append("*rest" if starred else "*")
        optional = draw(st.booleans()) if kind == "K" else number >= first_default
        parts.append(NAMES[number] + ("=None" if optional else ""))
        if kind == "P" and kinds[number + 1 : number + 2] != ["P"]:
            parts.append("/")
    if starred and "K" not in kinds:
        parts.append("*rest")
    if draw(st.booleans()):
        parts.append("**more")
    return ", ".join(parts)


def function_of(parameters: str, first: str = "") -> Callable[..., object]:
    space: dict[str, Any] = {}
    exec(f"def body({', '.join(filter(None, (first, parameters)))}): local = 1", space)
    return space["body"]  # type: ignore[no-any-return]


def accepts(body: Callable[..., object], count: int, keys: dict[str, None]) -> bool:
    try:
        body(*[None] * count, **keys)
    except TypeError:
        return False
    return True


given_calls = given(
    sources(), st.integers(0, 6), st.dictionaries(st.sampled_from((*NAMES, "x")), st.none(), max_size=4)
)


@settings(deadline=None)
@given_calls
def test_the_shape_of_a_function_is_what_inspect_and_a_real_call_say(
    source: str, count: int, keys: Any
) -> None:
    body = function_of(source)
    shape = fast_shape(body)
    assert shape is not None
    assert shape == read_shape(body)
    assert shape.fits(count, keys) is accepts(body, count, keys)


@settings(deadline=None)
@given_calls
def test_the_shape_of_a_method_is_what_inspect_and_a_real_call_say(
    source: str, count: int, keys: Any
) -> None:
    slash = ", /" if "/" not in source else ""
    body = MethodType(function_of(source, "self" + slash), object())
    shape = fast_shape(body)
    assert shape is not None
    assert shape == read_shape(body)
    assert shape.fits(count, keys) is accepts(body, count, keys)


@settings(deadline=None)
@given_calls
def test_the_context_goes_to_exactly_one_missing_required_parameter(
    source: str, count: int, keys: Any
) -> None:
    body, args = function_of(source), (None,) * count
    without, with_context = accepts(body, count, keys), accepts(body, count + 1, keys)
    for form in (body, functools.partial(body), passes_on(body)):
        if without or with_context:
            assert bind_body(form, args, keys, "t") is not without
        else:
            with pytest.raises(TypeError):
                bind_body(form, args, keys, "t")


def test_what_describes_itself_is_left_to_inspect() -> None:
    assert fast_shape(passes_on(with_ctx)) is None
    assert fast_shape(Job()) is None
    assert fast_shape(functools.partial(with_ctx)) is None
    assert fast_shape(len) is None
    assert fast_shape(MethodType(lambda: None, object())) is None


# --- names of callables


def test_a_callable_is_named_by_what_a_person_would_call_it() -> None:
    def local(ctx: object) -> None:
        pass

    assert callable_name(local) == "local"
    assert callable_name(Job().one) == "Job.one"
    assert callable_name(Job) == "Job"
    assert callable_name(Job()) == "Job"
    assert callable_name(lambda: None) == "<lambda>"
    assert callable_name(print) == "print"
    assert callable_name([].append) == "list.append"
    assert callable_name(functools.partial(local)) == "partial(local)"
    assert callable_name(functools.cache(local)) == "local"


def test_a_hostile_callable_still_has_a_name() -> None:
    class Hostile:
        def __call__(self) -> None:
            pass

        def __getattr__(self, name: str) -> object:
            raise ValueError(name)

        def __repr__(self) -> str:
            raise SystemExit

    class Numbered:
        def __init__(self) -> None:
            self.__qualname__, self.__name__ = 7, ""

        def __call__(self) -> None:
            pass

    assert callable_name(Hostile()) == "Hostile"
    assert callable_name(Numbered()) == "Numbered"
    assert bind_body(Hostile(), (), {}, "t") is False

    def long() -> None:
        pass

    long.__qualname__ = "x" * 5000 + "\n"
    assert callable_name(long) == "x" * 100
