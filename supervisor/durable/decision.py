"""What a command, a step's outcome, or a host's call makes of a history: pure functions to events."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import assert_never

from supervisor.durable.command import (
    Cancel,
    Command,
    Complete,
    Fail,
    ScheduleStep,
    ScheduleSteps,
    WaitForSignal,
    WaitUntil,
)
from supervisor.durable.errors import InvalidTransition, RunTerminal
from supervisor.durable.forms import check_size
from supervisor.durable.history import (
    FlowEvent,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunRetryExhausted,
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
from supervisor.durable.identity import check_same_step, check_same_wait
from supervisor.durable.instants import shifted, written
from supervisor.durable.payload import Json
from supervisor.durable.projection import Projection, Step, Wakeup
from supervisor.durable.snapshot import StepStatus, WaitStatus

__all__ = ["Outcome", "Plan", "decide", "due", "ending", "outcome_event", "pairing", "resumption"]

_UNKNOWN = "given up because step {} failed for good; its outcome is unknown"


@dataclass(frozen=True, slots=True)
class Plan:
    """What follows from a command."""

    events: list[FlowEvent] = field(default_factory=list[FlowEvent])
    run: list[tuple[str, int]] = field(
        default_factory=list[tuple[str, int]]
    )  # attempts to call: step, attempt
    waits: bool = False  # nothing to do until something comes from outside


def decide(projection: Projection, command: Command, now: datetime, at: datetime) -> Plan:
    """Check a command against history and return what it implies.

    now: what counts as due.  at: the time of the events.
    Raises NonDeterministic or InvalidTransition; then nothing follows.
    """
    match command:
        case Complete(output=output):
            if projection.cancelling:
                raise InvalidTransition(
                    f"run {projection.run_id!r} was asked to end and can't complete; return ctx.cancel() or "
                    "ctx.fail(...) after the clean-up"
                )
            completed = RunCompleted(output)
            check_size(completed, output, f"the output of run {projection.run_id!r}")
            return Plan([completed])
        case Fail(error=error):
            failed = RunFailed(error)
            check_size(failed, error, f"the error of run {projection.run_id!r}")
            return Plan([failed])
        case Cancel():
            if projection.cancellation is None:
                raise InvalidTransition(
                    f"run {projection.run_id!r} can't cancel itself, nobody asked for it; return ctx.fail(...) or "
                    "ctx.complete(...)"
                )
            return Plan([RunCancelled(projection.cancellation.reason)])
        case ScheduleStep():
            return _schedule(projection, (command,), now, at)
        case ScheduleSteps(steps=steps):
            return _schedule(projection, steps, now, at)
        case WaitUntil() | WaitForSignal():
            return _wait(projection, command)
        case _:
            assert_never(command)


def _schedule(projection: Projection, steps: tuple[ScheduleStep, ...], now: datetime, at: datetime) -> Plan:
    plan, ended = Plan(), 0
    created: list[FlowEvent] = []
    for asked in steps:
        step = projection.steps.get(asked.step_id)
        if step is None:
            # refused here, before anything is written or called
            if asked.retry.longest_ms:
                shifted(max(at, now), asked.retry.longest_ms, f"step {asked.step_id!r}")
            made = StepCreated(asked.step_id, asked.step_name, asked.input, asked.retry)
            check_size(made, asked.input, f"the input of step {asked.step_id!r}")
            created.append(made)
            continue
        check_same_step(projection, step, asked)
        if step.status is StepStatus.CANCELLED:
            raise InvalidTransition(
                f"step {step.step_id!r} of run {projection.run_id!r} was cancelled; clean-up steps need ids of "
                "their own"
            )
        ended += not step.open
    if ended == len(steps):
        raise InvalidTransition(
            f"rescheduled terminal step {steps[0].step_id} of run {projection.run_id!r} without progress; look at "
            "ctx.step_completed and ctx.step_failed before asking for it"
        )
    plan.events.extend(created)
    for asked in steps:
        step = projection.steps.get(asked.step_id)
        if step is None:
            attempt = 1
        elif not step.open or (step.retry_after is not None and step.retry_after > now):
            continue
        elif step.status is StepStatus.RUNNING:  # whoever ran it is gone: the same attempt again
            plan.run.append((step.step_id, step.attempt))
            continue
        else:
            attempt = step.attempt + 1
        plan.events.append(StepStarted(asked.step_id, attempt))
        plan.run.append((asked.step_id, attempt))
    return plan if plan.run else Plan(plan.events, plan.run, waits=True)


def _wait(projection: Projection, command: WaitUntil | WaitForSignal) -> Plan:
    wait = projection.waits.get(command.wait_id)
    if wait is None:
        if isinstance(command, WaitUntil):
            return Plan([WaitCreated(command.wait_id, command.resume_at)], waits=True)
        return Plan([SignalWaitCreated(command.wait_id, command.signal_name)])
    check_same_wait(projection, wait, command)
    if wait.status is not WaitStatus.WAITING:
        raise InvalidTransition(
            f"wait {wait.wait_id!r} of run {projection.run_id!r} is {wait.status}, and was asked for again; look at "
            "ctx.wait_completed before asking for it, and take a new id to wait again"
        )
    return Plan(waits=True)


def pairing(projection: Projection) -> list[FlowEvent]:
    """Return the event that gives the oldest signal to the oldest wait for it, if there are both."""
    pair = projection.pair()
    return [] if pair is None else [SignalWaitCompleted(pair[0].wait_id, pair[1].signal_id)]


def ending(projection: Projection) -> list[FlowEvent]:
    """Return how a run ends of which a step has failed for good, unless its policy lets it continue."""
    failed = projection.interrupted
    if failed is None or projection.terminal:
        return []
    reason = _UNKNOWN.format(repr(failed.step_id))
    events: list[FlowEvent] = [
        StepCancelled(step.step_id, step.attempt, reason) for step in projection.open_steps
    ]
    error = failed.error or ""
    if failed.attempt >= failed.retry.max_attempts and not failed.non_retryable:
        events.append(RunRetryExhausted(failed.step_id, failed.attempt, error))
    else:
        events.append(RunFailed(error))
    return events


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended."""

    output: Json = None
    error: str | None = None  # None: it returned
    retryable: bool = True


