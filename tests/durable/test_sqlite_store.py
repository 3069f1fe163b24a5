"""What is special to histories in SQLite: several processes, damage, and what others wrote meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.durable.errors import CorruptHistory, EventConflict, InvalidTransition, StoreError
from supervisor.durable.history import RunCompleted, RunStarted
from supervisor.durable.queues.sqlite import SqliteWorkQueue
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.sqlite import SqliteEventStore
from supervisor.testing import VirtualClock
from tests.durable.making import AT, add, begin, created, signal, step, wait
from tests.programs import Finished, run_program


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flows.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteEventStore]:
    made = SqliteEventStore(path)
    yield made
    made.close()


def edit(path: Path, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        assert connection.execute(sql, values).rowcount > 0


def programs(code: str, *arguments: str, times: int) -> list[Finished]:
    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(lambda number: run_program("-c", code, *arguments, str(number)), range(times)))


# -- several processes -------------------------------------------------------------------------

APPENDS = """
import sys
from datetime import UTC, datetime
from supervisor.durable.errors import EventConflict
from supervisor.durable.history import RunCreated, RunStarted, SignalReceived
from supervisor.durable.stores.sqlite import SqliteEventStore
path, number = sys.argv[1:]
now = datetime.now(UTC)
store = SqliteEventStore(path)
own = f"own-{number}"
store.append(own, 0, [RunCreated({"name": "w", "version": "1"}), RunStarted()], now)
for i in range(50):
    store.append(own, 2 + i, [SignalReceived({"signal_id": str(i), "name": "n"})], now)
    while True:
        tip = store.read("shared")[-1].sequence
        try:
            store.append("shared", tip, [SignalReceived({"signal_id": f"{number}-{i}", "name": "n"})], now)
            break
        except EventConflict as conflict:
            assert conflict.actual > tip
store.close()
"""


def test_processes_that_append_at_once_lose_nothing_and_double_nothing(
    store: SqliteEventStore, path: Path
) -> None:
    begin(store, "shared")
    for each in programs(APPENDS, str(path), times=4):
        assert each.returncode == 0, each.report()
    shared = store.read("shared")
    assert [each.sequence for each in shared] == list(range(1, 203))
    assert len({each.event.signal_id for each in shared[2:]}) == 200  # pyright: ignore
    assert [len(store.read(f"own-{number}")) for number in range(4)] == [52] * 4


LEASES = """
import sys
from supervisor.durable.queues.sqlite import SqliteWorkQueue
queue = SqliteWorkQueue(sys.argv[1])
while (lease := queue.lease(60.0)) is not None:
    print(lease.run_id)
    queue.ack(lease)
