"""What only PostgreSQL does: servers that go away and come back, answers that are lost, text that a column can't hold."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from supervisor.durable.errors import CorruptHistory, EventConflict, InvalidTransition, StoreError
from supervisor.durable.history import RunCompleted, StepCompleted, StepRetrying, StepStarted
from supervisor.durable.postgres import PostgresDatabase
from supervisor.durable.projection import Wakeup
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.stores.postgres import PostgresEventStore
from supervisor.kernel.clock import SYSTEM_CLOCK
from tests.durable.making import AT, begin, begun, later, signal, step, wait
from tests.durable.postgres_proxy import Proxy
from tests.postgres_server import PostgresServer
from tests.programs import run_program

SOON = 5.0  # seconds: far below every time limit that would end the wait otherwise


@pytest.fixture
def open_store() -> Iterator[Callable[..., PostgresEventStore]]:
    opened: list[PostgresEventStore] = []

    def make(dsn: str, **options: Any) -> PostgresEventStore:
        opened.append(PostgresEventStore(dsn, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.fixture
def proxy(pg_of_our_own: str) -> Iterator[Proxy]:
    made = Proxy(pg_of_our_own)
    yield made
    made.close()


def execute(dsn: str, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as session:
        found = session.execute(query.encode(), values)
        return found.fetchall() if found.description else []


# -- the server goes away ----------------------------------------------------------------------


@pytest.mark.parametrize("goes", [PostgresServer.stop, PostgresServer.kill], ids=["stopped", "killed"])
def test_appends_go_on_after_a_restart_and_none_is_lost_or_doubled(
    pg_server: PostgresServer,
    pg_of_our_own: str,
    open_store: Callable[..., PostgresEventStore],
    goes: Callable[[PostgresServer], None],
) -> None:
    store = open_store(pg_of_our_own)
    under_way, back = threading.Barrier(5, timeout=30), threading.Event()

    def write(run_id: str) -> None:
        begin(store, run_id)
        number = 0
        while number < 20 or not back.is_set():  # before, while and after the server is away
            store.append(run_id, number + 2, [signal(f"s{number}")], AT)
            number += 1
            if number == 10:
                under_way.wait()
        store.append(run_id, number + 2, [RunCompleted(number)], AT)

    with ThreadPoolExecutor(4) as pool:
        written = [pool.submit(write, f"r{n}") for n in range(4)]
        under_way.wait()
        try:
            goes(pg_server)
        finally:
            pg_server.start()
            back.set()
        for each in written:
            each.result(30)
    for n in range(4):
        history = store.read(f"r{n}")
        assert [each.sequence for each in history] == list(range(1, len(history) + 1))
        assert len({each.event_id for each in history}) == len(history)
        assert history[-1].event == RunCompleted(len(history) - 3)


def test_a_server_that_stays_away_is_an_error_that_says_so_and_hides_the_password(
    pg_server: PostgresServer, pg_of_our_own: str
) -> None:
    dsn = psycopg.conninfo.make_conninfo(pg_of_our_own, password="s3cret")
    database = PostgresDatabase(dsn, patience=0.3)
    database.run("begin", lambda session, again: None)
    pg_server.stop()
    try:
        with pytest.raises(
            StoreError, match="PostgreSQL could not look: connection is bad: connection to server"
        ) as caught:
            database.run("look", lambda session, again: session.execute("SELECT 1"))
        assert "s3cret" not in str(caught.value) + database.name
        with pytest.raises(StoreError, match="PostgreSQL could not open the store"):
            PostgresEventStore(dsn)
    finally:
        pg_server.start()
    database.run("look", lambda session, again: session.execute("SELECT 1"))
    database.close()


def test_closing_ends_the_wait_for_a_server(
    pg_server: PostgresServer, pg_of_our_own: str, open_store: Callable[..., PostgresEventStore]
) -> None:
    store = open_store(pg_of_our_own)
    pg_server.stop()
    try:
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(store.list_run_ids)
            start = time.monotonic()
            store.close()
            with pytest.raises(StoreError, match=r"closed|could not"):
                reading.result(SOON)
            assert time.monotonic() - start < SOON
    finally:
        pg_server.start()


def test_sessions_that_an_administrator_ended_are_replaced(
    pg_of_our_own: str, open_store: Callable[..., PostgresEventStore]
) -> None:
    store = open_store(psycopg.conninfo.make_conninfo(pg_of_our_own, application_name="to be ended"))
    begin(store, "r")
    ended = execute(
        pg_of_our_own,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'to be ended'",
    )
    assert ended == [(True,)]
    store.append("r", 2, [signal("s")], AT)
    assert len(store.read("r")) == 3


# -- the answer is lost ------------------------------------------------------------------------


def test_an_append_whose_acknowledgement_was_lost_is_not_doubled(
    proxy: Proxy, pg_of_our_own: str, open_store: Callable[..., PostgresEventStore]
) -> None:
    store = open_store(proxy.dsn)
    begin(store, "r")
    proxy.swallow_the_next_answer()
    stored = store.append("r", 2, [signal("a"), signal("b")], AT)
    assert proxy.swallowed == 1
    assert store.read("r", 2) == stored
    store.append("r", 4, [signal("c")], AT)
    assert [sequence for (sequence,) in execute(pg_of_our_own, "SELECT sequence FROM flow_events")] == [
        1,
        2,
        3,
        4,
        5,
    ]


def test_the_creation_of_a_run_whose_acknowledgement_was_lost_is_no_conflict(
    proxy: Proxy, open_store: Callable[..., PostgresEventStore]
) -> None:
    store = open_store(proxy.dsn)
    proxy.swallow_the_next_answer()
    stored = store.append("r", 0, begun(), AT)
    assert proxy.swallowed == 1
    assert store.read("r") == stored


# -- several writers ---------------------------------------------------------------------------


def test_what_is_illegal_only_in_a_stale_view_is_a_conflict(
    pg_dsn: str, open_store: Callable[..., PostgresEventStore]
) -> None:
    one, other = open_store(pg_dsn), open_store(pg_dsn)
    begin(one, "r")
    other.append("r", 2, step("a"), AT)
    with pytest.raises(EventConflict, match="expected its last event to be 2, and it is 4"):
        one.append("r", 2, [StepStarted("a", 1)], AT)
    with pytest.raises(EventConflict, match="expected its last event to be 2, and it is 4"):
        one.append("r", 2, [signal("s")], AT)
    one.append("r", 4, [signal("s")], AT)
    assert len(other.read("r")) == 5


def test_more_threads_than_connections_take_turns(
    pg_dsn: str, open_store: Callable[..., PostgresEventStore]
) -> None:
    store = open_store(psycopg.conninfo.make_conninfo(pg_dsn, application_name="only one"), pool_size=1)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: begin(store, f"r{n}"), range(24)))
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'only one'"
    assert execute(pg_dsn, count) == [(1,)]
    assert len(store.list_run_ids()) == 24


def test_a_forked_child_is_told_to_open_a_store_of_its_own(pg_dsn: str) -> None:
    program = f"""
