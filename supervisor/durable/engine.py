"""FlowEngine: starts, drives, signals, cancels and shows durable runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from supervisor.durable.bell import Bell
from supervisor.durable.control import Control, due_waits
from supervisor.durable.driver import Drive
from supervisor.durable.errors import (
    EventConflict,
    InvalidTransition,
    NonDeterministic,
    QueueFull,
    RunConflict,
    RunNotFound,
    StoreError,
    UnknownStep,
    UnknownWorkflow,
)
from supervisor.durable.history import (
    Envelope,
    FlowEvent,
    RunCreated,
    StepRetrying,
    WaitCreated,
)
from supervisor.durable.observers import Observers
from supervisor.durable.payload import Json, brief, normal, same
from supervisor.durable.projection import Projection
from supervisor.durable.queues.protocol import WorkQueue, checked_queue
from supervisor.durable.runtime import FlowRuntime, RegisteredWorkflow, current_step
from supervisor.durable.seats import Seat
from supervisor.durable.snapshot import RunSnapshot, RunStatus
from supervisor.durable.stores.codec import check_run_id, new_run_id
from supervisor.durable.stores.memory import MemoryEventStore
from supervisor.durable.stores.protocol import FlowEventStore
from supervisor.kernel.arguments import count, instant
from supervisor.kernel.cancellation import CancelReason, CancelToken
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock
from supervisor.kernel.deadlines import Deadlines, own_timer
from supervisor.kernel.event import Event
from supervisor.kernel.text import error_text, shown
from supervisor.kernel.workers import Workers

if TYPE_CHECKING:
    from supervisor.durable.serving import Serving

__all__ = ["FlowEngine"]

_KEPT = 256  # projections that an engine keeps between drives
_UNFINISHED = (RunStatus.PENDING, RunStatus.RUNNING, RunStatus.CANCELLING)
_CLOSING = 5.0  # seconds for attempts of batches to end when the engine is closed


class FlowEngine(Control):
    """Durable runs of the workflows of a runtime, in a store.

    Any thread may call any method. A call that drives runs steps on the calling thread, those of a batch on
    threads of the engine. In one process a run is driven by one thread at a time; several processes that drive
    the same run at once are safe for its history, but may call a step twice: let them share a queue (`submit`,
    `serve`), whose leases keep them apart.
    """

    def __init__(
        self,
        runtime: FlowRuntime,
        store: FlowEventStore | None = None,
        *,
        queue: WorkQueue | None = None,
        clock: Clock | None = None,
        subscribers: Iterable[Callable[[Any], object]] = (),
        max_replays: int = 1024,
    ) -> None:
        """Check the parts. Starts no thread unless there are subscribers.

        store: None for memory.  queue: None for one that lives where the store lives.  clock: for tests.
        subscribers: callables that get every `Envelope` after its commit, and `StoreFailed`, `RunUnserved`.
        max_replays: how often one drive may ask a workflow.
        """
        if not isinstance(runtime, FlowRuntime):
            raise TypeError(f"runtime must be a FlowRuntime, got {shown(runtime)}")
        if store is not None and not callable(getattr(store, "append", None)):
            raise TypeError(
                f"store must be a FlowEventStore such as SqliteEventStore(path), got {shown(store)}"
            )
        if clock is not None and not callable(getattr(clock, "spawn", None)):
            raise TypeError(
                f"clock must be a Clock, such as supervisor.testing.VirtualClock, got {shown(clock)}"
            )
        super().__init__(
            MemoryEventStore() if store is None else store, SYSTEM_CLOCK if clock is None else clock
        )
        self.max_replays: int = count(max_replays, "max_replays", 1)
        self.runtime: FlowRuntime = runtime
        self.workers: Workers = Workers(self.clock, "durable:step", None)
        self.scheduled: Bell = Bell(self.clock)  # rings when something is due before the alarm
        self.alarm: datetime | None = None  # until then the scheduler sleeps; None: it is looking
        self._observers = Observers(self.clock, subscribers)
        self._lock = self.clock.lock()  # guards the fields below
        self._kept: OrderedDict[str, Projection] = OrderedDict()
        self._queue = None if queue is None else checked_queue(queue)
        self._catch_up: dict[str, datetime] = {}
        self._serving: list[Serving] = []

    def __repr__(self) -> str:
        return f"<FlowEngine of {self.runtime!r} on {shown(self.store)}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def timers(self) -> Deadlines:
        """Where the deadlines of steps lie; another heap in a forked child."""
        return own_timer(self.clock)

    @property
    def queue(self) -> WorkQueue:
        """Where runs stand in line for workers."""
        with self._lock:
            if self._queue is None:
                offered: Callable[[Clock], WorkQueue] | None = getattr(self.store, "work_queue", None)
                if offered is not None:
                    self._queue = offered(self.clock)
                else:
                    from supervisor.durable.queues.memory import MemoryWorkQueue

                    self._queue = MemoryWorkQueue(clock=self.clock)
            return self._queue

    def subscribe(self, subscriber: Callable[[Any], object]) -> None:
        """Have one more callable get what `subscribers` get, from now on. Call it before the engine is in use."""
        self._observers.subscribe(subscriber)

    def close(self) -> None:
        """Let go: nobody may drive any more, who waits for a result is told, subscribers read what is left.

        Store and queue stay open, they were given. Closing twice is the same as once. Raises GraceExceeded if it
        served, and steps ran on all the same.
        """
        with self._lock:
            if self.closed:
                return
            self.closed = True
            serving, self._serving = self._serving, []
        with ExitStack() as rest:  # carried out from the last to the first, whatever one of them raises
            rest.callback(self._observers.close)
            rest.callback(self.workers.close, _CLOSING)
            rest.callback(self.ended.ring)
            rest.callback(self.seats.cancel_all, CancelReason.SHUTDOWN)
            rest.callback(self.seats.close)
            for each in serving:
                rest.callback(each.stop_once)

    # Starting

    def start(
        self, workflow: str | Callable[..., Any], input: Json = None, *, run_id: str | None = None
    ) -> str:
        """Create a run and drive it as far as it can go; return its id.

        run_id: None for a new one, a UUID in order of time. With the id of a run of the same workflow, version and input, nothing is
        created and that run is driven. Runs steps on the calling thread.
        Raises UnknownWorkflow, InvalidRunId, SerializationError, PayloadTooLarge, RunConflict, and what `drive`
        raises.
        """
        found, data, chosen = self._checked_start(workflow, input, run_id)

        def create(projection: Projection) -> list[FlowEvent]:
            if projection.exists:
                self._check_same(projection, found, data)
                return []
            return [_created(found, data)]

        seat = self._seat(chosen)
        if seat is None:
            self._create(chosen, found, data)  # who has the seat may not have come to it yet
            return chosen
        first = Projection(chosen).keeping_history()
        if run_id is not None:
            try:
                first = self.load(chosen)
            except RunNotFound:
                pass
            except BaseException:
                self.seats.leave(seat, look_again=False)
                raise
        self._drive(seat, first, opening=create)
        return chosen

    def submit(
        self, workflow: str | Callable[..., Any], input: Json = None, *, run_id: str | None = None
    ) -> str:
        """Create a run and queue it for a worker; return its id. Like `start`, but drives nothing."""
        self.check_open()
        found, data, chosen = self._checked_start(workflow, input, run_id)
        if self._create(chosen, found, data):
            self.queue.enqueue(chosen)
        return chosen

    def _create(self, run_id: str, found: RegisteredWorkflow, data: Json) -> bool:
        """Write that a run is there, unless it is; return whether it is to be driven. Raises RunConflict."""
        try:
            self.append(run_id, 0, [_created(found, data)], self.clock.now())
        except EventConflict:
            projection = self.read(run_id)
            self._check_same(projection, found, data)
            return not projection.terminal
        return True

    def _checked_start(
        self, workflow: str | Callable[..., Any], input: Json, run_id: str | None
    ) -> tuple[RegisteredWorkflow, Json, str]:
        found = self.runtime.newest(workflow)
        chosen = new_run_id(self.clock.now()) if run_id is None else check_run_id(run_id)
        return found, normal(input, "input"), chosen

    def _check_same(self, projection: Projection, found: RegisteredWorkflow, data: Json) -> None:
        run_id = projection.run_id
        if (projection.workflow, projection.version) != (found.name, found.version):
            raise RunConflict(
                run_id,
                f"workflow spec differs: the run is of {projection.workflow!r} version {projection.version!r}, "
                f"and {found.name!r} version {found.version!r} was asked for; choose another run_id",
            )
        if not same(projection.input, data):
            raise RunConflict(
                run_id,
                f"workflow input differs: history={brief(projection.input)}; given={brief(data)}; choose another "
                "run_id",
            )

    # Driving

    def drive(self, run_id: str, now: datetime | None = None) -> RunSnapshot:
        """Drive a run as far as it can go and return what it is then.

        now: what counts as due; delays count from the later of it and the clock. It completes no waits.
        If another thread of this process drives the run, waits for it first; called from a step, it has that
        thread look once more instead, and returns at once.
        Raises RunNotFound, what a decider raises, NonDeterministic, InvalidTransition, UnknownWorkflow,
        UnknownStep, ReplayLimitExceeded, StoreError, and KeyboardInterrupt or SystemExit of a step.
        """
        when = None if now is None else instant(now, "now")
        return self.drive_with(check_run_id(run_id), when, None).snapshot()

    def drive_with(
        self, run_id: str, now: datetime | None, opening: Callable[[Projection], list[FlowEvent]] | None
    ) -> Projection:
        """Drive a run, with events from outside first; wait for who drives it, unless this is a step."""
        seat = self._seat(run_id)
        if seat is not None:
            return self._drive(seat, None, now=now, opening=opening)
        if opening is not None:
            self._hand_over(run_id, opening)
        return self.read(run_id)

    def _hand_over(
        self, run_id: str, opening: Callable[[Projection], list[FlowEvent]], leased: bool = False
    ) -> None:
        """Append events from outside to a run that somebody else drives, and have it looked at once more.

        leased: a worker drives it, of this process or another.
        """
        self.commit(run_id, opening)
        seat = self._seat(run_id, wait=False)
        if seat is None:
            return
        if leased:
            self.seats.leave(seat, look_again=False)
            self.queue.enqueue(run_id)
        else:  # who drove it has just left, and did not see what came
            self._drive(seat, None)

    def drive_leased(
        self,
        run_id: str,
        halted: Callable[[], bool],
        lease: CancelToken,
        confirm: Callable[[bool], None] | None = None,
    ) -> Projection | None:
        """Drive a run for a worker: its due waits first.

        None if a thread of this process drives it already. That one looks once more, but it may fail, or may
        not be allowed to: so the task is not done yet.
        halted: asked before an attempt is started.  lease: canceled when somebody else has the run.
        confirm: makes sure of that, see `Drive`.
        """
        with self._lock:
            ahead = self._catch_up.pop(run_id, None)
        now = self.clock.now()
        opening = due_waits(now if ahead is None else max(now, ahead))
        seat = self._seat(run_id, wait=False)
        if seat is None:
            self.commit(run_id, opening)
            seat = self._seat(run_id, wait=False)
            if seat is None:
                return None
        return self._drive(
            seat, None, now=ahead, halted=halted, lease=lease, confirm=confirm, opening=opening
        )

    def catch_up(self, run_id: str, now: datetime) -> None:
        """Have the next worker that drives the run take a future instant for now."""
        if now > self.clock.now():
            with self._lock:
                self._catch_up[run_id] = now

    def _seat(self, run_id: str, *, wait: bool = True) -> Seat | None:
        """Take the seat of a run; None if its driver looks once more instead. Never waits inside a step."""
        return self.seats.enter(run_id, wait=wait and current_step() is None)

    def _drive(
        self,
        seat: Seat,
        first: Projection | None,
        *,
        now: datetime | None = None,
        halted: Callable[[], bool] | None = None,
        lease: CancelToken | None = None,
        confirm: Callable[[bool], None] | None = None,
        opening: Callable[[Projection], list[FlowEvent]] | None = None,
    ) -> Projection:
        """Drive from the seat, and leave it. Marks a run that only a person can help, and takes marks back."""
        run_id, left = seat.run_id, False
        try:
            while True:
                projection = self.load(run_id) if first is None else first
                fresh, first = not projection.exists, None
                drive = Drive(
                    self,
                    seat,
                    projection,
                    now=now,
                    halted=self._never if halted is None else halted,
                    lease=lease,
                    confirm=confirm,
                    opening=opening,
                )
                opening = None
                try:
                    projection = drive.run()
                except (NonDeterministic, InvalidTransition) as error:
                    self._mark(run_id, error)
                    raise
                self._keep(projection)
                if not fresh:
                    self.directory.clear_failure(run_id)
                if left := self.seats.leave(seat):
                    return projection
        finally:
            if not left:
                self.seats.leave(seat, look_again=False)
            if seat.again:  # somebody relied on this drive, and it has failed or was stopped
                self._leave_to_workers(run_id)

    def _leave_to_workers(self, run_id: str) -> None:
        try:
            self.queue.enqueue(run_id)
        except (StoreError, QueueFull):  # why the drive failed is raised all the same
            return

    def _never(self) -> bool:
        return self.closed

    def _mark(self, run_id: str, error: Exception) -> None:
        try:
            self.directory.mark_failure(run_id, error_text(error), self.clock.now())
        except StoreError:  # the error itself is raised all the same
            return

    # For drives, workers and schedulers

    def load(self, run_id: str) -> Projection:
        """Return the history of a run as it is stored now. Raises RunNotFound."""
        projection = self._take(run_id) or Projection(run_id).keeping_history()
        for envelope in self.store.read(run_id, projection.sequence):
            projection.fold(envelope)
        return projection

    def append(self, run_id: str, expected: int, events: list[FlowEvent], at: datetime) -> list[Envelope]:
        """Append events, publish them, and wake whom they concern."""
        if not self._observers.active:
            stored = self.store.append(run_id, expected, events, at)
        else:
            with self._observers.order(run_id):
                stored = self.store.append(run_id, expected, events, at)
                self._observers.publish(stored)
        last = events[-1]
        if last.type in _LAST:
            self.ended.ring()
        elif isinstance(last, WaitCreated | StepRetrying):
            due_at = last.resume_at if isinstance(last, WaitCreated) else last.retry_after
            alarm = self.alarm
            if due_at is not None and (alarm is None or due_at < alarm):
                self.scheduled.ring()
        return stored

    def tell(self, cls: type[Event], *values: object) -> None:
        """Publish a diagnosis to the subscribers."""
        self._observers.tell(cls, *values)

    def mark(self, run_id: str, reason: str) -> None:
        """Mark a run for a person."""
        self.directory.mark_failure(run_id, reason, self.clock.now())

    def notice_cancellation(self, run_id: str) -> None:
        """Cancel the attempts of a run here if another process asked it to end."""
        projection = self.read(run_id)
        if projection.cancellation is not None and not projection.terminal:
            self.seats.cancel(run_id, projection.cancel_requested_seq)
        elif projection.terminal:
            self.seats.cancel(run_id, projection.sequence)

    def _take(self, run_id: str) -> Projection | None:
        with self._lock:
            return self._kept.pop(run_id, None)

    def _keep(self, projection: Projection) -> None:
        if projection.terminal:
            return
        with self._lock:
            self._kept[projection.run_id] = projection
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)

    def go_on(self, run_id: str, opening: Callable[[Projection], list[FlowEvent]] | None = None) -> None:
        """Bring events from outside to a run and drive it, unless others have to: who drives it already, the
        worker of any process that holds its lease, or one that knows its workflow.
        """
        leased = self.queue.leased(run_id)
        seat = None if leased else self._seat(run_id, wait=False)
        try:
            if seat is None:
                self._hand_over(run_id, opening or _nothing, leased)
            else:
                self._drive(seat, None, opening=opening)
        except (UnknownWorkflow, UnknownStep):
            self.queue.enqueue(run_id)

    # Workers

    def recover(self) -> list[str]:
        """Queue every run that is neither ended nor waiting, and return their ids.

        For the start of a process: a run that a killed process left in the middle goes on.
        """
        self.check_open()
        found = self.directory.find_runs(_UNFINISHED)
        queue = self.queue
        for run_id in found:
            queue.enqueue(run_id)
        return found

    def serve(
        self,
        workers: int = 4,
        poll: float | timedelta = 1.0,
        lease_seconds: float | timedelta = 30.0,
        *,
        grace: float | timedelta = 30.0,
    ) -> Serving:
        """Return a context manager that runs a scheduler and workers as supervised tasks; recovers first.

        workers: threads that drive runs.  poll: seconds after which they look by themselves, for what other
        processes left.  lease_seconds: after which a run of a worker that is gone is taken over.  grace: seconds
        for steps to end when the block is left; then their tokens are canceled.
        """
        from supervisor.durable.serving import Serving

        made = Serving(self, workers, poll, lease_seconds, grace)
        with self._lock:
            if self.closed:
                raise StoreError("the engine is closed; make a new one")
            self._serving = [each for each in self._serving if not each.stopped] + [made]
        return made


_LAST = {"run_completed", "run_failed", "run_retry_exhausted", "run_cancelled"}


def _created(workflow: RegisteredWorkflow, data: Json) -> RunCreated:
    return RunCreated({"name": workflow.name, "version": workflow.version}, data)


def _nothing(_: Projection) -> list[FlowEvent]:
    return []
