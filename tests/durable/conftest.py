"""Every store and every queue there is, by name: a new one needs a line in a table, and all tests run over it.

A test that asks for `store` or `queue` runs once for each of them; one that asks for `reopen` or `another`
once for each store that outlives the object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from supervisor.durable.stores.jsonl import JsonlEventStore
from supervisor.durable.stores.memory import MemoryEventStore
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock
from supervisor.testing import VirtualClock
from tests.durable.world import World
from tests.postgres_fixtures import (
    pg_dsn,
    pg_empty_tables,
    pg_of_our_own,
    pg_server,
    pg_session_dsn,
    pg_tables,
)

__all__ = [
    "pg_dsn",
    "pg_empty_tables",
    "pg_of_our_own",
    "pg_server",
    "pg_session_dsn",
    "pg_tables",
]  # fixtures, taken in


@dataclass(frozen=True)
class Place:
    """Where a store or a queue of one test lives."""

    path: Path  # an empty directory
    fixture: Callable[[str], Any]  # another fixture by its name, such as the address of a server


@dataclass(frozen=True)
class StoreKind:
    """How to open a store; opening the same place twice gives the same runs if it `persists`."""

    open: Callable[[Place], Any]
    persists: bool = True


@dataclass(frozen=True)
class QueueKind:
    """How to open a queue: `open(place, clock, capacity=None)`.

    virtual: it takes all times from the clock that it is given; otherwise the tests wait for real, but shortly.
    """

    open: Callable[..., Any]
    virtual: bool = True


def _memory_queue(_: Place, clock: Clock, **options: Any) -> Any:
    from supervisor.durable.queues.memory import MemoryWorkQueue

    return MemoryWorkQueue(clock=clock, **options)


def _postgres_store(place: Place) -> Any:
    from supervisor.durable.stores.postgres import PostgresEventStore

    return PostgresEventStore(place.fixture("pg_empty_tables"))


def _postgres_queue(place: Place, clock: Clock, **options: Any) -> Any:
    from supervisor.durable.queues.postgres import PostgresWorkQueue

    return PostgresWorkQueue(place.fixture("pg_empty_tables"), clock=clock, **options)


def _sqlite_store(place: Place) -> Any:
    from supervisor.durable.stores.sqlite import SqliteEventStore

    return SqliteEventStore(place.path / "flows.db")


def _sqlite_queue(place: Place, clock: Clock, **options: Any) -> Any:
    from supervisor.durable.queues.sqlite import SqliteWorkQueue

    return SqliteWorkQueue(place.path / "flows.db", clock=clock, **options)


STORES = {
    "memory": StoreKind(lambda _: MemoryEventStore(), persists=False),
    "sqlite": StoreKind(_sqlite_store),
    "jsonl": StoreKind(lambda place: JsonlEventStore(place.path / "runs")),
    "postgres": StoreKind(_postgres_store),
}
QUEUES = {
    "memory": QueueKind(_memory_queue),
    "sqlite": QueueKind(_sqlite_queue),
    "postgres": QueueKind(_postgres_queue, virtual=False),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    asked = metafunc.fixturenames
    if "store_kind" in asked:
        lasting = "reopen" in asked or "another" in asked
        names = [name for name, kind in STORES.items() if kind.persists or not lasting]
        metafunc.parametrize("store_kind", [STORES[name] for name in names], ids=names)
    if "queue_kind" in asked:
        metafunc.parametrize("queue_kind", list(QUEUES.values()), ids=list(QUEUES))


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return Place(tmp_path, request.getfixturevalue)


class Home:
    """The stores that one test has open on one place."""

    def __init__(self, kind: StoreKind, place: Place) -> None:
        self._kind = kind
        self._place = place
        self._opened: list[Any] = []
        self.store = self.another()

    def another(self) -> Any:
        """Open the same place once more, beside what is open."""
        self._opened.append(self._kind.open(self._place))
        return self._opened[-1]

    def reopen(self) -> Any:
        """Close all and open the same place again."""
        self.close()
        self.store = self.another()
        return self.store

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()


@pytest.fixture
def home(store_kind: StoreKind, place: Place) -> Iterator[Home]:
    made = Home(store_kind, place)
    yield made
    made.close()


@pytest.fixture
def store(home: Home) -> Any:
    return home.store


@pytest.fixture
def reopen(home: Home) -> Callable[[], Any]:
    """Close the store and open the same place again: `store = reopen()`."""
    return home.reopen


@pytest.fixture
def another(home: Home) -> Callable[[], Any]:
    """A second store on the same place, while the first is open."""
    return home.another


class Timeline:
    """Time as a queue sees it: virtual and exact, or real, in short units and with some slack."""

    def __init__(self, virtual: bool) -> None:
        self._virtual = VirtualClock() if virtual else None
        self.clock: Clock = self._virtual or SYSTEM_CLOCK
        self.unit = 10.0 if virtual else 0.15  # seconds
        self.slack = 0.0 if virtual else 20.0  # seconds by which a busy machine may be late

    def passes(self, units: float) -> None:
        """Let so much time go by."""
        if self._virtual is not None:
            self._virtual.advance(units * self.unit)
        else:
            self.clock.latch().wait(units * self.unit + 0.01)  # of real time a little more: its parts are cut

    def settle(self) -> None:
        """Let every thread that was started come to its wait, if that can be known."""
        if self._virtual is not None:
            self._virtual.settle()

    def is_in(self, found: datetime, units: float) -> bool:
        """Whether an instant is so many units from now."""
        ahead = (found - self.clock.now()) - timedelta(seconds=units * self.unit)
        return abs(ahead.total_seconds()) <= self.slack

    def lasts(self, found: float | None, units: float) -> bool:
        """Whether a number of seconds is so many units, or less where time is real and has gone on."""
        if found is None:
            return False
        expected = units * self.unit
        return found == expected if self._virtual is not None else 0.0 <= found <= expected


@pytest.fixture
def timeline(queue_kind: QueueKind) -> Timeline:
    return Timeline(queue_kind.virtual)


@pytest.fixture
def make_queue(queue_kind: QueueKind, place: Place, timeline: Timeline) -> Iterator[Callable[..., Any]]:
    """Open a queue with options, such as `capacity`."""
    opened: list[Any] = []

    def make(**options: Any) -> Any:
        opened.append(queue_kind.open(place, timeline.clock, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.fixture
def queue(make_queue: Callable[..., Any]) -> Any:
    return make_queue()


@pytest.fixture
def make_engine(clock: VirtualClock) -> Iterator[Callable[..., Any]]:
    """Make engines on the virtual clock, or on another: `make_engine(runtime, store)`; they are closed afterwards."""
    from supervisor.durable.engine import FlowEngine

    made: list[FlowEngine] = []

    def make(runtime: Any, store: Any = None, **options: Any) -> FlowEngine:
        made.append(FlowEngine(runtime, store, **{"clock": clock, **options}))
        return made[-1]

    yield make
    for each in reversed(made):
        each.close()
    clock.settle()


@pytest.fixture
def world() -> Iterator[World]:
    """A store, a queue and an engine on virtual time, see `World`."""
    made = World()
    yield made
    made.close()
