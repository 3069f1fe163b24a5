"""What `Supervisor.run` does: tasks in the foreground, until they have ended or somebody says stop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Protocol

from supervisor.kernel.errors import AlreadyRunning, GraceExceeded, ShuttingDown
from supervisor.kernel.text import shown
from supervisor.tasks.handle import TaskHandle
from supervisor.tasks.outcome import TaskOutcome
from supervisor.tasks.running import Running
from supervisor.tasks.signals import forwarded
from supervisor.tasks.spec import TaskSpec

__all__ = ["Foreground", "StopEvent"]

_STOP_POLL = 0.05  # seconds between two looks at a `stop` event, which offers nothing better


class StopEvent(Protocol):
    """What `run(stop=)` looks at: `threading.Event`, or anything with `is_set`."""

    def is_set(self) -> bool: ...


class Foreground:
    """One run in the foreground of the calling thread."""

    __slots__ = ("_running", "_used", "received_signal")

    def __init__(self, running: Running) -> None:
        self._running = running
        self._used = False  # guarded by the lock of the supervisor
        self.received_signal: int | None = None  # number of the first signal that ended the run

    def run(
        self,
        specs: list[TaskSpec],
        add_all: Callable[[list[TaskSpec]], list[TaskHandle]],
        stop: StopEvent | None,
        *,
        signals: bool,
    ) -> list[TaskOutcome]:
        """See `Supervisor.run`."""
        running = self._running
        running.check_not_inside(None, "run", "use add_all(), and request_shutdown() to stop")
        if stop is not None and not callable(getattr(stop, "is_set", None)):
            raise TypeError(f"stop must be an Event with is_set(), got {shown(stop)}")
        with running.lock:
            if self._used:
                raise AlreadyRunning("run() was called before; make a new Supervisor to run again")
            self._used = True
            joins = running.closing and not specs
        if joins:  # nothing to run, and a shutdown to wait for
            running.shut_down(running.config.grace_seconds, requested=True)
            return []
        with forwarded(self._on_signal) if signals else nullcontext():
            handles = self._add(specs, add_all)
            try:
                self._run_to_the_end(stop)
            except GraceExceeded:
                raise
            except BaseException as error:
                running.shut_down_after(type(error))
                raise
        return [outcome for each in handles if (outcome := each.outcome) is not None]

    def _add(
        self, specs: list[TaskSpec], add_all: Callable[[list[TaskSpec]], list[TaskHandle]]
    ) -> list[TaskHandle]:
        try:
            return add_all(specs)
        except ShuttingDown:
            if self.received_signal is not None:
                return []  # it came before the tasks: the run ends as it would have ended with them
            self._used = False
            raise
        except BaseException:
            self._used = False
            raise

    def _run_to_the_end(self, stop: StopEvent | None) -> None:
        running = self._running
        poll = None if stop is None else _STOP_POLL
        by_itself: bool | None = None
        while by_itself is None and not (stop is not None and stop.is_set()):
            by_itself = running.close_when_empty(poll)
        running.shut_down(running.config.grace_seconds, requested=not by_itself)

    def _on_signal(self, number: int) -> None:
        self._running.inbox.post(partial(self._handle_signal, number))

    def _handle_signal(self, number: int) -> None:
        # on the supervising thread
        shutdown = self._running.shutdown
        if self.received_signal is None:
            self.received_signal = number
            shutdown.begin(self._running.config.grace_seconds, requested=True)
        else:
            shutdown.begin(0.0, requested=True)
