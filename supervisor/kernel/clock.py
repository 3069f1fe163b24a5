"""Time and threads: the one file that touches `time` and `threading`.

Everything that waits asks a `Clock` for what it waits on. `SystemClock` gives the real
thing; `supervisor.testing.VirtualClock` gives the same shapes on virtual time, so that the
real threads of the library can be run deterministically.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from queue import Empty
from types import TracebackType
from typing import Any, Literal, Protocol

__all__ = [
    "LONGEST_WAIT",
    "SYSTEM_CLOCK",
    "Clock",
    "Condition",
    "Empty",
    "Latch",
    "Lock",
    "Queue",
    "SystemClock",
    "ThreadHandle",
    "current_ident",
    "in_main_thread",
]

LONGEST_WAIT = 3600.0  # seconds; a single wait of the operating system is never longer
# A signal that comes in the microseconds before the main thread blocks does not wake it, and its
# handler (Ctrl-C!) runs only once it is awake: so it sleeps in pieces.
_MAIN_PIECE = 0.2  # seconds


class Lock(Protocol):
    """A mutual exclusion lock; used as `with lock:`."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> object: ...


class Condition(Protocol):
    """Wait for a predicate. Enter the lock it was made with, never the condition itself."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...
    def notify_all(self) -> None: ...


class Latch(Protocol):
    """Closed at first; opened once, by any thread; one thread waits."""

    def open(self) -> None:
        """Let the waiter go on. Opening it twice is the same as once."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Block until open, at most `timeout` seconds; True if it is open."""
        ...


class Queue(Protocol):
    """Unbounded first-in first-out queue. `put` never blocks and is safe in a signal handler."""

    def put(self, item: Any) -> None: ...

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Raise `Empty` when nothing came within `timeout` seconds."""
        ...

    def get_nowait(self) -> Any: ...


class ThreadHandle(Protocol):
    """A started thread."""

    @property
    def name(self) -> str: ...

    @property
    def ident(self) -> int | None: ...

    def join(self, timeout: float | None = None) -> None: ...


class Clock(Protocol):
    """Time, and everything that waits for it."""

    breath: float  # seconds to wait between two batches of threads that are woken, see `SystemClock`

    def monotonic(self) -> float:
        """Seconds that only grow; for delays, timeouts and grace."""
        ...

    def now(self) -> datetime:
        """The wall clock: an aware datetime in UTC; for records and calendars."""
        ...

    def lock(self) -> Lock: ...
    def condition(self, lock: Lock) -> Condition: ...
    def latch(self) -> Latch: ...
    def queue(self) -> Queue: ...

    def spawn(self, target: Callable[[], None], name: str) -> ThreadHandle:
        """Start a daemon thread. Raises RuntimeError if the operating system refuses one."""
        ...


def _piece() -> float:
    return _MAIN_PIECE if in_main_thread() else LONGEST_WAIT


def _acquire(lock: threading.Lock, timeout: float | None) -> bool:
    """Acquire within `timeout` seconds, asleep in pieces."""
    if lock.acquire(False):
        return True
    piece = _piece()
    if timeout is None:
        while not lock.acquire(timeout=piece):
            pass
        return True
    end, left = time.monotonic() + timeout, timeout
    while left > 0.0:
        if lock.acquire(timeout=min(piece, left)):
            return True
        left = end - time.monotonic()
    return False


class _SystemCondition(threading.Condition):
    def wait_for(  # type: ignore[override]
        self, predicate: Callable[[], bool], timeout: float | None = None
    ) -> bool:
        piece = _piece()
        if timeout is not None and timeout <= piece:
            return super().wait_for(predicate, timeout)
        end = None if timeout is None else time.monotonic() + timeout
        left = piece
        while not (result := super().wait_for(predicate, left)):
            if end is not None and (left := min(piece, end - time.monotonic())) <= 0.0:
                break
        return result


class _SystemLatch:
    """A lock that is born held: waiting is acquiring it, the cheapest wait there is."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:  # open already
            pass

    def wait(self, timeout: float | None = None) -> bool:
        opened = _acquire(self._lock, timeout)
        if opened:
            self.open()  # stays open for whoever asks again
        return opened


