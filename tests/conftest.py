"""Every test: no thread may be left behind; `clock`, `recorder` and `supervisor` are on virtual time."""

from __future__ import annotations

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
