"""The settings of a supervisor are checked when they are made."""

from __future__ import annotations

import dataclasses
import math
from datetime import timedelta

import pytest

from supervisor import OutcomeKind, Supervisor, SupervisorConfig, TaskSpec
from tests.bodies import waits

DEFAULTS = {
    "name": "supervisor",
    "grace": 60.0,
    "max_concurrent": None,
    "max_tasks": None,
    "event_capacity": 1024,
    "subscriber_capacity": 1024,
    "drain_timeout": 5.0,
    "slot_capacity": 100,
    "exit_grace": 1.0,
}


def test_the_defaults_are_those_of_the_docs() -> None:
    assert dataclasses.asdict(SupervisorConfig()) == DEFAULTS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "orders"),
        ("grace", 1.5),
        ("max_concurrent", 4),
        ("max_tasks", 4),
        ("event_capacity", 1),
        ("subscriber_capacity", 1),
        ("drain_timeout", 0.0),
        ("slot_capacity", 1),
        ("exit_grace", 0.0),
    ],
)
def test_a_setting_that_is_given_changes_no_other(field, value) -> None:
    assert dataclasses.asdict(SupervisorConfig(**{field: value})) == DEFAULTS | {field: value}


@pytest.mark.parametrize("field", ["grace", "drain_timeout", "exit_grace"])
def test_a_duration_may_be_a_timedelta_and_is_kept_as_seconds(field) -> None:
    assert getattr(SupervisorConfig(**{field: timedelta(minutes=1)}), field) == 60.0
    assert getattr(SupervisorConfig(**{field: 0}), field) == 0.0


@pytest.mark.parametrize("field", ["grace", "drain_timeout", "exit_grace"])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (-1, ValueError, "must not be negative, got -1"),
        (math.nan, ValueError, "must be a number, got nan"),
        (True, TypeError, "must be seconds .*, got True"),
        ("1", TypeError, "must be seconds .*, got '1'"),
        (None, TypeError, "must be seconds .*, got None"),
    ],
)
def test_a_wrong_duration_is_refused_by_its_name_and_value(field, value, error, message) -> None:
    with pytest.raises(error, match=f"{field} {message}"):
        SupervisorConfig(**{field: value})


@pytest.mark.parametrize("field", ["max_concurrent", "max_tasks", "event_capacity", "subscriber_capacity"])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, "must be >= 1, got 0"),
        (-1, ValueError, "must be >= 1, got -1"),
        (True, TypeError, "must be an int, got True"),
        (1.0, TypeError, r"must be an int, got 1\.0"),
    ],
)
def test_a_wrong_number_is_refused_by_its_name_and_value(field, value, error, message) -> None:
    with pytest.raises(error, match=f"{field} {message}"):
        SupervisorConfig(**{field: value})


@pytest.mark.parametrize("value", [-1, True, None])
def test_a_wrong_slot_capacity_is_refused(value) -> None:
    with pytest.raises((TypeError, ValueError), match="slot_capacity must be"):
        SupervisorConfig(slot_capacity=value)


@pytest.mark.parametrize(("value", "error"), [("", ValueError), (None, TypeError), (5, TypeError)])
def test_a_wrong_name_is_refused(value, error) -> None:
    with pytest.raises(error, match="name must"):
        SupervisorConfig(name=value)


def test_the_settings_are_frozen_and_named_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SupervisorConfig().grace = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        SupervisorConfig("orders")  # type: ignore[misc]


def test_a_changed_copy_is_checked_too() -> None:
    assert dataclasses.replace(SupervisorConfig(), grace=5).grace == 5.0
    with pytest.raises(ValueError, match="grace"):
        dataclasses.replace(SupervisorConfig(), grace=-5)


def test_a_supervisor_keeps_its_settings(clock) -> None:
    config = SupervisorConfig(name="orders", max_concurrent=4)
    assert Supervisor(config, clock=clock).config is config
    assert Supervisor(clock=clock).config == SupervisorConfig()


@pytest.mark.parametrize("grace", [1e9 + 0.5, 1e15, 1e300])
def test_a_grace_of_many_years_is_as_good_as_any(make_supervisor, grace) -> None:
    supervisor = make_supervisor(grace=grace)
    handle = supervisor.add(TaskSpec.once("t", waits))
    assert supervisor.cancel("t")
    assert handle.wait().kind is OutcomeKind.CANCELED


def test_building_a_supervisor_starts_no_thread(clock, make_supervisor) -> None:
    make_supervisor()
    assert not clock._baton.members


@pytest.mark.parametrize("name", ["orders", "späße"])
def test_the_threads_are_named_after_the_supervisor_and_the_task(clock, make_supervisor, name) -> None:
    supervisor = make_supervisor(name=name)
    supervisor.add(TaskSpec.once("sync", waits))
    names = {member.name for member in clock._baton.members}
    assert names == {name, f"{name}:events", f"{name}:sync"}
