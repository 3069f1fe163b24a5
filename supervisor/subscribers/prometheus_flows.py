"""What PrometheusSubscriber counts of flows. Loaded with the first event of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from supervisor.flows.lifecycle import (
    FlowBackoff,
    FlowCanceled,
    FlowEvent,
    FlowFailed,
    FlowReset,
    FlowSkipped,
    FlowStarted,
    FlowSucceeded,
    FlowTaskRetrying,
    FlowTrippedEvent,
)
from supervisor.kernel.event import Event

if TYPE_CHECKING:
    from supervisor.subscribers.prometheus import Metrics

__all__ = ["FlowCounts"]

_OUTCOMES: dict[type[Event], str] = {
    FlowSucceeded: "succeeded",
    FlowFailed: "failed",
    FlowCanceled: "canceled",
}


class FlowCounts:
    """The flows of one subscriber. For one thread."""

    def __init__(self, metrics: Metrics, group: Callable[[str], str] | None) -> None:
        self._metrics = metrics
        self._group = group
        # Label by flow, so that a lost or repeated event does not move a gauge for ever.
        self._running: dict[str, str] = {}
        self._tripped: dict[str, str] = {}

    def count(self, event: Event) -> None:
        """Count an event of a flow."""
        if isinstance(event, FlowTaskRetrying):
            self._metrics.flow_retries.labels(event.state).inc()
        elif isinstance(event, FlowEvent):
            self._count(event, event.flow_id)

    def forget(self) -> None:
        """The supervisor has shut down: nothing runs or waits any more."""
        for id in [*self._running, *self._tripped]:
            self._stop_running(id)
            self._reset(id)

    def _count(self, event: FlowEvent, id: str) -> None:
        metrics = self._metrics
        flow = id if self._group is None else self._group(id)
        match event:
            case FlowStarted():
                self._reset(id)  # nothing that is tripped starts
                if id not in self._running:
                    self._running[id] = flow
                    metrics.flows_running.labels(flow).inc()
            case FlowSucceeded() | FlowFailed() | FlowCanceled():
                self._stop_running(id)
                metrics.flow_runs.labels(flow, _OUTCOMES[type(event)]).inc()
                metrics.flow_duration.labels(flow).observe(event.duration)
            case FlowBackoff(delay=delay):
                metrics.flow_backoff.labels(flow).observe(delay)
            case FlowSkipped(reason=reason):
                metrics.flow_skipped.labels(flow, reason).inc()
            case FlowTrippedEvent():
                metrics.flow_trips.labels(flow).inc()
                if id not in self._tripped:
                    self._tripped[id] = flow
                    metrics.flows_tripped.labels(flow).inc()
            case FlowReset():
                self._reset(id)
            case _:
                pass

    def _stop_running(self, id: str) -> None:
        if (flow := self._running.pop(id, None)) is not None:
            self._metrics.flows_running.labels(flow).dec()

    def _reset(self, id: str) -> None:
        if (flow := self._tripped.pop(id, None)) is not None:
            self._metrics.flows_tripped.labels(flow).dec()
