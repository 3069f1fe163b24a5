"""Fixtures for pytest: `pytest_plugins = ["supervisor.testing.pytest_plugin"]` in a conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from supervisor.testing.threads import no_leaked_threads
from supervisor.testing.virtual_clock import VirtualClock

__all__ = ["no_leaked_threads_fixture", "virtual_clock"]


@pytest.fixture
def no_leaked_threads_fixture() -> Iterator[None]:
    """Fail the test if it leaves a thread behind."""
    with no_leaked_threads():
        yield


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """A new VirtualClock without a seed."""
    return VirtualClock()
