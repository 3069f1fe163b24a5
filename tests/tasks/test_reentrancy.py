"""Calls from inside: what would wait for itself raises, everything else works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from supervisor import (
    Event,
    ReentrantCall,
    Supervisor,
    TaskContext,
    TaskSpec,
)
from supervisor.testing import VirtualClock

WOULD_WAIT: dict[str, tuple[Callable[[Supervisor], object], str]] = {
    "shutdown": (lambda sup: sup.shutdown(), r"use request_shutdown\(\)"),
    "wait": (lambda sup: sup.wait(), "subscribe"),
    "run": (lambda sup: sup.run([]), r"use add_all\(\)"),
    "leaving with": (lambda sup: sup.__exit__(None), r"use request_shutdown\(\)"),
}
OWN: dict[str, tuple[Callable[[Supervisor], object], str]] = {
    "cancel by name": (lambda sup: sup.cancel("t"), r"use remove\(\)"),
    "cancel with a timeout": (lambda sup: sup.cancel("t", timeout=1.0), r"use remove\(\)"),
    "handle.cancel": (lambda sup: own(sup).cancel(), r"use remove\(\)"),
    "handle.wait": (lambda sup: own(sup).wait(), "return from the body"),
    "handle.wait with a timeout": (lambda sup: own(sup).wait(1.0), "return from the body"),
}


def stays(ctx: TaskContext) -> None:
    ctx.wait()


def own(supervisor: Supervisor) -> Any:
    handle = supervisor.get("t")
    assert handle is not None
    return handle


@pytest.mark.parametrize("call", [*WOULD_WAIT, *OWN])
def test_a_body_that_would_wait_for_itself_gets_an_error_that_says_what_to_do(
    supervisor: Supervisor, clock: VirtualClock, call: str
) -> None:
    function, cure = (WOULD_WAIT | OWN)[call]
    error = supervisor.add(TaskSpec.once("t", lambda: function(supervisor))).wait(5.0).error
    assert isinstance(error, ReentrantCall)
    with pytest.raises(ReentrantCall, match=rf"inside the body of task 't' would wait for itself; .*{cure}"):
        raise error
    assert clock.monotonic() == 0.0


@pytest.mark.parametrize("dedicated", [False, True])
@pytest.mark.parametrize("call", WOULD_WAIT)
def test_a_subscriber_that_would_wait_for_itself_gets_an_error_that_says_what_to_do(
    supervisor: Supervisor, clock: VirtualClock, call: str, dedicated: bool
) -> None:
    function, cure = WOULD_WAIT[call]
    errors: list[BaseException] = []

    def callback(event: Event) -> None:
        try:
            function(supervisor)
        except BaseException as error:
            errors.append(error)

    supervisor.subscribe(callback, kinds=["task_added"], dedicated=dedicated)
    supervisor.add(TaskSpec.once("t", lambda: None)).wait()
    (error,) = errors
    assert isinstance(error, ReentrantCall)
    with pytest.raises(ReentrantCall, match=rf"inside a subscriber would wait for itself; .*{cure}"):
        raise error


def everything_else(supervisor: Supervisor) -> list[object]:
    other = supervisor.add(TaskSpec.once("other", stays))
    batch = supervisor.add_all([TaskSpec.once("batch", stays)])
    slot = supervisor.submit(TaskSpec.once("slot", stays))
    supervisor.once(name="declared")(lambda: None)
    with supervisor.subscribe(lambda _: None), supervisor.events():
        pass
    return [
        supervisor.start() is supervisor,
        supervisor.get("other") == other,
        {"other", "batch", "slot"} <= {info.name for info in supervisor.tasks()},
        other.remove(),
        other.wait().ok or True,
        supervisor.cancel(batch[0]),
        slot.cancel(),
        slot.done(),
        supervisor.request_shutdown() is None,
    ]


def test_everything_else_works_in_a_body(supervisor: Supervisor) -> None:
    outcome = supervisor.add(TaskSpec.once("t", lambda: everything_else(supervisor))).wait()
    assert outcome.error is None
    assert outcome.attempts == 1


@pytest.mark.parametrize("dedicated", [False, True])
def test_everything_else_works_in_a_subscriber(supervisor: Supervisor, dedicated: bool) -> None:
    results: list[object] = []
    supervisor.subscribe(
        lambda event: event.task == "t" and results.extend(everything_else(supervisor)),
        kinds=["task_added"],
        dedicated=dedicated,
    )
    supervisor.add(TaskSpec.once("t", lambda: None)).wait()
    supervisor.wait()
    assert results == [True] * 9


def test_a_body_may_remove_itself(supervisor: Supervisor, clock: VirtualClock) -> None:
    def body(ctx: TaskContext) -> None:
        assert supervisor.remove("t") is True
        assert ctx.canceled
        ctx.sleep(60.0)

    assert supervisor.add(TaskSpec.once("t", body)).wait().kind == "canceled"
    assert clock.monotonic() == 0.0


def test_a_body_may_wait_for_other_tasks_and_for_its_own_outcome_once_that_is_there(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    other = supervisor.add(TaskSpec.once("other", clock.sleep, args=(2.0,)))
    assert supervisor.add(TaskSpec.once("t", lambda: other.wait().ok)).wait().value is True


def test_a_body_may_shut_down_another_supervisor(
    make_supervisor: Callable[..., Supervisor],
) -> None:
    one, other = make_supervisor(name="one"), make_supervisor(name="other")
    other.add(TaskSpec.once("t", stays))
    assert one.add(TaskSpec.once("t", other.shutdown)).wait().ok


def test_a_thread_that_a_body_started_may_wait(supervisor: Supervisor, clock: VirtualClock) -> None:
    results: list[bool] = []

    def body(ctx: TaskContext) -> None:
        clock.spawn(lambda: results.append(supervisor.cancel("t")), "helper")
        ctx.wait()

    supervisor.add(TaskSpec.once("t", body)).wait()
    clock.settle()
    assert results == [True]
