"""`Workflow`: a state machine whose states have tasks. The builder, its checks, and a direct run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, cast

from supervisor.flows import join as joins
from supervisor.flows.errors import ConfigurationError, FlowError, label
from supervisor.flows.mermaid import Node, draw
from supervisor.flows.resources import Resources
from supervisor.flows.run import next_run_id, walk
from supervisor.flows.split import run_split
from supervisor.flows.task import FLOW_TASK_BACKOFF, Environment, FlowRun, FlowTask, check_call
from supervisor.flows.telling import Direct
from supervisor.kernel.arguments import limit
from supervisor.kernel.backoff import BackoffPolicy, default_rng
from supervisor.kernel.cancellation import CancelToken
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock
from supervisor.kernel.deadlines import own_timer
from supervisor.kernel.text import shown

if TYPE_CHECKING:
    from supervisor.flows.breaker import CircuitBreaker

__all__ = ["State", "Workflow"]


class State:
    """What happens in one state: a task, a router, or a split."""

    __slots__ = ("compensate", "hints", "join", "kind", "tasks")

    def __init__(
        self,
        kind: str,
        tasks: Sequence[FlowTask],
        *,
        join: joins.JoinConfig | None = None,
        compensate: Callable[..., object] | None = None,
        hints: Sequence[Hashable] = (),
    ) -> None:
        self.kind: str = kind  # "task", "router" or "split"
        self.tasks: tuple[FlowTask, ...] = tuple(tasks)
        self.join: joins.JoinConfig | None = join
        self.compensate: Callable[..., object] | None = compensate
        self.hints: tuple[Hashable, ...] = tuple(hints)  # next states, for the graph

    def perform(self, res: Resources, run: FlowRun, token: CancelToken) -> tuple[Hashable, Any]:
        """Do what the state does; return the next state, and the value to compensate with."""
        if self.join is not None:
            run.attempt = 1
            run.keep(run_split(self.tasks, self.join, res, run, token))
            return self.join.next_state, None
        value = self.tasks[0].perform(res, run, token)
        if self.compensate is None:
            return value, None
        pair = cast("tuple[Any, ...]", value) if issubclass(type(value), tuple) else ()
        if len(pair) != 2:
            raise FlowError(
                f"a task with compensate returns (next_state, value), {label(run.state)} returned {shown(value)}"
            )
        return pair[0], pair[1]


class Workflow:
    """A state machine. Every builder call returns the workflow; `run` walks it.

    States are any hashable values, normally members of an `Enum`. A task takes nothing, `(res)` or
    `(res, run)`, and returns the next state. One workflow may be run by several threads at once.
    """

    def __init__(self, resources: Resources | None = None) -> None:
        if not isinstance(resources, Resources | None):
            raise TypeError(f"resources must be Resources, got {shown(resources)}")
        self._resources = Resources() if resources is None else resources
        self._states: dict[Hashable, State] = {}
        self._exits: dict[Hashable, None] = {}  # in order
        self._total_timeout: float | None = None

    def __repr__(self) -> str:
        return f"<Workflow of {len(self._states)} states, {len(self._exits)} exit states>"

    @property
    def resources(self) -> Resources:
        """What its tasks get as `res`."""
        return self._resources

    # Building

    def register(
        self,
        state: Hashable,
        task: object,
        *,
        max_retries: int = 0,
        backoff: BackoffPolicy | None = FLOW_TASK_BACKOFF,
        timeout: float | timedelta | None = None,
        breaker: CircuitBreaker | None = None,
        compensate: Callable[..., object] | None = None,
        name: str | None = None,
        next_states: Iterable[Hashable] = (),
    ) -> Self:
        """Give a state its task; registering it again replaces it.

        max_retries: after the first failure.  timeout: seconds for each attempt.  breaker: asked
        before each.  compensate: called with (res, value) when a later state fails; the task then
        returns (next_state, value).  next_states: arrows of the graph.
        Raises ConfigurationError.
        """
        what = f"task of {label(state)}"
        if compensate is not None:
            check_call(compensate, f"compensate of {label(state)}", 2)
        own = FlowTask(
            task,
            what=what,
            max_retries=max_retries,
            backoff=backoff,
            timeout=timeout,
            breaker=breaker,
            name=name,
        )
        hints = _many(next_states, f"{what}: next_states", "states")
        self._set(state, State("task", [own], compensate=compensate, hints=hints))
        return self

    def register_router(self, state: Hashable, task: object, *, next_states: Iterable[Hashable] = ()) -> Self:
        """Give a state a pure branching: it looks and returns the next state; it is not retried."""
        what = f"router of {label(state)}"
        own = FlowTask(task, what=what)
        self._set(state, State("router", [own], hints=_many(next_states, f"{what}: next_states", "states")))
        return self

    def register_split(
        self,
        state: Hashable,
        tasks: Iterable[object],
        join: joins.JoinConfig,
        *,
        max_retries: int = 0,
        backoff: BackoffPolicy | None = FLOW_TASK_BACKOFF,
        timeout: float | timedelta | None = None,
    ) -> Self:
        """Give a state tasks that run in parallel; the run goes on at `join.next_state`.

        The settings are for each branch; a branch may return any value.
        """
        if not isinstance(join, joins.JoinConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"split of {label(state)}: join must be a JoinConfig, got {shown(join)}")
        own = [
            FlowTask(
                task,
                what=f"branch {index} of {label(state)}",
                max_retries=max_retries,
                backoff=backoff,
                timeout=timeout,
            )
            for index, task in enumerate(_many(tasks, f"split of {label(state)}: tasks", "tasks"))
        ]
        self._set(state, State("split", own, join=join))
        return self

    def add_exit_state(self, state: Hashable) -> Self:
        """Let a run end in this state; that wins over a task of the state."""
        self._hashable(state)
        self._exits[state] = None
        return self

    def add_exit_states(self, states: Iterable[Hashable]) -> Self:
        """Let a run end in each of these states."""
        many = _many(states, "exit states", "states")
        for state in many:
            self._hashable(state)
        for state in many:
            self._exits[state] = None
        return self

    def with_total_timeout(self, seconds: float | timedelta | None) -> Self:
        """Give one run so many seconds, retries and waits included; 0 and None mean no limit."""
        try:
            self._total_timeout = limit(seconds, "total timeout")
        except (TypeError, ValueError) as error:
            raise ConfigurationError(str(error)) from None
        return self

    def _set(self, state: Hashable, handler: State) -> None:
        self._hashable(state)
        self._states[state] = handler

    def _hashable(self, state: Hashable) -> None:
        try:
            hash(state)
        except TypeError:
            raise ConfigurationError(f"a state must be hashable, got {shown(state)}") from None
        if state is None:
            raise ConfigurationError("a state must not be None: it is what a task without `return` gives")

    # Checking

    def validate(self, initial: Hashable = None) -> None:
        """Raise ConfigurationError with every fault found; `run` and `Scheduler.start` call it."""
        faults: list[str] = []
        if not self._states:
            faults.append("no state has a task; use register()")
        if not self._exits:
            faults.append("no exit state, the run could never end; use add_exit_state()")
        for state, handler in self._states.items():
            if (join := handler.join) is None:
                continue
            faults += [f"split of {label(state)}: {each}" for each in joins.faults(join, len(handler.tasks))]
            if not self._knows(join.next_state):
                faults.append(
                    f"split of {label(state)}: its next state {label(join.next_state)} is neither registered nor exit"
                )
        if initial is not None and not self._knows(initial):
            faults.append(f"initial state {label(initial)} is neither registered nor exit")
        if faults:
            raise ConfigurationError("; ".join(faults))

    def _knows(self, state: Hashable) -> bool:
        try:
            return state in self._states or state in self._exits
        except TypeError:
            return False

    # Running

    def run(
        self,
        initial: Hashable,
        *,
        token: CancelToken | None = None,
        subscribers: Iterable[Callable[[Any], object]] = (),
        clock: Clock | None = None,
    ) -> Hashable:
        """Set up the resources, walk from `initial`, tear down; return the exit state.

        On the calling thread. token: cancels the run, which then raises `Canceled`.  subscribers:
        get the events of this run.  clock: for tests.
        Raises ConfigurationError, what set-up raises, and what a walk ends with: `FlowError` and
        its kinds, or what a task raised, with a note of where.
        """
        self.validate(initial)
        if initial is None:
            raise ConfigurationError("run needs an initial state, got None")
        own = clock or SYSTEM_CLOCK
        run_id = next_run_id()
        flow_id = f"run-{run_id}"
        with Direct(own, flow_id, subscribers) as direct:
            env = Environment(own, own_timer(own), default_rng(), direct.tell)
            res = self._resources.open(report=direct.resource_failed)
            try:
                return self.walk(initial, res, env, flow_id, run_id, token or CancelToken(clock=own))
            finally:
                res.close(direct.resource_failed)

    def walk(
        self,
        initial: Hashable,
        res: Resources,
        env: Environment,
        flow_id: str,
        run_id: int,
        token: CancelToken,
    ) -> Hashable:
        """Walk once with resources that are set up: for `run` and for the scheduler."""
        return walk(
            dict(self._states),
            frozenset(self._exits),
            self._total_timeout,
            initial,
            res,
            env,
            flow_id,
            run_id,
            token,
        )

    # Looking

    def to_mermaid(self) -> str:
        """Return the graph as a Mermaid state diagram; `next_states` hints and joins draw the arrows."""
        nodes = [
            Node(
                state,
                handler.kind,
                tuple(task.name for task in handler.tasks),
                handler.hints if handler.join is None else (handler.join.next_state,),
                state in self._exits,
            )
            for state, handler in self._states.items()
        ]
        nodes += [Node(state, "exit", (), (), True) for state in self._exits if state not in self._states]
        return draw(nodes)


def _many(values: Iterable[Any], what: str, of: str) -> tuple[Any, ...]:
    """Return the members; a str is no collection of states, nor is what can't be iterated."""
    if isinstance(values, str | bytes):
        raise ConfigurationError(f"{what} must be a list of {of}, got {shown(values)}")
    try:
        return tuple(values)
    except TypeError:
        raise ConfigurationError(f"{what} must be a list of {of}, got {shown(values)}") from None
