"""What a running body can ask and say."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from supervisor.kernel.cancellation import CancelReason, CancelToken, Undo
from supervisor.kernel.clock import Clock

if TYPE_CHECKING:
    from logging import Logger

__all__ = ["TaskContext", "current_context"]

_Closer = Callable[[BaseException | None], object]
_traceback_of = BaseException.__dict__["__traceback__"].__get__  # a class may have hidden it

T = TypeVar("T")
P = ParamSpec("P")


class Task(Protocol):
    """What a context tells of the task it belongs to."""

    name: str
    id: int
    token: CancelToken

    @property
    def clock(self) -> Clock: ...


class TaskContext:
    """One attempt, seen from inside its body. It may be handed to threads that the body starts.

    `name` and `id` are those of the task, `attempt` counts from 1, `deadline` is in seconds on the
    monotonic clock, None without a timeout.
    """

    __slots__ = ("_closers", "_over", "_run", "_task", "_token", "attempt", "deadline")

    def __init__(self, task: Task, attempt: int, deadline: float | None) -> None:
        self.attempt: int = attempt  # from 1
        self.deadline: float | None = deadline  # on the monotonic clock, in seconds; None without a timeout
        self._task = task
        self._run = run = task.token  # the attempt's own token is made when it is needed
        self._token: CancelToken | None = None if deadline is None else run.child()
        self._closers: list[_Closer] | None = None
        self._over = False

    def __repr__(self) -> str:
        return f"<TaskContext {self.name!r} #{self.id} attempt {self.attempt}>"

    @property
    def name(self) -> str:
        """The name of the task."""
        return self._task.name

    @property
    def id(self) -> int:
        """The id of the task."""
        return self._task.id

    @property
    def token(self) -> CancelToken:
        """The cancel token of this attempt: canceled by its deadline, and with its task."""
        token = self._token
        if token is None:
            made = self._run.child()
            with made.lock:  # threads of the body may ask at once
                if self._token is None:
                    self._token = made
                token = self._token
        return token

    @property
    def canceled(self) -> bool:
        """True as soon as the attempt is asked to stop."""
        return (self._token or self._run).canceled

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why it was asked to stop; None before."""
        return (self._token or self._run).reason

    @property
    def logger(self) -> Logger:
        """The logger of this task, `supervisor.task.NAME`."""
        from logging import getLogger

        return getLogger(f"supervisor.task.{self.name}")

    def remaining(self) -> float | None:
        """Return the seconds to the deadline, never negative; None without a timeout.

        Good as the timeout of a blocking call, which nothing can interrupt from outside.
        """
        return None if self.deadline is None else max(0.0, self.deadline - self._task.clock.monotonic())

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Pause at most `timeout` seconds; True as soon as the attempt is asked to stop."""
        return self.token.wait(timeout)

    def sleep(self, seconds: float | timedelta) -> None:
        """Pause; raises `Canceled` as soon as the attempt is asked to stop."""
        self.token.sleep(seconds)

    def check(self) -> None:
        """Raise `Canceled` if the attempt was asked to stop."""
        (self._token or self._run).check()

    def on_cancel(self, fn: Callable[[], object]) -> Undo:
        """Call `fn()` once when the attempt is asked to stop, at once if it was already.

        The way to wake a blocking call: close its socket, kill its subprocess. `fn` runs on the
        thread that cancels; what it raises is logged. It is forgotten when the attempt ends.
        Returns a function that takes the registration back.
        """
        return self.token.on_cancel(fn)

    def child(self, timeout: float | timedelta | None = None) -> CancelToken:
        """Return a token below this attempt's, canceled with TIMEOUT after `timeout` seconds."""
        return self.token.child(timeout)

    def enter_context(self, cm: AbstractContextManager[T, Any]) -> T:
        """Enter `cm` and leave it when the attempt has ended; return what it gave.

        Its `__exit__` is told what the attempt failed with (for a missed deadline a `Timeout`), so that a
        transaction can roll back; what it returns is ignored: the failure stands.
        """
        self._check_running()
        exit = type(cm).__exit__  # looked up first: what can't be left is not entered
        value = type(cm).__enter__(cm)

        def leave(error: BaseException | None) -> object:
            if error is None:
                return exit(cm, None, None, None)
            return exit(cm, type(error), error, _traceback_of(error))

        self._add_closer(leave)
        return value

    def callback(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call `fn(*args, **kwargs)` when the attempt has ended, last registered first."""
        if not callable(fn):
            raise TypeError(f"callback needs a callable, got {fn!r}")
        self._add_closer(lambda _: fn(*args, **kwargs))

    def _check_running(self) -> None:
        if self._over:
            raise RuntimeError(
                f"attempt {self.attempt} of {self.name!r} has ended, nothing would close this; "
                "register it while the body runs"
            )

    def _add_closer(self, closer: _Closer) -> None:
        self._check_running()
        if self._closers is None:
            self._closers = []
        self._closers.append(closer)

    # For the actor

    def close(self, result: BaseException | None) -> BaseException | None:
        """End the attempt: run the closers, last first, whatever the others do; return the first error.

        What was to be called when it is canceled is forgotten, and what the body has left waiting on
        its context, in threads of its own, is told to stop.  result: what the attempt failed with. A
        closer that lets it pass has not failed itself.
        """
        first: BaseException | None = None
        while self._closers:
            try:
                self._closers.pop()(result)
            except BaseException as error:
                if first is None and error is not result:
                    first = error
        self._over = True
        if self._token is not None:
            self._token.forget_callbacks()
            self._token.seal(CancelReason.REQUESTED)
        return first


_current: ContextVar[TaskContext | None] = ContextVar("supervisor_context", default=None)


def current_context() -> TaskContext | None:
    """Return the context of the body that is running here; None outside of one."""
    return _current.get()


enter: Callable[[TaskContext], object] = _current.set
"""Make a context the current one, in the contextvars context of its attempt."""
