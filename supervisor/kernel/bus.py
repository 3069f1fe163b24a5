"""The way of an event: publish -> pump -> mailbox -> callback.

1. `publish`, on any thread: stamps the time and appends to a bounded line. It never blocks and
   builds nothing; while nobody subscribes it does nothing at all.
2. `pump`, on the supervising thread: gives each event its `seq`, builds it, and puts it into the
   mailbox of every subscriber that wants it. A full mailbox loses the newest; the loss is counted.
3. A delivery thread calls the callbacks, one at a time for each subscriber and in order: one
   thread for all, or a subscriber's own.

Events are for people. Nothing in the library decides anything on an event.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import Any, ClassVar, Protocol

from supervisor.kernel.clock import Clock, Latch, current_ident
from supervisor.kernel.inbox import AT_ONCE, Inbox
from supervisor.kernel.log import library_logger
from supervisor.kernel.text import error_text, shown

__all__ = [
    "Event",
    "EventBus",
    "EventStream",
    "EventsDropped",
    "Owner",
    "SubscriberFailed",
    "Subscription",
    "labels",
]

_QUANTUM = 64  # callbacks of one subscriber before the others have a turn


_known: dict[str, type[Event]] = {}  # by label


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened."""

    kind: ClassVar[str] = "event"  # snake_case label of the class
    seq: int  # from 1, without gaps, in order of publication
    at: datetime  # UTC, aware

    def __init_subclass__(cls) -> None:
        name = cls.__name__.removesuffix("Event")
        cls.kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        _known[cls.kind] = cls

    def to_dict(self) -> dict[str, object]:
        """Return the event as JSON-ready values: its kind first, then every field."""
        return {"kind": self.kind} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def _plain(value: Any) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return str(value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberFailed(Event):
    """A callback raised; it goes to the other subscribers."""

    subscriber: str  # name of the subscription
    error: str  # for people, never parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsDropped(Event):
    """Events were lost; it goes to the subscriber that lost them, or to all for the line itself."""

    subscriber: str  # name of the subscription, or "bus"
    dropped: int  # how many


def labels(kinds: Iterable[type[Event] | str] | None) -> frozenset[str] | None:
    """Return the labels that event classes (with all below them) and labels stand for.

    Raises ValueError for a label that no event has, TypeError for anything else. None stays None.
    """
    if kinds is None:
        return None
    if isinstance(kinds, str | type):
        kinds = (kinds,)
    found: set[str] = set()
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Event):  # pyright: ignore[reportUnnecessaryIsInstance]
            found.update(label for label, cls in _known.items() if issubclass(cls, kind))
        elif not isinstance(kind, str):
            raise TypeError(f"kinds must be event classes or their labels, got {shown(kind)}")
        elif kind not in _known:
            raise ValueError(f"no event has the label {kind!r}; there are {', '.join(sorted(_known))}")
        else:
            found.add(kind)
    return frozenset(found)


class Owner(Protocol):
    """Whom an event belongs to; the events of one that is closed are stale and dropped."""

    closed: bool


class Subscription:
    """One subscriber and its mailbox. `close` it, or leave its `with` block, to end it."""

    def __init__(
        self,
        bus: EventBus,
        callback: Callable[[Any], object],
        kinds: frozenset[str] | None,
        name: str,
        capacity: int,
    ) -> None:
        self.name = name
        self.closed = False
        self._bus = bus
        self._callback = callback
        self._kinds = kinds
        self._capacity = capacity
        self._mailbox: deque[Event] = deque()  # supervising thread appends, delivery thread takes
        self._dropped = 0  # guarded by the lock of the bus
        self._failures = 0
        self._lane: _Lane | None = None

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r}{' closed' if self.closed else ''}>"

    def close(self) -> None:
        """End the subscription: no callback starts after this returns, what is queued is dropped.

        From any thread, also from the callback itself. Closing twice is the same as once.
        """
        self._bus._unsubscribe(self)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _wants(self, cls: type[Event]) -> bool:
        return self._kinds is None or cls.kind in self._kinds


