"""What a history is made of: events, each a value of its own, in envelopes.

The JSON form of both is stable: format version 1. An event is a JSON object with its `type` and its
fields; optional fields that are None are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, ClassVar, Self, cast

from supervisor.durable.errors import CorruptHistory, SerializationError
from supervisor.durable.instants import read_instant, written
from supervisor.durable.payload import Json, encode, normal
from supervisor.durable.retry import RetryPolicy
from supervisor.kernel.arguments import instant
from supervisor.kernel.text import shown

__all__ = [
    "FORMAT_VERSION",
    "LONGEST_NAME",
    "Envelope",
    "FlowEvent",
    "RunCancellationRequested",
    "RunCancelled",
    "RunCompleted",
    "RunCreated",
    "RunFailed",
    "RunRetryExhausted",
    "RunStarted",
    "SignalReceived",
    "SignalWaitCompleted",
    "SignalWaitCreated",
    "StepCancelled",
    "StepCompleted",
    "StepCreated",
    "StepFailed",
    "StepNonRetryable",
    "StepRetrying",
    "StepStarted",
    "WaitCompleted",
    "WaitCreated",
    "check_event",
    "check_form",
    "check_size",
    "event_from_dict",
]

FORMAT_VERSION = 1
_FEW_DIGITS = 2**63  # ints below need no look at their length
LONGEST_NAME = 500  # characters of an id or a name: what the index of any database holds


@dataclass(frozen=True, slots=True)
class FlowEvent:
    """Something that happened to a run."""

    type: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: `type` first, then the fields in order."""
        shape = _SHAPES[type(self)]
        found: dict[str, Any] = {"type": shape.label}
        for name, convert in shape.writers:
            value = getattr(self, name)
            if convert is not None and value is not None:
                value = convert(value)
            if value is not None or name in shape.required:
                found[name] = value
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the event of a JSON form. Raises SerializationError for what is none of this class."""
        found = event_from_dict(data)
        if not isinstance(found, cls):
            raise SerializationError("event", f"must be of type {cls.type!r}, got {found.type!r}")
        return found


@dataclass(frozen=True, slots=True)
class RunCreated(FlowEvent):
    """The first event of every run.  spec: `name` and `version` of the workflow."""

    type: ClassVar[str] = "run_created"
    spec: Json
    input: Json = None


@dataclass(frozen=True, slots=True)
class RunStarted(FlowEvent):
    """The run was driven for the first time."""

    type: ClassVar[str] = "run_started"


@dataclass(frozen=True, slots=True)
class RunCompleted(FlowEvent):
    """The workflow has returned."""

    type: ClassVar[str] = "run_completed"
    output: Json = None


@dataclass(frozen=True, slots=True)
class RunFailed(FlowEvent):
    """The workflow has failed, or a step with a policy that fails the run."""

    type: ClassVar[str] = "run_failed"
    error: str


@dataclass(frozen=True, slots=True)
class RunRetryExhausted(FlowEvent):
    """A step has used up its attempts, and its policy fails the run."""

    type: ClassVar[str] = "run_retry_exhausted"
    step_id: str
    attempt: int  # from 1
    error: str


@dataclass(frozen=True, slots=True)
class RunCancellationRequested(FlowEvent):
    """Somebody wants the run to end; it may clean up.  request: `reason`, if there is one."""

    type: ClassVar[str] = "run_cancellation_requested"
    request: Json = field(default_factory=dict[str, Any])

    @property
    def reason(self) -> str | None:
        """Why, as the caller said it."""
        return cast("dict[str, Any]", self.request).get("reason")


@dataclass(frozen=True, slots=True)
class RunCancelled(FlowEvent):
    """The run has ended because somebody wanted it."""

    type: ClassVar[str] = "run_cancelled"
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class StepCreated(FlowEvent):
    """The workflow asked for a step. What it asked for can't change any more."""

    type: ClassVar[str] = "step_created"
    step_id: str
    step_name: str
    input: Json = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        retry: object = self.retry
        if isinstance(retry, RetryPolicy):
            return
        if not isinstance(retry, Mapping):
            raise TypeError(f"retry must be a RetryPolicy, got {shown(retry)}; RetryPolicy.default() is one")
        object.__setattr__(self, "retry", RetryPolicy.from_dict(cast("Mapping[str, Any]", retry)))


