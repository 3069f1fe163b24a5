"""FlowWorker: takes runs from a queue and drives them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from supervisor.durable.engine import FlowEngine
from supervisor.durable.errors import (
    InvalidTransition,
    LeaseLost,
    NonDeterministic,
    ReplayLimitExceeded,
    StoreError,
    UnknownStep,
    UnknownWorkflow,
)
from supervisor.durable.heart import Heart, Held
from supervisor.durable.lifecycle import RunUnserved, StoreFailed
from supervisor.durable.queues.protocol import (
    MAX_DELIVERIES,
    Lease,
    WorkQueue,
    checked_queue,
    redelivery_delay,
)
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stopping import Stop
from supervisor.kernel.arguments import count, seconds
from supervisor.kernel.backoff import BackoffPolicy, Jitter
from supervisor.kernel.cancellation import CancelReason
from supervisor.kernel.clock import in_main_thread
from supervisor.kernel.log import library_logger
from supervisor.kernel.text import error_text, shown

__all__ = ["STORE_BACKOFF", "FlowWorker"]

STORE_BACKOFF = BackoffPolicy(initial=0.1, max_delay=5.0, jitter=Jitter.NONE)  # when the queue itself fails
_UNSERVED_DELAY = 1.0  # seconds for which a run that is unknown here is left to others
_BUSY_DELAY = 1.0  # seconds until a run that another thread of this process drives is looked at again
_STEP_BACK = 0.1  # seconds by which a worker that left a run comes later for it than one that may know it
_STEPPED_BACK = 60.0  # seconds for which it does so
_POLL = 1.0  # seconds between two looks at a queue that nobody rings for


class FlowWorker:
    """Takes runs from the queue and drives them, each under a lease that it extends meanwhile.

    What goes wrong with a delivery (the store fails, a decider raises) is tried again after 0.1 s, doubling; after
    five times the task is a dead letter, and the run is marked. A run that is not known here is left to others.
    """

    def __init__(
        self,
        engine: FlowEngine,
        queue: WorkQueue | None = None,
        *,
        concurrency: int = 1,
        lease_seconds: float | timedelta = 30.0,
        poll: float | timedelta = _POLL,
    ) -> None:
        """Check the settings; starts nothing.

        queue: None for that of the engine.  concurrency: runs that `serve` drives at once.  lease_seconds: after
        which others may take over a run whose worker is gone.  poll: seconds between looks for what other processes
        queued; 0.001 or more.
        """
        if not isinstance(engine, FlowEngine):
            raise TypeError(f"engine must be a FlowEngine, got {shown(engine)}")
        self.concurrency: int = count(concurrency, "concurrency", 1)
        self.lease_seconds: float = seconds(lease_seconds, "lease_seconds")
        self.poll: float = max(seconds(poll, "poll"), 0.001)
        if self.lease_seconds <= 0.0:
            raise ValueError(f"lease_seconds must be > 0, got {shown(lease_seconds)}")
        self._engine = engine
        self._queue: WorkQueue = engine.queue if queue is None else checked_queue(queue)
        self._heart = Heart(engine.clock, self._queue, self.lease_seconds, engine.notice_cancellation)
        self._clock = engine.clock
        self._left_a_run_at = float("-inf")  # monotonic seconds; all threads of a worker know the same

    def run_once(self) -> str | None:
        """Drive the next run of the queue, on this thread; return its id, None if there is none.

        Raises StoreError if the queue fails, KeyboardInterrupt and SystemExit; what else goes wrong with the
        delivery is logged, and the task stays in the queue.
        """
        with self._heart:
            return self._next(None)

    def run_until_idle(self) -> int:
        """Drive runs, on this thread, until none is due; return how many were driven. Raises like `run_once`."""
        done = 0
        with self._heart:
            while self._next(None) is not None:
                done += 1
        return done

    def serve(self, stop: object) -> None:
        """Drive runs until told to stop, `concurrency` at once; this thread is one of them.

        stop: a CancelToken, or a threading.Event. Steps that run are waited for, and recorded; what was not started
        goes back to the queue.
        """
        told = Stop(stop)
        others = [
            self._clock.spawn(lambda: self.work(told), f"durable:worker:{number}")
            for number in range(2, self.concurrency + 1)
        ]
        try:
            self.work(told)
        finally:
            for each in others:
                each.join()

    def cancel_steps(self) -> None:
        """Cancel the tokens of all steps that run here, as their process is about to end."""
        for run_id in self._heart.runs():
            self._engine.seats.cancel(run_id, reason=CancelReason.SHUTDOWN)

    def work(self, stop: Stop) -> None:
        """One loop of `serve`."""
        failures = 0
        with self._heart:
            while not stop.now and not self._engine.closed:
                try:
                    ticket = self._queue.ticket()
                    if self._next(stop) is None and not stop.now:
                        self._rest(stop, ticket)
                    failures = 0
                except StoreError as error:
                    failures += 1
                    delay = STORE_BACKOFF.delay(failures, 0.0)
                    self._engine.tell(StoreFailed, "taking a run from the queue", error_text(error), delay)
                    library_logger().warning(
                        "the queue fails, next try in %g s: %s", delay, error_text(error)
                    )
                    self._queue.wait(self._queue.ticket(), stop.at_most(delay), stop.token)

    def _rest(self, stop: Stop, ticket: int) -> None:
        """Wait until there may be something to do."""
        if self._queue.reclaim_expired():
            return
        soon = self._queue.seconds_to_next()
        timeout = self.poll if soon is None else min(self.poll, max(soon, 0.001))
        if self._clock.monotonic() <= self._left_a_run_at + _STEPPED_BACK:
            timeout += _STEP_BACK  # else it might take the run again and again, just before who knows it
        self._queue.wait(ticket, stop.at_most(timeout), stop.token)

    def _next(self, stop: Stop | None) -> str | None:
        if self._engine.closed:
            raise StoreError("the engine of this worker is closed; make a new one")
        lease = self._queue.lease(self.lease_seconds)
        if lease is None:
            return None
        held = self._heart.hold(lease)
        try:
            self._drive(held, lease, stop)
        except BaseException as error:
            self._failed(held, lease, error, stop)
            if not isinstance(error, Exception) and (stop is None or in_main_thread()):
                raise
        finally:
            self._heart.drop(held)
        return lease.run_id

    def _drive(self, held: Held, lease: Lease, stop: Stop | None) -> None:
        """Drive a run, and say what becomes of its task."""
        run_id = lease.run_id
        try:
            projection = self._engine.drive_leased(
                run_id,
                lambda: stop is not None and stop.now,
                held.token,
                lambda doubt: held.confirm(self._queue, doubt=doubt),
            )
        except LeaseLost:
            return  # somebody else has it
        except (UnknownWorkflow, UnknownStep) as error:
            self._engine.tell(RunUnserved, run_id, str(error))
            self._left_a_run_at = self._clock.monotonic()
            self._give_back(held, _UNSERVED_DELAY)
        except (NonDeterministic, InvalidTransition) as error:
            library_logger().error("run %r waits for a person: %s", run_id, error_text(error))
            self._done(held)
        except ReplayLimitExceeded:
            self._give_back(held)  # it has come further, and has its turn again
        else:
            if projection is None:
                self._give_back(held, _BUSY_DELAY)
            elif (
                projection.terminal
                or projection.status is RunStatus.SUSPENDED
                or stop is None
                or not stop.now
            ):
                self._done(held)
            else:
                self._give_back(held)

    def _done(self, held: Held) -> None:
        self._settle(held, self._queue.ack)

    def _give_back(self, held: Held, delay: float = 0.0) -> None:
        self._settle(held, lambda lease: self._queue.release(lease, delay))

    def _settle(self, held: Held, settle: Callable[[Lease], None]) -> None:
        lease = self._heart.drop(held)
        if lease is None:
            return
        try:
            settle(lease)
        except LeaseLost:  # it was driven all the same, and who has it now will see that
            return
        except BaseException:
            self._heart.take_back(held, lease)
            raise

    def _failed(self, held: Held, lease: Lease, error: BaseException, stop: Stop | None) -> None:
        """A delivery failed: again later, or never.

        If the queue does not even take that, it is asked again with backoff until the lease would have ended, as
        long as nobody waits for this thread to stop.
        """
        failures, text = lease.failures + 1, error_text(error)
        if isinstance(error, StoreError):
            self._engine.tell(StoreFailed, f"driving run {lease.run_id!r}", text, redelivery_delay(failures))
        library_logger().warning("delivery %d of run %r failed: %s", failures, lease.run_id, text)
        delay, end, tries = redelivery_delay(failures), self._clock.monotonic() + self.lease_seconds, 0
        while True:
            try:
                if failures < MAX_DELIVERIES:
                    self._settle(held, lambda mine: self._queue.release(mine, delay, failed=True))
                    return
                self._settle(held, lambda mine: self._queue.dead_letter(mine, text))
                self._engine.mark(lease.run_id, f"given up after {failures} deliveries: {text}")
                return
            except StoreError as broken:
                tries += 1
                pause = STORE_BACKOFF.delay(tries, 0.0)
                if stop is None or stop.now or self._clock.monotonic() + pause >= end:
                    library_logger().warning(
                        "run %r could not be given back, its lease will expire: %s",
                        lease.run_id, error_text(broken),
                    )  # fmt: skip
                    return
            self._queue.wait(self._queue.ticket(), stop.at_most(pause), stop.token)
