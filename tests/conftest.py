"""Every test: no thread may be left behind; `clock`, `recorder` and `supervisor` are on virtual time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from supervisor import GraceExceeded, Supervisor
from supervisor.testing import EventRecorder, VirtualClock, no_leaked_threads

# Files whose tests look at what one fixture made, which took long. With `pytest -n`, one process runs all of such
# a file; of other files the tests are spread, each with all of its cases.
TOGETHER = {"tests/test_docs_blocks.py", "tests/test_examples.py"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, test = nodeid.partition("::")[0], nodeid.partition("[")[0]
            return file if file in TOGETHER else test

    return Scheduling(config, log)


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
