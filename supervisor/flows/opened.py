"""What is done to a resource when it is set up and torn down, and which ones are.

What happens to a resource is decided by what it is:

- It has `setup()` or `teardown()`: these are called; tasks get the object itself.
- Else it is a context manager: it is entered and exited; tasks get what it returned on entry. Mind what
  that means: a file given open is closed by the first tear-down, and a manager made by `@contextmanager` can
  be entered only once. What must be opened anew for each run is better opened by a `setup`.
- Else it is a value: classes, functions, numbers, stores. So are locks and semaphores of the standard library:
  entered, they would be held all the while, and tasks would get True.

A method counts if the object or its class has it. One that `__getattr__` makes up counts if it is a function
or a bound method: a wrapper passes on those of what it wraps, while the client of a database or of a remote
service has any name whatever. A `unittest.mock` object has what it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, final

from supervisor.flows.errors import ConfigurationError
from supervisor.kernel.arguments import arity

__all__ = ["Opened", "check", "method_of"]

_METHODS = (FunctionType, MethodType, BuiltinMethodType)
_HOMES_OF_LOCKS = {"_thread", "threading", "multiprocessing.synchronize"}


@final
class Opened:
    """The resource objects that are set up, each once however many flows share it.

    For one thread at a time: the one that starts or stops a scheduler.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}  # by identity, which can't be reused while an entry holds it

    def __len__(self) -> int:
        return len(self._entries)

    def enter(self, resource: Any) -> Any:
        """Set `resource` up unless it is, and return what tasks get. Raises what its set-up raises."""
        entry = self._entries.get(id(resource))
        if entry is None:
            value, teardown = _set_up(resource)
            entry = self._entries[id(resource)] = _Entry(resource, value, teardown)
        entry.users += 1
        return entry.value

    def leave(self, resource: Any) -> None:
        """Tear `resource` down if this was its last user. Raises what its tear-down raises."""
        entry = self._entries[id(resource)]
        entry.users -= 1
        if entry.users == 0:
            del self._entries[id(resource)]
            if entry.teardown is not None:
                entry.teardown()


class _Entry:
    """One resource object that is set up."""

    __slots__ = ("resource", "teardown", "users", "value")

    def __init__(self, resource: Any, value: Any, teardown: Callable[[], object] | None) -> None:
        self.resource = resource
        self.value = value  # what tasks get
        self.teardown = teardown
        self.users = 0


def _set_up(resource: object) -> tuple[Any, Callable[[], object] | None]:
    """Set up one resource; return what tasks get, and what tears it down."""
    setup, teardown = method_of(resource, "setup"), method_of(resource, "teardown")
    if setup is not None or teardown is not None:
        if setup is not None:
            setup()
        return resource, teardown
    kind: Any = type(resource)  # where `with` looks, too
    enter, leave = getattr(kind, "__enter__", None), getattr(kind, "__exit__", None)
    if _is_class(resource) or _is_lock(kind) or enter is None or leave is None:
        return resource, None
    return enter(resource), lambda: leave(resource, None, None, None)


def method_of(resource: object, name: str) -> Callable[[], Any] | None:
    """Return the method `name` of a resource; None if it is not a method that it has."""
    if _is_class(resource):
        return None
    try:
        found: Callable[[], Any] | None = getattr(resource, name, None)
        if not callable(found):
            return None
        if isinstance(found, _METHODS) or name in getattr(resource, "__dict__", ()):
            return found
    except Exception:  # a proxy without an object behind it, and the like
        return None
    kind = type(resource)
    own = any(name in vars(each) for each in kind.__mro__)
    return found if own or _is_mock(kind) else None


def check(method: Callable[[], Any], what: str) -> None:
    """Refuse what can't be called without arguments, or whose call would run nothing."""
    try:
        needed = arity(method, what)
    except TypeError as error:
        raise ConfigurationError(str(error)) from None
    if needed:
        raise ConfigurationError(
            f"{what} needs {needed} arguments, and is called with none; give the resource inside something "
            "plain if this is no part of its lifecycle"
        )


def _is_class(resource: object) -> bool:
    return issubclass(type(resource), type)


def _is_lock(kind: type[Any]) -> bool:
    return any(each.__module__ in _HOMES_OF_LOCKS for each in kind.__mro__)


def _is_mock(kind: type[Any]) -> bool:
    mock = sys.modules.get("unittest.mock")
    return mock is not None and issubclass(kind, mock.NonCallableMock)
