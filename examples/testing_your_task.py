"""Testing your own task, with a day of waiting in no time.

`VirtualClock` runs the real threads of a supervisor one at a time and moves time only when all of
them wait. So a test compares exact times, needs no sleep, and never flickers. The function below is a
test as pytest would find it; here `main` calls it.

Run it: python examples/testing_your_task.py

Prints::

    attempts after 0, 60, 180 and 420 s, then the alarm
    a day of hourly reports: 24
"""

from collections.abc import Callable

from supervisor import AttemptStarting, BackoffPolicy, Fatal, Jitter, Supervisor, TaskContext, TaskSpec
from supervisor.testing import EventRecorder, VirtualClock, no_leaked_threads

PATIENT = BackoffPolicy(initial=60, max_delay=3600, jitter=Jitter.NONE)


def import_rates(ctx: TaskContext) -> None:
    """The task under test: patient with the bank, but not for ever."""
    if ctx.attempt == 4:
        raise Fatal("the bank has been closed for too long")
    raise ConnectionRefusedError("the bank is closed")


def hourly(report: Callable[[], None]) -> TaskSpec:
    """The schedule under test."""
    return TaskSpec.periodic("report", report, every=3600)


def test_the_import_gives_up_after_four_attempts_that_wait_twice_as_long_each() -> None:
    clock, recorder = VirtualClock(), EventRecorder()
    with no_leaked_threads(), Supervisor(clock=clock, subscribers=[recorder]) as supervisor:
        rates = supervisor.add(TaskSpec.restartable("rates", import_rates, backoff=PATIENT))
        assert rates.wait().reason == "the bank has been closed for too long"
    assert recorder.times(AttemptStarting) == [0.0, 60.0, 180.0, 420.0]


def test_a_day_has_24_reports() -> int:
    clock, written = VirtualClock(), list[float]()
    with no_leaked_threads(), Supervisor(clock=clock) as supervisor:
        supervisor.add(hourly(lambda: written.append(clock.monotonic())))
        clock.advance(24 * 3600 - 1)
    assert written == [3600.0 * hour for hour in range(24)]
    return len(written)


def main() -> None:
    test_the_import_gives_up_after_four_attempts_that_wait_twice_as_long_each()
    print("attempts after 0, 60, 180 and 420 s, then the alarm")
    print("a day of hourly reports:", test_a_day_has_24_reports())


if __name__ == "__main__":
    main()