@dataclass(frozen=True, slots=True)
class StepStarted(FlowEvent):
    """An attempt is about to be called."""

    type: ClassVar[str] = "step_started"
    step_id: str
    attempt: int  # from 1


@dataclass(frozen=True, slots=True)
class StepCompleted(FlowEvent):
    """The running attempt has returned."""

    type: ClassVar[str] = "step_completed"
    step_id: str
    output: Json = None


@dataclass(frozen=True, slots=True)
class StepRetrying(FlowEvent):
    """The attempt has failed and another follows."""

    type: ClassVar[str] = "step_retrying"
    step_id: str
    attempt: int  # the one that failed
    error: str
    retry_after: datetime | None = None  # UTC; None for at once

    def __post_init__(self) -> None:
        if self.retry_after is not None:
            object.__setattr__(self, "retry_after", _instant(self.retry_after, "retry_after"))


@dataclass(frozen=True, slots=True)
class StepFailed(FlowEvent):
    """The last attempt has failed."""

    type: ClassVar[str] = "step_failed"
    step_id: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class StepNonRetryable(FlowEvent):
    """The attempt has failed in a way that no further attempt can mend."""

    type: ClassVar[str] = "step_non_retryable"
    step_id: str
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class StepCancelled(FlowEvent):
    """The step was given up while it was open; whether it had an effect is not known."""

    type: ClassVar[str] = "step_cancelled"
    step_id: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class WaitCreated(FlowEvent):
    """The workflow waits for an instant."""

    type: ClassVar[str] = "wait_created"
    wait_id: str
    resume_at: datetime  # UTC

    def __post_init__(self) -> None:
        object.__setattr__(self, "resume_at", _instant(self.resume_at, "resume_at"))


@dataclass(frozen=True, slots=True)
class WaitCompleted(FlowEvent):
    """The instant has come."""

    type: ClassVar[str] = "wait_completed"
    wait_id: str


@dataclass(frozen=True, slots=True)
class SignalReceived(FlowEvent):
    """Somebody sent a signal.  signal: `signal_id`, `name` and `payload`."""

    type: ClassVar[str] = "signal_received"
    signal: Json

    @property
    def signal_id(self) -> str:
        """Its own id."""
        return cast("str", self.signal["signal_id"])

    @property
    def name(self) -> str:
        """What a wait asks for."""
        return cast("str", self.signal["name"])

    @property
    def payload(self) -> Json:
        """What came with it."""
        return self.signal.get("payload")


@dataclass(frozen=True, slots=True)
class SignalWaitCreated(FlowEvent):
    """The workflow waits for a signal."""

    type: ClassVar[str] = "signal_wait_created"
    wait_id: str
    signal_name: str


@dataclass(frozen=True, slots=True)
class SignalWaitCompleted(FlowEvent):
    """The oldest signal of the name went to the oldest wait for it."""

    type: ClassVar[str] = "signal_wait_completed"
    wait_id: str
    signal_id: str


def _instant(value: object, name: str) -> datetime:
    return read_instant(value) if isinstance(value, str) else instant(value, name)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME and "\0" not in value


