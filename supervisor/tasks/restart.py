"""After each attempt: does the task run again, and when? Pure; no clock, no thread, no chance."""

from __future__ import annotations

from typing import NamedTuple

from supervisor.kernel.attempt import CANCELED, FAILED, FATAL, PANICKED, SUCCEEDED, TIMED_OUT, Ending
from supervisor.tasks.outcome import OutcomeKind
from supervisor.tasks.spec import Policy, Repeat

__all__ = ["GUARD", "Again", "Stop", "decide"]

GUARD = 0.001  # seconds at least between the starts of attempts that succeed


class Stop(NamedTuple):
    """The task ends."""

    kind: OutcomeKind
    limit_reached: bool = False


class Again(NamedTuple):
    """Another attempt follows."""

    delay: float  # seconds
    cause: str | None  # "failure" or "interval" when the wait is to be told, None when not


_NEVER, _ON_FAILURE, _ALWAYS = Repeat  # read faster than members of the class
_AT_ONCE = Again(0.0, None)
_FAILED = Stop(OutcomeKind.FAILED)
_LIMIT = Stop(OutcomeKind.FAILED, True)
_CANCELED = Stop(OutcomeKind.CANCELED)
_COMPLETED = Stop(OutcomeKind.COMPLETED)
_FINAL = {
    FATAL: Stop(OutcomeKind.FATAL),
    PANICKED: Stop(OutcomeKind.PANICKED),
    CANCELED: _CANCELED,
}


def decide(
    policy: Policy, ending: Ending, streak: int, canceled: bool, elapsed: float, draw: float
) -> Stop | Again:
    """Return what follows an attempt.

    streak: failures in a row, this one included; 0 after a success.  canceled: the task was asked
    to stop.  elapsed: seconds since the attempt started.  draw: [0, 1).
    A retryable failure with no retry left wins over a cancellation, so does a permanent one.
    """
    if ending is FAILED or ending is TIMED_OUT:
        if policy.restart.repeat is _NEVER:
            return _FAILED
        if policy.max_retries is not None and streak > policy.max_retries:
            return _LIMIT
        if canceled:
            return _CANCELED
        delay = 0.0 if policy.backoff is None else policy.backoff.delay(streak, draw)
        return Again(delay, "failure") if delay > 0.0 else _AT_ONCE
    if ending is SUCCEEDED:
        if canceled:
            return _CANCELED
        if policy.restart.repeat is not _ALWAYS:
            return _COMPLETED
        guard = max(0.0, GUARD - elapsed)
        interval = policy.restart.interval
        return Again(guard, None) if interval is None else Again(max(interval, guard), "interval")
    return _FINAL[ending]
