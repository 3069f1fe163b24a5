"""Inbox: messages that are never lost, and a bell that costs nothing when nobody sleeps."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from supervisor.kernel.clock import SYSTEM_CLOCK
from supervisor.kernel.inbox import AT_ONCE, Inbox
from supervisor.testing import VirtualClock


def nothing() -> None:
    """A message that is only compared."""


def messages(count: int) -> list:
    return [lambda n=n: n for n in range(count)]


@pytest.fixture
def inbox(clock: VirtualClock) -> Inbox:
    return Inbox(clock)


def test_messages_come_in_the_order_of_posting(inbox) -> None:
    sent = messages(3)
    for message in sent:
        inbox.post(message)
    assert [inbox.take(lambda: None) for _ in range(3)] == sent
    assert inbox.take(lambda: AT_ONCE) is None


def test_take_waits_no_longer_than_its_patience(inbox, clock) -> None:
    assert inbox.take(lambda: 5.0) is None
    assert (inbox.quiet, clock.monotonic()) == (True, 5.0)


def test_take_without_patience_is_not_quiet_and_takes_no_time(inbox, clock) -> None:
    assert inbox.take(lambda: AT_ONCE) is None
    assert (inbox.quiet, clock.monotonic()) == (False, 0.0)


def test_a_message_is_no_silence(inbox, clock) -> None:
    inbox.take(lambda: 1.0)
    inbox.post(nothing)
    assert inbox.take(lambda: 1.0) is nothing
    assert (inbox.quiet, clock.monotonic()) == (False, 1.0)


@pytest.mark.parametrize("how", ["post", "ring"])
def test_a_sleeping_owner_is_woken_at_once(inbox, clock, how) -> None:
    got: list[tuple[object, bool, float]] = []

    def own() -> None:
        message = inbox.take(lambda: None)
        got.append((message, inbox.quiet, clock.monotonic()))

    clock.spawn(own, "owner")
    clock.advance(5)
    if how == "post":
        inbox.post(nothing)
    else:
        inbox.ring()
        inbox.ring()
    clock.settle()
    assert got == [(nothing if how == "post" else None, False, 5.0)]


def test_a_bell_rings_nobody_who_is_awake(inbox) -> None:
    inbox.ring()
    assert inbox._queue.empty()
    assert inbox.take(lambda: AT_ONCE) is None


def test_a_ring_between_the_question_and_the_wait_is_heard(inbox, clock) -> None:
    def patience() -> float | None:
        inbox.ring()
        return None

    assert inbox.take(patience) is None
    assert (inbox.quiet, clock.monotonic()) == (False, 0.0)


def test_take_waiting_never_blocks_and_skips_rings(inbox) -> None:
    assert inbox.take_waiting() is None

    def patience() -> float | None:
        inbox.ring()
        inbox.post(nothing)
        return AT_ONCE

    assert inbox.take(patience) is None  # the ring
    assert inbox.take_waiting() is nothing
    assert inbox.take_waiting() is None


def test_a_very_long_patience_is_cut_to_what_one_wait_may_last(inbox, clock) -> None:
    assert inbox.take(lambda: 1e300) is None
    assert clock.monotonic() == 1e8


def test_a_patience_that_raises_leaves_the_inbox_usable(inbox) -> None:
    def patience() -> float | None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        inbox.take(patience)
    inbox.post(nothing)
    assert inbox.take(lambda: None) is nothing


@pytest.mark.parametrize("seed", range(20))
def test_no_message_is_lost_and_each_sender_is_heard_in_order(seed) -> None:
    clock = VirtualClock(seed)
    inbox = Inbox(clock)
    got: list[tuple[int, int]] = []

    def own() -> None:
        while len(got) < 20:
            message = inbox.take(lambda: None)
            if message is not None:
                message()

    def send(sender: int) -> None:
        for n in range(5):
            inbox.post(lambda n=n: got.append((sender, n)))
            inbox.ring()

    threads = [clock.spawn(own, "owner")]
    threads += [clock.spawn(lambda sender=sender: send(sender), "sender") for sender in range(4)]
    for thread in threads:
        thread.join()
    assert [[n for s, n in got if s == sender] for sender in range(4)] == [[0, 1, 2, 3, 4]] * 4


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_on_the_real_clock_no_ring_is_lost(frequent_switches) -> None:
    inbox, work, seen = Inbox(SYSTEM_CLOCK), [0] * 4, [0]

    def own() -> None:
        while seen[0] < 4 * 500:
            inbox.take(lambda: AT_ONCE if sum(work) > seen[0] else None)
            seen[0] = sum(work)

    def send(sender: int) -> None:
        for _ in range(500):
            work[sender] += 1  # left where the owner looks, then rung
            inbox.ring()

    threads = [threading.Thread(target=own, daemon=True)]
    threads += [threading.Thread(target=send, args=(sender,), daemon=True) for sender in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
