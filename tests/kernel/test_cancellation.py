"""CancelToken: sticky, the first reason wins, cancellation flows down and never up."""

from __future__ import annotations

import gc
import logging
import math
import threading
import weakref
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor import Canceled, CancelReason, CancelToken
from supervisor.testing import VirtualClock


@pytest.fixture
def token(clock: VirtualClock) -> CancelToken:
    return CancelToken(clock=clock)


# -- the flag


def test_a_new_token_is_not_canceled(token) -> None:
    assert (token.canceled, token.reason) == (False, None)
    token.check()
    assert repr(token) == "<CancelToken active>"


def test_a_token_needs_no_argument() -> None:
    token = CancelToken()
    assert token.cancel() is True
    assert (token.canceled, token.reason) == (True, CancelReason.REQUESTED)


@pytest.mark.parametrize("reason", CancelReason)
def test_a_cancellation_stays_with_its_first_reason(token, reason) -> None:
    assert token.cancel(reason) is True
    for other in CancelReason:
        assert token.cancel(other) is False
    assert (token.canceled, token.reason) == (True, reason)
    assert repr(token) == f"<CancelToken canceled: {reason.value}>"


def test_the_reasons_and_their_labels() -> None:
    assert {reason.name: reason.value for reason in CancelReason} == {
        "REQUESTED": "requested",
        "SHUTDOWN": "shutdown",
        "TIMEOUT": "timeout",
        "REPLACED": "replaced",
    }


@pytest.mark.parametrize("call", ["check", "sleep"])
def test_check_and_sleep_raise_canceled_with_the_reason(token, call) -> None:
    token.cancel(CancelReason.SHUTDOWN)
    with pytest.raises(Canceled) as info:
        token.sleep(5) if call == "sleep" else token.check()
    assert info.value.reason is CancelReason.SHUTDOWN


# -- waiting


def test_wait_says_whether_the_token_is_canceled(token, clock) -> None:
    assert token.wait(5) is False
    assert clock.monotonic() == 5.0
    assert token.wait(timedelta(seconds=5)) is False
    assert clock.monotonic() == 10.0
    assert token.wait(0) is False
    token.cancel()
    assert token.wait() is True
    assert token.wait(5) is True
    assert token.wait(0) is True
    assert clock.monotonic() == 10.0


def test_sleep_sleeps(token, clock) -> None:
    token.sleep(5)
    assert clock.monotonic() == 5.0


@pytest.mark.parametrize("timeout", [None, math.inf, 1e12, 100])
def test_a_cancellation_wakes_every_waiter_at_once(token, clock, timeout) -> None:
    woken: list[tuple[bool, float]] = []

    def wait() -> None:
        woken.append((token.wait(timeout), clock.monotonic()))

    threads = [clock.spawn(wait, f"waiter {n}") for n in range(5)]
    clock.advance(7)
    token.cancel()
    for thread in threads:
        thread.join()
    assert woken == [(True, 7.0)] * 5


@pytest.mark.parametrize("call", ["wait", "sleep", "child"])
@pytest.mark.parametrize(
    ("value", "error"), [(-1, ValueError), (math.nan, ValueError), (True, TypeError), ("1", TypeError)]
)
def test_a_wrong_duration_is_refused(token, call, value, error) -> None:
    with pytest.raises(error, match="seconds must" if call == "sleep" else "timeout must"):
        getattr(token, call)(value)


def test_a_token_of_the_machines_clock_wakes_a_real_thread() -> None:
    token = CancelToken()
    thread = threading.Thread(target=token.wait)
    thread.start()
    token.cancel()
    thread.join(5)
    assert not thread.is_alive()
    assert token.wait(0) is True
    assert CancelToken().wait(0.001) is False


# -- callbacks


def test_callbacks_run_in_order_on_the_thread_that_cancels(token) -> None:
    calls: list[tuple[int, int]] = []
    for n in range(3):
        token.on_cancel(lambda n=n: calls.append((n, threading.get_ident())))
    assert calls == []
    token.cancel()
    token.cancel()
    assert calls == [(n, threading.get_ident()) for n in range(3)]


def test_a_callback_of_a_canceled_token_runs_at_once(token) -> None:
    calls: list[str] = []
    token.cancel()
    undo = token.on_cancel(lambda: calls.append("called"))
    assert calls == ["called"]
    undo()


def test_a_registration_can_be_taken_back_even_by_another_callback(token) -> None:
    calls: list[str] = []
    undo = token.on_cancel(lambda: calls.append("first"))
    undo()
    undo()
    token.on_cancel(lambda: calls.append("second"))
    token.cancel()
    undo()
    assert calls == ["second"]


