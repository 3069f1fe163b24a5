"""no_leaked_threads: a block of code must leave no thread behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from supervisor.testing.baton import stack_of

__all__ = ["no_leaked_threads"]


@contextmanager
def no_leaked_threads(grace: float = 1.0) -> Iterator[None]:
    """Raise AssertionError if threads that were started in the block still live after it.

    grace: real seconds in which stragglers may end. Each leaked thread is named, with its stack.
    An exception raised in the block goes first: it is never hidden by a leak.
    """
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + grace
    for thread in _new(before):
        if thread.ident is not None:
            thread.join(max(0.0, end - time.monotonic()))
    leaked = _new(before)
    if leaked:
        stacks = "\n".join(f"thread {thread.name!r} is here:\n{stack_of(thread)}" for thread in leaked)
        raise AssertionError(
            f"{len(leaked)} thread(s) left behind; stop and join them in the test:\n{stacks}"
        )


def _new(before: set[threading.Thread]) -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t not in before and t is not threading.current_thread()]
