"""Many tasks, hot loops, and nothing left behind."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable

import pytest

from supervisor import (
    AttemptStarting,
    BackoffPolicy,
    CancelToken,
    Event,
    Fail,
    Fatal,
    OutcomeKind,
    Supervisor,
    SupervisorConfig,
    TaskContext,
    TaskSpec,
)
from supervisor.testing import EventRecorder, VirtualClock

LONG = int(os.environ.get("SUPERVISOR_LONG_TESTS", "1"))  # times as many rounds as in a quick run

# A thousand jobs at once: a lost wake-up at the limit of concurrency, and the loop slept for ever.


@pytest.mark.parametrize("seed", range(3))
def test_a_burst_beyond_the_limit_is_worked_off_in_order(seed: int) -> None:
    clock, order = VirtualClock(seed=seed), list[int]()
    inside, most = [0], [0]

    def body(number: int) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        order.append(number)
        clock.sleep(0.001 * (number % 3))
        inside[0] -= 1

    with Supervisor(SupervisorConfig(max_concurrent=4), clock=clock) as sup:
        handles = [sup.add(TaskSpec.once(f"t{n}", body, args=(n,))) for n in range(200)]
        clock.run_until(lambda: all(handle.done() for handle in handles), limit=10.0)
    assert most == [4]
    assert sorted(order) == list(range(200))


@pytest.mark.parametrize("round", range(2 * LONG))
def test_on_the_real_clock_no_wake_up_is_lost_when_a_permit_comes_free(round: int) -> None:
    done = list[int]()
    with Supervisor(SupervisorConfig(max_concurrent=4)) as sup:
        for batch in range(0, 1000, 100):
            sup.add_all(TaskSpec.once(f"t{n}", done.append, args=(n,)) for n in range(batch, batch + 100))
        assert sup.wait(30)
    assert sorted(done) == list(range(1000))


def test_canceled_waiters_for_a_permit_give_their_place_on(clock: VirtualClock) -> None:
    ran = list[int]()
    with Supervisor(SupervisorConfig(max_concurrent=1), clock=clock) as sup:
        first = sup.add(TaskSpec.once("first", lambda ctx: ctx.wait()))
        clock.settle()
        rest = [sup.add(TaskSpec.once(f"t{n}", ran.append, args=(n,))) for n in range(20)]
        clock.settle()
        for handle in rest[::2]:
            handle.remove()
        first.cancel()
        sup.wait()
    assert ran == list(range(1, 20, 2))


# A zero interval, or a task that fails at once, takes the whole machine and starves everybody.


def test_a_periodic_task_without_an_interval_starts_once_a_millisecond(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    supervisor.add(TaskSpec.periodic("t", lambda: None, 0))
    clock.advance(0.1)
    starts = recorder.of(AttemptStarting)
    assert len(starts) == 101
    assert "backoff_scheduled" not in recorder.kinds("t")


def test_a_hot_loop_can_be_canceled_and_starves_nobody(supervisor: Supervisor, clock: VirtualClock) -> None:
    ticks = list[float]()
    hot = supervisor.add(TaskSpec.periodic("hot", lambda: None, 0))
    supervisor.add(TaskSpec.periodic("tick", lambda: ticks.append(clock.monotonic()), 0.01))
    clock.advance(0.5)
    assert hot.cancel()
    assert ticks == pytest.approx([0.01 * n for n in range(51)])


def test_the_default_backoff_slows_a_task_that_fails_at_once(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    def body() -> None:
        raise Fail("at once")

    supervisor.add(TaskSpec.restartable("t", body))
    clock.advance(60.0)
    assert len(recorder.of(AttemptStarting)) <= 12


def test_a_task_that_fails_at_once_without_backoff_leaves_control_to_the_others() -> None:
    """On the real clock: the loop never waits, and still a cancel comes through."""

    def body() -> None:
        raise Fail("at once")

    with Supervisor(subscribers=[lambda event: None]) as sup:
        hot = sup.add(TaskSpec.restartable("hot", body, backoff=None))
        assert all(sup.add(TaskSpec.once("other", lambda: None)).wait(20).ok for _ in range(20))
        assert hot.cancel(timeout=20)
        assert hot.wait().kind is OutcomeKind.CANCELED


# Each finished task left a thread or an object behind, until the limit of the machine was reached.


def census() -> Counter[str]:
    gc.collect()
    ours = ("Actor", "Promise", "CancelToken", "TaskContext", "Thread", "Event", "SimpleQueue", "Deadline")
    return Counter(
        name for each in gc.get_objects() if (name := type(each).__name__) in ours or "Running" in name
    )


def test_finished_tasks_leave_neither_thread_nor_object_behind() -> None:
    with Supervisor() as sup:
        sup.add(TaskSpec.once("first", lambda: None)).wait()
        threads, objects = threading.active_count(), census()
        for batch in range(20 * LONG):
            for handle in sup.add_all(TaskSpec.once(f"t{batch}/{n}", lambda: None) for n in range(100)):
                handle.wait()
            assert threading.active_count() == threads, "a task's thread outlives its outcome"
        del handle
        grown = census() - objects
        assert sum(grown.values()) <= 5, grown
        assert sup.tasks() == []


@pytest.mark.parametrize("kind", ["failing", "timed", "slot", "canceled"])
def test_tasks_of_every_kind_leave_nothing_behind(clock: VirtualClock, kind: str) -> None:
    def body(ctx: TaskContext) -> None:
        ctx.on_cancel(lambda: None)
        if kind == "failing":
            raise Fail("no")
        if kind == "canceled":
            ctx.wait()
        ctx.child(3600.0)

    with Supervisor(clock=clock) as sup:
        spec = TaskSpec.once("t", body, timeout=3600.0 if kind == "timed" else None)

        def round() -> None:
            handle = sup.submit(spec, slot="s") if kind == "slot" else sup.add(spec)
            clock.settle()
            handle.cancel()

        for _ in range(5):
            round()
        before = census()
        for _ in range(100):
            round()
        grown = census() - before
        # canceled entries of the heap go once they are half of it, from 64 on
        grown.pop("Deadline", 0)
        assert sum(grown.values()) <= 5, grown


def test_starting_and_stopping_leaves_neither_thread_nor_object_behind() -> None:
    def once() -> None:
        with Supervisor(subscribers=[lambda event: None]) as sup:
            sup.add(TaskSpec.once("t", lambda: None))
            sup.wait()

    once()
    threads, objects = threading.active_count(), census()
    for _ in range(200 * LONG):
        once()
        assert threading.active_count() == threads
    grown = census() - objects
    assert sum(grown.values()) <= 5, grown


# A kept exception holds the frames of its body, and all their locals with them.


class Big:
    """Stands for a megabyte of locals: what counts is whether somebody still holds it."""


@pytest.mark.parametrize(
    "chain", ["plain", "from", "context", "group", "the same object", "caught and kept", "TaskError"]
)
def test_a_backoff_holds_nothing_of_the_attempt_before_it(
    supervisor: Supervisor, clock: VirtualClock, chain: str
) -> None:
    held: list[weakref.ref[Big]] = []
    same = ValueError("again and again")

    def inner() -> None:
        big = Big()
        held.append(weakref.ref(big))
        raise KeyError("inner")

    def body() -> None:
        big = Big()
        held.append(weakref.ref(big))
        if chain == "plain":
            raise ValueError("plain")
        if chain == "the same object":
            raise same
        if chain == "TaskError":
            raise Fail("no")
        try:
            inner()
        except KeyError as error:
            if chain == "from":
                raise ValueError("outer") from error
            if chain == "caught and kept":
                raise same from error
            if chain == "group":
                raise ExceptionGroup("both", [error, ValueError("other")]) from None
            raise ValueError("outer")  # noqa: B904

    gc.disable()  # a cycle counts as held: it lives until a collection, which may be far away
    try:
        supervisor.add(TaskSpec.restartable("t", body, backoff=BackoffPolicy.constant(60.0)))
        clock.advance(150.0)
        assert len(held) >= 3
        assert [ref() for ref in held] == [None] * len(held)
    finally:
        gc.enable()


@pytest.mark.parametrize("last", [Fail, Fatal, ValueError, SystemExit, KeyboardInterrupt])
def test_an_outcome_holds_no_frame_of_the_body(
    supervisor: Supervisor, last: Callable[[str], BaseException]
) -> None:
    held: list[weakref.ref[Big]] = []

    def body() -> None:
        big = Big()
        held.append(weakref.ref(big))
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise last("outer") from error

    outcome = supervisor.add(TaskSpec.once("t", body)).wait()
    supervisor.shutdown()
    assert [ref() for ref in held] == [None]
    seen = outcome.error
    while seen is not None:
        assert seen.__traceback__ is None
        seen = seen.__context__


def test_a_timed_token_that_nobody_holds_is_let_go_before_its_time() -> None:
    parent = CancelToken()
    ref = weakref.ref(parent.child(0.5))
    assert ref() is None


def test_a_timed_token_with_a_callback_is_kept_until_its_time() -> None:
    called = threading.Event()
    CancelToken().child(0.01).on_cancel(called.set)
    gc.collect()
    assert called.wait(20)


def test_an_ended_body_is_let_go_with_what_it_held(supervisor: Supervisor) -> None:
    big = Big()
    ref = weakref.ref(big)
    spec = TaskSpec.once("t", lambda each: None, args=(big,))
    supervisor.add(spec).wait()
    del spec, big
    supervisor.wait()
    gc.collect()
    assert ref() is None


def test_a_subscriber_that_is_closed_is_let_go(supervisor: Supervisor, clock: VirtualClock) -> None:
    class Listener:
        def __call__(self, event: Event) -> None: ...

    listener = Listener()
    ref = weakref.ref(listener)
    supervisor.start()
    subscription = supervisor.subscribe(listener)
    clock.settle()
    subscription.close()
    clock.settle()
    del listener, subscription
    gc.collect()
    assert ref() is None
