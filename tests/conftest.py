"""Every test: no thread may be left behind; `clock` is virtual time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from supervisor.testing import VirtualClock, no_leaked_threads


@pytest.fixture(autouse=True)
def leave_no_thread_behind() -> Iterator[None]:
    with no_leaked_threads():
        yield


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()
