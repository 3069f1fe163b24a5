"""Many flows at once, on virtual time and on the machine's own threads."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import Counter

import pytest

from supervisor.flows import Completed, Scheduler
from supervisor.testing import EventRecorder, VirtualClock
from tests.flows.scheduling import Body

LONG = int(os.environ.get("SUPERVISOR_LONG_TESTS", "1"))  # times as many rounds as in a quick run


def test_a_thousand_flows_start_at_their_very_instants() -> None:
    clock = VirtualClock()
    scheduler = Scheduler(clock=clock)
    bodies = [Body(clock) for _ in range(1000)]
    for number, body in enumerate(bodies):
        if number % 2:
            scheduler.every(f"{number}", body, interval=1.0 + number / 1000)
        else:
            scheduler.cron(f"{number}", body, expression=f"{number % 5} * * * * *")
    with scheduler.start() as running:
        clock.advance(4.0)
        for number, body in enumerate(bodies):
            if number % 2:
                interval = 1.0 + number / 1000
                expected = [n * interval for n in range(int(4.0 / interval + 1e-9) + 1)]
            else:
                expected = [float(number % 5)] if number % 5 else []
            assert body.starts == pytest.approx(expected, abs=1e-8), number
        assert sum(info.run_count for info in running.list()) == sum(len(body.starts) for body in bodies)


def test_of_a_thousand_flows_due_at_one_instant_four_run_at_once_and_all_in_order() -> None:
    clock, recorder = VirtualClock(), EventRecorder()
    inside = most = 0

    def body() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        clock.sleep(0.001)
        inside -= 1

    scheduler = Scheduler(clock=clock, workers=4)
    names = [f"{number}" for number in range(1000)]
    for name in names:
        scheduler.cron(name, body, expression="0 * * * * *")
    with scheduler.start() as running:
        clock.advance(60.0)
        clock.advance(0.5)
        assert most == 4
        assert {type(info.status) for info in running.list()} == {Completed}
    assert len(recorder) == 0


@pytest.mark.parametrize("round", range(2 * LONG))
def test_on_the_real_clock_no_accepted_run_is_lost(round: int) -> None:
    done: list[str] = []
    scheduler = Scheduler(workers=(None, 3)[round % 2])
    names = [f"{number}" for number in range(300)]
    for name in names:
        scheduler.manual(name, lambda name=name: done.append(name))
    with scheduler.start() as running:
        for name in names:
            running.trigger(name)
    assert Counter(done) == dict.fromkeys(names, 1)
    assert {type(info.status) for info in running.list()} == {Completed}


def test_starting_and_stopping_many_times_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    for _ in range(20 * LONG):
        done = threading.Event()
        scheduler = Scheduler()
        scheduler.every("a", done.set, interval=3600.0)
        with scheduler.start():
            assert done.wait(10.0)
        assert threading.active_count() == before


def test_a_stopped_scheduler_can_be_forgotten_with_all_it_ran() -> None:
    class Task:
        def __call__(self) -> None:
            raise ValueError("kept by nobody")

    clock = VirtualClock()
    task = Task()
    scheduler = Scheduler(clock=clock)
    scheduler.manual("a", task)
    running = scheduler.start()
    running.trigger("a")
    clock.settle()
    running.stop()
    gone = [weakref.ref(task), weakref.ref(running)]
    del task, scheduler, running
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_what_a_failed_run_held_is_free_before_the_next_one() -> None:
    class Big:
        pass

    clock = VirtualClock()
    held: list[weakref.ref[Big]] = []

    def fails() -> None:
        big = Big()
        held.append(weakref.ref(big))
        raise ValueError("no")

    scheduler = Scheduler(clock=clock)
    scheduler.manual("a", fails)
    with scheduler.start() as running:
        running.trigger("a")
        clock.settle()
        gc.collect()
        assert held[0]() is None
