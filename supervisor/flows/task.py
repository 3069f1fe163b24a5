"""One task of a state or a branch: what it is, and its attempts until one succeeds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from supervisor.flows.breaker import CircuitBreaker
from supervisor.flows.errors import (
    CircuitOpen,
    ConfigurationError,
    FlowError,
    FlowTimeout,
    RetryExhausted,
    label,
    where,
)
from supervisor.flows.lifecycle import FlowTaskRetrying
from supervisor.kernel.arguments import arity, callable_name, count, limit
from supervisor.kernel.attempt import AttemptResult, Ending, Watch, call
from supervisor.kernel.backoff import BackoffPolicy, Draws, draw_from
from supervisor.kernel.cancellation import CancelReason, CancelToken
from supervisor.kernel.clock import Clock
from supervisor.kernel.deadlines import Deadlines
from supervisor.kernel.text import error_text, shown

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from supervisor.flows.join import SplitResult
    from supervisor.flows.resources import Resources

__all__ = ["FLOW_TASK_BACKOFF", "Environment", "FlowRun", "FlowTask", "Stopped"]

FLOW_TASK_BACKOFF: Final = BackoffPolicy(initial=0.1, multiplier=2.0, max_delay=30.0, jitter=0.1)
"""What a task waits between its attempts until told otherwise."""

_PIECE = 30.0  # seconds; a wait for the wall clock is never longer, a step of it is noticed

Tell = Callable[..., None]  # an event class, then its values after `flow_id`


class Environment:
    """What a run stands on: time, chance, events, and the thread that looks at deadlines."""

    __slots__ = ("clock", "deadlines", "rng", "tell")

    def __init__(self, clock: Clock, deadlines: Deadlines, rng: Draws, tell: Tell | None) -> None:
        self.clock: Clock = clock
        self.deadlines: Deadlines = deadlines
        self.rng: Draws = rng
        self.tell: Tell | None = tell  # None: nobody listens


class FlowRun:
    """What a task can ask of the run it is part of. Branches of a split have one each."""

    __slots__ = ("_path", "_splits", "attempt", "env", "flow_id", "id", "state", "token")

    def __init__(
        self,
        id: int,
        flow_id: str,
        token: CancelToken,
        env: Environment,
        path: list[Hashable] | None = None,
        splits: dict[Hashable, SplitResult] | None = None,
    ) -> None:
        self.env: Environment = env  # for the library
        self.id: int = id  # number of the run, unique in the process
        self.flow_id: str = flow_id  # of the schedule; of a direct run, a name of its own
        self.token: CancelToken = token  # cancel token: `wait`, `sleep`, `check`, `on_cancel`, `child`
        self.state: Hashable = None  # the current one
        self.attempt: int = 0  # of the current task, from 1
        self._path: list[Hashable] = [] if path is None else path
        self._splits: dict[Hashable, SplitResult] = {} if splits is None else splits

    def __repr__(self) -> str:
        return f"<FlowRun {self.flow_id!r} #{self.id} in {label(self.state)}, attempt {self.attempt}>"

    @property
    def path(self) -> tuple[Hashable, ...]:
        """The states entered, in order, the current one included."""
        return tuple(self._path)

    @property
    def splits(self) -> Mapping[Hashable, SplitResult]:
        """What the splits before this state gave, by their state."""
        return MappingProxyType(self._splits)

    def branch(self, token: CancelToken) -> FlowRun:
        """Return the same run as one branch of its state sees it."""
        twin = FlowRun(self.id, self.flow_id, token, self.env, self._path, self._splits)
        twin.state = self.state
        return twin

    def enter(self, state: Hashable) -> None:
        """Go on to a state: for the walk."""
        self.state = state
        self.attempt = 0
        self._path.append(state)

    def keep(self, result: SplitResult) -> None:
        """Keep what the split of this state gave: for the walk."""
        self._splits[self.state] = result

    def wait_until(self, instant: datetime) -> None:
        """Pause until a UTC instant, whatever steps the wall clock takes; raises `Canceled`."""
        while (left := (instant - self.env.clock.now()).total_seconds()) > 0.0:
            self.token.sleep(min(left, _PIECE))

    def mark(self, error: BaseException, attempt: int) -> None:
        """Say on an error where it happened: as fields on ours, as a note on a user's."""
        if issubclass(type(error), FlowError):  # `isinstance` asks the object, which may be hostile
            assert isinstance(error, FlowError)
            error.at(self.flow_id, self.state, attempt, self._path)
            return
        note = "in " + where(self.flow_id, self.state, attempt, self._path)
        try:
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
        except Exception:  # an exception that takes no notes
            return


