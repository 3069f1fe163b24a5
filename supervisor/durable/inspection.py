"""What can be seen of runs: the reading half of an engine."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from supervisor.durable.bell import Bell
from supervisor.durable.directory import Directory, directory_of
from supervisor.durable.errors import CorruptHistory, InvalidTransition, RunFailed, StoreError
from supervisor.durable.history import Envelope
from supervisor.durable.payload import Json, copied
from supervisor.durable.projection import Projection, Wakeup
from supervisor.durable.runtime import check_outside, current_step
from supervisor.durable.snapshot import RunSnapshot, RunStatus
from supervisor.durable.stores.codec import check_run_id
from supervisor.durable.stores.protocol import DUE_LIMIT, Failure, FlowEventStore
from supervisor.kernel.arguments import count, instant, patience
from supervisor.kernel.clock import Clock
from supervisor.kernel.errors import Canceled, ReentrantCall
from supervisor.kernel.log import library_logger
from supervisor.kernel.text import error_text, shown

__all__ = ["Inspection"]

_FIRST_LOOK, _LAST_LOOK = 0.02, 0.5  # seconds between two looks of `result` at the store


class Inspection:
    """Reads the runs of a store."""

    def __init__(self, store: FlowEventStore, clock: Clock) -> None:
        self.clock: Clock = clock
        self.store: FlowEventStore = store
        self.directory: Directory = directory_of(store)
        self.ended: Bell = Bell(clock)  # rings when a run has ended here
        self.closed: bool = False

    def result(self, run_id: str, timeout: float | timedelta | None = None) -> Any:
        """Wait until a run has ended and return its output. Drives nothing.

        timeout: seconds; None for as long as it takes, 0 looks once. Ends of runs are seen at once if they happen
        in this process, else within half a second.
        Raises RunFailed, Canceled for a run that was cancelled, TimeoutError, RunNotFound, StoreError once the
        engine is closed, ReentrantCall when a step waits for its own run.
        """
        limit = patience(timeout, "timeout")
        check_outside(run_id)
        step = current_step()
        if step is not None and step.run_id == run_id:
            raise ReentrantCall(
                f"step {step.step_id!r} would wait for its own run {run_id!r}; return, and let the workflow go on"
            )
        end = None if limit is None else self.clock.monotonic() + limit
        pause, projection = _FIRST_LOOK, self.read(run_id)
        token = None if step is None else step.token
        while True:
            ticket = self.ended.ticket()
            for envelope in self.store.read(run_id, projection.sequence):
                projection.fold(envelope)
            if projection.terminal:
                return _result(projection)
            left = None if end is None else end - self.clock.monotonic()
            if left is not None and left <= 0.0:
                raise TimeoutError(f"run {run_id!r} is {projection.status} after {limit:g} s")
            if self.closed:
                raise StoreError(f"the engine was closed while run {run_id!r} was {projection.status}")
            if token is not None:
                token.check()
            self.ended.wait(ticket, pause if left is None else min(pause, left), token)
            pause = min(2 * pause, _LAST_LOOK)

    def snapshot(self, run_id: str) -> RunSnapshot:
        """Return what a run is now. Raises RunNotFound."""
        return self.read(run_id).snapshot()

    def history(self, run_id: str) -> list[Envelope]:
        """Return the events of a run, in order. Raises RunNotFound."""
        return self.store.read(check_run_id(run_id))

    def list_runs(
        self,
        status: RunStatus | str | None = None,
        workflow: str | None = None,
        limit: int | None = 100,
        *,
        newest_first: bool = False,
    ) -> list[RunSnapshot]:
        """Return runs by id, or by age with the newest first.

        status: only those in it.  workflow: only those of the workflow of this name.  limit: at most so many; None for all. A run whose history can't be read is
        left out, logged, and marked, so that `failures` tells of it.
        """
        wanted = None if status is None else (_status(status),)
        if workflow is not None and not isinstance(workflow, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"workflow must be the name of one, got {shown(workflow)}")
        most = None if limit is None else count(limit, "limit", 1)
        damaged: dict[str, str] = {}
        while True:
            asked = None if most is None else most + len(damaged)
            found = self.directory.find_runs(wanted, workflow, asked, newest_first)
            listed: list[RunSnapshot] = []
            before = len(damaged)
            for run_id in found:
                if run_id not in damaged:
                    try:
                        listed.append(self.snapshot(run_id))
                    except (CorruptHistory, InvalidTransition) as error:
                        damaged[run_id] = error_text(error)
            # those that were left out took the places of others, which may be there
            if asked is None or len(found) < asked or len(damaged) == before:
                break
        self._tell_of_damage(damaged)
        return listed[:most]

    def _tell_of_damage(self, damaged: dict[str, str]) -> None:
        """Log runs that can't be read, and mark those that are not."""
        for run_id, reason in damaged.items():
            library_logger().error("run %r was left out of a list: %s", run_id, reason)
        if damaged:
            try:
                marked = {each.run_id for each in self.directory.failures()}
                for run_id in damaged.keys() - marked:
                    self.directory.mark_failure(run_id, damaged[run_id], self.clock.now())
            except StoreError as error:  # the list is good all the same; another process may write here
                library_logger().error("runs that can't be read were not marked: %s", error_text(error))

    def failures(self) -> list[Failure]:
        """Return the runs that wait for a person, oldest first: `run_id`, `reason`, `at`.

        A run is marked when its workflow and its history disagree, or when it could not be delivered to a worker
        again and again. The mark goes when the run is driven well.
        """
        return self.directory.failures()

    def list_due_wakeups(self, now: datetime, limit: int = DUE_LIMIT) -> list[Wakeup]:
        """Return waits and retries that are due at `now`, by due time, then run and subject."""
        return self.store.list_due_wakeups(instant(now, "now"), limit)

    def next_wakeup(self) -> datetime | None:
        """Return when the next wait or retry of any run is due, UTC; None if none is open."""
        return self.store.next_scheduled_wakeup()

    def check_open(self) -> None:
        """Raise StoreError once the engine is closed."""
        if self.closed:
            raise StoreError("the engine is closed; make a new one")

    def read(self, run_id: str) -> Projection:
        """Return the history of a run, for reading only. Raises RunNotFound."""
        return Projection.of(run_id, self.store.read(check_run_id(run_id)))


def _status(given: str) -> RunStatus:
    try:
        return RunStatus(given)
    except ValueError:
        raise ValueError(f"status must be one of {', '.join(RunStatus)}, got {shown(given)}") from None


def _result(projection: Projection) -> Json:
    if projection.status is RunStatus.COMPLETED:
        return copied(projection.output)
    if projection.status is RunStatus.FAILED:
        raise RunFailed(projection.run_id, projection.error or "")
    reason = projection.cancel_reason
    raise Canceled(reason if reason is not None else f"run {projection.run_id!r} was cancelled")
