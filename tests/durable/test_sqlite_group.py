"""Threads that write at once share a commit, and nobody is told before it is durable."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.durable.errors import FlowError, StoreError
from supervisor.durable.stores import group
from supervisor.durable.stores.group import GroupCommit, Job
from supervisor.durable.stores.sqlite_file import Database
from supervisor.durable.stores.sqlite_registry import open_database
from supervisor.kernel.clock import SYSTEM_CLOCK, Latch

PATIENCE = 20.0  # seconds that a thread of these tests may take


class CountingClock:
    """Tells when a thread has got in line: then it makes the latch it waits on."""

    def __init__(self) -> None:
        self.lock = SYSTEM_CLOCK.lock
        self.condition = SYSTEM_CLOCK.condition
        self.now = 0.0  # stands still, so that no transaction takes any time
        self.in_line = threading.Semaphore(0)

    def monotonic(self) -> float:
        return self.now

    def latch(self) -> Latch:
        self.in_line.release()
        return SYSTEM_CLOCK.latch()

    def wait_for(self, threads: int) -> None:
        for _ in range(threads):
            assert self.in_line.acquire(timeout=PATIENCE)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> CountingClock:
    clock = CountingClock()
    monkeypatch.setattr(group, "SYSTEM_CLOCK", clock)
    return clock


@pytest.fixture
def database(tmp_path: Path, line: CountingClock) -> Iterator[Database]:
    made = open_database(tmp_path / "f.db")
    made.write(lambda writer: writer.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)"))
    yield made
    made.close()


class Caller:
    """A thread that calls, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.result: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def ends(self) -> None:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


def note(id: int, text: str = "") -> Callable[[sqlite3.Connection], Any]:
    return lambda writer: writer.execute("INSERT INTO notes VALUES (?, ?)", (id, text)).lastrowid


def notes(database: Database) -> list[int]:
    return [id for (id,) in database.rows("SELECT id FROM notes ORDER BY id")]


Work = Callable[[sqlite3.Connection], Any]


def together(database: Database, line: CountingClock, works: list[Work]) -> tuple[list[Caller], list[str]]:
    """Write all of `works` in one batch, the one after a first commit; also return the statements from there on."""
    callers: list[Caller] = []
    statements: list[str] = []

    def first(writer: sqlite3.Connection) -> None:
        for work in works:  # one after the other, so that they stand in this order
            callers.append(Caller(lambda work=work: database.write(work)))
            line.wait_for(1)
        writer.set_trace_callback(statements.append)

    database.write(first)
    for each in callers:
        each.ends()
    return callers, [each for each in statements if not each.startswith("--")]


def test_who_comes_while_somebody_writes_shares_the_next_commit(
    database: Database, line: CountingClock
) -> None:
    callers, statements = together(database, line, [note(id) for id in range(1, 9)])
    assert statements[0] == "COMMIT"  # of the first
    assert [statements[1], statements[-1]] == ["BEGIN IMMEDIATE", "COMMIT"]
    assert len(statements) == 1 + 1 + 8 + 1
    assert [each.result for each in callers] == notes(database) == [1, 2, 3, 4, 5, 6, 7, 8]


class Batches:
    """A group that writes nothing, and the sizes of its transactions. Each takes 60 s, if its clock is asked."""

    def __init__(self, line: CountingClock) -> None:
        self.sizes: list[int] = []
        self._line = line
        self.group: GroupCommit[None] = GroupCommit(self._write)

    def _write(self, jobs: list[Job[None]]) -> None:
        self._line.now += 60.0
        self.sizes.append(len(jobs))
        for job in jobs:
            job.result = job.work(None)
            job.settle()

    def write_together(self, many: int) -> None:
        """Write one job, and then as many in one transaction."""
        callers: list[Caller] = []

        def first(_: None) -> None:
            for _each in range(many):
                callers.append(Caller(lambda: self.group.submit(lambda _: None)))
                self._line.wait_for(1)

        self.group.submit(first)
        for each in callers:
            each.ends()


