"""FlowScheduler: finds what is due and queues its runs. One tick is a function; `serve` repeats it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from supervisor.durable.engine import FlowEngine
from supervisor.durable.errors import QueueFull, StoreError
from supervisor.durable.lifecycle import StoreFailed
from supervisor.durable.queues.protocol import WorkQueue, checked_queue
from supervisor.durable.stopping import Stop
from supervisor.durable.stores.protocol import DUE_LIMIT
from supervisor.durable.worker import STORE_BACKOFF
from supervisor.kernel.arguments import instant, seconds
from supervisor.kernel.log import library_logger
from supervisor.kernel.text import error_text, shown

__all__ = ["FlowScheduler", "SchedulerTick"]

_FURTHER = 4  # times as many wakeups are listed when there was nothing new among the first
_AN_HOUR = 3600.0  # seconds
_AGAIN = 1.0  # seconds until due work that is queued already is looked at again


@dataclass(frozen=True, slots=True)
class SchedulerTick:
    """What one tick found."""

    due_waits: int
    due_retries: int
    enqueued_tasks: int  # runs that were not in the queue before
    run_ids: tuple[str, ...]  # the runs of what is due, each once, in order of due time


class FlowScheduler:
    """Queues the runs whose waits and retries are due. Several may run at once: a run is queued once."""

    def __init__(self, engine: FlowEngine, queue: WorkQueue | None = None) -> None:
        """Take an engine, and the queue of its workers; None for that of the engine."""
        if not isinstance(engine, FlowEngine):
            raise TypeError(f"engine must be a FlowEngine, got {shown(engine)}")
        self._engine = engine
        self._queue: WorkQueue = engine.queue if queue is None else checked_queue(queue)

    def enqueue_due_work(self, now: datetime) -> SchedulerTick:
        """Queue every run of which something is due at `now`: one scan of the store, at most 1000 wakeups.

        Nothing is marked: until the runs are driven, another tick finds them again, and the queue has them once.
        Runs that wait for a person, see `FlowEngine.failures`, are found, but not queued.
        Raises StoreError, QueueFull.
        """
        return self._enqueue(instant(now, "now"), DUE_LIMIT)

    def _enqueue(self, now: datetime, limit: int) -> SchedulerTick:
        due = self._engine.list_due_wakeups(now, limit)
        run_ids = tuple(dict.fromkeys(each.run_id for each in due))
        marked = {each.run_id for each in self._engine.failures()} if due else set[str]()
        added = 0
        for run_id in run_ids:
            if run_id not in marked:
                self._engine.catch_up(run_id, now)
                added += bool(self._queue.enqueue(run_id))
        waits = sum(each.kind == "wait" for each in due)
        return SchedulerTick(waits, len(due) - waits, added, run_ids)

    def next_scheduled_wakeup(self) -> datetime | None:
        """Return when the next wait or retry is due, UTC, overdue ones included; None if none is open."""
        return self._engine.next_wakeup()

    def serve(self, stop: object, max_sleep: float | timedelta = 30.0) -> None:
        """Tick until told to stop, asleep until the next wakeup, at most `max_sleep` seconds.

        stop: a CancelToken, or a threading.Event. A store that fails is reported (`StoreFailed`) and tried again with
        backoff. Expired leases are reclaimed.
        """
        told, longest = Stop(stop), seconds(max_sleep, "max_sleep")
        failures = 0
        while not told.now:
            ticket, self._engine.alarm = self._engine.scheduled.ticket(), None
            try:
                delay = self._tick(longest)
                failures = 0
            except (StoreError, QueueFull) as error:
                failures += 1
                delay = STORE_BACKOFF.delay(failures, 0.0)
                self._engine.tell(StoreFailed, "looking for due work", error_text(error), delay)
                library_logger().warning(
                    "due work can't be queued, next try in %g s: %s", delay, error_text(error)
                )
            if delay > 0.0:
                self._engine.alarm = self._engine.clock.now() + timedelta(seconds=min(delay, _AN_HOUR))
                self._engine.scheduled.wait(ticket, told.at_most(delay), told.token)

    def _tick(self, longest: float) -> float:
        """Queue what is due; return how long there is nothing to do."""
        self._queue.reclaim_expired()
        now = self._engine.clock.now()
        limit, found, tick = DUE_LIMIT, DUE_LIMIT, None
        while tick is None or (found >= limit and not tick.enqueued_tasks):
            # Those at the head may stay there for long, as nobody here can drive them: look behind them, too.
            limit = DUE_LIMIT if tick is None else limit * _FURTHER
            tick = self._enqueue(now, limit)
            found = tick.due_waits + tick.due_retries
        if found >= limit:
            return 0.0
        if found:
            longest = min(longest, _AGAIN)
        following = self._engine.store.next_scheduled_wakeup(now)
        if following is None:
            return longest
        # A little later than due: a clock that is read a little early would find nothing.
        return min(longest, max((following - self._engine.clock.now()).total_seconds(), 0.001))
