"""The events of schedules: their names and fields, and the exact order in which they come."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from typing import Any

import pytest

import supervisor.flows as flows
from supervisor import BackoffPolicy, Event, Supervisor, TaskSpec
from supervisor.flows import JoinConfig, JoinStrategy, Resources, Scheduler, Workflow
from supervisor.flows.lifecycle import FlowEvent
from supervisor.testing import EventRecorder, VirtualClock
from tests.flows.scheduling import EXACT, Body, S, Start, Traced, at, of_flow, one_state, story

FIELDS = {
    "FlowScheduled": ("flow_scheduled", ["next_fire"]),
    "FlowStarted": ("flow_started", ["run", "cause"]),
    "FlowSkipped": ("flow_skipped", ["reason"]),
    "FlowSucceeded": ("flow_succeeded", ["run", "duration", "exit_state"]),
    "FlowFailed": ("flow_failed", ["run", "duration", "error", "streak"]),
    "FlowBackoff": ("flow_backoff", ["delay", "until", "streak"]),
    "FlowTrippedEvent": ("flow_tripped", ["streak", "error"]),
    "FlowReset": ("flow_reset", []),
    "FlowCanceled": ("flow_canceled", ["run", "duration"]),
    "StateEntered": ("state_entered", ["state"]),
    "FlowTaskRetrying": ("flow_task_retrying", ["state", "task", "attempt", "delay", "error"]),
    "BranchFinished": ("branch_finished", ["state", "index", "task", "duration", "error"]),
}


@pytest.mark.parametrize("name", FIELDS)
def test_an_event_has_its_label_and_the_fields_of_the_docs(name: str) -> None:
    cls = getattr(flows, name)
    kind, own = FIELDS[name]
    assert issubclass(cls, Event)
    assert cls.kind == kind
    assert [field.name for field in dataclasses.fields(cls)] == ["seq", "at", "flow_id", *own]


def told(recorder: EventRecorder, flow_id: str) -> list[dict[str, Any]]:
    found = [event.to_dict() for event in of_flow(recorder, flow_id)]
    for each in found:
        del each["seq"]
        each["at"] = each["at"][17:19]
        del each["flow_id"]
    return found


def test_a_life_of_a_flow_from_plan_to_trip_to_reset(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    no = ValueError("no")
    scheduler.every("a", Body(clock, 0.0, no, no, 0.0), interval=2.0)
    scheduler.set_backoff("a", BackoffPolicy.constant(3.0), streak_limit=2)
    running = start(scheduler)
    clock.advance(8.0)
    running.reset_flow("a")
    clock.advance(0.5)
    error = "ValueError: no (in flow 'a')"
    assert told(recorder, "a") == [
        {"kind": "flow_scheduled", "at": "00", "next_fire": at(0).isoformat()},
        {"kind": "flow_started", "at": "00", "run": 1, "cause": "schedule"},
        {"kind": "flow_succeeded", "at": "00", "run": 1, "duration": 0.0, "exit_state": None},
        {"kind": "flow_scheduled", "at": "00", "next_fire": at(2).isoformat()},
        {"kind": "flow_started", "at": "02", "run": 2, "cause": "schedule"},
        {"kind": "flow_failed", "at": "02", "run": 2, "duration": 0.0, "error": error, "streak": 1},
        {"kind": "flow_backoff", "at": "02", "delay": 3.0, "until": at(5).isoformat(), "streak": 1},
        {"kind": "flow_scheduled", "at": "02", "next_fire": at(5).isoformat()},
        {"kind": "flow_started", "at": "05", "run": 3, "cause": "schedule"},
        {"kind": "flow_failed", "at": "05", "run": 3, "duration": 0.0, "error": error, "streak": 2},
        {"kind": "flow_tripped", "at": "05", "streak": 2, "error": error},
        {"kind": "flow_scheduled", "at": "05", "next_fire": at(7).isoformat()},
        {"kind": "flow_skipped", "at": "07", "reason": "tripped"},
        {"kind": "flow_scheduled", "at": "07", "next_fire": at(9).isoformat()},
        {"kind": "flow_reset", "at": "08"},
        {"kind": "flow_scheduled", "at": "08", "next_fire": at(8).isoformat()},
        {"kind": "flow_started", "at": "08", "run": 4, "cause": "schedule"},
        {"kind": "flow_succeeded", "at": "08", "run": 4, "duration": 0.0, "exit_state": None},
        {"kind": "flow_scheduled", "at": "08", "next_fire": at(10).isoformat()},
    ]


def test_what_happens_inside_a_scheduled_workflow_is_told_under_the_id_of_the_flow(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    calls: list[int] = []

    def flaky() -> S:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("once")
        return S.MORE

    def branch() -> str:
        return "value"

    def bad_branch() -> None:
        clock.sleep(1.0)
        raise KeyError("lost")

    workflow = (
        Workflow()
        .register(S.WORK, flaky, max_retries=1, backoff=BackoffPolicy.constant(2.0))
        .register_split(S.MORE, [branch, bad_branch], JoinConfig(JoinStrategy.partial(2), S.DONE))
        .add_exit_state(S.DONE)
    )
    scheduler.manual("a", workflow, S.WORK)
    running = start(scheduler)
    running.trigger("a")
    clock.advance(4.0)
    found = told(recorder, "a")
    for each in found:
        if each.get("error"):
            each["error"] = each["error"].partition(" (")[0]
    assert found == [
        {"kind": "flow_started", "at": "00", "run": 1, "cause": "trigger"},
        {"kind": "state_entered", "at": "00", "state": "S.WORK"},
        {
            "kind": "flow_task_retrying",
            "at": "00",
            "state": "S.WORK",
            "task": found[2]["task"],
            "attempt": 1,
            "delay": 2.0,
            "error": "ValueError: once",
        },
        {"kind": "state_entered", "at": "02", "state": "S.MORE"},
        {
            "kind": "branch_finished",
            "at": "02",
            "state": "S.MORE",
            "index": 0,
            "task": found[4]["task"],
            "duration": 0.0,
            "error": None,
        },
        {
            "kind": "branch_finished",
            "at": "03",
            "state": "S.MORE",
            "index": 1,
            "task": found[5]["task"],
            "duration": 1.0,
            "error": "KeyError: 'lost'",
        },
        {"kind": "state_entered", "at": "03", "state": "S.DONE"},
        {"kind": "flow_succeeded", "at": "03", "run": 1, "duration": 3.0, "exit_state": "S.DONE"},
    ]
    assert [
        name in found[number]["task"] for number, name in [(2, "flaky"), (4, "branch"), (5, "bad_branch")]
    ] == [True] * 3


def test_the_dispatcher_is_told_of_like_any_task(
    scheduler: Scheduler, start: Start, recorder: EventRecorder
) -> None:
    start(scheduler).stop()
    assert recorder.kinds() == [
        "task_added",
        "attempt_starting",
        "attempt_succeeded",
        "shutdown_requested",
        "task_finished",
        "task_removed",
        "shutdown_completed",
    ]


def test_numbers_of_events_are_a_total_order_and_every_event_is_json(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    for number in range(20):
        scheduler.every(f"{number}", Body(clock, 0.1, ValueError("no"), 0.2), interval=0.5)
    running = start(scheduler)
    clock.advance(10.0)
    running.stop()
    seqs = [event.seq for event in recorder.events]
    assert seqs == list(range(1, len(seqs) + 1))
    instants = [event.at for event in recorder.events]
    assert instants == sorted(instants)
    for event in recorder.events:
        assert json.loads(json.dumps(event.to_dict()))["kind"] == event.kind
    for number in range(20):
        kinds = [each for each in story(recorder, f"{number}") if each != "flow_scheduled"]
        assert kinds.count("flow_started") == kinds.count("flow_succeeded") + kinds.count("flow_failed")
        for first, second in pairwise(kinds):
            if first == "flow_started":
                assert second in ("flow_succeeded", "flow_failed")
            if first == "flow_failed":
                assert second == "flow_backoff"


def test_several_subscribers_hear_the_same(clock: VirtualClock) -> None:
    first, second = list[Event](), list[Event]()
    scheduler = Scheduler(clock=clock, subscribers=[first.append, second.append])
    scheduler.every("a", Body(clock), interval=1.0)
    with scheduler.start():
        clock.advance(3.0)
    assert first == second
    assert len([event for event in first if isinstance(event, FlowEvent)]) == 13


def test_without_subscribers_nothing_is_different(clock: VirtualClock) -> None:
    body = Body(clock, 0.0, ValueError("no"), 0.0)
    scheduler = Scheduler(clock=clock)
    scheduler.every("a", body, interval=1.0)
    scheduler.set_backoff("a", EXACT)
    with scheduler.start():
        clock.advance(4.0)
    assert body.starts == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_subscriber_of_the_supervisor_can_ask_for_kinds_of_flows(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    heard: list[str] = []
    supervisor.subscribe(
        lambda event: heard.append(event.kind), kinds=["flow_failed", flows.FlowTrippedEvent]
    )
    scheduler = Scheduler(supervisor=supervisor)
    scheduler.every("a", Body(clock, ValueError("no")), interval=1.0)
    scheduler.set_backoff("a", EXACT, streak_limit=2)
    with scheduler.start():
        clock.advance(10.0)
    assert heard == ["flow_failed", "flow_failed", "flow_tripped"]


def test_events_of_tasks_and_flows_of_one_supervisor_share_one_order(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    scheduler = Scheduler(supervisor=supervisor)
    scheduler.manual("a", lambda: supervisor.add(TaskSpec.once("t", lambda: None)).wait() and None)
    with scheduler.start() as running:
        running.trigger("a")
        clock.settle()
    kinds = recorder.kinds()
    assert kinds.index("flow_started") < kinds.index("task_finished") < kinds.index("flow_succeeded")
    seqs = [event.seq for event in recorder.events]
    assert seqs == sorted(set(seqs))


def test_a_failed_tear_down_is_told_with_flow_and_key(
    scheduler: Scheduler, start: Start, clock: VirtualClock, recorder: EventRecorder
) -> None:
    resources = Resources(bad=Traced("bad", [], fails="teardown"))
    scheduler.manual("a", one_state(Body(clock), resources), S.WORK)
    start(scheduler).stop()
    (event,) = recorder.of("resource_failed")
    assert (event.flow_id, event.resource) == ("a", "bad")
    assert event.error.startswith("ValueError: teardown of bad fails")


@pytest.mark.parametrize("bad", [5, "x", None])
def test_a_subscriber_that_is_none_is_refused_and_nothing_starts(
    bad: Any, clock: VirtualClock, recorder: EventRecorder
) -> None:
    body = Body(clock)
    scheduler = Scheduler(clock=clock, subscribers=[recorder, bad])
    scheduler.every("a", body, interval=1.0)
    with pytest.raises(TypeError, match="subscriber"):
        scheduler.start()
    clock.advance(5.0)
    assert body.starts == []


def test_a_slow_subscriber_slows_no_flow(clock: VirtualClock) -> None:
    body = Body(clock)
    scheduler = Scheduler(clock=clock, subscribers=[lambda event: clock.sleep(10.0)])
    scheduler.every("a", body, interval=1.0)
    running = scheduler.start()
    clock.advance(5.0)
    assert body.starts == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    running.stop()
    clock.advance(1000.0)
