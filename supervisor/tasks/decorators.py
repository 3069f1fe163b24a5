"""The decorator forms of the constructors of `TaskSpec`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, overload

from supervisor.kernel.arguments import callable_name
from supervisor.tasks.spec import Settings, TaskSpec

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["TaskDecorators"]

F = TypeVar("F", bound=Callable[..., object])


class TaskDecorators:
    """`@supervisor.once`, `.restartable` and `.periodic`: add the function, and return it unchanged.

    Before `start` the task waits for it. The name is the function's unless `name` is given.
    """

    __slots__ = ()

    def _declare(self, spec: TaskSpec) -> None:
        raise NotImplementedError

    @overload
    def once(self, task: F, /) -> F: ...
    @overload
    def once(self, /, *, name: str | None = None, **settings: Unpack[Settings]) -> Callable[[F], F]: ...

    def once(self, task: Any = None, /, *, name: str | None = None, **settings: Any) -> Any:
        """Run the decorated function once."""
        return self._decorate(task, name, lambda n, f: TaskSpec.once(n, f, **settings))

    @overload
    def restartable(self, task: F, /) -> F: ...
    @overload
    def restartable(
        self, /, *, name: str | None = None, **settings: Unpack[Settings]
    ) -> Callable[[F], F]: ...

    def restartable(self, task: Any = None, /, *, name: str | None = None, **settings: Any) -> Any:
        """Run the decorated function until it succeeds."""
        return self._decorate(task, name, lambda n, f: TaskSpec.restartable(n, f, **settings))

    def periodic(
        self, every: float | timedelta, *, name: str | None = None, **settings: Unpack[Settings]
    ) -> Callable[[F], F]:
        """Run the decorated function again `every` seconds after each success."""
        if callable(every):
            raise TypeError("periodic needs an interval: write @supervisor.periodic(every=SECONDS)")
        decorate: Callable[[F], F] = self._decorate(
            None, name, lambda n, f: TaskSpec.periodic(n, f, every, **settings)
        )
        return decorate

    def _decorate(
        self, task: Any, name: str | None, make: Callable[[str, Callable[..., object]], TaskSpec]
    ) -> Any:
        def decorate(function: F) -> F:
            own = getattr(function, "__name__", None)
            label = name if name is not None else own if isinstance(own, str) else callable_name(function)
            self._declare(make(label, function))
            return function

        return decorate if task is None else decorate(task)
