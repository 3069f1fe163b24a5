"""`Scheduler.supervisor`: what a scheduler runs on can be subscribed to before the start."""

from __future__ import annotations

import pytest

from supervisor import Event, Supervisor, TaskSpec
from supervisor.flows import Resources, Scheduler, Workflow
from supervisor.testing import VirtualClock


def test_its_own_is_made_once_and_has_started_nothing(clock: VirtualClock) -> None:
    scheduler = Scheduler(clock=clock)
    assert scheduler.supervisor is scheduler.supervisor
    assert scheduler.supervisor.tasks() == []


def test_who_subscribes_to_it_before_the_start_misses_nothing(clock: VirtualClock) -> None:
    told: list[Event] = []
    scheduler = Scheduler(clock=clock)
    scheduler.supervisor.subscribe(told.append)
    scheduler.every("f", lambda: None, interval=5.0)
    with scheduler.start():
        clock.advance(1.0)
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    assert (told[0].kind, told[-1].kind) == ("flow_scheduled", "shutdown_completed")


def test_one_that_was_given_is_told_as_it_is_and_stays_up(
    clock: VirtualClock, supervisor: Supervisor
) -> None:
    scheduler = Scheduler(supervisor=supervisor)
    assert scheduler.supervisor is supervisor
    scheduler.start().stop()
    assert supervisor.add(TaskSpec.once("t", lambda: 1)).wait().ok


def test_after_a_failed_start_there_is_a_new_one(clock: VirtualClock) -> None:
    class Broken:
        def setup(self) -> None:
            raise OSError("no database")

    scheduler = Scheduler(clock=clock)
    workflow = Workflow(Resources(db=Broken())).register(1, lambda: 2).add_exit_state(2)
    scheduler.every("f", workflow, 1, 5.0)
    first = scheduler.supervisor
    with pytest.raises(OSError, match="no database"):
        scheduler.start()
    assert scheduler.supervisor is not first
