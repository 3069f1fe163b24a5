"""Subscribers: who hears what, who is told of losses and failures, and that nobody is hurt."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from supervisor import (
    AttemptFailed,
    AttemptStarting,
    Event,
    EventsDropped,
    ShutdownCompleted,
    SubscriberFailed,
    Subscription,
    Supervisor,
    TaskAdded,
    TaskContext,
    TaskFinished,
    TaskSpec,
)
from supervisor.tasks.lifecycle import TaskEvent
from supervisor.testing import EventRecorder, VirtualClock

STORY = ["task_added", "attempt_starting", "attempt_succeeded", "task_finished", "task_removed"]


def stays(ctx: TaskContext) -> None:
    ctx.wait()


def run_one(supervisor: Supervisor, name: str = "t") -> None:
    assert supervisor.add(TaskSpec.once(name, lambda: None)).wait().ok


@pytest.mark.parametrize(
    ("kinds", "heard"),
    [
        (None, STORY),
        ([TaskAdded], ["task_added"]),
        (["task_added", "task_finished"], ["task_added", "task_finished"]),
        ([TaskFinished, "attempt_starting"], ["attempt_starting", "task_finished"]),
        ((AttemptFailed,), []),
        ([TaskEvent], STORY),
        ([Event], STORY),
        ([], []),
        (TaskAdded, ["task_added"]),
        ("task_added", ["task_added"]),
    ],
)
def test_kinds_are_event_classes_or_labels(
    supervisor: Supervisor, clock: VirtualClock, kinds: Any, heard: list[str]
) -> None:
    got: list[str] = []
    supervisor.subscribe(lambda event: got.append(event.kind), kinds=kinds)
    run_one(supervisor)
    assert got == heard


@pytest.mark.parametrize(
    ("kinds", "error", "words"),
    [
        (["task_aded"], ValueError, "no event has the label 'task_aded'; there are .*task_added"),
        ([int], TypeError, "kinds must be event classes or their labels"),
        ([3], TypeError, "kinds must be event classes or their labels"),
    ],
)
def test_an_unknown_kind_is_refused(
    supervisor: Supervisor, kinds: Iterable[Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        supervisor.subscribe(print, kinds=kinds)
    with pytest.raises(error, match=words):
        supervisor.events(*kinds)


def test_wrong_settings_of_a_subscription_are_refused(supervisor: Supervisor) -> None:
    with pytest.raises(TypeError, match="a subscriber must be callable"):
        supervisor.subscribe(3)  # type: ignore[arg-type]
    for capacity in (0, -1):
        with pytest.raises(ValueError, match="capacity"):
            supervisor.subscribe(print, capacity=capacity)
    for capacity in (True, 1.5, "1"):
        with pytest.raises(TypeError, match="capacity"):
            supervisor.subscribe(print, capacity=capacity)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name"):
        supervisor.subscribe(print, name="")


def test_a_subscription_is_named_after_its_callback_unless_told(supervisor: Supervisor) -> None:
    def notify(event: Event) -> None: ...

    assert supervisor.subscribe(notify).name == "notify"
    assert supervisor.subscribe(notify, name="slack-#alerts").name == "slack-#alerts"
    assert supervisor.subscribe(EventRecorder()).name == "EventRecorder"


def test_who_subscribes_before_the_start_hears_everything_and_later_what_comes_later(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    early, late = EventRecorder(), EventRecorder()
    supervisor.subscribe(early)
    supervisor.add(TaskSpec.once("t", stays))
    clock.settle()
    supervisor.subscribe(late)
    supervisor.cancel("t")
    assert early.kinds()[:2] == ["task_added", "attempt_starting"]
    assert late.events == early.events[2:]


@pytest.mark.parametrize("place", ["body", "callback"])
@pytest.mark.parametrize("dedicated", [False, True])
def test_one_may_subscribe_in_a_body_and_in_a_callback(
    supervisor: Supervisor, clock: VirtualClock, place: str, dedicated: bool
) -> None:
    got: list[str] = []

    def join() -> None:
        supervisor.subscribe(lambda event: got.append(event.kind), dedicated=dedicated)

    if place == "callback":
        supervisor.subscribe(lambda _: join(), kinds=[AttemptStarting])
    supervisor.add(TaskSpec.once("t", stays if place == "callback" else join))
    clock.settle()
    supervisor.cancel("t")
    assert got[-2:] == ["task_finished", "task_removed"]
    assert "task_added" not in got


def test_after_close_nothing_is_heard(supervisor: Supervisor, clock: VirtualClock) -> None:
    got: list[str] = []
    subscription = supervisor.subscribe(lambda event: got.append(event.kind))
    assert isinstance(subscription, Subscription)
    run_one(supervisor)
    subscription.close()
    subscription.close()
    assert subscription.closed
    run_one(supervisor)
    assert got == STORY


def test_leaving_with_closes_the_subscription(supervisor: Supervisor) -> None:
    got: list[str] = []
    with supervisor.subscribe(lambda event: got.append(event.kind), dedicated=True) as subscription:
        run_one(supervisor)
    assert subscription.closed
    run_one(supervisor)
    assert got == STORY


@pytest.mark.parametrize("dedicated", [False, True])
def test_a_callback_may_close_its_own_subscription_and_then_hears_nothing_more(
    supervisor: Supervisor, dedicated: bool
) -> None:
    got: list[str] = []

    def once(event: Event) -> None:
        got.append(event.kind)
        subscription.close()

    subscription = supervisor.subscribe(once, dedicated=dedicated)
    run_one(supervisor)
    assert got == ["task_added"]


def test_every_subscriber_hears_the_same_events_in_the_same_order(supervisor: Supervisor) -> None:
    heard: list[list[Event]] = [[] for _ in range(6)]
    for n, each in enumerate(heard):
        supervisor.subscribe(each.append, dedicated=n % 2 == 0)
    for n in range(30):
        run_one(supervisor, f"t{n}")
    assert all(each == heard[0] for each in heard)
    assert [event.seq for event in heard[0]] == list(range(1, 151))


@pytest.mark.parametrize("dedicated", [False, True])
def test_a_callback_is_never_called_twice_at_once(
    supervisor: Supervisor, clock: VirtualClock, dedicated: bool
) -> None:
    inside = peak = 0

    def slow(event: Event) -> None:
        nonlocal inside, peak
        inside += 1
        peak = max(peak, inside)
        clock.sleep(0.1)
        inside -= 1

    supervisor.subscribe(slow, dedicated=dedicated)
    supervisor.add_all(TaskSpec.once(f"t{n}", lambda: None) for n in range(10))
    supervisor.shutdown()
    assert peak == 1


# Threads


def test_callbacks_run_on_one_shared_thread_or_on_their_own(supervisor: Supervisor) -> None:
    names: list[set[str]] = [set(), set(), set(), set()]
    for n, each in enumerate(names):
        supervisor.subscribe(
            lambda _, each=each: each.add(threading.current_thread().name), name=f"n{n}", dedicated=n >= 2
        )
    run_one(supervisor)
    assert names == [{"supervisor:events"}] * 2 + [{"supervisor:n2"}, {"supervisor:n3"}]


def test_a_callback_that_blocks_delays_the_others_on_the_shared_thread_only(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    own: list[float] = []
    shared: list[float] = []
    supervisor.subscribe(lambda _: clock.sleep(10.0), kinds=[TaskAdded])
    supervisor.subscribe(lambda _: shared.append(clock.monotonic()), kinds=[TaskFinished])
    supervisor.subscribe(lambda _: own.append(clock.monotonic()), kinds=[TaskFinished], dedicated=True)
    run_one(supervisor)
    assert clock.monotonic() == 0.0
    clock.advance(20.0)
    assert (own, shared) == ([0.0], [10.0])


def test_a_slow_subscriber_never_delays_a_task(supervisor: Supervisor, clock: VirtualClock) -> None:
    supervisor.subscribe(lambda _: clock.sleep(1.0))
    for n in range(20):
        run_one(supervisor, f"t{n}")
    assert clock.monotonic() == 0.0
    clock.advance(100.0)


# Losses


@pytest.mark.parametrize("dedicated", [False, True])
def test_a_slow_subscriber_loses_the_newest_and_is_told_how_many_when_it_has_caught_up(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder, dedicated: bool
) -> None:
    got: list[Event] = []
    latch = clock.latch()

    def slow(event: Event) -> None:
        got.append(event)
        latch.wait()

    supervisor.subscribe(slow, name="slow", capacity=3, dedicated=dedicated)
    other = EventRecorder()
    supervisor.subscribe(other, dedicated=True)
    supervisor.add(TaskSpec.once("first", stays))
    clock.settle()
    supervisor.cancel("first")
    run_one(supervisor)
    missed = [event for event in other.events if event.seq > 4]
    assert [event.seq for event in got] == [1]
    latch.open()
    clock.settle()
    assert [event.seq for event in got[:4]] == [1, 2, 3, 4]
    (dropped,) = got[4:]
    assert isinstance(dropped, EventsDropped)
    assert (dropped.subscriber, dropped.dropped) == ("slow", len(missed))
    assert other.of(EventsDropped) == []
    got.clear()
    run_one(supervisor, "later")
    assert [event.kind for event in got] == [*STORY[:3], "events_dropped"]


def test_a_loss_of_somebody_whose_kinds_leave_out_eventsdropped_is_logged(
    supervisor: Supervisor, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[str] = []
    supervisor.subscribe(
        lambda event: (got.append(event.task), clock.sleep(1.0)), kinds=[TaskAdded], name="slow", capacity=1
    )
    supervisor.add_all(TaskSpec.once(f"t{n}", stays) for n in range(5))
    with caplog.at_level(logging.WARNING, "supervisor"):
        clock.advance(10.0)
    assert got == ["t0"]
    assert "subscriber 'slow' lost 4 events" in caplog.text


# Failures


@pytest.mark.parametrize("error", [ValueError("deaf"), SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("dedicated", [False, True])
def test_a_failing_subscriber_hurts_nobody_and_the_others_are_told(
    supervisor: Supervisor,
    clock: VirtualClock,
    recorder: EventRecorder,
    error: BaseException,
    dedicated: bool,
) -> None:
    got: list[str] = []

    def fails(event: Event) -> None:
        got.append(event.kind)
        raise error

    supervisor.subscribe(fails, name="bad", dedicated=dedicated)
    run_one(supervisor)
    clock.settle()
    assert got == STORY
    failures = recorder.of(SubscriberFailed)
    assert [event.subscriber for event in failures] == ["bad"] * 5
    assert all(type(error).__name__ in event.error for event in failures)
    assert [kind for kind in recorder.kinds() if kind != "subscriber_failed"] == STORY
    assert [event.seq for event in recorder.events] == list(range(1, 11))


def test_a_failure_on_a_diagnosis_is_not_reported_about_itself(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    def fails(event: Event) -> None:
        raise ValueError(event.kind)

    supervisor.subscribe(fails, name="one", kinds=[TaskAdded, SubscriberFailed])
    supervisor.subscribe(fails, name="two", kinds=[SubscriberFailed, EventsDropped])
    run_one(supervisor)
    clock.settle()
    assert [event.subscriber for event in recorder.of(SubscriberFailed)] == ["one"]


def test_a_hostile_exception_of_a_subscriber_hurts_nobody(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    class HostileError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def fails(event: Event) -> None:
        raise HostileError

    supervisor.subscribe(fails, name="bad", kinds=[TaskAdded])
    run_one(supervisor)
    assert len(recorder.of(SubscriberFailed)) == 1


# events()


def test_events_iterates_until_the_shutdown(supervisor: Supervisor, clock: VirtualClock) -> None:
    events = supervisor.events()
    heard: list[Event] = []
    thread = clock.spawn(lambda: heard.extend(events), "reader")
    run_one(supervisor)
    supervisor.shutdown()
    thread.join()
    assert [event.kind for event in heard] == [*STORY, "shutdown_requested", "shutdown_completed"]
    assert list(events) == []


def test_events_subscribes_at_the_call_and_filters(supervisor: Supervisor) -> None:
    before = supervisor.events(TaskAdded, "task_finished")
    run_one(supervisor)
    after = supervisor.events(ShutdownCompleted)
    supervisor.shutdown()
    assert [event.kind for event in before] == ["task_added", "task_finished"]
    assert [event.kind for event in after] == ["shutdown_completed"]


def test_the_next_event_is_waited_for(supervisor: Supervisor, clock: VirtualClock) -> None:
    events = supervisor.events(TaskFinished)
    supervisor.add(TaskSpec.once("t", clock.sleep, args=(3.0,)))
    event = next(events)
    assert isinstance(event, TaskFinished)
    assert clock.monotonic() == 3.0


def test_events_has_the_capacity_of_a_subscriber(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock
) -> None:
    supervisor = make_supervisor(subscriber_capacity=3)
    events = supervisor.events()
    run_one(supervisor)
    heard = [next(events) for _ in range(4)]
    assert [event.kind for event in heard] == [*STORY[:3], "events_dropped"]
    assert isinstance(heard[-1], EventsDropped)
    assert heard[-1].dropped == 2
    supervisor.shutdown()
    assert [event.kind for event in events] == ["shutdown_requested", "shutdown_completed"]


def test_closing_an_iterator_ends_it_from_another_thread_too(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    supervisor.start()
    events = supervisor.events()
    ended: list[float] = []

    def read() -> None:
        assert list(events) == []
        ended.append(clock.monotonic())

    thread = clock.spawn(read, "reader")
    clock.advance(2.0)
    events.close()
    thread.join()
    assert ended == [2.0]


def test_an_iterator_that_is_thrown_away_costs_nothing(supervisor: Supervisor, clock: VirtualClock) -> None:
    supervisor.events()
    for n in range(20):
        run_one(supervisor, f"t{n}")
    supervisor.shutdown()


def test_after_the_shutdown_a_subscription_is_closed_from_the_start(supervisor: Supervisor) -> None:
    supervisor.start()
    supervisor.shutdown()
    assert supervisor.subscribe(print).closed
    assert list(supervisor.events()) == []
