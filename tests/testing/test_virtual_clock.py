"""VirtualClock: real threads, one at a time, on time that moves only when all of them wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from queue import Empty
from typing import Any

import pytest

from supervisor.testing import BlockedOutsideClock, VirtualClock, VirtualDeadlock


def join_all(handles: list[Any]) -> None:
    for handle in handles:
        handle.join()


# -- time


def test_time_starts_at_zero_on_the_first_of_january_2000(clock):
    assert clock.monotonic() == 0.0
    assert clock.now() == datetime(2000, 1, 1, tzinfo=UTC)
    assert clock.now().tzinfo is UTC


def test_advance_moves_both_clocks_by_exactly_its_seconds(clock):
    clock.advance(0.1)
    clock.advance(0.2)
    assert clock.monotonic() == 0.3
    assert clock.now() == datetime(2000, 1, 1, 0, 0, 0, 300_000, tzinfo=UTC)


def test_a_million_small_steps_add_up_without_an_error():
    clock = VirtualClock()
    for _ in range(1000):
        clock.advance(0.001)
    assert clock.monotonic() == 1.0


def test_a_start_in_another_zone_is_shown_in_utc():
    clock = VirtualClock(start=datetime(2020, 6, 1, 14, tzinfo=timezone(timedelta(hours=2))))
    assert clock.now() == datetime(2020, 6, 1, 12, tzinfo=UTC)
    assert clock.now().tzinfo is UTC


def test_a_naive_start_is_refused():
    with pytest.raises(ValueError, match="start must be an aware datetime"):
        VirtualClock(start=datetime(2020, 1, 1))


def test_step_wall_moves_the_wall_clock_alone_either_way(clock):
    clock.advance(1.0)
    clock.step_wall(3600)
    assert clock.now() == datetime(2000, 1, 1, 1, 0, 1, tzinfo=UTC)
    clock.step_wall(-7200.5)
    assert clock.now() == datetime(1999, 12, 31, 23, 0, 0, 500_000, tzinfo=UTC)
    assert clock.monotonic() == 1.0


def test_step_wall_wakes_nobody(clock):
    latch = clock.latch()
    ends: list[float] = []

    def body() -> None:
        latch.wait(10)
        ends.append(clock.monotonic())

    handle = clock.spawn(body, "t")
    clock.settle()
    clock.step_wall(100)
    clock.advance(9.999)
    assert ends == []
    handle.join()
    assert ends == [10.0]


@pytest.mark.parametrize("bad", [-1, -0.001, float("nan"), float("inf")])
@pytest.mark.parametrize("call", ["advance", "sleep", "run_until"])
def test_seconds_that_are_no_finite_duration_are_refused(clock, call, bad):
    act = partial(clock.run_until, lambda: True) if call == "run_until" else getattr(clock, call)
    with pytest.raises(ValueError, match="must"):
        act(bad)


@pytest.mark.parametrize("bad", [True, "1", None])
@pytest.mark.parametrize("call", ["advance", "sleep", "step_wall"])
def test_seconds_that_are_no_number_are_refused(clock, call, bad):
    with pytest.raises(TypeError, match="must be a number of seconds"):
        getattr(clock, call)(bad)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_wall_step_must_be_finite(clock, bad):
    with pytest.raises(ValueError, match="must"):
        clock.step_wall(bad)


@pytest.mark.parametrize("wait", ["latch", "queue", "condition", "join", "lock"])
@pytest.mark.parametrize(("bad", "error"), [(float("nan"), ValueError), (True, TypeError)])
def test_a_timeout_that_is_no_number_is_refused(clock, wait, bad, error):
    lock = clock.lock()
    other = clock.lock()
    other.acquire()
    handle = clock.spawn(lambda: None, "t")
    acts: dict[str, Callable[[], object]] = {
        "latch": lambda: clock.latch().wait(bad),
        "queue": lambda: clock.queue().get(timeout=bad),
        "condition": lambda: clock.condition(lock).wait_for(lambda: False, bad),
        "join": lambda: handle.join(bad),
        "lock": lambda: other.acquire(timeout=bad),
    }
    with lock, pytest.raises(error, match="timeout must"):
        acts[wait]()
    handle.join()


# -- advance, run_until, settle


def test_advance_visits_every_deadline_up_to_and_including_its_end(clock):
    seen: list[tuple[float, str]] = []

    def body(name: str, seconds: float) -> None:
        clock.sleep(seconds)
        seen.append((clock.monotonic(), name))

    handles = [
        clock.spawn(partial(body, n, s), n) for n, s in [("late", 3.000000001), ("end", 3.0), ("mid", 1.5)]
    ]
    clock.advance(3.0)
    assert seen == [(1.5, "mid"), (3.0, "end")]
    assert clock.monotonic() == 3.0
    clock.advance(1.0)
    assert seen[-1] == (3.000000001, "late")
    assert clock.monotonic() == 4.0
    join_all(handles)


def test_advance_follows_chains_of_waits_that_begin_inside_it(clock):
    times: list[float] = []
    stop = clock.latch()

    def body() -> None:
        while not stop.wait(0.1):
            times.append(clock.monotonic())

    handle = clock.spawn(body, "t")
    clock.advance(0.5)
    assert times == [0.1, 0.2, 0.3, 0.4, 0.5]
    stop.open()
    handle.join()
    assert clock.monotonic() == 0.5


def test_nothing_runs_until_somebody_drives(clock):
    ran: list[int] = []
    handle = clock.spawn(lambda: ran.append(1), "t")
    assert ran == []
    clock.settle()
    assert ran == [1]
    assert clock.monotonic() == 0.0
    handle.join()


def test_advance_of_zero_lets_zero_timeouts_pass(clock):
    seen: list[bool] = []
    handle = clock.spawn(lambda: seen.append(clock.latch().wait(0)), "t")
    clock.settle()
    assert seen == []
    clock.advance(0)
    assert seen == [False]
    handle.join()


def test_run_until_stops_at_the_first_rest_where_the_predicate_is_true(clock):
    count: list[float] = []
    stop = clock.latch()

    def body() -> None:
        while not stop.wait(1.0):
            count.append(clock.monotonic())

    handle = clock.spawn(body, "t")
    clock.run_until(lambda: len(count) == 3, 100)
    assert clock.monotonic() == 3.0
    stop.open()
    handle.join()


def test_run_until_raises_at_its_limit_with_the_text_of_the_predicate(clock):
    nothing: list[int] = []
    with pytest.raises(TimeoutError, match=r"still false after 5 s, at 5\.0 s: .*len\(nothing\) == 7"):
        clock.run_until(lambda: len(nothing) == 7, limit=5)
    assert clock.monotonic() == 5.0


def test_run_until_includes_its_limit(clock):
    done: list[int] = []

    def body() -> None:
        clock.sleep(5)
        done.append(1)

    handle = clock.spawn(body, "t")
    clock.run_until(lambda: done, limit=5)
    clock.run_until(lambda: clock.monotonic() == 7, limit=2)
    handle.join()


def test_what_a_predicate_of_run_until_raises_comes_out(clock):
    with pytest.raises(ZeroDivisionError):
        clock.run_until(lambda: 1 // 0, limit=5)
    clock.advance(1)


def test_a_predicate_may_itself_wait_on_the_clock(clock):
    done = clock.latch()
    handle = clock.spawn(lambda: (clock.sleep(1), done.open(), None)[-1], "t")
    clock.run_until(lambda: done.wait(0.25), limit=10)
    assert clock.monotonic() == 1.0
    handle.join()


@pytest.mark.parametrize("call", ["advance", "run_until", "settle"])
def test_driving_from_a_thread_of_the_clock_is_an_error_that_says_where_to_call(clock, call):
    args = {"advance": (1,), "run_until": (lambda: True, 1), "settle": ()}[call]
    errors: list[str] = []

    def body() -> None:
        try:
            getattr(clock, call)(*args)
        except RuntimeError as error:
            errors.append(str(error))

    clock.spawn(body, "worker").join()
    assert errors == [f"{call} was called in thread 'worker' of this clock; call it in the test's own thread"]


# -- turns


def test_one_thread_runs_at_a_time():
    clock = VirtualClock(seed=1)
    inside: list[str] = []
    most = [0]

    def body(name: str) -> None:
        for _ in range(5):
            inside.append(name)
            most[0] = max(most[0], len(inside))
            for _ in range(100):
                pass
            inside.remove(name)
            clock.sleep(0.1)

    join_all([clock.spawn(partial(body, str(i)), f"t{i}") for i in range(8)])
    assert most == [1]


def test_without_a_seed_threads_run_first_come_first_served(clock):
    order: list[int] = []
    join_all([clock.spawn(partial(order.append, i), f"t{i}") for i in range(20)])
    assert order == list(range(20))


def test_equal_deadlines_fire_one_at_a_time_in_the_order_of_the_waits(clock):
    log: list[tuple[int, str]] = []
    queue = clock.queue()

    def helper() -> None:
        while (item := queue.get()) is not None:
            log.append((item, "helped"))

    def body(i: int) -> None:
        clock.sleep(1.0)
        log.append((i, "fired"))
        queue.put(i)

    handles = [clock.spawn(helper, "helper")] + [clock.spawn(partial(body, i), f"t{i}") for i in range(3)]
    clock.advance(1.0)
    assert log == [(0, "fired"), (0, "helped"), (1, "fired"), (1, "helped"), (2, "fired"), (2, "helped")]
    queue.put(None)
    join_all(handles)


def test_a_zero_timeout_lets_all_others_of_the_instant_run_first(clock):
    queue = clock.queue()
    got: list[object] = []
    go = clock.latch()

    def getter() -> None:
        go.wait()
        got.append(queue.get(timeout=0))
        try:
            queue.get(timeout=0)
        except Empty:
            got.append("empty")

    def putter() -> None:
        go.wait()
        queue.put("item")

    handles = [clock.spawn(getter, "getter"), clock.spawn(putter, "putter")]
    clock.settle()
    go.open()
    clock.advance(0)
    assert got == ["item", "empty"]
    join_all(handles)


def test_a_wait_that_is_not_over_takes_time(clock):
    """0.1 + 0.2 > 0.3 as floats: whoever waits for the rest must not spin at 0.3."""
    ends: list[float] = []

    def body() -> None:
        clock.sleep(0.1)
        deadline = clock.monotonic() + 0.2
        while (left := deadline - clock.monotonic()) > 0:
            clock.sleep(left)
        ends.append(clock.monotonic())

    clock.spawn(body, "t").join()
    assert ends == [0.300000001]


# -- latch


def test_a_latch_is_opened_once_and_stays_open(clock):
    latch = clock.latch()
    assert latch.wait(1.5) is False
    assert clock.monotonic() == 1.5
    latch.open()
    latch.open()
    assert latch.wait() is True
    assert latch.wait(0) is True
    assert clock.monotonic() == 1.5


def test_a_latch_opened_by_a_thread_ends_the_wait_at_that_instant(clock):
    latch = clock.latch()
    seen: list[tuple[bool, float]] = []

    def waiter(timeout: float | None) -> None:
        seen.append((latch.wait(timeout), clock.monotonic()))

    handles = [clock.spawn(partial(waiter, t), f"w{t}") for t in (None, 5.0, 1.0)]
    handles.append(clock.spawn(lambda: (clock.sleep(2.0), latch.open(), None)[-1], "opener"))
    assert latch.wait(10) is True
    assert seen == [(False, 1.0), (True, 2.0), (True, 2.0)]
    join_all(handles)


def test_an_infinite_timeout_is_none_and_a_negative_one_is_zero(clock):
    latch = clock.latch()
    handle = clock.spawn(lambda: (clock.sleep(3), latch.open(), None)[-1], "opener")
    assert latch.wait(-5) is False
    assert clock.monotonic() == 0.0
    assert latch.wait(float("inf")) is True
    handle.join()


# -- queue


def test_a_queue_gives_items_in_order_to_whoever_waits_first(clock):
    queue = clock.queue()
    got: list[tuple[int, object, float]] = []

    def getter(i: int) -> None:
        got.append((i, queue.get(), clock.monotonic()))

    handles = [clock.spawn(partial(getter, i), f"g{i}") for i in range(3)]
    clock.advance(1.0)
    for item in "abc":
        queue.put(item)
    join_all(handles)
    assert got == [(0, "a", 1.0), (1, "b", 1.0), (2, "c", 1.0)]


def test_get_raises_empty_at_its_timeout_and_not_before(clock):
    queue = clock.queue()
    times: list[float] = []

    def getter() -> None:
        with pytest.raises(Empty):
            queue.get(timeout=2.5)
        times.append(clock.monotonic())

    clock.spawn(getter, "t").join()
    assert times == [2.5]
    with pytest.raises(Empty):
        queue.get(timeout=1.0)
    assert clock.monotonic() == 3.5


def test_get_without_blocking_takes_no_time(clock):
    queue = clock.queue()
    with pytest.raises(Empty):
        queue.get_nowait()
    with pytest.raises(Empty):
        queue.get(block=False)
    queue.put(1)
    queue.put(2)
    assert queue.qsize() == 2
    assert (queue.get_nowait(), queue.get(block=False)) == (1, 2)
    assert clock.monotonic() == 0.0


def test_the_test_thread_gets_what_a_thread_puts_later(clock):
    queue = clock.queue()
    handle = clock.spawn(lambda: (clock.sleep(4), queue.put("x"), None)[-1], "putter")
    assert queue.get(timeout=10) == "x"
    assert clock.monotonic() == 4.0
    handle.join()


def test_put_is_safe_in_a_signal_handler_at_any_moment():
    clock = VirtualClock()
    queue = clock.queue()
    got: list[int] = []

    def getter() -> None:
        while (item := queue.get()) >= 0:
            got.append(item)

    handle = clock.spawn(getter, "getter")
    before = signal.signal(signal.SIGALRM, lambda *_: queue.put(len(got)))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for _ in range(3000):
            clock.advance(0.001)
            queue.put(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    queue.put(-1)
    handle.join()
    assert len(got) > 3000
    assert clock.monotonic() == 3.0


# -- lock


def test_a_thread_that_finds_a_lock_held_gets_it_when_it_is_released(clock):
    lock = clock.lock()
    log: list[tuple[str, float]] = []

    def body(name: str) -> None:
        with lock:
            log.append((name, clock.monotonic()))
            clock.sleep(1.0)

    join_all([clock.spawn(partial(body, n), n) for n in "abc"])
    assert log == [("a", 0.0), ("b", 1.0), ("c", 2.0)]


def test_acquire_keeps_its_timeout_and_may_decline_to_wait(clock):
    lock = clock.lock()
    log: list[object] = []

    def holder() -> None:
        with lock:
            clock.sleep(10)

    def other() -> None:
        log.append(lock.acquire(blocking=False))
        log.append(lock.acquire(timeout=3))
        log.append(clock.monotonic())
        log.append(lock.acquire(timeout=30))
        log.append(clock.monotonic())
        lock.release()

    join_all([clock.spawn(holder, "holder"), clock.spawn(other, "other")])
    assert log == [False, False, 3.0, True, 10.0]


def test_the_test_thread_drives_until_a_lock_is_free(clock):
    lock = clock.lock()

    def holder() -> None:
        with lock:
            clock.sleep(2)

    handle = clock.spawn(holder, "holder")
    clock.settle()
    assert lock.acquire(blocking=False) is False
    assert lock.acquire(timeout=1) is False
    with lock:
        assert clock.monotonic() == 2.0
    handle.join()


def test_releasing_a_lock_that_is_free_is_an_error(clock):
    with pytest.raises(RuntimeError):
        clock.lock().release()


# -- condition


@pytest.mark.parametrize("plain", [False, True])
def test_a_condition_waits_for_its_predicate_and_holds_its_lock_again(clock, plain):
    lock = threading.Lock() if plain else clock.lock()
    condition = clock.condition(lock)
    value = [0]
    log: list[tuple[str, bool, float]] = []

    def waiter(name: str, want: int, timeout: float | None) -> None:
        with lock:
            result = condition.wait_for(lambda: value[0] >= want, timeout)
            assert lock.locked()
            log.append((name, result, clock.monotonic()))

    def setter() -> None:
        for _ in range(3):
            clock.sleep(1.0)
            with lock:
                value[0] += 1
                condition.notify_all()

    handles = [
        clock.spawn(partial(waiter, "two", 2, None), "two"),
        clock.spawn(partial(waiter, "one", 1, 9.0), "one"),
        clock.spawn(partial(waiter, "never", 99, 2.5), "never"),
        clock.spawn(setter, "setter"),
    ]
    with lock:
        assert condition.wait_for(lambda: value[0] == 3, 20) is True
        assert condition.wait_for(lambda: value[0] == 4, 20) is False
    assert log == [("one", True, 1.0), ("two", True, 2.0), ("never", False, 2.5)]
    assert clock.monotonic() == 23.0
    join_all(handles)


def test_notify_wakes_as_many_as_asked_in_the_order_of_their_waits(clock):
    lock = clock.lock()
    condition = clock.condition(lock)
    tokens: list[int] = []
    log: list[int] = []

    def waiter(i: int) -> None:
        with lock:
            condition.wait_for(lambda: bool(tokens))
            log.append(i)

    handles = [clock.spawn(partial(waiter, i), f"w{i}") for i in range(4)]
    clock.settle()
    with lock:
        tokens.append(1)
        condition.notify(2)
    clock.settle()
    assert log == [0, 1]
    with lock:
        condition.notify_all()
    clock.settle()
    assert log == [0, 1, 2, 3]
    join_all(handles)


def test_what_a_condition_predicate_raises_leaves_the_lock_held_once(clock):
    lock = clock.lock()
    condition = clock.condition(lock)
    calls: list[int] = []

    def predicate() -> bool:
        calls.append(1)
        if len(calls) > 1:
            raise KeyError("second look")
        return False

    with lock:
        with pytest.raises(KeyError, match="second look"):
            condition.wait_for(predicate, 1)
        assert lock.locked()
    assert not lock.locked()


def test_waiting_without_the_lock_is_an_error(clock):
    with pytest.raises(RuntimeError):
        clock.condition(clock.lock()).wait_for(lambda: False, 1)


# -- threads


def test_a_handle_knows_name_and_ident_and_the_thread_is_a_daemon(clock):
    seen: list[threading.Thread] = []
    handle = clock.spawn(lambda: seen.append(threading.current_thread()), "sup:orders")
    ident = handle.ident
    handle.join()
    assert handle.name == "sup:orders"
    assert seen[0].name == "sup:orders"
    assert seen[0].ident == ident
    assert seen[0].daemon


def test_join_waits_for_the_end_in_virtual_time(clock):
    log: list[object] = []
    slow = clock.spawn(lambda: clock.sleep(5), "slow")

    def joiner() -> None:
        slow.join(2)
        log.append(clock.monotonic())
        slow.join()
        log.append(clock.monotonic())
        slow.join()

    other = clock.spawn(joiner, "joiner")
    slow.join(1)
    assert clock.monotonic() == 1.0
    other.join()
    assert log == [2.0, 5.0]
    assert not any(t.name in {"slow", "joiner"} for t in threading.enumerate())


def test_a_thread_cannot_join_itself(clock):
    box: list[Any] = []
    box.append(clock.spawn(lambda: box[0].join(), "narcissus"))
    with pytest.raises(RuntimeError, match="'narcissus' cannot join itself"):
        clock.settle()


def test_what_a_thread_raises_is_raised_by_the_driver_with_its_name(clock):
    def body() -> None:
        clock.sleep(1)
        raise ValueError("broken")

    clock.spawn(body, "worker")
    with pytest.raises(ValueError, match="broken") as caught:
        clock.advance(5)
    assert caught.value.__notes__ == ["raised in thread 'worker'"]
    assert clock.monotonic() == 1.0
    clock.advance(4)
    assert clock.monotonic() == 5.0


def test_a_system_exit_in_a_thread_does_not_end_the_test_run(clock):
    def body() -> None:
        raise SystemExit(3)

    clock.spawn(body, "quitter")
    with pytest.raises(AssertionError, match="thread 'quitter' ended with SystemExit: 3"):
        clock.settle()


def test_a_refused_thread_start_is_undone(clock, monkeypatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        clock.spawn(lambda: None, "t")
    monkeypatch.undo()
    clock.advance(1)
    clock.spawn(lambda: clock.sleep(1), "t").join()
    assert clock.monotonic() == 2.0


def test_a_thread_may_start_threads(clock):
    log: list[float] = []

    def child() -> None:
        clock.sleep(1)
        log.append(clock.monotonic())

    def parent() -> None:
        clock.sleep(1)
        clock.spawn(child, "child").join()
        log.append(clock.monotonic())

    clock.spawn(parent, "parent").join()
    assert log == [2.0, 2.0]


# -- errors


def test_a_deadlock_names_each_thread_what_it_waits_for_and_where(clock):
    first, second = clock.lock(), clock.lock()
    met = clock.latch()

    def one_way() -> None:
        with first:
            met.open()
            clock.sleep(1)
            second.acquire(timeout=50) or second.acquire()

    def other_way() -> None:
        met.wait()
        with second:
            first.acquire()

    def idle_consumer() -> None:
        queue.get()

    queue = clock.queue()
    handles = [clock.spawn(f, f.__name__) for f in (one_way, other_way, idle_consumer)]
    with pytest.raises(VirtualDeadlock) as caught:
        handles[0].join()
    text = str(caught.value)
    assert text.startswith("deadlock at 51.0 s: thread 'MainThread' waits for the end of thread 'one_way'")
    assert "thread 'one_way' waits for a lock held by thread 'other_way'" in text
    assert "thread 'other_way' waits for a lock held by thread 'one_way'" in text
    assert "thread 'idle_consumer' waits for an item of a queue" in text
    assert "second.acquire(timeout=50) or second.acquire()" in text
    assert "queue.get()" in text
    assert isinstance(caught.value, AssertionError)
    queue.put(None)  # the clock goes on; let the threads go
    first.release()
    clock.settle()
    for lock in (first, second):
        if lock.locked():
            lock.release()
        clock.settle()
    clock.advance(60)


def test_a_wait_that_nobody_can_end_is_a_deadlock_at_once(clock):
    with pytest.raises(VirtualDeadlock, match=r"waits for a latch.*\nno thread of the clock is alive"):
        clock.latch().wait()
    clock.advance(1)


def test_a_body_that_blocks_outside_the_clock_is_reported_with_its_stack():
    clock = VirtualClock(patience=0.1)
    gate = threading.Event()

    def blocks_for_real() -> None:
        gate.wait()

    handle = clock.spawn(blocks_for_real, "sup:stuck")
    try:
        with pytest.raises(BlockedOutsideClock) as caught:
            clock.advance(1)
        text = str(caught.value)
        assert "thread 'sup:stuck' has run for 0.1 real seconds without waiting on the clock" in text
        assert "ctx.wait, ctx.sleep" in text
        assert "gate.wait()" in text
        assert "blocks_for_real" in text
        for again in (lambda: clock.advance(1), clock.settle, lambda: clock.latch().wait(1), handle.join):
            with pytest.raises(BlockedOutsideClock, match="'sup:stuck' has run"):
                again()
    finally:
        gate.set()
    handle.join()
    clock.advance(1)
    assert clock.monotonic() == 1.0


def test_the_report_of_a_blocked_body_comes_after_five_seconds_unless_told_otherwise(clock):
    assert clock._baton.patience == 5.0


def test_threads_that_chase_each_other_at_one_instant_are_reported(clock, monkeypatch):
    monkeypatch.setattr("supervisor.testing.baton._TURNS_AT_ONE_INSTANT", 100)
    queue = clock.queue()
    stop: list[int] = []

    def spins() -> None:
        while not stop:
            try:
                queue.get(timeout=0)
            except Empty:
                continue

    handle = clock.spawn(spins, "spinner")
    with pytest.raises(BlockedOutsideClock, match=r"time stands still at 0\.0 s.*'spinner'"):
        clock.advance(1)
    stop.append(1)
    queue.put(1)
    handle.join()


def test_a_ctrl_c_while_driving_leaves_the_clock_usable(clock):
    gate = threading.Event()
    log: list[float] = []

    def body() -> None:
        clock.sleep(1)
        gate.wait()
        clock.sleep(1)
        log.append(clock.monotonic())

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    handle = clock.spawn(body, "t")
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2, 0.05)  # again, should it come just before the wait
        with pytest.raises(KeyboardInterrupt):
            clock.advance(10)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gate.set()
    handle.join()
    assert log == [2.0]


@pytest.mark.slow
def test_a_ctrl_c_at_any_moment_loses_no_thread():
    """Interrupt a busy clock hundreds of times: each thread still makes all of its turns."""
    clock = VirtualClock(seed=5)
    queue, lock, stop = clock.queue(), clock.lock(), clock.latch()
    counts = [0] * 4
    hits = 0

    def worker(i: int) -> None:
        while not stop.wait(0.01):
            with lock:
                counts[i] += 1
            queue.put(i)

    def consumer() -> None:
        while queue.get() is not None:
            pass

    handles = [clock.spawn(partial(worker, i), f"w{i}") for i in range(4)] + [clock.spawn(consumer, "c")]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for k in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + 0.000007 * k)
                clock.advance(1.0)
            except KeyboardInterrupt:
                hits += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert hits > 100
    start = list(counts)
    clock.advance(1.0)
    assert all(99 <= now - then <= 101 for now, then in zip(counts, start, strict=True))
    stop.open()
    queue.put(None)
    join_all(handles)


# -- several threads that are not the clock's


def test_two_test_threads_wait_at_once_and_each_gets_its_instant(clock):
    latches = [clock.latch() for _ in range(4)]
    seen: dict[int, tuple[bool, float]] = {}

    def opener() -> None:
        for latch in latches[:-1]:
            clock.sleep(1)
            latch.open()

    def outside(i: int) -> None:
        seen[i] = (latches[i].wait(10), 0.0)

    handle = clock.spawn(opener, "opener")
    threads = [threading.Thread(target=outside, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {i: result for i, (result, _) in seen.items()} == {0: True, 1: True, 2: True, 3: False}
    handle.join()


def test_the_driving_role_is_handed_on_when_the_driver_raises(clock):
    latch = clock.latch()
    waits = threading.Event()
    results: list[bool] = []

    def fails() -> None:
        clock.sleep(1)
        raise ValueError("for the driver")

    def opens() -> None:
        clock.sleep(2)
        latch.open()

    def predicate() -> bool:
        waits.set()
        return False

    errors: list[BaseException] = []

    def driver() -> None:
        try:
            clock.run_until(predicate, 50)
        except BaseException as error:
            errors.append(error)

    ready = clock.latch()
    first = threading.Thread(target=driver)
    held = clock.spawn(lambda: (ready.wait(), None)[-1], "held")
    handles = [held, clock.spawn(fails, "fails"), clock.spawn(opens, "opens")]
    first.start()
    waits.wait(10)
    second = threading.Thread(target=lambda: results.append(latch.wait()))
    second.start()
    second.join(20)
    first.join(20)
    assert results == [True]
    assert [str(error) for error in errors] == ["for the driver"]
    ready.open()
    join_all(handles)


def test_a_test_thread_without_a_driver_makes_threads_runnable_only(clock):
    queue = clock.queue()
    got: list[object] = []
    handle = clock.spawn(lambda: got.append(queue.get()), "t")
    clock.settle()
    thread = threading.Thread(target=queue.put, args=(1,))
    thread.start()
    thread.join()
    assert got == []
    clock.settle()
    assert got == [1]
    handle.join()


def test_a_free_thread_may_still_end_a_wait_that_looks_like_a_deadlock(clock):
    lock = clock.lock()
    condition = clock.condition(lock)
    waits = threading.Event()
    done: list[int] = []

    def helper() -> None:
        waits.wait()
        with lock:
            done.append(1)
            condition.notify_all()

    def predicate() -> bool:
        waits.set()
        return bool(done)

    thread = threading.Thread(target=helper)
    thread.start()
    with lock:
        assert condition.wait_for(predicate) is True
    assert clock.monotonic() == 0.0
    thread.join()


def test_many_test_threads_hammer_one_clock():
    clock = VirtualClock()
    inbox, stop = clock.queue(), clock.latch()
    lock = clock.lock()
    total = [0]
    answered: list[int] = []

    def server() -> None:
        while (request := inbox.get(timeout=1000)) is not None:
            clock.sleep(0.01)
            with lock:
                total[0] += 1
            request.open()

    def ticker() -> None:
        while not stop.wait(0.05):
            pass

    def client() -> None:
        for _ in range(20):
            answer = clock.latch()
            inbox.put(answer)
            assert answer.wait(500)
            with lock:
                answered.append(1)

    handles = [clock.spawn(server, "server"), clock.spawn(ticker, "ticker")]
    clients = [threading.Thread(target=client) for _ in range(8)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join(50)
    assert (total, len(answered)) == ([160], 160)
    inbox.put(None)
    stop.open()
    join_all(handles)


# -- seeds


def story(seed: int | None) -> tuple[Any, ...]:
    """What happens to three workers and a consumer, in order."""
    clock = VirtualClock(seed)
    lock, queue, done = clock.lock(), clock.queue(), clock.latch()
    log: list[Any] = []

    def worker(i: int) -> None:
        for step in range(4):
            with lock:
                log.append((i, step, clock.monotonic()))
            queue.put((i, step))
            clock.sleep(0.5)
        queue.put(None)

    def consumer() -> None:
        left = 3
        while left:
            item = queue.get(timeout=100)
            log.append(item)
            left -= item is None
        done.open()

    handles = [clock.spawn(partial(worker, i), f"w{i}") for i in range(3)] + [clock.spawn(consumer, "c")]
    assert done.wait(100)
    join_all(handles)
    return tuple(log)


def test_each_seed_is_another_interleaving_and_is_replayed_exactly():
    stories = {}
    for seed in range(300):
        stories[seed] = story(seed)
        assert story(seed) == stories[seed]
    assert len(set(stories.values())) >= 290


def test_without_a_seed_there_is_one_interleaving():
    assert len({story(None) for _ in range(20)}) == 1


def lost_updates(seed: int | None, guarded: bool) -> int:
    """Two threads add one ten times each, with a lock operation between read and write."""
    clock = VirtualClock(seed)
    guard, other = clock.lock(), clock.lock()
    value = [0]

    def add() -> None:
        seen = value[0]
        with other:
            pass
        value[0] = seen + 1

    def body() -> None:
        for _ in range(10):
            if guarded:
                with guard:
                    add()
            else:
                add()

    join_all([clock.spawn(body, f"t{i}") for i in range(2)])
    return 20 - value[0]


def test_preemption_finds_a_race_that_waits_alone_would_hide():
    assert lost_updates(None, guarded=False) == 0
    assert sum(lost_updates(seed, guarded=False) > 0 for seed in range(20)) >= 15
    assert all(lost_updates(seed, guarded=True) == 0 for seed in range(20))


def test_no_thread_is_interrupted_while_it_holds_a_lock_the_clock_did_not_make():
    for seed in range(20):
        clock = VirtualClock(seed, patience=2.0)
        lock = threading.Lock()
        condition, queue = clock.condition(lock), clock.queue()
        count = [0]

        def body(
            lock: Any = lock, condition: Any = condition, queue: Any = queue, count: list[int] = count
        ) -> None:
            for _ in range(5):
                with lock:
                    count[0] += 1
                    queue.put(1)
                    condition.notify_all()
            with lock:
                condition.wait_for(lambda: count[0] == 20)

        join_all([clock.spawn(body, f"t{i}") for i in range(4)])
        assert count == [20]


def test_a_seed_draws_the_order_of_equal_deadlines():
    def order(seed: int) -> tuple[int, ...]:
        clock = VirtualClock(seed)
        log: list[int] = []
        join_all(
            [clock.spawn(lambda i=i: (clock.sleep(1), log.append(i), None)[-1], f"t{i}") for i in range(5)]
        )
        return tuple(log)

    orders = [order(seed) for seed in range(40)]
    assert len(set(orders)) > 20
    assert orders == [order(seed) for seed in range(40)]


# -- cost


def test_timed_waits_that_end_early_leave_nothing_behind(clock):
    queue = clock.queue()

    def getter() -> None:
        while queue.get(timeout=3600) is not None:
            pass

    handle = clock.spawn(getter, "t")
    for _ in range(1000):
        queue.put(1)
        clock.settle()
    assert len(clock._baton._timers) < 200
    queue.put(None)
    handle.join()


@pytest.mark.slow
def test_a_thousand_threads_work_on_one_clock():
    clock = VirtualClock()
    inbox = clock.queue()
    count = [0]

    def actor(i: int) -> None:
        for _ in range(3):
            clock.sleep(1 + i / 1000)
            inbox.put(i)

    def supervisor() -> None:
        for _ in range(3000):
            inbox.get(timeout=100)
            count[0] += 1

    handles = [clock.spawn(partial(actor, i), f"a{i}") for i in range(1000)] + [clock.spawn(supervisor, "s")]
    clock.advance(6)
    assert count == [3000]
    join_all(handles)


def test_a_deadlock_is_told_though_another_thread_lives_in_the_process() -> None:
    over = threading.Event()
    stranger = threading.Thread(target=over.wait, name="stranger", daemon=True)
    stranger.start()
    clock = VirtualClock(patience=0.2)
    try:
        with pytest.raises(VirtualDeadlock):
            clock.latch().wait()
    finally:
        over.set()
        stranger.join(5)
