"""JSON values: what goes in comes out equal, or is refused with its place."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, UserDict
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.durable.errors import PayloadTooLarge, SerializationError
from supervisor.durable.payload import LARGEST, brief, copied, decode, encode, normal, same


class Color(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Plain(Enum):
    A = 1


class Point(NamedTuple):
    x: int
    y: float


class Float64(float):
    """Like the floats of numpy."""

    def __repr__(self) -> str:
        return f"float64({float.__repr__(self)})"


class Text(str):
    """As little equal to a str as can be."""

    __hash__ = str.__hash__

    def __str__(self) -> str:
        return "another"

    def __eq__(self, other: object) -> bool:
        return self is other


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8")),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=4),
    ),
    max_leaves=20,
)


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


@given(VALUES)
def test_what_is_written_is_read_back_the_same(value: object) -> None:
    plain = normal(value, "input")
    text = encode(plain, "input")
    back = decode(text)
    assert same(back, plain)
    assert back == plain
    assert same(decode(text.encode()), plain)
    assert json.loads(text) == plain
    assert same(normal(back, "again"), plain)


@given(VALUES, VALUES)
def test_two_values_are_the_same_when_their_canonical_texts_are(one: object, other: object) -> None:
    left, right = normal(one, "a"), normal(other, "b")
    assert same(left, right) == (canonical(left) == canonical(right))
    assert same(left, copied(left))


@given(VALUES)
def test_the_text_is_the_one_of_the_json_module(value: object) -> None:
    plain = normal(value, "input")
    assert encode(plain, "x") == json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (0, 0),
        (-(2**63), -(2**63)),
        (2**53 + 1, 2**53 + 1),
        (10**3999, 10**3999),
        (1.0, 1.0),
        (-0.0, -0.0),
        (5e-324, 5e-324),
        (1.7976931348623157e308, 1.7976931348623157e308),
        ("", ""),
        ("日本 \x00 \n é 🙂", "日本 \x00 \n é 🙂"),
        ((1, (2, ())), [1, [2, []]]),
        (Point(1, 2.0), [1, 2.0]),
        (Color.RED, "red"),
        (Level.HIGH, 3),
        (Float64(1.5), 1.5),
        (Text("é"), "é"),
        ({Color.RED: Level.HIGH}, {"red": 3}),
        ({Text("k"): [Float64(2)]}, {"k": [2.0]}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        ({"": {"": None}}, {"": {"": None}}),
    ],
)
def test_what_is_a_kind_of_json_value_becomes_one_of_plain_types(value: object, plain: object) -> None:
    found = normal(value, "input")
    assert canonical(found) == canonical(plain)
    assert types_in(found) <= {dict, list, str, int, float, bool, type(None)}
    assert same(decode(encode(found, "x")), plain)


def types_in(value: object) -> set[type]:
    found = {type(value)}
    if isinstance(value, dict):
        found |= {type(key) for key in value}
        value = list(value.values())
    if isinstance(value, list):
        found = found.union(*map(types_in, value))
    return found


def test_the_copy_shares_nothing_with_the_value() -> None:
    value = {"list": [{"deep": [1]}], "dict": {"k": {}}}
    for copy in (normal(value, "input"), copied(value)):
        assert copy == value
        copy["list"][0]["deep"].append(2)
        copy["dict"]["k"]["x"] = 1
        copy["new"] = None
    assert value == {"list": [{"deep": [1]}], "dict": {"k": {}}}


CYCLE: list[Any] = []
CYCLE.append({"again": (CYCLE,)})


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (math.nan, "input", "must be a finite number, got nan"),
        ({"a": [0, math.inf]}, "input.a[1]", "must be a finite number, got inf"),
        ([-math.inf], "input[0]", "must be a finite number, got -inf"),
        ((1, [Float64("nan")]), "input[1][0]", "must be a finite number, got nan"),
        ({"a": {"b": {1, 2}}}, "input.a.b", "send it as a sorted list"),
        ([frozenset()], "input[0]", "send it as a sorted list"),
        ({"data": b"x"}, "input.data", "of type bytes; send it as text"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, "input.at", "send it as text, value.isoformat()"),
        (datetime(2026, 1, 1), "input", "of type datetime; send it as text, value.isoformat()"),
        ([[date(2026, 1, 1)]], "input[0][0]", "of type date; send it as text, value.isoformat()"),
        (Decimal("1.0"), "input", "of type Decimal"),
        (Plain.A, "input", "of type Plain"),
        (UserDict(a=1), "input", "of type UserDict"),
        (range(3), "input", "of type range"),
        (1j, "input", "of type complex"),
        (object, "input", "of type type"),
        ({1: "x"}, "input", "must have str keys, got the key 1"),
        ({"a": {None: 1}}, "input.a", "must have str keys, got the key None"),
        ([{True: 1}], "input[0]", "must have str keys, got the key True"),
        ({Text("k"): 1, "k": 2}, "input", "must not have two keys with the same text"),
        ("\ud800", "input", "must be text that UTF-8 can hold, got '\\ud800'"),
        ({"a": ["x\udfff"]}, "input.a[0]", "must be text that UTF-8 can hold"),
        ({"\ud800": 1}, "input", "must be text that UTF-8 can hold"),
        ({"n": 10**4001}, "input.n", "must be an int of at most 4000 digits; send it as a str"),
        ([-(10**5000)], "input[0]", "must be an int of at most 4000 digits; send it as a str"),
        ({"k" * 1000: [set()]}, "input." + "k" * 100 + "…[0]", "send it as a sorted list"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_place(value: object, path: str, reason: str) -> None:
    with pytest.raises(SerializationError) as caught:
        normal(value, "input")
    assert caught.value.path == path
    assert reason in caught.value.reason
    assert str(caught.value) == f"{path} {caught.value.reason}"
    assert len(str(caught.value)) < 700


def test_a_value_that_contains_itself_is_refused() -> None:
    with pytest.raises(SerializationError, match=r"must not contain itself, or be nested deeper than 200"):
        normal(CYCLE, "input")


def test_200_levels_are_the_deepest_and_can_be_read_back() -> None:
    value: Any = 0
    for _ in range(200):
        value = [value]
    assert decode(encode(normal(value, "input"), "x")) == value
    assert same(value, copied(value))
    for deeper in ([value], {"a": value}, (value,)):
        with pytest.raises(SerializationError, match=r"200 levels") as caught:
            normal(deeper, "input")
        assert len(caught.value.path) <= 200


def test_one_list_in_many_places_counts_each_time() -> None:
    value: Any = [0] * 10
    for _ in range(100):  # 2 ** 100 lists, if each were written
        value = [value, value]
    with pytest.raises(PayloadTooLarge) as caught:
        normal(value, "input")
    assert caught.value.size > LARGEST
    with pytest.raises(PayloadTooLarge, match=r"^input has 20\d+ bytes of JSON, the limit is 1048576"):
        normal([None] * 10**6, "input")


def test_many_values_that_fit_are_taken() -> None:
    value = [0] * (LARGEST // 2 - 1)
    assert len(encode(normal(value, "input"), "x")) == 2 * len(value) + 1 == LARGEST - 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        (1, 1.0),
        (0.0, -0.0),
        (None, False),
        ("1", 1),
        ([], {}),
        ([1], [1, 1]),
        ([1, 2], [2, 1]),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"b": 1}),
        ({"a": None}, {}),
        ({"a": [True]}, {"a": [1]}),
    ],
)
def test_what_python_or_nearly_so_calls_equal_is_not_the_same(one: object, other: object) -> None:
    assert not same(one, other)
    assert not same(other, one)
    assert same(one, copied(one))


def test_the_order_of_keys_does_not_count() -> None:
    assert same({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1})


@pytest.mark.parametrize("letter", ["x", "é", "日", "🙂", "\x00"])
def test_one_mebibyte_of_text_is_the_limit(letter: str) -> None:
    width = len(json.dumps(letter, ensure_ascii=False).encode()) - 2
    most = (LARGEST - 2) // width
    assert len(encode(letter * most, "output").encode()) <= LARGEST
    with pytest.raises(PayloadTooLarge) as caught:
        encode(letter * (most + 1), "step_completed of run 'r'")
    assert (caught.value.size, caught.value.limit) == ((most + 1) * width + 2, LARGEST)
    assert str(caught.value).startswith(f"step_completed of run 'r' has {caught.value.size} bytes of JSON")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "NaN",
        "[Infinity]",
        '{"a":-Infinity}',
        "1e400",
        "[-1e999]",
        "'a'",
        '{"a":1}x',
        '"\\ud800"',
        '{"\\uDfff":1}',
        b"\xff",
        b'"\xed\xa0\x80"',
        "9" * 5000,
    ],
)
def test_what_is_no_text_of_ours_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (each in its own words)
        decode(text)


def test_escapes_of_whole_characters_are_read() -> None:
    assert decode('"\\ud83d\\ude42 \\ud55c \\\\ud800"') == "🙂 한 \\ud800"


def test_a_value_is_shown_in_short_with_sorted_keys() -> None:
    assert brief({"b": [1, True], "a": "é"}) == '{"a":"é","b":[1,true]}'
    assert brief("x" * 400) == '"' + "x" * 299 + "…"
    assert brief([1, 2, 3], limit=3) == "[1,…"
