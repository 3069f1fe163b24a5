"""Signals for the time of a `run`: in the main thread, with the old handlers put back."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from supervisor.kernel.clock import in_main_thread

__all__ = ["forwarded"]

_put_back: Callable[[], None] | None = None  # while a `run` has its handlers in place


@contextmanager
def forwarded(to: Callable[[int], None]) -> Generator[None]:
    """Hand SIGINT and SIGTERM to `to`, which must do no more than one `put`.

    A handler runs between any two instructions of the main thread: a lock taken there may be held
    already. Outside of the main thread, where Python forbids it, do nothing.
    """
    if not in_main_thread():
        yield
        return
    import signal

    global _put_back
    old: dict[int, Any] = {}

    def handler(number: int, frame: Any) -> None:
        to(number)

    def put_back() -> None:
        for number, previous in old.items():
            # None: a handler that was not set from Python, which can't be put back
            signal.signal(number, signal.SIG_DFL if previous is None else previous)

    _put_back = put_back
    try:
        for name in (signal.SIGINT, signal.SIGTERM):
            old[name] = signal.signal(name, handler)
        yield
    finally:
        _put_back = None
        put_back()


def _in_child() -> None:
    # A child that a body forked, where nobody would answer: `terminate` must end it.
    if _put_back is not None:
        _put_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
