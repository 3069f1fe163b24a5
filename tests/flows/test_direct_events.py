"""What a direct run tells its subscribers: which events, in which order, and that they never matter."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from supervisor import CancelToken, Event, EventsDropped, Fail, SubscriberFailed
from supervisor.flows import (
    BranchFinished,
    FlowTaskRetrying,
    JoinConfig,
    JoinStrategy,
    ResourceFailed,
    Resources,
    StateEntered,
    Workflow,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.bodies import Scripted
from tests.flows.walking import DOUBLING, S, Split, Timed, Walk, failure, one


def told(recorder: EventRecorder) -> list[Any]:
    return [
        (
            event.kind,
            *(getattr(event, name) for name in ("state", "index", "attempt") if hasattr(event, name)),
        )
        for event in recorder.events
    ]


def test_every_state_that_is_entered_is_told_in_order_the_exit_state_included(
    clock: VirtualClock, recorder: EventRecorder
) -> None:
    Walk(clock, one(lambda: S.B).register(S.B, lambda: S.DONE), subscribers=[recorder]).finish()
    assert told(recorder) == [("state_entered", "S.A"), ("state_entered", "S.B"), ("state_entered", "S.DONE")]


def test_retries_and_branches_are_told_where_they_happen(
    clock: VirtualClock, recorder: EventRecorder
) -> None:
    timed = Timed(clock)
    workflow = (
        Workflow()
        .register(S.A, Scripted(Fail("no"), S.B), max_retries=1, backoff=DOUBLING)
        .register_split(
            S.B, [timed(2, "a"), timed(1, Fail("b"))], JoinConfig(JoinStrategy.partial(2), S.DONE)
        )
        .add_exit_state(S.DONE)
    )
    Walk(clock, workflow, subscribers=[recorder]).finish()
    assert told(recorder) == [
        ("state_entered", "S.A"),
        ("flow_task_retrying", "S.A", 1),
        ("state_entered", "S.B"),
        ("branch_finished", "S.B", 1),
        ("branch_finished", "S.B", 0),
        ("state_entered", "S.DONE"),
    ]
    assert recorder.times(BranchFinished) == [2.0, 3.0]
    failed, good = recorder.of(BranchFinished)
    assert (failed.duration, good.duration) == (1.0, 2.0)
    assert good.error is None
    assert "b" in str(failed.error)


@pytest.mark.parametrize("seed", range(20))
def test_a_branch_is_told_before_the_state_after_its_join_is(seed: int) -> None:
    clock, recorder = VirtualClock(seed), EventRecorder()
    Split(JoinStrategy.partial(2), [lambda: None] * 4).walk(clock, subscribers=[recorder])
    kinds = recorder.kinds()
    assert kinds == ["state_entered", "branch_finished", "branch_finished", "state_entered", "state_entered"]


def test_every_event_has_its_flow_its_number_its_time_and_its_label(
    clock: VirtualClock, recorder: EventRecorder
) -> None:
    seen: list[str] = []
    Walk(clock, one(lambda res, run: seen.append(run.flow_id) or S.DONE), subscribers=[recorder]).finish()
    assert [event.seq for event in recorder.events] == [1, 2]
    assert {event.flow_id for event in recorder.of(StateEntered)} == set(seen)
    told = recorder.events[0].to_dict()
    assert isinstance(told.pop("at"), str)
    assert told == {"kind": "state_entered", "seq": 1, "flow_id": seen[0], "state": "S.A"}


def test_a_failed_run_tells_what_happened_until_then(clock: VirtualClock, recorder: EventRecorder) -> None:
    failure(clock, one(lambda: 1 / 0), subscribers=[recorder])
    assert told(recorder) == [("state_entered", "S.A")]


def test_a_tear_down_that_fails_is_told(clock: VirtualClock, recorder: EventRecorder) -> None:
    class R:
        def teardown(self) -> None:
            raise OSError("stuck")

    workflow = Workflow(Resources(disk=R())).register(S.A, lambda: S.DONE).add_exit_state(S.DONE)
    assert Walk(clock, workflow, subscribers=[recorder]).finish().result is S.DONE
    (event,) = recorder.of(ResourceFailed)
    assert event.resource == "disk"
    assert "OSError: stuck" in event.error


def test_a_tear_down_that_fails_after_a_failed_set_up_is_told_too(
    clock: VirtualClock, recorder: EventRecorder
) -> None:
    class Good:
        def teardown(self) -> None:
            raise OSError("stuck")

    class Bad:
        def setup(self) -> None:
            raise ValueError("no")

    workflow = (
        Workflow(Resources(good=Good(), bad=Bad())).register(S.A, lambda: S.DONE).add_exit_state(S.DONE)
    )
    assert isinstance(failure(clock, workflow, subscribers=[recorder]), ValueError)
    assert [event.resource for event in recorder.of(ResourceFailed)] == ["good"]


def test_all_that_was_told_has_arrived_when_the_run_returns() -> None:
    seen: list[Event] = []
    workflow = one(Scripted(*[S.A] * 500, S.DONE))
    workflow.run(S.A, subscribers=[seen.append])
    assert len(seen) == 502
    assert [event.seq for event in seen] == list(range(1, 503))


def test_subscribers_are_called_on_a_thread_of_their_own_one_event_at_a_time() -> None:
    threads: set[int] = set()
    one(Scripted(*[S.A] * 50, S.DONE)).run(
        S.A, subscribers=[lambda event: threads.add(threading.get_ident())] * 2
    )
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_a_subscriber_that_fails_hurts_nobody(clock: VirtualClock, recorder: EventRecorder) -> None:
    def bad(event: Event) -> None:
        raise RuntimeError("subscriber")

    walk = Walk(clock, one(lambda: S.DONE), subscribers=[bad, recorder]).finish()
    assert walk.result is S.DONE
    assert len(recorder.of(StateEntered)) == 2
    assert len(recorder.of(SubscriberFailed)) == 2


def test_a_slow_subscriber_loses_events_and_holds_up_no_state(clock: VirtualClock) -> None:
    seen: list[Event] = []

    def slow(event: Event) -> None:
        clock.sleep(1.0 if not seen else 0.0)
        seen.append(event)

    walk = Walk(clock, one(Scripted(*[S.A] * 3000, S.DONE)), subscribers=[slow]).finish()
    assert walk.result is S.DONE
    assert walk.ended == 1.0, "it only waits for what is queued at the end"
    assert sum(event.dropped for event in seen if isinstance(event, EventsDropped)) > 1000


def test_a_subscriber_that_never_returns_is_waited_for_five_seconds(clock: VirtualClock) -> None:
    release = clock.latch()
    walk = Walk(clock, one(lambda: S.DONE), subscribers=[lambda event: release.wait()]).finish()
    assert (walk.result, walk.ended) == (S.DONE, 5.0)
    release.open()
    clock.settle()


@pytest.mark.parametrize("bad", [None, 1, "print"])
def test_a_subscriber_is_callable(bad: Any) -> None:
    calls: list[int] = []
    with pytest.raises(TypeError, match="subscriber"):
        one(lambda: calls.append(1) or S.DONE).run(S.A, subscribers=[bad])
    assert calls == []


def test_a_recorder_learns_the_clock_of_the_run(clock: VirtualClock) -> None:
    recorder = EventRecorder()
    Walk(clock, one(lambda: clock.sleep(3.0) or S.DONE), subscribers=[recorder]).finish()
    assert recorder.times(StateEntered) == [0.0, 3.0]


def test_without_subscribers_no_thread_is_started() -> None:
    before = set(threading.enumerate())
    seen: list[Any] = []
    one(lambda: seen.extend(set(threading.enumerate()) - before) or S.DONE).run(S.A)
    assert seen == []


def test_a_straggler_tells_nothing_after_the_run(clock: VirtualClock, recorder: EventRecorder) -> None:
    def straggler() -> None:
        clock.sleep(5.0)
        raise Fail("late")

    Split(JoinStrategy.ANY, [lambda: None, straggler], max_retries=5).walk(clock, subscribers=[recorder])
    count = len(recorder)
    clock.advance(100.0)
    assert len(recorder) == count
    assert recorder.of(FlowTaskRetrying) == []


def test_a_canceled_run_delivers_its_events_too(clock: VirtualClock, recorder: EventRecorder) -> None:
    token = CancelToken(clock=clock)
    walk = Walk(clock, one(lambda res, run: run.token.sleep(9)), token=token, subscribers=[recorder])
    clock.advance(1.0)
    token.cancel()
    walk.finish()
    assert recorder.kinds() == ["state_entered"]
