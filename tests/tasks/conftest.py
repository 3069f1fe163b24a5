"""Fixtures for tests of tasks: supervisors with other settings, and bodies that don't stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from supervisor import GraceExceeded, Supervisor, SupervisorConfig
from supervisor.testing import EventRecorder, VirtualClock


@pytest.fixture
def make_supervisor(clock: VirtualClock, recorder: EventRecorder) -> Iterator[Callable[..., Supervisor]]:
    """Make supervisors from settings of `SupervisorConfig`; the recorder listens to each."""
    made: list[Supervisor] = []

    def make(*, on: VirtualClock | None = None, **settings: Any) -> Supervisor:
        subscribers = [recorder] if on is None else []
        made.append(Supervisor(SupervisorConfig(**settings), clock=on or clock, subscribers=subscribers))
        return made[-1]

    yield make
    for each in made:
        try:
            each.shutdown()
        except GraceExceeded:
            pass


class Stubborn:
    """A body that no request to stop can move; `release` lets it go."""

    def __init__(self, clock: VirtualClock) -> None:
        self._latch = clock.latch()
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        self._latch.wait()
        return "released"

    def release(self) -> None:
        self._latch.open()


@pytest.fixture
def stubborn(clock: VirtualClock) -> Iterator[Stubborn]:
    body = Stubborn(clock)
    yield body
    body.release()
    clock.settle()
