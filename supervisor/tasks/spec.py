"""What a task is: values, checked once, when they are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from datetime import timedelta
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Self, TypedDict, cast, final

from supervisor.kernel.arguments import (
    bind_body,
    callable_name,
    count_or_none,
    keywords,
    limit,
    patience,
    positional,
    seconds,
    text,
)
from supervisor.kernel.backoff import BackoffPolicy
from supervisor.kernel.text import shown

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["INHERIT", "Inherit", "Policy", "RestartPolicy", "TaskDefaults", "TaskSpec", "resolve"]


class Inherit(Enum):
    """The type of `INHERIT`."""

    INHERIT = "INHERIT"

    def __repr__(self) -> str:
        return "INHERIT"


INHERIT: Final = Inherit.INHERIT
"""Take the setting from `TaskDefaults`."""


class Repeat(StrEnum):
    """After which results a task runs again."""

    NEVER = "never"
    ON_FAILURE = "on_failure"
    ALWAYS = "always"


@final
@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a task runs again: `NEVER`, `ON_FAILURE`, or `always(interval)`."""

    NEVER: ClassVar[RestartPolicy]
    ON_FAILURE: ClassVar[RestartPolicy]
    repeat: Repeat
    interval: float | None = None  # seconds from a success to the next attempt; ALWAYS only

    @classmethod
    def always(cls, interval: float | timedelta | None = None) -> RestartPolicy:
        """Run again after every result: `interval` seconds after a success, by backoff otherwise.

        0 and None mean no interval. Raises ValueError or TypeError for what is no duration.
        """
        return cls(Repeat.ALWAYS, None if interval is None else seconds(interval, "interval") or None)

    def __repr__(self) -> str:
        if self.repeat is Repeat.ALWAYS:
            return f"RestartPolicy.always({'' if self.interval is None else repr(self.interval)})"
        return f"RestartPolicy.{self.repeat.name}"


RestartPolicy.NEVER = RestartPolicy(Repeat.NEVER)
RestartPolicy.ON_FAILURE = RestartPolicy(Repeat.ON_FAILURE)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefaults:
    """What a task does where its spec says `INHERIT`. Checked like a `TaskSpec`."""

    restart: RestartPolicy = RestartPolicy.ON_FAILURE
    backoff: BackoffPolicy | None = BackoffPolicy()  # noqa: RUF009  (frozen: it may be shared)
    timeout: float | timedelta | None = None  # seconds; 0, infinity and None mean none
    max_retries: int | None = None  # after the first failure; None means no limit
    overrun: float | timedelta | None = None  # seconds after the deadline; None waits for ever

    def __post_init__(self) -> None:
        _check_restart(self.restart, "restart")
        _check_backoff(self.backoff)
        timeout = limit(self.timeout, "timeout")
        overrun = _check_overrun(self.overrun, timeout)
        count_or_none(self.max_retries, "max_retries", 1, _USE_ONCE)
        _store(self, timeout=timeout, overrun=overrun)