def outcome_event(
    projection: Projection, step_id: str, attempt: int, outcome: Outcome, anchor: datetime
) -> FlowEvent | None:
    """Return the event that records an attempt; None if history has gone on without it.

    anchor: from when a delay counts: the failure, or the instant up to which the host catches up if later.
    """
    step = projection.steps.get(step_id)
    if projection.terminal or not _runs(step, attempt):
        return None
    assert step is not None
    if outcome.error is None:
        return StepCompleted(step_id, outcome.output)
    if not outcome.retryable:
        return StepNonRetryable(step_id, attempt, outcome.error)
    if attempt >= step.retry.max_attempts:
        return StepFailed(step_id, attempt, outcome.error)
    delay = step.retry.delay_in_ms(projection.run_id, step_id, attempt)
    return StepRetrying(
        step_id, attempt, outcome.error, shifted(anchor, delay, f"step {step_id!r}") if delay else None
    )


def _runs(step: Step | None, attempt: int) -> bool:
    return step is not None and step.status is StepStatus.RUNNING and step.attempt == attempt


def resumption(projection: Projection, wait_id: str, now: datetime) -> list[FlowEvent]:
    """Return the event that completes a wait; nothing if that was done, or the run has ended.

    Raises InvalidTransition for a wait that is not due or does not exist, RunTerminal for an unknown one of a
    run that has ended.
    """
    wait = projection.waits.get(wait_id)
    if wait is None:
        if projection.terminal:
            raise RunTerminal(projection.run_id, projection.status)
        raise InvalidTransition(f"wait {wait_id!r} of run {projection.run_id!r} does not exist")
    if projection.terminal or wait.status is not WaitStatus.WAITING:
        return []
    if wait.resume_at is None:
        raise InvalidTransition(
            f"wait {wait_id!r} of run {projection.run_id!r} is for signal {wait.signal_name!r}; send it with signal()"
        )
    if wait.resume_at > now:
        raise InvalidTransition(
            f"wait {wait_id!r} of run {projection.run_id!r} is not due until {written(wait.resume_at)}"
        )
    return [WaitCompleted(wait_id)]


def due(projection: Projection, now: datetime) -> list[Wakeup]:
    """Return the wakeups of a run that are due, in order."""
    return sorted((each for each in projection.wakeups() if each.due_at <= now), key=lambda each: each.order)
