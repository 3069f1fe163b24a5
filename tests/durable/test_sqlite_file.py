"""One SQLite file: how it is opened, shared, refused, closed, and carried over a fork."""

from __future__ import annotations

import os
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.durable.errors import StoreError
from supervisor.durable.queues.sqlite import SqliteWorkQueue
from supervisor.durable.stores.sqlite import SqliteEventStore
from supervisor.durable.stores.sqlite_file import Database
from supervisor.durable.stores.sqlite_registry import open_database
from supervisor.kernel.clock import SYSTEM_CLOCK
from tests.durable.making import AT, add, begin, signal, wait

PATIENCE = 20.0  # seconds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flows.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    made = open_database(path)
    yield made
    made.close()


def pragma(database: Database, name: str) -> object:
    return database.write(lambda writer: writer.execute(f"PRAGMA {name}").fetchone()[0])


# -- opening -----------------------------------------------------------------------------------


def test_a_file_is_made_with_its_folders_and_set_to_survive_a_power_loss(tmp_path: Path) -> None:
    database = open_database(tmp_path / "a" / "b" / "flows.db")
    found = [
        pragma(database, name) for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    ]
    database.close()
    assert found == ["wal", 2, 1, 5000]


def test_commits_may_be_left_to_the_system_if_all_who_have_the_file_want_that(path: Path) -> None:
    queue = SqliteWorkQueue(path)  # it has no wish
    one = SqliteEventStore(path, synchronous="normal")
    database = open_database(path)
    assert pragma(database, "synchronous") == 1
    other = SqliteEventStore(path, synchronous="full")
    assert pragma(database, "synchronous") == 2
    for each in (queue, one, other, database):
        each.close()


def test_everybody_in_this_process_shares_the_connections_of_a_file(tmp_path: Path, path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    one, other = open_database(path), open_database(os.fspath(tmp_path / "link" / "flows.db"))
    assert one is other
    one.close()
    assert other.rows("SELECT 1") == [(1,)]
    other.close()
    again = open_database(path)
    assert again is not one
    again.close()


@pytest.mark.parametrize("given", ["", ":memory:", "a\0b"])
def test_what_is_no_file_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="path must be that of a file"):
        open_database(given)


def test_a_path_of_bytes_is_refused() -> None:
    wrong: Any = b"flows.db"
    with pytest.raises(TypeError, match="path must be a str or a Path"):
        open_database(wrong)


def test_options_are_checked(path: Path) -> None:
    wrong: Any = "off"
    with pytest.raises(ValueError, match="synchronous must be 'full' or 'normal', got 'off'"):
        open_database(path, synchronous=wrong)
    with pytest.raises(ValueError, match="busy_timeout must not be negative"):
        open_database(path, busy_timeout=-1.0)
    assert not path.exists()


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a directory; give the path of a file in it"):
        SqliteEventStore(tmp_path)


def test_a_folder_that_cant_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"the folder of .*flows\.db' can't be made"):
        SqliteEventStore(tmp_path / "file" / "flows.db")


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"these are notes of mine\n" * 100)
    with pytest.raises(StoreError, match="not a database; it was left as it is"):
        SqliteEventStore(path)
    assert path.read_bytes() == b"these are notes of mine\n" * 100


# -- failures ----------------------------------------------------------------------------------


def test_a_lock_that_another_program_holds_is_a_store_error_that_says_so(path: Path) -> None:
    store = SqliteEventStore(path, busy_timeout=0.0)
    begin(store, "r")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(
        StoreError, match=r"flows\.db': database is locked; another program has held its lock"
    ):
        add(store, "r", signal("a"))
    assert len(store.read("r")) == 2  # reading needs no lock
    other.execute("ROLLBACK")
    other.close()
    assert add(store, "r", signal("a"))[0].sequence == 3
    store.close()


def test_a_full_disk_is_a_store_error_and_nothing_is_written(path: Path) -> None:
    store = SqliteEventStore(path)
    before = begin(store, "r")
    database = open_database(path)
    database.write(
        lambda writer: writer.execute("PRAGMA max_page_count=1")
    )  # as large as it is now, and no larger
    with pytest.raises(StoreError, match="full; nothing was written; free some space"):
        store.append("r", 2, [signal("a", payload="x" * 100_000)], AT)
    assert store.read("r") == before
    after = store.append(
        "r", 2, [signal("a", payload="x" * 100_000)], AT
    )  # by a new connection, without the limit
    assert store.read("r") == before + after
    database.close()
    store.close()


class FailingConnection(sqlite3.Connection):
    """Fails at the statements that start with one of `at`."""

    at: tuple[str, ...] = ()

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql.startswith(type(self).at or ("nothing",)):
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *values)


