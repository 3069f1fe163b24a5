"""PrometheusSubscriber: the numbers that a scrape shows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from supervisor import (
    Admission,
    AttemptFailed,
    AttemptOverrunning,
    AttemptStarting,
    AttemptSucceeded,
    AttemptTimedOut,
    BackoffPolicy,
    Event,
    EventsDropped,
    Fail,
    GraceExceeded,
    Jitter,
    OutcomeKind,
    SubscriberFailed,
    Supervisor,
    TaskAdded,
    TaskContext,
    TaskFinished,
    TaskRemoved,
    TaskSpec,
)
from supervisor.flows import FlowStarted, FlowSucceeded, FlowTrippedEvent, Scheduler, Workflow
from supervisor.subscribers import PrometheusSubscriber
from supervisor.testing import VirtualClock
from tests.programs import run_code

NOON = datetime(2000, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def scraped(registry: CollectorRegistry) -> dict[str, float]:
    """Every sample of a scrape that is not zero, by its name and labels; moments of creation excepted."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            if sample.value and not sample.name.endswith("_created"):
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def without_events(registry: CollectorRegistry) -> dict[str, float]:
    """The scrape without the count of events of each kind and the buckets."""
    return {
        name: value
        for name, value in scraped(registry).items()
        if not name.startswith(("supervisor_events_total", "supervisor_attempt_duration_seconds_bucket"))
    }


def event(cls: type[Event], **values: Any) -> Event:
    return cls(seq=1, at=NOON, **values)


def test_a_retried_task_shows_its_attempts_waits_and_end(
    supervisor: Supervisor, registry: CollectorRegistry
) -> None:
    steps = iter([Fail("one"), Fail("two"), None])

    def body(ctx: TaskContext) -> None:
        ctx.sleep(0.5)
        if (error := next(steps)) is not None:
            raise error

    supervisor.subscribe(PrometheusSubscriber(registry))
    backoff = BackoffPolicy(initial=1.0, jitter=Jitter.NONE)
    supervisor.add(TaskSpec.restartable("t", body, backoff=backoff)).wait()
    supervisor.shutdown()
    assert scraped(registry) == {
        "supervisor_attempts_total{result=failed,task=t}": 2.0,
        "supervisor_attempts_total{result=succeeded,task=t}": 1.0,
        "supervisor_attempt_duration_seconds_count{task=t}": 3.0,
        "supervisor_attempt_duration_seconds_sum{task=t}": 1.5,
        **{
            f"supervisor_attempt_duration_seconds_bucket{{le={le},task=t}}": 3.0
            for le in ("0.5", "1.0", "5.0", "10.0", "30.0", "60.0", "300.0", "900.0", "3600.0", "+Inf")
        },
        "supervisor_backoff_seconds_count{cause=failure,task=t}": 2.0,
        "supervisor_backoff_seconds_sum{cause=failure,task=t}": 3.0,
        "supervisor_tasks_finished_total{outcome=completed,task=t}": 1.0,
        "supervisor_shutdowns_total": 1.0,
        "supervisor_events_total{kind=task_added}": 1.0,
        "supervisor_events_total{kind=attempt_starting}": 3.0,
        "supervisor_events_total{kind=attempt_failed}": 2.0,
        "supervisor_events_total{kind=backoff_scheduled}": 2.0,
        "supervisor_events_total{kind=attempt_succeeded}": 1.0,
        "supervisor_events_total{kind=task_finished}": 1.0,
        "supervisor_events_total{kind=task_removed}": 1.0,
        "supervisor_events_total{kind=shutdown_requested}": 1.0,
        "supervisor_events_total{kind=shutdown_completed}": 1.0,
    }


def test_the_gauges_follow_what_is_registered_and_what_runs(
    clock: VirtualClock, supervisor: Supervisor, registry: CollectorRegistry
) -> None:
    supervisor.subscribe(PrometheusSubscriber(registry))

    def body(ctx: TaskContext) -> None:
        ctx.sleep(2.0)

    supervisor.add(TaskSpec.periodic("tick", body, every=10.0))
    supervisor.add(TaskSpec.once("job", body))
    running, registered = "supervisor_tasks_running", "supervisor_tasks_registered"

    def gauges() -> dict[str, float]:
        return {
            name: value for name, value in scraped(registry).items() if name.startswith((running, registered))
        }

    clock.advance(1.0)
    assert gauges() == {registered: 2.0, f"{running}{{task=job}}": 1.0, f"{running}{{task=tick}}": 1.0}
    clock.advance(2.0)
    assert gauges() == {registered: 1.0}
    clock.advance(10.0)
    assert gauges() == {registered: 1.0, f"{running}{{task=tick}}": 1.0}
    supervisor.shutdown()
    assert gauges() == {}
    assert scraped(registry)["supervisor_backoff_seconds_sum{cause=interval,task=tick}"] == 10.0


