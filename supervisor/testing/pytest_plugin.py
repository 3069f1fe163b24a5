"""Fixtures for pytest: `pytest_plugins = ["supervisor.testing.pytest_plugin"]` in the top conftest.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from supervisor.testing.threads import no_leaked_threads
from supervisor.testing.virtual_clock import VirtualClock

__all__ = ["no_leaked_threads_fixture", "virtual_clock"]


@pytest.fixture(name="no_leaked_threads")
def no_leaked_threads_fixture() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Fail the test if it leaves a thread behind. The value is the context manager itself."""
    with no_leaked_threads():
        yield no_leaked_threads


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """A new VirtualClock without a seed."""
    return VirtualClock()