queue.close()
"""


def test_processes_that_lease_at_once_never_take_the_same_task(path: Path) -> None:
    queue = SqliteWorkQueue(path)
    runs = [f"r{number:03}" for number in range(120)]
    for each in runs:
        queue.enqueue(each)
    said = programs(LEASES, str(path), times=3)
    assert sorted(line for each in said for line in each.stdout.split()) == runs, [
        each.report() for each in said
    ]
    assert queue.seconds_to_next() is None
    queue.close()


def test_a_process_sees_at_its_next_append_what_another_wrote(store: SqliteEventStore, path: Path) -> None:
    begin(store, "r")
    code = (
        "import sys\n"
        "from supervisor.durable.stores.sqlite import SqliteEventStore\n"
        "from tests.durable.making import add, signal, wait\n"
        "store = SqliteEventStore(sys.argv[1])\n"
        "add(store, 'r', signal('theirs'), wait('w', 5))\n"
        "store.close()\n"
    )
    (done,) = programs(code, str(path), times=1)
    assert done.returncode == 0, done.report()
    with pytest.raises(EventConflict) as caught:
        store.append("r", 2, [signal("mine")], AT)
    assert (caught.value.expected, caught.value.actual) == (2, 4)
    with pytest.raises(InvalidTransition, match="signal 'theirs' came before"):
        store.append("r", 4, [signal("theirs")], AT)
    assert store.append("r", 4, [signal("mine")], AT)[0].sequence == 5


def test_a_run_that_was_replaced_behind_the_back_of_a_store_is_folded_anew(
    store: SqliteEventStore, path: Path
) -> None:
    begin(store, "r", step("a"))
    other = SqliteEventStore(path.with_name("other.db"))
    begin(other, "r", step("b"))
    other.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("ATTACH ? AS other", (str(path.with_name("other.db")),))
        for table in ("flow_events", "flow_runs"):
            connection.execute(f"DELETE FROM {table}")
            connection.execute(f"INSERT INTO {table} SELECT * FROM other.{table}")
    with pytest.raises(InvalidTransition, match="step 'b' exists"):
        store.append("r", 4, step("b")[:1], AT)
    assert add(store, "r", *step("a"))[0].sequence == 5


# -- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", ["{", "", "null", '{"type":"what"}', '{"type":"run_started","more":1}', "[" * 5000]
)
def test_an_event_that_cant_be_read_is_named_and_left(store: SqliteEventStore, path: Path, body: str) -> None:
    begin(store, "r", [signal("a")])
    edit(path, "UPDATE flow_events SET body = ? WHERE sequence = 2", body)
    with pytest.raises(CorruptHistory, match=r"event 2 of run 'r' can't be read"):
        store.read("r")
    assert [each.sequence for each in store.read("r", after=2)] == [3]
    assert store.list_run_ids() == ["r"]
    fresh = SqliteEventStore(path)  # it has folded nothing yet
    with pytest.raises(CorruptHistory, match=r"event 2 of run 'r' can't be read"):
        fresh.append("r", 3, [signal("b")], AT)
    fresh.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT body FROM flow_events WHERE sequence = 2").fetchone() == (body,)


def test_an_instant_that_cant_be_read_is_named(store: SqliteEventStore, path: Path) -> None:
    begin(store, "r", [wait("w", 5)])
    edit(path, "UPDATE flow_events SET at = 'yesterday' WHERE sequence = 2")
    with pytest.raises(CorruptHistory, match="the instant of event 2 of run 'r' can't be read"):
        store.read("r")
    edit(path, "UPDATE flow_wakeups SET due_at = '2000'")
    with pytest.raises(CorruptHistory, match="can't be read"):
        store.next_scheduled_wakeup()


def test_a_hole_in_a_history_is_noticed_before_anything_is_added(store: SqliteEventStore, path: Path) -> None:
    begin(store, "r", [signal("a"), signal("b")])
    edit(path, "DELETE FROM flow_events WHERE sequence = 3")
    fresh = SqliteEventStore(path)
    with pytest.raises(InvalidTransition, match="what is stored is no history"):
        fresh.append("r", 4, [signal("c")], AT)
    fresh.close()


def test_a_history_that_lacks_its_end_is_noticed_before_anything_is_added(
    store: SqliteEventStore, path: Path
) -> None:
    begin(store, "r", [signal("a")])
    edit(path, "DELETE FROM flow_events WHERE sequence = 3")
    fresh = SqliteEventStore(path)
    with pytest.raises(EventConflict, match="expected its last event to be 3, and it is 2"):
        fresh.append("r", 3, [signal("c")], AT)
    fresh.close()


def test_a_table_that_is_missing_is_a_store_error_with_a_cure(store: SqliteEventStore, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DROP TABLE flow_failures")
    with pytest.raises(StoreError, match=r"no such table: flow_failures; it was there .*; restore the file"):
        store.failures()
    with closing(SqliteEventStore(path)) as other, pytest.raises(StoreError, match="restore the file from"):
        other.failures()


# -- the directory, and numbers beyond a column --------------------------------------------------


def test_the_status_of_a_run_is_written_with_its_events(store: SqliteEventStore, path: Path) -> None:
    found: list[str] = []

    def look() -> None:
        with closing(sqlite3.connect(path)) as connection:
            found.append(connection.execute("SELECT status FROM flow_runs").fetchone()[0])

    store.append("r", 0, [created()], AT)
    look()
    for event in (RunStarted(), wait("w", 5), RunCompleted(1)):
        add(store, "r", event)
        look()
    assert found == ["pending", "running", "suspended", "completed"]


def test_numbers_beyond_a_column_are_only_large(store: SqliteEventStore) -> None:
    begin(store, "r")
    assert store.read("r", after=10**30) == []
    assert len(store.read("r", limit=10**30)) == 2
    assert store.find_runs(limit=10**30) == ["r"]
    assert store.list_due_wakeups(AT, limit=10**30) == []


def test_text_that_a_column_cant_hold_is_spelled_out(store: SqliteEventStore) -> None:
    begin(store, "r")
    store.mark_failure("r", "half a pair: \ud800", AT)
    assert store.failures()[0].reason == "half a pair: \\ud800"
    assert store.find_runs(workflow="\ud800") == []


def test_no_status_is_no_run(store: SqliteEventStore) -> None:
    begin(store, "r")
    assert store.find_runs([]) == []
    assert store.find_runs([RunStatus.RUNNING]) == ["r"]


def test_a_queue_outlives_its_object(path: Path, clock: VirtualClock) -> None:
    queue = SqliteWorkQueue(path, clock=clock)
    for run_id in ("a", "b"):
        queue.enqueue(run_id)
    lease = queue.lease(30.0)
    assert lease is not None
    queue.close()
    queue = SqliteWorkQueue(path, clock=clock)
    assert queue.enqueue("a") is False
    queue.ack(lease)
    assert [queue.lease(30.0).run_id for _ in range(2)] == ["b", "a"]  # type: ignore[union-attr]
    queue.close()
