"""Signals for the time of a `run`: in the main thread, with the old handlers put back."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from supervisor.kernel.clock import in_main_thread

__all__ = ["forwarded"]


@contextmanager
def forwarded(to: Callable[[int], None]) -> Generator[None]:
    """Hand SIGINT and SIGTERM to `to`, which must do no more than one `SimpleQueue.put`.

    A handler runs between any two instructions of the main thread: a lock taken there may be held
    already. Does nothing outside of the main thread, where Python forbids it.
    """
    if not in_main_thread():
        yield
        return
    import signal

    def handler(number: int, frame: Any) -> None:
        to(number)

    old: dict[int, Any] = {}
    try:
        for name in (signal.SIGINT, signal.SIGTERM):
            old[name] = signal.signal(name, handler)
        yield
    finally:
        for number, previous in old.items():
            # None: a handler that was not set from Python, which can't be put back
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