import os
from supervisor.durable.errors import StoreError
from supervisor.durable.stores.postgres import PostgresEventStore
store = PostgresEventStore({pg_dsn!r})
child = os.fork()
if child == 0:
    try:
        store.list_run_ids()
    except StoreError as error:
        print("a forked child makes a store of its own" in str(error), flush=True)
    store.close()
    os._exit(0)
os.waitpid(child, 0)
print(store.list_run_ids())
store.close()
"""
    assert run_program("-W", "error", "-c", program).stdout == "True\n[]\n"


# -- what is stored ----------------------------------------------------------------------------

TEXTS = [
    "plain",
    "a literal \\u0000",
    "\\\\u0000",
    "日本 'quoted' \"twice\" %s",
]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_is_kept_in_events_and_spoils_no_wakeup(
    pg_dsn: str, open_store: Callable[..., PostgresEventStore], text: str
) -> None:
    store = open_store(pg_dsn)
    name = text.replace("\0", "0")  # of a step or a wait: has no NUL
    retry = RetryPolicy.fixed(3, 60.0)
    events = [wait(name, 20.0), *step(name, retry, input=text), StepRetrying(name, 1, text, later(10.0))]
    stored = begin(store, "r", events)
    assert store.read("r") == stored
    assert store.list_due_wakeups(later(100.0)) == [
        Wakeup("retry", "r", name, later(10.0)),
        Wakeup("wait", "r", name, later(20.0)),
    ]
    store.append("r", 6, [StepStarted(name, 2)], AT)
    assert store.list_due_wakeups(later(100.0)) == [Wakeup("wait", "r", name, later(20.0))]
    assert store.next_scheduled_wakeup() == later(20.0)


def test_a_run_that_was_made_anew_behind_the_back_of_a_store_is_read_again(
    pg_dsn: str, open_store: Callable[..., PostgresEventStore]
) -> None:
    one, other = open_store(pg_dsn), open_store(pg_dsn)
    begin(one, "r", step("a"))
    execute(pg_dsn, "DELETE FROM flow_runs")
    execute(pg_dsn, "DELETE FROM flow_events")
    begin(other, "r", [wait("w", 1.0), signal("s")])  # as long as the first one
    with pytest.raises(InvalidTransition, match="there is no step 'a'"):
        one.append("r", 4, [StepCompleted("a", None)], AT)
    one.append("r", 4, [signal("t")], AT)
    assert len(one.read("r")) == 5


def test_rows_that_others_insert_are_followed_by_the_triggers(
    pg_dsn: str, open_store: Callable[..., PostgresEventStore]
) -> None:
    store = open_store(pg_dsn)
    begin(store, "r", [wait("w", 5.0)])
    insert = "INSERT INTO flow_events VALUES (%s, %s, %s, %s, %s, %s)"
    body = '{"type":"wait_created","wait_id":"v","resume_at":"2026-01-31T12:00:01.000000Z"}'
    execute(pg_dsn, insert, "r", 4, "e4", AT, "wait_created", body)
    assert [each.subject_id for each in store.list_due_wakeups(later(9.0))] == ["v", "w"]
    execute(pg_dsn, insert, "r", 5, "e5", AT, "run_cancelled", '{"type":"run_cancelled"}')
    assert store.list_due_wakeups(later(9.0)) == []


@pytest.mark.parametrize("body", ["{", "[]", '{"type":"unheard_of"}', '{"type":"wait_created","wait_id":1}'])
def test_a_damaged_event_is_named_and_left_as_it_is(
    pg_dsn: str, open_store: Callable[..., PostgresEventStore], body: str
) -> None:
    begin(open_store(pg_dsn), "r", [wait("w", 5.0)])
    execute(pg_dsn, "UPDATE flow_events SET body = %s WHERE sequence = 3", body)
    store = open_store(pg_dsn)  # knows nothing of the run
    with pytest.raises(CorruptHistory, match="event 3 of run 'r' can't be read"):
        store.read("r")
    with pytest.raises(CorruptHistory, match="event 3 of run 'r' can't be read"):
        store.append("r", 3, [signal("s")], AT)
    assert execute(pg_dsn, "SELECT body FROM flow_events WHERE sequence = 3") == [(body,)]


# -- nothing is left behind --------------------------------------------------------------------


def test_closing_store_and_queue_leaves_no_connection(
    pg_server: PostgresServer, pg_of_our_own: str, open_store: Callable[..., PostgresEventStore]
) -> None:
    store = open_store(pg_of_our_own)
    queue = store.work_queue(SYSTEM_CLOCK)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(queue.enqueue, ["a", "b", "c", "d"]))
        list(pool.map(lambda n: begin(store, f"r{n}"), range(4)))
    queue.wait(queue.ticket(), SOON)  # it listens now, and says that there are tasks
    store.close()
    pg_server.wait_for_the_last_session()


def test_without_psycopg_the_error_names_the_extra() -> None:
    program = """
