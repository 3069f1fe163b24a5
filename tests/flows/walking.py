"""What tests of workflows share: states, a run on a thread of its own, branches that take a while."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum, auto
from typing import Any

from supervisor import BackoffPolicy, Jitter
from supervisor.flows import JoinConfig, JoinStrategy, SplitResult, Workflow
from supervisor.testing import VirtualClock

DOUBLING = BackoffPolicy(initial=1.0, multiplier=2.0, max_delay=60.0, jitter=Jitter.NONE)


class S(Enum):
    A = auto()
    B = auto()
    C = auto()
    DONE = auto()
    OTHER = auto()


class Walk:
    """A run on a thread of `clock`: what came out of it, and when. `limit`: seconds it may take."""

    def __init__(
        self, clock: VirtualClock, workflow: Workflow, initial: Hashable = S.A, **settings: Any
    ) -> None:
        self._clock = clock
        self.result: Hashable = None
        self.error: Any = None
        self.ended: float | None = None  # seconds since the start
        began = clock.monotonic()

        def body() -> None:
            try:
                self.result = workflow.run(initial, clock=clock, **settings)
            except BaseException as error:
                self.error = error
            self.ended = clock.monotonic() - began

        clock.spawn(body, "walk")

    def finish(self, limit: float = 1e6) -> Walk:
        self._clock.run_until(lambda: self.ended is not None, limit)
        return self


def one(task: object, **settings: Any) -> Workflow:
    """A workflow of one state."""
    return Workflow().register(S.A, task, **settings).add_exit_state(S.DONE)


def failure(clock: VirtualClock, workflow: Workflow, **settings: Any) -> Any:
    """What a run of it raises."""
    walk = Walk(clock, workflow, **settings).finish()
    assert walk.error is not None, f"it ended in {walk.result}"
    return walk.error


class Timed:
    """Makes branches and tasks that take exactly so long, and keeps when each began and ended."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.began: dict[Any, float] = {}
        self.ended: dict[Any, float] = {}
        self.inside = 0
        self.most = 0

    def __call__(self, seconds: float, gives: Any, *, deaf: bool = False) -> Callable[..., Any]:
        """`gives` is returned, or raised if it is an exception. deaf: it heeds no request to stop."""

        def body(res: Any, run: Any) -> Any:
            self.began[gives] = self._clock.monotonic()
            self.inside += 1
            self.most = max(self.most, self.inside)
            try:
                if deaf:
                    self._clock.sleep(seconds)
                else:
                    run.token.sleep(seconds)
            finally:
                self.inside -= 1
                self.ended[gives] = self._clock.monotonic()
            if isinstance(gives, BaseException):
                raise gives
            return gives

        return body


class Split:
    """A workflow of one split that keeps its result, then goes to DONE. `deadline` and the rest: of each branch."""

    def __init__(
        self,
        strategy: JoinStrategy,
        branches: list[Any],
        *,
        timeout: Any = None,
        bulkhead: int | None = None,
        deadline: Any = None,
        **each: Any,
    ) -> None:
        self.result: SplitResult
        join = JoinConfig(strategy, S.B, timeout=timeout, bulkhead=bulkhead)
        self.workflow = (
            Workflow()
            .register_split(S.A, branches, join, timeout=deadline, **each)
            .register(S.B, self._look)
            .add_exit_state(S.DONE)
        )

    def _look(self, res: Any, run: Any) -> S:
        self.result = run.splits[S.A]
        return S.DONE

    def walk(self, clock: VirtualClock, limit: float = 1e6, **settings: Any) -> Walk:
        """Run it; a failed join leaves its result, too."""
        walk = Walk(clock, self.workflow, **settings).finish(limit)
        if walk.error is not None and hasattr(walk.error, "result"):
            self.result = walk.error.result
        return walk