def unmark(error: BaseException) -> None:
    """Take the notes of `mark` back: an object that is raised again and again would pile them up."""
    try:
        notes = error.__notes__
        notes[:] = [note for note in notes if type(note) is not str or not note.startswith("in flow ")]
    except Exception:  # it has none, or is hostile
        return


class Stopped(BaseException):
    """The run was asked to stop: unwinds to where its reason is known. Never seen by users."""


class _Deadline:
    """What happens at the deadline of one attempt: a `WatchObserver`."""

    __slots__ = ("_deaf", "token")

    def __init__(self, token: CancelToken, deaf: Callable[[], None] | None) -> None:
        self.token = token
        self._deaf = deaf

    def timed_out(self) -> Callable[[], None]:
        callbacks = self.token.seal(CancelReason.TIMEOUT) or []

        def after() -> None:
            if self._deaf is not None:
                self._deaf()
            if callbacks:
                self.token.run_apart(callbacks)

        return after

    def overrunning(self, late_by: float) -> None:
        """A flow reports no overruns; its result is decided already."""

    def given_up(self) -> None:
        """A flow sets no overrun."""


class FlowTask:
    """One task with its settings. Raises ConfigurationError for what can't be right."""

    __slots__ = ("_arity", "_body", "backoff", "breaker", "max_retries", "name", "timeout")

    def __init__(
        self,
        task: object,
        *,
        what: str,
        max_retries: int = 0,
        backoff: BackoffPolicy | None = FLOW_TASK_BACKOFF,
        timeout: float | timedelta | None = None,
        breaker: CircuitBreaker | None = None,
        name: str | None = None,
    ) -> None:
        try:
            body, self._arity = body_of(task, what)
            self.max_retries: int = count(max_retries, f"{what}: max_retries", 0)
            self.timeout: float | None = limit(timeout, f"{what}: timeout")
        except (TypeError, ValueError) as error:
            raise ConfigurationError(str(error)) from None
        if breaker is not None and not isinstance(breaker, CircuitBreaker):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"{what}: breaker must be a CircuitBreaker or None, got {shown(breaker)}"
            )
        if backoff is not None and not isinstance(backoff, BackoffPolicy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"{what}: backoff must be a BackoffPolicy or None, got {shown(backoff)}")
        self._body = body
        self.backoff: BackoffPolicy | None = backoff
        self.breaker: CircuitBreaker | None = breaker
        self.name: str = callable_name(task) if name is None else name

    def invoke(self, res: Resources, run: FlowRun) -> AttemptResult:
        """Call the body once, with as many arguments as it takes."""
        if self._arity == 1:
            return call(self._body, (res,))
        if self._arity == 0:
            return call(self._body)
        return call(self._body, (res, run))

    def perform(
        self,
        res: Resources,
        run: FlowRun,
        token: CancelToken,
        deaf: Callable[[BaseException], None] | None = None,
    ) -> Any:
        """Run attempts until one succeeds and return its value. On the calling thread.

        token: of the run or branch; each attempt with a timeout has one below it.  deaf: told at
        the deadline of the last attempt, while its body still runs.
        Raises what the last attempt raised, `RetryExhausted`, `CircuitOpen`, or `Stopped` once the
        token is canceled.
        """
        attempt, env = 0, run.env
        while True:
            attempt += 1
            permit = None
            if self.breaker is not None:
                permit = self.breaker.admit(env.clock)
                if permit is None:
                    run.attempt = 0
                    raise CircuitOpen(f"the circuit breaker of {self.name} is open; its body was not called")
            run.attempt = attempt
            last = attempt > self.max_retries
            try:
                if self.timeout is None:
                    run.token = token
                    result = self.invoke(res, run)
                else:
                    result = self._timed(res, run, token, deaf if last else None)
            except BaseException:  # a Ctrl-C that fell beside the body
                if self.breaker is not None and permit is not None:
                    self.breaker.release(permit)
                raise
            ending = result.ending
            if self.breaker is not None and permit is not None:
                if ending is Ending.SUCCEEDED:
                    self.breaker.success(permit)
                elif ending is Ending.CANCELED or token.canceled:
                    self.breaker.release(permit)
                else:
                    self.breaker.failure(permit)
            if ending is Ending.SUCCEEDED:
                return result.value
            error = result.error
            assert error is not None
            try:
                if ending is Ending.CANCELED or ending is Ending.FATAL or ending is Ending.PANICKED:
                    raise error
                if token.canceled:
                    raise Stopped from error
                if last:
                    raise self._exhausted(error, attempt)
                self._pause(run, token, error)
            finally:
                del error, result  # a frame that holds its own error is a cycle

    def _timed(
        self,
        res: Resources,
        run: FlowRun,
        token: CancelToken,
        deaf: Callable[[BaseException], None] | None,
    ) -> AttemptResult:
        """Run one attempt under its deadline."""
        assert self.timeout is not None
        env = run.env
        started, timeout = env.clock.monotonic(), self.timeout
        run.token = own = token.child()
        attempt = run.attempt

        def timeout_error(elapsed: float) -> FlowTimeout:
            return FlowTimeout(elapsed, timeout, f"attempt {attempt} of {self.name}")

        def tell_deaf() -> None:
            if deaf is not None:
                deaf(self._exhausted(timeout_error(timeout), attempt))

        watch = Watch(env.deadlines, started + timeout, None, _Deadline(own, tell_deaf))
        result = self.invoke(res, run)
        if not watch.returned():
            result = AttemptResult(Ending.TIMED_OUT, None, timeout_error(env.clock.monotonic() - started))
        watch.ended()
        own.forget_callbacks()
        try:
            return result
        finally:
            del result  # this frame lives as long as the traceback of the error does

    def _exhausted(self, error: BaseException, attempts: int) -> BaseException:
        if self.max_retries == 0:
            return error
        if isinstance(error, FlowTimeout):
            exhausted: RetryExhausted = RetriesTimedOut(attempts, error)
        else:
            exhausted = RetryExhausted(attempts, error)
        exhausted.__cause__ = error
        return exhausted

    def _pause(self, run: FlowRun, token: CancelToken, error: BaseException) -> None:
        env = run.env
        delay = 0.0 if self.backoff is None else self.backoff.delay(run.attempt, draw_from(env.rng))
        if env.tell is not None:
            text = error_text(error)
            env.tell(FlowTaskRetrying, label(run.state), self.name, run.attempt, delay, text)
        error.with_traceback(None)
        if delay > 0.0 and token.wait(delay):
            raise Stopped from error