def test_a_timeout_and_what_overruns_it_are_counted_once(
    clock: VirtualClock, supervisor: Supervisor, registry: CollectorRegistry
) -> None:
    supervisor.subscribe(PrometheusSubscriber(registry))
    supervisor.add(TaskSpec.once("t", lambda: clock.sleep(100.0), timeout=5.0)).wait()
    supervisor.shutdown()
    assert without_events(registry) == {
        "supervisor_attempts_total{result=timed_out,task=t}": 1.0,
        "supervisor_attempt_duration_seconds_count{task=t}": 1.0,
        "supervisor_attempt_duration_seconds_sum{task=t}": 5.0,
        "supervisor_attempts_overrunning_total{task=t}": 1.0,
        "supervisor_tasks_finished_total{outcome=failed,task=t}": 1.0,
        "supervisor_shutdowns_total": 1.0,
    }
    assert scraped(registry)["supervisor_events_total{kind=attempt_overrunning}"] == 3.0


def test_a_closer_that_fails_after_a_timeout_is_no_second_attempt(
    supervisor: Supervisor, registry: CollectorRegistry
) -> None:
    def bad() -> None:
        raise ValueError("closer")

    def body(ctx: TaskContext) -> None:
        ctx.callback(bad)
        ctx.wait()

    supervisor.subscribe(PrometheusSubscriber(registry))
    outcome = supervisor.add(TaskSpec.once("t", body, timeout=5.0)).wait()
    supervisor.shutdown()
    assert outcome.kind is OutcomeKind.PANICKED
    found = scraped(registry)
    assert found["supervisor_events_total{kind=attempt_failed}"] == 1.0
    assert found["supervisor_attempts_total{result=timed_out,task=t}"] == 1.0
    assert "supervisor_attempts_total{result=failed,task=t}" not in found


def test_a_stuck_task_does_not_count_as_running_for_ever(
    clock: VirtualClock, supervisor: Supervisor, registry: CollectorRegistry
) -> None:
    supervisor.subscribe(PrometheusSubscriber(registry))
    supervisor.add(TaskSpec.once("t", lambda: clock.sleep(100.0)))
    clock.advance(1.0)
    with pytest.raises(GraceExceeded):
        supervisor.shutdown(grace=2.0)
    assert without_events(registry) == {
        "supervisor_tasks_finished_total{outcome=force_aborted,task=t}": 1.0,
        "supervisor_tasks_stuck_total": 1.0,
        "supervisor_shutdowns_total": 1.0,
    }
    clock.advance(100.0)


def test_rejected_tasks_are_counted_by_reason(supervisor: Supervisor, registry: CollectorRegistry) -> None:
    supervisor.subscribe(PrometheusSubscriber(registry))
    supervisor.submit(TaskSpec.once("one", lambda ctx: ctx.wait()), slot="s")
    supervisor.submit(TaskSpec.once("two", print), slot="s", admission=Admission.DROP_IF_RUNNING).wait()
    supervisor.shutdown()
    assert scraped(registry)["supervisor_tasks_rejected_total{rejection=slot_busy,task=two}"] == 1.0


def test_a_rejected_task_without_an_id_is_counted(
    supervisor: Supervisor, registry: CollectorRegistry
) -> None:
    supervisor.subscribe(PrometheusSubscriber(registry))
    spec = TaskSpec.once("t", lambda ctx: ctx.wait())
    supervisor.add(spec)
    with pytest.raises(Exception, match="is registered"):
        supervisor.add(spec)
    supervisor.shutdown()
    assert scraped(registry)["supervisor_tasks_rejected_total{rejection=already_exists,task=t}"] == 1.0


def test_losses_and_failures_of_subscribers_are_counted(registry: CollectorRegistry) -> None:
    subscriber = PrometheusSubscriber(registry)
    subscriber(event(EventsDropped, subscriber="slow", dropped=3))
    subscriber(event(EventsDropped, subscriber="slow", dropped=4))
    subscriber(event(SubscriberFailed, subscriber="bad", error="x"))
    found = without_events(registry)
    assert found == {
        "supervisor_events_dropped_total{subscriber=slow}": 7.0,
        "supervisor_subscriber_failures_total{subscriber=bad}": 1.0,
    }


def story(task_id: int, *, only: Callable[[Event], bool] = lambda event: True) -> list[Event]:
    """One failed attempt, one that succeeds; without the events that are not wanted."""
    common = {"task_id": task_id, "task": "t"}
    events = [
        event(TaskAdded, **common),
        event(AttemptStarting, attempt=1, **common),
        event(AttemptFailed, attempt=1, duration=1.0, error="x", exit_code=None, **common),
        event(AttemptStarting, attempt=2, **common),
        event(AttemptSucceeded, attempt=2, duration=1.0, **common),
        event(TaskFinished, outcome=OutcomeKind.COMPLETED, attempts=2, reason=None, **common),
        event(TaskRemoved, **common),
    ]
    return [each for each in events if only(each)]


