"""What a history is made of: events, each a value of its own, in envelopes.

The JSON form of both is stable: format version 1. An event is a JSON object with its `type` and its
fields; optional fields that are None are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Self, cast

from supervisor.durable.errors import CorruptHistory, SerializationError
from supervisor.durable.forms import Forms
from supervisor.durable.instants import read_instant, written
from supervisor.durable.payload import Json
from supervisor.durable.retry import RetryPolicy
from supervisor.kernel.arguments import instant
from supervisor.kernel.text import shown

__all__ = [
    "FORMAT_VERSION",
    "FORMS",
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
]

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class FlowEvent:
    """Something that happened to a run."""

    type: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: `type` first, then the fields in order."""
        return FORMS.write(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the event of a JSON form. Raises SerializationError for what is none of this class."""
        found = FORMS.read(data)
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


FORMS = Forms(  # of every event: a new one is written, read and checked once it stands here
    FlowEvent,
    (
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
    ),
)


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
                event=FORMS.read(_typed(data, "event", dict)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptHistory(f"no event of a history ({error!r}): {shown(dict(data))}") from error


def _typed(data: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    value = data[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} must be {kind.__name__}, got {shown(value)}")
    return value
