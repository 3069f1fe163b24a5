"""One call of user code, and the one decision between its return and its deadline."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

from supervisor import Canceled, Fail, Fatal, Timeout
from supervisor.kernel.attempt import Ending, Watch, call, ended_by
from supervisor.kernel.clock import SystemClock
from supervisor.kernel.deadlines import VERDICT, Deadlines
from supervisor.testing import VirtualClock


class Custom(BaseException):
    """Neither an Exception nor one of ours."""


# -- call


@pytest.mark.parametrize("value", [None, 0, "text", ValueError("returned, not raised")])
def test_what_a_body_returns_is_a_success(value) -> None:
    result = call(lambda: value)
    assert (result.ending, result.error, result.exit_code) == (Ending.SUCCEEDED, None, None)
    assert result.value is value
    assert ended_by(result) == "returned"


def test_a_body_gets_its_arguments() -> None:
    assert call(lambda *args, **kwargs: (args, kwargs), (1, 2), {"size": 3}).value == ((1, 2), {"size": 3})


@pytest.mark.parametrize(
    ("error", "ending", "exit_code"),
    [
        (Fail("boom"), Ending.FAILED, None),
        (Fail("boom", exit_code=7), Ending.FAILED, 7),
        (Timeout("slow", exit_code=124), Ending.FAILED, 124),
        (Fatal("broken", exit_code=137), Ending.FATAL, 137),
        (ValueError("boom"), Ending.FAILED, None),
        (StopIteration(), Ending.FAILED, None),
        (MemoryError(), Ending.FAILED, None),
        (ExceptionGroup("many", [ValueError()]), Ending.FAILED, None),
        (TimeoutError(), Ending.FAILED, None),
        (Canceled(), Ending.CANCELED, None),
        (SystemExit(), Ending.FATAL, 0),
        (SystemExit(3), Ending.FATAL, 3),
        (SystemExit("sorry"), Ending.FATAL, 1),
        (KeyboardInterrupt(), Ending.PANICKED, None),
        (GeneratorExit(), Ending.PANICKED, None),
        (BaseExceptionGroup("many", [KeyboardInterrupt()]), Ending.PANICKED, None),
        (Custom(), Ending.PANICKED, None),
    ],
)
def test_what_a_body_raises_never_gets_out(error, ending, exit_code) -> None:
    def body() -> None:
        raise error

    result = call(body)
    assert (result.ending, result.error, result.exit_code) == (ending, error, exit_code)
    assert result.value is None
    assert ended_by(result) == type(error).__name__


# -- Watch


class Observer:
    """Writes down what it is told, and when."""

    def __init__(self, clock: VirtualClock | SystemClock) -> None:
        self.clock = clock
        self.told: list[tuple[object, ...]] = []

    def timed_out(self) -> Callable[[], None]:
        self.told.append(("timed out", self.clock.monotonic()))
        return lambda: self.told.append(("callbacks", self.clock.monotonic()))

    def overrunning(self, late_by: float) -> None:
        self.told.append(("overrunning", self.clock.monotonic(), late_by))

    def given_up(self) -> None:
        self.told.append(("given up", self.clock.monotonic()))


@pytest.fixture
def observer(clock: VirtualClock) -> Observer:
    return Observer(clock)


class Timer:
    """A heap whose owner looks when the test says so."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.deadlines = Deadlines(clock, lambda: None)

    def go_to(self, instant: float) -> None:
        """Pass the time, looking at each instant at which something is due."""
        while (left := self.deadlines.seconds_left()) is not None:
            if self.clock.monotonic() + left > instant:
                break
            self.clock.advance(left)
            self.deadlines.run_due(1)
        self.clock.advance(instant - self.clock.monotonic())


@pytest.fixture
def timer(clock: VirtualClock) -> Timer:
    return Timer(clock)


def test_a_body_that_returns_in_time_has_won_and_is_watched_no_longer(timer, observer) -> None:
    watch = Watch(timer.deadlines, 5.0, 3.0, observer)
    timer.go_to(4.0)
    assert watch.returned() is True
    assert watch.returned() is True
    watch.ended()
    timer.go_to(1000.0)
    assert observer.told == []
    assert timer.deadlines.seconds_left() is None


def test_the_deadline_decides_at_its_instant(timer, observer) -> None:
    watch = Watch(timer.deadlines, 5.0, None, observer)
    timer.go_to(4.999)
    assert observer.told == []
    timer.go_to(5.0)
    assert observer.told == [("timed out", 5.0), ("callbacks", 5.0)]
    assert watch.returned() is False
    watch.ended()
    timer.go_to(1000.0)
    assert len(observer.told) == 2


def test_a_body_that_returned_in_time_has_won_however_late_anybody_looks(clock, timer, observer) -> None:
    watch = Watch(timer.deadlines, 5.0, 3.0, observer)
    clock.advance(5.0)
    assert watch.returned() is True
    clock.advance(100.0)
    timer.deadlines.run_due(10)
    assert observer.told == []