@final
@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What to run, under which name, and what follows each result.

    Use the constructors `once`, `restartable`, `periodic` and `from_defaults`. Each setting is a
    value, None for explicitly off, or `INHERIT` to take it from the supervisor's `TaskDefaults`.

    A body that leaves one required positional parameter after `args` and `kwargs` gets the
    `TaskContext` there, first; one that leaves none is called without.

    Raises ValueError or TypeError that names the field and the value.
    """

    name: str  # unique among the registered tasks of a supervisor
    task: Callable[..., object]
    restart: RestartPolicy | Inherit = INHERIT
    _: KW_ONLY
    timeout: float | timedelta | Inherit | None = INHERIT  # seconds, for each attempt
    backoff: BackoffPolicy | Inherit | None = INHERIT  # None retries at once
    max_retries: int | Inherit | None = INHERIT  # after the first failure; >= 1
    overrun: float | timedelta | Inherit | None = INHERIT  # seconds after the deadline
    args: Sequence[Any] = field(default=(), hash=False)
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    takes_context: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = text(self.name, "name")
        if not isinstance(self.restart, Inherit):
            _check_restart(self.restart, "restart")
        if not isinstance(self.backoff, Inherit):
            _check_backoff(self.backoff)
        timeout = self.timeout
        if not isinstance(timeout, Inherit):
            timeout = limit(timeout, "timeout")
        overrun = self.overrun
        if not isinstance(overrun, Inherit):
            overrun = _check_overrun(overrun, None if isinstance(timeout, Inherit) else timeout)
        if not isinstance(self.max_retries, Inherit):
            retries = count_or_none(self.max_retries, "max_retries", 1, _USE_ONCE)
            if retries is not None and self.restart is RestartPolicy.NEVER:
                raise ValueError(
                    f"max_retries must not be given to a task that runs once, got {retries!r}; "
                    "use TaskSpec.restartable"
                )
        args = positional(self.args, "args")
        kwargs = keywords(self.kwargs, "kwargs")
        takes_context = bind_body(self.task, args, kwargs, f"task {name!r}")
        _store(
            self,
            name=name,
            timeout=timeout,
            overrun=overrun,
            args=args,
            kwargs=kwargs,
            takes_context=takes_context,
        )

    @classmethod
    def once(cls, name: str, task: Callable[..., object], **settings: Unpack[Settings]) -> Self:
        """Return a task that runs once, whatever the result."""
        return cls(name, task, RestartPolicy.NEVER, **settings)

    @classmethod
    def restartable(cls, name: str, task: Callable[..., object], **settings: Unpack[Settings]) -> Self:
        """Return a task that stops after a success and is retried after a failure."""
        return cls(name, task, RestartPolicy.ON_FAILURE, **settings)

    @classmethod
    def periodic(
        cls,
        name: str,
        task: Callable[..., object],
        every: float | timedelta,
        **settings: Unpack[Settings],
    ) -> Self:
        """Return a task that runs again `every` seconds after each success, by backoff after a failure.

        0 means no interval; a guard then keeps 1 ms between the starts of attempts.
        """
        return cls(name, task, RestartPolicy(Repeat.ALWAYS, seconds(every, "every") or None), **settings)

    @classmethod
    def from_defaults(cls, name: str, task: Callable[..., object], **settings: Unpack[Settings]) -> Self:
        """Return a task that takes everything it is not given from the `TaskDefaults`, restart included."""
        return cls(name, task, INHERIT, **settings)

    def replace(self, **changes: Any) -> TaskSpec:
        """Return a copy with some fields changed, checked like a new one."""
        return replace(self, **changes)

    def __repr__(self) -> str:
        settings = "".join(
            f", {each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if each.name in _SETTINGS and getattr(self, each.name) is not INHERIT
        )
        return f"TaskSpec({self.name!r}, {callable_name(self.task)}, {self.restart!r}{settings})"


class Settings(TypedDict, total=False):
    """The keyword arguments that every constructor of `TaskSpec` takes."""

    timeout: float | timedelta | Inherit | None
    """Seconds that an attempt may take; 0, infinity and None mean no limit."""

    backoff: BackoffPolicy | Inherit | None
    """How long to wait after a failure; None retries at once."""

    max_retries: int | Inherit | None
    """Retries after the first failure in a row, at least 1; None means no limit."""

    overrun: float | timedelta | Inherit | None
    """Seconds after the deadline before a body that still runs is given up; None waits for ever."""

    args: Sequence[Any]
    """Positional arguments for the body, after the context."""

    kwargs: Mapping[str, Any]
    """Keyword arguments for the body."""


_SETTINGS = frozenset({"timeout", "backoff", "max_retries", "overrun"})
_USE_ONCE = "for no retry at all use TaskSpec.once"


class Policy(NamedTuple):
    """The settings of one task, spec and defaults merged."""

    restart: RestartPolicy
    backoff: BackoffPolicy | None
    timeout: float | None  # seconds
    max_retries: int | None
    overrun: float | None  # seconds


def resolve(spec: TaskSpec, defaults: TaskDefaults) -> Policy:
    """Merge: what the spec says, else what the defaults say."""
    restart = defaults.restart if isinstance(spec.restart, Inherit) else spec.restart
    timeout = defaults.timeout if isinstance(spec.timeout, Inherit) else spec.timeout
    overrun = defaults.overrun if isinstance(spec.overrun, Inherit) else spec.overrun
    return Policy(
        restart,
        defaults.backoff if isinstance(spec.backoff, Inherit) else spec.backoff,
        cast("float | None", timeout),
        defaults.max_retries if isinstance(spec.max_retries, Inherit) else spec.max_retries,
        cast("float | None", overrun) if timeout is not None else None,
    )


def _check_restart(value: object, field: str) -> None:
    if not isinstance(value, RestartPolicy):
        raise TypeError(f"{field} must be a RestartPolicy, got {shown(value)}")


def _check_backoff(value: object) -> None:
    if value is not None and not isinstance(value, BackoffPolicy):
        raise TypeError(
            f"backoff must be a BackoffPolicy or None, got {shown(value)}; "
            "for a fixed delay use BackoffPolicy.constant(seconds)"
        )


def _check_overrun(value: float | timedelta | None, timeout: float | None) -> float | None:
    overrun = patience(value, "overrun")
    if overrun is not None and timeout is None:
        raise ValueError(
            f"overrun counts from a deadline, got {overrun!r} without a timeout; set timeout too"
        )
    return overrun


def _store(value: object, **changes: object) -> None:
    for name, content in changes.items():
        object.__setattr__(value, name, content)