def test_the_same_callback_may_be_registered_twice(token) -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)

    first, _ = token.on_cancel(call), token.on_cancel(call)
    first()
    token.cancel()
    assert calls == [1]


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3), Canceled()])
def test_what_a_callback_raises_is_logged_and_the_others_run(token, caplog, error) -> None:
    def fail() -> None:
        raise error

    calls: list[str] = []
    token.on_cancel(fail)
    token.on_cancel(lambda: calls.append("next"))
    with caplog.at_level(logging.ERROR, "supervisor"):
        assert token.cancel() is True
        token.on_cancel(fail)
    assert calls == ["next"]
    assert len(caplog.records) == 2
    assert all("an on_cancel callback failed" in record.getMessage() for record in caplog.records)


def test_a_callback_may_use_the_token(token) -> None:
    seen: list[object] = []

    def call() -> None:
        seen.append((token.canceled, token.wait(), token.cancel(), token.child().reason))
        token.on_cancel(lambda: seen.append("nested"))

    token.on_cancel(call)
    token.cancel(CancelReason.REPLACED)
    assert seen == [(True, True, False, CancelReason.REPLACED), "nested"]


def test_what_cannot_be_called_is_no_callback(token) -> None:
    with pytest.raises(TypeError, match="on_cancel needs a callable, got 5"):
        token.on_cancel(5)


# -- the tree


def test_cancellation_flows_down_and_never_up(token) -> None:
    left, right = token.child(), token.child()
    leaf = left.child()
    left.cancel(CancelReason.REPLACED)
    assert [each.canceled for each in (token, right)] == [False, False]
    assert [each.reason for each in (left, leaf)] == [CancelReason.REPLACED] * 2
    token.cancel(CancelReason.SHUTDOWN)
    assert [each.reason for each in (token, right)] == [CancelReason.SHUTDOWN] * 2
    assert [each.reason for each in (left, leaf)] == [CancelReason.REPLACED] * 2


def test_a_child_of_a_canceled_token_is_born_canceled(token) -> None:
    token.cancel(CancelReason.SHUTDOWN)
    assert token.child().reason is CancelReason.SHUTDOWN
    assert token.child(5).child().reason is CancelReason.SHUTDOWN


def test_waiters_and_callbacks_of_all_below_are_reached(token, clock) -> None:
    tokens = [token, token.child(), token.child().child(), token.child(100)]
    calls: list[int] = []
    woken: list[float] = []

    def wait(each: CancelToken) -> None:
        each.wait()
        woken.append(clock.monotonic())

    for n, each in enumerate(tokens):
        each.on_cancel(lambda n=n: calls.append(n))
        clock.spawn(lambda each=each: wait(each), "waiter")
    clock.advance(3)
    token.cancel()
    clock.settle()
    assert sorted(calls) == [0, 1, 2, 3]
    assert woken == [3.0] * 4


def test_the_callbacks_of_a_child_that_nobody_holds_still_run(token) -> None:
    calls: list[str] = []
    token.child().child().on_cancel(lambda: calls.append("called"))
    gc.collect()
    token.cancel()
    assert calls == ["called"]


def test_children_that_nobody_holds_are_not_kept(token, clock) -> None:
    children = [weakref.ref(token.child()) for _ in range(3)]
    children += [weakref.ref(token.child(3600)) for _ in range(3)]
    gc.collect()
    assert [child() for child in children] == [None] * 6
    clock.advance(3600)  # the timer's thread ends


def test_a_deep_tree_is_canceled_without_recursion(token) -> None:
    tokens = [token]
    for _ in range(5000):
        tokens.append(tokens[-1].child())
    token.cancel()
    assert all(each.canceled for each in tokens)
    while tokens:
        tokens.pop()


@given(
    parents=st.lists(st.integers(0, 10**6), min_size=1, max_size=20),
    cancels=st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(CancelReason)), max_size=6),
)
def test_a_token_has_the_reason_of_the_first_cancel_at_or_above_it(parents, cancels) -> None:
    tokens, above = [CancelToken(clock=VirtualClock())], [{0}]
    for n, parent in enumerate(parents, start=1):
        parent %= n
        tokens.append(tokens[parent].child())
        above.append(above[parent] | {n})
    expected: list[CancelReason | None] = [None] * len(tokens)
    for place, reason in cancels:
        place %= len(tokens)
        assert tokens[place].cancel(reason) is (expected[place] is None)
        for n, line in enumerate(above):
            if place in line and expected[n] is None:
                expected[n] = reason
    assert [token.reason for token in tokens] == expected


