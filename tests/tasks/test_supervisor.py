"""The supervisor itself: starting, its threads, context variables, what happens when it dies."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from supervisor import (
    OutcomeKind,
    OutcomeUnavailable,
    Supervisor,
    SupervisorConfig,
    TaskContext,
    TaskDefaults,
    TaskSpec,
)
from supervisor.testing import EventRecorder, VirtualClock


def stays(ctx: TaskContext) -> None:
    ctx.wait()


def test_building_starts_nothing(clock: VirtualClock) -> None:
    before = threading.enumerate()
    supervisor = Supervisor(clock=clock, subscribers=[EventRecorder()])
    supervisor.subscribe(print, dedicated=True)
    supervisor.events()
    supervisor.once(stays)
    assert threading.enumerate() == before


def test_start_may_be_called_again_and_gives_the_supervisor(supervisor: Supervisor) -> None:
    threads = threading.active_count()
    assert supervisor.start() is supervisor
    assert supervisor.start() is supervisor
    assert threading.active_count() == threads + 2


@pytest.mark.parametrize("seed", range(10))
def test_threads_that_start_it_at_once_start_it_once(seed: int) -> None:
    clock = VirtualClock(seed)
    supervisor = Supervisor(clock=clock)
    runs: list[int] = []
    supervisor.once(name="declared")(lambda: runs.append(1))
    threads = [clock.spawn(lambda: supervisor.start() and None, f"starter {n}") for n in range(4)]
    for thread in threads:
        thread.join()
    assert [each.name for each in threading.enumerate()].count("supervisor") == 1
    supervisor.wait()
    supervisor.shutdown()
    assert runs == [1]


@pytest.mark.parametrize(
    "begin",
    [
        lambda s: s.add(TaskSpec.once("t", stays)),
        lambda s: s.add_all([TaskSpec.once("t", stays)]),
        lambda s: s.submit(TaskSpec.once("t", stays)),
    ],
    ids=["add", "add_all", "submit"],
)
def test_the_first_task_starts_it(
    supervisor: Supervisor, clock: VirtualClock, begin: Callable[[Supervisor], object]
) -> None:
    begin(supervisor)
    clock.settle()
    assert [info.state for info in supervisor.tasks()] == ["running"]


def test_the_settings_are_those_that_were_given(clock: VirtualClock) -> None:
    config, defaults = SupervisorConfig(name="n"), TaskDefaults(timeout=3.0)
    supervisor = Supervisor(config, defaults=defaults, clock=clock)
    assert supervisor.config is config
    assert supervisor.defaults is defaults
    with supervisor:
        outcome = supervisor.add(TaskSpec.once("t", stays)).wait()
    assert outcome.kind is OutcomeKind.FAILED
    assert clock.monotonic() == 3.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"config": 3}, "config must be a SupervisorConfig"),
        ({"defaults": {}}, "defaults must be TaskDefaults"),
        ({"rng": 3}, r"rng must have a method random\(\)"),
        ({"subscribers": [3]}, "a subscriber must be callable"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Supervisor(**settings)


# Threads


def test_every_thread_has_a_name_that_tells_and_is_a_daemon(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock
) -> None:
    before = set(threading.enumerate())
    supervisor = make_supervisor(name="shop")
    supervisor.subscribe(print, kinds=[], name="slack", dedicated=True)
    supervisor.add(TaskSpec.once("orders", stays))
    supervisor.submit(TaskSpec.once("stock", stays), slot="s")
    clock.settle()
    new = set(threading.enumerate()) - before
    assert {thread.name for thread in new} == {
        "shop",
        "shop:events",
        "shop:slack",
        "shop:orders",
        "shop:stock",
    }
    assert all(thread.daemon for thread in new)


def test_all_attempts_of_a_task_run_on_one_thread(supervisor: Supervisor) -> None:
    threads: list[threading.Thread] = []

    def body(ctx: TaskContext) -> None:
        threads.append(threading.current_thread())
        if ctx.attempt < 5:
            raise ValueError("again")

    supervisor.add(TaskSpec.restartable("t", body, backoff=None)).wait()
    assert len(threads) == 5
    assert len(set(threads)) == 1
    assert threads[0].name == "supervisor:t"


def test_on_the_machine_threads_are_named_daemons_and_gone_after_the_shutdown() -> None:
    seen: list[tuple[str, bool, str]] = []

    def body() -> None:
        thread = threading.current_thread()
        comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        seen.append((thread.name, thread.daemon, comm.read_text().strip() if comm.exists() else ""))

    before = set(threading.enumerate())
    with Supervisor(SupervisorConfig(name="shop")) as supervisor:
        supervisor.add(TaskSpec.once("orders", body)).wait(10)
        assert all(thread.daemon for thread in set(threading.enumerate()) - before)
    assert set(threading.enumerate()) == before
    linux = sys.platform == "linux"
    assert seen == [("shop:orders", True, "shop:orders" if linux else seen[0][2])]


def test_a_supervisor_that_was_shut_down_is_forgotten(clock: VirtualClock) -> None:
    with Supervisor(clock=clock) as supervisor:
        supervisor.add(TaskSpec.once("t", lambda: None)).wait()
    gone = weakref.ref(supervisor)
    del supervisor
    gc.collect()
    assert gone() is None


# Context variables

REQUEST: ContextVar[str] = ContextVar("request", default="none")


def test_the_body_sees_the_context_variables_of_who_added_it(supervisor: Supervisor) -> None:
    REQUEST.set("one")
    first = supervisor.add(TaskSpec.once("first", REQUEST.get))
    REQUEST.set("two")
    (second,) = supervisor.add_all([TaskSpec.once("second", REQUEST.get)])
    third = supervisor.submit(TaskSpec.once("third", REQUEST.get))
    REQUEST.set("three")
    assert [each.wait().value for each in (first, second, third)] == ["one", "two", "two"]


def test_what_a_body_sets_is_seen_by_nobody_else_not_even_its_next_attempt(supervisor: Supervisor) -> None:
    REQUEST.set("mine")
    seen: list[str] = []

    def body(ctx: TaskContext) -> None:
        seen.append(REQUEST.get())
        REQUEST.set(f"attempt {ctx.attempt}")
        if ctx.attempt < 3:
            raise ValueError("again")

    supervisor.add(TaskSpec.restartable("t", body, backoff=None)).wait()
    assert seen == ["mine"] * 3
    assert REQUEST.get() == "mine"


# A supervising thread that dies


def test_when_the_supervising_thread_dies_nobody_waits_for_ever() -> None:
    class Mortal(VirtualClock):
        dies = False

        def monotonic(self) -> float:
            if self.dies and threading.current_thread().name == "supervisor":
                raise SystemExit
            return super().monotonic()

    clock = Mortal()
    supervisor = Supervisor(clock=clock)
    latch = clock.latch()
    handle = supervisor.add(TaskSpec.once("t", lambda: latch.wait()))
    queued = supervisor.submit(TaskSpec.once("queued", stays))
    clock.settle()
    clock.dies = True
    with pytest.raises(AssertionError, match="thread 'supervisor' ended with SystemExit"):
        supervisor.cancel("t")
    for each in (handle, queued):
        with pytest.raises(OutcomeUnavailable, match="is gone without one"):
            each.wait()
        assert each.done() is False
        assert each.outcome is None
    assert supervisor.wait() is True
    supervisor.shutdown()
    latch.open()
    clock.settle()


def test_repr_says_what_it_does(supervisor: Supervisor) -> None:
    assert repr(supervisor) == "<Supervisor 'supervisor' new, 0 tasks>"
    handle = supervisor.add(TaskSpec.once("t", stays))
    assert repr(supervisor) == "<Supervisor 'supervisor' running, 1 tasks>"
    assert repr(handle) == f"<TaskHandle 't' #{handle.id}>"
    supervisor.shutdown()
    assert repr(supervisor) == "<Supervisor 'supervisor' shutting down, 0 tasks>"
