"""What the process does to supervisors: it exits, and it forks."""

from __future__ import annotations

import os
import sys
from _weakrefset import WeakSet
from typing import NoReturn, Protocol

from supervisor.kernel.log import library_logger
from supervisor.kernel.text import traceback_text

__all__ = ["Citizen", "leave_child", "register"]


class Citizen(Protocol):
    """What exit and fork do to a started supervisor."""

    def begin_exit(self) -> None:
        """Ask the tasks to stop, without waiting."""
        ...

    def await_exit(self) -> None:
        """Wait for that, not longer than its settings allow, counted from `begin_exit`."""
        ...

    def in_child(self) -> None:
        """The process is a forked child: none of the threads exists in it."""
        ...


_citizens: WeakSet[Citizen] = WeakSet()
_hooked = False


def register(citizen: Citizen) -> None:
    """Remember what was started, for as long as its thread, or anybody else, holds it."""
    global _hooked
    if not _hooked:
        _hooked = True
        import atexit

        atexit.register(_at_exit)
    _citizens.add(citizen)


def _at_exit() -> None:
    """Daemon threads die with the interpreter, wherever they are: stop them in order before."""
    try:
        citizens = _all()
        for citizen in citizens:
            citizen.begin_exit()
        for citizen in citizens:
            citizen.await_exit()
    except KeyboardInterrupt:  # who asks twice has waited enough
        pass


def _all() -> list[Citizen]:
    while True:
        try:
            return list(_citizens)
        except RuntimeError:  # another thread starts one: it changed while it was read
            continue


def _in_child() -> None:
    for citizen in _all():
        citizen.in_child()
    _citizens.clear()


def leave_child(task: str, error: BaseException | None, exit_code: int | None) -> NoReturn:
    """End a child that a body forked and that came back out of the body.

    Nothing of its supervisor exists here: no attempt can follow, no closer is its to run, and the
    locks of the library may be held for good. So it ends here and now.
    """
    code = 0 if error is None else 1 if exit_code is None else exit_code
    try:
        if isinstance(error, SystemExit):
            if isinstance(error.code, str):
                print(error.code, file=sys.stderr)
        elif error is not None:
            library_logger().error(
                "the child that task %r forked has failed\n%s", task, traceback_text(error)
            )
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # pyright: ignore[reportUnnecessaryComparison]
                stream.flush()
    finally:
        os._exit(code & 0xFF)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