@pytest.mark.parametrize("lost", range(6))
def test_a_lost_event_moves_no_gauge_for_ever(registry: CollectorRegistry, lost: int) -> None:
    subscriber = PrometheusSubscriber(registry)
    events = story(1)
    for each in events[:lost] + events[lost + 1 :]:
        subscriber(each)
    found = scraped(registry)
    assert not [name for name in found if "registered" in name or "running{" in name]


def test_no_state_is_kept_of_a_removed_task(registry: CollectorRegistry) -> None:
    subscriber = PrometheusSubscriber(registry)
    common = {"task_id": 1, "task": "t", "attempt": 1}
    subscriber(event(AttemptTimedOut, duration=1.0, timeout=1.0, **common))
    subscriber(event(AttemptOverrunning, late_by=10.0, stack="", **common))
    subscriber(event(AttemptStarting, **common))
    subscriber(event(TaskAdded, task_id=1, task="t"))
    subscriber(event(TaskRemoved, task_id=1, task="t"))
    kept = (subscriber._registered, subscriber._running, subscriber._timed_out, subscriber._overrunning)
    assert kept == (set(), {}, {}, {})


def test_two_subscribers_of_one_registry_add_up(registry: CollectorRegistry) -> None:
    for number in (1, 2):
        subscriber = PrometheusSubscriber(registry)
        for each in story(number):
            subscriber(each)
    found = scraped(registry)
    assert found["supervisor_tasks_finished_total{outcome=completed,task=t}"] == 2.0
    assert found["supervisor_attempts_total{result=failed,task=t}"] == 2.0


def test_without_a_registry_the_one_of_the_library_is_taken() -> None:
    PrometheusSubscriber()(event(EventsDropped, subscriber="default registry", dropped=3))
    PrometheusSubscriber()(event(EventsDropped, subscriber="default registry", dropped=1))
    labels = {"subscriber": "default registry"}
    assert REGISTRY.get_sample_value("supervisor_events_dropped_total", labels) == 4.0


