"""The way of an event: publish -> pump -> mailbox -> callback.

1. `publish`, on any thread: stamps the time and appends to a bounded line. It never blocks and
   builds nothing; while nobody subscribes it does nothing at all.
2. `pump`, on the supervising thread: gives each event its `seq`, builds it, and puts it into the
   mailbox of every subscriber that wants it. A full mailbox loses the newest; the loss is counted.
3. A delivery thread calls the callbacks, one at a time for each subscriber and in order: one
   thread for all, or a subscriber's own (a `Lane`).

Events are for people. Nothing in the library decides anything on an event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Protocol, cast

from supervisor.kernel.clock import Clock
from supervisor.kernel.event import Event, EventsDropped, SubscriberFailed, labels, maker
from supervisor.kernel.inbox import Inbox
from supervisor.kernel.lane import EventStream, Lane
from supervisor.kernel.log import library_logger
from supervisor.kernel.mailbox import Mailbox, Subscription
from supervisor.kernel.text import error_text

__all__ = ["EventBus", "Owner"]


class Owner(Protocol):
    """Whom an event belongs to; the events of one that is closed are stale and dropped."""

    closed: bool


_Entry = tuple[Owner | None, type[Event], datetime, tuple[Any, ...]]  # the values of the fields after `at`
_Route = tuple[Callable[..., Event], tuple[Mailbox, ...]]  # how to make an event, and who wants it


class _Carried:
    """Stands in the line for the class of a value that is no event."""

    kind = ""  # no label: who asks for some kinds does not get it


_CARRIED = cast("type[Event]", _Carried)


def _as_it_is(_: int, __: datetime, values: tuple[Any, ...]) -> Any:
    return values[0]


class EventBus:
    """Publishes events to subscribers; see the top of this file for the way an event takes."""

    def __init__(
        self, clock: Clock, inbox: Inbox, *, name: str, capacity: int, subscriber_capacity: int
    ) -> None:
        self.clock = clock
        self.active: bool = False  # somebody subscribes
        self.closing: bool = False  # what is queued is delivered, nothing more is published
        self.over: bool = False  # nothing comes any more, not even a diagnosis
        self.abandoned: bool = False  # nothing is delivered any more
        self.forked = False  # this process is a child of the one where the threads run
        self._now = clock.now
        self._inbox = inbox  # of the supervising thread, which pumps
        self._name = name
        self._capacity = capacity
        self._subscriber_capacity = subscriber_capacity
        self._line: deque[_Entry] = deque()
        self._lock = clock.lock()  # guards the fields below, and `dropped` of each mailbox
        self._mailboxes: tuple[Mailbox, ...] = ()
        self._routes: dict[type[Event], _Route] = {}  # made from _mailboxes when needed
        self._lost = 0  # events that found the line full
        self._seq = 0
        self._running = False
        self._shared = Lane(self, f"{name}:events", shared=True)
        self._lanes: tuple[Lane, ...] = ()

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
        self._line.append((owner, cls, self._now(), values))
        self._inbox.ring()

    def publish_value(self, value: object) -> None:
        """Publish a value of another kind, as it is, to those who asked for everything."""
        self.publish(None, _CARRIED, value)

    def publish_now(self, cls: type[Event], *values: object) -> None:
        """Publish from the supervising thread: after all that waits in line, never lost there."""
        self.pump()
        if self.active:
            with self._lock:
                self._hand_out(deque([(None, cls, self.clock.now(), values)]))
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
            self._hand_out(line)
            if self._lost:
                lost, self._lost = self._lost, 0
                self._hand_out(deque([(None, EventsDropped, self.clock.now(), ("bus", lost))]))
            if any(mailbox.closed for mailbox in self._mailboxes):  # an iterator that was thrown away
                self._leave(lambda mailbox: mailbox.closed)
        self._wake_lanes()

    def _hand_out(self, line: deque[_Entry], but: Mailbox | None = None) -> None:
        # holds _lock; empties the line. The busiest loop there is.
        routes = self._routes
        while line:
            owner, cls, at, values = line.popleft()
            if owner is not None and owner.closed:
                continue
            self._seq = seq = self._seq + 1
            make, mailboxes = routes.get(cls) or self._route(cls)
            event: Event | None = None
            for mailbox in mailboxes:
                if mailbox.closed or mailbox is but:
                    continue
                if len(mailbox.queue) >= mailbox.capacity:
                    mailbox.dropped += 1
                    continue
                if event is None:
                    event = make(seq, at, values)
                mailbox.queue.append(event)

    def _route(self, cls: type[Event]) -> _Route:
        # holds _lock
        wanted = tuple(mailbox for mailbox in self._mailboxes if mailbox.wants(cls))
        make = _as_it_is if cls is _CARRIED else maker(cls)
        route = self._routes[cls] = (make, wanted)
        return route

    def _wake_lanes(self) -> None:
        for lane in self._lanes:
            lane.inbox.ring()

    # Diagnostics: given a seq and a place in the queue in one step, so that order holds

    def caught_up(self, mailbox: Mailbox) -> bool:
        """Tell a subscriber what it lost, once it has read the rest; True if there was something."""
        if not mailbox.dropped:
            return False
        with self._lock:
            dropped, mailbox.dropped = mailbox.dropped, 0
            if mailbox.closed:
                return False
            if mailbox.wants(EventsDropped):
                self._seq += 1
                told = EventsDropped(
                    seq=self._seq, at=self.clock.now(), subscriber=mailbox.name, dropped=dropped
                )
                mailbox.queue.append(told)
                return True
        library_logger().warning("subscriber %r lost %d events", mailbox.name, dropped)
        return False

    def callback_failed(self, mailbox: Mailbox, event: Event, error: BaseException) -> None:
        """Tell the other subscribers, and the log."""
        text = error_text(error)
        mailbox.failures += 1
        log = library_logger()
        tell = log.warning if mailbox.failures == 1 else log.debug  # the others can be many
        tell("subscriber %r failed on %s: %s", mailbox.name, event.kind, text)
        if isinstance(event, SubscriberFailed | EventsDropped):
            return  # a diagnosis of a diagnosis would never end
        with self._lock:
            self._hand_out(deque([(None, SubscriberFailed, self.clock.now(), (mailbox.name, text))]), mailbox)
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
        mailbox = Mailbox(callback, labels(kinds), name, capacity or self._subscriber_capacity)
        self._enter(mailbox, Lane(self, f"{self._name}:{name}") if dedicated else self._shared)
        if self._running:
            try:
                self._start_lanes()
            except BaseException:
                self.unsubscribe(mailbox)
                raise
        return Subscription(mailbox, self.unsubscribe)

    def stream(self, kinds: Iterable[type[Event] | str] | None) -> EventStream:
        """Return an iterator over events from now to the end of the bus."""
        mailbox = Mailbox(_void, labels(kinds), "events()", self._subscriber_capacity)
        lane = Lane(self, "events()", started=True)  # the iterating thread delivers
        self._enter(mailbox, lane)
        return EventStream(self, mailbox, lane.inbox)

    def unsubscribe(self, mailbox: Mailbox) -> None:
        """End a subscription, from any thread."""
        mailbox.closed = True
        if self.forked:
            return  # the lock may be held for good
        lanes = self._lanes
        try:
            with self._lock:
                self._leave(lambda each: each is mailbox)
        finally:
            for lane in lanes:
                lane.inbox.ring()

    def _enter(self, mailbox: Mailbox, lane: Lane) -> None:
        with self._lock:
            if self.closing:
                mailbox.closed = True
                return
            lane.mailboxes += (mailbox,)
            self._mailboxes += (mailbox,)
            self._routes = {}
            if lane not in self._lanes:
                self._lanes += (lane,)
            self.active = True

    def _leave(self, goes: Callable[[Mailbox], bool]) -> None:
        # holds _lock
        self._mailboxes = tuple(each for each in self._mailboxes if not goes(each))
        self._routes = {}
        for lane in self._lanes:
            lane.mailboxes = tuple(each for each in lane.mailboxes if not goes(each))
        self._lanes = tuple(lane for lane in self._lanes if lane.mailboxes or lane.shared)
        self.active = bool(self._mailboxes)

    def is_delivering(self, ident: int) -> bool:
        """True if the thread with this ident runs callbacks of subscribers."""
        return any(lane.ident == ident for lane in self._lanes)

    def over_for(self, lane: Lane) -> bool:
        """True when a lane without work may end: while another works, it may yet fail and be told of."""
        if not self.closing or self.over:
            return self.over
        with self._lock:
            lane.resting = True
            running = [each for each in self._lanes if each.runs]
            if all(each.resting and not any(box.queue for box in each.mailboxes) for each in running):
                self.over = True
        if self.over:
            self._wake_lanes()
        return self.over

    # Life

    def start(self) -> None:
        """Start the delivery threads that subscriptions need. Raises RuntimeError without threads."""
        self._running = True
        self._start_lanes()

    def _start_lanes(self) -> None:
        with self._lock:
            todo = [lane for lane in self._lanes if not lane.started]
            for lane in todo:
                lane.started = lane.runs = True
        for lane in todo:
            try:
                self.clock.spawn(lane.deliver, lane.name)
            except BaseException:
                lane.started = lane.runs = False
                raise

    def close(self, drain_timeout: float, *, quiet: bool = False) -> bool:
        """Deliver what is queued within `drain_timeout` seconds, then end every delivery thread.

        True if everything was delivered. A callback that never returns keeps its thread.
        quiet: log nothing, as the process is about to end.
        """
        self.pump()
        with self._lock:
            self.closing = True
            lanes = self._lanes
        self._wake_lanes()
        end = self.clock.monotonic() + drain_timeout
        drained = True
        for lane in lanes:
            if lane.runs:
                drained &= lane.ended.wait(max(0.0, end - self.clock.monotonic()))
        if not drained:
            left = sum(len(mailbox.queue) for lane in lanes if lane.runs for mailbox in lane.mailboxes)
            self.abandoned = True
            if not quiet:
                library_logger().warning(
                    "subscribers took longer than %g s; %d events were not delivered", drain_timeout, left
                )
        self.over = True
        self._wake_lanes()
        return drained


def _void(_: Event) -> None:
    """The callback of an iterator: it takes its events itself."""
