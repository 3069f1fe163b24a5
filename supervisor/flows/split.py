"""Run the branches of a split, each on a thread of its own, until their join is decided.

The walking thread starts branches (at most `bulkhead` threads at once), collects what they report,
and asks `join.verdict` after each. At the verdict it goes on at once: it never waits for a
straggler, whose late result is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from supervisor.flows.errors import JoinFailed, label
from supervisor.flows.join import BranchResult, JoinConfig, SplitResult, verdict
from supervisor.flows.lifecycle import BranchFinished
from supervisor.flows.task import FlowRun, FlowTask, Stopped
from supervisor.kernel.arguments import limit
from supervisor.kernel.cancellation import CancelReason, CancelToken
from supervisor.kernel.clock import Latch
from supervisor.kernel.deadlines import VERDICT
from supervisor.kernel.errors import Canceled
from supervisor.kernel.text import error_text

if TYPE_CHECKING:
    from supervisor.flows.resources import Resources

__all__ = ["run_split"]


def run_split(
    tasks: Sequence[FlowTask], join: JoinConfig, res: Resources, run: FlowRun, token: CancelToken
) -> SplitResult:
    """Run `tasks` in parallel and return what they did once `join` lets the run go on.

    token: of the run. Raises `JoinFailed`, or `Stopped` when the token is canceled first.
    """
    return _Branches(tasks, res, run, token, join.bulkhead).join(join)


class _Branches:
    """The branches of one split."""

    def __init__(
        self,
        tasks: Sequence[FlowTask],
        res: Resources,
        run: FlowRun,
        token: CancelToken,
        bulkhead: int | None,
    ) -> None:
        env = run.env
        self._tasks = tasks
        self._res = res
        self._run = run
        self._env = env
        self._parent = token
        self._token = token.child()  # of all branches
        self._room = len(tasks) if bulkhead is None else bulkhead
        self._lock = env.clock.lock()  # guards the fields below
        self._waiting = deque(range(len(tasks)))
        self._results: list[BranchResult | None] = [None] * len(tasks)
        self._alive: set[int] = set()  # whose thread runs
        self._succeeded = self._failed = 0
        self._late = False
        self._over = False  # the verdict is made: what comes now is dropped
        self._news: Latch = env.clock.latch()  # opened by whoever has something to report

    def join(self, join: JoinConfig) -> SplitResult:
        """Start the branches and wait for the verdict. On the walking thread."""
        env, timeout = self._env, limit(join.timeout, "timeout")
        alarm = None
        if timeout is not None:
            alarm = env.deadlines.call_at(env.clock.monotonic() + timeout, self._expire, VERDICT)
        total = len(self._tasks)
        try:
            while True:
                with self._lock:
                    succeeded, failed, late = self._succeeded, self._failed, self._late
                    news = self._news = env.clock.latch()  # what the old one told is read
                self._start_some()
                decision = verdict(join.strategy, total, succeeded, failed, late=late)
                if decision != "wait" or not self._parent.watch(news):
                    break
                try:
                    news.wait()
                finally:
                    self._parent.unwatch(news)
                if self._parent.canceled:
                    break
        finally:
            if alarm is not None:
                alarm.cancel()
            result = self._end()
        if self._parent.canceled:
            raise Stopped
        if decision == "fail":
            why = f"after its timeout of {timeout:g} s" if late else f"with {join.strategy!r}"
            raise JoinFailed(f"the split of {label(self._run.state)} failed {why}: {result.summary()}", result)
        return result

    def _expire(self) -> None:
        with self._lock:
            self._late = True
            self._news.open()

    def _end(self) -> SplitResult:
        """Ask the stragglers to stop and freeze what there is."""
        with self._lock:
            self._over = True
            self._waiting.clear()
            results = list(self._results)
        canceled = [index for index, result in enumerate(results) if result is None]
        if canceled:
            self._token.run_apart(self._token.seal(CancelReason.REQUESTED) or [])
        return SplitResult(results, canceled, self._alive.__contains__)

    # Branches

    def _start_some(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or len(self._alive) >= self._room:
                    return
                index = self._waiting.popleft()
                self._alive.add(index)
            context = copy_context()
            try:
                self._env.clock.spawn(
                    lambda index=index, context=context: context.run(self._branch, index),  # type: ignore[misc]
                    f"{self._run.flow_id}:{label(self._run.state)}:{index}",
                )
            except RuntimeError as error:
                self._report(index, 0.0, None, error)
                self._ended(index)

    def _branch(self, index: int) -> None:
        """One branch, on its thread."""
        clock = self._env.clock
        started, value, failure = clock.monotonic(), None, None
        token = self._token.child()
        run = self._run.branch(token)

        def deaf(error: BaseException) -> None:
            self._report(index, clock.monotonic() - started, None, error)

        try:
            value = self._tasks[index].perform(self._res, run, token, deaf)
        except Stopped as stop:
            failure = stop.__cause__ or Canceled(self._token.reason)
        except BaseException as error:
            failure = error
        if failure is not None:
            run.mark(failure, run.attempt)
        self._report(index, clock.monotonic() - started, value, failure)
        self._ended(index)

    def _report(self, index: int, duration: float, value: Any, error: BaseException | None) -> None:
        name = self._tasks[index].name
        with self._lock:
            if self._over or self._results[index] is not None:
                return
            self._results[index] = BranchResult(
                index=index, name=name, value=value, error=error, duration=duration
            )
            if error is None:
                self._succeeded += 1
            else:
                self._failed += 1
            self._news.open()
        if self._env.tell is not None:
            text = None if error is None else error_text(error)
            self._env.tell(BranchFinished, label(self._run.state), index, name, duration, text)

    def _ended(self, index: int) -> None:
        with self._lock:
            self._alive.discard(index)
            if self._waiting:
                self._news.open()

