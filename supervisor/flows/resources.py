"""What the tasks of a workflow share, set up before its first state and torn down after its last."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from enum import StrEnum
from typing import Any, TypeVar, overload

from supervisor.flows.errors import ConfigurationError, ResourceNotFound, ResourceTypeMismatch, label
from supervisor.flows.opened import Opened, check, method_of
from supervisor.kernel.log import library_logger
from supervisor.kernel.text import error_text, shown, type_name

__all__ = ["Health", "Opened", "Resource", "Resources"]

T = TypeVar("T")
Report = Callable[[str, BaseException], None]  # the key of a resource, and what its tear-down raised


class Health(StrEnum):
    """How well a resource is, by its own account."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


class Resource:
    """A resource that does nothing; override what you need. Inheriting it is not required."""

    def setup(self) -> None:
        """Called before the first state. What it raises ends the run, or the start of the scheduler."""

    def teardown(self) -> None:
        """Called after the run, or at the scheduler's stop, if `setup` returned."""

    def health(self) -> Health:
        """Called by `Resources.health`, on its thread, at any time."""
        return Health.HEALTHY


class Resources:
    """Named things that tasks share; a task gets them as `res`, and takes one with `res[key]`.

    Keys: any hashable values, normally `str`. Anything can be a resource. A `Workflow.run` sets up and
    tears down around the run, on the caller's thread, a scheduler once around all of its runs.
    """

    def __init__(self, /, **named: Any) -> None:
        self._given: dict[Hashable, Any] = {}
        self._values = self._given  # what tasks see; once set up, what was entered
        self._held: list[Hashable] = []  # keys of what is set up, in that order
        self._opened: Opened | None = None
        for key, resource in named.items():
            self.insert(key, resource)

    def __repr__(self) -> str:
        return f"<Resources {_listed(self._given)}>"

    def insert(self, key: Hashable, resource: Any) -> Resources:
        """Add a resource and return these resources. Set-up goes in the order of insertion.

        Raises ConfigurationError, and changes nothing, for a key in use, a key that can't be one, a `setup`,
        `teardown` or `health` that needs arguments or is a coroutine function, and on the `res` of a run.
        """
        if self._opened is not None:
            raise ConfigurationError(
                f"resource {label(key)} comes too late, these are set up; insert it before the workflow runs"
            )
        try:
            taken = key in self._given
        except TypeError:
            raise ConfigurationError(f"the key of a resource must be hashable, got {shown(key)}") from None
        if taken:
            raise ConfigurationError(f"there is a resource {label(key)} already; choose another key")
        for name in ("setup", "teardown", "health"):
            method = method_of(resource, name)
            if method is not None:
                check(method, f"{name} of resource {label(key)}")
        self._given[key] = resource
        return self

    # Looking up

    def __getitem__(self, key: Hashable) -> Any:
        """Return the resource. Raises ResourceNotFound."""
        try:
            return self._values[key]
        except KeyError:
            raise ResourceNotFound(
                f"there is no resource {label(key)}; there are {_listed(self._values)}"
            ) from None

    @overload
    def get(self, key: Hashable) -> Any: ...
    @overload
    def get(self, key: Hashable, type: type[T]) -> T: ...
    def get(self, key: Hashable, type: type[Any] | None = None) -> Any:
        """Return the resource, which must be an instance of `type`.

        Raises ResourceNotFound and ResourceTypeMismatch.
        """
        found = self[key]
        if type is not None and not isinstance(found, type):
            raise ResourceTypeMismatch(
                f"resource {label(key)} is of type {type_name(found)}, asked for was {_type_text(type)}"
            )
        return found

    def __contains__(self, key: Hashable) -> bool:
        return key in self._given

    def __len__(self) -> int:
        return len(self._given)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def keys(self) -> list[Any]:
        """Return the keys in order of insertion."""
        return list(self._given)

    def health(self) -> dict[Any, Health]:
        """Ask each resource that has a `health()` how it is; one that has none is left out.

        On the calling thread. A `Health` or its text is taken as it is, True and None as HEALTHY, False as
        UNHEALTHY; anything else, and raising an `Exception`, as UNHEALTHY too, and is logged.
        """
        found: dict[Any, Health] = {}
        for key, resource in list(self._given.items()):
            ask = method_of(resource, "health") or method_of(self._values.get(key), "health")
            if ask is not None:
                found[key] = _health(key, ask)
        return found

    # For who runs the workflow

    def open(self, shared: Opened | None = None, report: Report | None = None) -> Resources:
        """Set up, in order of insertion, and return what tasks get as `res`; end it with `close`.

        On the calling thread. shared: what else is set up; one that is, is only counted.
        If one fails, those before it are torn down in reverse, as `close` does, and what it raised gets
        out, with a note that names the key.
        """
        view = Resources()
        view._given = dict(self._given)
        view._values = dict[Hashable, Any]()
        opened = view._opened = Opened() if shared is None else shared
        for key, resource in view._given.items():
            try:
                view._values[key] = opened.enter(resource)
                view._held.append(key)
            except BaseException as error:
                _note(error, f"while setting up resource {label(key)}")
                view.close(report)
                raise
        return view

    def close(self, report: Report | None = None) -> None:
        """Tear down in reverse, past errors; what is torn down already is left alone.

        On the calling thread. Each error is logged and given to `report(key, error)`. Nothing is raised, but
        a Ctrl-C that fell into it is raised at the end. Look-ups go on working.
        """
        interrupt: KeyboardInterrupt | None = None
        while self._held and self._opened is not None:
            key = self._held.pop()
            try:
                self._opened.leave(self._given[key])
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    interrupt = error
                library_logger().error("tear-down of resource %s failed: %s", label(key), error_text(error))
                if report is not None:
                    report(key if isinstance(key, str) else label(key), error)
        if interrupt is not None:
            raise interrupt


def _health(key: Hashable, ask: Callable[[], Any]) -> Health:
    try:
        told = ask()
    except Exception as error:
        library_logger().warning("health of resource %s failed: %s", label(key), error_text(error))
        return Health.UNHEALTHY
    if told is None or told is True:
        return Health.HEALTHY
    if told is False:
        return Health.UNHEALTHY
    try:
        return Health(told)
    except Exception:
        library_logger().warning("health of resource %s told %s, no Health", label(key), shown(told))
        return Health.UNHEALTHY


def _note(error: BaseException, note: str) -> None:
    try:
        error.add_note(note)
    except Exception:  # an exception that takes no notes
        return


def _listed(keys: dict[Hashable, Any]) -> str:
    return ", ".join(label(key) for key in keys) or "none"


def _type_text(kind: object) -> str:
    name = getattr(kind, "__name__", None)
    return name if isinstance(name, str) else shown(kind)
