"""The walk: from state to state, on the calling thread, until an exit state or an error."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from supervisor.flows.errors import CompensationFailed, FlowError, FlowTimeout, label
from supervisor.flows.lifecycle import StateEntered
from supervisor.flows.task import Environment, FlowRun, Stopped
from supervisor.kernel.cancellation import CancelReason, CancelToken
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
    started = env.clock.monotonic()
    own = token if total_timeout is None else token.child(total_timeout)
    run = FlowRun(run_id, flow_id, own, env)
    undo: list[tuple[Hashable, State, Any]] = []
    try:
        return _steps(handlers, exits, initial, res, run, own, undo)
    except BaseException as error:
        failure: BaseException = error
    if own.canceled and isinstance(failure, Exception | Stopped | Canceled):
        failure = _stop_reason(own, token, failure, env.clock.monotonic() - started, total_timeout)
    attempt = 0 if isinstance(failure, FlowTimeout) and own.canceled else run.attempt
    run.mark(failure, attempt)
    if undo:
        failure = _compensate(undo, res, run, failure)
    raise failure


def _steps(
    handlers: Mapping[Hashable, State],
    exits: frozenset[Hashable],
    initial: Hashable,
    res: Resources,
    run: FlowRun,
    token: CancelToken,
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


def _stop_reason(
    own: CancelToken,
    token: CancelToken,
    error: BaseException,
    elapsed: float,
    total_timeout: float | None,
) -> BaseException:
    """Return what a run that was asked to stop ends with."""
    if own.reason is CancelReason.TIMEOUT and not token.canceled and total_timeout is not None:
        stop: BaseException = FlowTimeout(elapsed, total_timeout, "the run")
    elif isinstance(error, Stopped | Canceled):
        stop = Canceled(own.reason)
    else:
        return error  # a failure that could not be retried any more stands
    stop.__cause__ = error.__cause__ if isinstance(error, Stopped) else error
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
