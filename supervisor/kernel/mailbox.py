"""Where events wait for one subscriber, and the handle on it that users hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from supervisor.kernel.event import Event

__all__ = ["Mailbox", "Subscription"]


class Mailbox:
    """The queue of one subscriber: bounded, the newest are lost and counted.

    The bus appends under its lock; one thread, that of the lane, takes.
    """

    __slots__ = ("callback", "capacity", "closed", "dropped", "failures", "kinds", "name", "queue")

    def __init__(
        self, callback: Callable[[Any], object], kinds: frozenset[str] | None, name: str, capacity: int
    ) -> None:
        self.callback: Callable[[Any], object] = callback
        self.kinds: frozenset[str] | None = kinds  # labels; None for all
        self.name: str = name
        self.capacity: int = capacity
        self.queue: deque[Event] = deque()
        self.dropped: int = 0  # since the subscriber was told last; guarded by the lock of the bus
        self.failures: int = 0  # of the callback
        self.closed: bool = False

    def wants(self, cls: type[Event]) -> bool:
        """True if the subscriber asked for such events."""
        return self.kinds is None or cls.kind in self.kinds


class Subscription:
    """One subscriber. `close` it, or leave its `with` block, to end it."""

    __slots__ = ("_mailbox", "_unsubscribe")

    def __init__(self, mailbox: Mailbox, unsubscribe: Callable[[Mailbox], None]) -> None:
        self._mailbox = mailbox
        self._unsubscribe = unsubscribe

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r}{' closed' if self.closed else ''}>"

    @property
    def name(self) -> str:
        """Its name in diagnostics."""
        return self._mailbox.name

    @property
    def closed(self) -> bool:
        """True once it is ended."""
        return self._mailbox.closed

    def close(self) -> None:
        """End the subscription: what is queued is dropped; a call that has begun goes on.

        From any thread, also from the callback itself. Closing twice is the same as once.
        """
        self._unsubscribe(self._mailbox)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