import sys
sys.modules["psycopg"] = None
try:
    from supervisor.durable.stores.postgres import PostgresEventStore
except ImportError as error:
    print(error)
"""
    expected = "PostgreSQL needs psycopg 3; pip install 'threadvisor[postgres]'\n"
    assert run_program("-c", program).stdout == expected


def test_without_psycopg_the_package_can_be_looked_through_and_a_store_says_what_is_missing() -> None:
    program = """
import inspect, sys
sys.modules["psycopg"] = None
import supervisor.durable
from supervisor.durable import *
print(set(supervisor.durable.__all__) <= {name for name, _ in inspect.getmembers(supervisor.durable)})
for kind in (PostgresEventStore, PostgresWorkQueue):
    try:
        kind("postgresql://host/flows")
    except ImportError as error:
        print(kind.__name__, error)
"""
    missing = "PostgreSQL needs psycopg 3; pip install 'threadvisor[postgres]'"
    assert run_program("-c", program).stdout.splitlines() == [
        "True",
        f"PostgresEventStore {missing}",
        f"PostgresWorkQueue {missing}",
    ]


@pytest.mark.parametrize("dsn", ["host", "postgresql://[", ""])
def test_what_is_no_dsn_is_refused(dsn: str) -> None:
    with pytest.raises(ValueError, match="dsn"):
        PostgresEventStore(dsn)
