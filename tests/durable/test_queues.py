"""What every queue promises; runs over each of them, see conftest.py.

A `unit` of the timeline is ten virtual seconds, or a moment of real time for a queue that knows no other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from supervisor.durable.errors import InvalidRunId, LeaseLost, QueueFull
from supervisor.durable.queues.protocol import Lease
from supervisor.kernel.cancellation import CancelToken

Queue = Any
Timeline = Any
LONG = 3600.0  # seconds; no test waits for it to end


def order(queue: Queue) -> list[str]:
    """Lease and ack all that is due; the runs in the order they came."""
    found: list[str] = []
    while lease := queue.lease(LONG):
        found.append(lease.run_id)
        queue.ack(lease)
    return found


def lost(queue: Queue, lease: Lease) -> bool:
    """Whether a lease is stale in every call that takes one."""
    stale = 0
    for call in (queue.heartbeat, queue.ack, queue.release, lambda it: queue.dead_letter(it, "why")):
        try:
            call(lease)
        except LeaseLost:
            stale += 1
    assert stale in (0, 4)
    return stale == 4


# -- in line -----------------------------------------------------------------------------------


def test_an_empty_queue_has_nothing(queue: Queue) -> None:
    assert queue.lease(LONG) is None
    assert queue.pending() == 0
    assert queue.dead_letters() == []
    assert queue.seconds_to_next() is None
    assert queue.reclaim_expired() == 0
    assert queue.redrive(1) is False


def test_first_in_first_out(queue: Queue) -> None:
    for run_id in ("b", "c", "a"):
        assert queue.enqueue(run_id) is True
    assert order(queue) == ["b", "c", "a"]
    assert order(queue) == []


def test_a_run_that_stands_in_line_is_not_queued_again_and_keeps_its_place(queue: Queue) -> None:
    queue.enqueue("a")
    queue.enqueue("b")
    assert queue.enqueue("a") is False
    assert queue.pending() == 2
    assert order(queue) == ["a", "b"]


def test_what_comes_while_a_run_is_leased_queues_it_again_at_ack(queue: Queue) -> None:
    queue.enqueue("a")
    lease = queue.lease(LONG)
    queue.enqueue("b")
    assert queue.enqueue("a") is False
    assert queue.enqueue("a") is False
    assert queue.pending() == 1
    queue.ack(lease)
    assert queue.pending() == 2
    assert order(queue) == ["b", "a"]
    assert queue.pending() == 0


def test_what_came_before_the_lease_does_not_queue_the_run_again(queue: Queue) -> None:
    queue.enqueue("a")
    queue.enqueue("a")
    queue.ack(queue.lease(LONG))
    assert queue.pending() == 0


def test_what_was_queued_again_at_ack_is_queued_once(queue: Queue) -> None:
    queue.enqueue("a")
    first = queue.lease(LONG)
    queue.enqueue("a")
    queue.ack(first)
    second = queue.lease(LONG)
    assert second.run_id == "a"
    assert second.token != first.token
    assert second.failures == 0
    queue.ack(second)
    assert queue.lease(LONG) is None


def test_a_run_that_was_driven_may_be_queued_again(queue: Queue) -> None:
    queue.enqueue("a")
    order(queue)
    assert queue.enqueue("a") is True
    assert order(queue) == ["a"]


def test_a_leased_run_is_handed_to_nobody_else(queue: Queue) -> None:
    queue.enqueue("a")
    assert queue.lease(LONG) is not None
    assert queue.lease(LONG) is None


def test_pending_counts_what_is_in_line_and_delayed_but_not_what_is_leased(queue: Queue) -> None:
    for run_id in ("a", "b", "c"):
        queue.enqueue(run_id)
    assert queue.pending() == 3
    first, second = queue.lease(LONG), queue.lease(LONG)
    assert queue.pending() == 1
    queue.release(first, LONG)
    assert queue.pending() == 2
    queue.ack(second)
    assert queue.pending() == 2
    queue.dead_letter(queue.lease(LONG), "why")
    assert queue.pending() == 1


def test_an_id_that_no_run_can_have_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidRunId):
        queue.enqueue("../x")
    assert queue.pending() == 0


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_lease_needs_a_time(queue: Queue, seconds: float) -> None:
    queue.enqueue("a")
    with pytest.raises(ValueError, match="seconds"):
        queue.lease(seconds)
    assert queue.pending() == 1


# -- leases ------------------------------------------------------------------------------------


def test_a_lease_says_what_it_is_for_and_how_long(queue: Queue, timeline: Timeline) -> None:
    queue.enqueue("a")
    lease = queue.lease(timeline.unit)
    assert (lease.run_id, lease.failures) == ("a", 0)
    assert timeline.is_in(lease.expires_at, 1)
    assert lease.expires_at.utcoffset().total_seconds() == 0


def test_a_heartbeat_extends_by_as_long_as_the_lease_was_taken_for(queue: Queue, timeline: Timeline) -> None:
    queue.enqueue("a")
    first = queue.lease(timeline.unit)
    timeline.passes(0.5)
    second = queue.heartbeat(first)
    assert (second.id, second.run_id) == (first.id, "a")
    assert second.token != first.token
    assert second.expires_at > first.expires_at
    assert timeline.is_in(second.expires_at, 1)


def test_a_lease_is_stale_after_a_heartbeat_and_the_new_one_is_good(queue: Queue) -> None:
    queue.enqueue("a")
    first = queue.lease(LONG)
    second = queue.heartbeat(first)
    assert lost(queue, first)
    third = queue.heartbeat(second)
    assert lost(queue, second)
    queue.ack(third)


@pytest.mark.parametrize(
    "end",
    [
        lambda queue, lease: queue.ack(lease),
        lambda queue, lease: queue.release(lease),
        lambda queue, lease: queue.release(lease, LONG, failed=True),
        lambda queue, lease: queue.dead_letter(lease, "why"),
    ],
    ids=["ack", "release", "failed", "dead letter"],
)
def test_a_lease_is_stale_once_it_was_given_up(queue: Queue, end: Callable[[Queue, Lease], None]) -> None:
    queue.enqueue("a")
    lease = queue.lease(LONG)
    end(queue, lease)
    assert lost(queue, lease)


def test_a_stale_lease_changes_nothing_for_who_has_the_task_now(queue: Queue, timeline: Timeline) -> None:
    queue.enqueue("a")
    stale = queue.lease(timeline.unit)
    timeline.passes(1)
    assert queue.reclaim_expired() == 1
    now = queue.lease(LONG)
    assert lost(queue, stale)
    assert queue.pending() == 0
    assert queue.dead_letters() == []
    queue.ack(queue.heartbeat(now))


def test_a_lease_that_expired_is_good_until_it_is_reclaimed(queue: Queue, timeline: Timeline) -> None:
    for run_id in ("a", "b"):
        queue.enqueue(run_id)
    first, second = queue.lease(timeline.unit), queue.lease(timeline.unit)
    timeline.passes(3)
    assert queue.lease(LONG) is None
    queue.ack(first)
    again = queue.heartbeat(second)
    assert again.expires_at > second.expires_at
    assert queue.reclaim_expired() == 0 or timeline.slack > 0.0
    assert queue.dead_letters() == []


def test_reclaiming_puts_what_expired_back_in_line_and_counts_it(queue: Queue, timeline: Timeline) -> None:
    for run_id in ("a", "b", "c", "d"):
        queue.enqueue(run_id)
    first, second, third = queue.lease(timeline.unit), queue.lease(timeline.unit), queue.lease(LONG)
    assert queue.reclaim_expired() == 0 or timeline.slack > 0.0
    timeline.passes(1)  # at its very end a lease has expired
    queue.reclaim_expired()
    assert queue.pending() == 3
    assert lost(queue, first)
    assert lost(queue, second)
    assert order(queue) == ["a", "b", "d"]  # back in its place, before what came later
    queue.ack(third)


def test_reclaiming_tells_how_many(queue: Queue, timeline: Timeline) -> None:
    for run_id in ("a", "b", "c"):
        queue.enqueue(run_id)
    queue.lease(timeline.unit)
    queue.lease(timeline.unit)
    timeline.passes(1)
    assert queue.reclaim_expired() == 2
    assert queue.reclaim_expired() == 0


def test_a_heartbeat_keeps_a_lease_from_being_reclaimed(queue: Queue, timeline: Timeline) -> None:
    queue.enqueue("a")
    lease = queue.lease(LONG)
    short = queue.enqueue("b") and queue.lease(timeline.unit)
    timeline.passes(1)
    lease = queue.heartbeat(lease)
    assert queue.reclaim_expired() == 1
    assert lost(queue, short)
    queue.ack(lease)


def test_reclaiming_is_no_failed_delivery(queue: Queue, timeline: Timeline) -> None:
    queue.enqueue("a")
    queue.lease(timeline.unit)
    timeline.passes(1)
    queue.reclaim_expired()
    assert queue.lease(LONG).failures == 0


# -- release -----------------------------------------------------------------------------------


def test_what_is_released_keeps_its_place(queue: Queue) -> None:
    for run_id in ("a", "b", "c"):
        queue.enqueue(run_id)
    first, second = queue.lease(LONG), queue.lease(LONG)
    queue.release(second)
    queue.release(first)
    assert order(queue) == ["a", "b", "c"]


def test_what_is_delayed_is_not_handed_out_before_its_time(queue: Queue, timeline: Timeline) -> None:
    for run_id in ("a", "b"):
        queue.enqueue(run_id)
    queue.release(queue.lease(LONG), 2 * timeline.unit)
    assert order(queue) == ["b"]
    timeline.passes(1)
    assert order(queue) == [] or timeline.slack > 0.0
    timeline.passes(1)
    queue.enqueue("c")
    assert order(queue) in (["a", "c"], ["c"])
    assert queue.pending() == 0


def test_what_was_delayed_comes_in_its_old_place(queue: Queue, timeline: Timeline) -> None:
    for run_id in ("a", "b"):
        queue.enqueue(run_id)
    queue.release(queue.lease(LONG), timeline.unit)
    timeline.passes(1)
    assert order(queue) == ["a", "b"]


def test_a_run_that_is_delayed_is_not_queued_again(queue: Queue) -> None:
    queue.enqueue("a")
    queue.release(queue.lease(LONG), LONG)
    assert queue.enqueue("a") is False
    assert queue.pending() == 1


def test_a_negative_delay_is_refused_and_the_lease_is_good(queue: Queue) -> None:
    queue.enqueue("a")
    lease = queue.lease(LONG)
    with pytest.raises(ValueError, match="delay"):
        queue.release(lease, -1.0)
    queue.ack(lease)


def test_only_failed_deliveries_are_counted(queue: Queue) -> None:
    queue.enqueue("a")
    found: list[int] = []
    for failed in (True, False, True, False):
        lease = queue.lease(LONG)
        found.append(lease.failures)
        queue.release(lease, failed=failed)
    found.append(queue.heartbeat(queue.lease(LONG)).failures)
    assert found == [0, 1, 1, 2, 2]


def test_failures_are_forgotten_once_the_run_was_driven(queue: Queue) -> None:
    queue.enqueue("a")
    queue.release(queue.lease(LONG), failed=True)
    lease = queue.lease(LONG)
    queue.enqueue("a")
    queue.ack(lease)
    assert queue.lease(LONG).failures == 0


# -- dead letters ------------------------------------------------------------------------------


def test_dead_letters_say_what_why_and_when_the_oldest_first(queue: Queue, timeline: Timeline) -> None:
    for run_id in ("a", "b"):
        queue.enqueue(run_id)
    first, second = queue.lease(LONG), queue.lease(LONG)
    queue.dead_letter(second, "lost its \0 way ü")
    timeline.passes(0.1)
    queue.dead_letter(first, "and this")
    letters = queue.dead_letters()
    assert [(each.run_id, each.reason) for each in letters] == [("b", "lost its \0 way ü"), ("a", "and this")]
    assert letters[0].at < letters[1].at
    assert timeline.is_in(letters[1].at, 0)
    assert len({each.id for each in letters}) == 2
    assert queue.lease(LONG) is None
    assert queue.seconds_to_next() is None


def test_a_dead_letter_is_queued_again_once(queue: Queue) -> None:
    queue.enqueue("a")
    queue.release(queue.lease(LONG), failed=True)
    queue.dead_letter(queue.lease(LONG), "why")
    letter = queue.dead_letters()[0]
    assert queue.redrive(letter.id) is True
    assert queue.redrive(letter.id) is False
    assert queue.dead_letters() == []
    lease = queue.lease(LONG)
    assert (lease.run_id, lease.failures) == ("a", 0)
    assert queue.lease(LONG) is None


@pytest.mark.parametrize("id", [None, "1", 1.0, True])
def test_what_is_no_int_is_no_dead_letter(queue: Queue, id: Any) -> None:
    queue.enqueue("a")
    queue.dead_letter(queue.lease(LONG), "why")
    with pytest.raises(TypeError, match="id must be an int"):
        queue.redrive(id)
    assert len(queue.dead_letters()) == 1


def test_what_is_no_lease_and_no_reason_is_refused(queue: Queue) -> None:
    queue.enqueue("a")
    lease = queue.lease(LONG)
    for call in (queue.ack, queue.heartbeat, queue.release, lambda it: queue.dead_letter(it, "why")):
        for value in (None, 3, "a"):
            with pytest.raises(TypeError, match="lease must be a Lease, as lease"):
                call(value)  # type: ignore[operator]
    for reason in (None, 5):
        with pytest.raises(TypeError, match="reason must be a str, got"):
            queue.dead_letter(lease, reason)
    queue.ack(lease)  # nothing has changed
    assert queue.dead_letters() == []


@pytest.mark.parametrize("id", [0, -1, 2**63 - 1, -(2**63), 2**63, -(2**64), 10**30])
def test_no_letter_has_an_id_that_was_never_given(queue: Queue, id: int) -> None:
    assert queue.redrive(id) is False


def test_a_run_with_a_dead_letter_may_be_queued_and_stays_queued_once(queue: Queue) -> None:
    queue.enqueue("a")
    queue.dead_letter(queue.lease(LONG), "why")
    assert queue.enqueue("a") is True
    assert queue.redrive(queue.dead_letters()[0].id) is True
    assert queue.pending() == 1
    assert order(queue) == ["a"]


def test_a_letter_that_is_redriven_while_its_run_is_leased_queues_it_at_ack(queue: Queue) -> None:
    queue.enqueue("a")
    queue.dead_letter(queue.lease(LONG), "why")
    queue.enqueue("a")
    lease = queue.lease(LONG)
    assert queue.redrive(queue.dead_letters()[0].id) is True
    queue.ack(lease)
    assert order(queue) == ["a"]


def test_what_came_while_a_task_was_leased_is_queued_when_that_becomes_a_dead_letter(queue: Queue) -> None:
    queue.enqueue("a")
    lease = queue.lease(LONG)
    queue.enqueue("a")
    queue.dead_letter(lease, "why")
    assert len(queue.dead_letters()) == 1
    assert order(queue) == ["a"]


# -- capacity ----------------------------------------------------------------------------------


def test_a_queue_at_its_capacity_is_full(make_queue: Callable[..., Queue]) -> None:
    queue = make_queue(capacity=2)
    queue.enqueue("a")
    queue.enqueue("b")
    with pytest.raises(QueueFull) as caught:
        queue.enqueue("c")
    assert (caught.value.pending, caught.value.capacity) == (2, 2)
    assert queue.enqueue("a") is False  # it adds nothing
    assert order(queue) == ["a", "b"]
    assert queue.enqueue("c") is True


def test_what_was_in_the_queue_before_comes_back_into_a_full_one(make_queue: Callable[..., Queue]) -> None:
    queue = make_queue(capacity=1)
    queue.enqueue("a")
    first = queue.lease(LONG)
    queue.enqueue("b")
    queue.release(first)
    second = queue.lease(LONG)
    queue.enqueue("a")
    queue.ack(second)
    assert queue.pending() == 2
    with pytest.raises(QueueFull):
        queue.enqueue("c")
    assert sorted(order(queue)) == ["a", "b"]


def test_a_capacity_of_none_at_all_is_refused(make_queue: Callable[..., Queue]) -> None:
    with pytest.raises(ValueError, match="capacity"):
        make_queue(capacity=0)


# -- when to look again ------------------------------------------------------------------------


def test_seconds_to_next_tells_when_a_task_may_come_due(queue: Queue, timeline: Timeline) -> None:
    for run_id in ("a", "b"):
        queue.enqueue(run_id)
    assert queue.seconds_to_next() == 0.0
    first = queue.lease(4 * timeline.unit)
    assert queue.seconds_to_next() == 0.0  # b is due
    second = queue.lease(2 * timeline.unit)
    assert timeline.lasts(queue.seconds_to_next(), 2)  # the lease of b ends
    queue.release(second, 3 * timeline.unit)
    assert timeline.lasts(queue.seconds_to_next(), 3)  # the delay of b ends
    timeline.passes(2)
    assert timeline.lasts(queue.seconds_to_next(), 1)
    first = queue.heartbeat(first)
    timeline.passes(1)
    assert queue.seconds_to_next() == 0.0
    queue.ack(queue.lease(LONG))
    assert timeline.lasts(queue.seconds_to_next(), 3)  # the lease of a ends
    timeline.passes(4)
    assert queue.seconds_to_next() == 0.0  # it has, and waits to be reclaimed
    queue.ack(first)
    assert queue.seconds_to_next() is None


def test_at_the_end_of_seconds_to_next_there_is_something_to_do(queue: Queue, timeline: Timeline) -> None:
    queue.enqueue("a")
    queue.release(queue.lease(LONG), timeline.unit)
    timeline.passes(1)
    assert queue.lease(timeline.unit) is not None
    timeline.passes(1)
    assert queue.reclaim_expired() == 1


# -- waiting -----------------------------------------------------------------------------------


class Waiter:
    """A thread of the timeline that waits for a ring after the ticket; `lasted` seconds once it has ended."""

    def __init__(
        self, queue: Queue, timeline: Timeline, timeout: float = LONG, stop: CancelToken | None = None
    ) -> None:
        ticket = queue.ticket()
        clock = timeline.clock
        start = clock.monotonic()
        self.lasted: float | None = None

        def waits() -> None:
            queue.wait(ticket, timeout, stop)
            self.lasted = clock.monotonic() - start

        self.thread = clock.spawn(waits, "waiter")
        timeline.settle()

    def ended_at_once(self, timeline: Timeline) -> bool:
        self.thread.join(20.0)
        return self.lasted is not None and self.lasted <= timeline.slack


def leased(queue: Queue) -> Lease:
    queue.enqueue("a")
    return queue.lease(LONG)


def expire(queue: Queue, timeline: Timeline) -> None:
    queue.enqueue("a")
    queue.lease(timeline.unit)
    timeline.passes(1)


def again(queue: Queue) -> Lease:
    lease = leased(queue)
    queue.enqueue("a")
    return lease


def dead(queue: Queue) -> int:
    queue.dead_letter(leased(queue), "why")
    return queue.dead_letters()[0].id


RINGS: dict[str, tuple[Callable[[Queue, Timeline], Any], Callable[[Queue, Any], Any]]] = {
    "enqueue": (lambda queue, _: None, lambda queue, _: queue.enqueue("a")),
    "release": (lambda queue, _: leased(queue), lambda queue, lease: queue.release(lease)),
    "again at ack": (lambda queue, _: again(queue), lambda queue, lease: queue.ack(lease)),
    "reclaim": (expire, lambda queue, _: queue.reclaim_expired()),
    "redrive": (lambda queue, _: dead(queue), lambda queue, id: queue.redrive(id)),
    "close": (lambda queue, _: None, lambda queue, _: queue.close()),
}


@pytest.mark.parametrize(("before", "ring"), RINGS.values(), ids=RINGS)
def test_who_waits_is_woken_when_a_task_may_have_come(
    queue: Queue, timeline: Timeline, before: Any, ring: Any
) -> None:
    state = before(queue, timeline)
    waiter = Waiter(queue, timeline)
    ring(queue, state)
    assert waiter.ended_at_once(timeline)


@pytest.mark.parametrize(("before", "ring"), RINGS.values(), ids=RINGS)
def test_a_ring_between_the_ticket_and_the_wait_is_not_missed(
    queue: Queue, timeline: Timeline, before: Any, ring: Any
) -> None:
    state = before(queue, timeline)
    ticket = queue.ticket()
    ring(queue, state)
    start = timeline.clock.monotonic()
    queue.wait(ticket, LONG)
    assert timeline.clock.monotonic() - start <= timeline.slack


def test_all_who_wait_are_woken(queue: Queue, timeline: Timeline) -> None:
    waiters = [Waiter(queue, timeline) for _ in range(3)]
    queue.enqueue("a")
    assert [each.ended_at_once(timeline) for each in waiters] == [True] * 3


def test_a_wait_ends_when_its_token_is_canceled(queue: Queue, timeline: Timeline) -> None:
    stop = CancelToken(clock=timeline.clock)
    waiter = Waiter(queue, timeline, stop=stop)
    stop.cancel()
    assert waiter.ended_at_once(timeline)


def test_a_wait_with_a_token_that_was_canceled_ends_at_once(queue: Queue, timeline: Timeline) -> None:
    stop = CancelToken(clock=timeline.clock)
    stop.cancel()
    start = timeline.clock.monotonic()
    queue.wait(queue.ticket(), LONG, stop)
    assert timeline.clock.monotonic() - start <= timeline.slack


def test_a_wait_ends_after_its_timeout(queue: Queue, timeline: Timeline) -> None:
    start = timeline.clock.monotonic()
    queue.wait(queue.ticket(), timeline.unit)
    lasted = timeline.clock.monotonic() - start
    assert timeline.unit - 0.01 <= lasted <= timeline.unit + timeline.slack


def test_closing_twice_is_the_same_as_once(queue: Queue) -> None:
    queue.enqueue("a")
    queue.close()
    queue.close()


# -- many threads ------------------------------------------------------------------------------


def test_threads_that_take_at_once_never_take_the_same_task(queue: Queue) -> None:
    runs = [f"r{i:03}" for i in range(80)]
    for each in runs:
        queue.enqueue(each)
    taken: list[list[str]] = [[] for _ in range(8)]
    line = threading.Barrier(8, timeout=30)

    def takes(mine: list[str]) -> None:
        line.wait()
        mine += order(queue)

    threads = [threading.Thread(target=takes, args=(mine,)) for mine in taken]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(run_id for mine in taken for run_id in mine) == runs
    assert all(mine == sorted(mine) for mine in taken)
    assert queue.pending() == 0


def test_threads_that_queue_one_run_at_once_queue_it_once(queue: Queue) -> None:
    added: list[bool] = []
    line = threading.Barrier(8, timeout=30)

    def adds() -> None:
        for number in range(10):
            line.wait()
            added.append(queue.enqueue(f"r{number}"))

    threads = [threading.Thread(target=adds) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(added) == [False] * 70 + [True] * 10
    assert queue.pending() == 10


def test_a_run_is_leased_from_the_lease_to_its_end(queue: Queue) -> None:
    queue.enqueue("a")
    assert not queue.leased("a")
    lease = queue.lease(LONG)
    assert queue.leased("a")
    assert not queue.leased("b")
    queue.ack(queue.heartbeat(lease))
    assert not queue.leased("a")
