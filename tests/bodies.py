"""Bodies that many tests run."""

from __future__ import annotations

from supervisor import TaskContext


class Scripted:
    """Goes through `steps`, one a call, and stays at the last: an exception is raised, a value returned."""

    def __init__(self, *steps: object) -> None:
        self.steps = steps
        self.calls = 0

    def __call__(self) -> object:
        step = self.steps[min(self.calls, len(self.steps) - 1)]
        self.calls += 1
        if isinstance(step, BaseException):
            raise step
        return step


def waits(ctx: TaskContext) -> str:
    """Return as soon as it is asked to stop."""
    ctx.wait()
    return "stopped"


def sleeps(ctx: TaskContext, seconds: float) -> str:
    """Return after `seconds`; raise Canceled when it is asked to stop."""
    ctx.sleep(seconds)
    return "slept"