class RetriesTimedOut(RetryExhausted, FlowTimeout):
    """Every attempt failed, the last one at its deadline: both errors in one."""

    def __init__(self, attempts: int, last: FlowTimeout) -> None:
        RetryExhausted.__init__(self, attempts, last)
        self.elapsed: float = last.elapsed
        self.limit: float = last.limit


def body_of(task: object, what: str) -> tuple[Callable[..., object], int]:
    """Return what to call and with how many arguments (0, 1 or 2): a callable, or its `run` method.

    Raises TypeError for anything else.
    """
    body: Any = task if callable(task) else getattr(task, "run", None)
    if not callable(body):
        raise TypeError(f"{what} must be callable or have a method run, got {shown(task)}")
    takes = arity(body, what)
    if takes > 2:
        raise TypeError(
            f"{what}: {callable_name(task)} needs {takes} arguments; a task takes none, (res), or (res, run)"
        )
    return body, takes


def check_call(fn: object, what: str, given: int) -> None:
    """Refuse what can't be called with so many arguments, or whose call would run nothing.

    Raises ConfigurationError.
    """
    if not callable(fn):
        raise ConfigurationError(f"{what} must be callable, got {shown(fn)}")
    try:
        needed = arity(fn, what)
    except TypeError as error:
        raise ConfigurationError(str(error)) from None
    if needed > given:
        raise ConfigurationError(
            f"{what}: {callable_name(fn)} needs {needed} arguments, and is called with {given}"
        )
