"""What only the queue in PostgreSQL does: it is told of tasks of other processes, and bears lost connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from supervisor.durable.errors import LeaseLost
from supervisor.durable.queues.postgres import PostgresWorkQueue
from tests.durable.postgres_proxy import Proxy
from tests.postgres_server import PostgresServer

LONG = 30.0  # seconds; no wait is meant to last so long
SOON = 5.0  # seconds; a wait that is ended by a message is over much earlier

OpenQueue = Callable[..., PostgresWorkQueue]


@pytest.fixture
def open_queue() -> Iterator[OpenQueue]:
    opened: list[PostgresWorkQueue] = []

    def make(dsn: str, **options: Any) -> PostgresWorkQueue:
        opened.append(PostgresWorkQueue(dsn, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.fixture
def proxy(pg_of_our_own: str) -> Iterator[Proxy]:
    made = Proxy(pg_of_our_own)
    yield made
    made.close()


def listening(queue: PostgresWorkQueue) -> PostgresWorkQueue:
    """Return the queue, empty, once its thread listens: it rings then if there are tasks."""
    queue.enqueue("first")
    ticket = queue.ticket()
    queue.wait(ticket, LONG)
    assert queue.ticket() == ticket + 1
    lease = queue.lease(LONG)
    assert lease is not None
    queue.ack(lease)
    return queue


def seconds_of_wait(queue: PostgresWorkQueue, ticket: int) -> float:
    start = time.monotonic()
    queue.wait(ticket, LONG)
    return time.monotonic() - start


def test_a_task_of_another_queue_ends_the_wait(pg_dsn: str, open_queue: OpenQueue) -> None:
    here, there = listening(open_queue(pg_dsn)), open_queue(pg_dsn)
    ticket = here.ticket()
    there.enqueue("r")
    assert seconds_of_wait(here, ticket) < SOON
    found = here.lease(LONG)
    assert found is not None
    assert found.run_id == "r"


def test_a_release_and_an_ack_that_queues_again_end_the_wait_elsewhere(
    pg_dsn: str, open_queue: OpenQueue
) -> None:
    here, there = listening(open_queue(pg_dsn)), open_queue(pg_dsn)
    there.enqueue("r")
    lease = there.lease(LONG)
    assert lease is not None
    here.wait(here.ticket(), 0.0)
    ticket = here.ticket()
    there.release(lease)
    assert seconds_of_wait(here, ticket) < SOON
    lease = there.lease(LONG)
    assert lease is not None
    there.enqueue("r")
    ticket = here.ticket()
    there.ack(lease)
    assert seconds_of_wait(here, ticket) < SOON


def test_its_own_tasks_ring_once(pg_dsn: str, open_queue: OpenQueue) -> None:
    here, there = listening(open_queue(pg_dsn)), open_queue(pg_dsn)
    ticket = here.ticket()
    here.enqueue("a")
    there.enqueue("b")
    here.wait(ticket + 1, LONG)  # what `there` said came after what `here` said
    assert here.ticket() == ticket + 2


def test_queues_in_other_schemas_are_not_woken(
    pg_dsn: str, pg_of_our_own: str, open_queue: OpenQueue
) -> None:
    here, elsewhere = listening(open_queue(pg_dsn)), open_queue(pg_of_our_own)
    beside = open_queue(pg_dsn)
    ticket = here.ticket()
    elsewhere.enqueue("a")
    beside.enqueue("b")
    here.wait(ticket, LONG)
    assert here.ticket() == ticket + 1


def test_a_queue_that_may_not_notify_tells_nobody_and_listens_to_nobody(
    pg_dsn: str, open_queue: OpenQueue
) -> None:
    here, quiet, loud = listening(open_queue(pg_dsn)), open_queue(pg_dsn, notify=False), open_queue(pg_dsn)
    ticket = here.ticket()
    quiet.enqueue("a")
    loud.enqueue("b")
    here.wait(ticket, LONG)
    assert here.ticket() == ticket + 1
    before = quiet.ticket()
    quiet.wait(before, 0.05)
    assert quiet.ticket() == before


def test_it_listens_again_after_a_restart(
    pg_server: PostgresServer, pg_of_our_own: str, open_queue: OpenQueue
) -> None:
    here, there = listening(open_queue(pg_of_our_own)), open_queue(pg_of_our_own)
    ticket = here.ticket()
    pg_server.restart()
    there.enqueue("r")  # before or after it listens again: either way it hears of it
    assert seconds_of_wait(here, ticket) < SOON
    lease = here.lease(LONG)
    assert lease is not None
    here.ack(lease)


def test_closing_ends_the_thread_at_once(pg_dsn: str, open_queue: OpenQueue) -> None:
    queue = listening(open_queue(pg_dsn))
    start = time.monotonic()
    queue.close()
    assert time.monotonic() - start < 0.5


def test_closing_ends_the_thread_also_while_the_server_is_away(
    pg_server: PostgresServer, pg_of_our_own: str, open_queue: OpenQueue
) -> None:
    queue = listening(open_queue(pg_of_our_own))
    pg_server.stop()
    try:
        start = time.monotonic()
        queue.close()
        assert time.monotonic() - start < 0.5
    finally:
        pg_server.start()


# -- the answer is lost ------------------------------------------------------------------------


def test_a_lease_whose_answer_was_lost_is_the_same_lease(proxy: Proxy, open_queue: OpenQueue) -> None:
    queue = open_queue(proxy.dsn)
    queue.enqueue("a")
    queue.enqueue("b")
    proxy.swallow_the_next_answer()
    lease = queue.lease(LONG)
    assert proxy.swallowed == 1
    assert lease is not None
    assert lease.run_id == "a"
    assert queue.pending() == 1
    proxy.swallow_the_next_answer()
    fresh = queue.heartbeat(lease)
    assert proxy.swallowed == 2
    with pytest.raises(LeaseLost):
        queue.ack(lease)
    proxy.swallow_the_next_answer()
    queue.ack(fresh)
    assert proxy.swallowed == 3
    with pytest.raises(LeaseLost):
        queue.ack(fresh)


def test_a_task_whose_burial_was_not_answered_is_buried_once(proxy: Proxy, open_queue: OpenQueue) -> None:
    queue = open_queue(proxy.dsn)
    queue.enqueue("a")
    lease = queue.lease(LONG)
    assert lease is not None
    proxy.swallow_the_next_answer()
    queue.dead_letter(lease, "why")
    assert proxy.swallowed == 1
    assert [(each.run_id, each.reason) for each in queue.dead_letters()] == [("a", "why")]


def test_a_lease_may_be_as_long_as_one_likes(pg_dsn: str, open_queue: OpenQueue) -> None:
    queue = open_queue(pg_dsn)
    queue.enqueue("a")
    lease = queue.lease(1e15)
    assert lease is not None
    lease = queue.heartbeat(lease)
    assert lease.expires_at.year > 2100
    queue.release(lease, delay=1e15)
    assert queue.pending() == 1
    assert queue.lease(LONG) is None


@pytest.mark.parametrize("dsn", [None, 5])
def test_what_is_no_address_is_refused_at_once(dsn: Any) -> None:
    with pytest.raises(TypeError, match="dsn must be a str such as"):
        PostgresWorkQueue(dsn)