def test_a_leader_waits_until_those_who_wrote_are_back(
    line: CountingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "PATIENCE", PATIENCE)
    batches = Batches(line)
    batches.write_together(5)
    for each in [Caller(lambda: batches.group.submit(lambda _: None)) for _ in range(5)]:
        each.ends()
    assert batches.sizes == [1, 5, 5]


def test_a_leader_waits_no_longer_than_its_patience_for_those_who_do_not_come_back(
    line: CountingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "PATIENCE", 0.0)
    batches = Batches(line)
    batches.write_together(5)
    batches.group.submit(lambda _: None)
    monkeypatch.setattr(group, "PATIENCE", PATIENCE)
    batches.group.submit(lambda _: None)  # nobody came, so nobody is waited for
    assert batches.sizes == [1, 5, 1, 1]


def test_nobody_is_told_before_the_commit(database: Database, line: CountingClock) -> None:
    order: list[str] = []

    def work(writer: sqlite3.Connection) -> int:
        note(1)(writer)
        writer.set_trace_callback(order.append)
        return 7

    assert database.write(work, lambda result: order.append(f"done {result}")) == 7
    assert order == ["COMMIT", "done 7"]


def test_one_refusal_fails_alone_and_shares_the_commit(database: Database, line: CountingClock) -> None:
    class RefusedError(FlowError):
        pass

    def refuses(_: sqlite3.Connection) -> None:
        raise RefusedError("no")

    callers, statements = together(database, line, [note(1), refuses, note(2)])
    assert [type(each.error) for each in callers] == [type(None), RefusedError, type(None)]
    assert notes(database) == [1, 2]
    assert statements.count("COMMIT") == 2


def test_one_poisonous_job_fails_alone_and_the_others_are_written_each_by_itself(
    database: Database, line: CountingClock
) -> None:
    def poison(writer: sqlite3.Connection) -> None:
        note(9)(writer)
        writer.execute("INSERT INTO nowhere VALUES (1)")

    callers, _ = together(database, line, [note(1), poison, note(2)])
    assert [type(each.error) for each in callers] == [type(None), StoreError, type(None)]
    assert notes(database) == [1, 2]


def test_a_bug_after_a_write_is_rolled_back_and_fails_alone(database: Database, line: CountingClock) -> None:
    def bug(writer: sqlite3.Connection) -> None:
        note(9)(writer)
        raise ZeroDivisionError

    callers, _ = together(database, line, [note(1), bug, note(2)])
    assert [type(each.error) for each in callers] == [type(None), ZeroDivisionError, type(None)]
    assert notes(database) == [1, 2]


