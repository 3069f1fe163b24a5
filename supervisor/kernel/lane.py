"""Who takes events out of mailboxes: a delivery thread, or the thread that iterates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from supervisor.kernel.clock import Clock, Latch, current_ident
from supervisor.kernel.errors import ForkedProcess
from supervisor.kernel.event import Event
from supervisor.kernel.inbox import AT_ONCE, Inbox
from supervisor.kernel.mailbox import Mailbox

__all__ = ["EventStream", "Lane"]

_QUANTUM = 64  # callbacks of one subscriber before the others have a turn
_SLICE = 0.02  # seconds, after which they have it, too


class Source(Protocol):
    """What lanes and iterators need of their bus."""

    clock: Clock
    closing: bool  # what is queued is delivered, nothing more comes
    over: bool  # nobody delivers any more
    abandoned: bool  # what is queued is dropped
    forked: bool  # this process is a child of the one where the threads run

    def over_for(self, lane: Lane) -> bool:
        """True when a lane without work may end."""
        ...

    def caught_up(self, mailbox: Mailbox) -> bool:
        """Tell a subscriber what it lost; True if there was something."""
        ...

    def callback_failed(self, mailbox: Mailbox, event: Event, error: BaseException) -> None:
        """Tell the others."""
        ...

    def unsubscribe(self, mailbox: Mailbox) -> None:
        """End a subscription."""
        ...


class Lane:
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

    def __init__(self, bus: Source, name: str, *, shared: bool = False, started: bool = False) -> None:
        self.bus: Source = bus
        self.shared: bool = shared  # its thread stays, with or without subscribers
        self.name: str = name
        self.inbox: Inbox = Inbox(bus.clock)
        self.mailboxes: tuple[Mailbox, ...] = ()  # replaced, never changed
        self.started: bool = started
        self.runs: bool = False  # a thread delivers, or has
        self.resting: bool = False  # the bus is closing, and nothing is left to do here
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
                if self.bus.over_for(self) or (
                    not self.shared and all(mailbox.closed for mailbox in self.mailboxes)
                ):
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
        queue, callback, bus = mailbox.queue, mailbox.callback, self.bus
        monotonic = bus.clock.monotonic
        end = monotonic() + _SLICE
        for _ in range(_QUANTUM):
            if not queue:
                return bus.caught_up(mailbox)
            if mailbox.closed or bus.abandoned:
                queue.clear()
                return False
            event = queue.popleft()
            try:
                callback(event)
            except BaseException as error:
                bus.callback_failed(mailbox, event, error)
            if monotonic() > end:  # a slow one: the others have waited long enough
                break
        return True


class EventStream(Iterator[Event]):
    """Blocking iterator over events; ends with the supervisor, or when it is closed.

    Several threads may iterate at once; each event goes to one of them.
    """

    __slots__ = ("_bus", "_inbox", "_mailbox", "_turn")

    def __init__(self, bus: Source, mailbox: Mailbox, inbox: Inbox) -> None:
        self._bus = bus
        self._mailbox = mailbox
        self._inbox = inbox
        self._turn = bus.clock.lock()  # several threads may iterate: one waits, the others wait for it

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> Event:
        """Return the next event, and block for it. On the iterating thread."""
        if self._bus.forked:
            raise ForkedProcess("no event comes in a forked child; make a new Supervisor in it")
        with self._turn:
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
