# ruff: noqa: N818  (the names say what happened; an Error suffix would add nothing)
"""The error tree of the flow layer.

SupervisorError
└── FlowError                    carries flow_id, state, attempt, path
    ├── ConfigurationError       (ValueError)    refused before anything ran
    ├── FlowTimeout              (TimeoutError)  an attempt or the whole run took too long
    ├── RetryExhausted                           every attempt failed; __cause__ is the last error
    ├── JoinFailed                               the branches of a split did not do what was asked
    ├── CircuitOpen                              the breaker let no call through
    ├── CompensationFailed                       a rollback failed; .original and .failures
    ├── ResourceNotFound         (KeyError)
    ├── ResourceTypeMismatch     (TypeError)
    ├── FlowNotFound             (LookupError)
    ├── FlowAlreadyRunning       (RuntimeError)
    ├── FlowTripped              (RuntimeError)
    ├── SchedulerStopped         (RuntimeError)
    └── StopTimeout              (TimeoutError)  runs ignored the request to stop
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from supervisor.kernel.errors import SupervisorError
from supervisor.kernel.text import message_text, shown, type_name

if TYPE_CHECKING:
    from supervisor.flows.join import SplitResult

__all__ = [
    "CircuitOpen",
    "CompensationFailed",
    "ConfigurationError",
    "FlowAlreadyRunning",
    "FlowError",
    "FlowNotFound",
    "FlowTimeout",
    "FlowTripped",
    "JoinFailed",
    "ResourceNotFound",
    "ResourceTypeMismatch",
    "RetryExhausted",
    "SchedulerStopped",
    "StopTimeout",
    "brief",
    "label",
    "where",
]

_FIRST, _LAST = 3, 9  # states of a long path that the text of an error shows


def label(state: Hashable) -> str:
    """Return a state as people name it: `S.FETCH` for an enum member, else its repr."""
    from enum import Enum

    if isinstance(state, Enum):
        return f"{type(state).__name__}.{state.name}"
    return shown(state)


def where(flow_id: str | None, state: Hashable | None, attempt: int, path: Sequence[Hashable]) -> str:
    """Return the place of an error in words, empty when nothing is known."""
    parts = [f"flow {flow_id!r}"] if flow_id is not None else []
    if state is not None:
        parts.append(f"state {label(state)}")
        parts.append(f"attempt {attempt}")
    if len(path) > _FIRST + _LAST:
        between = f"... ({len(path) - _FIRST - _LAST} more)"
        shown_path = [*map(label, path[:_FIRST]), between, *map(label, path[-_LAST:])]
        parts.append("path " + " > ".join(shown_path))
    elif path:
        parts.append("path " + " > ".join(map(label, path)))
    return ", ".join(parts)


def brief(error: BaseException) -> str:
    """Return an error in one line, for the text of another that names its place itself."""
    if isinstance(error, FlowError):
        return f"{type_name(error)}: {error.reason}"
    return message_text(error)


class FlowError(SupervisorError):
    """Root of the errors of this layer; its text ends with where it happened, once."""

    flow_id: str | None = None
    state: Hashable | None = None
    attempt: int = 0  # 0 where no body was called
    path: tuple[Hashable, ...] = ()  # states entered, in order

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), self.args, self.__dict__)

    def at(self, flow_id: str | None, state: Hashable | None, attempt: int, path: Sequence[Hashable]) -> None:
        """Say where it happened; the first to say it is nearest to it and is kept."""
        if not self.path and self.state is None and self.flow_id is None:
            self.flow_id, self.state, self.attempt, self.path = flow_id, state, attempt, tuple(path)

    def __str__(self) -> str:
        flow_id = self.flow_id
        if flow_id is not None and f"flow {flow_id!r}" in self.reason:
            flow_id = None  # said already
        place = where(flow_id, self.state, self.attempt, self.path)
        return f"{self.reason} ({place})" if place else self.reason


def _again(cls: type[FlowError], args: tuple[object, ...], state: dict[str, object]) -> FlowError:
    """Make an error that was pickled or copied: what its `__init__` took is in its fields."""
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


class ConfigurationError(FlowError, ValueError):
    """A workflow or a schedule can't be right; nothing was changed and nothing ran."""


class FlowTimeout(FlowError, TimeoutError):
    """An attempt, or a whole run, took longer than allowed."""

    def __init__(self, elapsed: float, limit: float, what: str) -> None:
        FlowError.__init__(self, f"{what} timed out: {elapsed:g} s, the limit is {limit:g} s")
        self.elapsed = elapsed  # seconds
        self.limit = limit  # seconds


class RetryExhausted(FlowError):
    """Every attempt failed; `__cause__` is the last error."""

    def __init__(self, attempts: int, last: BaseException) -> None:
        FlowError.__init__(self, f"failed {attempts} times, the last with {brief(last)}")
        self.attempts = attempts


class JoinFailed(FlowError):
    """The branches of a split did not satisfy its join."""

    def __init__(self, reason: str, result: SplitResult) -> None:
        super().__init__(reason)
        self.result = result


class CircuitOpen(FlowError):
    """The circuit breaker is open; the body was not called."""


class CompensationFailed(FlowError):
    """The run failed with `original`, and undoing what had finished failed too."""

    def __init__(self, original: BaseException, failures: Sequence[tuple[Hashable, BaseException]]) -> None:
        undone = "; ".join(f"{label(state)}: {brief(error)}" for state, error in failures)
        super().__init__(f"compensation failed for {undone}; the run had failed with {brief(original)}")
        self.original = original
        self.failures: list[tuple[Hashable, BaseException]] = list(failures)


class ResourceNotFound(FlowError, KeyError):
    """No resource has this key."""

    def __str__(self) -> str:
        return FlowError.__str__(self)  # that of KeyError shows the repr


class ResourceTypeMismatch(FlowError, TypeError):
    """The resource is of another type than asked for."""


class FlowNotFound(FlowError, LookupError):
    """No flow has this id."""


class FlowAlreadyRunning(FlowError, RuntimeError):
    """One run at a time: the flow has one in progress."""


class FlowTripped(FlowError, RuntimeError):
    """The flow failed too often in a row; `reset_flow` lets it run again."""


class SchedulerStopped(FlowError, RuntimeError):
    """The scheduler has stopped, or the builder was used up by `start`."""


class StopTimeout(FlowError, TimeoutError):
    """Runs ignored the request to stop, or tear-downs did not end; `flows` names them."""

    def __init__(self, flows: Sequence[str], timeout: float, torn: Sequence[str] = ()) -> None:
        told: list[str] = []
        if flows:
            told.append(
                f"flows still run after {timeout:g} s and a request to cancel: {', '.join(map(repr, flows))}; "
                "let their tasks watch run.token"
            )
        if torn:
            told.append(f"the tear-down has not ended of {', '.join(map(repr, torn))}")
        super().__init__("; ".join(told))
        self.running: tuple[str, ...] = tuple(flows)  # whose run ignored the request
        self.torn: tuple[str, ...] = tuple(torn)  # whose tear-down has not ended
        self.flows: tuple[str, ...] = (*self.running, *self.torn)
        self.timeout: float = timeout  # seconds, as asked for
