"""The locks of flows are taken in the order that docs/architecture.md tells."""

from __future__ import annotations

from queue import Queue
from threading import Event as Flag

import pytest

from supervisor import BackoffPolicy, Event
from supervisor.flows import (
    FlowAlreadyRunning,
    FlowCanceled,
    FlowRun,
    FlowSucceeded,
    FlowTrippedEvent,
    JoinConfig,
    JoinStrategy,
    Resource,
    Resources,
    Scheduler,
    StopTimeout,
    Workflow,
)
from tests.programs import ROOT
from tests.tasks.test_lock_order import LEAVES, ORDER, RecordingClock

OF_FLOWS = ["Dispatcher", "Workers", "_Branches"]  # above the locks of tasks and kernel


def workflow(stuck: Flag) -> Workflow:
    """Retries, deadlines, a split that goes on without its stragglers."""

    def flaky(res: Resources, run: FlowRun) -> str:
        run.token.on_cancel(lambda: None)
        if run.attempt < 2:
            raise ValueError
        run.token.sleep(0.001)
        return "split"

    def slow(res: Resources, run: FlowRun) -> None:
        run.token.wait()

    join = JoinConfig(JoinStrategy.ANY, "end", timeout=5, bulkhead=2)
    return (
        Workflow(Resources(device=Resource()))
        .register("start", flaky, max_retries=3, backoff=BackoffPolicy.constant(0.001), timeout=5)
        .register_split("split", [slow, lambda: 1, stuck.wait], join, timeout=5)
        .add_exit_state("end")
        .with_total_timeout(10)
    )


def busy_life(clock: RecordingClock) -> None:
    stuck, started, ended = Flag(), Flag(), Queue[tuple[str, str]]()

    def note(event: Event) -> None:
        if isinstance(event, FlowSucceeded | FlowTrippedEvent | FlowCanceled):
            ended.put((event.flow_id, event.kind))

    def deaf() -> None:
        started.set()
        stuck.wait()

    def fails() -> None:
        raise ValueError

    def listens(res: Resources, run: FlowRun) -> None:
        run.token.wait()

    scheduler = Scheduler(clock=clock, subscribers=[note], workers=3)
    scheduler.every("often", lambda: None, interval=0.001)
    scheduler.every("fails", fails, interval=0.001)
    scheduler.set_backoff("fails", BackoffPolicy.constant(0.001), streak_limit=2)
    scheduler.cron("daily", lambda: None, expression="@daily")
    scheduler.manual("walk", workflow(stuck), "start")
    scheduler.manual("deaf", deaf)
    scheduler.manual("listens", listens)
    running = scheduler.start()
    wanted = {("often", "flow_succeeded"), ("fails", "flow_tripped"), ("walk", "flow_succeeded")}
    running.trigger("walk")
    while wanted:
        wanted.discard(ended.get(timeout=20))
    running.trigger("deaf")
    started.wait(20)
    with pytest.raises(FlowAlreadyRunning):
        running.trigger("deaf")
    running.trigger("listens")
    running.cancel_flow("listens")
    while ended.get(timeout=20) != ("listens", "flow_canceled"):
        pass
    running.pause("often")
    running.resume("often")
    running.reset_flow("fails")
    running.list()
    running.wait(0.001)
    with pytest.raises(StopTimeout):
        running.stop(0.001)
    stuck.set()


def test_locks_of_flows_are_taken_in_the_order_that_the_architecture_page_tells() -> None:
    clock = RecordingClock()
    busy_life(clock)
    stuck = Flag()
    workflow(stuck).run("start", clock=clock, subscribers=[lambda event: None])
    stuck.set()
    recorder = clock.recorder
    assert set(OF_FLOWS) - recorder.owners == set()
    order = [*OF_FLOWS, *ORDER]
    allowed = {(above, below) for number, above in enumerate(order) for below in order[number + 1 :] + LEAVES}
    assert recorder.pairs - allowed == set()
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert " -> ".join(f"`{name}`" for name in OF_FLOWS) in page
