"""What the durable layer tells beside the history itself: troubles of the machinery."""

from __future__ import annotations

from supervisor.kernel.event import Event, event

__all__ = ["RunUnserved", "StoreFailed"]


@event
class StoreFailed(Event):
    """The store or the queue failed; it is tried again."""

    during: str  # what was being done
    error: str  # for people, never parsed
    retry_in: float  # seconds until the next try


@event
class RunUnserved(Event):
    """This process does not know the workflow, or a step, of a run; it is left for one that does."""

    run_id: str
    reason: str  # for people, never parsed
