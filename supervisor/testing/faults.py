"""FaultyStore: stands before a store and lets chosen calls fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from supervisor.durable.errors import StoreError
from supervisor.kernel.text import shown

__all__ = ["FaultyStore", "InjectedFault"]

_EVENTS = 2  # place of the events among the arguments of `append(run_id, expected_sequence, events, at)`


class InjectedFault(StoreError):  # noqa: N818
    """A fault that a test ordered: to whoever calls the store, its storage has failed."""


class FaultyStore:
    """Passes each call on to `inner`, and raises where a test wants it.

    fails_when: a function of one or of two arguments, which returns True for an `InjectedFault`, or an
    exception to raise instead.

    - `fails_when(event)` is asked for every event of an `append`, and nothing else fails;
    - `fails_when(method, number)` is asked for every public method; `number` counts the calls of that
      method from 1.

    after: ask, and raise, when `inner` has done it already, as when an acknowledgement is lost. What
    `inner` raises itself is passed on as it is.

    Everything else is that of `inner`: attributes, and what `with` does. Any thread may call it.
    """

    def __init__(self, inner: Any, fails_when: Callable[..., Any], after: bool = False) -> None:
        if not callable(fails_when):  # pyright: ignore[reportUnnecessaryComparison]
            raise TypeError(f"fails_when must be callable, got {shown(fails_when)}")
        self.inner = inner
        self.after = after
        self._fails_when = fails_when
        self._asks_for_events = _takes_one(fails_when)
        self._lock = threading.Lock()  # guards _calls and _faults
        self._calls: dict[str, int] = {}
        self._faults = 0

    @property
    def calls(self) -> dict[str, int]:
        """How often each method was called, failed calls included; a copy."""
        with self._lock:
            return dict(self._calls)

    @property
    def faults(self) -> int:
        """How many faults were raised."""
        with self._lock:
            return self._faults

    def __repr__(self) -> str:
        return f"<FaultyStore of {shown(self.inner)}>"

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # while it is being copied or unpickled: there is none yet
            raise AttributeError(name)
        found = getattr(self.inner, name)
        if name.startswith("_") or not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                number = self._calls[name] = self._calls.get(name, 0) + 1
            if not self.after:
                self._fail(name, number, args, kwargs)
            result = found(*args, **kwargs)
            if self.after:
                self._fail(name, number, args, kwargs)
            return result

        return call

    def __enter__(self) -> FaultyStore:
        self.inner.__enter__()
        return self

    def __exit__(self, *exc: Any) -> Any:
        return self.inner.__exit__(*exc)

    def _fail(self, name: str, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        verdict: Any = None
        if not self._asks_for_events:
            verdict = self._fails_when(name, number)
        elif name == "append":
            events: Any = kwargs.get("events", args[_EVENTS] if len(args) > _EVENTS else ())
            verdict = next((said for event in events if (said := self._fails_when(event))), None)
        if not verdict:
            return
        with self._lock:
            self._faults += 1
        if isinstance(verdict, BaseException) or (
            isinstance(verdict, type) and issubclass(verdict, BaseException)
        ):
            raise verdict
        when = "after" if self.after else "before"
        raise InjectedFault(f"injected {when} call {number} of {name}")


def _takes_one(function: Callable[..., Any]) -> bool:
    import inspect

    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # no signature: taken for the simple form
        return True
    return True
