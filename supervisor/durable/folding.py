"""What may follow in a history, and what it changes: a function for each event.

Each looks first, and raises `InvalidTransition` before it changes anything. What holds for every event is asked
by `Projection.fold`: that the first is `run_created`, and that none comes after the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from supervisor.durable.errors import InvalidTransition
from supervisor.durable.history import (
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
from supervisor.durable.records import Signal, Step, Wait
from supervisor.durable.snapshot import CancellationRequest, RunStatus, StepStatus, WaitStatus

if TYPE_CHECKING:
    from supervisor.durable.projection import Projection

__all__ = ["FOLDS"]


def _run_created(run: Projection, event: RunCreated, at: datetime, _: int) -> None:
    if run.phase is not None:
        raise InvalidTransition(f"run_created must be the first event, and run {run.run_id!r} has others")
    run.workflow = event.spec["name"]
    run.version = event.spec["version"]
    run.input = event.input
    run.created_at = at
    run.phase = RunStatus.PENDING


def _run_started(run: Projection, _: RunStarted, at: datetime, __: int) -> None:
    if run.phase is not RunStatus.PENDING:
        raise _refusal(run, "run_started", "only a pending run can be started")
    run.started_at = at
    run.phase = RunStatus.RUNNING


def _run_completed(run: Projection, event: RunCompleted, _: datetime, __: int) -> None:
    if run.phase is not RunStatus.RUNNING:
        raise _refusal(run, "run_completed", "only a running run can be completed")
    run.output = event.output
    run.phase = RunStatus.COMPLETED


def _run_failed(run: Projection, event: RunFailed, _: datetime, __: int) -> None:
    run.error = event.error
    run.phase = RunStatus.FAILED


def _run_retry_exhausted(run: Projection, event: RunRetryExhausted, _: datetime, __: int) -> None:
    step = _known_step(run, event.step_id, event.type)
    if step.status is not StepStatus.FAILED or step.attempt != event.attempt or step.error != event.error:
        raise _refusal(run, event.type, f"step {step.step_id!r} has not failed like that")
    if step.retry.continues:
        raise _refusal(run, event.type, f"the policy of step {step.step_id!r} lets the workflow continue")
    run.error = event.error
    run.phase = RunStatus.FAILED


def _run_cancellation_requested(
    run: Projection, event: RunCancellationRequested, at: datetime, sequence: int
) -> None:
    if run.cancellation is not None:
        raise _refusal(run, event.type, "it was requested before")
    run.cancellation = CancellationRequest(reason=event.reason, at=at)
    run.cancel_requested_seq = sequence
    for step in run.open_steps:
        _end_step(run, step, StepStatus.CANCELLED, at, sequence)
    for wait in list(run.waiting.values()):
        _end_wait(run, wait, WaitStatus.CANCELLED, at, sequence)
    run.phase = RunStatus.CANCELLING


def _run_cancelled(run: Projection, event: RunCancelled, _: datetime, __: int) -> None:
    run.cancel_reason = event.reason
    run.phase = RunStatus.CANCELLED


def _step_created(run: Projection, event: StepCreated, at: datetime, _: int) -> None:
    if event.step_id in run.steps:
        raise _refusal(run, event.type, f"step {event.step_id!r} exists")
    if not event.step_id.strip() or not event.step_name.strip():
        raise _refusal(run, event.type, "step_id and step_name must not be blank")
    _must_run(run, event)
    if event.retry.longest_ms:
        shifted(at, event.retry.longest_ms, f"step {event.step_id!r}")
    step = run.steps[event.step_id] = Step(event, at)
    run.startable[step.step_id] = step


def _step_started(run: Projection, event: StepStarted, at: datetime, _: int) -> None:
    step = _known_step(run, event.step_id, event.type)
    if step.status is not StepStatus.PENDING or event.attempt != step.attempt + 1:
        raise _refusal(
            run,
            event.type,
            f"step {step.step_id!r} is {step.status} after attempt {step.attempt}; attempt "
            f"{event.attempt} can't start",
        )
    step.status = StepStatus.RUNNING
    step.attempt = event.attempt
    step.started_at = at
    step.retry_after = None
    run.delayed.pop(step.step_id, None)
    run.startable[step.step_id] = step


def _step_completed(run: Projection, event: StepCompleted, at: datetime, sequence: int) -> None:
    step = _running_step(run, event.step_id, None, event.type)
    step.output = event.output
    step.error = None
    _end_step(run, step, StepStatus.COMPLETED, at, sequence)


def _step_retrying(run: Projection, event: StepRetrying, _: datetime, __: int) -> None:
    step = _running_step(run, event.step_id, event.attempt, event.type)
    if event.attempt >= step.retry.max_attempts:
        raise _refusal(
            run, event.type, f"step {step.step_id!r} has used its {step.retry.max_attempts} attempts"
        )
    if (event.retry_after is None) != (step.retry.longest_ms == 0):
        raise _refusal(
            run,
            event.type,
            f"the policy of step {step.step_id!r} "
            + (
                "has no delay" if event.retry_after is not None else "has a delay, and retry_after is missing"
            ),
        )
    step.status = StepStatus.PENDING
    step.error = event.error
    step.retry_after = event.retry_after
    if event.retry_after is not None:
        run.startable.pop(step.step_id, None)
        run.delayed[step.step_id] = step


def _step_failed(run: Projection, event: StepFailed, at: datetime, sequence: int) -> None:
    step = _running_step(run, event.step_id, event.attempt, event.type)
    if event.attempt < step.retry.max_attempts:
        raise _refusal(
            run,
            event.type,
            f"step {step.step_id!r} has attempts left: {event.attempt} of {step.retry.max_attempts}",
        )
    _give_up(run, step, event.error, at, sequence)


def _step_non_retryable(run: Projection, event: StepNonRetryable, at: datetime, sequence: int) -> None:
    step = _running_step(run, event.step_id, event.attempt, event.type)
    step.non_retryable = True
    _give_up(run, step, event.error, at, sequence)


def _give_up(run: Projection, step: Step, error: str, at: datetime, sequence: int) -> None:
    step.error = error
    _end_step(run, step, StepStatus.FAILED, at, sequence)
    if run.interrupted is None and not step.retry.continues:
        run.interrupted = step


def _step_cancelled(run: Projection, event: StepCancelled, at: datetime, sequence: int) -> None:
    step = _known_step(run, event.step_id, event.type)
    if not step.open or step.attempt != event.attempt:
        raise _refusal(run, event.type, f"step {step.step_id!r} is {step.status}, attempt {step.attempt}")
    step.error = event.reason
    _end_step(run, step, StepStatus.CANCELLED, at, sequence)


def _wait_created(run: Projection, event: WaitCreated, at: datetime, _: int) -> None:
    _new_wait(run, event, Wait(event.wait_id, event.resume_at, None, at))


def _signal_wait_created(run: Projection, event: SignalWaitCreated, at: datetime, _: int) -> None:
    name = event.signal_name
    wait = Wait(event.wait_id, None, name, at)
    _new_wait(run, event, wait)
    run.waiting_for.setdefault(name, deque()).append(wait)
    if name in run.buffered:
        run.matched[name] = None


def _new_wait(run: Projection, event: WaitCreated | SignalWaitCreated, wait: Wait) -> None:
    if wait.wait_id in run.waits:
        raise _refusal(run, event.type, f"wait {wait.wait_id!r} exists")
    if not wait.wait_id.strip() or (wait.signal_name is not None and not wait.signal_name.strip()):
        raise _refusal(run, event.type, "wait_id and signal_name must not be blank")
    _must_run(run, event)
    run.waits[wait.wait_id] = run.waiting[wait.wait_id] = wait


def _wait_completed(run: Projection, event: WaitCompleted, at: datetime, sequence: int) -> None:
    wait = run.waiting.get(event.wait_id)
    if wait is None or wait.resume_at is None:
        raise _refusal(run, event.type, f"no open wait for an instant has the id {event.wait_id!r}")
    _end_wait(run, wait, WaitStatus.COMPLETED, at, sequence)


def _signal_received(run: Projection, event: SignalReceived, at: datetime, _: int) -> None:
    if event.signal_id in run.signals:
        raise _refusal(run, event.type, f"signal {event.signal_id!r} came before")
    if not event.signal_id.strip() or not event.name.strip():
        raise _refusal(run, event.type, "signal_id and name must not be blank")
    signal = run.signals[event.signal_id] = Signal(event, at)
    run.buffered.setdefault(signal.name, deque()).append(signal)
    if signal.name in run.waiting_for:
        run.matched[signal.name] = None


def _signal_wait_completed(run: Projection, event: SignalWaitCompleted, at: datetime, sequence: int) -> None:
    wait, signal = run.waiting.get(event.wait_id), run.signals.get(event.signal_id)
    if wait is None or signal is None or wait.signal_name != signal.name:
        raise _refusal(
            run, event.type, f"wait {event.wait_id!r} and signal {event.signal_id!r} don't belong together"
        )
    name = signal.name
    signals = run.buffered.get(name)
    if signals is None or signals[0] is not signal or run.waiting_for[name][0] is not wait:
        raise _refusal(run, event.type, f"the oldest wait for {name!r} takes the oldest signal, not others")
    signals.popleft()
    if not signals:
        del run.buffered[name]
        del run.matched[name]
    signal.wait_id = wait.wait_id
    wait.signal_id, wait.payload = signal.signal_id, signal.payload
    _end_wait(run, wait, WaitStatus.COMPLETED, at, sequence)


def _end_step(run: Projection, step: Step, status: StepStatus, at: datetime, sequence: int) -> None:
    step.status = status
    step.retry_after = None
    step.ended_at, step.ended_seq = at, sequence
    run.startable.pop(step.step_id, None)
    run.delayed.pop(step.step_id, None)


def _end_wait(run: Projection, wait: Wait, status: WaitStatus, at: datetime, sequence: int) -> None:
    wait.status = status
    wait.ended_at, wait.ended_seq = at, sequence
    del run.waiting[wait.wait_id]
    if (name := wait.signal_name) is not None:
        waits = run.waiting_for[name]
        waits.remove(wait)
        if not waits:
            del run.waiting_for[name]
            run.matched.pop(name, None)


def _must_run(run: Projection, event: FlowEvent) -> None:
    if run.phase is RunStatus.PENDING:
        raise _refusal(run, event.type, "it has not been started")


def _known_step(run: Projection, step_id: str, what: str) -> Step:
    step = run.steps.get(step_id)
    if step is None:
        raise _refusal(run, what, f"there is no step {step_id!r}")
    return step


def _running_step(run: Projection, step_id: str, attempt: int | None, what: str) -> Step:
    step = _known_step(run, step_id, what)
    if step.status is not StepStatus.RUNNING or (attempt is not None and attempt != step.attempt):
        raise _refusal(
            run,
            what,
            f"step {step_id!r} is {step.status}, attempt {step.attempt}, not running"
            + (f" attempt {attempt}" if attempt is not None else ""),
        )
    return step


def _refusal(run: Projection, what: str, why: str) -> InvalidTransition:
    phase = run.phase
    return InvalidTransition(f"{what} is not allowed for run {run.run_id!r} ({phase}): {why}")


FOLDS: dict[type[FlowEvent], Callable[[Projection, Any, datetime, int], None]] = {
    RunCreated: _run_created,
    RunStarted: _run_started,
    RunCompleted: _run_completed,
    RunFailed: _run_failed,
    RunRetryExhausted: _run_retry_exhausted,
    RunCancellationRequested: _run_cancellation_requested,
    RunCancelled: _run_cancelled,
    StepCreated: _step_created,
    StepStarted: _step_started,
    StepCompleted: _step_completed,
    StepRetrying: _step_retrying,
    StepFailed: _step_failed,
    StepNonRetryable: _step_non_retryable,
    StepCancelled: _step_cancelled,
    WaitCreated: _wait_created,
    WaitCompleted: _wait_completed,
    SignalReceived: _signal_received,
    SignalWaitCreated: _signal_wait_created,
    SignalWaitCompleted: _signal_wait_completed,
}
"""By event: called with the projection, the event, when it was appended, and its sequence."""
