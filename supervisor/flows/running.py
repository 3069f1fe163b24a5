"""`RunningScheduler`: the live side. One dispatcher, a task of layer 1, fires what is due.

The dispatcher keeps two heaps of plans, one on monotonic seconds (`every`) and one on the wall clock
(`cron`), hands runs to reusable workers, and carries out the stop. A waiting flow costs a heap
entry, not a thread.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from supervisor.flows.errors import (
    FlowAlreadyRunning,
    FlowError,
    FlowNotFound,
    FlowTripped,
    SchedulerStopped,
    StopTimeout,
    label,
)
from supervisor.flows.flow import Flow
from supervisor.flows.lifecycle import (
    FlowBackoff,
    FlowCanceled,
    FlowFailed,
    FlowReset,
    FlowScheduled,
    FlowSkipped,
    FlowStarted,
    FlowSucceeded,
    FlowTrippedEvent,
    ResourceFailed,
)
from supervisor.flows.status import TICK, Backoff, FlowInfo, Tripped, later
from supervisor.flows.task import Environment, unmark
from supervisor.flows.trigger import Cron, Every
from supervisor.flows.worker import Workers
from supervisor.kernel.arguments import patience, seconds
from supervisor.kernel.cancellation import CancelReason, CancelToken
from supervisor.kernel.errors import Canceled, CapacityExceeded, ReentrantCall, SupervisorError
from supervisor.kernel.inbox import AT_ONCE, Inbox
from supervisor.kernel.log import library_logger
from supervisor.kernel.promise import Promise
from supervisor.kernel.text import error_text, message_text, shown, strip_frames
from supervisor.tasks.handle import actor_of
from supervisor.tasks.spec import TaskSpec

if TYPE_CHECKING:
    from supervisor.kernel.event import Event
    from supervisor.tasks.supervisor import Supervisor

__all__ = ["RunningScheduler"]

_PIECE = 30.0  # seconds; a wait for the wall clock is never longer, a step or a suspend is noticed
_STEP = 1.0  # seconds; a wall clock that goes back by less is being adjusted, not set
_HEED = 1.0  # seconds a run has to heed a request to cancel, after the timeout of a stop
_TIMEOUT = 30.0  # seconds a stop waits for runs
_TEAR_DOWN = 30.0  # seconds for tear-downs
_STALE = 64  # entries of a heap that may be stale, beside one for each flow
_BATCH = 64  # flows fired between two looks at the inbox

T = TypeVar("T", float, datetime)
Heap = list[tuple[T, int, int, Flow]]  # due, order, plan

_inside: ContextVar[RunningScheduler | None] = ContextVar("supervisor_scheduler", default=None)


class RunningScheduler:
    """A scheduler at work, made by `Scheduler.start`. Share it freely between threads."""

    def __init__(
        self, flows: Sequence[Flow], supervisor: Supervisor, *, owns_supervisor: bool, workers: int | None
    ) -> None:
        running = supervisor.running
        self._supervisor = supervisor
        self._owns_supervisor = owns_supervisor
        self._clock = running.clock
        self._bus = running.bus
        self._rng = running.rng
        self._deadlines = running.deadlines
        self._workers = Workers(self._clock, f"{supervisor.config.name}:flow", workers)
        self._inbox = Inbox(self._clock)  # of the dispatcher
        self._flows = {flow.id: flow for flow in flows}
        self._lock = self._clock.lock()  # guards the fields of each flow and those below
        self._monotonic: Heap[float] = []
        self._wall: Heap[datetime] = []
        self._order = count()
        self._in_flight = 0
        self._stopping = False  # may be set without the lock
        self._manned = False  # a thread fires what is due, and carries out the stop
        self._stop_by: float | None = None  # monotonic: when runs are asked to cancel
        self._stop_timeout = _TIMEOUT  # seconds, as asked for
        self._started = 0.0  # monotonic
        self._seen = (0.0, datetime.min.replace(tzinfo=UTC))  # both clocks at the last look
        self._result: Promise[StopTimeout | None] = Promise(self._clock)
        self._contextvars = copy_context()  # of whoever starts; each run has a copy

    def __repr__(self) -> str:
        state = "stopped" if self._result.done else "stopping" if self._stopping else "running"
        return f"<RunningScheduler {state}, {len(self._flows)} flows>"

    def __len__(self) -> int:
        return len(self._flows)

    def __contains__(self, id: object) -> bool:
        return id in self._flows

    def begin(self, name: str) -> Self:
        """Plan every flow and start the dispatcher: for `Scheduler.start`."""
        with self._lock:
            self._started = self._clock.monotonic()
            self._seen = (self._started, self._clock.now())
            for flow in self._flows.values():
                self._plan(flow)
        handle = self._supervisor.add(TaskSpec.once(name, self._dispatch, timeout=None))
        if (actor := actor_of(handle, self._supervisor)) is not None:
            actor.token.on_cancel(self._stop_with_supervisor)
        return self

    # What users call

    def trigger(self, id: str) -> None:
        """Run a flow now, whatever its kind; returns when the run is accepted.

        Passes over a backoff window. Raises FlowNotFound, FlowAlreadyRunning, FlowTripped,
        SchedulerStopped.
        """
        with self._lock:
            flow = self._find(id)
            self._refuse_when_stopping("trigger")
            if flow.record.running:
                raise _of_flow(id, FlowAlreadyRunning(f"flow {id!r} is already running; one run at a time"))
            if isinstance(flow.record.status, Tripped):
                raise _of_flow(id, FlowTripped(f"flow {id!r} is tripped; call reset_flow({id!r}) first"))
            self._begin_run(flow, "trigger")

    def status(self, id: str) -> FlowInfo | None:
        """Return a snapshot of a flow, None for an unknown id. Answers after the stop too."""
        with self._lock:
            flow = self._flows.get(id)
            return None if flow is None else self._info(flow)

    def list(self) -> list[FlowInfo]:
        """Return a snapshot of every flow, in the order of registration."""
        with self._lock:
            return [self._info(flow) for flow in self._flows.values()]

    def reset_flow(self, id: str) -> None:
        """Forget the failures of a flow; `Idle` unless it runs. An overdue flow starts at once."""
        with self._lock:
            flow = self._find(id)
            self._refuse_when_stopping("reset_flow")
            flow.record = flow.record.reset()
            self._tell(FlowReset, flow)
            self._plan_if_overdue(flow)

    def pause(self, id: str) -> None:
        """Let a flow skip its ticks until `resume`; a run in progress goes on."""
        with self._lock:
            flow = self._find(id)
            self._refuse_when_stopping("pause")
            flow.record = flow.record._replace(paused=True)

    def resume(self, id: str) -> None:
        """End a pause. An overdue flow starts at once."""
        with self._lock:
            flow = self._find(id)
            self._refuse_when_stopping("resume")
            if flow.record.paused:
                flow.record = flow.record._replace(paused=False)
                self._plan_if_overdue(flow)

    def cancel_flow(self, id: str) -> bool:
        """Ask the run in progress to stop; False if there is none. The streak stays as it is."""
        with self._lock:
            flow = self._find(id)
            self._refuse_when_stopping("cancel_flow")
            token = flow.token
        return token is not None and token.cancel()

    def request_stop(self) -> None:
        """Ask for a stop and return at once. From anywhere, a run included."""
        self._stopping = True  # without the lock: a signal handler may be on the thread that holds it
        self._inbox.ring()

    def stop(self, timeout: float | timedelta = _TIMEOUT) -> None:
        """Stop: fire nothing more, wait for runs, cancel what is left, tear down.

        timeout: seconds to wait for runs of every kind; after that they are asked to cancel and
        have one second more. Every caller, now or later, gets the same result.
        Raises StopTimeout naming the flows whose runs ignored it, ReentrantCall from inside a run.
        """
        limit = seconds(timeout, "timeout")
        self._supervisor.check_process()
        self._check_not_inside("stop", "use request_stop()")
        self._request_stop(limit)
        self._adopt_stop()
        self._result.wait()
        self._end_supervisor()
        if (failure := self._result.value) is not None:
            raise StopTimeout(failure.flows, failure.timeout)

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Block until the scheduler has stopped, at most `timeout` seconds; True if so."""
        limit = patience(timeout, "timeout")
        self._supervisor.check_process()
        self._check_not_inside("wait", "return from the run")
        if self._stopping:
            self._adopt_stop()
        return self._result.wait(limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.stop()
            return
        try:
            self.stop()
        except FlowError as error:  # the one in flight is what counts
            library_logger().error("after %s: %s", kind.__name__, error)

    def _find(self, id: str) -> Flow:
        if (flow := self._flows.get(id)) is None:
            known = ", ".join(map(repr, self._flows)) or "none"
            raise _of_flow(id, FlowNotFound(f"no flow {id!r}; there are {known}"))
        return flow

    def _refuse_when_stopping(self, call: str) -> None:
        if self._stopping:
            raise SchedulerStopped(f"{call}: the scheduler is stopping or has stopped")

    def _check_not_inside(self, call: str, instead: str) -> None:
        if _inside.get() is self:
            raise ReentrantCall(f"{call}() inside a run would wait for itself; {instead}")
        if self._owns_supervisor:  # which ends with the scheduler
            self._supervisor.running.check_not_inside(None, call, instead)

    def _info(self, flow: Flow) -> FlowInfo:
        record, planned = flow.record, flow.tick
        if planned is not None and not isinstance(planned, datetime):
            planned = later(self._clock.now(), max(0.0, planned - self._clock.monotonic()))
        return FlowInfo(
            id=flow.id,
            status=record.status,
            run_count=record.run_count,
            last_run=record.last_run,
            last_duration=record.last_duration,
            failure_streak=record.streak,
            next_eligible=record.eligible_at,
            next_fire=None if self._stopping else planned,
            skipped=record.skipped,
            paused=record.paused,
        )

    # Plans: all of it under the lock

    def _plan(self, flow: Flow, after: datetime | None = None) -> None:
        """Plan the next tick of a flow; older plans of it are stale from here on.

        after: for cron, the instant to look from; None is now.
        """
        flow.plan += 1
        flow.tick = None
        if self._stopping:
            return
        match flow.trigger:
            case Every():
                if flow.record.running:
                    return  # the end of the run plans anew
                due = flow.trigger.due(self._started, flow.record.ended, flow.record.eligible)
                self._push_monotonic(flow, due)
            case Cron():
                tick = flow.trigger.tick_after(after or self._clock.now())
                if tick is not None:
                    flow.tick = tick
                    self._push(self._wall, tick, flow)
                    self._tell(FlowScheduled, flow, tick)
                    self._inbox.ring()
            case _:
                return

    def _plan_if_overdue(self, flow: Flow) -> None:
        """Nothing holds the flow back any more. A tick of cron stays: it may be due already, unseen."""
        if isinstance(flow.trigger, Every):
            self._plan(flow)

    def _push_monotonic(self, flow: Flow, due: float) -> None:
        flow.tick = due
        self._push(self._monotonic, round(due, 9), flow)
        if self._bus.active:
            now = self._clock.monotonic()
            self._tell(FlowScheduled, flow, later(self._clock.now(), max(0.0, due - now)))
        self._inbox.ring()

    def _push(self, heap: Heap[T], due: T, flow: Flow) -> None:
        if len(heap) > 2 * len(self._flows) + _STALE:
            heap[:] = [entry for entry in heap if entry[2] == entry[3].plan]
            heapq.heapify(heap)
        heapq.heappush(heap, (due, next(self._order), flow.plan, flow))

    def _begin_run(self, flow: Flow, cause: str) -> None:
        """Accept a run: from here on its status is Running."""
        flow.record = flow.record.start(self._clock.now())
        if isinstance(flow.trigger, Every):
            flow.plan += 1  # the interval counts from the end of this run
            flow.tick = None
        flow.token = CancelToken(clock=self._clock, timers=self._deadlines)
        self._in_flight += 1
        self._tell(FlowStarted, flow, flow.record.run_count, cause)
        try:
            run = partial(self._run, flow, flow.token, self._clock.monotonic())
            self._workers.submit(partial(self._contextvars.copy().run, run))  # a worker is used again
        except CapacityExceeded as error:
            self._end_run(flow, self._clock.monotonic(), _Ending(error=error, text=str(error)))

    # The dispatcher: a task of layer 1

    def _dispatch(self) -> None:
        with self._lock:
            if self._manned:
                return  # a stop came before this thread
            self._manned = True
        try:
            while not self._stopping:
                self._inbox.take(self._patience)
                self._fire_due()
        finally:
            self._carry_out_stop()

    def _patience(self) -> float | None:
        with self._lock:
            if self._stopping:
                return AT_ONCE
            left: float | None = None
            if self._monotonic:
                left = self._monotonic[0][0] - self._clock.monotonic()
            if self._wall:
                until = (self._wall[0][0] - self._clock.now()).total_seconds()
                left = min(until, _PIECE, _PIECE if left is None else left)
            return AT_ONCE if left is not None and left <= 0.0 else left

    def _fire_due(self) -> None:
        with self._lock:
            now, wall = self._clock.monotonic(), self._clock.now()
            self._look_for_a_step_back(now, wall)
            fired = 0
            while self._monotonic and self._monotonic[0][0] <= now + 1e-9 and fired < _BATCH:
                _, _, plan, flow = heapq.heappop(self._monotonic)
                if plan == flow.plan and not self._stopping:
                    fired += 1
                    self._tick(flow, now)
            while self._wall and self._wall[0][0] <= wall and fired < 2 * _BATCH:
                _, _, plan, flow = heapq.heappop(self._wall)
                if plan == flow.plan and not self._stopping:
                    fired += 1
                    self._tick(flow, now)

    def _tick(self, flow: Flow, now: float) -> None:
        """A planned instant has come: run the flow, or skip this tick."""
        reason = flow.record.refusal(now)
        if reason is None:
            self._begin_run(flow, "schedule")
        else:
            flow.record = flow.record.skip()
            self._tell(FlowSkipped, flow, reason)
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
        for flow in self._flows.values():
            if isinstance(flow.trigger, Cron):
                self._plan(flow, first)

    # A run, on a worker

    def _run(self, flow: Flow, token: CancelToken, started: float) -> None:
        env = Environment(
            self._clock,
            self._deadlines,
            self._rng,
            partial(self._publish, flow) if self._bus.active else None,
        )
        _inside.set(self)
        try:
            assert flow.res is not None
            exit_state = flow.work.run(flow.res, env, flow.id, token)
            ending = _Ending(exit_state=None if exit_state is None else label(exit_state))
        except BaseException as error:
            ending = _Ending(error=error, text=_last_words(error), draw=self._draw())
            strip_frames(error)
            unmark(error)
        with self._lock:
            self._end_run(flow, started, ending)

    def _draw(self) -> float:
        """Draw for the jitter of a backoff; a source that is broken must not leave a flow running for ever."""
        try:
            draw = self._rng.random()
            if 0.0 <= draw < 1.0:
                return draw
            library_logger().error("rng: random() must be in [0, 1), got %s; 0.5 is taken", shown(draw))
        except Exception as error:
            library_logger().error("rng: random() failed with %s; 0.5 is taken", error_text(error))
        return 0.5

    def _end_run(self, flow: Flow, started: float, ending: _Ending) -> None:
        """Write the outcome: one record, so that no reader ever sees a step in between."""
        # holds _lock
        now, at = self._clock.monotonic(), self._clock.now()
        duration, record, run = now - started, flow.record, flow.record.run_count
        if ending.error is None:
            flow.record = record.succeed(at, now, duration)
            self._tell(FlowSucceeded, flow, run, duration, ending.exit_state)
        elif issubclass(type(ending.error), Canceled):  # `isinstance` asks the object, which may be hostile
            flow.record = record.cancel(now, duration)
            self._tell(FlowCanceled, flow, run, duration)
        else:
            text = ending.text
            flow.record = record.fail(at, now, duration, text, flow.policy, flow.streak_limit, ending.draw)
            self._tell(FlowFailed, flow, run, duration, text, flow.record.streak)
            status = flow.record.status
            if isinstance(status, Tripped):
                self._tell(FlowTrippedEvent, flow, status.streak, text)
            elif isinstance(status, Backoff):
                delay = (flow.record.eligible or now) - now
                self._tell(FlowBackoff, flow, delay, status.until, status.streak)
        flow.token = None
        self._in_flight -= 1
        if isinstance(flow.trigger, Every):
            self._plan(flow)
        if self._stopping:
            self._inbox.ring()

    def _tell(self, cls: type[Event], flow: Flow, *values: object) -> None:
        if self._bus.active:
            self._bus.publish(None, cls, flow.id, *values)

    def _publish(self, flow: Flow, cls: type[Event], *values: object) -> None:
        self._bus.publish(None, cls, flow.id, *values)

    # The end

    def _request_stop(self, timeout: float) -> None:
        with self._lock:
            end = self._clock.monotonic() + timeout
            if self._stop_by is None or end < self._stop_by:
                self._stop_by, self._stop_timeout = end, timeout
            self._stopping = True
        self._inbox.ring()

    def _stop_with_supervisor(self) -> None:
        """The dispatcher is asked to stop: leave time for the tear-down within the grace."""
        self._request_stop(min(_TIMEOUT, self._supervisor.config.grace_seconds / 2))
        self._adopt_stop()

    def _adopt_stop(self) -> None:
        """Have the stop carried out although the dispatcher still waits to be let in by the supervisor."""
        with self._lock:
            if self._manned:
                return
            self._manned = True
        try:
            self._clock.spawn(self._carry_out_stop, f"{self._supervisor.config.name}:stop")
        except RuntimeError:  # no thread is to be had: the dispatcher does it in its time
            self._manned = False

    def _carry_out_stop(self) -> None:
        """Wait for runs, cancel what is left, tear down. On the dispatcher."""
        self._request_stop(_TIMEOUT)
        self._await_runs(lambda: self._stop_by)
        with self._lock:
            tokens = [flow.token for flow in self._flows.values() if flow.token is not None]
        for token in tokens:
            token.run_apart(token.seal(CancelReason.SHUTDOWN) or [])
        if tokens:
            heed_by = self._clock.monotonic() + _HEED
            self._await_runs(lambda: heed_by)
        with self._lock:
            deaf = [flow.id for flow in self._flows.values() if flow.token is not None]
        late = [id for id in self._tear_down() if id not in deaf]
        self._workers.close(0.0 if deaf else _HEED)
        failure = StopTimeout(deaf + late, self._stop_timeout) if deaf or late else None
        if self._owns_supervisor:
            self._supervisor.request_shutdown()
        self._result.set(failure)

    def _await_runs(self, end: Callable[[], float | None]) -> None:
        """Wait until no run is in flight, at most to the monotonic instant `end()`."""

        def patience() -> float | None:
            limit = end()
            if self._in_flight == 0 or limit is None:
                return AT_ONCE
            return max(0.0, limit - self._clock.monotonic())

        while self._in_flight and (end() or 0.0) - self._clock.monotonic() > TICK:
            self._inbox.take(patience)

    def _tear_down(self) -> tuple[str, ...]:
        """Tear down flows, the last registered first; return those it had no time for.

        On a thread of its own, as a tear-down may block for ever.
        """
        flows = [flow for flow in reversed(self._flows.values()) if flow.res is not None]
        left = [flow.id for flow in flows]
        done = self._clock.latch()

        def close_all() -> None:
            _inside.set(self)  # a stop in here would wait for itself
            for flow in flows:
                assert flow.res is not None
                try:
                    flow.res.close(partial(self._resource_failed, flow))
                except KeyboardInterrupt:  # told already; it must not save the others from their tear-down
                    pass
                left.remove(flow.id)
            done.open()

        try:
            self._clock.spawn(close_all, f"{self._supervisor.config.name}:teardown")
        except RuntimeError:  # no thread is to be had
            close_all()
        done.wait(_TEAR_DOWN)
        return tuple(left)

    def _resource_failed(self, flow: Flow, key: str, error: BaseException) -> None:
        self._tell(ResourceFailed, flow, key, error_text(error))

    def _end_supervisor(self) -> None:
        if self._owns_supervisor:
            try:
                self._supervisor.shutdown()
            except SupervisorError as error:
                library_logger().error("the supervisor of a scheduler: %s", error)


class _Ending(NamedTuple):
    """How a run ended, with every text made outside of the lock."""

    exit_state: str | None = None
    error: BaseException | None = None
    text: str = ""
    draw: float = 0.0


def _of_flow(id: object, error: FlowError) -> FlowError:
    """Say on an error, whose text names the flow, which one it is."""
    error.at(id if isinstance(id, str) else None, None, 0, ())
    return error


def _last_words(error: BaseException) -> str:
    """Return the text of an error with state, attempt and path, as `last_error` keeps it."""
    try:
        notes = [note for note in getattr(error, "__notes__", ()) if type(note) is str]
    except Exception:
        notes = []
    return " ".join([message_text(error), *(f"({note})" for note in notes)])
