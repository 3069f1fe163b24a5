"""What is special to the queue in memory; the suite of all queues says the rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from supervisor.durable.errors import InvalidRunId, LeaseLost, QueueFull, StoreError
from supervisor.durable.queues.memory import MemoryWorkQueue
from supervisor.durable.queues.protocol import Lease
from supervisor.kernel.cancellation import CancelToken
from supervisor.testing import VirtualClock

START = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
def queue(clock: VirtualClock) -> MemoryWorkQueue:
    return MemoryWorkQueue(clock=clock)


def taken(queue: MemoryWorkQueue, seconds: float = 30.0) -> Lease:
    lease = queue.lease(seconds)
    assert lease is not None
    return lease


def test_a_run_that_is_leased_is_queued_again_at_its_ack_behind_the_others(queue: MemoryWorkQueue) -> None:
    queue.enqueue("a")
    lease = taken(queue)
    assert [queue.enqueue("a"), queue.enqueue("b"), queue.enqueue("a")] == [False, True, False]
    queue.ack(lease)
    assert [taken(queue).run_id, taken(queue).run_id, queue.lease(30.0)] == ["b", "a", None]


def test_the_run_of_a_dead_letter_that_was_queued_meanwhile_is_queued_then(queue: MemoryWorkQueue) -> None:
    queue.enqueue("a")
    lease = taken(queue)
    queue.release(lease, failed=True)
    lease = taken(queue)
    queue.enqueue("a")
    queue.dead_letter(lease, "poison")
    fresh = taken(queue)
    assert (fresh.run_id, fresh.failures, fresh.id) == ("a", 0, lease.id + 1)


def test_a_task_that_was_given_back_keeps_its_place_when_its_delay_is_over(
    queue: MemoryWorkQueue, clock: VirtualClock
) -> None:
    for run_id in "abc":
        queue.enqueue(run_id)
    queue.release(taken(queue), delay=2.0, failed=True)
    clock.advance(1.0)
    assert taken(queue).run_id == "b"
    assert queue.pending() == 2
    clock.advance(1.0)
    assert (taken(queue).run_id, taken(queue).run_id) == ("a", "c")


def test_each_end_of_a_lease_by_failure_is_counted_and_a_reclaim_is_not(
    queue: MemoryWorkQueue, clock: VirtualClock
) -> None:
    queue.enqueue("a")
    queue.release(taken(queue), failed=True)
    queue.release(taken(queue))
    late = taken(queue, 5.0)
    clock.advance(5.0)
    assert queue.lease(5.0) is None  # expired, and not stolen
    assert queue.reclaim_expired() == 1
    assert queue.reclaim_expired() == 0
    assert taken(queue).failures == 1
    with pytest.raises(LeaseLost, match="run 'a'"):
        queue.ack(late)


def test_a_heartbeat_extends_a_lease_by_its_own_length(queue: MemoryWorkQueue, clock: VirtualClock) -> None:
    queue.enqueue("a")
    first = taken(queue, 10.0)
    clock.advance(15.0)  # too late, and still valid
    second = queue.heartbeat(first)
    assert second.expires_at == START + timedelta(seconds=25)
    with pytest.raises(LeaseLost):
        queue.heartbeat(first)
    queue.ack(second)
    with pytest.raises(LeaseLost):
        queue.ack(second)


def test_seconds_to_next_is_until_the_first_delay_or_lease_ends(
    queue: MemoryWorkQueue, clock: VirtualClock
) -> None:
    assert queue.seconds_to_next() is None
    queue.enqueue("a")
    assert queue.seconds_to_next() == 0.0
    lease = taken(queue, 10.0)
    clock.advance(1.0)
    assert queue.seconds_to_next() == 9.0
    queue.enqueue("b")
    queue.release(taken(queue), delay=3.0)
    assert queue.seconds_to_next() == 3.0
    clock.advance(4.0)
    assert queue.seconds_to_next() == 0.0
    queue.ack(taken(queue))
    queue.ack(lease)
    assert queue.seconds_to_next() is None


def test_who_waits_is_woken_by_what_comes_at_the_instant_it_comes(
    queue: MemoryWorkQueue, clock: VirtualClock
) -> None:
    woken: list[float] = []

    def wait(ticket: int) -> None:
        queue.wait(ticket, 60.0)
        woken.append(clock.monotonic())

    clock.spawn(lambda: wait(queue.ticket()), "waiter")
    clock.advance(1.0)
    queue.enqueue("a")
    clock.settle()
    early = queue.ticket()
    queue.release(taken(queue))
    clock.spawn(lambda: wait(early), "late waiter")  # the ring came before the wait
    clock.settle()
    clock.spawn(lambda: wait(queue.ticket()), "patient waiter")
    clock.advance(60.0)
    assert woken == [1.0, 1.0, 61.0]


def test_a_wait_ends_with_its_token_and_with_the_queue(queue: MemoryWorkQueue, clock: VirtualClock) -> None:
    woken: list[str] = []
    stop = CancelToken(clock=clock)

    def wait(name: str, token: CancelToken | None) -> None:
        queue.wait(queue.ticket(), 60.0, token)
        woken.append(name)

    clock.spawn(lambda: wait("stopped", stop), "stopped")
    clock.spawn(lambda: wait("closed", None), "closed")
    clock.settle()
    stop.cancel()
    clock.settle()
    assert woken == ["stopped"]
    queue.close()
    queue.close()
    clock.settle()
    wait("after", None)
    assert woken == ["stopped", "closed", "after"]
    for call in (lambda: queue.enqueue("a"), lambda: queue.lease(1.0), queue.pending, queue.seconds_to_next):
        with pytest.raises(StoreError, match="closed"):
            call()


def test_a_full_queue_refuses_what_is_new_and_only_that(clock: VirtualClock) -> None:
    queue = MemoryWorkQueue(clock=clock, capacity=1)
    assert (queue.enqueue("a"), queue.enqueue("a")) == (True, False)
    with pytest.raises(QueueFull) as caught:
        queue.enqueue("b")
    assert (caught.value.pending, caught.value.capacity) == (1, 1)
    lease = taken(queue)
    assert (queue.enqueue("b"), queue.enqueue("a")) == (True, False)
    queue.ack(lease)  # its run is back in line, one more than the capacity
    assert queue.pending() == 2


def test_a_dead_letter_is_driven_again_once(queue: MemoryWorkQueue, clock: VirtualClock) -> None:
    queue.enqueue("a")
    lease = taken(queue)
    queue.dead_letter(lease, "poison")
    (letter,) = queue.dead_letters()
    assert (letter.id, letter.run_id, letter.reason, letter.at) == (lease.id, "a", "poison", START)
    assert (queue.redrive(letter.id), queue.redrive(letter.id)) == (True, False)
    assert (queue.dead_letters(), queue.pending()) == ([], 1)


@pytest.mark.parametrize("seconds", [0, 0.0, -1.0, float("nan"), float("inf")])
def test_a_lease_needs_a_length(queue: MemoryWorkQueue, seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        queue.lease(seconds)


def test_the_longest_lease_ends_with_time_itself(queue: MemoryWorkQueue) -> None:
    queue.enqueue("a")
    assert taken(queue, 1e18).expires_at == datetime.max.replace(tzinfo=UTC)


def test_arguments_are_checked(clock: VirtualClock) -> None:
    with pytest.raises(ValueError, match="capacity must be >= 1"):
        MemoryWorkQueue(capacity=0)
    with pytest.raises(InvalidRunId, match="a run id has"):
        MemoryWorkQueue().enqueue("../x")
