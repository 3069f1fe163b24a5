"""`Scheduler`: the builder. `start` uses it up and gives a `RunningScheduler`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from datetime import timedelta, tzinfo
from typing import Any, TypeVar, overload

from supervisor.flows.dispatcher import Dispatcher
from supervisor.flows.errors import ConfigurationError, SchedulerStopped
from supervisor.flows.flow import Flow, Work
from supervisor.flows.resources import Opened
from supervisor.flows.running import RunningScheduler
from supervisor.flows.status import FLOW_BACKOFF
from supervisor.flows.trigger import Cron, Every, Manual, Trigger
from supervisor.kernel import cron as calendar
from supervisor.kernel.arguments import callable_name, count_or_none, seconds, text
from supervisor.kernel.backoff import BackoffPolicy, Draws
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock
from supervisor.kernel.mailbox import Subscription
from supervisor.kernel.text import shown
from supervisor.tasks.config import SupervisorConfig
from supervisor.tasks.supervisor import Supervisor

__all__ = ["Scheduler"]

F = TypeVar("F", bound=Callable[..., object])


class Scheduler:
    """Registers flows: a `Workflow` with its initial state, or a plain function.

    Every call raises `ConfigurationError` for what can't be right and then changes nothing, and
    `SchedulerStopped` once `start` has used the builder up.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        rng: Draws | None = None,
        supervisor: Supervisor | None = None,
        subscribers: Iterable[Callable[[Any], object]] = (),
        workers: int | None = None,
    ) -> None:
        """Check the settings; nothing starts.

        clock: for tests.  rng: anything with `random()`, for the jitter of backoffs.  supervisor:
        to run on, which then stays up after the stop; None makes one.  subscribers: get the events
        of its supervisor.  workers: threads for runs at once; None means no limit.
        """
        if not isinstance(supervisor, Supervisor | None):
            raise TypeError(f"supervisor must be a Supervisor, got {shown(supervisor)}")
        if supervisor is not None and (clock is not None or rng is not None):
            raise ConfigurationError("clock and rng belong to the supervisor that is given; leave them out")
        try:
            self._worker_limit = count_or_none(workers, "workers")
        except (TypeError, ValueError) as error:
            raise ConfigurationError(str(error)) from None
        self._clock = clock
        self._rng = rng
        self._supervisor = supervisor
        self._owns_supervisor = supervisor is None
        self._subscribers = list(subscribers)
        self._flows: dict[str, Flow] = {}
        self._used_up = False

    def __repr__(self) -> str:
        return f"<Scheduler of {len(self._flows)} flows{', used up' if self._used_up else ''}>"

    def __len__(self) -> int:
        return len(self._flows)

    def __contains__(self, id: object) -> bool:
        return id in self._flows

    @property
    def supervisor(self) -> Supervisor:
        """What it runs on: the supervisor that was given, or its own, which ends with it.

        To subscribe before the start.
        """
        if self._supervisor is None:
            self._supervisor = Supervisor(
                SupervisorConfig(name="scheduler"), clock=self._clock, rng=self._rng
            )
        return self._supervisor

    # Registration

    def every(
        self,
        id: str,
        flow: object,
        initial: Hashable = None,
        interval: float | timedelta | None = None,
    ) -> None:
        """Run at the start, then `interval` seconds after the end of each run."""
        self._refuse_when_used_up()
        try:
            period = 0.0 if interval is None else seconds(interval, "interval")
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"flow {id!r}: {error}") from None
        if period <= 0.0:
            raise ConfigurationError(f"flow {id!r}: interval must be > 0 seconds, got {shown(interval)}")
        self._register(id, flow, initial, Every(period))

    @overload
    def every_seconds(self, id: float) -> Callable[[F], F]: ...
    @overload
    def every_seconds(
        self, id: str, flow: object, initial: Hashable = None, n: float | None = None
    ) -> None: ...
    def every_seconds(
        self, id: Any, flow: Any = None, initial: Hashable = None, n: float | None = None
    ) -> Any:
        """`every` with an interval of `n` seconds; `@scheduler.every_seconds(30)` on a function."""
        return self._every(id, flow, initial, n, 1)

    @overload
    def every_minutes(self, id: float) -> Callable[[F], F]: ...
    @overload
    def every_minutes(
        self, id: str, flow: object, initial: Hashable = None, n: float | None = None
    ) -> None: ...
    def every_minutes(
        self, id: Any, flow: Any = None, initial: Hashable = None, n: float | None = None
    ) -> Any:
        """`every` with an interval of `n` minutes; also a decorator."""
        return self._every(id, flow, initial, n, 60)

    @overload
    def every_hours(self, id: float) -> Callable[[F], F]: ...
    @overload
    def every_hours(
        self, id: str, flow: object, initial: Hashable = None, n: float | None = None
    ) -> None: ...
    def every_hours(self, id: Any, flow: Any = None, initial: Hashable = None, n: float | None = None) -> Any:
        """`every` with an interval of `n` hours; also a decorator."""
        return self._every(id, flow, initial, n, 3600)

    def _every(self, id: Any, flow: Any, initial: Hashable, n: float | None, unit: int) -> Any:
        self._refuse_when_used_up()
        if flow is None and not isinstance(id, str):
            return self._decorator(lambda name, f: self.every(name, f, None, _times(id, unit)))
        if n is None and initial is not None and not _is_workflow(flow):
            n, initial = _as_number(initial), None  # every_seconds("ping", check, 30)
        self.every(id, flow, initial, None if n is None else _times(n, unit))
        return None

    @overload
    def cron(self, id: str, *, tz: str | tzinfo = "UTC") -> Callable[[F], F]: ...
    @overload
    def cron(
        self,
        id: str,
        flow: object,
        initial: Hashable = None,
        expression: str | None = None,
        *,
        tz: str | tzinfo = "UTC",
    ) -> None: ...
    def cron(
        self,
        id: Any,
        flow: Any = None,
        initial: Hashable = None,
        expression: str | None = None,
        *,
        tz: Any = "UTC",
    ) -> Any:
        """Run at the ticks of a cron expression in a time zone; `@scheduler.cron("0 9 * * MON")` too.

        Refuses an expression that never fires again.
        """
        self._refuse_when_used_up()
        if flow is None and initial is None and expression is None:
            return self._decorator(lambda name, f: self.cron(name, f, None, id, tz=tz))
        if expression is None and isinstance(initial, str) and not _is_workflow(flow):
            expression, initial = initial, None  # cron("report", send, "0 9 * * MON")
        clock = self._own_clock()
        try:
            parsed = calendar.Cron(expression, tz)  # type: ignore[arg-type]
            first = parsed.next_after(clock.now())
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"flow {id!r}: {error}") from None
        if first is None:
            raise ConfigurationError(f"flow {id!r}: {expression!r} never fires again; correct the date")
        self._register(id, flow, initial, Cron(parsed))
        return None

    @overload
    def manual(self) -> Callable[[F], F]: ...
    @overload
    def manual(self, id: F) -> F: ...
    @overload
    def manual(self, id: str, flow: object, initial: Hashable = None) -> None: ...
    def manual(self, id: Any = None, flow: object = None, initial: Hashable = None) -> Any:
        """Run only when triggered; also a decorator, `@scheduler.manual`."""
        self._refuse_when_used_up()
        if flow is None and callable(id):
            return self._decorator(lambda name, f: self.manual(name, f))(id)
        if flow is None and id is None:
            return self._decorator(lambda name, f: self.manual(name, f))
        self._register(id, flow, initial, Manual())
        return None

    def set_backoff(
        self, id: str, policy: BackoffPolicy = FLOW_BACKOFF, *, streak_limit: int | None = None
    ) -> None:
        """Say what a flow waits after failures, and after how many in a row it trips."""
        self._refuse_when_used_up()
        if (flow := self._flows.get(id)) is None:
            raise ConfigurationError(f"flow {id!r} not found, its backoff can't be set; register it first")
        if not isinstance(policy, BackoffPolicy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"flow {id!r}: policy must be a BackoffPolicy, got {shown(policy)}")
        try:
            limit = count_or_none(streak_limit, "streak_limit")
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"flow {id!r}: {error}") from None
        flow.policy, flow.streak_limit = policy, limit

    def _decorator(self, register: Callable[[str, Any], object]) -> Callable[[Any], Any]:
        def decorate(function: Any) -> Any:
            own = getattr(function, "__name__", None)
            register(own if isinstance(own, str) else callable_name(function), function)
            return function

        return decorate

    def _register(self, id: str, target: object, initial: Hashable, trigger: Trigger) -> None:
        self._refuse_when_used_up()
        try:
            name = text(id, "flow id")
        except (TypeError, ValueError) as error:
            raise ConfigurationError(str(error)) from None
        if name in self._flows:
            raise ConfigurationError(f"a flow {name!r} is registered; choose another id")
        self._flows[name] = Flow(name, len(self._flows), trigger, Work(name, target, initial))

    def _refuse_when_used_up(self) -> None:
        if self._used_up:
            raise SchedulerStopped("the builder was used up by start(); make a new Scheduler")

    def _own_clock(self) -> Clock:
        if self._supervisor is not None:
            return self._supervisor.running.clock
        return self._clock or SYSTEM_CLOCK

    # Start

    def start(self) -> RunningScheduler:
        """Check every flow, set up resources in the order of registration, and run.

        On a failure everything set up is torn down in reverse, the error surfaces as it is, and the
        builder stays usable. Raises ConfigurationError, SchedulerStopped, what set-up raises.
        """
        self._refuse_when_used_up()
        flows = list(self._flows.values())
        for flow in flows:
            try:
                flow.work.validate()
            except ConfigurationError as error:
                error.at(flow.id, None, 0, ())
                raise
        opened = Opened()
        owns, supervisor = self._owns_supervisor, self.supervisor
        subscribed: list[Subscription] = []
        try:
            for flow in flows:
                flow.res = flow.work.open(opened)
            for subscriber in self._subscribers:
                subscribed.append(supervisor.subscribe(subscriber))
            dispatcher = Dispatcher(flows, supervisor, owns_supervisor=owns, workers=self._worker_limit)
            dispatcher.begin(_dispatcher_name(supervisor))
        except BaseException:
            for subscription in subscribed:
                subscription.close()
            for flow in reversed(flows):
                if (res := flow.res) is not None:
                    flow.res = None
                    res.close()
            if owns:
                self._supervisor = None  # the next start makes another
                supervisor.shutdown()
            raise
        self._used_up = True
        return RunningScheduler(dispatcher)


def _dispatcher_name(supervisor: Supervisor) -> str:
    """Return a free name: several schedulers may share a supervisor."""
    number, name = 1, "dispatcher"
    while supervisor.get(name) is not None:
        number += 1
        name = f"dispatcher-{number}"
    return name


def _is_workflow(flow: object) -> bool:
    from supervisor.flows.workflow import Workflow

    return isinstance(flow, Workflow)


def _as_number(value: object) -> Any:
    return value


def _times(n: object, unit: int) -> Any:
    if isinstance(n, timedelta):
        raise ConfigurationError(
            f"n must be a number, got {shown(n)}; use every(interval=...) for a timedelta"
        )
    if isinstance(n, bool) or not isinstance(n, int | float):
        raise ConfigurationError(f"n must be a number, got {shown(n)}")
    return n * unit
