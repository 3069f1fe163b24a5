"""The account of a supervisor's life: events folded into rows and lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from supervisor.cli.words import Tone, duration
from supervisor.flows.lifecycle import (
    FlowBackoff,
    FlowCanceled,
    FlowEvent,
    FlowFailed,
    FlowReset,
    FlowScheduled,
    FlowStarted,
    FlowSucceeded,
    FlowTaskRetrying,
    FlowTrippedEvent,
)
from supervisor.kernel.cancellation import CancelReason
from supervisor.kernel.event import Event, EventsDropped, SubscriberFailed
from supervisor.tasks.lifecycle import (
    AttemptCanceled,
    AttemptFailed,
    AttemptOverrunning,
    AttemptReturnedLate,
    AttemptStarting,
    AttemptSucceeded,
    AttemptTimedOut,
    BackoffScheduled,
    GraceExceededEvent,
    ShutdownCompleted,
    ShutdownRequested,
    TaskAdded,
    TaskCancelRequested,
    TaskEvent,
    TaskFinished,
    TaskRejected,
)
from supervisor.tasks.outcome import OutcomeKind

__all__ = ["Account", "Entry", "Row", "State", "fold"]

_KEPT = 100  # newest entries


class State(StrEnum):
    """What a task or a flow does."""

    WAITING = "waiting"
    RUNNING = "running"
    LATE = "late"  # timed out, and the body has not been seen to end
    BACKOFF = "backoff"
    IDLE = "idle"  # between two runs of a periodic task, or of a flow
    TRIPPED = "tripped"  # a flow that waits for a reset
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One task, or one flow, whose runs count as attempts."""

    task: str
    flow: bool = False
    state: State = State.WAITING
    since: datetime  # when that began
    until: datetime | None = None  # end of a backoff or an interval
    attempt: int = 0  # the last one started
    retries: int = 0  # attempts that followed a failure
    successes: int = 0
    failures: int = 0  # attempts that raised
    timeouts: int = 0
    trips: int = 0  # of a flow
    resets: int = 0  # of a flow
    stumbled: bool = False  # the last attempt failed or timed out
    said: str = ""  # the last result, for people
    tone: Tone = Tone.PLAIN  # of `said`
    stopped_by: str | None = None  # why it was asked to stop
    outcome: OutcomeKind | None = None
    reason: str | None = None

    @property
    def why(self) -> str:
        """Why it ended, for people; "" when the outcome says it all."""
        return self.reason or (f"stopped by {self.stopped_by}" if self.stopped_by else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the account."""

    after: float  # seconds since the first event
    task: str  # "" when it is about all of them
    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """All that the events have told so far."""

    began: datetime | None = None  # the first event
    rows: Mapping[str, Row] = field(default_factory=dict[str, Row])  # by task, in order of admission
    entries: tuple[Entry, ...] = ()  # the newest ones
    told: int = 0  # entries there were
    stopping: bool = False
    ended: bool = False

    def news(self, since: Account) -> tuple[Entry, ...]:
        """Return the entries that `since`, an earlier state of this account, has not."""
        new = self.told - since.told
        return self.entries[-new:] if new else ()


def fold(account: Account, event: Event) -> Account:
    """Return the account with one more event in it."""
    began = account.began or event.at
    account = replace(account, began=began)
    match event:
        case TaskEvent():
            before = account.rows.get(event.task) or Row(task=event.task, since=event.at)
            after = _row(before, event)
            account = replace(account, rows={**account.rows, event.task: after})
            said = _said(before, event)
            task = event.task
        case FlowEvent():
            task = event.flow_id
            before = account.rows.get(task) or Row(task=task, since=event.at, flow=True)
            account = replace(account, rows={**account.rows, task: _flow_row(before, event)})
            said = _flow_said(before, event)
        case ShutdownRequested():
            account = replace(account, stopping=True)
            said, task = ("every task is asked to stop", Tone.HEAD), ""
        case ShutdownCompleted():
            rows = {name: _ended(row, event.at) if row.flow else row for name, row in account.rows.items()}
            account = replace(account, rows=rows, stopping=True, ended=True)
            said, task = ("every task has ended", Tone.HEAD), ""
        case GraceExceededEvent():
            names = ", ".join(each.name for each in event.stuck)
            said, task = (f"the grace is over and these still run: {names}", Tone.BAD), ""
        case EventsDropped():
            said, task = (f"{event.dropped} events were lost on the way to {event.subscriber}", Tone.WARN), ""
        case SubscriberFailed():
            said, task = (f"subscriber {event.subscriber} failed: {event.error}", Tone.BAD), ""
        case _:
            return account
    if said is None:
        return account
    entry = Entry(after=(event.at - began).total_seconds(), task=task, text=said[0], tone=said[1])
    return replace(account, entries=(*account.entries, entry)[-_KEPT:], told=account.told + 1)


def _row(row: Row, event: TaskEvent) -> Row:
    at = event.at
    match event:
        case AttemptStarting():
            retries = row.retries + row.stumbled
            return replace(
                row, state=State.RUNNING, since=at, until=None, attempt=event.attempt, retries=retries
            )
        case AttemptSucceeded():
            said = f"ok in {duration(event.duration)}"
            return replace(
                row, successes=row.successes + 1, stumbled=False, said=said, tone=Tone.GOOD, since=at
            )
        case AttemptFailed():
            return replace(
                row, failures=row.failures + 1, stumbled=True, said=event.error, tone=Tone.BAD, since=at
            )
        case AttemptTimedOut():
            said = f"timed out after {duration(event.timeout)}"
            return replace(
                row,
                state=State.LATE,
                since=at,
                timeouts=row.timeouts + 1,
                stumbled=True,
                said=said,
                tone=Tone.WARN,
            )
        case AttemptOverrunning() | AttemptReturnedLate():
            return replace(row, said=_late(event), tone=Tone.WARN)
        case AttemptCanceled():
            said = f"stopped after {duration(event.duration)}"
            return replace(row, said=said, tone=Tone.QUIET, since=at)
        case BackoffScheduled():
            state = State.BACKOFF if event.cause == "failure" else State.IDLE
            return replace(row, state=state, since=at, until=at + timedelta(seconds=event.delay))
        case TaskCancelRequested():
            return replace(row, stopped_by=str(event.reason))
        case TaskFinished():
            return replace(
                row, state=State.ENDED, since=at, until=None, outcome=event.outcome, reason=event.reason
            )
        case TaskRejected():
            return replace(
                row, state=State.ENDED, since=at, outcome=OutcomeKind.REJECTED, reason=event.reason
            )
        case _:
            return row


def _said(row: Row, event: TaskEvent) -> tuple[str, Tone] | None:
    """Return what the account says about an event of the task whose row was `row`; None for nothing."""
    match event:
        case TaskAdded():
            return "added", Tone.QUIET
        case AttemptStarting():
            if event.attempt == 1 or row.stumbled:  # a run of a calm periodic task is told by its end
                return f"attempt {event.attempt} starts", Tone.QUIET
            return None
        case AttemptSucceeded():
            return f"attempt {event.attempt} succeeded in {duration(event.duration)}", Tone.GOOD
        case AttemptFailed():
            return f"attempt {event.attempt} failed: {event.error}", Tone.BAD
        case AttemptTimedOut():
            return f"attempt {event.attempt} timed out after {duration(event.timeout)}", Tone.WARN
        case AttemptOverrunning() | AttemptReturnedLate():
            return f"attempt {event.attempt} {_late(event)}", Tone.WARN
        case AttemptCanceled():
            return f"attempt {event.attempt} stopped after {duration(event.duration)}", Tone.QUIET
        case BackoffScheduled(cause="failure"):
            return f"backoff of {duration(event.delay)} before attempt {event.attempt + 1}", Tone.WARN
        case TaskCancelRequested():
            if event.reason is CancelReason.SHUTDOWN:  # told once, for all of them
                return None
            return f"asked to stop: {event.reason}", Tone.QUIET
        case TaskFinished():
            reason = f": {event.reason}" if event.reason else ""
            return f"ended {event.outcome}{reason}", _tone_of(event.outcome)
        case TaskRejected():
            return f"rejected: {event.reason}", Tone.BAD
        case _:
            return None


def _flow_row(row: Row, event: FlowEvent) -> Row:
    at = event.at
    match event:
        case FlowScheduled():
            waits = row.state in (State.WAITING, State.IDLE)
            return replace(row, state=State.IDLE, until=event.next_fire) if waits else row
        case FlowStarted():
            retries = row.retries + row.stumbled
            return replace(row, state=State.RUNNING, since=at, until=None, attempt=event.run, retries=retries)
        case FlowSucceeded():
            row = replace(row, state=State.IDLE, since=at, successes=row.successes + 1, stumbled=False)
            return replace(
                row, said=f"{event.exit_state or 'ok'} in {duration(event.duration)}", tone=Tone.GOOD
            )
        case FlowFailed():
            row = replace(row, state=State.IDLE, since=at, failures=row.failures + 1, stumbled=True)
            return replace(row, said=event.error, tone=Tone.BAD)
        case FlowCanceled():
            said = f"stopped after {duration(event.duration)}"
            return replace(row, state=State.IDLE, since=at, said=said, tone=Tone.QUIET)
        case FlowBackoff():
            return replace(row, state=State.BACKOFF, since=at, until=event.until)
        case FlowTrippedEvent():
            return replace(row, state=State.TRIPPED, since=at, until=None, trips=row.trips + 1)
        case FlowReset():
            state = row.state if row.state is State.RUNNING else State.IDLE
            return replace(row, state=state, since=at, until=None, resets=row.resets + 1)
        case _:
            return row


def _flow_said(row: Row, event: FlowEvent) -> tuple[str, Tone] | None:
    """Return what the account says about an event of the flow whose row was `row`; None for nothing."""
    match event:
        case FlowScheduled():
            return ("scheduled", Tone.QUIET) if row.state is State.WAITING else None
        case FlowStarted():
            if event.run == 1 or row.stumbled:  # a run of a calm flow is told by its end
                return f"run {event.run} starts", Tone.QUIET
            return None
        case FlowSucceeded():
            reached = f"reached {event.exit_state}" if event.exit_state else "succeeded"
            return f"run {event.run} {reached} in {duration(event.duration)}", Tone.GOOD
        case FlowFailed():
            return f"run {event.run} failed: {event.error}", Tone.BAD
        case FlowCanceled():
            return f"run {event.run} stopped after {duration(event.duration)}", Tone.QUIET
        case FlowTaskRetrying():
            again = f"again in {duration(event.delay)}"
            return f"{event.state} attempt {event.attempt} failed, {again}: {event.error}", Tone.WARN
        case FlowBackoff():
            return f"backoff of {duration(event.delay)} before run {row.attempt + 1}", Tone.WARN
        case FlowTrippedEvent():
            return f"tripped after {event.streak} failures in a row: it waits for a reset", Tone.BAD
        case FlowReset():
            return "reset: it may run again", Tone.HEAD
        case _:
            return None


def _ended(row: Row, at: datetime) -> Row:
    """Return the row of a flow when all is over; no event tells how a flow ends, only how its runs did."""
    tripped = f"tripped {_times(row.trips)}" if row.trips else ""
    reset = f"reset {_times(row.resets)}" if row.resets else ""
    outcome = (
        OutcomeKind.FORCE_ABORTED
        if row.state is State.RUNNING
        else OutcomeKind.FAILED
        if row.stumbled
        else OutcomeKind.COMPLETED
        if row.successes
        else OutcomeKind.CANCELED
    )
    reason = ", ".join(filter(None, (tripped, reset))) or None
    return replace(row, state=State.ENDED, since=at, until=None, outcome=outcome, reason=reason)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _late(event: AttemptOverrunning | AttemptReturnedLate) -> str:
    late = duration(event.late_by)
    if isinstance(event, AttemptOverrunning):
        return f"still runs {late} after its deadline"
    return f"ended {late} after its deadline ({event.ended})"


def _tone_of(outcome: OutcomeKind) -> Tone:
    match outcome:
        case OutcomeKind.COMPLETED:
            return Tone.GOOD
        case OutcomeKind.CANCELED:
            return Tone.PLAIN
        case _:
            return Tone.BAD
