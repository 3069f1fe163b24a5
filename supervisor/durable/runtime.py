"""FlowRuntime: the workflows and steps that this process knows, by name."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar, overload

from supervisor.durable.command import Command
from supervisor.durable.context import Sight, WorkflowContext, checked_id
from supervisor.durable.errors import InvalidTransition, UnknownStep, UnknownWorkflow
from supervisor.durable.payload import Json, copied
from supervisor.durable.projection import Projection
from supervisor.durable.straight import decide_straight
from supervisor.kernel.arguments import arity, callable_name, fast_shape, limit, read_shape
from supervisor.kernel.cancellation import CancelToken
from supervisor.kernel.clock import SYSTEM_CLOCK
from supervisor.kernel.errors import ReentrantCall
from supervisor.kernel.text import shown

__all__ = [
    "FlowRuntime",
    "RegisteredStep",
    "RegisteredWorkflow",
    "StepInvocation",
    "check_outside",
    "current_step",
    "deciding",
]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInvocation:
    """What a step knows about the attempt it is."""

    run_id: str
    step_id: str
    step_name: str
    attempt: int  # from 1; the same when the attempt is delivered again after a crash
    input: Json
    idempotency_key: str  # of the attempt: the same when it is delivered again, another for a retry
    step_key: str  # `run_id:step_id`, the same for all attempts
    token: CancelToken  # canceled when the run is, at a timeout, and when somebody else took the run over


_current: ContextVar[StepInvocation | None] = ContextVar("supervisor.durable.current_step", default=None)

deciding: ContextVar[str | None] = ContextVar("supervisor.durable.deciding", default=None)
"""The run whose workflow is being asked on this thread."""


def check_outside(run_id: str) -> None:
    """Raise ReentrantCall if the workflow of this run is being asked on this thread."""
    asked = deciding.get()
    if asked is not None and asked == run_id:
        raise ReentrantCall(
            f"the workflow of run {run_id!r} called the engine about its own run; a workflow only returns or "
            "raises, and leaves what touches the world to steps"
        )


def current_step() -> StepInvocation | None:
    """Return the invocation of the step that runs on this thread; None outside of steps."""
    return _current.get()


def idempotency_key(run_id: str, step_id: str, attempt: int) -> str:
    """Return the key of an attempt, for systems that do a thing once for a key."""
    lengths = len(run_id.encode()), len(step_id.encode())
    return f"flow.step.v1/{lengths[0]}/{run_id}{lengths[1]}:{step_id}/{attempt}"


class RegisteredStep:
    """A step function with its settings."""

    __slots__ = ("_arguments", "function", "name", "timeout")

    def __init__(self, function: Callable[..., Any], name: str, timeout: float | None) -> None:
        self.function: Callable[..., Any] = function
        self.name: str = name
        self.timeout: float | None = timeout  # seconds for one attempt; None for no limit
        self._arguments = _arguments(function, f"step {name!r}", 0, 2, "(input), () or (input, invocation)")

    def __call__(self, invocation: StepInvocation) -> Any:
        """Call the function with as many arguments as it takes. On the thread of the attempt."""
        _current.set(invocation)  # the attempt runs in a context of its own
        if self._arguments == 0:
            return self.function()
        data = copied(invocation.input)
        return self.function(data) if self._arguments == 1 else self.function(data, invocation)


class RegisteredWorkflow:
    """A workflow function of one of the two forms."""

    __slots__ = ("_arguments", "function", "name", "straight", "version")

    def __init__(self, function: Callable[..., Any], name: str, version: str, straight: bool) -> None:
        self.function: Callable[..., Any] = function
        self.name: str = name
        self.version: str = version
        self.straight: bool = straight
        most, forms = (2, "(ctx) or (ctx, input)") if straight else (1, "(ctx)")
        self._arguments = _arguments(function, f"workflow {name!r}", 1, most, forms)

    def decide(self, projection: Projection, names: Callable[[object], str], anchor: datetime) -> Command:
        """Ask for the next command. On the thread that drives.  anchor: see `decide_straight`.

        A decider's exceptions pass. Raises InvalidTransition if it returns something else than a command.
        """
        if self.straight:
            return decide_straight(self.function, self._arguments, projection, names, anchor)
        sight = Sight(projection)
        try:
            command = self.function(WorkflowContext(sight, names))
        finally:
            sight.end()
        if not isinstance(command, Command):
            raise InvalidTransition(
                f"decider {self.name!r} must return a command such as ctx.complete(...), got {shown(command)}"
            )
        return command


class FlowRuntime:
    """Workflows and steps by name. Register at import; an engine and its workers look them up by name.

    Any thread may register and look up. A process needs to know only what it is to run: runs of other
    workflows are left to others.
    """

    def __init__(self) -> None:
        self._lock = SYSTEM_CLOCK.lock()  # guards the fields below
        self._steps: dict[str, RegisteredStep] = {}
        self._by_function: dict[object, str] = {}
        self._workflows: dict[tuple[str, str], RegisteredWorkflow] = {}
        self._newest: dict[str, str] = {}  # version by name

    def __repr__(self) -> str:
        return f"<FlowRuntime {len(self._workflows)} workflows, {len(self._steps)} steps>"

    @overload
    def step(self, fn: F, *, name: str | None = None, timeout: float | timedelta | None = None) -> F: ...
    @overload
    def step(
        self, fn: None = None, *, name: str | None = None, timeout: float | timedelta | None = None
    ) -> Callable[[F], F]: ...
    def step(
        self, fn: F | None = None, *, name: str | None = None, timeout: float | timedelta | None = None
    ) -> F | Callable[[F], F]:
        """Register a step; a decorator, with or without arguments. The function itself is returned.

        name: None is its `__name__`.  timeout: seconds for one attempt; None or 0 for no limit. An attempt that
        runs out of it has its token canceled, and counts as failed, retryable, once it returns.
        Raises TypeError or ValueError for what can't be registered; then nothing is.
        """
        seconds = limit(timeout, "timeout")

        def register(function: F) -> F:
            label = _name_of(function, name, "step")
            made = RegisteredStep(function, label, seconds)
            with self._lock:
                if label in self._steps:
                    raise ValueError(f"a step named {label!r} is registered; give this one another name")
                self._steps[label] = made
                self._by_function[_key(function)] = label
            return function

        return register if fn is None else register(fn)

    @overload
    def workflow(self, fn: F, *, name: str | None = None, version: str = "1") -> F: ...
    @overload
    def workflow(
        self, fn: None = None, *, name: str | None = None, version: str = "1"
    ) -> Callable[[F], F]: ...
    def workflow(
        self, fn: F | None = None, *, name: str | None = None, version: str = "1"
    ) -> F | Callable[[F], F]:
        """Register a straight-line workflow, `(ctx)` or `(ctx, input)`; a decorator like `step`.

        version: written into every run. A changed workflow gets a new version, and may be registered beside the
        old one until the runs of that have ended; `start` takes the one that was registered last.
        """
        return self._register(fn, name, version, straight=True)

    @overload
    def decider(self, fn: F, *, name: str | None = None, version: str = "1") -> F: ...
    @overload
    def decider(
        self, fn: None = None, *, name: str | None = None, version: str = "1"
    ) -> Callable[[F], F]: ...
    def decider(
        self, fn: F | None = None, *, name: str | None = None, version: str = "1"
    ) -> F | Callable[[F], F]:
        """Register a one-command workflow, `(ctx)`, which returns a command each time it is asked."""
        return self._register(fn, name, version, straight=False)

    def _register(
        self, fn: F | None, name: str | None, version: str, *, straight: bool
    ) -> F | Callable[[F], F]:
        release = checked_id(version, "version")

        def register(function: F) -> F:
            label = _name_of(function, name, "workflow")
            made = RegisteredWorkflow(function, label, release, straight)
            with self._lock:
                if (label, release) in self._workflows:
                    raise ValueError(
                        f"workflow {label!r} is registered with version {release!r}; give this one another name "
                        "or version"
                    )
                self._workflows[label, release] = made
                self._newest[label] = release
            return function

        return register if fn is None else register(fn)

    # Looking up

    def names(self) -> tuple[list[tuple[str, str]], list[str]]:
        """Return what is registered, sorted: name and version of each workflow, and the names of the steps."""
        with self._lock:
            return sorted(self._workflows), sorted(self._steps)

    def newest(self, workflow: object) -> RegisteredWorkflow:
        """Return the workflow to start, given by name or function. Raises UnknownWorkflow."""
        label = workflow if isinstance(workflow, str) else self._label(workflow)
        release = self._newest.get(label) if label is not None else None
        if label is None or release is None:
            raise UnknownWorkflow(
                f"no workflow {shown(workflow)} is registered here; known: {_list(self._newest)}"
            )
        return self._workflows[label, release]

    def find_workflow(self, name: str, version: str) -> RegisteredWorkflow:
        """Return the workflow of a run. Raises UnknownWorkflow."""
        found = self._workflows.get((name, version))
        if found is None:
            known = sorted(release for label, release in self._workflows if label == name)
            raise UnknownWorkflow(
                f"no workflow {name!r} of version {version!r} is registered here; "
                + (f"known versions: {', '.join(known)}" if known else f"known: {_list(self._newest)}")
            )
        return found

    def find_step(self, name: str) -> RegisteredStep:
        """Return a step. Raises UnknownStep."""
        found = self._steps.get(name)
        if found is None:
            raise UnknownStep(f"no step {name!r} is registered here; known: {_list(self._steps)}")
        return found

    def step_name(self, step: object) -> str:
        """Return the name of a step that is given as a function or as its name.

        Raises UnknownStep for a function that is not registered.
        """
        if isinstance(step, str):
            return checked_id(step, "step")
        label = self._by_function.get(_key(step))
        if label is None:
            raise UnknownStep(
                f"{callable_name(step) if callable(step) else shown(step)} is not registered as a step of this runtime; "
                "decorate it with @runtime.step of the FlowRuntime that the engine has, or give the name of a step"
            )
        return label

    def _label(self, function: object) -> str | None:
        return next((each.name for each in self._workflows.values() if each.function == function), None)


def _key(function: object) -> object:
    try:
        hash(function)
    except TypeError:
        return id(function)
    return function


def _name_of(function: object, name: str | None, what: str) -> str:
    if not callable(function):
        raise TypeError(f"a {what} must be callable, got {shown(function)}")
    if name is not None:
        return checked_id(name, "name")
    label = getattr(function, "__name__", None)
    if not isinstance(label, str) or not label.isidentifier():
        raise ValueError(
            f"a {what} needs a name that stays the same; {callable_name(function)} has none, give it name=..."
        )
    return label


def _arguments(function: Callable[..., Any], what: str, fewest: int, most: int, forms: str) -> int:
    """Return with how many arguments to call a function. Raises TypeError if it takes none of the forms."""
    arity(function, what)  # refuses what a call would not run
    shape = fast_shape(function) or read_shape(function)
    if shape is None:
        return max(fewest, 1)
    for number in range(most, fewest - 1, -1):
        # a second parameter of a step that has a default is a setting of its author, not the place for us
        wanted = number <= shape.required or number <= fewest + 1
        if wanted and shape.fits(number, {}):
            return number
    raise TypeError(
        f"{what}: {callable_name(function)}({', '.join(shape.names)}) must take {forms}; "
        "bind other arguments with functools.partial and give it name=..."
    )


def _list(names: dict[str, Any]) -> str:
    return ", ".join(sorted(names)) or "none"