class _Lane:
    """What one delivery thread looks after: the subscriptions, and the inbox it sleeps in."""

    def __init__(self, bus: EventBus, name: str) -> None:
        self.bus = bus
        self.name = name
        self.inbox = Inbox(bus.clock)
        self.subscriptions: tuple[Subscription, ...] = ()  # replaced, never changed
        self.started = False
        self.ended: Latch = bus.clock.latch()
        self.ident: int | None = None

    def patience(self) -> float | None:
        if self.bus._closing or any(each._mailbox for each in self.subscriptions):
            return AT_ONCE
        return None

    def deliver(self) -> None:
        """The delivery thread."""
        self.ident = current_ident()
        try:
            while True:
                busy = False
                for subscription in self.subscriptions:
                    busy |= self._deliver_some(subscription)
                if busy:
                    continue
                if self.bus._closing or (self is not self.bus._shared and not self.subscriptions):
                    return
                self.inbox.take(self.patience)
        finally:
            self.ident = None
            self.ended.open()

    def _deliver_some(self, subscription: Subscription) -> bool:
        mailbox, bus = subscription._mailbox, self.bus
        for _ in range(_QUANTUM):
            if not mailbox:
                return bus._caught_up(subscription)
            if subscription.closed or bus._abandoned:
                mailbox.clear()
                return False
            event = mailbox.popleft()
            try:
                subscription._callback(event)
            except BaseException as error:
                bus._report_failure(subscription, event, error)
        return True


