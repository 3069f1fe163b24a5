"""Serving: a scheduler and workers of one engine, as supervised tasks."""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self

from supervisor.durable.errors import QueueFull, StoreError
from supervisor.durable.lifecycle import StoreFailed
from supervisor.kernel.arguments import count, seconds
from supervisor.kernel.errors import ForkedProcess, GraceExceeded, SupervisorError
from supervisor.kernel.log import library_logger
from supervisor.kernel.text import error_text
from supervisor.tasks.config import SupervisorConfig
from supervisor.tasks.context import TaskContext
from supervisor.tasks.spec import TaskSpec
from supervisor.tasks.supervisor import Supervisor

if TYPE_CHECKING:
    from supervisor.durable.engine import FlowEngine

__all__ = ["Serving"]

_UNWIND = 5.0  # seconds for steps to end once their tokens are canceled


class Serving:
    """Runs while its `with` block is open: one scheduler, and workers that share one heart."""

    def __init__(
        self,
        engine: FlowEngine,
        workers: int,
        poll: float | timedelta,
        lease_seconds: float | timedelta,
        grace: float | timedelta,
    ) -> None:
        from supervisor.durable.due_work import FlowScheduler
        from supervisor.durable.worker import FlowWorker

        self._workers = count(workers, "workers", 1)
        self._grace = seconds(grace, "grace")
        self._engine = engine
        self._worker = FlowWorker(engine, lease_seconds=lease_seconds, poll=poll)
        self._scheduler = FlowScheduler(engine)
        self._supervisor: Supervisor | None = None
        self.stopped: bool = False
        self._recovered = False
        self._failures = 0  # of `recover`, in a row
        self._delay = 0.0  # seconds until it is tried again

    def __repr__(self) -> str:
        state = "stopped" if self.stopped else "new" if self._supervisor is None else "running"
        return f"<Serving {self._engine!r} {state}>"

    def __enter__(self) -> Self:
        """Recover, then start. A store that fails is tried again by the scheduler."""
        if self._supervisor is not None or self.stopped:
            raise RuntimeError("a serving is entered once; call engine.serve() again")
        self._recovered = self._recover()
        config = SupervisorConfig(name="durable", grace=self._grace + _UNWIND)
        self._supervisor = supervisor = Supervisor(config, clock=self._engine.clock)
        supervisor.start()
        supervisor.add_all(
            [
                TaskSpec.restartable("scheduler", self._schedule),
                *(
                    TaskSpec.restartable(f"worker-{number}", self._work)
                    for number in range(1, self._workers + 1)
                ),
            ]
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
            return
        try:
            self.stop()
        except SupervisorError as also:  # what was raised in the block is what counts
            library_logger().error("after %s: %s", type(error).__name__, also)

    @property
    def supervisor(self) -> Supervisor | None:
        """The supervisor of the tasks `scheduler` and `worker-1` to `worker-N`; None before the start."""
        return self._supervisor

    def stop(self) -> None:
        """Take no more runs, wait for the steps that run, give back what was not started.

        After the grace the tokens of the steps are canceled; their attempts are delivered again later. Raises
        GraceExceeded if steps run on all the same. Stopping twice is the same as once.
        """
        self.stopped = True
        supervisor = self._supervisor
        if supervisor is None:
            return
        clock, timers = self._engine.clock, self._engine.timers
        try:
            alarm = timers.call_at(clock.monotonic() + self._grace, self._cancel_steps)
        except ForkedProcess:  # what serves runs in the parent
            return
        try:
            supervisor.shutdown()
        except ForkedProcess:
            return
        finally:
            alarm.cancel()

    def stop_once(self) -> None:
        """Stop; who stops it again is told of no steps that run on, as somebody was before."""
        told = self.stopped
        try:
            self.stop()
        except GraceExceeded:
            if not told:
                raise

    def _cancel_steps(self) -> None:
        # on the shared timer, where nothing may block: callbacks of tokens are user code
        self._engine.clock.spawn(self._worker.cancel_steps, "durable:cancel")

    def _recover(self) -> bool:
        from supervisor.durable.worker import STORE_BACKOFF

        self._engine.check_open()
        try:
            self._engine.recover()
        except (StoreError, QueueFull) as error:
            self._failures += 1
            self._delay = STORE_BACKOFF.delay(self._failures, 0.0)
            self._engine.tell(StoreFailed, "recovering runs", error_text(error), self._delay)
            library_logger().warning(
                "runs can't be recovered, next try in %g s: %s", self._delay, error_text(error)
            )
            return False
        return True

    def _schedule(self, ctx: TaskContext) -> None:
        while not self._recovered and not ctx.wait(self._delay):
            self._recovered = self._recover()
        self._scheduler.serve(ctx.token, max_sleep=self._worker.poll)

    def _work(self, ctx: TaskContext) -> None:
        from supervisor.durable.stopping import Stop

        self._worker.work(Stop(ctx.token))
