"""MemoryStore: a thread-safe dictionary whose updates are atomic without holding a lock over user code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest

from supervisor.flows.store import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads change as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*bodies: Any) -> None:
    threads = [Thread(target=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("value", ["text", 5, None, [1, [2]], {"a": object()}, object()])
def test_get_returns_the_object_that_was_put(store: MemoryStore, value: object) -> None:
    store.put("k", value)
    assert store.get("k", "default") is value


def test_a_missing_key_gives_the_default(store: MemoryStore) -> None:
    assert store.get("k") is None
    assert store.get("k", 5) == 5


def test_put_overwrites_with_any_type(store: MemoryStore) -> None:
    store.put("k", 1)
    store.put("k", "one")
    assert store.get("k") == "one"
    assert len(store) == 1


def test_remove_forgets_a_key_and_a_missing_one_is_fine(store: MemoryStore) -> None:
    store.put("k", 1)
    store.remove("k")
    store.remove("k")
    assert "k" not in store
    assert len(store) == 0


def test_keys_come_oldest_first_and_as_a_list_of_their_own(store: MemoryStore) -> None:
    assert store.keys() == []
    store.put("b", 1)
    store.put(("a", 2), 1)
    keys = store.keys()
    store.clear()
    assert keys == ["b", ("a", 2)]
    assert store.keys() == []
    assert "b" not in store


def test_append_makes_a_list_and_extends_it(store: MemoryStore) -> None:
    store.append("k", 1)
    store.append("k", 2)
    assert store.get("k") == [1, 2]
    store.put("mine", [0])
    store.append("mine", 1)
    assert store.get("mine") == [0, 1]


@pytest.mark.parametrize("value", [5, None, (1,), "text", {}])
def test_append_to_anything_but_a_list_is_refused_and_the_value_is_intact(
    store: MemoryStore, value: object
) -> None:
    store.put("k", value)
    with pytest.raises(
        TypeError, match=f"needs a list under 'k', found a value of type {type(value).__name__}"
    ):
        store.append("k", 1)
    assert store.get("k") is value


def test_update_sets_and_returns_what_the_function_made(store: MemoryStore) -> None:
    assert store.update("n", lambda n: n + 1, 10) == 11
    assert store.update("n", lambda n: n + 1) == 12
    assert store.update("none", lambda value: value) is None
    assert "none" in store
    assert store.get("n") == 12


def test_an_update_that_fails_changes_nothing(store: MemoryStore) -> None:
    store.put("n", 1)
    with pytest.raises(ZeroDivisionError):
        store.update("n", lambda n: n / 0)
    with pytest.raises(ZeroDivisionError):
        store.update("m", lambda _: 1 / 0)
    assert store.get("n") == 1
    assert "m" not in store


@pytest.mark.parametrize(
    ("meanwhile", "seen"),
    [
        (lambda store: store.put("k", [1]), [[1], [1]]),  # an equal value is another write
        (lambda store: store.append("k", 2), [[1, 2], [1, 2]]),  # which extends the same list
        (lambda store: store.remove("k"), [[1], []]),
        (lambda store: store.clear(), [[1], []]),
    ],
)
def test_update_calls_again_when_the_key_was_written_meanwhile(
    store: MemoryStore, meanwhile: Any, seen: list[list[int]]
) -> None:
    store.put("k", [1])
    got: list[list[int]] = []

    def fn(value: list[int]) -> list[int]:
        got.append(value)
        if len(got) == 1:
            meanwhile(store)
        return [*value, 9]

    result = store.update("k", fn, [])
    assert got == seen
    assert result == store.get("k") == [*seen[1], 9]


def test_update_is_not_disturbed_by_other_keys(store: MemoryStore) -> None:
    calls: list[int] = []

    def fn(value: int) -> int:
        calls.append(value)
        store.put("other", 1)
        return value + 1

    assert store.update("k", fn, 0) == 1
    assert calls == [0]


def test_a_finalizer_may_use_the_store(store: MemoryStore) -> None:
    class Last:
        def __del__(self) -> None:
            store.append("ended", 1)

    store.put("k", Last())
    store.put("k", Last())
    store.update("k", lambda _: Last())
    store.remove("k")
    store.put("k", Last())
    store.clear()  # the last one ends after the clearing
    assert store.get("ended") == [1]
    store.put("a", Last())
    store.put("a", 0)
    assert store.get("ended") == [1, 1]


def test_a_list_of_a_subclass_is_extended_without_running_its_code(store: MemoryStore) -> None:
    class Rows(list[int]):
        def append(self, item: int) -> None:
            raise AssertionError

    store.put("k", Rows())
    store.append("k", 1)
    assert store.get("k") == [1]


@pytest.mark.usefixtures("hasty")
def test_no_update_and_no_append_is_lost_between_threads(store: MemoryStore) -> None:
    def work() -> None:
        for number in range(300):
            store.update("n", lambda n: n + 1, 0)
            store.update("mixed", lambda items: [*items, number], [])  # noqa: B023
            store.append("mixed", number)
            store.append("items", number)

    together(*[work] * 4)
    assert store.get("n") == 1200
    assert len(store.get("items")) == 1200
    assert len(store.get("mixed")) == 2400


@pytest.mark.usefixtures("hasty")
def test_readers_see_whole_states_while_writers_write(store: MemoryStore) -> None:
    broken: list[object] = []

    def write() -> None:
        for number in range(500):
            store.put(number % 7, (number, number))
            store.remove((number + 3) % 7)
            if number % 50 == 0:
                store.clear()

    def read() -> None:
        for number in range(500):
            first, second = store.get(number % 7, (0, 0))
            keys = store.keys()
            if first != second or len(set(keys)) != len(keys) or len(store) > 7:
                broken.append(keys)

    together(write, write, read, read)
    assert broken == []


def test_a_store_shows_its_size(store: MemoryStore) -> None:
    store.put("k", 1)
    assert repr(store) == "<MemoryStore of 1 keys>"
