"""When a flow fires: pure, on two clocks handed in.

`Every` lives on monotonic seconds, so no step of the wall clock moves it. `Cron` lives on the wall
clock and says at which UTC instant the next tick is; the dispatcher turns that into a wait.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from supervisor.kernel import cron

__all__ = ["Cron", "Every", "Manual", "Trigger"]


class Every(NamedTuple):
    """At the start, then `interval` seconds after the end of each run."""

    interval: float  # seconds

    def due(self, started: float, ended: float | None, eligible: float | None) -> float:
        """Return the monotonic instant of the next run.

        started: when the scheduler started.  ended: end of the last run of any kind, None before
        the first.  eligible: end of a backoff window.
        """
        due = started if ended is None else ended + self.interval
        return due if eligible is None else max(due, eligible)


class Cron(NamedTuple):
    """At the ticks of an expression."""

    expression: cron.Cron

    def tick_after(self, instant: datetime) -> datetime | None:
        """Return the first tick strictly after `instant`, UTC; None if it never fires again."""
        return self.expression.next_after(instant)


class Manual(NamedTuple):
    """Only when triggered."""


Trigger = Every | Cron | Manual
