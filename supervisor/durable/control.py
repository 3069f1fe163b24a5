"""What the outside can do to a run: signals, cancellation, the end of a wait."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from uuid import uuid4

from supervisor.durable.context import checked_id
from supervisor.durable.decision import due, resumption
from supervisor.durable.errors import EventConflict, RunConflict, RunTerminal, SignalConflict
from supervisor.durable.forms import check_size
from supervisor.durable.history import (
    Envelope,
    FlowEvent,
    RunCancellationRequested,
    RunCancelled,
    SignalReceived,
    WaitCompleted,
)
from supervisor.durable.inspection import Inspection
from supervisor.durable.payload import Json, normal, same
from supervisor.durable.projection import Projection, Wakeup
from supervisor.durable.runtime import check_outside
from supervisor.durable.seats import Seats
from supervisor.durable.snapshot import RunSnapshot
from supervisor.durable.stores.codec import check_run_id
from supervisor.durable.stores.protocol import FlowEventStore
from supervisor.kernel.arguments import instant, text
from supervisor.kernel.clock import Clock

__all__ = ["Control", "Opening", "due_waits"]

Opening = Callable[[Projection], list[FlowEvent]]
"""What comes from outside: the events to append to a history, as it is when they are appended."""


def due_waits(now: datetime) -> Opening:
    """Return what completes the waits that are due at `now`."""
    return lambda projection: [
        WaitCompleted(each.subject_id) for each in due(projection, now) if each.kind == "wait"
    ]


class Control(Inspection, ABC):
    """Appends what comes from outside, and has the run driven on."""

    def __init__(self, store: FlowEventStore, clock: Clock) -> None:
        super().__init__(store, clock)
        self.seats: Seats = Seats(clock)

    @abstractmethod
    def append(self, run_id: str, expected: int, events: list[FlowEvent], at: datetime) -> list[Envelope]:
        """Append events, publish them, and wake whom they concern."""

    @abstractmethod
    def drive_with(self, run_id: str, now: datetime | None, opening: Opening | None) -> Projection:
        """Drive a run, with events from outside first."""

    @abstractmethod
    def go_on(self, run_id: str, opening: Opening | None = None) -> None:
        """Bring events from outside to a run and drive it, unless others have to."""

    def resume_wait(self, run_id: str, wait_id: str) -> RunSnapshot:
        """Complete a wait that is due by the clock, and drive.

        A run that has ended is left as it is; a wait that was completed before is only driven on.
        Raises RunNotFound, RunTerminal, InvalidTransition for an unknown wait or one that is not due.
        """
        now = self.clock.now()

        def resume(projection: Projection) -> list[FlowEvent]:
            return resumption(projection, wait_id, now)

        projection = self.read(run_id)
        resume(projection)
        if not projection.terminal:
            self.go_on(run_id, resume)
        return self.snapshot(run_id)

    def resume_scheduled_run(self, run_id: str, now: datetime) -> list[Wakeup]:
        """Complete the waits of a run that are due at `now`, and drive it; return what was due.

        A `now` in the future completes timers early, as a catch-up does. Raises RunNotFound and what `drive` raises.
        """
        when = instant(now, "now")
        found = due(self.read(run_id), when)
        if found:
            self.drive_with(run_id, when, due_waits(when))
        return found

    def signal(self, run_id: str, name: str, payload: Json = None, signal_id: str | None = None) -> None:
        """Send a signal to a run: the oldest wait for its name gets it, or it is kept for the next; drives.

        signal_id: the same id with the same name and payload is the same signal, whose second sending does
        nothing. None: a new one. Raises RunNotFound, RunTerminal, SignalConflict, SerializationError.
        """
        label, data = checked_id(name, "name"), normal(payload, "payload")
        chosen = uuid4().hex if signal_id is None else checked_id(signal_id, "signal_id")
        received = SignalReceived({"signal_id": chosen, "name": label, "payload": data})
        check_size(received, data, f"signal {label!r}")

        def receive(projection: Projection) -> list[FlowEvent]:
            before = projection.signals.get(chosen)
            if before is not None:
                if before.name != label or not same(before.payload, data):
                    raise SignalConflict(run_id, chosen)
                return []
            if projection.terminal:
                raise RunTerminal(run_id, projection.status)
            return [received]

        check_outside(run_id)
        projection = self.read(run_id)
        receive(projection)
        if not projection.terminal:
            self.go_on(run_id, receive)

    def cancel(self, run_id: str, reason: str | None = None) -> None:
        """Ask a run to end: its open steps and waits are cancelled, its workflow may clean up; drives.

        A second time with the same reason does nothing. Raises RunNotFound, RunTerminal, RunConflict for another
        reason.
        """
        why = None if reason is None else str(normal(text(reason, "reason"), "reason"))

        def request(projection: Projection) -> list[FlowEvent]:
            if projection.terminal:
                raise RunTerminal(run_id, projection.status)
            before = projection.cancellation
            if before is None:
                return [RunCancellationRequested({} if why is None else {"reason": why})]
            if before.reason != why:
                raise RunConflict(run_id, f"it was asked to end before, with the reason {before.reason!r}")
            return []

        self.check_open()
        projection = self.commit(run_id, request)
        self.seats.cancel(run_id, projection.cancel_requested_seq)
        self.go_on(run_id)

    def force_cancel(self, run_id: str, reason: str | None = None) -> None:
        """End a run at once, without clean-up. A mark for a person goes. Raises RunNotFound, RunTerminal."""
        why = None if reason is None else str(normal(text(reason, "reason"), "reason"))

        def end(projection: Projection) -> list[FlowEvent]:
            if projection.terminal:
                raise RunTerminal(run_id, projection.status)
            return [RunCancelled(why)]

        self.check_open()
        projection = self.commit(run_id, end)
        self.seats.cancel(run_id, projection.sequence)
        self.directory.clear_failure(run_id)

    def commit(self, run_id: str, decide: Callable[[Projection], list[FlowEvent]]) -> Projection:
        """Append what `decide` makes of the history, whoever else appends meanwhile; return what it says then."""
        check_outside(run_id)
        check_run_id(run_id)
        while True:
            projection = self.read(run_id)
            events = decide(projection)
            if not events:
                return projection
            try:
                stored = self.append(run_id, projection.sequence, events, self.clock.now())
            except EventConflict:
                continue
            for envelope in stored:
                projection.fold(envelope)
            return projection
