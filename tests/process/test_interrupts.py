"""A Ctrl-C may come at any function of a call: the supervisor stays usable and stops in order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from supervisor import Admission, Supervisor, SupervisorConfig, TaskContext, TaskSpec

GRACE = 5.0  # seconds; nobody may need it


def waits(ctx: TaskContext) -> None:
    ctx.wait()


def spec(name: str) -> TaskSpec:
    return TaskSpec.restartable(name, waits)


def add(sup: Supervisor) -> None:
    sup.add(spec("new"))


def add_all(sup: Supervisor) -> None:
    sup.add_all([spec("new"), spec("newer")])


def submit(sup: Supervisor) -> None:
    sup.submit(spec("new"), slot="slot")


def wait_in_line(sup: Supervisor) -> None:
    sup.submit(spec("new"), slot="taken")


def replace(sup: Supervisor) -> None:
    sup.submit(spec("new"), slot="taken", admission=Admission.REPLACE)


def remove(sup: Supervisor) -> None:
    sup.remove("old")


def cancel(sup: Supervisor) -> None:
    sup.cancel("old")


def interrupt_at(number: int, call: Callable[[], object]) -> bool:
    """Make the call, with a KeyboardInterrupt as it enters its nth function of the library; True if it has so many."""
    left = number

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if f"{sys.modules['supervisor'].__path__[0]}/" not in frame.f_code.co_filename:
            return None
        left -= 1
        if left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return None

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("call", [add, add_all, submit, wait_in_line, replace, remove, cancel])
def test_a_ctrl_c_in_any_function_of_a_call_leaves_a_supervisor_that_stops_in_order(
    call: Callable[[Supervisor], None],
) -> None:
    number, interrupted = 1, True
    while interrupted:
        with Supervisor(SupervisorConfig(grace=GRACE)) as sup:  # raises GraceExceeded if a task is left
            sup.add(spec("old"))
            sup.submit(spec("owner"), slot="taken")
            interrupted = interrupt_at(number, lambda sup=sup: call(sup))  # type: ignore[misc]
            sup.add(spec("later"))
            assert sup.cancel("later", timeout=GRACE)
        number += 1
    assert number > 15
