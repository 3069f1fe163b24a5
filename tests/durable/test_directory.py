"""What a store that offers no directory can be asked all the same."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.durable.directory import ReadDirectory, directory_of
from supervisor.durable.history import RunCompleted, RunFailed
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.memory import MemoryEventStore
from supervisor.durable.stores.protocol import Failure
from supervisor.testing import FaultyStore
from tests.durable.making import add, begin, later


class BareStore:
    """The six methods that every store must have, and no other."""

    def __init__(self) -> None:
        inner = MemoryEventStore()
        self.append = inner.append
        self.read = inner.read
        self.list_run_ids = inner.list_run_ids
        self.list_due_wakeups = inner.list_due_wakeups
        self.next_scheduled_wakeup = inner.next_scheduled_wakeup
        self.close = inner.close


@pytest.fixture
def bare() -> Any:
    store: Any = BareStore()
    begin(store, "b", at=later(0))
    begin(store, "a", workflow="other", at=later(1))
    begin(store, "c", at=later(2))
    add(store, "c", RunCompleted(None), at=later(3))
    add(store, "a", RunFailed("no"), at=later(3))
    return store


def test_a_store_with_a_directory_is_its_own() -> None:
    store = MemoryEventStore()
    assert directory_of(store) is store


def test_a_wrapper_that_passes_everything_on_offers_the_directory_of_its_store() -> None:
    store: Any = FaultyStore(MemoryEventStore(), lambda event: False)
    assert directory_of(store) is store


def test_runs_of_a_bare_store_are_found_by_reading_them(bare: Any) -> None:
    directory = directory_of(bare)
    assert isinstance(directory, ReadDirectory)
    assert directory.find_runs() == ["a", "b", "c"]
    assert directory.find_runs(newest_first=True) == ["c", "a", "b"]
    assert directory.find_runs([RunStatus.RUNNING]) == ["b"]
    assert directory.find_runs([RunStatus.COMPLETED, RunStatus.FAILED]) == ["a", "c"]
    assert directory.find_runs(workflow="checkout") == ["b", "c"]
    assert directory.find_runs(limit=2) == ["a", "b"]


def test_failures_of_a_bare_store_are_kept_oldest_first(bare: Any) -> None:
    directory = directory_of(bare)
    directory.mark_failure("a", "first", later(5))
    directory.mark_failure("b", "second", later(4))
    directory.mark_failure("a", "again", later(6))
    assert directory.failures() == [Failure("b", "second", later(4)), Failure("a", "again", later(6))]
    directory.clear_failure("b")
    directory.clear_failure("never marked")
    assert directory.failures() == [Failure("a", "again", later(6))]
