"""The running side of a supervisor: its thread, and what everybody else leaves for it.

One thread consumes what actors put on its inbox: it hands on their events, ends the tasks whose
threads have ended, keeps the heap of deadlines, and carries out the shutdown. It never runs user
code and never waits for any.

Lock order: `Watch` -> `Running.lock` -> `CancelToken.lock` -> `Deadlines`, `EventBus`, `Promise`,
`Permits` (leaves). Nothing below takes one above, and no user code runs under any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from supervisor.kernel.backoff import Draws, default_rng
from supervisor.kernel.bus import EventBus
from supervisor.kernel.cancellation import CancelReason, run_callbacks
from supervisor.kernel.clock import Clock, Condition, Lock, SystemClock, ThreadHandle, current_ident
from supervisor.kernel.deadlines import VERDICT, WAKE, Deadlines
from supervisor.kernel.errors import (
    CapacityExceeded,
    GraceExceeded,
    ReentrantCall,
    ShuttingDown,
    SupervisorError,
)
from supervisor.kernel.inbox import AT_ONCE, Inbox, Message
from supervisor.kernel.log import library_logger
from supervisor.kernel.permits import Permits
from supervisor.kernel.text import error_text
from supervisor.tasks import process
from supervisor.tasks.actor import Actor
from supervisor.tasks.admission import Admissions
from supervisor.tasks.config import SupervisorConfig
from supervisor.tasks.lifecycle import TaskCancelRequested, TaskFinished, TaskRemoved
from supervisor.tasks.outcome import OutcomeKind, TaskOutcome
from supervisor.tasks.registry import Registry
from supervisor.tasks.shutdown import Shutdown

__all__ = ["BATCH", "Running"]

BATCH = 32  # threads that are woken together
_EXIT_MARGIN = 0.25  # seconds beyond exit_grace to hand on what is queued
_PATIENT = 0.005  # seconds a deadline may wait for a busy inbox


class Running:
    """State and thread of one supervisor."""

    def __init__(self, config: SupervisorConfig, clock: Clock, rng: Draws | None) -> None:
        self.config = config
        self.clock = clock
        self.rng: Draws = rng or default_rng()
        self.inbox: Inbox = Inbox(clock)
        self.deadlines: Deadlines = Deadlines(clock, self.inbox.ring)
        self.bus: EventBus = EventBus(
            clock,
            self.inbox,
            name=config.name,
            capacity=config.event_capacity,
            subscriber_capacity=config.subscriber_capacity,
        )
        limit = config.max_concurrent
        self.permits: Permits | None = None if limit is None else Permits(clock, limit)
        self.lock: Lock = clock.lock()  # guards the five fields below, and `claimed` of each actor
        self.registry: Registry = Registry(config.max_tasks)
        self.admissions: Admissions = Admissions(self)
        self.unfinished: int = 0  # tasks without an outcome, those in the line of a slot included
        self.closing: bool = (
            False  # only ever set; may be read, and set from a signal handler, without the lock
        )
        self.thread: ThreadHandle | None = None
        self.emptied: Condition = clock.condition(self.lock)  # unfinished == 0, or closing
        self.shutdown: Shutdown = Shutdown(self)
        self._actors: dict[int, Actor] = {}  # by ident of the thread
        self._helpers: dict[int, ThreadHandle] = {}  # run callbacks of the user, by ident
        self._batch_full = False
        self._yielded = False
        self._over = False
        self._exit_by: float | None = None  # monotonic; the process is about to end
        self.forked: bool = False  # this process is a child of the one where the threads run

    # Called by any thread

    def start(self) -> None:
        """Start the threads that don't run yet. Raises CapacityExceeded when one is refused; call again."""
        with self.lock:
            self.refuse_when_closing()
            if first := self.thread is None:
                self.deadlines.adopt()
                try:
                    self.thread = self.clock.spawn(self._main, self.config.name)
                except RuntimeError as error:
                    raise CapacityExceeded(f"no thread for the supervisor: {error_text(error)}") from error
        if first and isinstance(self.clock, SystemClock):  # virtual time has stopped when the process exits
            process.register(self)
        try:
            self.bus.start()
        except RuntimeError as error:
            raise CapacityExceeded(f"no thread to deliver events: {error_text(error)}") from error

    def refuse_when_closing(self) -> None:
        """Raise ShuttingDown once a shutdown was asked for."""
        if self.closing:
            raise ShuttingDown(
                f"supervisor {self.config.name!r} is shutting down or has; make a new one for new work"
            )

    def check_not_inside(self, actor: Actor | None, call: str, instead: str) -> None:
        """Raise ReentrantCall in the body of `actor`; without one, in any body or subscriber."""
        ident = current_ident()
        inside = self._actors.get(ident)
        if actor is not None:
            if inside is not actor:
                return
            where = f"the body of task {actor.name!r}"
        elif inside is not None:
            where = f"the body of task {inside.name!r}"
        elif self.bus.is_delivering(ident):
            where = "a subscriber"
        elif ident in self._helpers:
            where = "an on_cancel callback"
        else:
            return
        raise ReentrantCall(f"{call}() inside {where} would wait for itself; {instead}")

    def claim(self, actor: Actor, reason: CancelReason) -> bool:
        """Take the one right to stop a task; the caller then cancels its token. Holds the lock.

        In a shutdown its grace counts, otherwise the task has one of its own.
        """
        if actor.claimed or actor.closed or actor.ended or not actor.admitted:
            return False
        if reason is not CancelReason.SHUTDOWN:
            grace = self.config.grace_seconds
            give_up = partial(self._grace_over, actor, f"did not stop within {grace:g} s")
            actor.grace = self.deadlines.call_at(self.clock.monotonic() + grace, give_up, VERDICT)
        actor.claimed = True
        self.bus.publish(actor, TaskCancelRequested, actor.id, actor.name, reason)
        return True

    def stop(self, actor: Actor) -> bool:
        """Claim a task and cancel it; True for the one who claimed it. Callbacks run here.

        A Ctrl-C between the two must not leave a task that is claimed and never asked to stop.
        """
        before = actor.claimed
        try:
            with self.lock:
                claimed = self.claim(actor, CancelReason.REQUESTED)
        except BaseException:
            if actor.claimed and not before:
                actor.token.cancel(CancelReason.REQUESTED)
            raise
        if claimed:
            actor.token.cancel(CancelReason.REQUESTED)
        return claimed

    def _grace_over(self, actor: Actor, reason: str) -> None:
        if actor.claimed:  # not if the claim was interrupted before it was made
            self.give_up(actor, reason)

    def wait_for_outcome(self, actor: Actor, timeout: float | None) -> bool:
        """Block until a task has its outcome; True if so. In a body that is canceled: `Canceled`."""
        inside = self._actors.get(current_ident())
        if inside is None:
            return actor.outcome.wait(timeout)
        if not (done := actor.outcome.wait(timeout, inside.current_token)):
            inside.current_token.check()
        return done

    def wait_until_empty(self, timeout: float | None) -> bool:
        """Block until every task has its outcome; True if so."""
        with self.lock:
            return self.emptied.wait_for(lambda: self.unfinished == 0, timeout)

    def close_when_empty(self, timeout: float | None) -> bool | None:
        """Block until every task has its outcome, and close in the same breath: True.

        False if somebody has asked for a shutdown, None when `timeout` seconds are over.
        """
        with self.lock:
            self.emptied.wait_for(lambda: self.unfinished == 0 or self.closing, timeout)
            if self.closing:
                return False
            if self.unfinished:
                return None
            self.closing = True
            return True

    def shut_down(self, grace: float, *, requested: bool) -> None:
        """Start or join the one shutdown and wait for its result. Raises GraceExceeded."""
        with self.lock:
            self.closing = True
            thread = self.thread
        if thread is None:
            self.bus.close(0.0)
            self.shutdown.result.set(())
        else:
            self.inbox.post(partial(self.shutdown.begin, grace, requested=requested))
            self.shutdown.result.wait()
            thread.join(1.0)
        if stuck := self.shutdown.result.value:
            raise GraceExceeded(stuck, self.shutdown.grace)

    def shut_down_after(self, cause: type[BaseException]) -> None:
        """Shut down while an exception is in flight: it is what counts, the shutdown's is logged."""
        if self.forked:  # a child on its way out
            return
        try:
            self.check_not_inside(None, "shutdown", "use request_shutdown()")
            self.shut_down(self.config.grace_seconds, requested=True)
        except SupervisorError as error:
            library_logger().error("after %s: %s", cause.__name__, error)

    # The end of the process: a `process.Citizen`

    @property
    def exiting(self) -> bool:
        """True once the interpreter exits: there is no time but `exit_grace`."""
        return self._exit_by is not None

    def begin_exit(self) -> None:
        self.closing = True
        grace = self.config.exit_seconds
        self._exit_by = self.clock.monotonic() + grace + _EXIT_MARGIN
        self.inbox.post(partial(self.shutdown.begin, grace, requested=True, drain=grace))

    def await_exit(self) -> None:
        assert self._exit_by is not None
        self.shutdown.result.wait(max(0.0, self._exit_by - self.clock.monotonic()))

    def in_child(self) -> None:
        self.forked = self.bus.forked = True

    def start_thread(self, actor: Actor) -> None:
        """Give an actor its thread. Raises RuntimeError if the operating system refuses one."""
        thread = actor.thread = self.clock.spawn(actor.main, f"{self.config.name}:{actor.name}")
        if actor.ended:  # before it could be reaped by its thread
            thread.join(1.0)

    # Called by an actor: a `Host`

    def let_in(self, actor: Actor) -> bool:
        return self.admissions.let_in((actor,))

    def actor_started(self, actor: Actor) -> None:
        self._actors[current_ident()] = actor

    def actor_ended(self, actor: Actor, outcome: TaskOutcome) -> None:
        self._actors.pop(current_ident(), None)
        self.inbox.post(partial(self._reap, actor, outcome))
        if self._over:  # nobody is left to reap it
            with self.lock:
                self.registry.remove(actor)

    def call_back(self, callbacks: list[Callable[[], object]]) -> None:
        """Run callbacks on a thread of their own: one that blocks holds up nobody."""
        if not callbacks:
            return

        def run() -> None:
            ident = current_ident()
            ready.wait()
            run_callbacks(callbacks)
            self._helpers.pop(ident, None)

        ready = self.clock.latch()
        try:
            thread = self.clock.spawn(run, f"{self.config.name}:cancel")
        except RuntimeError as error:
            if self._exit_by is None:  # at exit, Python 3.12 lets no thread start
                library_logger().error("no thread for on_cancel callbacks: %s", error_text(error))
            run_callbacks(callbacks)  # late is better than never
            return
        if thread.ident is not None:
            self._helpers[thread.ident] = thread
        ready.open()

    # The supervising thread

    def _main(self) -> None:
        try:
            while not self._over:
                self._step(self.inbox.take(self._patience))
        finally:
            self._abandon()

    def _step(self, message: Message | None) -> None:
        """Do one round: messages first, then a batch of what is due."""
        self._batch_full = False
        handled = 0
        while message is not None:
            self._run(message)
            handled += 1
            message = self.inbox.take_waiting() if handled < 2 * BATCH else None
        self._run(self.bus.pump)
        late = self.deadlines.late_by() > _PATIENT
        if self.inbox.quiet or late:
            self._batch_full = self._run_due(VERDICT if self._yielded or late else WAKE) == BATCH
        self.shutdown.step()

    def _patience(self) -> float | None:
        if self._over or self.bus.waiting:
            return AT_ONCE
        left = self.deadlines.seconds_left()
        self._yielded = left == 0.0  # whoever returns at this instant may do so before it is judged
        if self.shutdown.busy or (self._batch_full and left == 0.0):
            return self.clock.breath
        return left

    def _run(self, message: Message) -> None:
        try:
            message()
        except Exception:
            library_logger().exception("fault in the supervisor library")

    def _run_due(self, rank: int) -> int:
        try:
            return self.deadlines.run_due(BATCH, rank)
        except Exception:
            library_logger().exception("fault in the supervisor library")
            return 0

    def give_up(self, actor: Actor, reason: str) -> None:
        """End a task although its thread runs: `Host`. On the supervising thread."""
        self.bus.pump()  # what it said so far still counts
        stack = actor.stack()
        with self.lock:
            if actor.ended or actor.closed or actor.id not in self.registry.live:
                return
            actor.closed = actor.claimed = True
            self.registry.give_up(actor)
        self.call_back(actor.token.seal(CancelReason.TIMEOUT) or [])
        if stack:
            reason = f"{reason}; it is stuck at:\n{stack}"
        outcome = TaskOutcome(
            kind=OutcomeKind.FORCE_ABORTED, reason=reason, value=actor.value, attempts=actor.attempts
        )
        self.finish(actor, outcome)

    def _reap(self, actor: Actor, outcome: TaskOutcome) -> None:
        """The thread of an actor has nothing more to do."""
        if actor.thread is not None:
            actor.thread.join(1.0)
        if actor.grace is not None:
            actor.grace.cancel()
        with self.lock:
            given_up = actor.closed
            self.registry.remove(actor)
        if given_up:
            self.admissions.slot_is_free(actor)
        else:
            self.finish(actor, outcome, lambda: self.admissions.slot_is_free(actor))

    def finish(self, actor: Actor, outcome: TaskOutcome, then: Callable[[], None] | None = None) -> None:
        """Tell the end of a task: TaskFinished, the outcome, TaskRemoved. On the supervising thread."""
        publish, id, name = self.bus.publish_now, actor.id, actor.name
        publish(TaskFinished, id, name, outcome.kind, outcome.attempts, outcome.reason)
        actor.outcome.set(outcome)
        publish(TaskRemoved, id, name)
        if then is not None:
            then()
        self.one_less()

    def one_less(self) -> None:
        """A task has got its outcome."""
        with self.lock:
            self.unfinished -= 1
            if self.unfinished == 0:
                self.emptied.notify_all()

    def end(self, drain: float) -> None:
        """Deliver the last events and leave the loop. On the supervising thread."""
        end = self.clock.monotonic() + drain
        self.bus.close(drain, quiet=self._exit_by is not None)
        for thread in list(self._helpers.values()):
            thread.join(max(0.0, end - self.clock.monotonic()))
        self._over = True

    def _abandon(self) -> None:
        """The thread ends: whoever still waits must not wait for ever."""
        self._over = True
        with self.lock:
            left = list(self.registry)
            for actor in left:
                if actor.ended:
                    self.registry.remove(actor)
            self.closing = True
            self.unfinished = 0
            self.emptied.notify_all()
        for actor in left:
            actor.outcome.set(None)
            self.call_back(actor.token.seal(CancelReason.SHUTDOWN) or [])  # nobody is left to wake it
        self.shutdown.ended()
