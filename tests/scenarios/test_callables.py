"""Whatever can be called can be a body, and can be told in texts and events."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from supervisor import Supervisor, TaskContext, TaskSpec
from supervisor.testing import EventRecorder

# A missing `__name__` crashed the log line, the repr, or the scheduling of partials and objects.


def add(a: int, b: int = 1) -> int:
    return a + b


class Adder:
    def __call__(self) -> int:
        return 2

    def method(self) -> int:
        return 2

    @classmethod
    def of_class(cls) -> int:
        return 2

    @staticmethod
    def static() -> int:
        return 2


class Nameless:
    __slots__ = ()

    def __call__(self, ctx: TaskContext) -> int:
        return 2

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class Two(int):
    def __new__(cls) -> Two:
        return super().__new__(cls, 2)


CALLABLES: dict[str, Callable[..., Any]] = {
    "lambda": lambda: 2,
    "partial": functools.partial(add, 1),
    "partial of partial": functools.partial(functools.partial(add), 1, b=1),
    "partial of a lambda": functools.partial(lambda n: n, 2),
    "object": Adder(),
    "bound method": Adder().method,
    "class method": Adder.of_class,
    "static method": Adder.static,
    "builtin": functools.partial(max, 1, 2),
    "bound builtin": [2].pop,
    "class": Two,
    "object that shows nothing": Nameless(),
    "cached": functools.cache(lambda: 2),
    "context partial": functools.partial(lambda ctx, n: n, n=2),
}


@pytest.mark.parametrize("name", CALLABLES)
def test_any_callable_runs_and_can_be_shown(
    supervisor: Supervisor, recorder: EventRecorder, name: str
) -> None:
    spec = TaskSpec.once("t", CALLABLES[name])
    assert "'t'" in repr(spec)
    handle = supervisor.add(spec)
    assert handle.wait().value == 2
    supervisor.shutdown()
    assert all(repr(each) and each.to_dict() for each in recorder.events)
    assert repr(handle) == f"<TaskHandle 't' #{handle.id}>"


@pytest.mark.parametrize("name", ["object that shows nothing", "partial", "lambda"])
def test_any_callable_can_be_a_subscriber(supervisor: Supervisor, name: str) -> None:
    seen: list[Any] = []
    callbacks: dict[str, Callable[[Any], object]] = {
        "object that shows nothing": Nameless(),
        "partial": functools.partial(lambda seen, event: seen.append(event), seen),
        "lambda": lambda event: seen.append(event),
    }
    subscription = supervisor.subscribe(callbacks[name])
    assert subscription.name
    assert subscription.name in repr(subscription)
    assert supervisor.add(TaskSpec.once("t", lambda: None)).wait().ok


@pytest.mark.parametrize(
    "body",
    [add, functools.partial(add, b=1), lambda a, b: None, Adder().method],
    ids=lambda body: repr(body)[:20],
)
def test_arguments_that_do_not_fit_are_an_error_that_names_task_and_reason(body: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="task 't'"):
        TaskSpec.once("t", body, args=(1, 2, 3, 4))


async def coroutine() -> None: ...


def test_a_coroutine_function_is_refused_with_the_way_out() -> None:
    for body in (coroutine, functools.partial(coroutine)):
        with pytest.raises(TypeError, match=r"asyncio\.run"):
            TaskSpec.once("t", body)
