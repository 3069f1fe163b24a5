"""Permits: at most so many, first come first served, given on by a waiter that is canceled."""

from __future__ import annotations

import pytest

from supervisor import CancelToken
from supervisor.kernel.permits import Permits
from supervisor.testing import VirtualClock


def holder(
    clock: VirtualClock, permits: Permits, log: list[tuple[str, float]], name: str, seconds: float
) -> CancelToken:
    """Start a thread that holds a permit for `seconds`; return the token that cancels its wait."""
    token = CancelToken(clock=clock)

    def hold() -> None:
        if not permits.acquire(token):
            log.append((f"{name} canceled", clock.monotonic()))
            return
        log.append((name, clock.monotonic()))
        clock.sleep(seconds)
        permits.release()

    clock.spawn(hold, name)
    clock.settle()
    return token


def test_permits_are_granted_in_the_order_of_asking(clock) -> None:
    permits, log = Permits(clock, 2), []
    for name, seconds in (("a", 10), ("b", 4), ("c", 3), ("d", 1), ("e", 1)):
        holder(clock, permits, log, name, seconds)
    clock.advance(100)
    assert log == [("a", 0.0), ("b", 0.0), ("c", 4.0), ("d", 7.0), ("e", 8.0)]


def test_a_permit_that_is_free_is_granted_without_waiting(clock) -> None:
    permits, token = Permits(clock, 2), CancelToken(clock=clock)
    assert permits.acquire(token)
    assert permits.acquire(token)
    permits.release()
    assert permits.acquire(token)


def test_a_canceled_token_gets_none(clock) -> None:
    permits, token = Permits(clock, 1), CancelToken(clock=clock)
    token.cancel()
    assert permits.acquire(token) is False
    assert permits.acquire(CancelToken(clock=clock)) is True


def test_a_canceled_waiter_gives_its_place_on(clock) -> None:
    permits, log = Permits(clock, 1), []
    holder(clock, permits, log, "a", 10)
    waiting = holder(clock, permits, log, "b", 10)
    holder(clock, permits, log, "c", 10)
    clock.advance(3)
    waiting.cancel()
    clock.advance(100)
    assert log == [("a", 0.0), ("b canceled", 3.0), ("c", 10.0)]


def test_a_waiter_that_is_canceled_when_its_turn_comes_gives_the_permit_on(clock) -> None:
    permits, log = Permits(clock, 1), []
    assert permits.acquire(CancelToken(clock=clock))
    waiting = holder(clock, permits, log, "b", 10)
    holder(clock, permits, log, "c", 10)
    permits.release()  # to b, which has not run since
    waiting.cancel()
    clock.advance(10)
    assert log == [("b canceled", 0.0), ("c", 0.0)]


@pytest.mark.parametrize("seed", range(20))
def test_never_too_many_and_none_is_lost(seed) -> None:
    clock = VirtualClock(seed)
    permits = Permits(clock, 3)
    tokens = [CancelToken(clock=clock) for _ in range(12)]
    inside, most, done = 0, 0, 0

    def work(token: CancelToken, seconds: float) -> None:
        nonlocal inside, most, done
        for _ in range(3):
            if not permits.acquire(token):
                break
            inside += 1
            most = max(most, inside)
            clock.sleep(seconds)
            inside -= 1
            permits.release()
        done += 1

    for n, token in enumerate(tokens):
        clock.spawn(lambda token=token, n=n: work(token, 1 + n % 4), f"worker {n}")
    for n in (0, 5, 7):
        clock.advance(1)
        tokens[n].cancel()
    clock.advance(1000)
    assert (most, inside, done) == (3, 0, 12)
    fresh = CancelToken(clock=clock)
    assert [permits.acquire(fresh) for _ in range(3)] == [True] * 3
