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
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Protocol

from supervisor.kernel.clock import Clock, Latch, current_ident
from supervisor.kernel.errors import ForkedProcess
from supervisor.kernel.event import Event, EventsDropped, SubscriberFailed, labels, maker
from supervisor.kernel.inbox import AT_ONCE, Inbox
from supervisor.kernel.log import library_logger
from supervisor.kernel.mailbox import Mailbox, Subscription
from supervisor.kernel.text import error_text

__all__ = ["EventBus", "EventStream", "Owner"]

_QUANTUM = 64  # callbacks of one subscriber before the others have a turn


class Owner(Protocol):
    """Whom an event belongs to; the events of one that is closed are stale and dropped."""

    closed: bool


class EventBus:
    """Publishes events to subscribers; see the top of this file for the way an event takes."""

    def __init__(
        self, clock: Clock, inbox: Inbox, *, name: str, capacity: int, subscriber_capacity: int
    ) -> None:
        self.clock = clock
        self.active = False  # somebody subscribes
        self.closing = False  # what is queued is delivered, nothing more is published
        self.over = False  # nothing comes any more, not even a diagnosis
        self.abandoned = False  # nothing is delivered any more
        self.forked = False  # this process is a child of the one where the threads run
        self._inbox = inbox  # of the supervising thread, which pumps
        self._name = name
        self._capacity = capacity
        self._subscriber_capacity = subscriber_capacity
        self._line: deque[tuple[Owner | None, type[Event], datetime, tuple[Any, ...]]] = deque()
        self._lock = clock.lock()  # guards the fields below, and `dropped` of each mailbox
        self._mailboxes: tuple[Mailbox, ...] = ()
        self._lost = 0  # events that found the line full
        self._stale = False  # an iterator was thrown away without being closed
        self._seq = 0
        self._running = False
        self._shared = _Lane(self, f"{name}:events", shared=True)
        self._lanes: tuple[_Lane, ...] = ()

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
                self._leave(lambda mailbox: mailbox.closed)
        self._wake_lanes()

    def _hand_out(
        self, cls: type[Event], at: datetime, values: tuple[object, ...], but: Mailbox | None = None
    ) -> None:
        # holds _lock
        self._seq += 1
        event: Event | None = None
        for mailbox in self._mailboxes:
            if mailbox.closed:
                self._stale = True
            elif mailbox.wants(cls) and mailbox is not but:
                if len(mailbox.queue) >= mailbox.capacity:
                    mailbox.dropped += 1
                    continue
                if event is None:
                    event = maker(cls)(self._seq, at, *values)
                mailbox.queue.append(event)

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
            self._hand_out(SubscriberFailed, self.clock.now(), (mailbox.name, text), mailbox)
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
        self._enter(mailbox, _Lane(self, f"{self._name}:{name}") if dedicated else self._shared)
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
        lane = _Lane(self, "events()", started=True)  # the iterating thread delivers
        self._enter(mailbox, lane)
        return EventStream(self, mailbox, lane.inbox)

    def unsubscribe(self, mailbox: Mailbox) -> None:
        """End a subscription, from any thread."""
        mailbox.closed = True
        if self.forked:
            return  # the lock may be held for good
        with self._lock:
            lanes = self._lanes
            self._leave(lambda each: each is mailbox)
        for lane in lanes:
            lane.inbox.ring()

    def _enter(self, mailbox: Mailbox, lane: _Lane) -> None:
        with self._lock:
            if self.closing:
                mailbox.closed = True
                return
            lane.mailboxes += (mailbox,)
            self._mailboxes += (mailbox,)
            if lane not in self._lanes:
                self._lanes += (lane,)
            self.active = True

    def _leave(self, goes: Callable[[Mailbox], bool]) -> None:
        # holds _lock
        self._mailboxes = tuple(each for each in self._mailboxes if not goes(each))
        for lane in self._lanes:
            lane.mailboxes = tuple(each for each in lane.mailboxes if not goes(each))
        self._lanes = tuple(lane for lane in self._lanes if lane.mailboxes or lane.shared)
        self.active = bool(self._mailboxes)

    def is_delivering(self, ident: int) -> bool:
        """True if the thread with this ident runs callbacks of subscribers."""
        return any(lane.ident == ident for lane in self._lanes)

    def over_for(self, lane: _Lane) -> bool:
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


class _Lane:
    """What one delivery thread looks after: its mailboxes, and the inbox it sleeps in."""

    __slots__ = (
        "bus",
        "ended",
        "ident",
        "inbox",
        "mailboxes",
        "name",
        "resting",
        "runs",
        "shared",
        "started",
    )

    def __init__(self, bus: EventBus, name: str, *, shared: bool = False, started: bool = False) -> None:
        self.bus = bus
        self.shared = shared  # its thread stays, with or without subscribers
        self.name = name
        self.inbox = Inbox(bus.clock)
        self.mailboxes: tuple[Mailbox, ...] = ()  # replaced, never changed
        self.started = started
        self.runs = False  # a thread delivers, or has
        self.resting = False  # the bus is closing, and nothing is left to do here
        self.ended: Latch = bus.clock.latch()
        self.ident: int | None = None

    def deliver(self) -> None:
        """The delivery thread."""
        self.ident = current_ident()
        try:
            while True:
                busy = False
                for mailbox in self.mailboxes:
                    busy |= self._deliver_some(mailbox)
                if busy:
                    continue
                if self.bus.over_for(self) or not (self.mailboxes or self.shared):
                    return
                self.inbox.take(self.patience)
                self.resting = False  # before anything is taken from a queue, see `over_for`
        finally:
            self.ident = None
            self.ended.open()

    def patience(self) -> float | None:
        """Return how long to sleep, see `Inbox.take`."""
        if self.bus.over or any(each.queue for each in self.mailboxes):
            return AT_ONCE
        return AT_ONCE if self.bus.closing and not self.resting else None

    def _deliver_some(self, mailbox: Mailbox) -> bool:
        """Call a subscriber with a part of what waits for it; True if there may be more."""
        queue, bus = mailbox.queue, self.bus
        for _ in range(_QUANTUM):
            if not queue:
                return bus.caught_up(mailbox)
            if mailbox.closed or bus.abandoned:
                queue.clear()
                return False
            event = queue.popleft()
            try:
                mailbox.callback(event)
            except BaseException as error:
                bus.callback_failed(mailbox, event, error)
        return True


class EventStream(Iterator[Event]):
    """Blocking iterator over events; ends with the supervisor, or when it is closed."""

    __slots__ = ("_bus", "_inbox", "_mailbox")

    def __init__(self, bus: EventBus, mailbox: Mailbox, inbox: Inbox) -> None:
        self._bus = bus
        self._mailbox = mailbox
        self._inbox = inbox

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> Event:
        """Return the next event, and block for it. On the iterating thread."""
        if self._bus.forked:
            raise ForkedProcess("no event comes in a forked child; make a new Supervisor in it")
        while not self._mailbox.closed:
            if self._mailbox.queue:
                return self._mailbox.queue.popleft()
            if not self._bus.caught_up(self._mailbox):
                if self._bus.over:
                    break
                self._inbox.take(self._patience)
        raise StopIteration

    def _patience(self) -> float | None:
        done = self._mailbox.closed or self._bus.over
        return AT_ONCE if done or self._mailbox.queue else None

    def close(self) -> None:
        """End the iteration, from any thread."""
        self._bus.unsubscribe(self._mailbox)

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._mailbox.closed = True  # no lock here: a finalizer may run under any


def _void(_: Event) -> None:
    """The callback of an iterator: it takes its events itself."""
