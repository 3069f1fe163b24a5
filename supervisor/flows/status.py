"""What a flow is doing, and what one run changes about it. Pure: a record and its transitions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple, final

from supervisor.kernel.backoff import BackoffPolicy

__all__ = [
    "FLOW_BACKOFF",
    "Backoff",
    "Completed",
    "FlowInfo",
    "Idle",
    "Record",
    "Running",
    "Status",
    "Tripped",
]

FLOW_BACKOFF: Final = BackoffPolicy(initial=1.0, multiplier=2.0, max_delay=300.0, jitter=0.1)
"""What a flow waits after failures until told otherwise; it never trips."""

TICK: Final = 1e-9  # seconds; nearer than this is the same instant, as sums of floats are not exact


@final
@dataclass(frozen=True, slots=True)
class Idle:
    """Never run, reset, or the last run was canceled."""


@final
@dataclass(frozen=True, slots=True)
class Running:
    """A run is in progress."""

    started: datetime  # UTC


@final
@dataclass(frozen=True, slots=True)
class Completed:
    """The last run succeeded."""

    at: datetime  # UTC


@final
@dataclass(frozen=True, slots=True)
class Backoff:
    """The last run failed; nothing is dispatched before `until`."""

    until: datetime  # UTC
    streak: int  # failures in a row
    last_error: str  # for people, never parsed


@final
@dataclass(frozen=True, slots=True)
class Tripped:
    """Too many failures in a row; nothing is dispatched until `reset_flow`."""

    streak: int  # failures in a row
    last_error: str  # for people, never parsed


Status = Idle | Running | Completed | Backoff | Tripped


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class FlowInfo:
    """A snapshot of one flow."""

    id: str
    status: Status
    run_count: int  # runs that were started
    last_run: datetime | None  # start of the last run, UTC
    last_duration: float | None  # seconds, of the last run that ended
    failure_streak: int  # failures in a row
    next_eligible: datetime | None  # end of the backoff window, UTC; None without one, and when tripped
    next_fire: datetime | None  # next planned run, UTC; None for manual flows
    skipped: int  # ticks that were refused
    paused: bool


class Record(NamedTuple):
    """The state of one flow; each transition returns the next one."""

    status: Status = Idle()
    run_count: int = 0
    last_run: datetime | None = None
    last_duration: float | None = None
    streak: int = 0
    eligible: float | None = None  # monotonic seconds: end of the backoff window
    eligible_at: datetime | None = None  # the same for people, UTC
    ended: float | None = None  # monotonic: end of the last run
    skipped: int = 0
    paused: bool = False

    @property
    def running(self) -> bool:
        return isinstance(self.status, Running)

    def refusal(self, now: float) -> str | None:
        """Return why a tick must be skipped at the monotonic instant `now`; None if it may run."""
        if self.running:
            return "running"
        if self.paused:
            return "paused"
        if isinstance(self.status, Tripped):
            return "tripped"
        if self.eligible is not None and self.eligible - now > TICK:
            return "backoff"
        return None

    def skip(self) -> Record:
        """A tick was refused."""
        return self._replace(skipped=self.skipped + 1)

    def start(self, at: datetime) -> Record:
        """A run begins."""
        return self._replace(status=Running(at), run_count=self.run_count + 1, last_run=at)

    def succeed(self, at: datetime, now: float, duration: float) -> Record:
        """The run succeeded: the streak is over."""
        return self._replace(
            status=Completed(at),
            streak=0,
            eligible=None,
            eligible_at=None,
            ended=now,
            last_duration=duration,
        )

    def cancel(self, now: float, duration: float) -> Record:
        """The run was canceled: the streak is as before."""
        return self._replace(status=Idle(), ended=now, last_duration=duration)

    def fail(
        self,
        at: datetime,
        now: float,
        duration: float,
        error: str,
        policy: BackoffPolicy,
        streak_limit: int | None,
        draw: float,
    ) -> Record:
        """The run failed: a backoff window counted from now, or the flow trips."""
        streak = self.streak + 1
        if streak_limit is not None and streak >= streak_limit:
            return self._replace(
                status=Tripped(streak, error),
                streak=streak,
                eligible=None,
                eligible_at=None,
                ended=now,
                last_duration=duration,
            )
        delay = policy.delay(streak, draw)
        until = later(at, delay)
        return self._replace(
            status=Backoff(until, streak, error),
            streak=streak,
            eligible=now + delay,
            eligible_at=until,
            ended=now,
            last_duration=duration,
        )

    def reset(self) -> Record:
        """Forget failures; a run in progress goes on."""
        status: Status = self.status if self.running else Idle()
        return self._replace(status=status, streak=0, eligible=None, eligible_at=None)


def later(at: datetime, delay: float) -> datetime:
    """Return `at` plus seconds; the end of the calendar when that lies beyond it."""
    try:
        return at + timedelta(seconds=delay)
    except OverflowError:
        return datetime.max.replace(tzinfo=at.tzinfo)
