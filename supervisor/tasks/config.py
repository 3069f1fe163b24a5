"""The settings of a supervisor."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import cast, final

from supervisor.kernel.arguments import count, count_or_none, seconds, text

__all__ = ["SupervisorConfig"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorConfig:
    """How one supervisor works. Raises ValueError or TypeError that names the field and the value."""

    name: str = "supervisor"  # first part of the names of its threads
    grace: float | timedelta = 60.0  # seconds for a stop, before a task is given up
    max_concurrent: int | None = None  # attempts in progress at once; None means no limit
    max_tasks: int | None = None  # registered tasks; None means no limit
    event_capacity: int = 1024  # events that may wait for the supervising thread
    subscriber_capacity: int = 1024  # events that may wait for one subscriber
    drain_timeout: float | timedelta = 5.0  # seconds for subscribers to read what is queued at the end
    slot_capacity: int = 100  # tasks that may wait in one slot
    exit_grace: float | timedelta = 1.0  # seconds for tasks to stop when the interpreter exits

    def __post_init__(self) -> None:
        text(self.name, "name")
        count_or_none(self.max_concurrent, "max_concurrent")
        count_or_none(self.max_tasks, "max_tasks")
        count(self.event_capacity, "event_capacity")
        count(self.subscriber_capacity, "subscriber_capacity")
        count(self.slot_capacity, "slot_capacity", 0)
        for name in ("grace", "drain_timeout", "exit_grace"):
            object.__setattr__(self, name, seconds(getattr(self, name), name))

    # The fields above take a timedelta and keep seconds; these say so to the type checker.

    @property
    def grace_seconds(self) -> float:
        return cast("float", self.grace)

    @property
    def drain_seconds(self) -> float:
        return cast("float", self.drain_timeout)

    @property
    def exit_seconds(self) -> float:
        return cast("float", self.exit_grace)
