"""The stop of a scheduler: wait for runs, cancel what is left, tear down; one result for all who ask.

It is carried out once: by the dispatcher, as its last act, or by a thread of its own while the dispatcher still
waits to be let in by its supervisor.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING

from supervisor.flows.errors import StopTimeout
from supervisor.flows.flow import Flow
from supervisor.flows.lifecycle import ResourceFailed
from supervisor.flows.status import TICK
from supervisor.kernel.cancellation import CancelReason
from supervisor.kernel.inbox import AT_ONCE
from supervisor.kernel.promise import Promise
from supervisor.kernel.text import error_text

if TYPE_CHECKING:
    from supervisor.flows.dispatcher import Dispatcher

__all__ = ["TIMEOUT", "Stop", "inside"]

TIMEOUT = 30.0  # seconds a stop waits for runs
_HEED = 1.0  # seconds a run has to heed a request to cancel, after the timeout of a stop

# The stop that would wait for whoever runs here, a run or a tear-down:
inside: ContextVar[Stop | None] = ContextVar("supervisor_scheduler", default=None)


class Stop:
    """Asked for by anybody, any number of times; every caller waits for `result`."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._supervisor = dispatcher.supervisor
        self._clock = dispatcher.clock
        self._inbox = dispatcher.inbox  # rings whenever a run ends
        self._lock = dispatcher.lock  # guards the fields below
        self.asked: bool = False  # may be set without the lock
        self._manned = False  # a thread fires what is due, and carries out the stop
        self._by: float | None = None  # monotonic: when runs are asked to cancel
        self._timeout = TIMEOUT  # seconds, as asked for
        self.result: Promise[StopTimeout | None] = Promise(self._clock)

    # Asking for it

    def request(self, timeout: float) -> None:
        """Ask for it, and return at once. Asked for again, it may come earlier."""
        with self._lock:
            end = self._clock.monotonic() + timeout
            if self._by is None or end < self._by:
                self._by, self._timeout = end, timeout
            self.asked = True
        self._inbox.ring()

    def with_supervisor(self) -> None:
        """The dispatcher is asked to stop: leave time for the tear-down within the grace."""
        running, config = self._supervisor.running, self._supervisor.config
        self.request(config.exit_seconds / 4 if running.exiting else min(TIMEOUT, config.grace_seconds / 2))
        self.adopt()

    def adopt(self) -> None:
        """Have the stop carried out although the dispatcher still waits to be let in by the supervisor."""
        if not self.claim():
            return
        try:
            self._clock.spawn(self.carry_out, f"{self._supervisor.config.name}:stop")
        except RuntimeError:  # no thread is to be had: the dispatcher does it in its time
            self._manned = False

    def claim(self) -> bool:
        """Take it on: True for the first, who carries it out."""
        with self._lock:
            taken, self._manned = self._manned, True
            return not taken

    # Carrying it out

    def carry_out(self) -> None:
        """Wait for runs, cancel what is left, tear down. Once, by whom `claim` said True to."""
        if self._by is None:
            self.request(TIMEOUT)
        self._await_runs(lambda: self._by)
        with self._lock:
            left = [(flow, flow.token) for flow in self._dispatcher.flows.values() if flow.token is not None]
        for flow, token in left:
            token.run_apart(token.seal(CancelReason.SHUTDOWN) or [])
            self._dispatcher.drop_if_queued(flow, token)
        if left:
            heed_by = self._clock.monotonic() + _HEED
            self._await_runs(lambda: heed_by)
        with self._lock:
            deaf = [flow.id for flow in self._dispatcher.flows.values() if flow.token is not None]
        late = [id for id in self._tear_down() if id not in deaf]
        self._dispatcher.workers.close(0.0 if deaf else _HEED)
        failure = StopTimeout(deaf, self._timeout, late) if deaf or late else None
        if self._dispatcher.owns_supervisor:
            self._supervisor.request_shutdown()
        self.result.set(failure)

    def _await_runs(self, end: Callable[[], float | None]) -> None:
        """Wait until no run is in flight, at most to the monotonic instant `end()`."""
        self._await(lambda: self._dispatcher.in_flight == 0, end)

    def _await(self, over: Callable[[], bool], end: Callable[[], float | None]) -> None:
        """Wait until something is over, which rings, at most to the monotonic instant `end()`."""

        def patience() -> float | None:
            limit = end()
            if over() or limit is None:
                return AT_ONCE
            return max(0.0, limit - self._clock.monotonic())

        while not over() and (end() or 0.0) - self._clock.monotonic() > TICK:
            self._inbox.take(patience)

    def _tear_down(self) -> tuple[str, ...]:
        """Tear down flows, the last registered first; return those it had no time for.

        On a thread of its own, as a tear-down may block for ever.
        """
        flows = [flow for flow in reversed(self._dispatcher.flows.values()) if flow.res is not None]
        left = [flow.id for flow in flows]

        def close_all() -> None:
            inside.set(self)  # a stop in here would wait for itself
            for flow in flows:
                assert flow.res is not None
                try:
                    flow.res.close(partial(self._resource_failed, flow))
                except KeyboardInterrupt:  # told already; it must not save the others from their tear-down
                    pass
                left.remove(flow.id)
            self._inbox.ring()

        try:
            self._clock.spawn(close_all, f"{self._supervisor.config.name}:teardown")
        except RuntimeError:  # no thread is to be had
            close_all()
        started = self._clock.monotonic()
        self._await(lambda: not left, lambda: started + max(_HEED, self._timeout))
        return tuple(left)

    def _resource_failed(self, flow: Flow, key: str, error: BaseException) -> None:
        self._dispatcher.tell(ResourceFailed, flow, key, error_text(error))
