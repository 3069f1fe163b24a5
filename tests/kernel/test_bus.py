"""The event bus by itself: publish, pump, mailboxes, delivery, close."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from supervisor.kernel.bus import EventBus
from supervisor.kernel.event import Event, EventsDropped, SubscriberFailed
from supervisor.kernel.inbox import Inbox
from supervisor.testing import VirtualClock


@dataclass(frozen=True, slots=True, kw_only=True)
class BusTested(Event):
    """An event of these tests."""

    number: int


@dataclass
class Task:
    """An owner of events."""

    closed: bool = False


@pytest.fixture
def make_bus(clock: VirtualClock) -> Iterator[Callable[..., EventBus]]:
    made: list[EventBus] = []

    def make(capacity: int = 100, subscriber_capacity: int = 100) -> EventBus:
        bus = EventBus(
            clock, Inbox(clock), name="test", capacity=capacity, subscriber_capacity=subscriber_capacity
        )
        made.append(bus)
        return bus

    yield make
    for bus in made:
        bus.close(0.0)
    clock.settle()


def hear(bus: EventBus, callback: Callable[[Event], object], **settings: object) -> None:
    arguments = {"kinds": None, "name": "ear", "capacity": None} | settings
    bus.subscribe(callback, **arguments)  # type: ignore[arg-type]


def numbers(events: list[Event]) -> list[object]:
    return [event.number if isinstance(event, BusTested) else event.kind for event in events]


def test_building_a_bus_and_subscribing_starts_no_thread(
    make_bus: Callable[..., EventBus], clock: VirtualClock
) -> None:
    bus, got = make_bus(), list[Event]()
    hear(bus, got.append)
    bus.publish(None, BusTested, 1)
    bus.pump()
    clock.settle()
    assert got == []
    bus.start()
    clock.settle()
    assert numbers(got) == [1]


def test_nothing_is_queued_while_nobody_listens(
    make_bus: Callable[..., EventBus], clock: VirtualClock
) -> None:
    bus, got = make_bus(), list[Event]()
    bus.start()
    bus.publish(None, BusTested, 1)
    assert not bus.waiting
    hear(bus, got.append)
    bus.publish(None, BusTested, 2)
    assert bus.waiting
    bus.pump()
    clock.settle()
    assert [(event.seq, event.number) for event in got if isinstance(event, BusTested)] == [(1, 2)]


def test_nothing_is_heard_before_the_pump(make_bus: Callable[..., EventBus], clock: VirtualClock) -> None:
    bus, got = make_bus(), list[Event]()
    hear(bus, got.append)
    bus.start()
    bus.publish(None, BusTested, 1)
    clock.settle()
    assert got == []
    bus.pump()
    clock.settle()
    assert numbers(got) == [1]


def test_publish_now_comes_after_all_that_waits_in_line(
    make_bus: Callable[..., EventBus], clock: VirtualClock
) -> None:
    bus, got = make_bus(capacity=1), list[Event]()
    hear(bus, got.append)
    bus.start()
    bus.publish(None, BusTested, 1)
    bus.publish_now(BusTested, 2)
    bus.publish_now(BusTested, 3)
    clock.settle()
    assert numbers(got) == [1, 2, 3]


def test_an_event_is_stamped_when_it_is_published_not_when_it_is_heard(
    make_bus: Callable[..., EventBus], clock: VirtualClock
) -> None:
    bus, got = make_bus(), list[Event]()
    hear(bus, got.append)
    bus.start()
    published = clock.now()
    bus.publish(None, BusTested, 1)
    clock.advance(5.0)
    bus.pump()
    clock.settle()
    assert [event.at for event in got] == [published]


def test_late_events_of_an_owner_that_was_closed_are_dropped_and_leave_no_gap(
    make_bus: Callable[..., EventBus], clock: VirtualClock
) -> None:
    bus, got, owner, other = make_bus(), list[Event](), Task(), Task()
    hear(bus, got.append)
    bus.start()
    for number in range(4):
        bus.publish(owner if number % 2 else other, BusTested, number)
    owner.closed = True
    bus.pump()
    clock.settle()
    assert numbers(got) == [0, 2]
    assert [event.seq for event in got] == [1, 2]


@pytest.mark.parametrize("capacity", [1, 3])
def test_a_full_line_drops_the_newest_and_tells_everybody_how_many(
    make_bus: Callable[..., EventBus], clock: VirtualClock, capacity: int
) -> None:
    bus, got, other = make_bus(capacity=capacity), list[Event](), list[Event]()
    hear(bus, got.append)
    hear(bus, other.append)
    bus.start()
    for number in range(10):
        bus.publish(None, BusTested, number)
    bus.pump()
    clock.settle()
    assert numbers(got) == [*range(capacity), "events_dropped"]
    assert other == got
    last = got[-1]
    assert isinstance(last, EventsDropped)
    assert (last.seq, last.subscriber, last.dropped) == (capacity + 1, "bus", 10 - capacity)


def test_a_full_mailbox_drops_the_newest_of_that_subscriber_only(
    make_bus: Callable[..., EventBus], clock: VirtualClock
) -> None:
    bus, got, other = make_bus(), list[Event](), list[Event]()
    hear(bus, got.append, capacity=2, name="small")
    hear(bus, other.append)
    bus.start()
    for number in range(5):
        bus.publish(None, BusTested, number)
    bus.pump()
    clock.settle()
    assert numbers(got) == [0, 1, "events_dropped"]
    assert numbers(other) == [0, 1, 2, 3, 4]
    last = got[-1]
    assert isinstance(last, EventsDropped)
    assert (last.seq, last.subscriber, last.dropped) == (6, "small", 3)


def test_many_losses_before_it_has_caught_up_are_one_eventsdropped(
    make_bus: Callable[..., EventBus], clock: VirtualClock
) -> None:
    bus, got, latch = make_bus(), list[Event](), clock.latch()

    def slow(event: Event) -> None:
        got.append(event)
        latch.wait()

    hear(bus, slow, capacity=1)
    bus.start()
    for number in range(20):
        bus.publish(None, BusTested, number)
        bus.pump()
        clock.settle()
    latch.open()
    clock.settle()
    assert numbers(got) == [0, 1, "events_dropped"]
    assert isinstance(got[-1], EventsDropped)
    assert got[-1].dropped == 18


def test_who_loses_all_the_time_still_hears_something_and_is_told_each_time(
    make_bus: Callable[..., EventBus], clock: VirtualClock
) -> None:
    bus, got = make_bus(), list[Event]()
    hear(bus, got.append, capacity=1)
    bus.start()
    for _ in range(5):
        for number in range(3):
            bus.publish(None, BusTested, number)
        bus.pump()
        clock.settle()
    assert numbers(got) == [0, "events_dropped"] * 5
    assert [event.dropped for event in got if isinstance(event, EventsDropped)] == [2] * 5


def test_subscribers_of_one_thread_take_turns(make_bus: Callable[..., EventBus], clock: VirtualClock) -> None:
    bus, order = make_bus(capacity=1000, subscriber_capacity=1000), list[str]()
    for name in ("a", "b"):
        hear(bus, lambda _, name=name: order.append(name))
    bus.start()
    for number in range(200):
        bus.publish(None, BusTested, number)
    bus.pump()
    clock.settle()
    assert sorted(order) == ["a"] * 200 + ["b"] * 200
    assert order.index("b") == 64


def test_the_failure_of_a_subscriber_is_told_to_the_others_in_order(
    make_bus: Callable[..., EventBus], clock: VirtualClock
) -> None:
    bus, got = make_bus(), list[Event]()

    def fails(event: Event) -> None:
        raise ValueError("deaf")

    hear(bus, fails, name="bad")
    hear(bus, got.append)
    bus.start()
    for number in range(3):
        bus.publish(None, BusTested, number)
        bus.pump()
        clock.settle()
    assert numbers(got) == [0, "subscriber_failed", 1, "subscriber_failed", 2, "subscriber_failed"]
    assert [event.seq for event in got] == [1, 2, 3, 4, 5, 6]
    assert {event.subscriber for event in got if isinstance(event, SubscriberFailed)} == {"bad"}


def test_close_delivers_what_is_queued_and_is_final(
    make_bus: Callable[..., EventBus], clock: VirtualClock
) -> None:
    bus, got = make_bus(), list[Event]()
    hear(bus, got.append)
    bus.start()
    for number in range(3):
        bus.publish(None, BusTested, number)
    assert bus.close(5.0) is True
    assert numbers(got) == [0, 1, 2]
    bus.publish(None, BusTested, 3)
    bus.pump()
    assert bus.close(5.0) is True
    clock.settle()
    assert len(got) == 3


def test_blocked_subscribers_share_the_time_to_close(
    make_bus: Callable[..., EventBus], clock: VirtualClock
) -> None:
    bus, latch = make_bus(), clock.latch()
    for _ in range(3):
        hear(bus, lambda _: latch.wait(), dedicated=True)
    bus.start()
    bus.publish(None, BusTested, 1)
    bus.pump()
    clock.settle()
    assert bus.close(2.0) is False
    assert clock.monotonic() == 2.0
    latch.open()
    clock.settle()


def test_what_could_not_be_delivered_in_time_is_never_delivered(
    make_bus: Callable[..., EventBus], clock: VirtualClock
) -> None:
    bus, got, latch = make_bus(), list[Event](), clock.latch()

    def slow(event: Event) -> None:
        got.append(event)
        latch.wait()

    hear(bus, slow)
    bus.start()
    for number in range(3):
        bus.publish(None, BusTested, number)
    bus.pump()
    clock.settle()
    assert bus.close(0.0) is False
    latch.open()
    clock.advance(10.0)
    assert numbers(got) == [0]


def test_an_iterator_takes_its_events_on_the_iterating_thread(
    make_bus: Callable[..., EventBus], clock: VirtualClock
) -> None:
    bus = make_bus()
    bus.start()
    events = bus.stream([BusTested])
    for number in range(3):
        bus.publish(None, BusTested, number)
    bus.pump()
    assert numbers([next(events), next(events)]) == [0, 1]
    bus.close(1.0)
    assert numbers(list(events)) == [2]


def test_a_class_stands_for_all_below_it_and_is_found_by_its_label() -> None:
    assert BusTested.kind == "bus_tested"
    event = BusTested(seq=1, at=VirtualClock().now(), number=4)
    assert event.to_dict() == {"kind": "bus_tested", "seq": 1, "at": "2000-01-01T00:00:00+00:00", "number": 4}
