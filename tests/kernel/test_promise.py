"""Promise: one result, set once, any number of waiters."""

from __future__ import annotations

import pytest

from supervisor import CancelToken
from supervisor.kernel.promise import Promise
from supervisor.testing import VirtualClock


def test_the_first_result_stays(clock) -> None:
    promise: Promise[str] = Promise(clock)
    assert (promise.done, promise.value) == (False, None)
    assert promise.set("first") is True
    assert promise.set("second") is False
    assert (promise.done, promise.value) == (True, "first")


@pytest.mark.parametrize("value", [None, 0, False, ()])
def test_a_result_may_be_anything(clock, value) -> None:
    promise: Promise[object] = Promise(clock)
    promise.set(value)
    assert promise.done
    assert promise.value is value
    assert promise.wait(0) is True


def test_every_waiter_wakes_at_the_instant_of_the_result(clock) -> None:
    promise: Promise[str] = Promise(clock)
    woken: list[tuple[bool, float]] = []

    def wait(timeout: float | None) -> None:
        woken.append((promise.wait(timeout), clock.monotonic()))

    for timeout in (None, 3, 10, 1e12):
        clock.spawn(lambda timeout=timeout: wait(timeout), "waiter")
    clock.advance(5)
    promise.set("done")
    clock.settle()
    assert woken == [(False, 3.0), (True, 5.0), (True, 5.0), (True, 5.0)]


def test_a_wait_may_be_repeated(clock) -> None:
    promise: Promise[str] = Promise(clock)
    assert promise.wait(2) is False
    assert promise.wait(2) is False
    assert promise.wait(0) is False
    promise.set("done")
    assert promise.wait() is True
    assert promise.wait(5) is True
    assert clock.monotonic() == 4.0


def test_a_canceled_token_ends_the_wait(clock) -> None:
    promise: Promise[str] = Promise(clock)
    token = CancelToken(clock=clock)
    woken: list[tuple[bool, float]] = []
    clock.spawn(lambda: woken.append((promise.wait(None, token), clock.monotonic())), "waiter")
    clock.advance(5)
    token.cancel()
    clock.settle()
    assert woken == [(False, 5.0)]
    assert promise.wait(None, token) is False
    promise.set("done")
    assert promise.wait(None, token) is True


@pytest.mark.parametrize("seed", range(20))
def test_no_waiter_misses_a_result_that_comes_at_its_first_look(seed) -> None:
    clock = VirtualClock(seed)
    promise: Promise[int] = Promise(clock)
    got: list[int | None] = []
    setters: list[bool] = []

    def wait() -> None:
        promise.wait()
        got.append(promise.value)

    threads = [clock.spawn(wait, "waiter") for _ in range(4)]
    threads += [clock.spawn(lambda n=n: setters.append(promise.set(n)), "setter") for n in range(3)]
    for thread in threads:
        thread.join()
    assert got == [promise.value] * 4
    assert sorted(setters) == [False, False, True]
