"""Every test: no thread may be left behind; `clock`, `recorder` and `supervisor` are on virtual time."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from supervisor import GraceExceeded, Supervisor
from supervisor.testing import EventRecorder, VirtualClock, no_leaked_threads


@pytest.fixture(autouse=True)
def leave_no_thread_behind() -> Iterator[None]:
    with no_leaked_threads():
        yield


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def recorder() -> EventRecorder:
    return EventRecorder()


@pytest.fixture
def supervisor(clock: VirtualClock, recorder: EventRecorder) -> Iterator[Supervisor]:
    """A supervisor on `clock`, with the recorder subscribed; shut down afterwards, stuck or not."""
    made = Supervisor(clock=clock, subscribers=[recorder])
    yield made
    try:
        made.shutdown()
    except GraceExceeded:
        pass


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Take back what a test of the command line does to logging."""
    root, ours = logging.getLogger(), logging.getLogger("supervisor")
    before = (root.level, list(root.handlers), ours.level)
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    ours.setLevel(before[2])
