"""CircuitBreaker: its pure transitions, the breaker on virtual time, a model of it, and many threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from supervisor import Canceled
from supervisor.flows.breaker import (
    CircuitBreaker,
    Closed,
    HalfOpen,
    Open,
    Permit,
    Rules,
    State,
    admit,
    failed,
    let_go,
    succeeded,
)
from supervisor.flows.errors import CircuitOpen, ConfigurationError
from supervisor.testing import VirtualClock

RULES = Rules(failure_threshold=3, reset_timeout=10.0, half_open_calls=2)


@pytest.fixture
def breaker(clock: VirtualClock) -> CircuitBreaker:
    return CircuitBreaker(3, 10.0, 2, clock=clock)


def let_through(breaker: CircuitBreaker) -> Permit:
    permit = breaker.admit()
    assert permit is not None
    return permit


def fail(breaker: CircuitBreaker, times: int = 1) -> None:
    for _ in range(times):
        breaker.failure(let_through(breaker))


# -- pure


@pytest.mark.parametrize(
    ("state", "now", "after", "granted"),
    [
        (Closed(4, failures=2), 0.0, Closed(4, failures=2), True),
        (Open(5, until=10.0), 9.999, Open(5, until=10.0), False),
        (Open(5, until=10.0), 10.0, HalfOpen(6, running=1), True),
        (HalfOpen(6, running=1), 0.0, HalfOpen(6, running=2), True),
        (HalfOpen(6, running=2), 99.0, HalfOpen(6, running=2), False),
        (HalfOpen(6, running=1, successes=1), 0.0, HalfOpen(6, running=2, successes=1), True),
    ],
)
def test_who_is_let_through(state: State, now: float, after: State, granted: bool) -> None:
    assert admit(state, RULES, now) == (after, granted)


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (Closed(4), Closed(4)),
        (Closed(4, failures=2), Closed(4)),
        (HalfOpen(4, running=2), HalfOpen(4, running=1, successes=1)),
        (HalfOpen(4, running=2, successes=1), Closed(5)),
    ],
)
def test_what_a_success_changes(state: State, after: State) -> None:
    assert succeeded(state, RULES, 4) == after


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (Closed(4), Closed(4, failures=1)),
        (Closed(4, failures=2), Open(5, until=17.0)),
        (HalfOpen(4, running=2, successes=1), Open(5, until=17.0)),
    ],
)
def test_what_a_failure_at_7_s_changes(state: State, after: State) -> None:
    assert failed(state, RULES, 4, 7.0) == after


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (Closed(4, failures=2), Closed(4, failures=2)),
        (HalfOpen(4, running=2, successes=1), HalfOpen(4, running=1, successes=1)),
    ],
)
def test_what_a_call_that_tells_nothing_changes(state: State, after: State) -> None:
    assert let_go(state, 4) == after


@pytest.mark.parametrize(
    "state", [Closed(4, failures=2), Open(4, until=10.0), HalfOpen(4, running=1, successes=1)]
)
def test_a_result_of_another_epoch_changes_nothing(state: State) -> None:
    for epoch in (0, 3, 5):
        assert succeeded(state, RULES, epoch) is state
        assert failed(state, RULES, epoch, 7.0) is state
        assert let_go(state, epoch) is state


# -- on virtual time


def test_it_starts_closed_and_opens_after_so_many_failures_in_a_row(breaker: CircuitBreaker) -> None:
    assert breaker.state == "closed"
    fail(breaker, 2)
    assert breaker.state == "closed"
    fail(breaker)
    assert breaker.state == "open"
    assert breaker.admit() is None


def test_a_success_starts_the_count_anew(breaker: CircuitBreaker) -> None:
    fail(breaker, 2)
    breaker.success(let_through(breaker))
    fail(breaker, 2)
    assert breaker.state == "closed"


def test_five_failures_open_it_for_thirty_seconds_unless_told_otherwise(clock: VirtualClock) -> None:
    breaker = CircuitBreaker(clock=clock)
    fail(breaker, 4)
    assert breaker.state == "closed"
    fail(breaker)
    clock.advance(29.999)
    assert breaker.admit() is None
    clock.advance(0.001)
    breaker.success(let_through(breaker))
    assert breaker.state == "closed"


def test_it_turns_half_open_when_the_next_call_asks(breaker: CircuitBreaker, clock: VirtualClock) -> None:
    fail(breaker, 3)
    clock.advance(10.0)
    assert breaker.state == "open"
    let_through(breaker)
    assert breaker.state == "half_open"


def test_half_open_lets_only_so_many_through_at_once(breaker: CircuitBreaker, clock: VirtualClock) -> None:
    fail(breaker, 3)
    clock.advance(10.0)
    first, second = let_through(breaker), let_through(breaker)
    assert breaker.admit() is None
    breaker.success(first)
    third = let_through(breaker)  # a slot is free again
    assert breaker.admit() is None
    breaker.success(second)
    assert breaker.state == "closed"
    breaker.failure(third)  # of an earlier epoch
    fail(breaker, 2)
    assert breaker.state == "closed"


def test_one_failed_probe_opens_it_for_a_whole_window_and_successes_do_not_carry_over(
    breaker: CircuitBreaker, clock: VirtualClock
) -> None:
    fail(breaker, 3)
    clock.advance(10.0)
    breaker.success(let_through(breaker))
    clock.advance(4.0)
    fail(breaker)
    assert breaker.state == "open"
    clock.advance(9.999)
    assert breaker.admit() is None
    clock.advance(0.001)
    breaker.success(let_through(breaker))
    assert breaker.state == "half_open"


def test_a_late_result_neither_closes_nor_opens_it(breaker: CircuitBreaker, clock: VirtualClock) -> None:
    of_closed = [let_through(breaker) for _ in range(4)]
    fail(breaker, 3)
    clock.advance(5.0)
    breaker.failure(of_closed[0])  # does not prolong the window
    breaker.success(of_closed[1])
    assert breaker.state == "open"
    clock.advance(5.0)
    probe, late_probe = let_through(breaker), let_through(breaker)
    breaker.success(of_closed[2])
    breaker.failure(of_closed[3])
    assert breaker.state == "half_open"
    breaker.failure(probe)
    clock.advance(10.0)
    let_through(breaker)
    breaker.failure(late_probe)
    assert breaker.state == "half_open"


def test_a_released_probe_frees_its_place_and_counts_neither_way(
    breaker: CircuitBreaker, clock: VirtualClock
) -> None:
    fail(breaker, 2)
    breaker.release(let_through(breaker))
    fail(breaker)
    assert breaker.state == "open"
    clock.advance(10.0)
    for _ in range(5):
        breaker.release(let_through(breaker))
    assert breaker.state == "half_open"


def test_a_permit_given_back_twice_counts_once(breaker: CircuitBreaker, clock: VirtualClock) -> None:
    permit = let_through(breaker)
    for _ in range(5):
        breaker.failure(permit)
    assert breaker.state == "closed"
    fail(breaker, 2)
    clock.advance(10.0)
    probe = let_through(breaker)
    breaker.success(probe)
    breaker.success(probe)
    breaker.release(probe)
    assert breaker.state == "half_open"
    let_through(breaker)
    let_through(breaker)
    assert breaker.admit() is None


def test_reset_closes_it_and_forgets_what_runs(breaker: CircuitBreaker) -> None:
    running = [let_through(breaker) for _ in range(3)]
    fail(breaker, 3)
    breaker.reset()
    assert breaker.state == "closed"
    for permit in running:
        breaker.failure(permit)
    fail(breaker, 2)
    assert breaker.state == "closed"


def test_an_infinite_window_ends_with_reset_only(clock: VirtualClock) -> None:
    breaker = CircuitBreaker(1, float("inf"), clock=clock)
    fail(breaker)
    clock.advance(1e6)
    assert breaker.admit() is None
    breaker.reset()
    let_through(breaker)


def test_a_window_of_no_length_lets_the_next_call_through_as_a_probe(clock: VirtualClock) -> None:
    breaker = CircuitBreaker(1, 0.0, clock=clock)
    fail(breaker)
    let_through(breaker)
    assert breaker.state == "half_open"


def test_it_goes_by_the_clock_of_who_asks_unless_it_has_its_own(clock: VirtualClock) -> None:
    theirs = VirtualClock()
    shared, own = CircuitBreaker(1, 10.0), CircuitBreaker(1, 10.0, clock=clock)
    for breaker in (shared, own):
        permit = breaker.admit(theirs)
        assert permit is not None
        breaker.failure(permit)
    theirs.advance(10.0)
    assert shared.admit(theirs) is not None
    assert own.admit(theirs) is None
    clock.advance(10.0)
    assert own.admit(theirs) is not None


# -- call


def boom() -> None:
    raise ValueError("boom")


def test_call_returns_what_the_function_returns(breaker: CircuitBreaker) -> None:
    def joined(*args: int, sep: str, fn: int) -> str:
        return sep.join(map(str, [*args, fn]))

    assert breaker.call(joined, 1, 2, sep="-", fn=3) == "1-2-3"


def test_call_raises_on_what_the_function_raised_and_then_calls_it_no_more(
    breaker: CircuitBreaker, clock: VirtualClock
) -> None:
    calls: list[int] = []

    def body() -> None:
        calls.append(1)
        boom()

    for _ in range(3):
        with pytest.raises(ValueError, match="boom"):
            breaker.call(body)
    with pytest.raises(CircuitOpen, match=r"the circuit breaker is open; .*body was not called"):
        breaker.call(body)
    assert len(calls) == 3
    clock.advance(10.0)
    for _ in range(2):
        breaker.call(int)
    assert breaker.state == "closed"


def test_a_body_that_dies_counts_as_a_failure(breaker: CircuitBreaker) -> None:
    for _ in range(3):
        with pytest.raises(SystemExit):
            breaker.call(sys.exit)
    assert breaker.state == "open"


def test_a_canceled_call_counts_neither_way(breaker: CircuitBreaker, clock: VirtualClock) -> None:
    def stopped() -> None:
        raise Canceled

    fail(breaker, 2)
    for _ in range(3):
        with pytest.raises(Canceled):
            breaker.call(stopped)
    assert breaker.state == "closed"
    fail(breaker)
    clock.advance(10.0)
    for _ in range(3):
        with pytest.raises(Canceled):
            breaker.call(stopped)
    assert breaker.state == "half_open"


def test_without_a_clock_call_goes_by_real_time() -> None:
    breaker = CircuitBreaker(1, 3600.0)
    with pytest.raises(ValueError, match="boom"):
        breaker.call(boom)
    with pytest.raises(CircuitOpen):
        breaker.call(boom)


def test_a_breaker_shows_its_state(breaker: CircuitBreaker) -> None:
    assert repr(breaker) == "<CircuitBreaker closed>"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"failure_threshold": 0}, "failure_threshold must be >= 1, got 0"),
        ({"failure_threshold": True}, "failure_threshold must be an int, got True"),
        ({"half_open_calls": 0}, "half_open_calls must be >= 1, got 0"),
        ({"half_open_calls": 1.5}, r"half_open_calls must be an int, got 1\.5"),
        ({"reset_timeout": -1}, "reset_timeout must not be negative, got -1"),
        ({"reset_timeout": float("nan")}, "reset_timeout must be a number, got nan"),
        ({"reset_timeout": None}, "reset_timeout must be seconds"),
    ],
)
def test_a_setting_that_cannot_be_right_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"circuit breaker: {text}"):
        CircuitBreaker(**settings)


# -- a model


class BreakerModel(RuleBasedStateMachine):
    """Any order of calls, results and waits, beside a plain account of what should happen."""

    THRESHOLD, WINDOW, PROBES = 3, 10.0, 2

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.breaker = CircuitBreaker(self.THRESHOLD, self.WINDOW, self.PROBES, clock=self.clock)
        self.current: list[Permit] = []  # of this state, not given back
        self.stale: list[Permit] = []  # of earlier states, or given back
        self.state = "closed"
        self.failures = self.successes = 0
        self.until = 0.0

    def _turn(self, state: str) -> None:
        self.state = state
        self.stale += self.current
        self.current = []
        self.failures = self.successes = 0
        if state == "open":
            self.until = self.clock.monotonic() + self.WINDOW

    def _take(self, data: st.DataObject) -> Permit:
        permit = data.draw(st.sampled_from(self.current))
        self.current.remove(permit)
        self.stale.append(permit)
        return permit

    @rule()
    def ask(self) -> None:
        permit = self.breaker.admit()
        if self.state == "open" and self.clock.monotonic() >= self.until:
            self._turn("half_open")
        granted = self.state == "closed" or (self.state == "half_open" and len(self.current) < self.PROBES)
        assert (permit is not None) is granted
        if permit is not None:
            self.current.append(permit)

    @precondition(lambda self: self.current)
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        self.breaker.success(self._take(data))
        self.failures = 0
        self.successes += 1
        if self.state == "half_open" and self.successes == self.PROBES:
            self._turn("closed")

    @precondition(lambda self: self.current)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        self.breaker.failure(self._take(data))
        self.failures += 1
        if self.state == "half_open" or self.failures == self.THRESHOLD:
            self._turn("open")

    @precondition(lambda self: self.current)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        self.breaker.release(self._take(data))

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), what=st.sampled_from(["success", "failure", "release"]))
    def come_late(self, data: st.DataObject, what: str) -> None:
        getattr(self.breaker, what)(data.draw(st.sampled_from(self.stale)))

    @rule(seconds=st.sampled_from([0.5, 5.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def reset(self) -> None:
        self.breaker.reset()
        self._turn("closed")

    @invariant()
    def the_states_agree(self) -> None:
        assert self.breaker.state == self.state


TestTheBreakerKeepsToItsModel = BreakerModel.TestCase
TestTheBreakerKeepsToItsModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


# -- many threads


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads change as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(count: int, body: Any) -> None:
    threads = [Thread(target=body) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.usefixtures("hasty")
def test_failures_of_many_threads_let_exactly_the_threshold_count() -> None:
    breaker = CircuitBreaker(failure_threshold=150, reset_timeout=3600.0)
    refused: list[int] = []

    def work() -> None:
        for _ in range(30):
            permit = breaker.admit()
            if permit is None:
                refused.append(1)
            else:
                breaker.failure(permit)

    together(5, work)  # 150 failures in a row, none lost
    assert breaker.state == "open"
    assert refused == []
    together(1, work)
    assert len(refused) == 30


@pytest.mark.usefixtures("hasty")
def test_there_are_never_more_probes_at_once_than_allowed_however_many_threads_ask() -> None:
    breaker = CircuitBreaker(1, 0.0, half_open_calls=3)
    fail(breaker)
    running: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(300):
            permit = breaker.admit()
            if permit is not None:
                running.append(1)
                most.append(len(running))
                running.pop()
                breaker.release(permit)

    together(6, work)
    assert breaker.state == "half_open"
    assert max(most) <= 3
    assert [breaker.admit() is not None for _ in range(4)] == [True, True, True, False]  # no place was lost


@pytest.mark.usefixtures("hasty")
def test_a_storm_of_results_leaves_a_breaker_that_still_works() -> None:
    breaker = CircuitBreaker(2, 0.0, half_open_calls=2)

    def work() -> None:
        for number in range(200):
            permit = breaker.admit()
            if permit is not None:
                (breaker.success, breaker.failure, breaker.release)[number % 3](permit)

    together(6, work)
    for _ in range(2):
        breaker.success(let_through(breaker))
    assert breaker.state == "closed"


def test_a_call_exactly_at_the_end_of_the_reset_timeout_is_let_through(clock) -> None:
    clock.advance(30.01)  # 40.01 - 30.01 is less than 10 in floats
    breaker = CircuitBreaker(failure_threshold=1, reset_timeout=10.0, clock=clock)
    permit = breaker.admit()
    assert permit is not None
    breaker.failure(permit)
    assert breaker.admit() is None
    clock.advance(10.0)
    assert breaker.admit() is not None
