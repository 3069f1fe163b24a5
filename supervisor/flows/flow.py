"""One scheduled flow: what it runs and when, and its state. Values and a pure decision or two."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime
from typing import TYPE_CHECKING

from supervisor.flows.errors import ConfigurationError, label
from supervisor.flows.resources import Resources
from supervisor.flows.run import next_run_id
from supervisor.flows.status import FLOW_BACKOFF, Record
from supervisor.flows.task import Environment, FlowRun, FlowTask, Stopped
from supervisor.flows.trigger import Trigger
from supervisor.flows.workflow import Workflow
from supervisor.kernel.backoff import BackoffPolicy
from supervisor.kernel.cancellation import CancelToken
from supervisor.kernel.errors import Canceled

if TYPE_CHECKING:
    from supervisor.flows.resources import Opened

__all__ = ["Flow", "Work"]


class Work:
    """What a flow runs: a workflow from an initial state, or a plain function."""

    __slots__ = ("_function", "_initial", "_workflow")

    def __init__(self, flow_id: str, target: object, initial: Hashable) -> None:
        self._initial = initial
        self._workflow: Workflow | None = None
        self._function: FlowTask | None = None
        if isinstance(target, Workflow):
            if initial is None:
                raise ConfigurationError(f"flow {flow_id!r}: a Workflow needs an initial state")
            self._workflow = target
            return
        if initial is not None:
            raise ConfigurationError(
                f"flow {flow_id!r}: a plain function has no states, got the initial state {label(initial)}"
            )
        self._function = FlowTask(target, what=f"flow {flow_id!r}")

    def validate(self) -> None:
        """Raise ConfigurationError if it can't run."""
        if self._workflow is not None:
            self._workflow.validate(self._initial)

    def open(self, shared: Opened) -> Resources:
        """Set up its resources; those shared with other flows once."""
        resources = Resources() if self._workflow is None else self._workflow.resources
        return resources.open(shared)

    def run(self, res: Resources, env: Environment, flow_id: str, token: CancelToken) -> Hashable:
        """Run once, on the calling thread; return the exit state, None for a function."""
        number = next_run_id()
        if self._workflow is not None:
            return self._workflow.walk(self._initial, res, env, flow_id, number, token)
        assert self._function is not None
        run = FlowRun(number, flow_id, token, env)
        try:
            token.check()  # it may have been canceled while it waited for a worker
            self._function.perform(res, run, token)
            token.check()
        except Stopped as stop:
            raise Canceled(token.reason) from stop.__cause__
        except BaseException as error:
            run.mark(error, run.attempt)
            raise
        return None


class Flow:
    """One flow of a scheduler. Its fields are guarded by the lock of the running scheduler."""

    __slots__ = (
        "id",
        "number",
        "plan",
        "policy",
        "record",
        "res",
        "streak_limit",
        "tick",
        "token",
        "trigger",
        "work",
    )

    def __init__(self, id: str, number: int, trigger: Trigger, work: Work) -> None:
        self.id: str = id
        self.number: int = number  # in order of registration
        self.trigger: Trigger = trigger
        self.work: Work = work
        self.policy: BackoffPolicy = FLOW_BACKOFF
        self.streak_limit: int | None = None
        self.record: Record = Record()
        self.res: Resources | None = None  # set up
        self.token: CancelToken | None = None  # of the run in progress
        self.plan: int = 0  # number of the newest plan; older entries of the heap are stale
        self.tick: float | datetime | None = None  # planned: monotonic seconds, or a UTC instant