class _Begun(threading.Event):
    """The event that `Thread.start` waits for, made not to."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()

    def wait_for_it(self) -> None:
        super().wait()


class _SystemThread(threading.Thread):
    """A thread that nobody waits for when it starts, only who joins it or wants its ident.

    `Thread.start` waits until the thread runs. Who starts a thousand waits a thousand times for the
    scheduler, and a Ctrl-C during the wait makes a thread that runs look as if it had not started.
    """

    def __init__(self, target: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._main: Callable[[], None] | None = target
        self._started = self._begun = _Begun()

    def run(self) -> None:
        self._begun.set()  # set already, unless another Python names its own event otherwise
        _name_thread(self.name)
        main, self._main = self._main, None
        if main is not None:
            main()

    @property
    def ident(self) -> int | None:
        self._begun.wait_for_it()
        return super().ident

    def join(self, timeout: float | None = None) -> None:
        self._begun.wait_for_it()
        super().join(timeout)


class _SystemQueue:
    """Items, and a lock as the bell: open when there may be some, shut when the getter has looked.

    Not `queue.SimpleQueue`: on 3.11 and 3.12 a signal that interrupts its `get(timeout)` as the time
    runs out makes it wait for ever. `Lock.acquire` does that right, and is as fast.
    """

    __slots__ = ("_bell", "_items")

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._bell = threading.Lock()

    def put(self, item: Any) -> None:
        # A signal handler may run between any two of these steps, and put, too.
        self._items.append(item)
        if self._bell.locked():
            try:
                self._bell.release()
            except RuntimeError:  # somebody else rang in between
                pass

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        items = self._items
        while not items:
            if not (_acquire(self._bell, timeout) if block else self._bell.acquire(False)) and not items:
                raise Empty
        return items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise Empty
        return self._items.popleft()


class SystemClock:
    """The clock of the machine and threads of the operating system."""

    __slots__ = ("breath", "latch", "lock", "monotonic", "now", "queue")

    def __init__(self) -> None:
        # 10 000 threads woken at once need 6 to 40 s to have run; woken in batches, one.
        self.breath: float = 0.0005
        # The things themselves, not methods that call them: these are the hottest calls there are.
        self.monotonic: Callable[[], float] = time.monotonic
        self.now: Callable[[], datetime] = partial(datetime.now, UTC)
        self.lock: Callable[[], Lock] = threading.Lock
        self.latch: Callable[[], Latch] = _SystemLatch
        self.queue: Callable[[], Queue] = _SystemQueue

    def condition(self, lock: Lock) -> Condition:
        return _SystemCondition(lock)  # type: ignore[arg-type]

    def spawn(self, target: Callable[[], None], name: str) -> ThreadHandle:
        thread = _SystemThread(target, name)
        thread.start()
        return thread


SYSTEM_CLOCK: Clock = SystemClock()  # pyright: ignore[reportAssignmentType]  (takes slots for methods)
current_ident: Callable[[], int] = threading.get_ident


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


_prctl: Callable[..., Any] | Literal[False] | None = None
_PR_SET_NAME = 15  # <linux/prctl.h>


def _name_thread(name: str) -> None:
    """Tell Linux the name of the calling thread, as `ps -L` and `top -H` show it (15 bytes)."""
    global _prctl
    if _prctl is None:
        _prctl = _load_prctl()
    if _prctl:
        _prctl(_PR_SET_NAME, name.encode("utf-8", "replace")[:15], 0, 0, 0)


def _load_prctl() -> Callable[..., Any] | Literal[False]:
    import sys

    if sys.platform != "linux":
        return False
    try:
        import ctypes

        # Not CDLL: it gives the interpreter lock away for a call that takes no time.
        prctl: Callable[..., Any] = ctypes.PyDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return False
    return prctl
