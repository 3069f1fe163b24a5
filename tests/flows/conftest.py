"""Fixtures for tests of schedules: a builder on virtual time, and one way to start it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from supervisor.flows import RunningScheduler, Scheduler, StopTimeout
from supervisor.testing import EventRecorder, VirtualClock
from tests.flows.scheduling import Deaf


@pytest.fixture
def scheduler(clock: VirtualClock, recorder: EventRecorder) -> Scheduler:
    """A builder on `clock`; the recorder listens."""
    return Scheduler(clock=clock, subscribers=[recorder])


@pytest.fixture
def start(clock: VirtualClock) -> Iterator[Callable[[Scheduler], RunningScheduler]]:
    """Start a scheduler and let it do what is due at once; it is stopped after the test."""
    started: list[RunningScheduler] = []

    def begin(scheduler: Scheduler) -> RunningScheduler:
        started.append(scheduler.start())
        clock.settle()
        return started[-1]

    yield begin
    for each in started:
        try:
            each.stop(0.0)
        except StopTimeout:
            clock.advance(100.0)  # bodies that sleep come back


@pytest.fixture
def deaf(clock: VirtualClock) -> Iterator[Deaf]:
    """A run that ignores the request to stop; it is let go after the test."""
    body = Deaf(clock)
    yield body
    body.release()
    clock.settle()
