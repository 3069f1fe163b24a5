"""One shutdown, shared by all who ask: close, cancel, grace, force-abort, one result."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from supervisor.kernel.cancellation import CancelReason
from supervisor.kernel.deadlines import VERDICT, Deadline
from supervisor.kernel.errors import StuckTask
from supervisor.kernel.promise import Promise
from supervisor.tasks.actor import Actor
from supervisor.tasks.lifecycle import GraceExceededEvent, ShutdownCompleted, ShutdownRequested

if TYPE_CHECKING:
    from supervisor.tasks.running import Running

__all__ = ["Shutdown"]

_BATCH = 32  # tasks that are woken together


class Shutdown:
    """Carried out by the supervising thread, step by step; every caller waits for `result`."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self.result: Promise[tuple[StuckTask, ...]] = Promise(running.clock)
        self.grace: float = running.config.grace_seconds  # seconds, of the first caller
        self._drain = running.config.drain_seconds
        self._begun = False
        self._to_cancel: deque[Actor] = deque()
        self._deadline: Deadline | None = None

    @property
    def busy(self) -> bool:
        """Tasks are left to be canceled: they are woken in batches."""
        return bool(self._to_cancel)

    def begin(self, grace: float, *, requested: bool, drain: float | None = None) -> None:
        """Close admission and ask every task to stop. Asked for again, it may shorten the grace."""
        running = self._running
        end = running.clock.monotonic() + grace
        if self._begun:
            if self._deadline is not None and end < self._deadline.when:
                self._deadline.cancel()
                self.grace = grace
                self._deadline = running.deadlines.call_at(end, self.give_up_all, VERDICT)
            return
        self._begun = True
        self.grace = grace
        if drain is not None:
            self._drain = min(drain, self._drain)
        if requested:
            running.bus.publish_now(ShutdownRequested)
        with running.lock:
            running.closing = True
            running.emptied.notify_all()
            self._to_cancel.extend(running.registry.live.values())
        running.admissions.cancel_queued()
        self._deadline = running.deadlines.call_at(end, self.give_up_all, VERDICT)

    def step(self) -> None:
        """Cancel the next batch; end when nobody is left."""
        if not self._begun or self.result.done:
            return
        running = self._running
        for _ in range(_BATCH):
            if not self._to_cancel:
                break
            actor = self._to_cancel.popleft()
            with running.lock:
                running.claim(actor, CancelReason.SHUTDOWN)
            running.call_back(actor.token.seal(CancelReason.SHUTDOWN) or [])
        if not self._to_cancel and not running.registry.live:
            self._finish()

    def give_up_all(self) -> None:
        """The grace is over."""
        self._to_cancel.clear()
        for actor in list(self._running.registry.live.values()):
            self._running.give_up(actor, f"did not stop within the {self.grace:g} s of the shutdown")

    def _finish(self) -> None:
        running = self._running
        if self._deadline is not None:
            self._deadline.cancel()
        with running.lock:
            left = list(running.registry.stuck.values())
        stuck = tuple(StuckTask(actor.name, actor.id, actor.stack()) for actor in left if not actor.ended)
        if stuck:
            running.bus.publish_now(GraceExceededEvent, stuck)
        running.bus.publish_now(ShutdownCompleted)
        running.end(self._drain)
        self.result.set(stuck)

    def ended(self) -> None:
        """The supervising thread is gone: nobody must wait for it."""
        self.result.set(())
