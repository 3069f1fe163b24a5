"""One attempt of a step: a call of user code, and what its ending means for the history."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context

from supervisor.durable.decision import Outcome
from supervisor.durable.errors import NonRetryable, PayloadTooLarge, SerializationError
from supervisor.durable.forms import check_size
from supervisor.durable.history import StepCompleted
from supervisor.durable.payload import Json, normal
from supervisor.durable.runtime import RegisteredStep, StepInvocation
from supervisor.kernel.attempt import AttemptResult, Ending, Watch, call
from supervisor.kernel.cancellation import CancelReason, CancelToken
from supervisor.kernel.deadlines import Deadlines
from supervisor.kernel.errors import Fatal
from supervisor.kernel.text import error_text, strip_frames

__all__ = ["Interrupted", "attempt"]


class Interrupted(BaseException):
    """The attempt has no outcome: it is delivered again later.  error: what ended the body, to be raised."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__(error)
        self.error = error


class _Deadline:
    """What happens at the deadline of one attempt: a `WatchObserver`."""

    __slots__ = ("_token",)

    def __init__(self, token: CancelToken) -> None:
        self._token = token

    def timed_out(self) -> Callable[[], None]:
        callbacks = self._token.seal(CancelReason.TIMEOUT) or []
        return lambda: self._token.run_apart(callbacks)

    def overrunning(self, late_by: float) -> None:
        """The verdict is in; the drive goes on when the body has returned."""

    def given_up(self) -> None:
        """No overrun is set."""


def attempt(step: RegisteredStep, invocation: StepInvocation, timers: Deadlines) -> Outcome:
    """Call a step and say what its ending means. On the calling thread, in a context of its own.

    Raises Interrupted if it means nothing: the body was canceled, or ended by KeyboardInterrupt or SystemExit.
    """
    token, watch = invocation.token, None
    if step.timeout is not None:
        deadline = timers.clock.monotonic() + step.timeout
        watch = Watch(timers, deadline, None, _Deadline(token))
    result = copy_context().run(call, step, (invocation,))
    if watch is not None:
        in_time = watch.returned()
        watch.ended()
        if not in_time and token.reason in (None, CancelReason.TIMEOUT):
            return Outcome(error=f"Timeout: {step.name} took longer than {step.timeout:g} s")
    token.forget_callbacks()
    return _outcome(result, step, invocation)


def _outcome(result: AttemptResult, step: RegisteredStep, invocation: StepInvocation) -> Outcome:
    if result.ending is Ending.SUCCEEDED:
        return _completed(result.value, step, invocation.step_id)
    token = invocation.token
    error = result.error
    assert error is not None
    try:
        if token.canceled or isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise Interrupted(None if token.canceled and isinstance(error, Exception) else _passed(error))
        fatal = issubclass(type(error), Fatal | NonRetryable)
        return Outcome(error=error_text(error), retryable=not fatal)
    finally:
        strip_frames(error)
        del error, result  # a frame that holds its own error is a cycle


def _passed(error: BaseException) -> BaseException | None:
    return error if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit) else None


def _completed(value: object, step: RegisteredStep, step_id: str) -> Outcome:
    try:
        output: Json = normal(value, f"output of {step.name}")
        check_size(StepCompleted(step_id, output), output, f"the output of {step.name}")
    except (SerializationError, PayloadTooLarge) as error:
        return Outcome(error=f"{type(error).__name__}: {error}", retryable=False)
    return Outcome(output)