def test_a_late_return_has_lost_although_nobody_looked(clock, timer, observer) -> None:
    watch = Watch(timer.deadlines, 5.0, 3.0, observer)
    clock.advance(5.001)
    assert watch.returned() is False
    watch.ended()
    timer.go_to(1000.0)
    assert observer.told == [("timed out", 5.001), ("callbacks", 5.001)]


def test_the_sum_of_floats_does_not_make_a_body_late(clock, timer, observer) -> None:
    watch = Watch(timer.deadlines, 0.1 + 0.1 + 0.1 - 1e-17, None, observer)
    clock.advance(0.3)
    assert watch.returned() is True


def test_reports_come_10_30_70_and_150_seconds_after_the_deadline(timer, observer) -> None:
    watch = Watch(timer.deadlines, 5.0, None, observer)
    timer.go_to(200.0)
    assert observer.told[2:] == [
        ("overrunning", 15.0, 10.0),
        ("overrunning", 35.0, 30.0),
        ("overrunning", 75.0, 70.0),
        ("overrunning", 155.0, 150.0),
    ]
    watch.ended()
    assert timer.deadlines.seconds_left() is None


def test_a_body_that_overruns_is_given_up_once_and_reported_no_longer(timer, observer) -> None:
    watch = Watch(timer.deadlines, 5.0, 20.0, observer)
    timer.go_to(1000.0)
    assert observer.told[2:] == [("overrunning", 15.0, 10.0), ("given up", 25.0)]
    assert watch.returned() is False


def test_an_overrun_of_zero_gives_up_with_the_verdict(timer, observer) -> None:
    Watch(timer.deadlines, 5.0, 0.0, observer)
    timer.go_to(1000.0)
    assert observer.told == [("timed out", 5.0), ("given up", 5.0), ("callbacks", 5.0)]


def test_a_late_return_ends_the_overrun(timer, observer) -> None:
    watch = Watch(timer.deadlines, 5.0, 20.0, observer)
    timer.go_to(8.0)
    assert watch.returned() is False
    timer.go_to(10.0)  # the closers
    watch.ended()
    timer.go_to(1000.0)
    assert observer.told == [("timed out", 5.0), ("callbacks", 5.0)]


def test_the_closers_of_a_late_body_count_for_its_overrun(timer, observer) -> None:
    watch = Watch(timer.deadlines, 5.0, 3.0, observer)
    timer.go_to(7.0)
    assert watch.returned() is False
    timer.go_to(9.0)
    watch.ended()
    assert observer.told[2:] == [("given up", 8.0)]


def test_who_sleeps_to_the_deadline_wakes_before_it_is_judged(clock, timer, observer) -> None:
    woken: list[str] = []
    Watch(timer.deadlines, 5.0, None, observer)
    timer.deadlines.call_at(5.0, lambda: woken.append("sleeper"))
    clock.advance(5.0)
    assert timer.deadlines.run_due(10) == 1
    assert (woken, observer.told) == (["sleeper"], [])
    timer.deadlines.run_due(10, VERDICT)
    assert observer.told[0] == ("timed out", 5.0)


@pytest.mark.parametrize("seed", range(30))
def test_return_and_deadline_at_once_have_one_winner_whom_all_believe(seed) -> None:
    clock = VirtualClock(seed)
    timer, observer = Timer(clock), Observer(clock)
    watch = Watch(timer.deadlines, 5.0, None, observer)
    clock.advance(5.0)
    won: list[bool] = []

    def body() -> None:
        won.append(watch.returned())
        watch.ended()

    threads = [clock.spawn(body, "body"), clock.spawn(lambda: timer.deadlines.run_due(10) and None, "timer")]
    for thread in threads:
        thread.join()
    assert observer.told == ([] if won == [True] else [("timed out", 5.0), ("callbacks", 5.0)])


def test_on_the_real_clock_return_and_deadline_agree_on_the_winner() -> None:
    clock = SystemClock()
    deadlines = Deadlines(clock, lambda: None)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for n in range(300):
            observer, won = Observer(clock), []
            deadline = clock.monotonic() + 0.0001
            watch = Watch(deadlines, deadline, None, observer)

            def body(watch: Watch = watch, deadline: float = deadline, n: int = n, won: list = won) -> None:
                while clock.monotonic() < deadline + (n % 3 - 1) * 2e-5:
                    pass
                won.append(watch.returned())
                watch.ended()

            thread = threading.Thread(target=body, daemon=True)
            thread.start()
            while deadlines.seconds_left():
                pass
            deadlines.run_due(10)
            thread.join(10)
            assert [told[0] for told in observer.told] == (
                [] if won == [True] else ["timed out", "callbacks"]
            )
    finally:
        sys.setswitchinterval(before)