# -- timeouts


@pytest.mark.parametrize("timeout", [5, 5.0, timedelta(seconds=5)])
def test_a_child_is_canceled_when_its_time_is_over(token, clock, timeout) -> None:
    child = token.child(timeout)
    clock.advance(4.999)
    assert not child.canceled
    clock.advance(0.001)
    assert (child.reason, token.canceled) == (CancelReason.TIMEOUT, False)


def test_a_wait_on_a_child_ends_when_its_time_is_over(token, clock) -> None:
    child = token.child(5)
    assert child.wait() is True
    assert clock.monotonic() == 5.0
    with pytest.raises(Canceled, match="timeout"):
        child.sleep(1)


def test_a_child_without_time_is_canceled_at_once(token, clock) -> None:
    child = token.child(0)
    assert (child.reason, clock.monotonic()) == (CancelReason.TIMEOUT, 0.0)


@pytest.mark.parametrize("timeout", [None, math.inf])
def test_a_child_may_have_all_the_time_there_is(token, clock, timeout) -> None:
    child = token.child(timeout)
    clock.advance(1e9)
    assert not child.canceled


def test_children_end_in_the_order_of_their_times(token, clock) -> None:
    order: list[tuple[int, float]] = []
    children = [token.child(n) for n in (3, 1, 2)]
    for child, n in zip(children, (3, 1, 2), strict=True):
        child.on_cancel(lambda n=n: order.append((n, clock.monotonic())))
    clock.advance(5)
    assert order == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_callbacks_of_a_child_that_times_out_run_although_nobody_holds_it(token, clock) -> None:
    calls: list[float] = []
    token.child(5).on_cancel(lambda: calls.append(clock.monotonic()))
    gc.collect()
    clock.advance(5)
    assert calls == [5.0]


def test_a_callback_that_blocks_holds_up_no_other_timeout(token, clock) -> None:
    gate = clock.latch()
    token.child(1).on_cancel(gate.wait)
    other = token.child(2)
    clock.advance(2)
    assert other.canceled
    gate.open()
    clock.settle()


def test_the_shorter_time_of_two_levels_counts(token, clock) -> None:
    outer = token.child(5)
    inner, longer = outer.child(2), outer.child(10)
    clock.advance(2)
    assert [each.canceled for each in (outer, inner, longer)] == [False, True, False]
    clock.advance(3)
    assert [each.reason for each in (outer, longer)] == [CancelReason.TIMEOUT] * 2


def test_no_thread_is_left_once_no_child_waits_for_its_time(token, clock) -> None:
    children = [token.child(timeout) for timeout in (1, 100, 1e9)]
    children[2].cancel()
    clock.advance(1)
    assert [member.name for member in clock._baton.members] == ["supervisor:timer"]
    token.cancel()
    clock.settle()
    assert not clock._baton.members
    later = token.child(5)
    assert later.canceled
    again = CancelToken(clock=clock).child(5)
    clock.advance(5)
    assert again.canceled
    clock.settle()
    assert not clock._baton.members


def test_a_real_child_is_canceled_when_its_time_is_over() -> None:
    child = CancelToken().child(0.001)
    assert child.wait(5) is True
    assert child.reason is CancelReason.TIMEOUT


# -- races


@pytest.mark.parametrize("seed", range(20))
def test_of_many_who_cancel_at_once_one_does_it(seed) -> None:
    clock = VirtualClock(seed)
    token = CancelToken(clock=clock)
    won: list[CancelReason] = []
    calls: list[object] = []
    token.on_cancel(lambda: calls.append(token.reason))

    def cancel(reason: CancelReason) -> None:
        if token.cancel(reason):
            won.append(reason)

    threads = [clock.spawn(lambda reason=reason: cancel(reason), reason.value) for reason in CancelReason]
    for thread in threads:
        thread.join()
    assert won == [token.reason] == calls


@pytest.mark.parametrize("seed", range(20))
def test_a_callback_registered_during_a_cancellation_runs_once(seed) -> None:
    clock = VirtualClock(seed)
    token = CancelToken(clock=clock)
    calls: list[int] = []
    threads = [
        clock.spawn(lambda n=n: token.child().on_cancel(lambda: calls.append(n)), "t") for n in range(5)
    ]
    threads.append(clock.spawn(token.cancel, "canceler"))
    for thread in threads:
        thread.join()
    assert sorted(calls) == list(range(5))
