"""Cancel tokens: a tree of sticky flags. Cancellation only flows down, the first reason wins.

Waiting on a token is the only interruptible wait there is: a pause, a backoff, an interval
and the queue for a permit are all `token.wait` or a latch that the token opens.
"""

from __future__ import annotations

from _weakref import ref
from _weakrefset import WeakSet
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum

from supervisor.kernel.arguments import duration, patience
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock, Latch, Lock
from supervisor.kernel.deadlines import VERDICT, Deadline, Deadlines, own_timer
from supervisor.kernel.errors import Canceled
from supervisor.kernel.log import library_logger
from supervisor.kernel.text import shown, traceback_text

__all__ = ["CancelReason", "CancelToken", "Undo", "run_callbacks"]

Undo = Callable[[], None]


class CancelReason(StrEnum):
    """Why somebody was asked to stop."""

    REQUESTED = "requested"  # remove, cancel
    SHUTDOWN = "shutdown"
    TIMEOUT = "timeout"  # the deadline of an attempt, or of a child token
    REPLACED = "replaced"  # by a newer task of the same slot


class CancelToken:
    """A flag that is set once, waited for by any number of threads, and inherited by children."""

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_children",
        "_clock",
        "_deadline",
        "_kept",
        "_latches",
        "_parent",
        "_reason",
        "_timers",
        "lock",
    )

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        timers: Deadlines | None = None,
        _parent: CancelToken | None = None,
    ) -> None:
        self._parent = _parent
        self._reason: CancelReason | None = None
        self._latches: list[Latch] | None = None  # opened by the cancellation
        self._callbacks: dict[object, Callable[[], object]] | None = None
        self._children: WeakSet[CancelToken] | None = None  # weak: ended attempts don't pile up
        self._kept: set[CancelToken] | None = None  # children that have callbacks to run
        self._deadline: Deadline | None = None
        if _parent is None:
            self._clock: Clock = clock or SYSTEM_CLOCK
            self._timers = timers
            self.lock: Lock = self._clock.lock()  # of the whole tree: guards every field above
        else:
            self._clock, self._timers, self.lock = _parent._clock, _parent._timers, _parent.lock

    def __repr__(self) -> str:
        state = "active" if self._reason is None else f"canceled: {self._reason.value}"
        return f"<CancelToken {state}>"

    @property
    def canceled(self) -> bool:
        """True from the cancellation on."""
        return self._reason is not None

    @property
    def reason(self) -> CancelReason | None:
        """Why it was canceled; None before."""
        return self._reason

    def cancel(self, reason: CancelReason = CancelReason.REQUESTED) -> bool:
        """Cancel this token and everything below it; True for the call that did it.

        Callbacks run here, on the calling thread, in the order of registration; what they raise
        is logged.
        """
        if not isinstance(reason, CancelReason):
            raise TypeError(f"reason must be a CancelReason, got {shown(reason)}")
        self._check_process()
        found: list[Callable[[], object]] = []
        try:
            return self._seal(reason, found)
        finally:  # also when a Ctrl-C came in between
            run_callbacks(found)

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Block until canceled, at most `timeout` seconds; True if canceled."""
        limit = patience(timeout, "timeout")
        self._check_process()
        if self._reason is not None:
            return True
        latch = self._clock.latch()
        if not self.watch(latch):
            return True
        try:
            if limit is None or self._timers is None:
                latch.wait(limit)
            elif limit > 0:
                alarm = self._timers.call_at(self._clock.monotonic() + limit, latch.open)
                try:
                    latch.wait()
                finally:
                    alarm.cancel()
        finally:
            self.unwatch(latch)
        return self._reason is not None

    def sleep(self, seconds: float | timedelta) -> None:
        """Pause; raises Canceled as soon as the token is canceled."""
        self.wait(duration(seconds, "seconds"))
        self.check()

    def check(self) -> None:
        """Raise Canceled if the token is canceled."""
        self._check_process()
        if self._reason is not None:
            raise Canceled(self._reason)

    def on_cancel(self, fn: Callable[[], object]) -> Undo:
        """Call `fn()` once when the token is canceled, at once if it is already.

        It runs on the thread that cancels; what it raises is logged, never raised. Returns a
        function that takes the registration back.
        """
        if not callable(fn):
            raise TypeError(f"on_cancel needs a callable, got {fn!r}")
        self._check_process()
        with self.lock:
            if self._reason is None:
                if self._callbacks is None:
                    self._callbacks = {}
                callbacks, key = self._callbacks, object()
                callbacks[key] = fn
                self._be_kept()
                return lambda: _void(callbacks.pop(key, None))
        run_callbacks([fn])
        return lambda: None

    def child(self, timeout: float | timedelta | None = None) -> CancelToken:
        """Return a token that is canceled with this one, and after `timeout` seconds with TIMEOUT.

        Canceling the child never touches its parent.
        """
        limit = patience(timeout, "timeout")
        self._check_process()
        child = CancelToken(_parent=self)
        with self.lock:
            if self._reason is not None:
                child._reason = self._reason
                return child
            if self._children is None:
                self._children = WeakSet()
            self._children.add(child)
        if limit is not None and limit > 0.0:
            child._expire_in(limit)
        elif limit is not None:
            child.seal(CancelReason.TIMEOUT)
        return child

    # For the library: what has to happen where no user code may run.

    def seal(self, reason: CancelReason) -> list[Callable[[], object]] | None:
        """Cancel and wake, but leave the callbacks to the caller; None if canceled before."""
        found: list[Callable[[], object]] = []
        return found if self._seal(reason, found) else None

    def _seal(self, reason: CancelReason, found: list[Callable[[], object]]) -> bool:
        with self.lock:
            if self._reason is not None:
                return False
            try:
                self._spread(reason, found)
            except BaseException:  # a Ctrl-C in the middle: whoever waits is woken all the same
                self._spread(reason, found)
                raise
            return True

    def watch(self, latch: Latch) -> bool:
        """Open `latch` at the cancellation; False if that has happened."""
        with self.lock:
            if self._reason is not None:
                return False
            if self._latches is None:
                self._latches = []
            self._latches.append(latch)
            return True

    def unwatch(self, latch: Latch) -> None:
        """Take `watch` back."""
        with self.lock:
            if self._latches is not None and latch in self._latches:
                self._latches.remove(latch)

    def forget_callbacks(self) -> None:
        """Drop the callbacks of this token: what they would have closed is closed."""
        with self.lock:
            self._callbacks = None
            if self._parent is not None and self._parent._kept is not None:
                self._parent._kept.discard(self)

    def _check_process(self) -> None:
        # in a forked child nobody would ever cancel it, and its lock may be held for good
        if self._timers is not None:
            self._timers.check_process()

    def _spread(self, reason: CancelReason, found: list[Callable[[], object]]) -> None:
        # holds lock; a loop, so that a deep tree can't exhaust the stack; twice is the same as once
        todo: list[CancelToken] = [self]
        while todo:
            token = todo.pop()
            if token._reason is None:
                token._reason = reason
            if token._callbacks is not None:
                found.extend(token._callbacks.values())
                token._callbacks = None
            if token._latches is not None:
                for latch in token._latches:
                    latch.open()
                token._latches = None
            if token._deadline is not None:
                token._deadline.cancel()
            if token._children is not None:
                todo.extend(token._children)
        self._children = self._kept = None

    def _be_kept(self) -> None:
        # holds lock; nobody else may hold a token whose callbacks must still run
        token = self
        while (parent := token._parent) is not None:
            if token._deadline is not None:
                token._deadline.call_instead(token._expire)
            if parent._kept is None:
                parent._kept = set()
            parent._kept.add(token)
            token = parent

    def _expire_in(self, limit: float) -> None:
        # A token that nobody holds any more is not kept until then, unless it has callbacks to run.
        timers = self._timers or own_timer(self._clock)
        me = ref(self, lambda _: timers.forget(deadline))
        deadline = timers.call_at(self._clock.monotonic() + limit, lambda: _expire(me), VERDICT)
        self._deadline = deadline

    def run_apart(self, callbacks: list[Callable[[], object]]) -> None:
        """Run what `seal` left on a thread of its own, where it can't hold up the caller."""
        if not callbacks:
            return
        try:
            self._clock.spawn(lambda: run_callbacks(callbacks), "supervisor:cancel")
        except RuntimeError:  # no thread is to be had: they hold up others, but they run
            run_callbacks(callbacks)

    def _expire(self) -> None:
        self.run_apart(self.seal(CancelReason.TIMEOUT) or [])


def _expire(me: Callable[[], CancelToken | None]) -> None:
    if (token := me()) is not None:
        token._expire()


def run_callbacks(callbacks: list[Callable[[], object]]) -> None:
    """Call each; log what they raise."""
    for callback in callbacks:
        try:
            callback()
        except BaseException as error:  # as text: `logging` would raise what a hostile one raises
            library_logger().error("an on_cancel callback failed\n%s", traceback_text(error))


def _void(_: object) -> None:
    """Drop a value."""
