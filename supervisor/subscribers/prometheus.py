"""PrometheusSubscriber: events counted for Prometheus. Needs the extra `prometheus`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from supervisor.kernel.clock import SYSTEM_CLOCK
from supervisor.kernel.event import Event, EventsDropped, SubscriberFailed
from supervisor.tasks.lifecycle import (
    AttemptCanceled,
    AttemptFailed,
    AttemptOverrunning,
    AttemptStarting,
    AttemptSucceeded,
    AttemptTimedOut,
    BackoffScheduled,
    GraceExceededEvent,
    ShutdownCompleted,
    TaskAdded,
    TaskEvent,
    TaskFinished,
    TaskRejected,
    TaskRemoved,
)

if TYPE_CHECKING:
    from supervisor.subscribers.prometheus_flows import FlowCounts

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Summary
except ModuleNotFoundError as _error:
    raise ImportError(
        "PrometheusSubscriber needs prometheus_client; pip install 'threadvisor[prometheus]'"
    ) from _error

__all__ = ["Metrics", "PrometheusSubscriber"]

_BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)

_Ended = AttemptSucceeded | AttemptFailed | AttemptTimedOut | AttemptCanceled
_RESULTS: Final[dict[type[Event], str]] = {
    AttemptSucceeded: "succeeded",
    AttemptFailed: "failed",
    AttemptTimedOut: "timed_out",
    AttemptCanceled: "canceled",
}


class Metrics:
    """The metrics of one registry: a name can be registered there only once."""

    def __init__(self, registry: CollectorRegistry, buckets: Sequence[float]) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"supervisor_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"supervisor_{name}", text, labels, registry=registry, multiprocess_mode="livesum")

        self.buckets: tuple[float, ...] = tuple(buckets)
        self.events: Counter = counter("events_total", "Events of any kind.", "kind")
        self.registered: Gauge = gauge("tasks_registered", "Tasks that are registered.")
        self.finished: Counter = counter("tasks_finished_total", "Tasks that ended.", "task", "outcome")
        self.rejected: Counter = counter(
            "tasks_rejected_total", "Tasks that were refused.", "task", "rejection"
        )
        self.running: Gauge = gauge("tasks_running", "Tasks with an attempt in progress.", "task")
        self.attempts: Counter = counter("attempts_total", "Attempts that ended.", "task", "result")
        self.duration: Histogram = Histogram(
            "supervisor_attempt_duration_seconds",
            "How long attempts took, up to their timeout.",
            ("task",),
            registry=registry,
            buckets=self.buckets,
        )
        self.overrunning: Counter = counter(
            "attempts_overrunning_total", "Attempts that still ran long after their deadline.", "task"
        )
        self.backoff: Summary = Summary(
            "supervisor_backoff_seconds",
            "Waits between attempts, after a failure or for an interval.",
            ("task", "cause"),
            registry=registry,
        )
        self.dropped: Counter = counter(
            "events_dropped_total", "Events that a subscriber lost.", "subscriber"
        )
        self.failures: Counter = counter(
            "subscriber_failures_total", "Exceptions of a subscriber.", "subscriber"
        )
        self.shutdowns: Counter = counter("shutdowns_total", "Completed shutdowns.")
        self.stuck: Counter = counter("tasks_stuck_total", "Tasks that outlived the grace of a shutdown.")
        self.flow_runs: Counter = counter("flow_runs_total", "Runs of flows that ended.", "flow", "outcome")
        self.flow_duration: Histogram = Histogram(
            "supervisor_flow_run_duration_seconds",
            "How long runs of flows took, retries and waits included.",
            ("flow",),
            registry=registry,
            buckets=self.buckets,
        )
        self.flows_running: Gauge = gauge("flows_running", "Flows with a run in progress.", "flow")
        self.flows_tripped: Gauge = gauge("flows_tripped", "Flows that wait for a reset.", "flow")
        self.flow_trips: Counter = counter("flow_trips_total", "How often flows tripped.", "flow")
        self.flow_skipped: Counter = counter(
            "flow_ticks_skipped_total", "Ticks that were refused.", "flow", "reason"
        )
        self.flow_backoff: Summary = Summary(
            "supervisor_flow_backoff_seconds", "Waits after failed runs.", ("flow",), registry=registry
        )
        self.flow_retries: Counter = counter(
            "flow_task_retries_total", "Retries of a state's tasks.", "state"
        )


_lock = SYSTEM_CLOCK.lock()  # guards _metrics
_metrics: WeakKeyDictionary[CollectorRegistry, Metrics] = WeakKeyDictionary()


def _metrics_of(registry: CollectorRegistry, buckets: Sequence[float] | None) -> Metrics:
    with _lock:
        found = _metrics.get(registry)
        if found is None:
            found = _metrics[registry] = Metrics(registry, _BUCKETS if buckets is None else buckets)
        elif buckets is not None and tuple(buckets) != found.buckets:
            raise ValueError(
                f"buckets of this registry are {found.buckets!r} already, got {tuple(buckets)!r}; "
                "give the same ones or another registry"
            )
        return found


class PrometheusSubscriber:
    """A subscriber that counts events in a Prometheus registry.

    Metrics, all named `supervisor_...`, durations in seconds:
    `attempts_total{task, result}` (succeeded, failed, timed_out, canceled),
    `attempt_duration_seconds{task}` (histogram), `attempts_overrunning_total{task}`,
    `backoff_seconds{task, cause}` (summary), `tasks_registered`, `tasks_running{task}`,
    `tasks_finished_total{task, outcome}`, `tasks_rejected_total{task, rejection}`, `tasks_stuck_total`,
    `shutdowns_total`, `events_total{kind}`, `events_dropped_total{subscriber}`,
    `subscriber_failures_total{subscriber}`. Of flows: `flow_runs_total{flow, outcome}` (succeeded, failed,
    canceled), `flow_run_duration_seconds{flow}` (histogram), `flows_running{flow}`, `flows_tripped{flow}`,
    `flow_trips_total{flow}`, `flow_ticks_skipped_total{flow, reason}`, `flow_backoff_seconds{flow}` (summary),
    `flow_task_retries_total{state}`, which has no flow, as each direct run of a workflow has a name of its own.

    Several subscribers may share a registry: their numbers add up. Dropped events are missing from the
    counters, and the gauges recover when the task is removed.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        group: Callable[[str], str] | None = None,
        buckets: Sequence[float] | None = None,
    ) -> None:
        """Register the metrics, unless that was done.

        registry: None takes that of prometheus_client.  group: turns the name of a task into the label
        `task`, the id of a flow into `flow`; give one when names are made up without end, for each label is
        kept for ever.
        buckets: upper bounds of the histogram in seconds, rising.
        Raises ValueError when the registry has the metrics with other buckets, or foreign ones of these names.
        """
        self._metrics = _metrics_of(REGISTRY if registry is None else registry, buckets)
        self._group = group
        # By task id, so that a lost or repeated event does not move a gauge for ever.
        self._registered: set[int] = set()
        self._running: dict[int, str] = {}  # label of the task
        self._timed_out: dict[int, int] = {}  # attempt; an error in its closers is no second end
        self._overrunning: dict[int, int] = {}  # attempt
        self._flows: FlowCounts | None = None

    def __call__(self, event: Event) -> None:
        """Count an event. Runs on the delivery thread."""
        metrics = self._metrics
        metrics.events.labels(event.kind).inc()
        match event:
            case TaskEvent(task_id=int(number), task=name):
                self._count(event, number, name if self._group is None else self._group(name))
            case TaskRejected(task=name):  # without an id
                self._reject(event, name if self._group is None else self._group(name))
            case EventsDropped(subscriber=name, dropped=dropped):
                metrics.dropped.labels(name).inc(dropped)
            case SubscriberFailed(subscriber=name):
                metrics.failures.labels(name).inc()
            case GraceExceededEvent(stuck=stuck):
                metrics.stuck.inc(len(stuck))
            case ShutdownCompleted():
                metrics.shutdowns.inc()
                if self._flows is not None:
                    self._flows.forget()
            case _ if hasattr(event, "flow_id"):  # whose layer is loaded already
                self._count_flow(event)
            case _:
                pass

    def _count_flow(self, event: Event) -> None:
        if self._flows is None:
            from supervisor.subscribers.prometheus_flows import FlowCounts

            self._flows = FlowCounts(self._metrics, self._group)
        self._flows.count(event)

    def _count(self, event: TaskEvent, number: int, task: str) -> None:
        metrics = self._metrics
        match event:
            case AttemptStarting():
                if number not in self._running:
                    self._running[number] = task
                    metrics.running.labels(task).inc()
            case AttemptSucceeded() | AttemptFailed() | AttemptTimedOut() | AttemptCanceled():
                self._end_attempt(event, number, task)
            case BackoffScheduled(delay=delay, cause=cause):
                metrics.backoff.labels(task, cause).observe(delay)
            case AttemptOverrunning(attempt=attempt):
                if self._overrunning.get(number) != attempt:
                    self._overrunning[number] = attempt
                    metrics.overrunning.labels(task).inc()
            case TaskAdded():
                self._registered.add(number)
                metrics.registered.inc()
            case TaskFinished(outcome=outcome):
                self._stop_running(number)
                metrics.finished.labels(task, outcome).inc()
            case TaskRemoved():
                self._forget(number)
            case TaskRejected():
                self._reject(event, task)
            case _:
                pass

    def _end_attempt(self, event: _Ended, number: int, task: str) -> None:
        self._stop_running(number)
        if self._timed_out.pop(number, None) == event.attempt:
            return
        if isinstance(event, AttemptTimedOut):
            self._timed_out[number] = event.attempt
        self._metrics.attempts.labels(task, _RESULTS[type(event)]).inc()
        self._metrics.duration.labels(task).observe(event.duration)

    def _stop_running(self, number: int) -> None:
        task = self._running.pop(number, None)
        if task is not None:
            self._metrics.running.labels(task).dec()

    def _forget(self, number: int) -> None:
        self._stop_running(number)
        self._timed_out.pop(number, None)
        self._overrunning.pop(number, None)
        if number in self._registered:
            self._registered.discard(number)
            self._metrics.registered.dec()

    def _reject(self, event: TaskRejected, task: str) -> None:
        self._metrics.rejected.labels(task, event.rejection).inc()
