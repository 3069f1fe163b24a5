"""A spec is a value: four constructors, settings that inherit, checks at construction."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from supervisor import INHERIT, BackoffPolicy, RestartPolicy, Supervisor, TaskContext, TaskSpec

MAKERS: dict[str, Callable[..., TaskSpec]] = {
    "once": TaskSpec.once,
    "restartable": TaskSpec.restartable,
    "periodic": lambda name, task, **settings: TaskSpec.periodic(name, task, 30, **settings),
    "from_defaults": TaskSpec.from_defaults,
}
nan, inf = math.nan, math.inf


def body() -> None:
    """Do nothing."""


# -- constructors


@pytest.mark.parametrize(
    ("maker", "restart"),
    [
        ("once", RestartPolicy.NEVER),
        ("restartable", RestartPolicy.ON_FAILURE),
        ("periodic", RestartPolicy.always(30.0)),
        ("from_defaults", INHERIT),
    ],
)
def test_a_constructor_sets_the_restart_policy_and_leaves_the_rest_to_the_defaults(maker, restart) -> None:
    spec = MAKERS[maker]("t", body)
    assert (spec.name, spec.task, spec.restart) == ("t", body, restart)
    assert [spec.timeout, spec.backoff, spec.max_retries, spec.overrun] == [INHERIT] * 4
    assert (spec.args, spec.kwargs) == ((), {})


@pytest.mark.parametrize("every", [0, 0.0, timedelta(0)])
def test_a_period_of_zero_is_no_interval(every) -> None:
    assert TaskSpec.periodic("t", body, every).restart == RestartPolicy.always()
    assert RestartPolicy.always(every) == RestartPolicy.always(None) == RestartPolicy.always()


def test_a_period_may_be_a_timedelta() -> None:
    assert TaskSpec.periodic("t", body, timedelta(minutes=1)).restart == RestartPolicy.always(60)
    assert RestartPolicy.always(timedelta(minutes=1)).interval == 60.0


@pytest.mark.parametrize("maker", ["restartable", "periodic", "from_defaults"])
def test_every_setting_may_be_given_or_switched_off(maker) -> None:
    policy = BackoffPolicy.constant(1)
    given = MAKERS[maker]("t", body, timeout=5, backoff=policy, max_retries=3, overrun=2)
    assert (given.timeout, given.backoff, given.max_retries, given.overrun) == (5.0, policy, 3, 2.0)
    off = MAKERS[maker]("t", body, timeout=None, backoff=None, max_retries=None, overrun=None)
    assert (off.timeout, off.backoff, off.max_retries, off.overrun) == (None, None, None, None)


@pytest.mark.parametrize("timeout", [0, 0.0, timedelta(0), inf, None])
def test_zero_infinity_and_none_are_no_timeout(timeout) -> None:
    assert TaskSpec.once("t", body, timeout=timeout).timeout is None


@pytest.mark.parametrize(("given", "kept"), [(1, 1.0), (0.25, 0.25), (timedelta(minutes=2), 120.0)])
def test_durations_are_kept_as_seconds(given, kept) -> None:
    spec = TaskSpec.once("t", body, timeout=given, overrun=given)
    assert (spec.timeout, spec.overrun) == (kept, kept)
    assert type(spec.timeout) is type(spec.overrun) is float


def test_an_overrun_of_zero_is_kept_and_an_infinite_one_waits_for_ever() -> None:
    assert TaskSpec.once("t", body, timeout=1, overrun=0).overrun == 0.0
    assert TaskSpec.once("t", body, timeout=1, overrun=inf).overrun is None


def test_a_very_long_finite_wait_is_legal() -> None:
    assert TaskSpec.periodic("t", body, 1e300, timeout=1e300).timeout == 1e300


def test_a_spec_is_frozen() -> None:
    spec = TaskSpec.once("t", body)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.name = "other"  # type: ignore[misc]
    assert not hasattr(spec, "__dict__")


def test_replace_gives_a_changed_copy_and_checks_it() -> None:
    spec = TaskSpec.restartable("t", body, timeout=5, args=())
    changed = spec.replace(name="u", timeout=None, max_retries=2)
    assert (changed.name, changed.timeout, changed.max_retries) == ("u", None, 2)
    assert (changed.task, changed.restart) == (spec.task, spec.restart)
    assert (spec.name, spec.timeout, spec.max_retries) == ("t", 5.0, INHERIT)
    with pytest.raises(ValueError, match="timeout must not be negative, got -1"):
        spec.replace(timeout=-1)
    with pytest.raises(TypeError, match="color"):
        spec.replace(color="red")


def test_replacing_the_body_decides_anew_who_gets_the_context(supervisor: Supervisor) -> None:
    spec = TaskSpec.once("t", lambda: "none").replace(task=lambda ctx: ctx.name)
    assert supervisor.add(spec).wait().value == "t"


def test_a_spec_shows_its_name_its_body_and_what_it_sets() -> None:
    assert repr(TaskSpec.restartable("t", body, timeout=5)) == (
        "TaskSpec('t', body, RestartPolicy.ON_FAILURE, timeout=5.0)"
    )
    assert repr(TaskSpec.periodic("t", body, 5)) == "TaskSpec('t', body, RestartPolicy.always(5.0))"


def test_inherit_shows_its_name() -> None:
    assert repr(INHERIT) == "INHERIT"


# -- what is refused


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"timeout": -1}, ValueError, "timeout must not be negative, got -1"),
        ({"timeout": timedelta(seconds=-1)}, ValueError, "timeout must not be negative"),
        ({"timeout": -inf}, ValueError, "timeout must not be negative, got -inf"),
        ({"timeout": nan}, ValueError, "timeout must be a number, got nan"),
        ({"timeout": True}, TypeError, "timeout must be seconds .*, got True"),
        ({"timeout": "5"}, TypeError, "timeout must be seconds .*, got '5'"),
        ({"timeout": 1, "overrun": -1}, ValueError, "overrun must not be negative, got -1"),
        ({"timeout": 1, "overrun": nan}, ValueError, "overrun must be a number, got nan"),
        ({"timeout": 1, "overrun": False}, TypeError, "overrun must be seconds .*, got False"),
        ({"overrun": 5}, ValueError, "overrun .* got 5.0 without a timeout"),
        ({"overrun": 0}, ValueError, "overrun .* got 0.0 without a timeout"),
        ({"overrun": 5, "timeout": None}, ValueError, "overrun .* without a timeout"),
        ({"overrun": 5, "timeout": 0}, ValueError, "overrun .* without a timeout"),
        ({"overrun": 5, "timeout": inf}, ValueError, "overrun .* without a timeout"),
        ({"max_retries": 0}, ValueError, r"max_retries must be >= 1, got 0; .*TaskSpec\.once"),
        ({"max_retries": -1}, ValueError, r"max_retries must be >= 1, got -1; .*TaskSpec\.once"),
        ({"max_retries": True}, TypeError, "max_retries must be an int, got True"),
        ({"max_retries": 1.0}, TypeError, r"max_retries must be an int, got 1\.0"),
        ({"backoff": 1.0}, TypeError, r"backoff must be a BackoffPolicy or None, got 1\.0; .*constant"),
        ({"args": "ab"}, TypeError, "args must be a tuple .*, got 'ab'"),
        ({"kwargs": [1]}, TypeError, r"kwargs must be a mapping .*, got \[1\]"),
        ({"kwargs": {1: 2}}, TypeError, "kwargs must have str keys, got 1"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name_and_value(maker, settings, error, message) -> None:
    with pytest.raises(error, match=message):
        MAKERS[maker]("t", body, **settings)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    ("name", "task", "error", "message"),
    [
        ("", body, ValueError, "name must not be empty, got ''"),
        (None, body, TypeError, "name must be a str, got None"),
        (5, body, TypeError, "name must be a str, got 5"),
        ("t", None, TypeError, "task 't': the body must be callable, got None"),
        ("t", 5, TypeError, "task 't': the body must be callable, got 5"),
    ],
)
def test_a_wrong_name_or_body_is_refused(maker, name, task, error, message) -> None:
    with pytest.raises(error, match=message):
        MAKERS[maker](name, task)


@pytest.mark.parametrize(
    ("every", "error", "message"),
    [
        (-1, ValueError, "every must not be negative, got -1"),
        (timedelta(seconds=-1), ValueError, "every must not be negative"),
        (nan, ValueError, "every must be a number, got nan"),
        (inf, ValueError, "every must be finite, got inf"),
        (True, TypeError, "every must be seconds .*, got True"),
        ("5", TypeError, "every must be seconds .*, got '5'"),
        (None, TypeError, "every must be seconds .*, got None"),
    ],
)
def test_a_wrong_period_is_refused(every, error, message) -> None:
    with pytest.raises(error, match=message):
        TaskSpec.periodic("t", body, every)
    if every is not None:  # which means no interval here
        with pytest.raises(error, match=message.replace("every", "interval")):
            RestartPolicy.always(every)


def test_retries_are_refused_for_a_task_that_runs_once() -> None:
    with pytest.raises(ValueError, match=r"max_retries must not be given .*got 3; use TaskSpec\.restartable"):
        TaskSpec.once("t", body, max_retries=3)
    assert TaskSpec.once("t", body, max_retries=None).max_retries is None


def test_a_restart_policy_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="restart must be a RestartPolicy, got 'always'"):
        TaskSpec.once("t", body).replace(restart="always")


async def coroutine_function() -> None:
    """Never run."""


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("task", [coroutine_function, partial(coroutine_function)])
def test_a_coroutine_function_is_refused_with_a_hint(maker, task) -> None:
    with pytest.raises(TypeError, match=r"coroutine function.*asyncio\.run inside a plain function"):
        MAKERS[maker]("t", task)


# -- how the body is called


class Job:
    def __init__(self, *given: object) -> None:
        self.given = given

    def method(self, ctx: TaskContext) -> str:
        return ctx.name

    def __call__(self, ctx: TaskContext) -> str:
        return ctx.name


class NeedsContext:
    def __init__(self, ctx: TaskContext) -> None:
        self.name = ctx.name


def takes_two(first: object, second: object) -> tuple[object, object]:
    return first, second


def with_options(ctx: TaskContext, size: int = 3, *rest: int, flag: bool = False) -> tuple[object, ...]:
    return ctx.name, size, rest, flag


def named(value: object) -> object:
    """Return the name of a context, anything else as it is."""
    return value.name if isinstance(value, TaskContext) else value


@pytest.mark.parametrize(
    ("task", "settings", "value"),
    [
        (lambda: "none", {}, "none"),
        (lambda ctx: ctx.name, {}, "t"),
        (lambda anything: anything.name, {}, "t"),
        (lambda ctx=None: ctx, {}, None),
        (lambda *args: args, {}, ()),
        (lambda **kwargs: kwargs, {}, {}),
        (lambda ctx, size: (ctx.name, size), {"args": (5,)}, ("t", 5)),
        (lambda ctx, size: (ctx.name, size), {"kwargs": {"size": 5}}, ("t", 5)),
        (takes_two, {"args": (1, 2)}, (1, 2)),
        (takes_two, {"args": [1, 2]}, (1, 2)),
        (takes_two, {"args": (1,), "kwargs": {"second": 2}}, (1, 2)),
        (takes_two, {"kwargs": {"first": 1, "second": 2}}, (1, 2)),
        (lambda ctx, **kwargs: (ctx.name, kwargs), {"kwargs": {"size": 5}}, ("t", {"size": 5})),
        (lambda ctx, *args: (ctx.name, args), {}, ("t", ())),
        (with_options, {}, ("t", 3, (), False)),
        (with_options, {"kwargs": {"flag": True}}, ("t", 3, (), True)),
        (partial(lambda ctx, size: (ctx.name, size), size=5), {}, ("t", 5)),
        (partial(takes_two, 1, 2), {}, (1, 2)),
        (Job().method, {}, "t"),
        (Job(), {}, "t"),
        (dict, {}, {}),
        (max, {"args": (1, 2)}, 2),
    ],
)
def test_a_body_gets_its_arguments_and_the_context_first_where_one_parameter_is_left(
    supervisor: Supervisor, task: Callable[..., Any], settings: dict[str, Any], value: object
) -> None:
    assert supervisor.add(TaskSpec.once("t", task, **settings)).wait().value == value


def test_a_class_is_a_body_and_its_instance_the_value(supervisor: Supervisor) -> None:
    assert isinstance(supervisor.add(TaskSpec.once("plain", Job)).wait().value, Job)
    assert supervisor.add(TaskSpec.once("t", NeedsContext)).wait().value.name == "t"


@pytest.mark.parametrize("settings", [{}, {"args": (1, 2, 3)}, {"kwargs": {"third": 3}}])
def test_arguments_that_do_not_fit_are_refused_at_construction(settings) -> None:
    with pytest.raises(TypeError, match=r"task 't': takes_two\(first, second\) can't be called"):
        TaskSpec.once("t", takes_two, **settings)


def test_the_arguments_are_the_specs_own(supervisor: Supervisor) -> None:
    args, kwargs = [1], {"second": 2}
    spec = TaskSpec.once("t", takes_two, args=args, kwargs=kwargs)
    args.append(9)
    kwargs["second"] = 9
    assert supervisor.add(spec).wait().value == (1, 2)
