"""The one place that says what a history means, and what may follow it.

A `Projection` is folded event by event; each fold costs the same however long the history is. An
event that is not allowed raises `InvalidTransition` and changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Self

from supervisor.durable.errors import InvalidTransition
from supervisor.durable.history import (
    Envelope,
    FlowEvent,
    RunCancellationRequested,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunRetryExhausted,
    RunStarted,
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
from supervisor.durable.instants import shifted
from supervisor.durable.payload import Json, copied
from supervisor.durable.records import Signal, Step, Wait, Wakeup
from supervisor.durable.snapshot import (
    CancellationRequest,
    RunSnapshot,
    RunStatus,
    StepStatus,
    WaitStatus,
)

__all__ = ["Projection", "Signal", "Step", "Wait", "Wakeup"]


class Projection:
    """What the events of one run, folded one after the other, say about it. For one thread at a time."""

    __slots__ = (
        "_buffered",
        "_delayed",
        "_matched",
        "_phase",
        "_startable",
        "_waiting",
        "_waiting_for",
        "cancel_reason",
        "cancel_requested_seq",
        "cancellation",
        "created_at",
        "error",
        "history",
        "input",
        "interrupted",
        "last_event_id",
        "output",
        "run_id",
        "sequence",
        "signals",
        "started_at",
        "steps",
        "updated_at",
        "version",
        "waits",
        "workflow",
    )

    def __init__(self, run_id: str) -> None:
        self.run_id: str = run_id
        self.sequence: int = 0  # of the last event; 0 when there is none
        self.last_event_id: str = ""
        self.history: list[Envelope] | None = None  # kept if somebody wants it, see `keeping_history`
        self._phase: RunStatus | None = None  # as stated by events; suspended is derived
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
        self._waiting: dict[str, Wait] = {}  # open waits
        self._delayed: dict[str, Step] = {}  # steps whose next attempt has an instant
        self._startable: dict[str, Step] = {}  # open steps that wait for nothing
        # by the name of the signal, and only names that have some:
        self._buffered: dict[str, deque[Signal]] = {}  # signals that no wait took
        self._waiting_for: dict[str, deque[Wait]] = {}  # open waits for a signal
        self._matched: dict[str, None] = {}  # names in both, in the order in which they came together

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
        return self._phase is not None

    @property
    def status(self) -> RunStatus:
        """Where the run is. Raises InvalidTransition before the first event.

        A running run is suspended if it waits for something outside and nothing is left to do inside: no
        step could run, no signal fits an open wait, and no step has failed in a way that ends the run.
        """
        phase = self._phase
        if phase is None:
            raise InvalidTransition(f"run {self.run_id!r} has no events")
        if (
            phase is RunStatus.RUNNING
            and (self._waiting or self._delayed)
            and not (self._startable or self._matched or self.interrupted)
        ):
            return RunStatus.SUSPENDED
        return phase

    @property
    def terminal(self) -> bool:
        """The run has ended."""
        return self._phase in _TERMINAL

    @property
    def cancelling(self) -> bool:
        """Somebody asked the run to end, and it has not."""
        return self._phase is RunStatus.CANCELLING

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
        for name in self._matched:
            return self._waiting_for[name][0], self._buffered[name][0]
        return None

    def wakeups(self) -> list[Wakeup]:
        """Return what is due at some instant, past or future; nothing once the run has ended."""
        if self.terminal:
            return []
        found = [
            Wakeup("wait", self.run_id, wait.wait_id, wait.resume_at)
            for wait in self._waiting.values()
            if wait.resume_at is not None
        ]
        found += [
            Wakeup("retry", self.run_id, step.step_id, step.retry_after)
            for step in self._delayed.values()
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
        if self._phase is None and type(event) is not RunCreated:
            raise InvalidTransition(
                f"first run event must be run_created, got {event.type} of run {self.run_id!r}"
            )
        if self._phase in _TERMINAL:
            raise InvalidTransition(
                f"{event.type} after terminal run state {self._phase} of run {self.run_id!r}; a run that has "
                "ended takes no events"
            )
        _FOLDS[type(event)](self, event, envelope.at, envelope.sequence)
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

    def _created(self, event: RunCreated, at: datetime, _: int) -> None:
        if self._phase is not None:
            raise InvalidTransition(
                f"run_created must be the first event, and run {self.run_id!r} has others"
            )
        self.workflow = event.spec["name"]
        self.version = event.spec["version"]
        self.input = event.input
        self.created_at = at
        self._phase = RunStatus.PENDING

    def _started(self, _: RunStarted, at: datetime, __: int) -> None:
        if self._phase is not RunStatus.PENDING:
            raise self._refusal("run_started", "only a pending run can be started")
        self.started_at = at
        self._phase = RunStatus.RUNNING

    def _completed(self, event: RunCompleted, _: datetime, __: int) -> None:
        if self._phase is not RunStatus.RUNNING:
            raise self._refusal("run_completed", "only a running run can be completed")
        self.output = event.output
        self._phase = RunStatus.COMPLETED

    def _failed(self, event: RunFailed, _: datetime, __: int) -> None:
        self.error = event.error
        self._phase = RunStatus.FAILED

    def _retry_exhausted(self, event: RunRetryExhausted, _: datetime, __: int) -> None:
        step = self._step(event.step_id, event.type)
        if step.status is not StepStatus.FAILED or step.attempt != event.attempt or step.error != event.error:
            raise self._refusal(event.type, f"step {step.step_id!r} has not failed like that")
        if step.retry.continues:
            raise self._refusal(event.type, f"the policy of step {step.step_id!r} lets the workflow continue")
        self.error = event.error
        self._phase = RunStatus.FAILED

    def _cancellation_requested(self, event: RunCancellationRequested, at: datetime, sequence: int) -> None:
        if self.cancellation is not None:
            raise self._refusal(event.type, "it was requested before")
        self.cancellation = CancellationRequest(reason=event.reason, at=at)
        self.cancel_requested_seq = sequence
        for step in self.open_steps:
            self._end_step(step, StepStatus.CANCELLED, at, sequence)
        for wait in list(self._waiting.values()):
            self._end_wait(wait, WaitStatus.CANCELLED, at, sequence)
        self._phase = RunStatus.CANCELLING

    def _cancelled(self, event: RunCancelled, _: datetime, __: int) -> None:
        self.cancel_reason = event.reason
        self._phase = RunStatus.CANCELLED

    def _step_created(self, event: StepCreated, at: datetime, _: int) -> None:
        if event.step_id in self.steps:
            raise self._refusal(event.type, f"step {event.step_id!r} exists")
        if not event.step_id.strip() or not event.step_name.strip():
            raise self._refusal(event.type, "step_id and step_name must not be blank")
        self._must_run(event)
        if event.retry.longest_ms:
            shifted(at, event.retry.longest_ms, f"step {event.step_id!r}")
        step = self.steps[event.step_id] = Step(event, at)
        self._startable[step.step_id] = step

    def _step_started(self, event: StepStarted, at: datetime, _: int) -> None:
        step = self._step(event.step_id, event.type)
        if step.status is not StepStatus.PENDING or event.attempt != step.attempt + 1:
            raise self._refusal(
                event.type,
                f"step {step.step_id!r} is {step.status} after attempt {step.attempt}; attempt "
                f"{event.attempt} can't start",
            )
        step.status = StepStatus.RUNNING
        step.attempt = event.attempt
        step.started_at = at
        step.retry_after = None
        self._delayed.pop(step.step_id, None)
        self._startable[step.step_id] = step

    def _step_completed(self, event: StepCompleted, at: datetime, sequence: int) -> None:
        step = self._running_step(event.step_id, None, event.type)
        step.output = event.output
        step.error = None
        self._end_step(step, StepStatus.COMPLETED, at, sequence)

    def _step_retrying(self, event: StepRetrying, _: datetime, __: int) -> None:
        step = self._running_step(event.step_id, event.attempt, event.type)
        if event.attempt >= step.retry.max_attempts:
            raise self._refusal(
                event.type, f"step {step.step_id!r} has used its {step.retry.max_attempts} attempts"
            )
        if (event.retry_after is None) != (step.retry.longest_ms == 0):
            raise self._refusal(
                event.type,
                f"the policy of step {step.step_id!r} "
                + (
                    "has no delay"
                    if event.retry_after is not None
                    else "has a delay, and retry_after is missing"
                ),
            )
        step.status = StepStatus.PENDING
        step.error = event.error
        step.retry_after = event.retry_after
        if event.retry_after is not None:
            self._startable.pop(step.step_id, None)
            self._delayed[step.step_id] = step

    def _step_failed(self, event: StepFailed, at: datetime, sequence: int) -> None:
        step = self._running_step(event.step_id, event.attempt, event.type)
        if event.attempt < step.retry.max_attempts:
            raise self._refusal(
                event.type,
                f"step {step.step_id!r} has attempts left: {event.attempt} of {step.retry.max_attempts}",
            )
        self._give_up(step, event.error, at, sequence)

    def _step_non_retryable(self, event: StepNonRetryable, at: datetime, sequence: int) -> None:
        step = self._running_step(event.step_id, event.attempt, event.type)
        step.non_retryable = True
        self._give_up(step, event.error, at, sequence)

    def _give_up(self, step: Step, error: str, at: datetime, sequence: int) -> None:
        step.error = error
        self._end_step(step, StepStatus.FAILED, at, sequence)
        if self.interrupted is None and not step.retry.continues:
            self.interrupted = step

    def _step_cancelled(self, event: StepCancelled, at: datetime, sequence: int) -> None:
        step = self._step(event.step_id, event.type)
        if not step.open or step.attempt != event.attempt:
            raise self._refusal(event.type, f"step {step.step_id!r} is {step.status}, attempt {step.attempt}")
        step.error = event.reason
        self._end_step(step, StepStatus.CANCELLED, at, sequence)

    def _wait_created(self, event: WaitCreated, at: datetime, _: int) -> None:
        self._new_wait(event, Wait(event.wait_id, event.resume_at, None, at))

    def _signal_wait_created(self, event: SignalWaitCreated, at: datetime, _: int) -> None:
        name = event.signal_name
        wait = Wait(event.wait_id, None, name, at)
        self._new_wait(event, wait)
        self._waiting_for.setdefault(name, deque()).append(wait)
        if name in self._buffered:
            self._matched[name] = None

    def _new_wait(self, event: WaitCreated | SignalWaitCreated, wait: Wait) -> None:
        if wait.wait_id in self.waits:
            raise self._refusal(event.type, f"wait {wait.wait_id!r} exists")
        if not wait.wait_id.strip() or (wait.signal_name is not None and not wait.signal_name.strip()):
            raise self._refusal(event.type, "wait_id and signal_name must not be blank")
        self._must_run(event)
        self.waits[wait.wait_id] = self._waiting[wait.wait_id] = wait

    def _wait_completed(self, event: WaitCompleted, at: datetime, sequence: int) -> None:
        wait = self._waiting.get(event.wait_id)
        if wait is None or wait.resume_at is None:
            raise self._refusal(event.type, f"no open wait for an instant has the id {event.wait_id!r}")
        self._end_wait(wait, WaitStatus.COMPLETED, at, sequence)

    def _signal_received(self, event: SignalReceived, at: datetime, _: int) -> None:
        if event.signal_id in self.signals:
            raise self._refusal(event.type, f"signal {event.signal_id!r} came before")
        if not event.signal_id.strip() or not event.name.strip():
            raise self._refusal(event.type, "signal_id and name must not be blank")
        signal = self.signals[event.signal_id] = Signal(event, at)
        self._buffered.setdefault(signal.name, deque()).append(signal)
        if signal.name in self._waiting_for:
            self._matched[signal.name] = None

    def _signal_wait_completed(self, event: SignalWaitCompleted, at: datetime, sequence: int) -> None:
        wait, signal = self._waiting.get(event.wait_id), self.signals.get(event.signal_id)
        if wait is None or signal is None or wait.signal_name != signal.name:
            raise self._refusal(
                event.type, f"wait {event.wait_id!r} and signal {event.signal_id!r} don't belong together"
            )
        name = signal.name
        signals = self._buffered.get(name)
        if signals is None or signals[0] is not signal or self._waiting_for[name][0] is not wait:
            raise self._refusal(
                event.type, f"the oldest wait for {name!r} takes the oldest signal, not others"
            )
        signals.popleft()
        if not signals:
            del self._buffered[name]
            del self._matched[name]
        signal.wait_id = wait.wait_id
        wait.signal_id, wait.payload = signal.signal_id, signal.payload
        self._end_wait(wait, WaitStatus.COMPLETED, at, sequence)

    def _end_step(self, step: Step, status: StepStatus, at: datetime, sequence: int) -> None:
        step.status = status
        step.retry_after = None
        step.ended_at, step.ended_seq = at, sequence
        self._startable.pop(step.step_id, None)
        self._delayed.pop(step.step_id, None)

    def _end_wait(self, wait: Wait, status: WaitStatus, at: datetime, sequence: int) -> None:
        wait.status = status
        wait.ended_at, wait.ended_seq = at, sequence
        del self._waiting[wait.wait_id]
        if (name := wait.signal_name) is not None:
            waits = self._waiting_for[name]
            waits.remove(wait)
            if not waits:
                del self._waiting_for[name]
                self._matched.pop(name, None)

    def _must_run(self, event: FlowEvent) -> None:
        if self._phase is RunStatus.PENDING:
            raise self._refusal(event.type, "it has not been started")

    def _step(self, step_id: str, what: str) -> Step:
        step = self.steps.get(step_id)
        if step is None:
            raise self._refusal(what, f"there is no step {step_id!r}")
        return step

    def _running_step(self, step_id: str, attempt: int | None, what: str) -> Step:
        step = self._step(step_id, what)
        if step.status is not StepStatus.RUNNING or (attempt is not None and attempt != step.attempt):
            raise self._refusal(
                what,
                f"step {step_id!r} is {step.status}, attempt {step.attempt}, not running attempt {attempt}",
            )
        return step

    def _refusal(self, what: str, why: str) -> InvalidTransition:
        phase = self._phase
        return InvalidTransition(f"{what} is not allowed for run {self.run_id!r} ({phase}): {why}")


_TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
_FOLDS: dict[type[FlowEvent], Callable[[Projection, Any, datetime, int], None]] = {
    RunCreated: Projection._created,
    RunStarted: Projection._started,
    RunCompleted: Projection._completed,
    RunFailed: Projection._failed,
    RunRetryExhausted: Projection._retry_exhausted,
    RunCancellationRequested: Projection._cancellation_requested,
    RunCancelled: Projection._cancelled,
    StepCreated: Projection._step_created,
    StepStarted: Projection._step_started,
    StepCompleted: Projection._step_completed,
    StepRetrying: Projection._step_retrying,
    StepFailed: Projection._step_failed,
    StepNonRetryable: Projection._step_non_retryable,
    StepCancelled: Projection._step_cancelled,
    WaitCreated: Projection._wait_created,
    WaitCompleted: Projection._wait_completed,
    SignalReceived: Projection._signal_received,
    SignalWaitCreated: Projection._signal_wait_created,
    SignalWaitCompleted: Projection._signal_wait_completed,
}
