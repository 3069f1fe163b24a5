"""Events are frozen, slotted dataclasses, although their methods are written once."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from supervisor import AttemptFailed, AttemptStarting, Event
from supervisor.kernel.event import maker

AT = datetime(2000, 1, 1, tzinfo=UTC)


def starting(**changes: Any) -> AttemptStarting:
    return AttemptStarting(**{"seq": 1, "at": AT, "task_id": 7, "task": "t", "attempt": 2, **changes})


def test_an_event_is_a_frozen_dataclass() -> None:
    assert dataclasses.is_dataclass(AttemptFailed)
    assert AttemptFailed.__dataclass_params__.frozen
    assert Event.__dataclass_params__.frozen
    assert not hasattr(starting(), "__dict__")


def test_fields_stand_in_the_order_of_the_classes() -> None:
    names = [field.name for field in dataclasses.fields(AttemptFailed)]
    assert names == ["seq", "at", "task_id", "task", "attempt", "duration", "error", "exit_code"]


@pytest.mark.parametrize("name", ["seq", "attempt", "unknown"])
def test_an_event_takes_no_change(name: str) -> None:
    event = starting()
    with pytest.raises(dataclasses.FrozenInstanceError, match=name):
        setattr(event, name, 3)
    with pytest.raises(dataclasses.FrozenInstanceError, match=name):
        delattr(event, name)
    assert event == starting()


def test_events_of_one_class_are_equal_by_their_fields() -> None:
    assert starting() == starting()
    assert hash(starting()) == hash(starting())
    assert starting() != starting(seq=2)
    assert starting() != "something else"


def test_an_event_shows_its_fields() -> None:
    assert repr(starting()) == f"AttemptStarting(seq=1, at={AT!r}, task_id=7, task='t', attempt=2)"


@pytest.mark.parametrize(
    "remake",
    [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each)), dataclasses.replace],
    ids=["copy", "deepcopy", "pickle", "replace"],
)
def test_an_event_can_be_copied(remake: Any) -> None:
    made = remake(starting())
    assert type(made) is AttemptStarting
    assert made == starting()


def test_a_missing_and_an_unknown_field_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="takes the fields seq, at, task_id, task, attempt"):
        AttemptStarting(seq=1, at=AT, task_id=7, task="t")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unknown"):
        starting(unknown=1)


def test_the_fast_way_makes_the_same_event() -> None:
    assert maker(AttemptStarting)(1, AT, (7, "t", 2)) == starting()


def test_a_user_may_derive_an_event_with_the_standard_decorator() -> None:
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class Delivered(Event):
        parcel: str = "small"

    assert Delivered(seq=1, at=AT).to_dict() == {
        "kind": "delivered",
        "seq": 1,
        "at": "2000-01-01T00:00:00+00:00",
        "parcel": "small",
    }
