"""Deadlines: a heap whose owner runs what is due; own_timer: one with a thread of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.kernel.clock import SystemClock
from supervisor.kernel.deadlines import VERDICT, WAKE, Deadlines, own_timer
from supervisor.testing import VirtualClock


class Owned:
    """A heap, how often its owner was rung, and what it ran."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.rings = 0
        self.ran: list[object] = []
        self.deadlines = Deadlines(clock, self._ring)

    def _ring(self) -> None:
        self.rings += 1

    def at(self, when: float, label: object = None, rank: int = WAKE):
        return self.deadlines.call_at(when, lambda: self.ran.append(when if label is None else label), rank)

    def run_all_due(self, limit: int = 100) -> None:
        while self.deadlines.run_due(limit):
            pass


@pytest.fixture
def owned(clock: VirtualClock) -> Owned:
    return Owned(clock)


# -- the heap


def test_an_empty_heap_has_nothing_to_wait_for(owned) -> None:
    assert owned.deadlines.seconds_left() is None
    assert owned.deadlines.late_by() == 0.0
    assert owned.deadlines.run_due(10) == 0


def test_nothing_runs_before_its_time_and_then_it_runs_once(owned, clock) -> None:
    owned.at(5.0)
    assert owned.deadlines.seconds_left() == 5.0
    clock.advance(4.75)
    assert (owned.deadlines.seconds_left(), owned.deadlines.run_due(10)) == (0.25, 0)
    clock.advance(0.25)
    assert (owned.deadlines.seconds_left(), owned.deadlines.run_due(10)) == (0.0, 1)
    assert owned.ran == [5.0]
    assert owned.deadlines.run_due(10) == 0
    assert owned.deadlines.seconds_left() is None


def test_what_is_due_runs_in_the_order_of_time_and_then_of_asking(owned, clock) -> None:
    for when, label in ((3.0, "c"), (1.0, "a1"), (2.0, "b"), (1.0, "a2"), (1.0, "a3")):
        owned.at(when, label)
    clock.advance(10)
    owned.run_all_due()
    assert owned.ran == ["a1", "a2", "a3", "b", "c"]


def test_at_one_instant_sleepers_come_before_verdicts_and_not_in_one_go(owned, clock) -> None:
    owned.at(5.0, "verdict", VERDICT)
    owned.at(5.0, "sleeper")
    owned.at(0.1 + 4.9, "sleeper too")
    clock.advance(5)
    assert owned.deadlines.run_due(10) == 2
    assert owned.ran == ["sleeper", "sleeper too"]
    assert owned.deadlines.run_due(10, WAKE) == 0
    assert owned.deadlines.run_due(10) == 1
    assert owned.ran[-1] == "verdict"


def test_sums_of_floats_are_one_instant(owned, clock) -> None:
    owned.at(0.3, "verdict", VERDICT)
    owned.at(0.1 + 0.1 + 0.1, "sleeper")  # 0.30000000000000004
    clock.advance(0.3)
    owned.run_all_due()
    assert owned.ran == ["sleeper", "verdict"]


def test_at_most_limit_run_in_one_go(owned, clock) -> None:
    for n in range(5):
        owned.at(1.0, n)
    clock.advance(1)
    assert [owned.deadlines.run_due(2) for _ in range(4)] == [2, 2, 1, 0]
    assert owned.ran == [0, 1, 2, 3, 4]


def test_late_by_is_how_long_the_first_has_been_due(owned, clock) -> None:
    owned.at(2.0)
    owned.at(5.0)
    clock.advance(6)
    assert owned.deadlines.late_by() == 4.0
    owned.deadlines.run_due(1)
    assert owned.deadlines.late_by() == 1.0


def test_a_canceled_entry_never_runs(owned, clock) -> None:
    first, second = owned.at(1.0), owned.at(2.0)
    first.cancel()
    first.cancel()
    assert owned.deadlines.seconds_left() == 2.0
    clock.advance(5)
    owned.run_all_due()
    assert owned.ran == [2.0]
    second.cancel()
    assert owned.deadlines.seconds_left() is None


def test_an_entry_canceled_by_one_of_the_same_instant_does_not_run(owned, clock) -> None:
    victims: list = []
    owned.deadlines.call_at(1.0, lambda: victims[0].cancel())
    victims.append(owned.at(1.0))
    clock.advance(1)
    owned.run_all_due()
    assert owned.ran == []


def test_a_callback_may_ask_for_another_time(owned, clock) -> None:
    owned.deadlines.call_at(1.0, lambda: owned.at(1.0, "at once") and owned.at(3.0, "later"))
    clock.advance(1)
    owned.run_all_due()
    assert owned.ran == ["at once"]
    assert owned.deadlines.seconds_left() == 2.0


