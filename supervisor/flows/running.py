"""`RunningScheduler`: what users hold of a scheduler at work. Its dispatcher does the work."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Self

from supervisor.flows.dispatcher import Dispatcher
from supervisor.flows.errors import (
    FlowAlreadyRunning,
    FlowError,
    FlowNotFound,
    FlowTripped,
    SchedulerStopped,
    StopTimeout,
)
from supervisor.flows.flow import Flow
from supervisor.flows.lifecycle import (
    FlowReset,
)
from supervisor.flows.status import FlowInfo, Tripped, later
from supervisor.flows.stop import TIMEOUT, inside
from supervisor.kernel.arguments import patience, seconds
from supervisor.kernel.errors import ReentrantCall, SupervisorError
from supervisor.kernel.log import library_logger

__all__ = ["RunningScheduler"]


class RunningScheduler:
    """A scheduler at work, made by `Scheduler.start`. Share it freely between threads."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def __repr__(self) -> str:
        state = (
            "stopped"
            if self._dispatcher.stop.result.done
            else "stopping"
            if self._dispatcher.stop.asked
            else "running"
        )
        return f"<RunningScheduler {state}, {len(self._dispatcher.flows)} flows>"

    def __len__(self) -> int:
        return len(self._dispatcher.flows)

    def __contains__(self, id: object) -> bool:
        return id in self._dispatcher.flows

    # What users call

    def trigger(self, id: str) -> None:
        """Run a flow now, whatever its kind; returns when the run is accepted.

        Passes over a backoff window. Raises FlowNotFound, FlowAlreadyRunning, FlowTripped,
        SchedulerStopped.
        """
        self._dispatcher.supervisor.check_process()
        with self._dispatcher.lock:
            flow = self._find(id)
            self._refuse_when_stopping("trigger")
            if flow.record.running:
                raise _of_flow(id, FlowAlreadyRunning(f"flow {id!r} is already running; one run at a time"))
            if isinstance(flow.record.status, Tripped):
                raise _of_flow(id, FlowTripped(f"flow {id!r} is tripped; call reset_flow({id!r}) first"))
            self._dispatcher.begin_run(flow, "trigger")

    def status(self, id: str) -> FlowInfo | None:
        """Return a snapshot of a flow, None for an unknown id. Answers after the stop too."""
        self._dispatcher.supervisor.check_process()
        with self._dispatcher.lock:
            flow = self._dispatcher.flows.get(id)
            return None if flow is None else self._info(flow)

    def list(self) -> list[FlowInfo]:
        """Return a snapshot of every flow, in the order of registration."""
        self._dispatcher.supervisor.check_process()
        with self._dispatcher.lock:
            return [self._info(flow) for flow in self._dispatcher.flows.values()]

    def reset_flow(self, id: str) -> None:
        """Forget the failures of a flow; `Idle` unless it runs. An overdue flow starts at once."""
        self._dispatcher.supervisor.check_process()
        with self._dispatcher.lock:
            flow = self._find(id)
            self._refuse_when_stopping("reset_flow")
            flow.record = flow.record.reset()
            self._dispatcher.tell(FlowReset, flow)
            self._dispatcher.plan_if_overdue(flow)

    def pause(self, id: str) -> None:
        """Let a flow skip its ticks until `resume`; a run in progress goes on."""
        self._dispatcher.supervisor.check_process()
        with self._dispatcher.lock:
            flow = self._find(id)
            self._refuse_when_stopping("pause")
            flow.record = flow.record._replace(paused=True)

    def resume(self, id: str) -> None:
        """End a pause. An overdue flow starts at once."""
        self._dispatcher.supervisor.check_process()
        with self._dispatcher.lock:
            flow = self._find(id)
            self._refuse_when_stopping("resume")
            if flow.record.paused:
                flow.record = flow.record._replace(paused=False)
                self._dispatcher.plan_if_overdue(flow)

    def cancel_flow(self, id: str) -> bool:
        """Ask the run in progress to stop; False if there is none. The streak stays as it is."""
        self._dispatcher.supervisor.check_process()
        with self._dispatcher.lock:
            flow = self._find(id)
            self._refuse_when_stopping("cancel_flow")
            token = flow.token
        if token is None:
            return False
        canceled = token.cancel()
        self._dispatcher.drop_if_queued(flow, token)
        return canceled

    def request_stop(self) -> None:
        """Ask for a stop and return at once. From anywhere, a run included."""
        # without the lock: a signal handler may be on the thread that holds it
        self._dispatcher.stop.asked = True
        self._dispatcher.inbox.ring()

    def stop(self, timeout: float | timedelta = TIMEOUT) -> None:
        """Stop: fire nothing more, wait for runs, cancel what is left, tear down.

        timeout: seconds to wait for runs of every kind; after that they are asked to cancel and
        have one second more. Every caller, now or later, gets the same result.
        Raises StopTimeout naming the flows whose runs ignored it, ReentrantCall from inside a run.
        """
        limit = seconds(timeout, "timeout")
        self._dispatcher.supervisor.check_process()
        self._check_not_inside("stop", "use request_stop()")
        self._dispatcher.stop.request(limit)
        self._dispatcher.stop.adopt()
        self._dispatcher.stop.result.wait()
        self._end_supervisor()
        if (failure := self._dispatcher.stop.result.value) is not None:
            raise StopTimeout(failure.running, failure.timeout, failure.torn)

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Block until the scheduler has stopped, at most `timeout` seconds; True if so."""
        limit = patience(timeout, "timeout")
        self._dispatcher.supervisor.check_process()
        self._check_not_inside("wait", "return from the run")
        if self._dispatcher.stop.asked:
            self._dispatcher.stop.adopt()
        return self._dispatcher.stop.result.wait(limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is None:
            self.stop()
            return
        try:
            self.stop()
        except FlowError as error:  # the one in flight is what counts
            library_logger().error("after %s: %s", kind.__name__, error)

    def _find(self, id: str) -> Flow:
        if (flow := self._dispatcher.flows.get(id)) is None:
            known = ", ".join(map(repr, self._dispatcher.flows)) or "none"
            raise _of_flow(id, FlowNotFound(f"no flow {id!r}; there are {known}"))
        return flow

    def _refuse_when_stopping(self, call: str) -> None:
        if self._dispatcher.stop.asked:
            raise SchedulerStopped(f"{call}: the scheduler is stopping or has stopped")

    def _check_not_inside(self, call: str, instead: str) -> None:
        if inside.get() is self._dispatcher.stop:
            raise ReentrantCall(f"{call}() inside a run would wait for itself; {instead}")
        if self._dispatcher.owns_supervisor:  # which ends with the scheduler
            self._dispatcher.supervisor.running.check_not_inside(None, call, instead)

    def _info(self, flow: Flow) -> FlowInfo:
        record, planned = flow.record, flow.tick
        if planned is not None and not isinstance(planned, datetime):
            planned = later(
                self._dispatcher.clock.now(), max(0.0, planned - self._dispatcher.clock.monotonic())
            )
        return FlowInfo(
            id=flow.id,
            status=record.status,
            run_count=record.run_count,
            last_run=record.last_run,
            last_duration=record.last_duration,
            failure_streak=record.streak,
            next_eligible=record.eligible_at,
            next_fire=None if self._dispatcher.stop.asked else planned,
            skipped=record.skipped,
            paused=record.paused,
        )

    def _end_supervisor(self) -> None:
        if self._dispatcher.owns_supervisor:
            try:
                self._dispatcher.supervisor.shutdown()
            except SupervisorError as error:
                library_logger().error("the supervisor of a scheduler: %s", error)


def _of_flow(id: object, error: FlowError) -> FlowError:
    """Say on an error, whose text names the flow, which one it is."""
    error.at(id if isinstance(id, str) else None, None, 0, ())
    return error
