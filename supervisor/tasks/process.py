"""What the process does to supervisors: it exits, and it forks."""

from __future__ import annotations

import os
from _weakrefset import WeakSet
from typing import Protocol

__all__ = ["Citizen", "register"]


class Citizen(Protocol):
    """What exit and fork do to a started supervisor."""

    def begin_exit(self) -> None:
        """Ask the tasks to stop, without waiting."""
        ...

    def await_exit(self) -> None:
        """Wait for that, not longer than its settings allow."""
        ...

    def forked(self) -> None:
        """The process is a forked child: none of the threads exists in it."""
        ...


_citizens: WeakSet[Citizen] = WeakSet()
_hooked = False


def register(citizen: Citizen) -> None:
    """Remember a supervisor that was started."""
    global _hooked
    if not _hooked:
        _hooked = True
        import atexit

        atexit.register(_at_exit)
    _citizens.add(citizen)


def _at_exit() -> None:
    """Daemon threads die with the interpreter, wherever they are: stop them in order before."""
    citizens = list(_citizens)
    for citizen in citizens:
        citizen.begin_exit()
    for citizen in citizens:
        citizen.await_exit()


def _in_child() -> None:
    for citizen in list(_citizens):
        citizen.forked()
    _citizens.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