def test_the_owner_is_rung_only_for_a_new_first_entry(owned) -> None:
    rings = []
    for when in (5.0, 7.0, 3.0, 4.0, 3.0, 1.0):
        owned.at(when)
        rings.append(owned.rings)
    assert rings == [1, 1, 2, 2, 2, 3]


def test_a_very_long_wait_is_an_entry_like_any_other(owned, clock) -> None:
    owned.at(1e300)
    owned.at(1e12)
    clock.advance(1e6)
    assert owned.deadlines.seconds_left() == 1e12 - 1e6


def test_canceled_entries_do_not_pile_up(owned, clock) -> None:
    alive = [owned.at(1e6 + n) for n in range(10)]
    for n in range(10_000):
        owned.at(1.0 + n).cancel()
        assert len(owned.deadlines._heap) < 200
    assert owned.deadlines.seconds_left() == 1e6
    clock.advance(2e6)
    owned.run_all_due()
    assert len(owned.ran) == len(alive)


@given(
    entries=st.lists(st.tuples(st.integers(0, 8), st.sampled_from([WAKE, VERDICT])), max_size=40),
    canceled=st.sets(st.integers(0, 39)),
    steps=st.lists(st.integers(0, 4), max_size=12),
    limit=st.integers(1, 5),
)
def test_every_entry_that_is_not_canceled_runs_once_in_order_and_never_early(
    entries, canceled, steps, limit
) -> None:
    clock = VirtualClock()
    owned = Owned(clock)
    made = [owned.at(when / 2, (when / 2, rank, n), rank) for n, (when, rank) in enumerate(entries)]
    for n in canceled:
        if n < len(made):
            made[n].cancel()
    expected = sorted((when / 2, rank, n) for n, (when, rank) in enumerate(entries) if n not in canceled)
    for step in [*steps, 8]:
        clock.advance(step / 2)
        owned.run_all_due(limit)
        assert owned.ran == [each for each in expected if each[0] <= clock.monotonic()]
    assert owned.ran == expected or clock.monotonic() < 4.0


# -- with a thread of its own


def test_a_clock_has_one_timer(clock) -> None:
    assert own_timer(clock) is own_timer(clock)
    assert own_timer(clock) is not own_timer(VirtualClock())


def test_the_timer_runs_what_is_due_at_its_instant(clock) -> None:
    ran: list[float] = []
    for when in (3.0, 1.0, 2.0):
        own_timer(clock).call_at(when, lambda: ran.append(clock.monotonic()))
    clock.advance(10)
    assert ran == [1.0, 2.0, 3.0]


def test_the_timer_has_a_thread_only_while_it_has_entries(clock) -> None:
    timer = own_timer(clock)
    assert not clock._baton.members
    timer.call_at(1.0, lambda: None)
    timer.call_at(2.0, lambda: None)
    clock.advance(1)
    assert [member.name for member in clock._baton.members] == ["supervisor:timer"]
    clock.advance(1)
    assert not clock._baton.members


def test_the_thread_ends_when_the_last_entry_is_canceled(clock) -> None:
    timer = own_timer(clock)
    entries = [timer.call_at(when, lambda: None) for when in (100.0, 200.0)]
    clock.settle()
    entries[1].cancel()
    clock.settle()
    assert clock._baton.members
    entries[0].cancel()
    clock.settle()
    assert not clock._baton.members


def test_a_timer_that_has_slept_works_again(clock) -> None:
    timer, ran = own_timer(clock), []
    for _ in range(3):
        timer.call_at(clock.monotonic() + 1.0, lambda: ran.append(clock.monotonic()))
        clock.advance(5)
        assert not clock._baton.members
    assert ran == [1.0, 6.0, 11.0]


@pytest.mark.parametrize("seed", range(20))
def test_entries_made_and_canceled_by_many_threads_are_not_lost(seed) -> None:
    clock = VirtualClock(seed)
    timer, ran = own_timer(clock), []

    def work(n: int) -> None:
        for step in range(3):
            entry = timer.call_at(clock.monotonic() + n, lambda: ran.append((n, clock.monotonic())))
            if (n + step) % 2:
                entry.cancel()
            clock.sleep(n)

    for n in range(1, 5):
        clock.spawn(lambda n=n: work(n), f"worker {n}")
    clock.advance(50)
    kept = ((n, step) for n in range(1, 5) for step in range(3) if not (n + step) % 2)
    assert sorted(ran) == sorted((n, float(n * (step + 1))) for n, step in kept)
    assert not clock._baton.members


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_on_the_real_clock_a_timer_that_comes_and_goes_loses_no_entry(frequent_switches) -> None:
    timer, clock = own_timer(SystemClock()), SystemClock()
    ran = [0] * 4

    def work(n: int) -> None:
        for _ in range(50):
            latch = clock.latch()
            timer.call_at(clock.monotonic() + 0.0002, latch.open)
            timer.call_at(clock.monotonic() + 3600, latch.open).cancel()
            ran[n] += latch.wait(10)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert ran == [50] * 4
