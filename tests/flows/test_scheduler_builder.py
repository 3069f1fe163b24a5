"""The builder: what it takes, what it refuses and then leaves unchanged, and the one start it gives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from supervisor import BackoffPolicy, ShuttingDown, Supervisor, TaskSpec
from supervisor.flows import (
    FLOW_BACKOFF,
    ConfigurationError,
    FlowError,
    FlowRun,
    JoinConfig,
    JoinStrategy,
    Resources,
    Scheduler,
    SchedulerStopped,
    Tripped,
    Workflow,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.flows.scheduling import EXACT, Body, S, Start, Traced, one_state


def nothing() -> None:
    """A flow."""


WORKFLOW = one_state(nothing)


# What it takes


def test_a_new_builder_is_empty(scheduler: Scheduler) -> None:
    assert len(scheduler) == 0
    assert "a" not in scheduler


REGISTRATIONS: dict[str, Callable[[Scheduler], object]] = {
    "every": lambda s: s.every("a", WORKFLOW, S.WORK, 30.0),
    "every with a timedelta": lambda s: s.every("a", WORKFLOW, S.WORK, timedelta(seconds=30)),
    "every by name": lambda s: s.every("a", WORKFLOW, initial=S.WORK, interval=30),
    "every of a function": lambda s: s.every("a", nothing, interval=5.0),
    "every_seconds": lambda s: s.every_seconds("a", WORKFLOW, S.WORK, 5),
    "every_minutes": lambda s: s.every_minutes("a", WORKFLOW, S.WORK, 5),
    "every_hours": lambda s: s.every_hours("a", WORKFLOW, S.WORK, 5),
    "every_seconds of a function": lambda s: s.every_seconds("a", nothing, n=0.5),
    "cron": lambda s: s.cron("a", WORKFLOW, S.WORK, "0 */5 * * * *"),
    "cron in a zone": lambda s: s.cron("a", WORKFLOW, S.WORK, "0 0 9 * * MON", tz="Europe/Berlin"),
    "cron of a function": lambda s: s.cron("a", nothing, expression="@hourly"),
    "manual": lambda s: s.manual("a", WORKFLOW, S.WORK),
    "manual of a function": lambda s: s.manual("a", nothing),
    "a partial": lambda s: s.manual("a", partial(print, "x")),
    "a workflow that will fail": lambda s: s.manual("a", one_state(lambda: 1 / 0), S.WORK),
}


@pytest.mark.parametrize("register", REGISTRATIONS.values(), ids=REGISTRATIONS)
def test_it_takes(register: Callable[[Scheduler], object], scheduler: Scheduler) -> None:
    register(scheduler)
    assert len(scheduler) == 1
    assert "a" in scheduler
    assert "b" not in scheduler


def test_a_minute_has_60_seconds_and_an_hour_3600(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    seconds, minutes, hours = bodies = [Body(clock) for _ in range(3)]
    scheduler.every_seconds("s", seconds, n=2)
    scheduler.every_minutes("m", minutes, n=0.5)
    scheduler.every_hours("h", hours, n=0.02)
    start(scheduler)
    clock.advance(72.0)
    assert [len(each.starts) for each in bodies] == [37, 3, 2]
    assert seconds.starts == [2.0 * n for n in range(37)]
    assert minutes.starts == [0.0, 30.0, 60.0]
    assert hours.starts == [0.0, 72.0]


def test_an_object_with_run_is_a_flow(scheduler: Scheduler, start: Start, clock: VirtualClock) -> None:
    seen: list[tuple[object, ...]] = []

    class Job:
        def run(self, res: Resources, run: FlowRun) -> None:
            seen.append((len(res), run.flow_id, run.attempt, run.state, run.path))

    scheduler.manual("a", Job())
    start(scheduler).trigger("a")
    clock.settle()
    assert seen == [(0, "a", 1, None, ())]


# Decorators


def test_decorators_register_under_the_name_of_the_function_and_give_it_back(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    calls: list[tuple[str, float]] = []

    @scheduler.every_seconds(30)
    def seconds() -> None:
        calls.append(("seconds", clock.monotonic()))

    @scheduler.every_minutes(1)
    def minutes() -> None:
        calls.append(("minutes", clock.monotonic()))

    @scheduler.every_hours(1)
    def hours() -> None:
        calls.append(("hours", clock.monotonic()))

    @scheduler.cron("50 * * * * *")
    def fifty(run: Resources) -> None:
        calls.append(("fifty", clock.monotonic()))

    @scheduler.cron("0 0 1 * * *", tz="Europe/Berlin")
    def one_oclock() -> None:
        calls.append(("one", clock.monotonic()))

    @scheduler.manual
    def by_hand() -> None:
        calls.append(("hand", clock.monotonic()))

    @scheduler.manual()
    def by_hand_too() -> str:
        return "itself"

    assert by_hand_too() == "itself"
    assert len(scheduler) == 7
    for name in ("seconds", "minutes", "hours", "fifty", "one_oclock", "by_hand", "by_hand_too"):
        assert name in scheduler
    running = start(scheduler)
    running.trigger("by_hand")
    clock.advance(60.0)
    expected = [("seconds", 0.0), ("minutes", 0.0), ("hours", 0.0), ("hand", 0.0)]
    assert sorted(calls[:4]) == sorted(expected)
    assert sorted(calls[4:]) == [("fifty", 50.0), ("minutes", 60.0), ("seconds", 30.0), ("seconds", 60.0)]
    assert [info.id for info in running.list()][3:] == ["fifty", "one_oclock", "by_hand", "by_hand_too"]


def test_a_decorator_refuses_what_a_call_refuses(scheduler: Scheduler) -> None:
    with pytest.raises(ConfigurationError, match="interval must be > 0"):
        scheduler.every_seconds(0)(nothing)
    with pytest.raises(ConfigurationError, match="30 2"):
        scheduler.cron("0 0 0 30 2 *")(nothing)
    assert len(scheduler) == 0


# What it refuses


async def coroutine() -> None:
    """No flow."""


class AsyncRun:
    async def run(self) -> None:
        """No flow either."""


def three(a: object, b: object, c: object) -> None:
    """Takes too much."""


REFUSALS: dict[str, tuple[Callable[[Scheduler], object], str]] = {
    "an id in use": (lambda s: s.every("taken", nothing, interval=1), "'taken'"),
    "an id in use, by another kind": (lambda s: s.cron("taken", nothing, expression="@daily"), "'taken'"),
    "an empty id": (lambda s: s.manual("", nothing), "flow id"),
    "an id that is no text": (lambda s: s.manual(5, nothing), "flow id"),
    "no interval": (lambda s: s.every("a", nothing), "interval must be > 0"),
    "an interval of zero": (lambda s: s.every("a", nothing, interval=0), "interval must be > 0"),
    "a negative interval": (lambda s: s.every("a", nothing, interval=-1.0), "interval"),
    "a tiny negative interval": (lambda s: s.every("a", nothing, interval=timedelta(-1)), "interval"),
    "an interval of nan": (lambda s: s.every("a", nothing, interval=float("nan")), "interval"),
    "an endless interval": (lambda s: s.every("a", nothing, interval=float("inf")), "interval"),
    "an interval of True": (lambda s: s.every("a", nothing, interval=True), "interval"),
    "an interval that is text": (lambda s: s.every("a", nothing, interval="5"), "interval"),  # type: ignore[arg-type]
    "zero seconds": (lambda s: s.every_seconds("a", nothing, None, 0), "interval must be > 0"),
    "negative minutes": (lambda s: s.every_minutes("a", WORKFLOW, S.WORK, -5), "interval"),
    "hours as text": (lambda s: s.every_hours("a", WORKFLOW, S.WORK, "1"), "n must be a number"),  # type: ignore[arg-type]
    "a bad expression": (lambda s: s.cron("a", nothing, expression="every day"), "every day"),
    "an empty expression": (lambda s: s.cron("a", nothing, expression=""), "a"),
    "an hour of 25": (lambda s: s.cron("a", nothing, expression="0 0 25 * * *"), "25"),
    "eight fields": (lambda s: s.cron("a", nothing, expression="0 0 0 1 1 * 2031 *"), "2031"),
    "an expression that is no text": (lambda s: s.cron("a", nothing, expression=5), "must be a str"),  # type: ignore[arg-type]
    "the 30th of February": (lambda s: s.cron("a", nothing, expression="0 0 0 30 2 *"), "never fires"),
    "the 31st of four short months": (
        lambda s: s.cron("a", nothing, expression="0 0 0 31 4,6,9,11 *"),
        "never fires",
    ),
    "a year that is over": (lambda s: s.cron("a", nothing, expression="0 0 0 1 1 * 1999"), "never fires"),
    "an unknown zone": (lambda s: s.cron("a", nothing, expression="@daily", tz="Mars/Base"), "Mars/Base"),
    "a zone of a wrong type": (lambda s: s.cron("a", nothing, expression="@daily", tz=1), "tz"),
    "a workflow without initial": (lambda s: s.manual("a", Workflow()), "initial"),
    "every of a workflow without initial": (lambda s: s.every("a", WORKFLOW, interval=1), "initial"),
    "cron of a workflow without initial": (lambda s: s.cron("a", WORKFLOW, None, "@daily"), "initial"),
    "a function with a state": (lambda s: s.manual("a", nothing, S.WORK), "S.WORK"),
    "a coroutine function": (lambda s: s.manual("a", coroutine), "coroutine"),
    "an object whose run is one": (lambda s: s.manual("a", AsyncRun()), "coroutine"),
    "a function of three": (lambda s: s.manual("a", three), "3 arguments"),
    "nothing": (lambda s: s.manual("a", None), "callable"),
    "a number": (lambda s: s.manual("a", 5), "callable"),
    "the backoff of an unknown id": (lambda s: s.set_backoff("nobody", EXACT), "'nobody'"),
    "a streak limit of zero": (lambda s: s.set_backoff("taken", EXACT, streak_limit=0), "streak_limit"),
    "a negative streak limit": (lambda s: s.set_backoff("taken", EXACT, streak_limit=-1), "streak_limit"),
    "a streak limit of True": (lambda s: s.set_backoff("taken", EXACT, streak_limit=True), "streak_limit"),
    "a half streak limit": (lambda s: s.set_backoff("taken", EXACT, streak_limit=1.5), "streak_limit"),  # type: ignore[arg-type]
    "a backoff that is none": (lambda s: s.set_backoff("taken", 5.0), "BackoffPolicy"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("call", "says"), REFUSALS.values(), ids=REFUSALS)
def test_it_refuses_and_changes_nothing(
    call: Callable[[Scheduler], object],
    says: str,
    scheduler: Scheduler,
    start: Start,
    clock: VirtualClock,
) -> None:
    taken = Body(clock, ValueError("first"))
    scheduler.manual("taken", taken)
    scheduler.set_backoff("taken", EXACT, streak_limit=2)
    with pytest.raises(ConfigurationError) as caught:
        call(scheduler)
    assert isinstance(caught.value, FlowError)
    assert isinstance(caught.value, ValueError)
    assert says in str(caught.value)
    assert len(scheduler) == 1
    running = start(scheduler)
    assert [info.id for info in running.list()] == ["taken"]
    for _ in range(2):
        running.trigger("taken")
        clock.settle()
    info = running.status("taken")
    assert info is not None
    assert info.status == Tripped(2, "ValueError: first (in flow 'taken')")
    assert info.next_fire is None


@pytest.mark.parametrize("workers", [0, -1, True, 1.5, "4"])
def test_a_bad_number_of_workers_is_refused(workers: Any) -> None:
    with pytest.raises(ConfigurationError, match="workers"):
        Scheduler(workers=workers)


def test_an_rng_without_random_is_refused(clock: VirtualClock) -> None:
    with pytest.raises((TypeError, ConfigurationError), match="rng"):
        Scheduler(clock=clock, rng=5).start()  # type: ignore[arg-type]


def test_the_default_backoff_is_a_second_doubling_to_five_minutes() -> None:
    assert BackoffPolicy(initial=1.0, multiplier=2.0, max_delay=300.0, jitter=0.1) == FLOW_BACKOFF


def test_the_last_set_backoff_counts(scheduler: Scheduler, start: Start, clock: VirtualClock) -> None:
    body = Body(clock, ValueError("no"))
    scheduler.every("a", body, interval=0.5)
    scheduler.set_backoff("a", BackoffPolicy.constant(50.0), streak_limit=1)
    scheduler.set_backoff("a", BackoffPolicy.constant(5.0))
    start(scheduler)
    clock.advance(11.0)
    assert body.starts == [0.0, 5.0, 10.0]


def test_set_backoff_without_a_policy_is_the_default_with_a_limit(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    scheduler.manual("a", lambda: 1 / 0)
    scheduler.set_backoff("a", streak_limit=1)
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    info = running.status("a")
    assert info is not None
    assert info.status == Tripped(1, "ZeroDivisionError: division by zero (in flow 'a')")


# Start


def bad_workflows() -> dict[str, tuple[Workflow, Any, str]]:
    split = Workflow().register_split(S.WORK, [nothing], JoinConfig(JoinStrategy.quorum(2), S.DONE))
    return {
        "no exit state": (Workflow().register(S.WORK, nothing), S.WORK, "exit state"),
        "no task": (Workflow().add_exit_state(S.DONE), S.DONE, "no state has a task"),
        "an unknown initial state": (one_state(nothing), S.MORE, "S.MORE"),
        "an initial state that is no key": (one_state(nothing), [S.WORK], "neither registered nor exit"),
        "a quorum out of reach": (split.add_exit_state(S.DONE), S.WORK, "quorum"),
    }


@pytest.mark.parametrize("case", bad_workflows())
def test_start_validates_every_flow_before_any_set_up(case: str, scheduler: Scheduler) -> None:
    workflow, initial, says = bad_workflows()[case]
    log: list[str] = []
    scheduler.every("first", one_state(nothing, Resources(r=Traced("r", log))), S.WORK, 1.0)
    scheduler.manual("second", workflow, initial)
    with pytest.raises(ConfigurationError, match=says) as caught:
        scheduler.start()
    assert caught.value.flow_id == "second"
    assert str(caught.value).count("second") == 1
    assert log == []


def test_set_up_goes_in_the_order_of_registration_then_of_insertion(
    scheduler: Scheduler, start: Start
) -> None:
    log: list[str] = []
    for flow in ("b", "a"):
        resources = Resources(y=Traced(f"{flow}.y", log), x=Traced(f"{flow}.x", log))
        scheduler.manual(flow, one_state(nothing, resources), S.WORK)
    running = start(scheduler)
    assert log == ["setup b.y", "setup b.x", "setup a.y", "setup a.x"]
    log.clear()
    running.stop()
    assert log == ["teardown a.x", "teardown a.y", "teardown b.x", "teardown b.y"]


def test_a_failed_start_tears_down_in_reverse_runs_nothing_and_leaves_the_builder_usable(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    log: list[str] = []
    body, broken = Body(clock), Traced("b2", log, fails="setup")
    first = Resources(a1=Traced("a1", log), a2=Traced("a2", log))
    scheduler.every("z", one_state(body, Resources(z1=Traced("z1", log))), S.WORK, 1.0)
    scheduler.every("a", one_state(body, first), S.WORK, 1.0)
    scheduler.every(
        "b", one_state(body, Resources(b1=Traced("b1", log), b2=broken, b3=Traced("b3", log))), S.WORK, 1.0
    )
    scheduler.every("c", one_state(body, Resources(c1=Traced("c1", log))), S.WORK, 1.0)
    before = threading.active_count()
    for _ in range(2):
        with pytest.raises(ValueError, match="setup of b2 fails"):
            scheduler.start()
        assert log == [
            "setup z1",
            "setup a1",
            "setup a2",
            "setup b1",
            "setup b2",
            "teardown b1",
            "teardown a2",
            "teardown a1",
            "teardown z1",
        ]
        log.clear()
    clock.advance(5.0)
    assert threading.active_count() == before
    assert body.starts == []
    broken.fails = ""
    scheduler.manual("d", nothing)
    running = start(scheduler)
    clock.advance(1.0)
    assert body.starts == [5.0] * 4 + [6.0] * 4
    running.stop()
    assert len(recorder.of("flow_started")) == 8
    assert len(recorder.of("shutdown_completed")) == 1


def test_an_error_of_the_tear_down_does_not_hide_why_the_start_failed(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []
    bad = Resources(
        x=Traced("x", log), y=Traced("y", log, fails="teardown"), z=Traced("z", log, fails="setup")
    )
    scheduler.manual("a", one_state(nothing, bad), S.WORK)
    with pytest.raises(ValueError, match="setup of z fails"):
        scheduler.start()
    assert log == ["setup x", "setup y", "setup z", "teardown y", "teardown x"]
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("tear-down of resource 'y' failed: ValueError: teardown of y fails")


def test_ctrl_c_during_set_up_tears_down_too(scheduler: Scheduler) -> None:
    log: list[str] = []

    class Interrupted:
        def setup(self) -> None:
            raise KeyboardInterrupt

    scheduler.manual("a", one_state(nothing, Resources(x=Traced("x", log), y=Interrupted())), S.WORK)
    with pytest.raises(KeyboardInterrupt):
        scheduler.start()
    assert log == ["setup x", "teardown x"]


def test_a_failed_start_on_a_supervisor_handed_in_leaves_no_subscription_behind(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    heard: list[str] = []
    supervisor.start()
    scheduler = Scheduler(supervisor=supervisor, subscribers=[lambda event: heard.append(event.kind), 5])  # type: ignore[list-item]
    scheduler.manual("a", nothing)
    for _ in range(2):
        with pytest.raises(TypeError, match="subscriber"):
            scheduler.start()
    supervisor.add(TaskSpec.once("t", nothing)).wait()
    assert heard == []


def test_a_start_on_a_supervisor_that_is_shut_down_tears_down_and_says_so(supervisor: Supervisor) -> None:
    log: list[str] = []
    supervisor.start()
    supervisor.shutdown()
    scheduler = Scheduler(supervisor=supervisor)
    scheduler.manual("a", one_state(nothing, Resources(x=Traced("x", log))), S.WORK)
    with pytest.raises(ShuttingDown):
        scheduler.start()
    assert log == ["setup x", "teardown x"]


LATE_CALLS: dict[str, Callable[[Scheduler], object]] = REGISTRATIONS | {
    "start": lambda s: s.start(),
    "set_backoff": lambda s: s.set_backoff("first"),
    "set_backoff of an unknown id": lambda s: s.set_backoff("nobody"),
    "a bad interval": lambda s: s.every("b", nothing, interval=0),
    "a bad expression": lambda s: s.cron("b", nothing, expression="x"),
    "an id in use": lambda s: s.manual("first", nothing),
    "a decorator": lambda s: s.every_seconds(30),
    "a decorator for cron": lambda s: s.cron("@daily"),
    "a decorator without arguments": lambda s: s.manual(nothing),
}


@pytest.mark.parametrize("call", LATE_CALLS.values(), ids=LATE_CALLS)
def test_start_uses_the_builder_up(
    call: Callable[[Scheduler], object], scheduler: Scheduler, start: Start
) -> None:
    scheduler.manual("first", nothing)
    running = start(scheduler)
    for _ in range(2):
        with pytest.raises(SchedulerStopped, match="make a new Scheduler"):
            call(scheduler)
        assert [info.id for info in running.list()] == ["first"]
        running.stop()


def test_a_scheduler_without_flows_starts_waits_and_stops(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    running = start(scheduler)
    assert running.list() == []
    assert len(running) == 0
    assert running.wait(10.0) is False
    assert clock.monotonic() == 10.0
    running.stop()
    assert running.wait() is True
    assert clock.monotonic() == 10.0


def test_the_same_workflow_and_resources_start_again_after_a_stop(clock: VirtualClock) -> None:
    log: list[str] = []
    body = Body(clock)
    workflow = one_state(body, Resources(r=Traced("r", log)))
    for _ in range(3):
        scheduler = Scheduler(clock=clock)
        scheduler.every("a", workflow, S.WORK, 1.0)
        with scheduler.start():
            clock.advance(2.0)
    assert log == ["setup r", "teardown r"] * 3
    assert len(body.starts) == 9


def test_an_object_shared_by_flows_is_set_up_once_and_torn_down_after_its_last_flow(
    scheduler: Scheduler, start: Start
) -> None:
    log: list[str] = []
    shared = Traced("shared", log)
    for flow in ("a", "b", "c"):
        scheduler.manual(flow, one_state(nothing, Resources(own=Traced(flow, log), shared=shared)), S.WORK)
    running = start(scheduler)
    assert log == ["setup a", "setup shared", "setup b", "setup c"]
    log.clear()
    running.stop()
    assert log == ["teardown c", "teardown b", "teardown shared", "teardown a"]


def test_a_builder_shows_what_it_is(scheduler: Scheduler, start: Start) -> None:
    scheduler.manual("a", nothing)
    assert repr(scheduler) == "<Scheduler of 1 flows>"
    running = start(scheduler)
    assert repr(scheduler) == "<Scheduler of 1 flows, used up>"
    assert repr(running) == "<RunningScheduler running, 1 flows>"
    assert "a" in running
    running.stop()
    assert repr(running) == "<RunningScheduler stopped, 1 flows>"