@pytest.mark.parametrize(
    "at", ["BEGIN", "SELECT sequence", "INSERT INTO flow_events", "UPDATE flow_runs", "COMMIT"]
)
def test_a_failure_at_any_statement_leaves_the_history_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    connect: Any = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **options: connect(*args, factory=FailingConnection, **options)
    )
    store = SqliteEventStore(path)
    before = begin(store, "r")
    FailingConnection.at = (at,)
    try:
        with pytest.raises(StoreError, match=r"flows\.db': disk I/O error") as caught:
            store.append("r", 2, [wait("a", 5.0)], AT)
    finally:
        FailingConnection.at = ()
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert store.read("r") == before
    after = store.append("r", 2, [wait("a", 5.0)], AT)
    assert store.read("r") == before + after
    store.close()


# -- closing -----------------------------------------------------------------------------------


def test_the_last_close_leaves_one_file_and_no_connection(tmp_path: Path, path: Path) -> None:
    store = SqliteEventStore(path)
    queue = SqliteWorkQueue(path)
    begin(store, "r")
    queue.enqueue("r")
    store.close()
    assert queue.pending() == 1
    queue.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["flows.db"]


def test_a_closed_store_says_so_also_while_others_have_its_file(path: Path) -> None:
    one, other = SqliteEventStore(path), SqliteEventStore(path)
    one.close()
    one.close()
    with pytest.raises(StoreError, match=r"the store on '.*flows\.db' is closed; make a new one"):
        one.list_run_ids()
    begin(other, "r")
    other.close()
    with pytest.raises(StoreError, match="is closed"):
        begin(other, "s")


def test_a_database_that_was_closed_refuses_to_read_and_to_write(path: Path) -> None:
    database = open_database(path)
    database.close()
    with pytest.raises(StoreError, match="was closed; open it again"):
        database.rows("SELECT 1")
    with pytest.raises(StoreError, match="was closed; open it again"):
        database.write(lambda writer: None)


def test_the_queue_of_a_store_is_closed_with_it(path: Path) -> None:
    store = SqliteEventStore(path)
    queue = store.work_queue(SYSTEM_CLOCK)
    assert store.work_queue(SYSTEM_CLOCK) is queue
    queue.enqueue("r")
    store.close()
    with pytest.raises(StoreError, match="the queue on"):
        queue.pending()


def test_a_task_wakes_who_waits_at_another_queue_on_the_file(path: Path) -> None:
    one, other = SqliteWorkQueue(path), SqliteWorkQueue(path)
    ticket = other.ticket()
    one.enqueue("r")
    other.wait(ticket, PATIENCE)
    assert other.ticket() == ticket + 1
    one.close()
    other.close()


# -- forks -------------------------------------------------------------------------------------


def in_child(work: Callable[[], bool]) -> int:
    """Fork, and return the exit code of a child that does some work: 0 if that returned True."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads run: that is what is tested
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_uses_the_store_of_its_parent_with_connections_of_its_own(path: Path) -> None:
    store = SqliteEventStore(path)
    begin(store, "r")

    def work() -> bool:
        begin(store, "child")
        return add(store, "r", signal("from the child"))[0].sequence == 3

    assert in_child(work) == 0
    assert store.list_run_ids() == ["child", "r"]
    assert add(store, "r", signal("from the parent"))[0].sequence == 4
    store.close()


def test_a_child_that_closes_the_store_leaves_that_of_the_parent_alone(path: Path) -> None:
    store = SqliteEventStore(path)
    begin(store, "r")

    def work() -> bool:
        store.close()
        return True

    assert in_child(work) == 0
    assert add(store, "r", signal("a"))[0].sequence == 3
    store.close()


def test_forks_amid_reading_and_writing_lose_nothing(path: Path) -> None:
    """On the real clock: a connection or a lock that is carried over would show here, or hang."""
    store = SqliteEventStore(path)
    stopping = threading.Event()
    appended = [0, 0]

    def writes(number: int) -> None:
        run_id = f"thread-{number}"
        begin(store, run_id)
        while not stopping.is_set():
            tip = len(store.read(run_id))
            store.append(run_id, tip, [signal(f"s{tip}")], AT)
            appended[number] += 1

    threads = [threading.Thread(target=writes, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()

    def work(number: int) -> bool:
        run_id = f"child-{number}"
        begin(store, run_id)
        for i in range(10):
            add(store, run_id, signal(f"s{i}"))
        return len(store.read(run_id)) == 12

    codes = [in_child(lambda number=number: work(number)) for number in range(8)]
    stopping.set()
    for each in threads:
        each.join(PATIENCE)
    assert codes == [0] * 8
    assert [len(store.read(f"child-{number}")) for number in range(8)] == [12] * 8
    assert [len(store.read(f"thread-{number}")) - 2 for number in range(2)] == appended
    database = open_database(path)
    assert database.rows("PRAGMA integrity_check") == [("ok",)]
    database.close()
    store.close()


def test_a_fork_in_the_midst_of_a_write_of_the_same_thread_does_not_hang(database: Database) -> None:
    """As a signal handler does it that forks."""
    database.write(lambda writer: writer.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY)"))

    def work(writer: sqlite3.Connection) -> int:
        writer.execute("INSERT INTO notes VALUES (1)")
        return in_child(lambda: True)

    assert database.write(work) == 0
    assert database.rows("SELECT id FROM notes") == [(1,)]
