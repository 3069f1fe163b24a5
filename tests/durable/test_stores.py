"""What every store promises; runs over each of them, see conftest.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from supervisor.durable.errors import (
    EventConflict,
    InvalidRunId,
    InvalidTransition,
    PayloadTooLarge,
    RunNotFound,
    SerializationError,
    StoreError,
)
from supervisor.durable.history import (
    FlowEvent,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunStarted,
    SignalWaitCompleted,
    SignalWaitCreated,
    StepCancelled,
    StepCompleted,
    StepFailed,
    StepRetrying,
    StepStarted,
    WaitCompleted,
)
from supervisor.durable.payload import LARGEST, encode, same
from supervisor.durable.projection import Projection, Wakeup
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.protocol import Failure, RunDirectory
from supervisor.testing import VirtualClock
from tests.durable.making import (
    AT,
    add,
    begin,
    begun,
    cancellation,
    created,
    later,
    signal,
    step,
    wait,
)

Store = Any
TWICE = RetryPolicy.fixed(2, 5.0)


# -- append and read ---------------------------------------------------------------------------


def test_an_empty_store_has_nothing(store: Store) -> None:
    assert store.list_run_ids() == []
    assert store.list_due_wakeups(datetime.max.replace(tzinfo=UTC)) == []
    assert store.next_scheduled_wakeup() is None
    assert store.next_scheduled_wakeup(AT) is None
    assert store.find_runs() == []
    assert store.failures() == []


def test_append_returns_what_read_gives(store: Store) -> None:
    written = store.append("r", 0, [created(input={"id": 7}), RunStarted()], AT)
    assert [(each.run_id, each.sequence, each.at, each.event) for each in written] == [
        ("r", 1, AT, RunCreated({"name": "checkout", "version": "1"}, {"id": 7})),
        ("r", 2, AT, RunStarted()),
    ]
    assert store.read("r") == written


def test_appends_follow_each_other(store: Store) -> None:
    first = store.append("r", 0, [created()], AT)
    second = store.append("r", 1, [RunStarted()], later(1))
    third = store.append("r", 2, [*step("a"), StepCompleted("a", 3)], later(2))
    assert [each.sequence for each in third] == [3, 4, 5]
    assert store.read("r") == first + second + third


def test_every_event_has_an_id_of_its_own(store: Store) -> None:
    written = [*begin(store, "a"), *begin(store, "b"), *add(store, "a", signal("s"))]
    assert len({each.event_id for each in written}) == 5
    assert all(each.event_id for each in written)


def test_read_takes_what_comes_after_and_no_more_than_the_limit(store: Store) -> None:
    begin(store, "r", [signal(f"s{i}") for i in range(5)])

    def sequences(**options: int) -> list[int]:
        return [each.sequence for each in store.read("r", **options)]

    assert sequences() == [1, 2, 3, 4, 5, 6, 7]
    assert sequences(after=4) == [5, 6, 7]
    assert sequences(limit=3) == [1, 2, 3]
    assert sequences(after=5, limit=1) == [6]
    assert sequences(after=5, limit=99) == [6, 7]
    assert sequences(after=7) == []
    assert sequences(after=99) == []


def test_read_refuses_places_that_are_none(store: Store) -> None:
    begin(store, "r")
    with pytest.raises(ValueError, match="after must be >= 0"):
        store.read("r", after=-1)
    with pytest.raises(ValueError, match="limit must be >= 1"):
        store.read("r", limit=0)


@pytest.mark.parametrize("run_id", ["nobody", "", "../x", "r\0", "r/", "ü", "R"])
def test_a_run_that_is_not_there_is_not_found(store: Store, run_id: str) -> None:
    begin(store, "r")
    with pytest.raises(RunNotFound) as caught:
        store.read(run_id)
    assert caught.value.run_id == run_id


def test_instants_are_stored_in_utc_to_the_microsecond(store: Store) -> None:
    there = AT.astimezone(timezone(timedelta(hours=5, minutes=30)))
    begin(store, "r", at=there)
    stored = store.read("r")[0].at
    assert stored == AT
    assert stored.tzinfo is UTC
    assert stored.microsecond == 123456


def test_runs_are_listed_by_id_character_by_character(store: Store) -> None:
    ids = ["b", "B", "a", "_x", "-x", "10", "9", "a-b", "a_b", "aB", "A"]
    for each in ids:
        begin(store, each)
    assert store.list_run_ids() == ["-x", "10", "9", "A", "B", "_x", "a", "a-b", "aB", "a_b", "b"]


def test_the_longest_run_id_is_taken(store: Store) -> None:
    begin(store, "x" * 200)
    assert store.list_run_ids() == ["x" * 200]


# -- all or nothing, and the order of the checks -----------------------------------------------


def test_an_append_with_one_illegal_event_writes_none(store: Store) -> None:
    before = begin(store, "r")
    with pytest.raises(InvalidTransition):
        store.append("r", 2, [*step("a"), StepStarted("nobody", 1)], AT)
    assert store.read("r") == before
    after = add(store, "r", *step("a"))  # and what was legal of it is not in the way
    assert [each.sequence for each in after] == [3, 4]


def test_a_run_whose_first_append_is_refused_is_not_there(store: Store) -> None:
    with pytest.raises(InvalidTransition, match="first run event must be run_created"):
        store.append("r", 0, [RunStarted()], AT)
    assert store.list_run_ids() == []
    assert store.find_runs() == []
    with pytest.raises(RunNotFound):
        store.read("r")


def test_an_append_with_one_bad_value_writes_none(store: Store) -> None:
    before = begin(store, "r")
    with pytest.raises(SerializationError):
        store.append("r", 2, [signal("s"), RunCompleted({1, 2})], AT)
    assert store.read("r") == before


@pytest.mark.parametrize(("expected", "actual"), [(0, 2), (1, 2), (3, 2), (99, 2)])
def test_a_wrong_sequence_is_a_conflict_that_tells_both(store: Store, expected: int, actual: int) -> None:
    before = begin(store, "r")
    with pytest.raises(EventConflict) as caught:
        store.append("r", expected, [signal("s")], AT)
    error = caught.value
    assert (error.run_id, error.expected, error.actual) == ("r", expected, actual)
    assert store.read("r") == before


def test_a_sequence_on_a_run_that_is_not_there_is_a_conflict(store: Store) -> None:
    with pytest.raises(EventConflict) as caught:
        store.append("r", 1, [RunStarted()], AT)
    assert (caught.value.expected, caught.value.actual) == (1, 0)


def test_values_are_checked_before_the_sequence(store: Store) -> None:
    begin(store, "r")
    with pytest.raises(SerializationError):
        store.append("r", 9, [RunCompleted(float("nan"))], AT)
    with pytest.raises(PayloadTooLarge):
        store.append("r", 9, [RunCompleted("x" * (LARGEST + 1))], AT)


def test_the_sequence_is_checked_before_legality(store: Store) -> None:
    begin(store, "r")
    with pytest.raises(EventConflict):
        store.append("r", 9, [StepStarted("nobody", 1)], AT)


@pytest.mark.parametrize("events", [(), [], None, "run_started"])
def test_an_append_without_events_is_refused(store: Store, events: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        store.append("r", 0, events, AT)
    assert store.list_run_ids() == []


def test_what_is_no_event_is_refused(store: Store) -> None:
    with pytest.raises(TypeError, match="must be events"):
        store.append("r", 0, [{"type": "run_created"}], AT)
    assert store.list_run_ids() == []


def test_a_naive_instant_is_refused(store: Store) -> None:
    naive = AT.replace(tzinfo=None)
    with pytest.raises(ValueError, match="at must be an aware datetime"):
        store.append("r", 0, [created()], naive)
    with pytest.raises(ValueError, match="now must be an aware datetime"):
        store.list_due_wakeups(naive)
    with pytest.raises(ValueError, match="after must be an aware datetime"):
        store.next_scheduled_wakeup(naive)
    assert store.list_run_ids() == []


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", "a b", "ü", "a.b", "x" * 201, "a\n", "a\0", None, 7])
def test_an_id_with_other_characters_is_refused(store: Store, run_id: Any) -> None:
    with pytest.raises(InvalidRunId):
        store.append(run_id, 0, [created()], AT)
    assert store.list_run_ids() == []


def test_a_run_that_has_ended_takes_no_more_events(store: Store) -> None:
    before = begin(store, "r", [RunCompleted("done")])
    with pytest.raises(InvalidTransition, match="terminal"):
        store.append("r", 3, [signal("s")], AT)
    assert store.read("r") == before


def test_a_refused_append_leaves_the_next_one_alone(store: Store) -> None:
    begin(store, "r")
    for _ in range(3):
        with pytest.raises(InvalidTransition):
            store.append("r", 2, [WaitCompleted("w")], AT)
        with pytest.raises(EventConflict):
            store.append("r", 1, [signal("s")], AT)
    assert [each.sequence for each in add(store, "r", wait("w", 5), WaitCompleted("w"))] == [3, 4]


# -- values ------------------------------------------------------------------------------------

EXACT: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    1.0,
    -0.0,
    0.1,
    5e-324,
    1.7976931348623157e308,
    2.0**53,
    2**53 + 1,
    -(2**63) - 1,
    10**3999,
    "",
    "\0",
    "a\0b\0",
    "\x01\x1f\x7f\x80\u2028\u2029",
    'quotes " \\ and \n \r\n \t',
    "日本 été 🜲 \U0010ffff",
    "\ufeff\ufffe",
    {"": "", "\0": 1, "ключ": [{}, [], {"a": [None]}]},
    [[[[1, 1.0, True, "1"]]]],
    {"b": 1, "a": 2, "B": 3},
]


@pytest.mark.parametrize("value", EXACT, ids=lambda value: ascii(value)[:24])
def test_values_come_back_exactly(store: Store, value: Any) -> None:
    begin(store, "r", [signal("s", payload=value), RunCompleted(value)])
    events = [each.event for each in store.read("r")]
    assert same(events[2].payload, value)
    assert same(events[3].output, value)
    assert str(events[3].output) == str(value)  # tells -0.0 from 0.0, and the order of keys


@pytest.mark.parametrize("value", EXACT, ids=lambda value: ascii(value)[:24])
def test_values_come_back_exactly_from_what_was_closed(
    reopen: Callable[[], Any], home: Any, value: Any
) -> None:
    begin(home.store, "r", [RunCompleted(value)])
    found = reopen().read("r")[2].event.output
    assert same(found, value)
    assert str(found) == str(value)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "run_completed.output"),
        ({"a": [0, float("inf")]}, "run_completed.output.a[1]"),
        ({"tags": {"x"}}, "run_completed.output.tags"),
        ([AT], "run_completed.output[0]"),
        ({"a": {1: 2}}, "run_completed.output.a"),
        ({"a": b"raw"}, "run_completed.output.a"),
        (["\ud800"], "run_completed.output[0]"),
        ({"a": object()}, "run_completed.output.a"),
    ],
    ids=["nan", "infinity", "set", "datetime", "int key", "bytes", "surrogate", "object"],
)
def test_what_json_cant_hold_is_refused_with_its_place(store: Store, value: Any, path: str) -> None:
    before = begin(store, "r")
    with pytest.raises(SerializationError) as caught:
        store.append("r", 2, [RunCompleted(value)], AT)
    assert caught.value.path == path
    assert store.read("r") == before


@pytest.mark.parametrize("letter", ["x", "é", "🜲"])
def test_an_event_of_exactly_one_mebibyte_is_taken_and_of_one_byte_more_refused(
    store: Store, letter: str
) -> None:
    def filled(size: int) -> RunCreated:
        frame = len(encode(created(input="").to_dict(), "it").encode())
        letters, rest = divmod(size - frame, len(letter.encode()))
        return created(input=letter * letters + "." * rest)

    with pytest.raises(PayloadTooLarge) as caught:
        store.append("r", 0, [filled(1024 * 1024 + 1)], AT)
    assert (caught.value.size, caught.value.limit) == (1024 * 1024 + 1, 1024 * 1024)
    assert store.list_run_ids() == []
    written = store.append("r", 0, [filled(1024 * 1024)], AT)
    assert store.read("r") == written


def test_several_events_together_may_be_larger_than_one(store: Store) -> None:
    large = "x" * 900_000
    written = begin(store, "r", [signal("a", payload=large), signal("b", payload=large)])
    assert store.read("r") == written


# -- nobody changes a history through a value --------------------------------------------------


def test_changing_ones_own_value_changes_nothing_that_is_stored(store: Store) -> None:
    mine: dict[str, Any] = {"items": [1]}
    events: list[FlowEvent] = [created(input=mine)]
    written = store.append("r", 0, events, AT)
    mine["items"].append(2)
    events.append(RunStarted())
    assert written[0].event.input == {"items": [1]}
    assert store.read("r")[0].event.input == {"items": [1]}
    assert len(store.read("r")) == 1


def test_changing_what_was_returned_changes_nothing_that_is_stored(store: Store) -> None:
    written = store.append("r", 0, [created(input={"items": [1]})], AT)
    written[0].event.input["items"].append(2)
    written.clear()
    first = store.read("r")
    assert first[0].event.input == {"items": [1]}
    first[0].event.input.clear()
    first.clear()
    assert store.read("r")[0].event.input == {"items": [1]}


def test_lists_that_were_returned_are_the_callers_own(store: Store) -> None:
    begin(store, "r", [wait("w", 1)])
    store.mark_failure("r", "why", AT)
    for listing in (
        store.list_run_ids,
        store.find_runs,
        store.failures,
        lambda: store.list_due_wakeups(later(9)),
    ):
        before = listing()
        listing().clear()
        assert listing() == before != []


# -- wakeups -----------------------------------------------------------------------------------


def test_what_is_due_is_listed_by_time_then_run_then_subject(store: Store) -> None:
    begin(store, "b", [wait("y", 10), wait("x", 10), wait("early", 5)])
    begin(store, "a", [wait("z", 10), *step("s", TWICE), StepRetrying("s", 1, "no", later(7))])
    assert store.list_due_wakeups(later(10)) == [
        Wakeup("wait", "b", "early", later(5)),
        Wakeup("retry", "a", "s", later(7)),
        Wakeup("wait", "a", "z", later(10)),
        Wakeup("wait", "b", "x", later(10)),
        Wakeup("wait", "b", "y", later(10)),
    ]
    assert [each.subject_id for each in store.list_due_wakeups(later(10), limit=2)] == ["early", "s"]


def test_ids_of_runs_and_subjects_are_compared_character_by_character(store: Store) -> None:
    for run_id in ("a", "B", "_", "-"):
        begin(store, run_id, [wait("ä", 1), wait("z", 1), wait("Z", 1)])
    found = [(each.run_id, each.subject_id) for each in store.list_due_wakeups(later(1))]
    assert found == sorted(found)
    assert len(found) == 12


def test_a_wait_is_due_at_its_instant_and_not_a_microsecond_before(store: Store) -> None:
    begin(store, "r", [wait("w", 5)])
    assert store.list_due_wakeups(later(5) - timedelta(microseconds=1)) == []
    assert store.list_due_wakeups(later(5)) == [Wakeup("wait", "r", "w", later(5))]
    assert store.list_due_wakeups(later(5).astimezone(timezone(timedelta(hours=-8)))) != []


def test_the_next_wakeup_is_the_earliest_or_the_earliest_after_an_instant(store: Store) -> None:
    begin(store, "a", [wait("w", 5), wait("v", 7)])
    begin(store, "b", [wait("w", 5), *step("s", TWICE), StepRetrying("s", 1, "no", later(6))])
    assert store.next_scheduled_wakeup() == later(5)
    assert store.next_scheduled_wakeup(later(4)) == later(5)
    assert store.next_scheduled_wakeup(later(5) - timedelta(microseconds=1)) == later(5)
    assert store.next_scheduled_wakeup(later(5)) == later(6)
    assert store.next_scheduled_wakeup(later(6)) == later(7)
    assert store.next_scheduled_wakeup(later(7)) is None


def test_a_wait_for_a_past_instant_is_due_at_once(store: Store) -> None:
    begin(store, "r", [wait("w", -3600)])
    assert store.next_scheduled_wakeup() == later(-3600)
    assert store.list_due_wakeups(AT) == [Wakeup("wait", "r", "w", later(-3600))]


def test_the_scan_needs_a_limit_of_one_or_more(store: Store) -> None:
    with pytest.raises(ValueError, match="limit must be >= 1"):
        store.list_due_wakeups(AT, limit=0)


WAIT = ("wait", "w", 5.0)
RETRY = ("retry", "s", 5.0)
RETRYING = StepRetrying("s", 1, "no", later(5))
LIVES: dict[str, list[tuple[list[FlowEvent], list[tuple[str, str, float]]]]] = {
    "wait completed": [([wait("w", 5)], [WAIT]), ([WaitCompleted("w")], [])],
    "created and completed in one append": [([wait("w", 5), WaitCompleted("w")], [])],
    "one of two waits completed": [
        ([wait("w", 5), wait("v", 6)], [WAIT, ("wait", "v", 6.0)]),
        ([WaitCompleted("v")], [WAIT]),
    ],
    "retry started": [(step("s", TWICE), []), ([RETRYING], [RETRY]), ([StepStarted("s", 2)], [])],
    "retried again": [
        ([*step("s", RetryPolicy.fixed(3, 5.0)), RETRYING], [RETRY]),
        ([StepStarted("s", 2), StepRetrying("s", 2, "no", later(9))], [("retry", "s", 9.0)]),
        ([StepStarted("s", 3), StepFailed("s", 3, "no")], []),
    ],
    "retry at once": [([*step("s"), StepRetrying("s", 1, "no")], [])],
    "step of the same name as a wait": [
        ([wait("s", 6), *step("s", TWICE), RETRYING], [RETRY, ("wait", "s", 6.0)]),
        ([WaitCompleted("s")], [RETRY]),
    ],
    "retry given up": [
        ([*step("s", TWICE), RETRYING], [RETRY]),
        ([StepCancelled("s", 1, "no more")], []),
    ],
    "wait for a signal": [
        ([SignalWaitCreated("w", "go")], []),
        ([signal("x"), SignalWaitCompleted("w", "x")], []),
    ],
    "run completed": [([wait("w", 5), *step("s", TWICE), RETRYING], [RETRY, WAIT]), ([RunCompleted()], [])],
    "run failed": [([wait("w", 5), *step("s", TWICE), RETRYING], [RETRY, WAIT]), ([RunFailed("no")], [])],
    "run cancelled at once": [([wait("w", 5)], [WAIT]), ([RunCancelled()], [])],
    "cancellation asked for": [
        ([wait("w", 5), *step("s", TWICE), RETRYING], [RETRY, WAIT]),
        ([cancellation()], []),
        ([wait("tidy", 8)], [("wait", "tidy", 8.0)]),
        ([RunCancelled()], []),
    ],
}


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_wakeups_come_and_go_with_the_events(store: Store, life: Any) -> None:
    begin(store, "other", [wait("other", 99)])
    begin(store, "r")
    for events, expected in life:
        add(store, "r", *events)
        wakeups = [Wakeup(kind, "r", subject, later(due)) for kind, subject, due in expected]
        assert store.list_due_wakeups(later(50)) == wakeups
        assert store.next_scheduled_wakeup() == (wakeups[0].due_at if wakeups else later(99))


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_wakeups_outlive_the_store_object(reopen: Callable[[], Any], home: Any, life: Any) -> None:
    begin(home.store, "r")
    for events, expected in life:
        add(home.store, "r", *events)
        found = reopen().list_due_wakeups(later(50))
        assert found == [Wakeup(kind, "r", subject, later(due)) for kind, subject, due in expected]


# -- many threads ------------------------------------------------------------------------------


def at_once(count: int, call: Callable[[int], Any]) -> list[Any]:
    """Call with 0..count-1, each on a thread of its own, all at once; what each returned or raised."""
    found: list[Any] = [None] * count
    line = threading.Barrier(count, timeout=30)

    def one(number: int) -> None:
        line.wait()
        try:
            found[number] = call(number)
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return found


def test_of_threads_that_append_at_one_sequence_one_wins_and_the_others_conflict(store: Store) -> None:
    begin(store, "r")
    line = threading.Barrier(8, timeout=30)
    lost: list[EventConflict] = []

    def appends(number: int) -> int:
        won = 0
        for place in range(2, 52):
            line.wait()
            try:
                store.append("r", place, [signal(f"{place}-{number}")], AT)
                won += 1
            except EventConflict as error:
                lost.append(error)
        return won

    won = at_once(8, appends)
    assert sum(won) == 50
    assert len(lost) == 350
    assert {error.actual - error.expected for error in lost} == {1}
    history = store.read("r")
    assert [each.sequence for each in history] == list(range(1, 53))
    assert Projection.of("r", history).sequence == 52


def test_threads_that_append_to_runs_of_their_own_all_succeed(store: Store) -> None:
    def lives(number: int) -> int:
        begin(store, f"r{number}", [wait("w", number)])
        for i in range(10):
            store.append(f"r{number}", 3 + i, [signal(str(i))], AT)
        return len(store.read(f"r{number}"))

    assert at_once(8, lives) == [13] * 8
    assert store.list_run_ids() == [f"r{i}" for i in range(8)]
    assert [each.run_id for each in store.list_due_wakeups(later(9))] == [f"r{i}" for i in range(8)]


def test_of_threads_that_create_one_run_one_wins(store: Store) -> None:
    found = at_once(8, lambda number: store.append("r", 0, [created(input=number)], AT))
    winners = [each for each in found if isinstance(each, list)]
    losers = [each for each in found if isinstance(each, EventConflict)]
    assert (len(winners), len(losers)) == (1, 7)
    assert store.read("r") == winners[0]


# -- a store that outlives its object ----------------------------------------------------------


def test_a_store_that_is_opened_again_goes_on(reopen: Callable[[], Any], home: Any) -> None:
    first = begin(home.store, "r", [wait("w", 5)])
    begin(home.store, "other")
    store = reopen()
    assert store.list_run_ids() == ["other", "r"]
    assert store.read("r") == first
    with pytest.raises(EventConflict) as caught:
        store.append("r", 2, [WaitCompleted("w")], AT)
    assert (caught.value.expected, caught.value.actual) == (2, 3)
    with pytest.raises(InvalidTransition):
        store.append("r", 3, [WaitCompleted("nobody")], AT)
    second = store.append("r", 3, [WaitCompleted("w"), RunCompleted(1)], later(6))
    store = reopen()
    assert store.read("r") == first + second
    assert store.find_runs([RunStatus.COMPLETED]) == ["r"]
    assert store.next_scheduled_wakeup() is None


def test_two_stores_on_one_place_see_each_other(another: Callable[[], Any], home: Any) -> None:
    one, two = home.store, another()
    written = begin(one, "r", [wait("w", 5)])
    assert two.read("r") == written
    assert two.list_run_ids() == ["r"]
    assert two.list_due_wakeups(later(5)) == [Wakeup("wait", "r", "w", later(5))]
    written += two.append("r", 3, [WaitCompleted("w")], AT)
    assert one.read("r") == written
    assert one.next_scheduled_wakeup() is None
    with pytest.raises(EventConflict) as caught:
        one.append("r", 3, [signal("s")], AT)
    assert caught.value.actual == 4
    with pytest.raises(InvalidTransition):
        one.append("r", 4, [WaitCompleted("w")], AT)
    written += one.append("r", 4, [RunCompleted()], AT)
    assert two.read("r") == written
    assert two.find_runs([RunStatus.COMPLETED]) == one.find_runs([RunStatus.COMPLETED]) == ["r"]


def test_of_two_stores_on_one_place_one_goes_on_when_the_other_is_closed(
    another: Callable[[], Any], home: Any
) -> None:
    one, two = home.store, another()
    begin(one, "r")
    begin(two, "s")
    one.close()
    add(two, "r", signal("x"))
    assert len(two.read("r")) == 3
    with pytest.raises(StoreError):
        one.read("r")


def test_threads_on_two_stores_of_one_place_never_both_win(another: Callable[[], Any], home: Any) -> None:
    stores = [home.store, another()]
    begin(stores[0], "r")
    for place in range(2, 22):

        def appends(number: int, place: int = place) -> Any:
            return stores[number % 2].append("r", place, [signal(f"{place}-{number}")], AT)

        found = at_once(4, appends)
        assert sorted(type(each).__name__ for each in found) == ["EventConflict"] * 3 + ["list"]
    assert [each.sequence for each in stores[1].read("r")] == list(range(1, 23))


# -- the directory of runs ---------------------------------------------------------------------


def populate(store: Store) -> None:
    """Seven runs of two workflows, one in each status, created in the order d c b a g f e."""
    lives: dict[str, tuple[str, list[FlowEvent]]] = {
        "d": ("checkout", [RunStarted(), wait("w", 5)]),
        "c": ("checkout", []),
        "b": ("refund", [RunStarted()]),
        "a": ("checkout", [RunStarted(), RunCompleted()]),
        "g": ("refund", [RunStarted(), cancellation()]),
        "f": ("checkout", [RunStarted(), RunFailed("no")]),
        "e": ("refund", [RunStarted(), RunCancelled()]),
    }
    for age, (run_id, (workflow, events)) in enumerate(lives.items()):
        store.append(run_id, 0, [created(workflow)], later(age))
        if events:
            store.append(run_id, 1, events, later(100 - age))


def test_every_store_can_be_asked_for_runs(store: Store) -> None:
    assert isinstance(store, RunDirectory)


def test_runs_are_found_by_status(store: Store) -> None:
    populate(store)
    expected = {
        RunStatus.PENDING: ["c"],
        RunStatus.RUNNING: ["b"],
        RunStatus.SUSPENDED: ["d"],
        RunStatus.CANCELLING: ["g"],
        RunStatus.COMPLETED: ["a"],
        RunStatus.FAILED: ["f"],
        RunStatus.CANCELLED: ["e"],
    }
    assert {status: store.find_runs([status]) for status in RunStatus} == expected
    assert store.find_runs({RunStatus.PENDING, RunStatus.SUSPENDED, RunStatus.COMPLETED}) == ["a", "c", "d"]
    assert store.find_runs([]) == []


def test_runs_are_found_by_workflow(store: Store) -> None:
    populate(store)
    assert store.find_runs(workflow="refund") == ["b", "e", "g"]
    assert store.find_runs([RunStatus.COMPLETED], workflow="refund") == []
    assert store.find_runs([RunStatus.COMPLETED], workflow="checkout") == ["a"]
    assert store.find_runs(workflow="nothing") == []


def test_runs_are_found_by_id_or_the_newest_first(store: Store) -> None:
    populate(store)
    assert store.find_runs() == ["a", "b", "c", "d", "e", "f", "g"]
    assert store.find_runs(limit=3) == ["a", "b", "c"]
    assert store.find_runs(newest_first=True) == ["e", "f", "g", "a", "b", "c", "d"]
    assert store.find_runs(newest_first=True, limit=2) == ["e", "f"]
    assert store.find_runs(workflow="checkout", newest_first=True, limit=3) == ["f", "a", "c"]


def test_the_status_of_a_run_follows_its_events(store: Store) -> None:
    begin(store, "r", step("s", TWICE))
    for event, status in [
        (StepRetrying("s", 1, "no", later(5)), RunStatus.SUSPENDED),
        (StepStarted("s", 2), RunStatus.RUNNING),
        (StepCompleted("s"), RunStatus.RUNNING),
        (SignalWaitCreated("w", "go"), RunStatus.SUSPENDED),
        (signal("x"), RunStatus.RUNNING),  # there is a wait for it
        (SignalWaitCompleted("w", "x"), RunStatus.RUNNING),
        (cancellation(), RunStatus.CANCELLING),
        (RunCancelled(), RunStatus.CANCELLED),
    ]:
        add(store, "r", event)
        assert [each for each in RunStatus if store.find_runs([each])] == [status]


def test_the_directory_outlives_the_store_object(reopen: Callable[[], Any], home: Any) -> None:
    populate(home.store)
    before = [home.store.find_runs([each]) for each in RunStatus]
    store = reopen()
    assert [store.find_runs([each]) for each in RunStatus] == before
    assert store.find_runs(newest_first=True) == ["e", "f", "g", "a", "b", "c", "d"]


def test_failures_are_marked_replaced_and_cleared(store: Store) -> None:
    for run_id in ("a", "b", "c"):
        begin(store, run_id)
    store.mark_failure("b", "lost its \0 marbles ü", AT)
    store.mark_failure("a", "other", later(1))
    store.mark_failure("c", "third", later(2))
    assert store.failures() == [
        Failure("b", "lost its \0 marbles ü", AT),
        Failure("a", "other", later(1)),
        Failure("c", "third", later(2)),
    ]
    store.mark_failure("b", "again", later(3))
    store.clear_failure("a")
    store.clear_failure("a")
    store.clear_failure("nobody")
    assert store.failures() == [Failure("c", "third", later(2)), Failure("b", "again", later(3))]


def test_a_failure_is_marked_at_an_instant_in_utc(store: Store) -> None:
    begin(store, "r")
    with pytest.raises(ValueError, match="at must be an aware datetime"):
        store.mark_failure("r", "why", AT.replace(tzinfo=None))
    store.mark_failure("r", "why", AT.astimezone(timezone(timedelta(hours=2))))
    assert store.failures()[0].at.tzinfo is UTC


def test_failures_outlive_the_store_object(reopen: Callable[[], Any], home: Any) -> None:
    for run_id in ("a", "b"):
        begin(home.store, run_id)
        home.store.mark_failure(run_id, f"why {run_id}", AT)
    home.store.clear_failure("a")
    store = reopen()
    assert store.failures() == [Failure("b", "why b", AT)]
    store.clear_failure("b")
    assert reopen().failures() == []


def test_the_queue_of_a_store_is_the_same_at_each_call(store: Store) -> None:
    clock = VirtualClock()
    queue = store.work_queue(clock)
    assert store.work_queue(clock) is queue
    assert queue.enqueue("r") is True
    assert queue.pending() == 1


# -- close -------------------------------------------------------------------------------------


def test_closing_twice_is_the_same_as_once(store: Store) -> None:
    begin(store, "r")
    store.work_queue(VirtualClock())
    store.close()
    store.close()


@pytest.mark.parametrize("used", [True, False], ids=["used", "fresh"])
def test_a_closed_store_refuses_everything(store: Store, used: bool) -> None:
    if used:
        begin(store, "r")
    store.close()
    for call in (
        lambda: store.append("r", 2, [signal("s")], AT),
        lambda: store.append("new", 0, begun(), AT),
        lambda: store.read("r"),
        store.list_run_ids,
        lambda: store.list_due_wakeups(AT),
        store.next_scheduled_wakeup,
        store.find_runs,
        lambda: store.mark_failure("r", "why", AT),
        store.failures,
        lambda: store.work_queue(VirtualClock()),
    ):
        with pytest.raises(StoreError, match="closed"):
            call()