class EventBus:
    """Publishes events to subscribers; see the top of this file for the way an event takes."""

    def __init__(
        self, clock: Clock, inbox: Inbox, *, name: str, capacity: int, subscriber_capacity: int
    ) -> None:
        self.clock = clock
        self._inbox = inbox  # of the supervising thread, which pumps
        self._name = name
        self._capacity = capacity
        self._subscriber_capacity = subscriber_capacity
        self._line: deque[tuple[Owner | None, type[Event], datetime, tuple[Any, ...]]] = deque()
        self._lock = clock.lock()  # guards the fields below, and _dropped of each subscription
        self._subscriptions: tuple[Subscription, ...] = ()
        self._lost = 0  # events that found the line full
        self._stale = False  # an iterator was thrown away without being closed
        self._seq = 0
        self._running = False
        self._closing = False
        self._abandoned = False
        self._shared = _Lane(self, f"{name}:events")
        self._lanes: list[_Lane] = []  # started ones
        self.active = False  # somebody subscribes

    # Publishing

    def publish(self, owner: Owner | None, cls: type[Event], *values: object) -> None:
        """Publish `cls` with the values of its fields after `seq` and `at`, in their order.

        Never blocks, from any thread. owner: the task it belongs to, if a late event of it must
        be dropped once it is closed.
        """
        if not self.active:
            return
        if len(self._line) >= self._capacity:
            with self._lock:
                self._lost += 1
            return
        self._line.append((owner, cls, self.clock.now(), values))
        self._inbox.ring()

    def publish_now(self, cls: type[Event], *values: object) -> None:
        """Publish from the supervising thread: after all that waits in line, never lost there."""
        self.pump()
        if self.active:
            with self._lock:
                self._hand_out(cls, self.clock.now(), values)
            self._wake_lanes()

    @property
    def waiting(self) -> bool:
        """Something waits to be pumped."""
        return bool(self._line) or self._lost > 0

    def pump(self) -> None:
        """Hand on what waits in line. On the supervising thread only."""
        line = self._line
        if not line and not self._lost:
            return
        with self._lock:
            while line:
                owner, cls, at, values = line.popleft()
                if owner is None or not owner.closed:
                    self._hand_out(cls, at, values)
            if self._lost:
                lost, self._lost = self._lost, 0
                self._hand_out(EventsDropped, self.clock.now(), ("bus", lost))
            if self._stale:
                self._stale = False
                self._keep(lambda each: not each.closed)
        self._wake_lanes()

    def _hand_out(self, cls: type[Event], at: datetime, values: tuple[object, ...]) -> None:
        # holds _lock
        self._seq += 1
        event: Event | None = None
        for subscription in self._subscriptions:
            if subscription.closed:
                self._stale = True
            elif subscription._wants(cls):
                if len(subscription._mailbox) >= subscription._capacity:
                    subscription._dropped += 1
                    continue
                if event is None:
                    event = _make(cls)(self._seq, at, *values)
                subscription._mailbox.append(event)

    def _wake_lanes(self) -> None:
        for lane in self._lanes:
            lane.inbox.ring()

    # Diagnostics: given a seq and a place in the mailbox in one step, so that order holds

    def _caught_up(self, subscription: Subscription) -> bool:
        """Tell a subscriber what it lost, once it has read the rest; True if there was something."""
        if not subscription._dropped:
            return False
        with self._lock:
            dropped, subscription._dropped = subscription._dropped, 0
            if subscription.closed:
                return False
            if subscription._wants(EventsDropped):
                self._seq += 1
                now = self.clock.now()
                subscription._mailbox.append(
                    EventsDropped(seq=self._seq, at=now, subscriber=subscription.name, dropped=dropped)
                )
                return True
        library_logger().warning("subscriber %r lost %d events", subscription.name, dropped)
        return False

    def _report_failure(self, subscription: Subscription, event: Event, error: BaseException) -> None:
        text = error_text(error)
        log, subscription._failures = library_logger(), subscription._failures + 1
        tell = log.warning if subscription._failures == 1 else log.debug  # the others can be many
        tell("subscriber %r failed on %s: %s", subscription.name, event.kind, text)
        if isinstance(event, SubscriberFailed | EventsDropped):
            return  # a diagnosis of a diagnosis would never end
        with self._lock:
            others = tuple(each for each in self._subscriptions if each is not subscription)
            everybody, self._subscriptions = self._subscriptions, others
            self._hand_out(SubscriberFailed, self.clock.now(), (subscription.name, text))
            self._subscriptions = everybody
        self._wake_lanes()

    # Subscribing

    def subscribe(
        self,
        callback: Callable[[Any], object],
        *,
        kinds: Iterable[type[Event] | str] | None,
        name: str,
        capacity: int | None,
        dedicated: bool = False,
    ) -> Subscription:
        """Start to hand events to `callback`, on the shared delivery thread or its own."""
        subscription = Subscription(
            self, callback, labels(kinds), name, capacity or self._subscriber_capacity
        )
        lane = _Lane(self, f"{self._name}:{name}") if dedicated else self._shared
        self._join(subscription, lane)
        return subscription

    def stream(self, kinds: Iterable[type[Event] | str] | None) -> EventStream:
        """Return an iterator over events from now to the end of the bus."""
        subscription = Subscription(self, _void, labels(kinds), "events()", self._subscriber_capacity)
        lane = _Lane(self, "")
        lane.started = True  # the iterating thread delivers
        self._join(subscription, lane)
        return EventStream(subscription, lane)

    def _join(self, subscription: Subscription, lane: _Lane) -> None:
        with self._lock:
            if self._closing:
                subscription.closed = True
                return
            subscription._lane = lane
            lane.subscriptions += (subscription,)
            self._subscriptions += (subscription,)
            if lane not in self._lanes:
                self._lanes.append(lane)
            self.active = True
        if self._running:
            self._start_lanes()

    def _unsubscribe(self, subscription: Subscription) -> None:
        with self._lock:
            if subscription.closed or (lane := subscription._lane) is None:
                subscription.closed = True
                return
            subscription.closed = True
            lane.subscriptions = tuple(s for s in lane.subscriptions if s is not subscription)
            self._keep(lambda each: each is not subscription)
        lane.inbox.ring()

    def _keep(self, wanted: Callable[[Subscription], bool]) -> None:
        # holds _lock
        self._subscriptions = tuple(filter(wanted, self._subscriptions))
        lanes = {id(each._lane) for each in self._subscriptions}
        self._lanes = [lane for lane in self._lanes if lane is self._shared or id(lane) in lanes]
        self.active = bool(self._subscriptions)

    def is_delivering(self, ident: int) -> bool:
        """True if the thread with this ident runs callbacks of subscribers."""
        return any(lane.ident == ident for lane in self._lanes)

    # Life

    def start(self) -> None:
        """Start the delivery threads that subscriptions need. Raises RuntimeError without threads."""
        self._running = True
        self._start_lanes()

    def _start_lanes(self) -> None:
        with self._lock:
            todo = [lane for lane in self._lanes if not lane.started]
            for lane in todo:
                lane.started = True
        for lane in todo:
            try:
                self.clock.spawn(lane.deliver, lane.name)
            except BaseException:
                lane.started = False
                raise

    def close(self, drain_timeout: float) -> bool:
        """Deliver what is queued within `drain_timeout` seconds, then end every delivery thread.

        True if everything was delivered. A callback that never returns keeps its thread.
        """
        self.pump()
        with self._lock:
            self._closing = True
            lanes = [lane for lane in self._lanes if lane.name]
            streams = [lane for lane in self._lanes if not lane.name]
        for lane in streams + lanes:
            lane.inbox.ring()
        end = self.clock.monotonic() + drain_timeout
        drained = True
        for lane in lanes:
            if lane.started:
                drained &= lane.ended.wait(max(0.0, end - self.clock.monotonic()))
        if not drained:
            self._abandoned = True
            left = sum(len(each._mailbox) for lane in lanes for each in lane.subscriptions)
            library_logger().warning(
                "subscribers took longer than %g s; %d events were not delivered", drain_timeout, left
            )
        return drained