def test_a_foreign_metric_of_the_same_name_is_an_error(registry: CollectorRegistry) -> None:
    Counter("supervisor_attempts_total", "Not ours.", registry=registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        PrometheusSubscriber(registry)


def test_names_can_be_grouped_so_that_labels_stay_few(registry: CollectorRegistry) -> None:
    subscriber = PrometheusSubscriber(registry, group=lambda name: name.split("-")[0])
    for number in range(1, 4):
        subscriber(event(TaskAdded, task_id=number, task=f"order-{number}"))
        subscriber(event(AttemptStarting, task_id=number, task=f"order-{number}", attempt=1))
    assert scraped(registry)["supervisor_tasks_running{task=order}"] == 3.0


def test_buckets_are_those_given_and_the_same_for_a_registry(registry: CollectorRegistry) -> None:
    subscriber = PrometheusSubscriber(registry, buckets=[0.5, 2.0])
    for each in story(1):
        subscriber(each)
    found = {name: value for name, value in scraped(registry).items() if "_bucket{" in name}
    assert found == {
        "supervisor_attempt_duration_seconds_bucket{le=2.0,task=t}": 2.0,
        "supervisor_attempt_duration_seconds_bucket{le=+Inf,task=t}": 2.0,
    }
    PrometheusSubscriber(registry)
    PrometheusSubscriber(registry, buckets=(0.5, 2.0))
    with pytest.raises(ValueError, match="give the same ones or another registry"):
        PrometheusSubscriber(registry, buckets=[1.0])


def test_names_follow_the_rules_of_prometheus(registry: CollectorRegistry) -> None:
    PrometheusSubscriber(registry)
    families = list(registry.collect())
    assert {family.name.split("_")[0] for family in families} == {"supervisor"}
    assert all(family.documentation.endswith(".") for family in families)
    units = {family.name for family in families if family.type in ("histogram", "summary")}
    assert units == {
        "supervisor_attempt_duration_seconds",
        "supervisor_backoff_seconds",
        "supervisor_flow_run_duration_seconds",
        "supervisor_flow_backoff_seconds",
    }


class Flaky:
    """A flow of one state that takes half a second, and fails while it is broken."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.broken = True

    def __call__(self) -> str:
        self.clock.sleep(0.5)
        if self.broken:
            raise Fail("boom")
        return "done"


def flows_of(registry: CollectorRegistry) -> dict[str, float]:
    return {
        name.removeprefix("supervisor_"): value
        for name, value in without_events(registry).items()
        if name.startswith("supervisor_flow") and "_bucket" not in name
    }


def test_a_flow_shows_its_runs_by_outcome_its_trips_and_what_it_is(
    clock: VirtualClock, supervisor: Supervisor, registry: CollectorRegistry
) -> None:
    supervisor.subscribe(PrometheusSubscriber(registry))
    look = Flaky(clock)
    scheduler = Scheduler(supervisor=supervisor)
    scheduler.every("f", Workflow().register("look", look).add_exit_state("done"), "look", 1.0)
    scheduler.set_backoff("f", BackoffPolicy(initial=2.0, jitter=Jitter.NONE), streak_limit=2)
    running = scheduler.start()

    clock.advance(0.25)
    assert flows_of(registry) == {"flows_running{flow=f}": 1.0}
    clock.advance(3.75)  # runs from 0 and from 2.5, tripped at 3.0, a tick skipped at 4.0
    failed = {
        "flow_runs_total{flow=f,outcome=failed}": 2.0,
        "flow_backoff_seconds_count{flow=f}": 1.0,
        "flow_backoff_seconds_sum{flow=f}": 2.0,
        "flow_trips_total{flow=f}": 1.0,
        "flow_ticks_skipped_total{flow=f,reason=tripped}": 1.0,
    }
    assert flows_of(registry) == failed | {
        "flow_run_duration_seconds_count{flow=f}": 2.0,
        "flow_run_duration_seconds_sum{flow=f}": 1.0,
        "flows_tripped{flow=f}": 1.0,
    }
    look.broken = False
    running.reset_flow("f")
    clock.advance(0.75)
    running.trigger("f")
    clock.advance(0.25)
    running.cancel_flow("f")
    clock.advance(0.25)
    assert flows_of(registry) == failed | {
        "flow_run_duration_seconds_count{flow=f}": 4.0,
        "flow_run_duration_seconds_sum{flow=f}": 2.0,
        "flow_runs_total{flow=f,outcome=succeeded}": 1.0,
        "flow_runs_total{flow=f,outcome=canceled}": 1.0,
    }


def test_a_tripped_flow_is_forgotten_at_the_shutdown(
    clock: VirtualClock, supervisor: Supervisor, registry: CollectorRegistry
) -> None:
    supervisor.subscribe(PrometheusSubscriber(registry))
    scheduler = Scheduler(supervisor=supervisor)
    scheduler.every("f", Flaky(clock), interval=10.0)
    scheduler.set_backoff("f", streak_limit=1)
    scheduler.start()
    clock.advance(1.0)
    assert flows_of(registry)["flows_tripped{flow=f}"] == 1.0
    supervisor.shutdown()
    assert "flows_tripped{flow=f}" not in flows_of(registry)


def test_lost_and_repeated_events_of_a_flow_move_no_gauge_for_ever(registry: CollectorRegistry) -> None:
    subscriber = PrometheusSubscriber(registry, group=str.upper)
    for _ in range(2):
        subscriber(event(FlowStarted, flow_id="f", run=1, cause="schedule"))
        subscriber(event(FlowTrippedEvent, flow_id="f", streak=1, error="boom"))
    assert (flows_of(registry)["flows_running{flow=F}"], flows_of(registry)["flows_tripped{flow=F}"]) == (
        1,
        1,
    )
    subscriber(event(FlowStarted, flow_id="f", run=2, cause="schedule"))
    for _ in range(2):
        subscriber(event(FlowSucceeded, flow_id="f", run=2, duration=1.0, exit_state=None))
    assert {name for name in flows_of(registry) if name.startswith("flows_")} == set()


def test_retries_in_a_direct_run_are_counted_by_state(
    clock: VirtualClock, registry: CollectorRegistry
) -> None:
    steps = iter([Fail("one"), Fail("two"), None])

    def look() -> str:
        if (error := next(steps)) is not None:
            raise error
        return "done"

    workflow = Workflow().register("look", look, max_retries=2).add_exit_state("done")
    workflow.run("look", subscribers=[PrometheusSubscriber(registry)], clock=clock)
    assert flows_of(registry) == {"flow_task_retries_total{state='look'}": 2.0}


def test_tasks_alone_do_not_load_the_layer_of_flows() -> None:
    code = (
        "import sys\nfrom datetime import UTC, datetime\nfrom supervisor import TaskAdded\n"
        "from supervisor.subscribers import LogSubscriber, OpenTelemetrySubscriber, PrometheusSubscriber\n"
        "event = TaskAdded(seq=1, at=datetime.now(UTC), task_id=1, task='t')\n"
        "for each in (LogSubscriber(), OpenTelemetrySubscriber(), PrometheusSubscriber()): each(event)\n"
        "print('supervisor.flows' in sys.modules)"
    )
    assert run_code(code).stdout == "False\n"
