"""The events of a direct run: the same path as everywhere, without a supervisor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from supervisor.flows.lifecycle import ResourceFailed
from supervisor.flows.task import Tell
from supervisor.kernel.arguments import callable_name
from supervisor.kernel.bus import EventBus
from supervisor.kernel.clock import Clock
from supervisor.kernel.event import Event
from supervisor.kernel.inbox import Inbox
from supervisor.kernel.text import error_text, shown

__all__ = ["Direct"]

_CAPACITY = 1024  # events that may wait for one subscriber
_DRAIN = 5.0  # seconds for subscribers to read what is queued at the end


class Direct:
    """A bus for one run on the caller's thread. Whoever publishes pumps; nobody waits."""

    def __init__(self, clock: Clock, flow_id: str, subscribers: Iterable[Callable[[Any], object]]) -> None:
        self._flow_id = flow_id
        self._bus: EventBus | None = None
        for subscriber in subscribers:
            if not callable(subscriber):
                raise TypeError(f"a subscriber must be callable, got {shown(subscriber)}")
            if self._bus is None:
                self._bus = EventBus(
                    clock, Inbox(clock), name=flow_id, capacity=_CAPACITY, subscriber_capacity=_CAPACITY
                )
            attached = getattr(subscriber, "attached", None)
            if callable(attached):
                attached(clock)
            self._bus.subscribe(subscriber, kinds=None, name=callable_name(subscriber), capacity=None)
        self.tell: Tell | None = None if self._bus is None else self._publish

    def __enter__(self) -> Self:
        if self._bus is not None:
            self._bus.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bus is not None:
            self._bus.close(_DRAIN)

    def _publish(self, cls: type[Event], *values: object) -> None:
        assert self._bus is not None
        self._bus.publish(None, cls, self._flow_id, *values)
        self._bus.pump()

    def resource_failed(self, key: str, error: BaseException) -> None:
        """Tell that a tear-down raised."""
        if self._bus is not None:
            self._publish(ResourceFailed, key, error_text(error))
