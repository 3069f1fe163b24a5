"""The dispatcher of a scheduler, a task of layer 1: it fires what is due.

It keeps two heaps of plans, one on monotonic seconds (`every`) and one on the wall clock
(`cron`), and hands runs to reusable workers. A waiting flow costs a heap entry, not a thread. How
it ends is told in `stop`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from supervisor.flows.errors import label
from supervisor.flows.flow import Flow
from supervisor.flows.lifecycle import (
    FlowBackoff,
    FlowCanceled,
    FlowFailed,
    FlowScheduled,
    FlowSkipped,
    FlowStarted,
    FlowSucceeded,
    FlowTrippedEvent,
)
from supervisor.flows.status import Backoff, Tripped, later
from supervisor.flows.stop import Stop, inside
from supervisor.flows.task import Environment, unmark
from supervisor.flows.trigger import Cron, Every
from supervisor.kernel.backoff import draw_from
from supervisor.kernel.cancellation import CancelToken
from supervisor.kernel.clock import Clock, Lock
from supervisor.kernel.errors import Canceled, CapacityExceeded
from supervisor.kernel.inbox import AT_ONCE, Inbox
from supervisor.kernel.text import message_text, strip_frames
from supervisor.kernel.workers import Workers
from supervisor.tasks.handle import actor_of
from supervisor.tasks.spec import TaskSpec

if TYPE_CHECKING:
    from supervisor.kernel.event import Event
    from supervisor.tasks.supervisor import Supervisor

__all__ = ["Dispatcher"]

_PIECE = 30.0  # seconds; a wait for the wall clock is never longer, a step or a suspend is noticed
_STEP = 1.0  # seconds; a wall clock that goes back by less is being adjusted, not set
_STALE = 64  # entries of a heap that may be stale, beside one for each flow
_BATCH = 64  # flows fired between two looks at the inbox

T = TypeVar("T", float, datetime)
Heap = list[tuple[T, int, int, Flow]]  # due, order, plan


class Dispatcher:
    """Plans and runs of the flows of one scheduler. Its face is `RunningScheduler`."""

    def __init__(
        self, flows: Sequence[Flow], supervisor: Supervisor, *, owns_supervisor: bool, workers: int | None
    ) -> None:
        running = supervisor.running
        self.supervisor = supervisor
        self.owns_supervisor = owns_supervisor
        self.clock: Clock = running.clock
        self._bus = running.bus
        self._rng = running.rng
        self._deadlines = running.deadlines
        self.workers: Workers = Workers(self.clock, f"{supervisor.config.name}:flow", workers)
        self.inbox: Inbox = Inbox(self.clock)  # of the dispatcher
        self.flows: dict[str, Flow] = {flow.id: flow for flow in flows}
        self.lock: Lock = self.clock.lock()  # guards the fields of each flow and those below
        self._monotonic: Heap[float] = []
        self._wall: Heap[datetime] = []
        self._order = count()
        self.in_flight: int = 0
        self._queued: dict[CancelToken, float] = {}  # accepted, not begun by a worker -> monotonic instant
        self._started = 0.0  # monotonic
        self._seen = (0.0, datetime.min.replace(tzinfo=UTC))  # both clocks at the last look
        self.stop: Stop = Stop(self)
        self._contextvars = copy_context()  # of whoever starts; each run has a copy

    def begin(self, name: str) -> None:
        """Plan every flow and start the dispatcher: for `Scheduler.start`."""
        with self.lock:
            self._started = self.clock.monotonic()
            self._seen = (self._started, self.clock.now())
            for flow in self.flows.values():
                self._plan(flow)
        handle = self.supervisor.add(TaskSpec.once(name, self._dispatch, timeout=None))
        if (actor := actor_of(handle, self.supervisor)) is not None:
            actor.token.on_cancel(self.stop.with_supervisor)

    # Plans: all of it under the lock

    def _plan(self, flow: Flow, after: datetime | None = None) -> None:
        """Plan the next tick of a flow; older plans of it are stale from here on.

        after: for cron, the instant to look from; None is now.
        """
        flow.plan += 1
        flow.tick = None
        if self.stop.asked:
            return
        match flow.trigger:
            case Every():
                if flow.record.running:
                    return  # the end of the run plans anew
                due = flow.trigger.due(self._started, flow.record.ended, flow.record.eligible)
                self._push_monotonic(flow, due)
            case Cron():
                tick = flow.trigger.tick_after(after or self.clock.now())
                if tick is not None:
                    flow.tick = tick
                    self._push(self._wall, tick, flow)
                    self.tell(FlowScheduled, flow, tick)
                    self.inbox.ring()
            case _:
                return

    def plan_if_overdue(self, flow: Flow) -> None:
        """Nothing holds the flow back any more. A tick of cron stays: it may be due already, unseen."""
        if isinstance(flow.trigger, Every):
            self._plan(flow)

    def _push_monotonic(self, flow: Flow, due: float) -> None:
        flow.tick = due
        self._push(self._monotonic, round(due, 9), flow)
        if self._bus.active:
            now = self.clock.monotonic()
            self.tell(FlowScheduled, flow, later(self.clock.now(), max(0.0, due - now)))
        self.inbox.ring()

    def _push(self, heap: Heap[T], due: T, flow: Flow) -> None:
        if len(heap) > 2 * len(self.flows) + _STALE:
            heap[:] = [entry for entry in heap if entry[2] == entry[3].plan]
            heapq.heapify(heap)
        heapq.heappush(heap, (due, next(self._order), flow.plan, flow))

    def begin_run(self, flow: Flow, cause: str) -> None:
        """Accept a run: from here on its status is Running."""
        flow.record = flow.record.start(self.clock.now())
        if isinstance(flow.trigger, Every):
            flow.plan += 1  # the interval counts from the end of this run
            flow.tick = None
        flow.token = CancelToken(clock=self.clock, timers=self._deadlines)
        self.in_flight += 1
        self._queued[flow.token] = started = self.clock.monotonic()
        self.tell(FlowStarted, flow, flow.record.run_count, cause)
        try:
            run = partial(self._run, flow, flow.token, started)
            self.workers.submit(partial(self._contextvars.copy().run, run))  # a worker is used again
        except CapacityExceeded as error:
            self._queued.pop(flow.token, None)
            self._end_run(flow, self.clock.monotonic(), _Ending(error=error, text=str(error)))

    def drop_if_queued(self, flow: Flow, token: CancelToken) -> None:
        """End a canceled run that no worker has begun; nobody else would before a worker is free."""
        started = self._queued.pop(token, None)  # atomic: who takes the entry owns the run
        if started is not None:
            with self.lock:
                self._end_run(flow, started, _Ending(error=Canceled("canceled before a worker was free")))

    # The dispatcher: a task of layer 1

    def _dispatch(self) -> None:
        if not self.stop.claim():
            return  # a stop came before this thread
        try:
            while not self.stop.asked:
                self.inbox.take(self._patience)
                self._fire_due()
        finally:
            self.stop.carry_out()

    def _patience(self) -> float | None:
        with self.lock:
            if self.stop.asked:
                return AT_ONCE
            left: float | None = None
            if self._monotonic:
                left = self._monotonic[0][0] - self.clock.monotonic()
            if self._wall:
                until = (self._wall[0][0] - self.clock.now()).total_seconds()
                left = min(until, _PIECE, _PIECE if left is None else left)
            return AT_ONCE if left is not None and left <= 0.0 else left

    def _fire_due(self) -> None:
        with self.lock:
            now, wall = self.clock.monotonic(), self.clock.now()
            self._look_for_a_step_back(now, wall)
            fired = 0
            while self._monotonic and self._monotonic[0][0] <= now + 1e-9 and fired < _BATCH:
                _, _, plan, flow = heapq.heappop(self._monotonic)
                if plan == flow.plan and not self.stop.asked:
                    fired += 1
                    self._tick(flow, now)
            while self._wall and self._wall[0][0] <= wall and fired < 2 * _BATCH:
                _, _, plan, flow = heapq.heappop(self._wall)
                if plan == flow.plan and not self.stop.asked:
                    fired += 1
                    self._tick(flow, now)

    def _tick(self, flow: Flow, now: float) -> None:
        """A planned instant has come: run the flow, or skip this tick."""
        reason = flow.record.refusal(now)
        if reason is None:
            self.begin_run(flow, "schedule")
        else:
            flow.record = flow.record.skip()
            self.tell(FlowSkipped, flow, reason)
        if isinstance(flow.trigger, Cron):
            self._plan(flow)  # strictly after now: what was missed has run once
        elif reason is not None and isinstance(flow.trigger, Every):
            flow.plan += 1
            self._push_monotonic(flow, now + flow.trigger.interval)

    def _look_for_a_step_back(self, now: float, wall: datetime) -> None:
        """Plan cron flows anew when the wall clock reads less than at the last look."""
        before, wall_before = self._seen
        self._seen = (now, wall)
        if (wall_before - wall).total_seconds() <= _STEP:
            return  # what was planned is still ahead
        first = wall - timedelta(seconds=now - before)  # what it read after the step, at the earliest
        for flow in self.flows.values():
            if isinstance(flow.trigger, Cron):
                self._plan(flow, first)

    # A run, on a worker

    def _run(self, flow: Flow, token: CancelToken, started: float) -> None:
        if self._queued.pop(token, None) is None:
            return  # canceled while it waited for a worker
        env = Environment(
            self.clock,
            self._deadlines,
            self._rng,
            partial(self._publish, flow) if self._bus.active else None,
        )
        inside.set(self.stop)
        try:
            assert flow.res is not None
            exit_state = flow.work.run(flow.res, env, flow.id, token)
            ending = _Ending(exit_state=None if exit_state is None else label(exit_state))
        except BaseException as error:
            ending = _Ending(error=error, text=_last_words(error), draw=draw_from(self._rng))
            strip_frames(error)
            unmark(error)
        with self.lock:
            self._end_run(flow, started, ending)

    def _end_run(self, flow: Flow, started: float, ending: _Ending) -> None:
        """Write the outcome: one record, so that no reader ever sees a step in between."""
        # holds _lock
        now, at = self.clock.monotonic(), self.clock.now()
        duration, record, run = now - started, flow.record, flow.record.run_count
        if ending.error is None:
            flow.record = record.succeed(at, now, duration)
            self.tell(FlowSucceeded, flow, run, duration, ending.exit_state)
        elif issubclass(type(ending.error), Canceled):  # `isinstance` asks the object, which may be hostile
            flow.record = record.cancel(now, duration)
            self.tell(FlowCanceled, flow, run, duration)
        else:
            text = ending.text
            flow.record = record.fail(at, now, duration, text, flow.policy, flow.streak_limit, ending.draw)
            self.tell(FlowFailed, flow, run, duration, text, flow.record.streak)
            status = flow.record.status
            if isinstance(status, Tripped):
                self.tell(FlowTrippedEvent, flow, status.streak, text)
            elif isinstance(status, Backoff):
                delay = (flow.record.eligible or now) - now
                self.tell(FlowBackoff, flow, delay, status.until, status.streak)
        flow.token = None
        self.in_flight -= 1
        if isinstance(flow.trigger, Every):
            self._plan(flow)
        if self.stop.asked:
            self.inbox.ring()

    def tell(self, cls: type[Event], flow: Flow, *values: object) -> None:
        if self._bus.active:
            self._bus.publish(None, cls, flow.id, *values)

    def _publish(self, flow: Flow, cls: type[Event], *values: object) -> None:
        self._bus.publish(None, cls, flow.id, *values)


class _Ending(NamedTuple):
    """How a run ended, with every text made outside of the lock."""

    exit_state: str | None = None
    error: BaseException | None = None
    text: str = ""
    draw: float = 0.0


def _last_words(error: BaseException) -> str:
    """Return the text of an error with state, attempt and path, as `last_error` keeps it."""
    try:
        notes = [note for note in getattr(error, "__notes__", ()) if type(note) is str]
    except Exception:
        notes = []
    return " ".join([message_text(error), *(f"({note})" for note in notes)])
