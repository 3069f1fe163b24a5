# ruff: noqa: N818  (the names say what happened; an Error suffix would add nothing)
"""The error tree of the kernel and the task layer.

Raised by task bodies::

    Exception
    └── TaskError                 a result a body states on purpose
        ├── Fail                  retryable
        ├── Timeout               retryable: the body itself ran out of time
        └── Fatal                 permanent
    BaseException
    └── Canceled                  a cooperative stop; `except Exception` lets it pass

Raised by the library::

    Exception
    └── SupervisorError
        ├── ShuttingDown          (RuntimeError)  closed for new work
        ├── TaskAlreadyExists     (ValueError)    the name is in use
        ├── AlreadyRunning        (RuntimeError)  run() was used before
        ├── GraceExceeded         (RuntimeError)  tasks did not stop in time: .stuck
        ├── CapacityExceeded      (RuntimeError)  a limit, or no more threads
        ├── ReentrantCall         (RuntimeError)  the call would wait for itself
        ├── OutcomeUnavailable    (RuntimeError)  no outcome can come any more
        └── ForkedProcess         (RuntimeError)  used in a forked child

The upper layers hang their own trees under `SupervisorError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_SHOWN_TASKS = 10  # stuck tasks spelled out in a message; the rest are counted


class TaskError(Exception):
    """A failure that a body states on purpose; raise one of its subclasses.

    reason: for people; it is also `str(error)`. An exception or any other object is taken as text.
    exit_code: kept on the outcome. Raises TypeError for an exit code that is no int.
    """

    reason: str = ""  # class-level, so that a subclass which skips __init__ still has both
    exit_code: int | None = None

    def __init__(self, reason: object, *, exit_code: int | None = None) -> None:
        _check_exit_code(type(self).__name__, exit_code)
        self.reason = _text(reason)
        super().__init__(self.reason)
        self.exit_code = exit_code


class Fail(TaskError):
    """This attempt failed; the task may be tried again."""


class Timeout(TaskError):
    """The body gave up by its own clock; the task may be tried again."""


class Fatal(TaskError):
    """The task can never succeed; no retry follows."""


class Canceled(BaseException):
    """A cooperative stop. Not an `Exception`, so `except Exception` can't swallow it.

    reason: anything printable, as a rule a `CancelReason`.
    """

    reason: object = "canceled"

    def __init__(self, reason: object = "canceled") -> None:
        super().__init__(reason)
        self.reason = reason


class SupervisorError(Exception):
    """Root of everything that the library itself raises."""


class ShuttingDown(SupervisorError, RuntimeError):
    """The supervisor is stopping or has stopped; it takes no new work and is not reopened."""


class TaskAlreadyExists(SupervisorError, ValueError):
    """The name belongs to a registered task, or occurs twice in a batch."""


class AlreadyRunning(SupervisorError, RuntimeError):
    """`run` was called a second time."""


class CapacityExceeded(SupervisorError, RuntimeError):
    """A limit on tasks is reached, or the operating system refused a thread."""


class ReentrantCall(SupervisorError, RuntimeError):
    """A task body or a subscriber made a call that would wait for itself."""


class OutcomeUnavailable(SupervisorError, RuntimeError):
    """No outcome can come any more for this handle."""


class ForkedProcess(SupervisorError, RuntimeError):
    """The supervisor belongs to the parent process; its threads do not exist in this one."""


@dataclass(frozen=True, slots=True)
class StuckTask:
    """A task whose thread did not end when it was asked to."""

    name: str
    id: int
    stack: str  # formatted, innermost call last; "" when the thread could not be read


class GraceExceeded(SupervisorError, RuntimeError):
    """Tasks were still running when the grace of a shutdown was over.

    stuck: one `StuckTask` for each.  grace: seconds that were allowed.
    """

    stuck: tuple[StuckTask, ...] = ()
    grace: float | None = None

    def __init__(self, stuck: Iterable[StuckTask], grace: float | None = None) -> None:
        self.stuck = tuple(stuck)
        self.grace = grace
        super().__init__(self.stuck, grace)  # the args, so that a copy or a pickle is built the same way

    def __str__(self) -> str:
        many = len(self.stuck)
        within = "in time" if self.grace is None else f"within {self.grace:g} s"
        lines = [
            f"{many} task{'' if many == 1 else 's'} did not stop {within}; let the body watch ctx.canceled"
        ]
        lines += [
            f"  {task.name!r} (#{task.id}) {_innermost(task.stack)}" for task in self.stuck[:_SHOWN_TASKS]
        ]
        if many > _SHOWN_TASKS:
            lines.append(f"  and {many - _SHOWN_TASKS} more")
        return "\n".join(lines)


def _innermost(stack: str) -> str:
    """Return the innermost call of a formatted stack on one line."""
    lines = [line.strip() for line in stack.splitlines() if line.strip().strip("^~")]
    places = [number for number, line in enumerate(lines) if line.startswith("File ")]
    if not lines:
        return "is running (no stack)"
    return "is at " + ": ".join(lines[places[-1] if places else -1 :])[:300]


def _text(reason: object) -> str:
    """Return any reason as text: a wrong type must not turn a `Fatal` into a retryable TypeError."""
    if isinstance(reason, str):
        return reason
    from supervisor.kernel.text import message_text, shown  # which imports this file

    return message_text(reason) if isinstance(reason, BaseException) else shown(reason)


def _check_exit_code(kind: str, exit_code: object) -> None:
    if exit_code is not None and (isinstance(exit_code, bool) or not isinstance(exit_code, int)):
        raise TypeError(f"exit_code of {kind} must be an int or None, got {exit_code!r}")
