"""no_leaked_threads: a block of code must leave no thread behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from supervisor.testing.member import stack_of

__all__ = ["no_leaked_threads"]

_Stranger = threading._DummyThread  # pyright: ignore[reportPrivateUsage]


@contextmanager
def no_leaked_threads(grace: float = 1.0) -> Generator[None]:
    """Raise AssertionError if threads that were started in the block still live after it.

    grace: real seconds in which stragglers may end. Each leaked thread is named, with its stack.
    An exception raised in the block goes first: it is never hidden by a leak.
    """
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + grace
    while (leaked := _new(before)) and (left := end - time.monotonic()) > 0:
        leaked[0].join(left)
    if leaked:
        stacks = "\n".join(f"thread {thread.name!r} is here:\n{stack_of(thread)}" for thread in leaked)
        raise AssertionError(
            f"{len(leaked)} thread(s) left behind; stop and join them in the test:\n{stacks}"
        )


def _new(before: set[threading.Thread]) -> list[threading.Thread]:
    me = threading.current_thread()
    return [
        thread
        for thread in threading.enumerate()
        if thread not in before
        and thread is not me
        and thread.ident is not None  # being started by another thread, which is the one to blame
        and not isinstance(thread, _Stranger)  # not ours, and cannot be joined
    ]
