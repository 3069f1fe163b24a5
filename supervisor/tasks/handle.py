"""What a user holds of a task: `TaskHandle`, and `TaskInfo`, a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from supervisor.kernel.arguments import patience
from supervisor.kernel.errors import OutcomeUnavailable
from supervisor.tasks.actor import Actor, State
from supervisor.tasks.outcome import TaskOutcome
from supervisor.tasks.registry import TaskId

if TYPE_CHECKING:
    from supervisor.tasks.supervisor import Supervisor

__all__ = ["TaskHandle", "TaskInfo", "actor_of", "snapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """What a task did at one moment."""

    id: TaskId
    name: str
    state: str  # waiting, running, backoff, idle, stopping, stuck, finished
    attempt: int  # the last one started; 0 before the first
    streak: int  # failures in a row
    started_at: datetime | None  # of that attempt, UTC
    next_attempt_at: datetime | None  # UTC, in backoff and idle
    last_error: str | None  # for people, never parsed
    stack: str | None = None  # where the thread is, when asked for and running


class TaskHandle:
    """One task, from its admission on. Handles of the same task are equal."""

    __slots__ = ("_actor", "_supervisor", "id", "name")

    def __init__(self, supervisor: Supervisor, actor: Actor) -> None:
        self._supervisor = supervisor
        self._actor = actor
        self.id: TaskId = TaskId(actor.id)
        self.name: str = actor.name

    def __repr__(self) -> str:
        return f"<TaskHandle {self.name!r} #{self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def done(self) -> bool:
        """True once the outcome is there."""
        return self.outcome is not None

    @property
    def outcome(self) -> TaskOutcome | None:
        """How the task ended; None before."""
        self._supervisor.check_process()
        return self._actor.outcome.value

    def wait(self, timeout: float | timedelta | None = None) -> TaskOutcome:
        """Block until the task has ended, at most `timeout` seconds, and return its outcome.

        From any thread, as often as wanted. Raises TimeoutError when the time is over,
        `ReentrantCall` from the task's own body, `Canceled` in another body that is asked to stop
        meanwhile, `OutcomeUnavailable` if none can come any more.
        """
        limit = patience(timeout, "timeout")
        self._supervisor.check_process()
        actor = self._actor
        if not self._supervisor.wait_for_outcome(
            actor, limit, "wait", "use remove(), or return from the body"
        ):
            raise TimeoutError(
                f"task {self.name!r} (#{self.id}) has not ended within {limit:g} s; it goes on"
            )
        if (outcome := actor.outcome.value) is None:
            raise OutcomeUnavailable(f"the supervisor of task {self.name!r} (#{self.id}) is gone without one")
        return outcome

    def cancel(self, timeout: float | timedelta | None = None) -> bool:
        """Ask the task to stop and wait until it has ended; see `Supervisor.cancel`."""
        return self._supervisor.cancel(self, timeout=timeout)

    def remove(self) -> bool:
        """Ask the task to stop; see `Supervisor.remove`."""
        return self._supervisor.remove(self)

    def info(self, *, stack: bool = False) -> TaskInfo:
        """Return a snapshot; with the stack of its thread on request."""
        self._supervisor.check_process()
        return snapshot(self._actor, stack=stack)


def actor_of(handle: TaskHandle, supervisor: Supervisor) -> Actor | None:
    """Return the actor behind a handle, registered or not; None if it is of another supervisor."""
    return handle._actor if handle._supervisor is supervisor else None


def snapshot(actor: Actor, *, stack: bool = False) -> TaskInfo:
    """Read what an actor does now, without a lock."""
    clock = actor.clock
    state, attempt, streak, started, next_at, last_error = actor.progress
    if actor.closed:
        state = State.FINISHED if actor.ended else State.STUCK
    elif actor.outcome.done:
        state = State.FINISHED
    elif actor.claimed:
        state = State.STOPPING

    def wall(instant: float | None) -> datetime | None:
        if instant is None:
            return None
        try:
            return clock.now() + timedelta(seconds=instant - clock.monotonic())
        except OverflowError:  # a very long wait is legal, the calendar ends with the year 9999
            return datetime.max.replace(tzinfo=UTC)

    waits = state in (State.BACKOFF, State.IDLE)
    return TaskInfo(
        id=TaskId(actor.id),
        name=actor.name,
        state=state,
        attempt=attempt,
        streak=streak,
        started_at=wall(started),
        next_attempt_at=wall(next_at) if waits else None,
        last_error=last_error,
        stack=(actor.stack() or None) if stack and state != State.FINISHED else None,
    )