class EventStream(Iterator[Event]):
    """Blocking iterator over events; ends with the bus, or when it is closed."""

    def __init__(self, subscription: Subscription, lane: _Lane) -> None:
        self._subscription = subscription
        self._lane = lane

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> Event:
        mailbox, bus = self._subscription._mailbox, self._lane.bus
        while not self._subscription.closed:
            if mailbox:
                return mailbox.popleft()
            if not bus._caught_up(self._subscription):
                if bus._closing:
                    break
                self._lane.inbox.take(self._patience)
        raise StopIteration

    def _patience(self) -> float | None:
        return AT_ONCE if self._subscription.closed else self._lane.patience()

    def close(self) -> None:
        """End the iteration, from any thread."""
        self._subscription.close()

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._subscription.closed = True


_makers: dict[type[Event], Callable[..., Event]] = {}


def _make(cls: type[Event]) -> Callable[..., Event]:
    """Return a constructor that fills the slots of a frozen event directly.

    The generated `__init__` of a frozen dataclass goes through `object.__setattr__` for each
    field; writing to the slots costs less than half, and events are the busiest path there is.
    """
    maker = _makers.get(cls)
    if maker is None:
        names = [field.name for field in fields(cls)]
        slots = {f"set_{name}": _slot(cls, name).__set__ for name in names}
        lines = [f"def make({', '.join(names)}):", "    event = new(cls)"]
        lines += [f"    set_{name}(event, {name})" for name in names]
        scope: dict[str, Any] = {"new": object.__new__, "cls": cls, **slots}
        exec("\n".join([*lines, "    return event"]), scope)
        maker = _makers[cls] = scope["make"]
    return maker


def _slot(cls: type[Event], name: str) -> Any:
    return next(vars(base)[name] for base in cls.__mro__ if name in vars(base))


def _void(_: Event) -> None:
    """The callback of an iterator: it takes its events itself."""
