"""The way of envelopes and diagnoses to subscribers: after the commit, on a delivery thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from supervisor.durable.history import FORMS, Envelope
from supervisor.durable.payload import normal
from supervisor.kernel.arguments import callable_name
from supervisor.kernel.bus import EventBus
from supervisor.kernel.clock import Clock, Lock
from supervisor.kernel.event import Event
from supervisor.kernel.forks import forgets_after_fork
from supervisor.kernel.inbox import Inbox
from supervisor.kernel.text import shown

__all__ = ["Observers"]

_CAPACITY = 4096  # events that may wait for one subscriber
_ORDERS = 64  # locks; runs that share one append one after the other
_DRAIN = 5.0  # seconds for subscribers to read what is queued at the end


class Observers:
    """The subscribers of one engine. Whoever publishes hands on; nobody waits for a subscriber."""

    def __init__(self, clock: Clock, subscribers: Iterable[Callable[[Any], object]]) -> None:
        if not isinstance(subscribers, Iterable):
            raise TypeError(f"subscribers must be a collection of callables, got {shown(subscribers)}")
        found = list(subscribers)
        for each in found:
            if not callable(each):
                raise TypeError(f"a subscriber must be callable, got {shown(each)}")
        self._clock = clock
        self._subscribers: list[Callable[[Any], object]] = []
        self.forget()
        forgets_after_fork(self)
        for each in found:
            self.subscribe(each)

    def forget(self) -> None:
        """Be without a delivery thread. In the child of a fork another one is started for the first event."""
        # What is stored of one run in some order is published in that order; a run always has the same lock.
        self._orders = [self._clock.lock() for _ in range(_ORDERS)]
        self._lock = self._clock.lock()  # guards _bus, which may be read without
        self._bus: EventBus | None = None

    def subscribe(self, subscriber: Callable[[Any], object]) -> None:
        """Have one more get what is published from now on. For one thread at a time."""
        if not callable(subscriber):
            raise TypeError(f"a subscriber must be callable, got {shown(subscriber)}")
        attached = getattr(subscriber, "attached", None)
        if callable(attached):
            attached(self._clock)
        self._subscribers.append(subscriber)
        if self._bus is None:
            self._open()
        else:
            self._attach(self._bus, subscriber)

    @staticmethod
    def _attach(bus: EventBus, subscriber: Callable[[Any], object]) -> None:
        bus.subscribe(subscriber, kinds=None, name=callable_name(subscriber), capacity=None)

    def _open(self) -> EventBus:
        with self._lock:
            if self._bus is None:
                bus = EventBus(
                    self._clock,
                    Inbox(self._clock),
                    name="durable",
                    capacity=_CAPACITY,
                    subscriber_capacity=_CAPACITY,
                )
                for each in self._subscribers:
                    self._attach(bus, each)
                bus.start()
                self._bus = bus
            return self._bus

    @property
    def active(self) -> bool:
        """Somebody subscribes."""
        return bool(self._subscribers)

    def order(self, run_id: str) -> Lock:
        """Return the lock to hold from an append to its publication."""
        return self._orders[hash(run_id) % _ORDERS]

    def publish(self, envelopes: list[Envelope]) -> None:
        """Hand on what was appended, as copies."""
        if not self._subscribers:
            return
        bus = self._bus or self._open()
        for each in envelopes:
            event = FORMS.read(normal(each.event.to_dict(), "event"))
            bus.publish_value(replace(each, event=event))
        bus.pump()

    def tell(self, cls: type[Event], *values: object) -> None:
        """Publish a diagnosis.  values: its fields after `seq` and `at`, in order."""
        if self._subscribers:
            bus = self._bus or self._open()
            bus.publish(None, cls, *values)
            bus.pump()

    def close(self) -> None:
        """Deliver what is queued, then end the delivery thread."""
        if self._bus is not None:
            self._bus.close(_DRAIN)
