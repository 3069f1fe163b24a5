"""The walk: from state to state, on the calling thread, until an exit state or an error."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from supervisor.flows.errors import CompensationFailed, FlowError, FlowTimeout, label
from supervisor.flows.lifecycle import StateEntered
from supervisor.flows.task import Environment, FlowRun, Stopped
from supervisor.kernel.cancellation import CancelReason, CancelToken
from supervisor.kernel.deadlines import VERDICT
from supervisor.kernel.errors import Canceled
from supervisor.kernel.text import shown

if TYPE_CHECKING:
    from supervisor.flows.resources import Resources
    from supervisor.flows.workflow import State

__all__ = ["next_run_id", "walk"]

_ids = count(1)


def next_run_id() -> int:
    """Draw the number of a run, unique in the process."""
    return next(_ids)


def walk(
    handlers: Mapping[Hashable, State],
    exits: frozenset[Hashable],
    total_timeout: float | None,
    initial: Hashable,
    res: Resources,
    env: Environment,
    flow_id: str,
    run_id: int,
    token: CancelToken,
) -> Hashable:
    """Walk from `initial` to an exit state and return it.

    total_timeout: seconds for all of it.  token: cancels the run; then `Canceled` is raised.
    What is raised carries flow_id, state, attempt and path. What had finished and can be undone is
    undone first, last first.
    """
    own = token.child()
    run = FlowRun(run_id, flow_id, own, env)
    limit = None if total_timeout is None else _Limit(env, own, total_timeout)
    undo: list[tuple[Hashable, State, Any]] = []
    try:
        return _steps(handlers, exits, initial, res, run, own, limit, undo)
    except BaseException as error:
        failure: BaseException = error
    finally:
        late = limit is not None and limit.end()
        own.forget_callbacks()
    if own.canceled and isinstance(failure, Exception | Stopped | Canceled):
        if late and limit is not None and token.reason is not CancelReason.TIMEOUT:
            failure = _caused(FlowTimeout(limit.elapsed, limit.seconds, "the run"), failure)
        elif isinstance(failure, Stopped | Canceled):
            failure = _caused(Canceled(own.reason), failure)
        # a failure that could not be retried any more stands
    run.mark(failure, run.attempt)
    if undo:
        failure = _compensate(undo, res, run, failure)
    try:
        raise failure
    finally:
        del failure  # a frame that holds its own error is a cycle


class _Limit:
    """The total timeout of one run."""

    __slots__ = ("_alarm", "_clock", "_started", "_token", "seconds")

    def __init__(self, env: Environment, token: CancelToken, seconds: float) -> None:
        self.seconds = seconds
        self._clock = env.clock
        self._token = token
        self._started = env.clock.monotonic()
        self._alarm = env.deadlines.call_at(self._started + seconds, self._expire, VERDICT)

    @property
    def elapsed(self) -> float:
        return max(self._clock.monotonic() - self._started, self.seconds)

    def check(self) -> None:
        """Cancel the run if its time is over: the clock decides, not who looks first."""
        if self._clock.monotonic() - self._started - self.seconds > 1e-9:  # sums of floats are not exact
            self._expire()

    def end(self) -> bool:
        """The run is over; True if it took too long."""
        self.check()
        self._alarm.cancel()
        return self._token.reason is CancelReason.TIMEOUT

    def _expire(self) -> None:
        self._token.run_apart(self._token.seal(CancelReason.TIMEOUT) or [])


def _steps(
    handlers: Mapping[Hashable, State],
    exits: frozenset[Hashable],
    initial: Hashable,
    res: Resources,
    run: FlowRun,
    token: CancelToken,
    limit: _Limit | None,
    undo: list[tuple[Hashable, State, Any]],
) -> Hashable:
    state, tell = initial, run.env.tell
    while True:
        if token.canceled:
            raise Stopped
        run.enter(state)
        if tell is not None:
            tell(StateEntered, label(state))
        if state in exits:
            return state
        handler = handlers[state]
        following, value = handler.perform(res, run, token)
        if handler.compensate is not None:
            undo.append((state, handler, value))
        if limit is not None:
            limit.check()
        if token.canceled:
            raise Stopped
        try:
            known = following in handlers or following in exits
        except TypeError:  # not hashable
            known = False
        if not known:
            raise FlowError(_unknown(following, state, [*handlers, *exits]))
        state = following


def _unknown(following: object, state: Hashable, known: Sequence[Hashable]) -> str:
    names = ", ".join(label(each) for each in known)
    if following is None:
        hint = "a task returns the next state; this one returned None, is a `return` missing?"
        return f"{label(state)} gave no next state: {hint}; known are {names}"
    return f"{label(state)} gave the next state {shown(following)}, which is neither registered nor exit; known are {names}"


def _caused(stop: BaseException, failure: BaseException) -> BaseException:
    stop.__cause__ = failure.__cause__ if isinstance(failure, Stopped) else failure
    return stop


def _compensate(
    undo: list[tuple[Hashable, State, Any]], res: Resources, run: FlowRun, original: BaseException
) -> BaseException:
    """Undo what has finished, last first, each once, past failures; return what the run ends with."""
    failures: list[tuple[Hashable, BaseException]] = []
    while undo:
        state, handler, value = undo.pop()
        try:
            assert handler.compensate is not None
            handler.compensate(res, value)
        except BaseException as error:
            failures.append((state, error))
    if not failures:
        return original
    failed = CompensationFailed(original, failures)
    failed.__cause__ = original
    run.mark(failed, run.attempt)
    return failed
