"""What happened in a run, as bars: one for each attempt of a step, each wait, each signal that nobody took. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from supervisor.durable.history import (
    Envelope,
    RunCancellationRequested,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRetryExhausted,
    SignalReceived,
    SignalWaitCompleted,
    SignalWaitCreated,
    StepCancelled,
    StepCompleted,
    StepCreated,
    StepFailed,
    StepNonRetryable,
    StepRetrying,
    StepStarted,
    WaitCompleted,
    WaitCreated,
)

__all__ = ["Bar", "Fate", "Kind", "bars_of"]


class Kind(StrEnum):
    """What a bar stands for."""

    ATTEMPT = "attempt"
    CREATED = "created"  # a step that was asked for, before its first attempt
    WAIT = "wait"
    MOMENT = "moment"  # has no length


class Fate(StrEnum):
    """How it ended."""

    OPEN = "open"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One line of a timeline."""

    label: str
    kind: Kind
    start: datetime
    end: datetime | None = None  # None: open
    fate: Fate = Fate.OPEN
    delayed: bool = False  # it has failed, and a delay follows
    delay_end: datetime | None = None  # None: the delay has not ended


class _Bars:
    """Bars in the making."""

    def __init__(self) -> None:
        self.made: list[Bar] = []
        self.steps: dict[str, int] = {}  # place of the latest bar, by step
        self.waits: dict[str, int] = {}
        self.signals: dict[str, Bar] = {}  # that nobody has taken

    def add(self, label: str, kind: Kind, at: datetime) -> int:
        self.made.append(Bar(label=label, kind=kind, start=at))
        return len(self.made) - 1

    def end(self, place: int, fate: Fate, at: datetime, *, delayed: bool = False) -> None:
        bar = self.made[place]
        if bar.end is None:
            self.made[place] = replace(bar, end=at, fate=fate, delayed=delayed)
        elif bar.delayed and bar.delay_end is None:
            self.made[place] = replace(bar, delay_end=at)

    def start(self, event: StepStarted, at: datetime) -> None:
        place = self.steps.get(event.step_id)
        if place is not None and self.made[place].kind is Kind.CREATED and self.made[place].start == at:
            self.made[place] = replace(self.made[place], kind=Kind.ATTEMPT)
            return
        if place is not None:
            self.end(place, Fate.COMPLETED, at)
        label = event.step_id if event.attempt == 1 else f"{event.step_id} #{event.attempt}"
        self.steps[event.step_id] = self.add(label, Kind.ATTEMPT, at)

    def end_all(self, at: datetime) -> None:
        for place in range(len(self.made)):
            self.end(place, Fate.CANCELLED, at)


def bars_of(history: Iterable[Envelope]) -> list[Bar]:
    """Return the bars of a history, in order of their start."""
    bars = _Bars()
    for envelope in history:
        at, event = envelope.at, envelope.event
        match event:
            case StepCreated():
                bars.steps[event.step_id] = bars.add(event.step_id, Kind.CREATED, at)
            case StepStarted():
                bars.start(event, at)
            case StepCompleted():
                bars.end(bars.steps[event.step_id], Fate.COMPLETED, at)
            case StepRetrying():
                delayed = event.retry_after is not None
                bars.end(bars.steps[event.step_id], Fate.FAILED, at, delayed=delayed)
            case StepFailed() | StepNonRetryable():
                bars.end(bars.steps[event.step_id], Fate.FAILED, at)
            case StepCancelled():
                bars.end(bars.steps[event.step_id], Fate.CANCELLED, at)
            case WaitCreated() | SignalWaitCreated():
                bars.waits[event.wait_id] = bars.add(event.wait_id, Kind.WAIT, at)
            case WaitCompleted():
                bars.end(bars.waits[event.wait_id], Fate.COMPLETED, at)
            case SignalReceived():
                bars.signals[event.signal_id] = Bar(
                    label=f"signal {event.name}", kind=Kind.MOMENT, start=at, end=at
                )
            case SignalWaitCompleted():
                bars.signals.pop(event.signal_id, None)
                bars.end(bars.waits[event.wait_id], Fate.COMPLETED, at)
            case RunCancellationRequested():
                bars.end_all(at)
                bars.end(bars.add("asked to cancel", Kind.MOMENT, at), Fate.CANCELLED, at)
            case RunCompleted() | RunFailed() | RunRetryExhausted() | RunCancelled():
                bars.end_all(at)
            case _:
                pass
    return sorted([*bars.made, *bars.signals.values()], key=lambda bar: bar.start)
