"""The inbox of a thread that supervises: messages that are never lost, and a bell.

Other threads `post` messages (callables that the owner runs) or `ring` after they left work
somewhere the owner looks at. The owner `take`s one message at a time and says, by going to
sleep in `take`, that a ring is worth its price: a bell that rings for somebody who is awake
costs two attribute reads.
"""

from __future__ import annotations

from collections.abc import Callable

from supervisor.kernel.clock import Clock, Empty

__all__ = ["AT_ONCE", "Inbox", "Message"]

AT_ONCE = -1.0
_FAR = 1e8  # seconds; a longer patience is asked for again

Message = Callable[[], None]


class Inbox:
    """One owner takes; any thread, signal handler or finalizer posts and rings."""

    __slots__ = ("_asleep", "_queue", "quiet")

    def __init__(self, clock: Clock) -> None:
        self._queue = clock.queue()
        self._asleep = False
        self.quiet: bool = False  # the last `take` waited to the end: nobody had anything to say

    def post(self, message: Message) -> None:
        """Leave a message. Never blocks; one `put`, so a signal handler may do it."""
        self._queue.put(message)

    def ring(self) -> None:
        """Wake the owner if it sleeps. Call it after the work to be seen is in place."""
        if self._asleep:
            self._asleep = False
            self._queue.put(None)

    def take(self, patience: Callable[[], float | None]) -> Message | None:
        """Return the next message; None when rung or when the patience is over.

        patience: seconds to wait, None for as long as it takes, `AT_ONCE` when there is work to
        do. It is asked after the owner counts as asleep, so that a ring can't fall between the
        question and the wait. Zero seconds let every other thread of the clock go first (see
        `VirtualClock`).
        """
        self._asleep = True
        self.quiet = False
        timeout: float | None = None
        try:
            timeout = patience()
            if timeout is None:
                message: Message | None = self._queue.get()
            elif timeout == AT_ONCE:
                message = self._queue.get_nowait()
            else:
                message = self._queue.get(True, min(timeout, _FAR))
        except Empty:
            message = None
            self.quiet = timeout != AT_ONCE
        self._asleep = False
        return message

    def take_waiting(self) -> Message | None:
        """Return a message that is there already, or None. Never blocks."""
        try:
            while (message := self._queue.get_nowait()) is None:
                pass  # a ring that was answered before it was read
        except Empty:
            return None
        return message  # type: ignore[no-any-return]