def _is_attempt(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**32


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_spec(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_name(value.get(each)) for each in ("name", "version"))  # pyright: ignore[reportUnknownMemberType]


def _is_signal(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_name(value.get(each)) for each in ("signal_id", "name"))  # pyright: ignore[reportUnknownMemberType]


def _is_request(value: Any) -> bool:
    return isinstance(value, dict) and _is_text_or_none(value.get("reason"))  # pyright: ignore[reportUnknownMemberType]


_Check = tuple[Callable[[Any], bool], str]
"""What a field must be, as a test and in words."""

_NAME: _Check = _is_name, f"text of at most {LONGEST_NAME} characters without NUL"
# Whatever is not named here is any JSON value, or is checked by its own class: instants.
_CHECKS: dict[str, _Check] = {
    "attempt": (_is_attempt, "a number from 0 to 4294967295"),
    "error": (_is_text, "text"),
    "reason": (_is_text, "text"),
    "request": (_is_request, "an object whose reason, if it has one, is text"),
    "retry": (_is_object, "an object"),
    "signal": (_is_signal, f"an object with signal_id and name, each {_NAME[1]}"),
    "signal_id": _NAME,
    "signal_name": _NAME,
    "spec": (_is_spec, f"an object with name and version, each {_NAME[1]}"),
    "step_id": _NAME,
    "step_name": _NAME,
    "wait_id": _NAME,
}
_WRITERS: dict[str, Callable[[Any], Any]] = {
    "retry": RetryPolicy.to_dict,
    "retry_after": written,
    "resume_at": written,
}


_Field = tuple[str, Callable[[Any], Any] | None, bool, Callable[[Any], bool] | None, str]
"""Its name, how it is written, whether it is left out when None, and what it must be, as a test and in words."""


class _Shape:
    """How the events of one class are written and read."""

    __slots__ = ("checks", "cls", "converted", "label", "names", "plan", "required", "writers")

    def __init__(self, cls: type[FlowEvent]) -> None:
        names = tuple(each.name for each in fields(cls))
        optional = {each.name for each in fields(cls) if each.default is None and each.name in _LEFT_OUT}
        self.cls = cls
        self.label: str = cls.type
        self.names = names
        self.converted = tuple(name for name in names if name in _WRITERS)  # checked when they are made
        self.required = frozenset(names) - optional
        self.writers = tuple((name, _WRITERS.get(name)) for name in names)
        self.checks: list[tuple[str, Callable[[Any], bool], str]] = []
        for name in names:
            if name in _CHECKS:
                check, wanted = (_is_text_or_none, "text") if name in optional else _CHECKS[name]
                self.checks.append((name, check, wanted))
        tests = {name: (check, wanted) for name, check, wanted in self.checks}
        self.plan: list[_Field] = []
        for name, convert in self.writers:
            test, wanted = tests.get(name, (None, ""))
            self.plan.append((name, convert, name in optional, test, wanted))


_LEFT_OUT = {"reason", "retry_after"}  # when None
_SHAPES: dict[type[FlowEvent], _Shape] = {
    each: _Shape(each)
    for each in (
        RunCreated,
        RunStarted,
        RunCompleted,
        RunFailed,
        RunRetryExhausted,
        RunCancellationRequested,
        RunCancelled,
        StepCreated,
        StepStarted,
        StepCompleted,
        StepRetrying,
        StepFailed,
        StepNonRetryable,
        StepCancelled,
        WaitCreated,
        WaitCompleted,
        SignalReceived,
        SignalWaitCreated,
        SignalWaitCompleted,
    )
}
_LABELS: dict[str, _Shape] = {each.label: each for each in _SHAPES.values()}


def event_from_dict(data: Mapping[str, Any]) -> FlowEvent:
    """Return the event of a JSON form. Raises SerializationError for what is none."""
    given: object = data
    if type(given) is not dict and not isinstance(given, Mapping):
        raise SerializationError("event", f"must be an object, got {shown(data)}")
    values = dict(data)
    label = values.pop("type", None)
    shape = _LABELS.get(label) if isinstance(label, str) else None
    if shape is None:
        raise SerializationError("event", f"has the unknown type {shown(label)}; known: {', '.join(_LABELS)}")
    if not shape.required <= values.keys():
        missing = ", ".join(sorted(shape.required - values.keys()))
        raise SerializationError("event", f"is no {label}: it lacks {missing}")
    for name, check, wanted in shape.checks:
        if name in values and not check(values[name]):
            raise _unlike(shape, name, wanted, values[name])
    try:
        return shape.cls(**values)
    except (TypeError, ValueError) as error:
        raise SerializationError("event", f"is no {label}: {error}") from None


def check_event(event: object) -> FlowEvent:
    """Return the event with every value checked and made plain.

    Raises TypeError for what is no event, SerializationError for values that JSON can't hold.
    """
    return check_form(event)[0]


def check_size(event: FlowEvent, value: Json, what: str) -> None:
    """Raise PayloadTooLarge if an event is too large for any store because of a value in it.

    what: names the value. Asked before the event stands among others in one append, which would all be refused.
    """
    if type(value) in (dict, list) or (type(value) is str and len(value) > _SURELY_FITS):
        encode(event.to_dict(), what)


_SURELY_FITS = 1000  # characters; a text that can't be near the limit


def check_form(event: object) -> tuple[FlowEvent, dict[str, Any]]:
    """Return the same, and its JSON form: they share their values, so write it and let it go."""
    if not isinstance(event, FlowEvent) or type(event) not in _SHAPES:
        raise TypeError(f"events must be events of a history, such as RunStarted(), got {shown(event)}")
    shape = _SHAPES[type(event)]
    form: dict[str, Any] = {"type": shape.label}
    copied = False
    for name, convert, optional, check, wanted in shape.plan:
        value = getattr(event, name)
        if value is None:
            if optional:
                continue
        elif convert is not None:
            value = convert(value)
        else:
            kind = type(value)  # pyright: ignore[reportUnknownVariableType]
            if not (
                (kind is str and value.isascii()) or (kind is int and -_FEW_DIGITS < value < _FEW_DIGITS)
            ):
                value = normal(value, f"{shape.label}.{name}")
                copied = copied or kind is not int
        if check is not None and not check(value):
            raise _unlike(shape, name, wanted, value)
        form[name] = value
    if not copied:
        return event, form  # it is frozen, and so is all that it holds
    values = {name: form.get(name) for name in shape.names}
    for name in shape.converted:
        values[name] = getattr(event, name)
    return shape.cls(**values), form


def _unlike(shape: _Shape, name: str, wanted: str, value: object) -> SerializationError:
    return SerializationError(f"{shape.label}.{name}", f"must be {wanted}, got {shown(value)}")


@dataclass(frozen=True, slots=True)
class Envelope:
    """One event of a run, as it is stored."""

    run_id: str
    sequence: int  # from 1, without gaps
    event_id: str  # unique
    at: datetime  # UTC, when it was appended
    event: FlowEvent

    @property
    def kind(self) -> str:
        """The label of the event, as subscribers ask for it."""
        return self.event.type

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema_version": FORMAT_VERSION,
            "run_id": self.run_id,
            "sequence": self.sequence,
            "event_id": self.event_id,
            "at": written(self.at),
            "event": self.event.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Envelope:
        """Return the envelope of a JSON form. Raises CorruptHistory for what is none."""
        if not isinstance(data, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise CorruptHistory(f"no event of a history, but {shown(data)}")
        version = data.get("schema_version", 1)
        if type(version) is not int or version != FORMAT_VERSION:
            raise CorruptHistory(
                f"an event of format version {shown(version)}; this library reads version {FORMAT_VERSION}, "
                "update it to read newer ones"
            )
        try:
            sequence = _typed(data, "sequence", int)
            if sequence < 1:
                raise ValueError(f"sequence must be >= 1, got {shown(sequence)}")
            return cls(
                run_id=_typed(data, "run_id", str),
                sequence=sequence,
                event_id=_typed(data, "event_id", str),
                at=read_instant(data["at"]),
                event=event_from_dict(_typed(data, "event", dict)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptHistory(f"no event of a history ({error!r}): {shown(dict(data))}") from error


def _typed(data: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    value = data[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} must be {kind.__name__}, got {shown(value)}")
    return value
