"""Run the branches of a split, each on a thread of its own, until their join is decided.

The walking thread starts branches, at most `bulkhead` threads at once. Whoever reports, a branch or
the timeout, asks `join.verdict` in the same step. At the verdict the walk goes on at once: it never
waits for a straggler, whose late result is dropped. A branch that queues for its place at the verdict
never starts; one that does not queue is always called, perhaps with a token that is canceled already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from supervisor.flows.errors import JoinFailed, label
from supervisor.flows.join import BranchResult, JoinConfig, SplitResult, Verdict, verdict
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
    return _Branches(tasks, join, res, run, token).join()


class _Branches:
    """The branches of one split."""

    def __init__(
        self,
        tasks: Sequence[FlowTask],
        join: JoinConfig,
        res: Resources,
        run: FlowRun,
        token: CancelToken,
    ) -> None:
        env, bulkhead = run.env, join.bulkhead
        self._tasks = tasks
        self._join = join
        self._res = res
        self._run = run
        self._label = label(run.state)
        self._env = env
        self._parent = token
        self._token = token.child()  # of all branches
        self._room = len(tasks) if bulkhead is None else bulkhead
        self._lock = env.clock.lock()  # guards the fields below
        self._waiting = deque(range(len(tasks)))
        self._results: list[BranchResult | None] = [None] * len(tasks)
        self._alive: set[int] = set()  # whose thread runs
        self._deaf: set[int] = set()  # failed at their deadline while their body ran
        self._succeeded = self._failed = 0
        self._verdict: Verdict = "wait"
        self._over = False  # what comes now is dropped, who has not started never does
        self._late = False  # the timeout made the verdict
        self._news: Latch = env.clock.latch()  # opened by whoever has something to report

    def join(self) -> SplitResult:
        """Start the branches and wait for the verdict. On the walking thread."""
        env, timeout = self._env, limit(self._join.timeout, "timeout")
        alarm = None
        if timeout is not None:
            alarm = env.deadlines.call_at(env.clock.monotonic() + timeout, self._expire, VERDICT)
        try:
            while not self._parent.canceled:
                with self._lock:
                    if self._over:
                        break
                    news = self._news = env.clock.latch()  # what the old one told is read
                self._start_some()
                if not self._parent.watch(news):
                    break
                try:
                    news.wait()
                finally:
                    self._parent.unwatch(news)
        finally:
            if alarm is not None:
                alarm.cancel()
            result = self._end()
        if self._parent.canceled:
            raise Stopped
        if self._verdict == "fail":
            why = f"after its timeout of {timeout:g} s" if self._late else f"with {self._join.strategy!r}"
            raise JoinFailed(f"the split of {self._label} failed {why}: {result.summary()}", result)
        return result

    def _expire(self) -> None:
        with self._lock:
            self._judge(late=True)

    def _judge(self, *, late: bool = False) -> None:
        """Make the verdict if there is one: in the same step as what decides it. Holds the lock."""
        if self._over:
            return
        total, succeeded, failed = len(self._tasks), self._succeeded, self._failed
        self._verdict = verdict(self._join.strategy, total, succeeded, failed, late=late)
        if self._verdict != "wait":
            self._over, self._late = True, late
            self._news.open()

    def _end(self) -> SplitResult:
        """Ask the stragglers to stop and freeze what there is."""
        with self._lock:
            self._over = True
            self._waiting.clear()
            results, deaf = list(self._results), set(self._deaf)
        if deaf or None in results:
            self._token.run_apart(self._token.seal(CancelReason.REQUESTED) or [])
        return SplitResult(results, deaf, self._alive.__contains__)

    # Branches

    def _start_some(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or len(self._alive) >= self._room:
                    return
                index = self._waiting[0]
                if self._over and index >= self._room:
                    return
                self._alive.add(self._waiting.popleft())
            context = copy_context()
            try:
                self._env.clock.spawn(
                    lambda index=index, context=context: context.run(self._branch, index),  # type: ignore[misc]
                    f"{self._run.flow_id}:{self._label}:{index}",
                )
            except RuntimeError as error:
                self._report(index, 0.0, None, error)
                self._ended(index)

    def _branch(self, index: int) -> None:
        """One branch, on its thread."""
        if self._over and index >= self._room:  # it queued, and the verdict came before its thread ran
            self._ended(index)
            return
        clock = self._env.clock
        started, value, failure = clock.monotonic(), None, None
        token = self._token.child()
        run = self._run.branch(token)

        def deaf(error: BaseException) -> None:
            run.mark(error, run.attempt)
            self._report(index, clock.monotonic() - started, None, error, deaf=True)

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

    def _report(
        self, index: int, duration: float, value: Any, error: BaseException | None, *, deaf: bool = False
    ) -> None:
        name, tell = self._tasks[index].name, self._env.tell
        text = None if error is None or tell is None else error_text(error)
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
            if deaf:
                self._deaf.add(index)
            if tell is not None:  # here, so that nothing of a later state is told first; it never blocks
                tell(BranchFinished, self._label, index, name, duration, text)
            self._judge()

    def _ended(self, index: int) -> None:
        with self._lock:
            self._alive.discard(index)
            if self._waiting:
                self._news.open()
