"""Signals for the time of a `run`: in the main thread, with the old handlers put back."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from supervisor.kernel.clock import in_main_thread

__all__ = ["forwarded"]


@contextmanager
def forwarded(to: Callable[[int], None]) -> Generator[bool]:
    """Hand SIGINT and SIGTERM to `to`, which must do no more than one `put`; give True.

    A handler runs between any two instructions of the main thread: a lock taken there may be held
    already. Outside of the main thread, where Python forbids it, do nothing and give False.
    """
    if not in_main_thread():
        yield False
        return
    import signal

    home = os.getpid()
    old: dict[int, Any] = {}

    def handler(number: int, frame: Any) -> None:
        if os.getpid() == home:
            to(number)
        else:  # a child that a body forked: nobody here would answer, and `terminate` must end it
            put_back()
            os.kill(os.getpid(), number)

    def put_back() -> None:
        for number, previous in old.items():
            # None: a handler that was not set from Python, which can't be put back
            signal.signal(number, signal.SIG_DFL if previous is None else previous)

    try:
        for name in (signal.SIGINT, signal.SIGTERM):
            old[name] = signal.signal(name, handler)
        yield True
    finally:
        put_back()
