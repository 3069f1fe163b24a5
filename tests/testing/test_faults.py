"""FaultyStore: which calls fail, when, and with what."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import pytest

from supervisor.durable.errors import StoreError
from supervisor.durable.history import RunCreated, RunStarted
from supervisor.durable.stores.memory import MemoryEventStore
from supervisor.testing import FaultyStore, InjectedFault

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Shelf:
    """A small store."""

    limit = 3

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.open = False

    def append(self, run_id: str, expected_sequence: int, events: Sequence[Any], at: object = None) -> int:
        self.written.extend(events)
        return expected_sequence + len(events)

    def read(self) -> list[Any]:
        return list(self.written)

    def _private(self) -> str:
        return "private"

    def __enter__(self) -> Shelf:
        self.open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool:
        self.open = False
        return kind is KeyError


def second_append(method: str, number: int) -> bool:
    return method == "append" and number == 2


def test_the_chosen_call_fails_before_it_reaches_the_store() -> None:
    shelf = Shelf()
    store = FaultyStore(shelf, second_append)
    assert store.append("r", 0, ["a"]) == 1
    with pytest.raises(InjectedFault, match="injected before call 2 of append"):
        store.append("r", 1, ["b"])
    assert store.append("r", 1, ["c"]) == 2
    assert shelf.written == ["a", "c"]


def test_with_after_the_call_has_done_its_work() -> None:
    shelf = Shelf()
    store = FaultyStore(shelf, second_append, after=True)
    store.append("r", 0, ["a"])
    with pytest.raises(InjectedFault, match="injected after call 2 of append"):
        store.append("r", 1, ["b"])
    assert shelf.written == ["a", "b"]


@pytest.mark.parametrize(("after", "written"), [(False, ["x"]), (True, ["x", "y", "z"])])
def test_a_function_of_one_argument_is_asked_for_every_event_of_an_append(
    after: bool, written: list[str]
) -> None:
    shelf = Shelf()
    store = FaultyStore(shelf, lambda event: event == "z", after)
    store.append("r", 0, ["x"])
    with pytest.raises(InjectedFault):
        store.append("r", expected_sequence=1, events=["y", "z"])
    assert store.read() == written


def test_calls_and_faults_are_counted() -> None:
    store = FaultyStore(Shelf(), lambda method, number: number == 2)
    store.read()
    with pytest.raises(InjectedFault):
        store.read()
    store.read()
    store.append("r", 0, [])
    assert store.calls == {"read": 3, "append": 1}
    assert store.faults == 1


@pytest.mark.parametrize("error", [OSError("disk full"), OSError])
def test_an_exception_takes_the_place_of_the_fault(error: object) -> None:
    store = FaultyStore(Shelf(), lambda method, number: error)
    with pytest.raises(OSError):  # noqa: PT011
        store.read()
    assert store.faults == 1


def test_what_the_store_raises_itself_passes() -> None:
    store = FaultyStore(Shelf(), lambda method, number: True, after=True)
    with pytest.raises(TypeError, match="append"):
        store.append()
    assert store.faults == 0


def test_attributes_and_private_methods_are_those_of_the_store() -> None:
    store = FaultyStore(Shelf(), lambda method, number: True)
    assert (store.limit, store._private()) == (3, "private")
    assert store.calls == {}
    with pytest.raises(AttributeError):
        _ = store.missing


def test_a_with_block_opens_and_closes_the_store() -> None:
    shelf = Shelf()
    with FaultyStore(shelf, lambda event: False) as store:
        assert isinstance(store, FaultyStore)
        assert shelf.open
        raise KeyError("swallowed by the store")
    assert not shelf.open


def test_a_fault_is_an_error_of_a_store() -> None:
    assert issubclass(InjectedFault, StoreError)


@pytest.mark.parametrize(("after", "stored"), [(False, []), (True, ["run_created", "run_started"])])
def test_an_append_of_a_real_store_fails_as_a_whole(after: bool, stored: list[str]) -> None:
    inner = MemoryEventStore()
    store = FaultyStore(inner, lambda event: event.type == "run_started", after)
    with pytest.raises(StoreError):
        store.append("r", 0, [RunCreated({"name": "w", "version": "1"}, None), RunStarted()], AT)
    assert [each.event.type for run_id in inner.list_run_ids() for each in inner.read(run_id)] == stored


def test_a_verdict_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="fails_when must be callable, got True"):
        FaultyStore(Shelf(), True)  # type: ignore[arg-type]
