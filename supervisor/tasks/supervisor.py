"""`Supervisor`: the public face of the layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, Self

from supervisor.kernel.arguments import arity, callable_name, count_or_none, patience, seconds, text
from supervisor.kernel.backoff import Draws
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock
from supervisor.kernel.errors import (
    CapacityExceeded,
    ForkedProcess,
    ShuttingDown,
    TaskAlreadyExists,
)
from supervisor.kernel.event import Event
from supervisor.kernel.lane import EventStream
from supervisor.kernel.mailbox import Subscription
from supervisor.kernel.text import error_text, shown
from supervisor.tasks.actor import Actor
from supervisor.tasks.config import SupervisorConfig
from supervisor.tasks.context import current_context
from supervisor.tasks.decorators import TaskDecorators
from supervisor.tasks.foreground import Foreground, StopEvent
from supervisor.tasks.handle import TaskHandle, TaskInfo, actor_of, snapshot
from supervisor.tasks.outcome import TaskOutcome
from supervisor.tasks.registry import TaskId
from supervisor.tasks.running import Running
from supervisor.tasks.slot import Admission
from supervisor.tasks.spec import TaskDefaults, TaskSpec, resolve

__all__ = ["Supervisor", "Target"]

Target = TaskHandle | TaskId | int | str


class Supervisor(TaskDecorators):
    """Keeps tasks running, each on a thread of its own. Building one starts nothing.

    As a context manager it starts on entry, and on exit it shuts down with grace. Every method may
    be called from any thread, also from a task body or a subscriber; where that would wait for
    itself it raises `ReentrantCall`. In a forked child every method raises `ForkedProcess`.
    """

    __slots__ = (
        "__weakref__",
        "_declared",
        "_defaults",
        "_foreground",
        "_running",
        "_started",
    )

    def __init__(
        self,
        config: SupervisorConfig | None = None,
        *,
        defaults: TaskDefaults | None = None,
        subscribers: Iterable[Callable[[Any], object]] = (),
        clock: Clock | None = None,
        rng: Draws | None = None,
    ) -> None:
        """Check the settings.

        defaults: for settings that a spec inherits.  subscribers: callables, as for `subscribe`.
        clock: for tests, see `supervisor.testing.VirtualClock`.  rng: anything with `random()`, for
        the jitter of backoffs.
        """
        if not isinstance(config, SupervisorConfig | None):
            raise TypeError(f"config must be a SupervisorConfig, got {shown(config)}")
        if not isinstance(defaults, TaskDefaults | None):
            raise TypeError(f"defaults must be TaskDefaults, got {shown(defaults)}")
        if clock is not None and not callable(getattr(clock, "spawn", None)):
            raise TypeError(
                f"clock must be a Clock, such as supervisor.testing.VirtualClock, got {shown(clock)}"
            )
        if not isinstance(subscribers, Iterable):
            raise TypeError(f"subscribers must be a collection of callables, got {shown(subscribers)}")
        if rng is not None and not callable(getattr(rng, "random", None)):
            raise TypeError(f"rng must have a method random(), got {shown(rng)}")
        self._running = Running(config or SupervisorConfig(), clock or SYSTEM_CLOCK, rng)
        self._defaults = defaults or TaskDefaults()
        self._declared: dict[str, TaskSpec] = {}  # by decorators, before the start
        self._foreground = Foreground(self._running)
        self._started = False
        for subscriber in subscribers:
            self.subscribe(subscriber)

    def __repr__(self) -> str:
        running = self._running
        state = "new" if running.thread is None else "shutting down" if running.closing else "running"
        return f"<Supervisor {running.config.name!r} {state}, {len(running.registry.live)} tasks>"

    @property
    def running(self) -> Running:
        """The live side, for the layers above: its clock, bus and deadlines."""
        return self._running

    @property
    def config(self) -> SupervisorConfig:
        """The settings."""
        return self._running.config

    @property
    def defaults(self) -> TaskDefaults:
        """The settings that specs inherit."""
        return self._defaults

    @property
    def received_signal(self) -> int | None:
        """Number of the first signal that ended `run`; None if none did."""
        return self._foreground.received_signal

    # Life

    def start(self) -> Self:
        """Start the supervising thread and the declared tasks; does nothing when started already.

        Raises ShuttingDown once a shutdown was asked for: a supervisor is not reopened.
        """
        self.check_process()
        running = self._running
        running.start()
        with running.lock:
            declared, self._declared = self._declared, {}
        try:
            self._admit(list(declared.values()))
        except BaseException:  # the next start tries again
            self._declared = declared | self._declared
            raise
        self._started = True
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        if exc_type is None:
            self.shutdown()
        else:
            self._running.shut_down_after(exc_type)

    def request_shutdown(self) -> None:
        """Ask for a shutdown and return at once. From anywhere, also a signal handler."""
        self.check_process()
        running = self._running
        running.closing = True
        running.inbox.post(partial(running.shutdown.begin, running.config.grace_seconds, requested=True))

    def shutdown(self, grace: float | timedelta | None = None) -> None:
        """Ask every task to stop, wait, and end the supervisor. Every caller gets the same result.

        grace: seconds before the tasks that still run are given up; None takes that of the config.
        Of several callers the shortest counts. Raises `GraceExceeded` when something was stuck,
        `ReentrantCall` from a task body or a subscriber.
        """
        limit = self.config.grace_seconds if grace is None else seconds(grace, "grace")
        self.check_process()
        self._running.check_not_inside(None, "shutdown", "use request_shutdown()")
        self._running.shut_down(limit, requested=True)

    def run(
        self, specs: Iterable[TaskSpec] = (), *, stop: StopEvent | None = None, signals: bool = True
    ) -> list[TaskOutcome]:
        """Run tasks in the foreground: add `specs`, block until every task has ended, shut down.

        Ends early when `stop` is set, on SIGINT or SIGTERM (in the main thread, while `signals`),
        or when somebody shuts the supervisor down; a second signal ends the grace at once. Returns
        the outcomes in the order of `specs`. Raises `GraceExceeded` when something was stuck,
        `AlreadyRunning` for a second call, and what `add_all` raises, which does not use it up.
        """
        self.check_process()
        return self._foreground.run(list(specs), self.add_all, stop, signals=signals)

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Block until no task is registered, at most `timeout` seconds; True if so.

        Stuck tasks don't count. Raises `ReentrantCall` from a task body or a subscriber.
        """
        limit = patience(timeout, "timeout")
        self.check_process()
        self._running.check_not_inside(None, "wait", "use request_shutdown(), or subscribe to TaskFinished")
        return self._running.wait_until_empty(limit)

    # Tasks

    def add(self, spec: TaskSpec) -> TaskHandle:
        """Register a task and return; it runs on its own thread. Starts the supervisor if need be.

        Raises TaskAlreadyExists for a name in use, CapacityExceeded at `max_tasks` or when the
        operating system refuses a thread, ShuttingDown.
        """
        return self.add_all((spec,))[0]

    def add_all(self, specs: Iterable[TaskSpec]) -> list[TaskHandle]:
        """Register tasks, all or none; raises like `add`, also for a name that occurs twice."""
        self.check_process()
        wanted = list(specs)
        for each in wanted:
            _check_spec(each)
        self.start_if_needed()
        return self._admit(wanted)

    def submit(
        self, spec: TaskSpec, *, slot: str | None = None, admission: Admission = Admission.QUEUE
    ) -> TaskHandle:
        """Put a task into a slot: one owner at a time, and a rule for who comes later.

        slot: key; None takes the task's name. A task that is refused ends REJECTED, its body never
        runs. Raises ShuttingDown.
        """
        self.check_process()
        _check_spec(spec)
        key = spec.name if slot is None else text(slot, "slot")
        if not isinstance(admission, Admission):
            raise TypeError(f"admission must be an Admission, got {shown(admission)}")
        self.start_if_needed()
        policy = resolve(spec, self._defaults)
        return TaskHandle(self, self._running.admissions.submit(spec, policy, key, admission))

    def get(self, target: Target) -> TaskHandle | None:
        """Return the handle of a registered, queued or stuck task; None for any other."""
        self.check_process()
        actor = self._find(target)
        return None if actor is None else TaskHandle(self, actor)

    def tasks(self) -> list[TaskInfo]:
        """Return a snapshot of every task, stuck and queued ones included, in the order of ids."""
        self.check_process()
        with self._running.lock:
            actors = sorted(self._running.registry, key=lambda actor: actor.id)
        return [snapshot(actor) for actor in actors if actor.admitted or actor.slot is not None]

    def remove(self, target: Target) -> bool:
        """Ask a task to stop and return. True for the one caller that claimed it.

        Its `on_cancel` callbacks run here, on the calling thread. False for an unknown target, one
        that was asked to stop before, and a stuck one.
        """
        self.check_process()
        actor = self._find(target)
        return actor is not None and self._remove(actor)

    def _remove(self, actor: Actor) -> bool:
        running = self._running
        if running.admissions.withdraw(actor) or running.admissions.stop_launch(actor):
            return True
        return running.stop(actor)

    def cancel(self, target: Target, *, timeout: float | timedelta | None = None) -> bool:
        """Ask a task to stop and wait until it has ended, so that its name is free.

        True for the one caller that claimed it. A body that does not stop is given up after the
        grace of the config. Its `on_cancel` callbacks run first, on the calling thread, and take the
        time they take. Raises TimeoutError when `timeout` seconds are over; the stop goes on.
        `ReentrantCall` from the task's own body, `Canceled` in another body that is asked to stop
        meanwhile.
        """
        limit = patience(timeout, "timeout")
        self.check_process()
        actor = self._find(target)
        if actor is None and isinstance(target, TaskHandle):
            actor = actor_of(target, self)  # it has just left: its outcome comes at once
        if actor is None:
            return False
        instead = "use remove(), or return from the body"
        self._running.check_not_inside(actor, "cancel", instead)
        claimed = self._remove(actor)
        if not self.wait_for_outcome(actor, limit, "cancel", instead):
            raise TimeoutError(
                f"task {actor.name!r} (#{actor.id}) has not ended within {limit:g} s; it was asked to stop"
            )
        return claimed

    # Events

    def subscribe(
        self,
        callback: Callable[[Any], object],
        *,
        kinds: Iterable[type[Event] | str] | None = None,
        name: str | None = None,
        capacity: int | None = None,
        dedicated: bool = False,
    ) -> Subscription:
        """Call `callback(event)` for every event from now on, in order, never twice at once.

        kinds: event classes (with all below them) or labels; None takes all.  name: for diagnostics.
        capacity: events that may wait for it, beyond that the newest are dropped and counted.
        dedicated: give it a thread of its own, so that a slow one delays no others.
        """
        self.check_process()
        if not callable(callback):
            raise TypeError(f"a subscriber must be callable, got {shown(callback)}")
        arity(callback, "subscriber")  # refuses a coroutine function, whose calls would do nothing
        size = count_or_none(capacity, "capacity")
        label = callable_name(callback) if name is None else text(name, "name")
        attached = getattr(callback, "attached", None)
        if callable(attached):
            attached(self._running.clock)
        try:
            return self._running.bus.subscribe(
                callback, kinds=kinds, name=label, capacity=size, dedicated=dedicated
            )
        except RuntimeError as error:
            raise CapacityExceeded(f"no thread to deliver events: {error_text(error)}") from error

    def events(self, *kinds: type[Event] | str) -> EventStream:
        """Return a blocking iterator over events from now to the end of the supervisor.

        In a task body it ends with the attempt's cancellation too. It subscribes at this call, with
        the capacity of a subscriber.
        """
        self.check_process()
        stream = self._running.bus.stream(kinds or None)
        if (context := current_context()) is not None:
            context.on_cancel(stream.close)  # a body that iterates must not outlast its cancellation
        return stream

    # Inside

    def check_process(self) -> None:
        """Raise ForkedProcess in a forked child."""
        if self._running.forked:
            raise ForkedProcess(
                f"supervisor {self.config.name!r} belongs to the parent process, its threads do not exist "
                "here; make a new Supervisor in the child"
            )

    def wait_for_outcome(self, actor: Actor, timeout: float | None, call: str, instead: str) -> bool:
        """Block until `actor` has its outcome; True if so. Raises ReentrantCall in its own body."""
        if actor.outcome.done:
            return True
        self._running.check_not_inside(actor, call, instead)
        return self._running.wait_for_outcome(actor, timeout)

    def start_if_needed(self) -> None:
        """Start, unless that was done."""
        if self._started:
            self._running.refuse_when_closing()
        else:
            self.start()

    def _admit(self, specs: list[TaskSpec]) -> list[TaskHandle]:
        pairs = [(spec, resolve(spec, self._defaults)) for spec in specs]
        return [TaskHandle(self, actor) for actor in self._running.admissions.admit(pairs)] if pairs else []

    def _find(self, target: Target) -> Actor | None:
        if isinstance(target, TaskHandle):
            target = target.id
        if isinstance(target, bool) or not isinstance(target, int | str):
            raise TypeError(f"target must be a TaskHandle, a TaskId or a name, got {shown(target)}")
        with self._running.lock:
            actor = self._running.registry.find(target)
            return None if actor is None or (not actor.admitted and actor.slot is None) else actor

    def _declare(self, spec: TaskSpec) -> None:
        self.check_process()
        if self._running.thread is not None:
            self.add(spec)
            return
        with self._running.lock:
            if self._running.closing:
                raise ShuttingDown(f"supervisor {self.config.name!r} is shutting down or has")
            if spec.name in self._declared:
                raise TaskAlreadyExists(f"a task named {spec.name!r} is declared; choose another name")
            self._declared[spec.name] = spec


def _check_spec(spec: object) -> None:
    if not isinstance(spec, TaskSpec):
        raise TypeError(
            f"a task must be a TaskSpec, got {shown(spec)}; use TaskSpec.once(name, task) or another"
        )
