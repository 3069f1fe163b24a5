"""The one place that says what a history means; what may follow it is told by `folding`.

A `Projection` is folded event by event; each fold costs the same however long the history is. An
event that is not allowed raises `InvalidTransition` and changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import Self

from supervisor.durable.errors import InvalidTransition
from supervisor.durable.folding import FOLDS
from supervisor.durable.history import Envelope, RunCreated
from supervisor.durable.payload import Json, copied
from supervisor.durable.records import Signal, Step, Wait, Wakeup
from supervisor.durable.snapshot import (
    CancellationRequest,
    RunSnapshot,
    RunStatus,
)

__all__ = ["Projection", "Signal", "Step", "Wait", "Wakeup"]


class Projection:
    """What the events of one run, folded one after the other, say about it. For one thread at a time."""

    __slots__ = (
        "buffered",
        "cancel_reason",
        "cancel_requested_seq",
        "cancellation",
        "created_at",
        "delayed",
        "error",
        "history",
        "input",
        "interrupted",
        "last_event_id",
        "matched",
        "output",
        "phase",
        "run_id",
        "sequence",
        "signals",
        "startable",
        "started_at",
        "steps",
        "updated_at",
        "version",
        "waiting",
        "waiting_for",
        "waits",
        "workflow",
    )

    def __init__(self, run_id: str) -> None:
        self.run_id: str = run_id
        self.sequence: int = 0  # of the last event; 0 when there is none
        self.last_event_id: str = ""
        self.history: list[Envelope] | None = None  # kept if somebody wants it, see `keeping_history`
        self.phase: RunStatus | None = None  # as stated by events; suspended is derived
        self.workflow: str = ""
        self.version: str = ""
        self.input: Json = None
        self.output: Json = None
        self.error: str | None = None
        self.cancellation: CancellationRequest | None = None
        self.cancel_requested_seq: int = 0
        self.cancel_reason: str | None = None  # why the run was ended, once it is cancelled
        self.created_at: datetime | None = None
        self.started_at: datetime | None = None
        self.updated_at: datetime | None = None
        self.steps: dict[str, Step] = {}
        self.waits: dict[str, Wait] = {}
        self.signals: dict[str, Signal] = {}
        self.interrupted: Step | None = None  # has failed for good, and its run must end for it
        # what is open, for quick answers; only `folding` changes it, as all the rest:
        self.waiting: dict[str, Wait] = {}  # open waits
        self.delayed: dict[str, Step] = {}  # steps whose next attempt has an instant
        self.startable: dict[str, Step] = {}  # open steps that wait for nothing
        # by the name of the signal, and only names that have some:
        self.buffered: dict[str, deque[Signal]] = {}  # signals that no wait took
        self.waiting_for: dict[str, deque[Wait]] = {}  # open waits for a signal
        self.matched: dict[str, None] = {}  # names in both, in the order in which they came together

    @classmethod
    def of(cls, run_id: str, envelopes: Iterable[Envelope]) -> Self:
        """Fold a whole history. Raises InvalidTransition if it is none."""
        made = cls(run_id)
        for each in envelopes:
            made.fold(each)
        return made

    def keeping_history(self) -> Self:
        """Keep the envelopes from now on."""
        self.history = []
        return self

    # What it says

    @property
    def exists(self) -> bool:
        """There is at least one event."""
        return self.phase is not None

    @property
    def status(self) -> RunStatus:
        """Where the run is. Raises InvalidTransition before the first event.

        A running run is suspended if it waits for something outside and nothing is left to do inside: no
        step could run, no signal fits an open wait, and no step has failed in a way that ends the run.
        """
        phase = self.phase
        if phase is None:
            raise InvalidTransition(f"run {self.run_id!r} has no events")
        if (
            phase is RunStatus.RUNNING
            and (self.waiting or self.delayed)
            and not (self.startable or self.matched or self.interrupted)
        ):
            return RunStatus.SUSPENDED
        return phase

    @property
    def terminal(self) -> bool:
        """The run has ended."""
        return self.phase in _TERMINAL

    @property
    def cancelling(self) -> bool:
        """Somebody asked the run to end, and it has not."""
        return self.phase is RunStatus.CANCELLING

    @property
    def open_steps(self) -> list[Step]:
        """The steps that have not ended, in order of creation."""
        return [step for step in self.steps.values() if step.open]

    def pair(self) -> tuple[Wait, Signal] | None:
        """Return the next wait and signal that belong together: first in, first out on both sides.

        None if there are none, and once the run has ended.
        """
        if self.terminal:
            return None
        for name in self.matched:
            return self.waiting_for[name][0], self.buffered[name][0]
        return None

    def wakeups(self) -> list[Wakeup]:
        """Return what is due at some instant, past or future; nothing once the run has ended."""
        if self.terminal:
            return []
        found = [
            Wakeup("wait", self.run_id, wait.wait_id, wait.resume_at)
            for wait in self.waiting.values()
            if wait.resume_at is not None
        ]
        found += [
            Wakeup("retry", self.run_id, step.step_id, step.retry_after)
            for step in self.delayed.values()
            if step.retry_after is not None
        ]
        return found

    def snapshot(self) -> RunSnapshot:
        """Return a copy for people. Raises InvalidTransition before the first event."""
        status = self.status
        assert self.created_at is not None
        assert self.updated_at is not None
        return RunSnapshot(
            run_id=self.run_id,
            workflow=self.workflow,
            version=self.version,
            status=status,
            input=copied(self.input),
            output=copied(self.output),
            error=self.error,
            steps={key: each.snapshot() for key, each in self.steps.items()},
            waits={key: each.snapshot() for key, each in self.waits.items()},
            signals={key: each.snapshot() for key, each in self.signals.items()},
            cancellation_request=self.cancellation,
            sequence=self.sequence,
            created_at=self.created_at,
            updated_at=self.updated_at,
        )

    # Folding

    def fold(self, envelope: Envelope) -> None:
        """Take the next event. Raises InvalidTransition, and changes nothing, if it may not follow."""
        if envelope.run_id != self.run_id:
            raise InvalidTransition(
                f"an event of run {envelope.run_id!r} can't belong to run {self.run_id!r}"
            )
        if envelope.sequence != self.sequence + 1:
            raise InvalidTransition(
                f"sequences of run {self.run_id!r} must be contiguous: {envelope.sequence} follows {self.sequence}"
            )
        event = envelope.event
        if self.phase is None and type(event) is not RunCreated:
            raise InvalidTransition(
                f"first run event must be run_created, got {event.type} of run {self.run_id!r}"
            )
        if self.phase in _TERMINAL:
            raise InvalidTransition(
                f"{event.type} after terminal run state {self.phase} of run {self.run_id!r}; a run that has "
                "ended takes no events"
            )
        FOLDS[type(event)](self, event, envelope.at, envelope.sequence)
        self.sequence = envelope.sequence
        self.last_event_id = envelope.event_id
        self.updated_at = envelope.at
        if self.history is not None:
            self.history.append(envelope)

    def confirm(self, stored: list[Envelope]) -> None:
        """Put the envelopes that a store returned in the place of the ones that were folded before."""
        self.last_event_id = stored[-1].event_id
        if self.history is not None:
            self.history[-len(stored) :] = stored


_TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