def test_what_is_done_after_a_commit_is_not_done_after_a_failure(
    database: Database, line: CountingClock
) -> None:
    done: list[int] = []

    def poison(writer: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    callers: list[Caller] = []

    def first(_: sqlite3.Connection) -> None:
        for work in (note(1), poison, note(2)):
            callers.append(Caller(lambda work=work: database.write(work, done.append)))
            line.wait_for(1)

    database.write(first)
    for each in callers:
        each.ends()
    assert done == [1, 2]


def test_a_leader_that_is_interrupted_leaves_nobody_waiting(database: Database, line: CountingClock) -> None:
    callers: list[Caller] = []

    def first(writer: sqlite3.Connection) -> None:
        note(1)(writer)
        for id in (2, 3):
            callers.append(Caller(lambda id=id: database.write(note(id))))
        line.wait_for(2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        database.write(first)
    for each in callers:
        each.ends()
    assert notes(database) == [2, 3]
    assert database.write(note(4)) == 4


def test_a_leader_that_is_interrupted_in_the_work_of_others_leaves_it_to_them(
    database: Database, line: CountingClock
) -> None:
    times = [0]

    def interrupted_once(writer: sqlite3.Connection) -> int:
        note(2)(writer)
        times[0] += 1
        if times[0] == 1:
            raise KeyboardInterrupt
        return times[0]

    callers, _ = together(database, line, [note(1), interrupted_once, note(3)])
    assert [type(each.error) for each in callers] == [KeyboardInterrupt, type(None), type(None)]
    assert [each.result for each in callers] == [None, 2, 3]
    assert notes(database) == [2, 3]


class InterruptedAfterCommit(sqlite3.Connection):
    """A Ctrl-C comes as the commit returns."""

    armed = False

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        found = super().execute(sql, *values)
        if sql == "COMMIT" and type(self).armed:
            type(self).armed = False
            raise KeyboardInterrupt
        return found


def test_what_was_committed_when_the_interrupt_came_is_told_as_committed(
    tmp_path: Path, line: CountingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect: Any = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **options: connect(*args, factory=InterruptedAfterCommit, **options)
    )
    database = open_database(tmp_path / "f.db")
    database.write(lambda writer: writer.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)"))
    callers: list[Caller] = []
    done: list[int] = []

    def arm(writer: sqlite3.Connection) -> Any:
        InterruptedAfterCommit.armed = True
        return note(1)(writer)

    def first(_: sqlite3.Connection) -> None:
        for work in (arm, note(2)):
            callers.append(Caller(lambda work=work: database.write(work, done.append)))
            line.wait_for(1)

    database.write(first)
    for each in callers:
        each.ends()
    assert [type(each.error) for each in callers] == [KeyboardInterrupt, type(None)]
    assert (callers[1].result, done) == (2, [1, 2])
    assert notes(database) == [1, 2]
    database.close()


def test_a_thread_that_is_interrupted_in_line_takes_its_job_along(
    database: Database, line: CountingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

        def open(self) -> None:
            pass

    def first(writer: sqlite3.Connection) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(line, "latch", Interrupted)
            caller = Caller(lambda: database.write(note(1)))
            caller.ends()
        assert isinstance(caller.error, KeyboardInterrupt)
        return note(2)(writer)

    database.write(first)
    assert notes(database) == [2]


def test_a_batch_has_an_end_and_the_lead_goes_on(
    line: CountingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "MOST", 2)
    batches: list[int] = []
    leaders: list[int] = []
    callers: list[Caller] = []

    def write(jobs: list[Job[None]]) -> None:
        if not batches:
            for _ in range(5):
                callers.append(Caller(lambda: together.submit(lambda _: None)))
            line.wait_for(5)
        batches.append(len(jobs))
        leaders.append(threading.get_ident())
        for job in jobs:
            job.settle()

    together: GroupCommit[None] = GroupCommit(write)
    together.submit(lambda _: None)
    for each in callers:
        each.ends()
    assert batches == [1, 2, 2, 1]
    assert len(set(leaders)) == 4  # nobody leads twice


def test_a_close_waits_for_what_came_before_and_refuses_what_comes_then(
    line: CountingClock,
) -> None:
    written: list[str] = []
    callers: list[Caller] = []

    def write(jobs: list[Job[None]]) -> None:
        if not callers:
            callers.append(Caller(lambda: one.submit(lambda _: "second")))
            line.wait_for(1)
            callers.append(Caller(lambda: (one.close("it was closed"), written.append("closed"))))
        for job in jobs:
            job.result = job.work(None)
            written.append(job.result)
            job.settle()

    one: GroupCommit[None] = GroupCommit(write)
    assert one.submit(lambda _: "first") == "first"
    for each in callers:
        each.ends()
    assert written == ["first", "second", "closed"]
    with pytest.raises(StoreError, match="it was closed"):
        one.submit(lambda _: None)


def test_an_error_is_raised_with_a_traceback_that_does_not_keep_it(database: Database) -> None:
    def refuses(_: sqlite3.Connection) -> None:
        raise StoreError("no")

    with pytest.raises(StoreError) as caught:
        database.write(refuses)
    frames = [each.frame for each in caught.traceback]
    assert all(caught.value not in frame.f_locals.values() for frame in frames if frame.code.name == "submit")


def test_many_threads_lose_nothing_and_double_nothing(database: Database) -> None:
    """On the real clock: unguarded data would show here."""
    start = threading.Barrier(8, timeout=PATIENCE)

    def writes(first: int) -> None:
        start.wait()
        for id in range(first, first + 50):
            assert database.write(note(id)) == id

    callers = [Caller(lambda k=k: writes(1 + 50 * k)) for k in range(8)]
    for each in callers:
        each.ends()
        assert each.error is None
    assert notes(database) == list(range(1, 401))
