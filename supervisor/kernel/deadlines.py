"""A heap of deadlines and who looks at it.

`Deadlines` is the heap; the thread that owns it asks how long it may wait and runs what is
due. Thousands of threads in timed waits at once collapse (each polls for the interpreter
lock), thousands parked on latches that one thread opens do not: so every timed wait of a
supervised task is an entry here.

`own_timer` gives the same heap with a thread of its own, for cancel tokens that belong to no
supervisor. The thread lives while the heap has entries.
"""

from __future__ import annotations

import heapq
import os
from collections import deque
from collections.abc import Callable
from itertools import count

from supervisor.kernel.clock import Clock, SystemClock
from supervisor.kernel.errors import ForkedProcess
from supervisor.kernel.inbox import AT_ONCE, Inbox

__all__ = ["VERDICT", "WAKE", "Deadline", "Deadlines", "own_timer"]

WAKE, VERDICT = 0, 1  # at one instant sleepers wake first, so that who returns in time has won
_COMPACT_FROM = 64  # dead entries; below it compaction is not worth it
_BATCH = 32
_PATIENT = 0.005  # seconds; a deadline is late by more when those who ring leave no time for it
_TICK = 1e-9  # seconds; nearer than this is due, as a sum of floats may fall short of it


class Deadline:
    """One entry; `cancel` makes it harmless."""

    __slots__ = ("_callback", "_heap", "when")

    def __init__(self, heap: Deadlines, when: float, callback: Callable[[], None]) -> None:
        self._heap = heap
        self.when: float = when  # monotonic seconds
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Never run the callback from now on; nothing happens if it ran or runs already."""
        if self._callback is not None:
            self._callback = None
            self._heap._buried()  # pyright: ignore[reportPrivateUsage]

    def call_instead(self, callback: Callable[[], None]) -> None:
        """Change what is to run, unless it ran or was canceled."""
        if self._callback is not None:
            self._callback = callback

    def _fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Deadlines:
    """Callbacks by time. They run on the owner's thread: library code that never blocks."""

    __slots__ = ("_dead", "_forgotten", "_heap", "_lock", "_order", "_pid", "_ring", "clock")

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self.clock: Clock = clock
        self._ring = ring  # wakes the owner
        self._lock = clock.lock()  # guards _heap, _dead
        self._heap: list[tuple[float, int, int, Deadline]] = []
        self._dead = 0
        self._forgotten: deque[None] = deque()  # one for each dead entry that is not yet counted
        self._order = count()
        self._pid = os.getpid()  # where the owner runs

    def call_at(self, when: float, callback: Callable[[], None], rank: int = WAKE) -> Deadline:
        """Run `callback` on the owner's thread once `clock.monotonic() >= when`. From any thread."""
        self.check_process()
        deadline = Deadline(self, when, callback)
        # An instant is a nanosecond: 0.1 + 0.1 + 0.1 is not after 0.3, and who sleeps till then wakes first.
        entry = (round(when, 9), rank, next(self._order), deadline)
        with self._lock:
            while self._forgotten:
                self._forgotten.popleft()
                self._bury()
            heapq.heappush(self._heap, entry)
            first = self._heap[0] is entry
        if first:
            self._ring()
        return deadline

    def forget(self, deadline: Deadline) -> None:
        """Make an entry harmless where no lock may be taken, as in a finalizer."""
        if deadline._callback is not None:
            deadline._callback = None
            self._forgotten.append(None)

    def adopt(self) -> None:
        """The owner's thread starts in this process, perhaps a child of the one that made the heap."""
        self._pid = os.getpid()

    def check_process(self) -> None:
        """Raise ForkedProcess in a forked child, where nobody looks at the heap."""
        if os.getpid() != self._pid:
            raise ForkedProcess(
                "this process was forked from the one that runs the supervisor; "
                "make a new Supervisor in the child"
            )

    def seconds_left(self) -> float | None:
        """Return the seconds until the first deadline, never negative; None without one."""
        with self._lock:
            heap = self._heap
            while heap and heap[0][3]._callback is None:  # pyright: ignore[reportPrivateUsage]
                heapq.heappop(heap)
                self._dead -= 1
            if not heap:
                return None
            left = heap[0][0] - self.clock.monotonic()
            return left if left > _TICK else 0.0

    def late_by(self) -> float:
        """Return for how many seconds the first deadline has been due; 0 if none is."""
        with self._lock:
            return max(0.0, self.clock.monotonic() - self._heap[0][0]) if self._heap else 0.0

    def run_due(self, limit: int, up_to: int = VERDICT) -> int:
        """Run what is due, in order, all of the rank of the first; return how many.

        limit: at most so many.  up_to: the highest rank to run; one that stands before it holds it up.
        """
        due: list[Deadline] = []
        with self._lock:
            heap, now = self._heap, self.clock.monotonic() + _TICK
            group: int | None = None
            while heap and len(due) < limit and heap[0][0] <= now:
                _, rank, _, deadline = heap[0]
                if deadline._callback is None:  # pyright: ignore[reportPrivateUsage]
                    heapq.heappop(heap)
                    self._dead -= 1
                    continue
                if rank > up_to or (group is not None and rank != group):
                    break
                group = rank
                heapq.heappop(heap)
                due.append(deadline)
        for deadline in due:
            deadline._fire()  # pyright: ignore[reportPrivateUsage]
        return len(due)

    def _buried(self) -> None:
        with self._lock:
            self._bury()

    def _bury(self) -> None:
        # holds _lock
        self._dead += 1
        if self._dead > _COMPACT_FROM and self._dead > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[3]._callback is not None]
            heapq.heapify(self._heap)
            self._dead = 0


class _OwnTimer(Deadlines):
    """Deadlines with a thread that lives while there are any."""

    __slots__ = ("_inbox", "_running", "_yielded")

    def __init__(self, clock: Clock) -> None:
        self._inbox = Inbox(clock)
        super().__init__(clock, self._wake)
        self._running = False  # guarded by _lock
        self._yielded = False  # the last wait was one of no time, after everybody else

    def _wake(self) -> None:
        with self._lock:
            start, self._running = not self._running, True
        if start:
            try:
                self.clock.spawn(self._run, "supervisor:timer")
            except BaseException:
                with self._lock:
                    self._running = False
                raise
        else:
            self._inbox.ring()

    def _run(self) -> None:
        while True:
            self.seconds_left()  # takes canceled entries off the top
            with self._lock:
                if not self._heap:
                    self._running = False
                    return
            self._inbox.take(self._patience)
            late = self.late_by() > _PATIENT
            if self._inbox.quiet or late:
                self.run_due(_BATCH, VERDICT if self._yielded or late else WAKE)

    def _patience(self) -> float | None:
        left = self.seconds_left()
        self._yielded = left == 0.0  # whoever returns at this instant may do so before it is judged
        return AT_ONCE if left is None else left  # the last one was canceled meanwhile: look again

    def forget(self, deadline: Deadline) -> None:
        super().forget(deadline)
        if isinstance(self.clock, SystemClock):  # whose bell a finalizer may ring: the thread may end now
            self._inbox.ring()

    def _buried(self) -> None:
        super()._buried()
        self._inbox.ring()


_timers: dict[int, _OwnTimer] = {}  # by id of the clock, which its timer keeps alive


def own_timer(clock: Clock) -> Deadlines:
    """Return the shared timer of a clock, for whoever belongs to no supervisor."""
    found = _timers.get(id(clock))
    return _timers.setdefault(id(clock), _OwnTimer(clock)) if found is None else found


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_timers.clear)  # its thread does not exist in the child
