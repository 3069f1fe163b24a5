"""A circuit breaker: after several failures in a row, call nobody for a while, then try a few.

The transitions are pure: `admit`, `succeeded`, `failed` and `let_go` take a state and return the next
one. Every state has an epoch, every permit that of the state that gave it; a result that
comes after the state has changed names an older epoch and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, ParamSpec, TypeVar, assert_never, final

from supervisor.flows.errors import CircuitOpen, ConfigurationError
from supervisor.kernel.arguments import callable_name, count, duration
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock
from supervisor.kernel.errors import Canceled

_TICK = 1e-9  # seconds; nearer than this is the same instant, as sums of floats are not exact

__all__ = ["CircuitBreaker", "Closed", "HalfOpen", "Open", "Permit", "Rules", "State"]

P = ParamSpec("P")
T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class Rules:
    """When a breaker changes its state."""

    failure_threshold: int  # failures in a row that open it, >= 1
    reset_timeout: float  # seconds it stays open, [0, inf]
    half_open_calls: int  # probes at once, and successes that close it, >= 1


@final
@dataclass(frozen=True, slots=True)
class Closed:
    """Every call is let through."""

    name: ClassVar[Literal["closed"]] = "closed"
    epoch: int
    failures: int = 0  # in a row


@final
@dataclass(frozen=True, slots=True)
class Open:
    """No call is let through before `until`."""

    name: ClassVar[Literal["open"]] = "open"
    epoch: int
    until: float  # monotonic seconds


@final
@dataclass(frozen=True, slots=True)
class HalfOpen:
    """A few calls are let through, to see."""

    name: ClassVar[Literal["half_open"]] = "half_open"
    epoch: int
    running: int = 0  # probes that have not ended
    successes: int = 0


State = Closed | Open | HalfOpen


def admit(state: State, rules: Rules, now: float) -> tuple[State, bool]:
    """A call asks to be let through at the monotonic instant `now`; the flag is the answer."""
    match state:
        case Closed():
            return state, True
        case Open():
            if state.until - now > _TICK:
                return state, False
            return HalfOpen(state.epoch + 1, running=1), True
        case HalfOpen():
            if state.running >= rules.half_open_calls:
                return state, False
            return replace(state, running=state.running + 1), True
        case _:
            assert_never(state)


def succeeded(state: State, rules: Rules, epoch: int) -> State:
    """A call that was let through in `epoch` succeeded."""
    if state.epoch != epoch:
        return state
    match state:
        case Closed():
            return state if state.failures == 0 else Closed(epoch)
        case HalfOpen():
            if state.successes + 1 >= rules.half_open_calls:
                return Closed(epoch + 1)
            return HalfOpen(epoch, state.running - 1, state.successes + 1)
        case Open():
            return state  # gives no permits
        case _:
            assert_never(state)


def failed(state: State, rules: Rules, epoch: int, now: float) -> State:
    """A call that was let through in `epoch` failed, known at the monotonic instant `now`."""
    if state.epoch != epoch:
        return state
    match state:
        case Closed():
            if state.failures + 1 < rules.failure_threshold:
                return Closed(epoch, state.failures + 1)
            return Open(epoch + 1, now + rules.reset_timeout)
        case HalfOpen():
            return Open(epoch + 1, now + rules.reset_timeout)
        case Open():
            return state  # gives no permits
        case _:
            assert_never(state)


def let_go(state: State, epoch: int) -> State:
    """A call that was let through in `epoch` ended without telling anything."""
    if state.epoch == epoch and isinstance(state, HalfOpen):
        return replace(state, running=state.running - 1)
    return state


@final
class Permit:
    """One call that was let through; to be given back once, what is given back again is ignored."""

    __slots__ = ("clock", "epoch", "used")

    def __init__(self, epoch: int, clock: Clock) -> None:
        self.epoch: int = epoch
        self.clock: Clock = clock  # which tells when the call has failed
        self.used: bool = False


@final
class CircuitBreaker:
    """Stops calling what keeps failing. Any number of tasks, branches and threads may share one.

    failure_threshold: failures in a row that open it; timeouts count, a success starts anew.
    reset_timeout: seconds it stays open; the first call after that is a probe. Infinity: until `reset`.
    half_open_calls: probes that may run at once, and successes that close it again; one failure of a probe
    opens it for another `reset_timeout`.
    clock: None takes the clock of the run that asks; give one if runs on different clocks share it.
    A cooperative stop counts neither way. Raises ConfigurationError for what can't be right.
    """

    __slots__ = ("_clock", "_lock", "_rules", "_state")

    def __init__(
        self,
        failure_threshold: int = 5,
        reset_timeout: float = 30.0,
        half_open_calls: int = 1,
        *,
        clock: Clock | None = None,
    ) -> None:
        try:
            self._rules = Rules(
                count(failure_threshold, "failure_threshold"),
                duration(reset_timeout, "reset_timeout"),
                count(half_open_calls, "half_open_calls"),
            )
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"circuit breaker: {error}") from None
        self._clock = clock
        self._lock = SYSTEM_CLOCK.lock()  # guards _state, and used of every permit
        self._state: State = Closed(0)

    def __repr__(self) -> str:
        return f"<CircuitBreaker {self.state}>"

    @property
    def state(self) -> Literal["closed", "open", "half_open"]:
        """What it is now. An open one turns half-open when the next call asks, not by itself."""
        return self._state.name

    def reset(self) -> None:
        """Close it and forget failures; results of calls that run now are ignored."""
        with self._lock:
            self._state = Closed(self._state.epoch + 1)

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `fn(*args, **kwargs)`, called on this thread.

        Whatever it raises counts as a failure and is raised on; `Canceled` counts neither way.
        Raises CircuitOpen, without a call, while the breaker is open.
        """
        permit = self.admit()
        if permit is None:
            raise CircuitOpen(f"the circuit breaker is {self.state}; {callable_name(fn)} was not called")
        try:
            value = fn(*args, **kwargs)
        except Canceled:
            self.release(permit)
            raise
        except BaseException:
            self.failure(permit)
            raise
        self.success(permit)
        return value

    # For who runs the call

    def admit(self, clock: Clock | None = None) -> Permit | None:
        """Return a permit for one call, None if it must not be made. Never waits.

        clock: of the run; the breaker's own goes before it. Give every permit back, to exactly one of
        `success`, `failure` and `release`.
        """
        own = self._clock or clock or SYSTEM_CLOCK
        now = own.monotonic()
        with self._lock:
            self._state, granted = admit(self._state, self._rules, now)
            epoch = self._state.epoch
        return Permit(epoch, own) if granted else None

    def success(self, permit: Permit) -> None:
        """The call succeeded."""
        with self._lock:
            if not permit.used:
                permit.used = True
                self._state = succeeded(self._state, self._rules, permit.epoch)

    def failure(self, permit: Permit) -> None:
        """The call failed, or its time ran out."""
        now = permit.clock.monotonic()
        with self._lock:
            if not permit.used:
                permit.used = True
                self._state = failed(self._state, self._rules, permit.epoch, now)

    def release(self, permit: Permit) -> None:
        """The call ended in a way that tells nothing about what it called."""
        with self._lock:
            if not permit.used:
                permit.used = True
                self._state = let_go(self._state, permit.epoch)
