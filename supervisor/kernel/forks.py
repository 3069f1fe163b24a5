"""Who forgets in a forked child what belongs to the threads of its parent: there they don't exist."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

__all__ = ["Forgetful", "forgets_after_fork"]


class Forgetful(Protocol):
    """What can be as new."""

    def forget(self) -> None:
        """Be as new, locks included. In a forked child, on its only thread."""
        ...


_known: WeakSet[Forgetful] = WeakSet()


def forgets_after_fork(each: Forgetful) -> None:
    """Have `each.forget` called in every child that is forked from here on, as long as it lives."""
    _known.add(each)


def _in_child() -> None:
    for each in list(_known):
        each.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
