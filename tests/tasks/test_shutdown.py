"""One shutdown for all who ask: close, cancel, grace, force-abort, drain, one result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from supervisor import (
    CancelReason,
    Event,
    GraceExceeded,
    GraceExceededEvent,
    OutcomeKind,
    ShuttingDown,
    StuckTask,
    Supervisor,
    SupervisorConfig,
    TaskCancelRequested,
    TaskContext,
    TaskHandle,
    TaskRemoved,
    TaskSpec,
)
from supervisor.testing import EventRecorder, VirtualClock

if TYPE_CHECKING:
    from tests.tasks.conftest import Stubborn


def stays(ctx: TaskContext) -> None:
    ctx.wait()


def lingering(clock: VirtualClock, seconds: float) -> Callable[[TaskContext], None]:
    def lingers(ctx: TaskContext) -> None:
        ctx.wait()
        clock.sleep(seconds)

    return lingers


def test_shutdown_asks_every_task_to_stop_and_waits_for_all(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    handles = [supervisor.add(TaskSpec.once(f"t{n}", lingering(clock, float(n)))) for n in range(3)]
    clock.settle()
    supervisor.shutdown()
    assert clock.monotonic() == 2.0
    assert [each.wait().kind for each in handles] == [OutcomeKind.CANCELED] * 3
    assert [event.reason for event in recorder.of(TaskCancelRequested)] == [CancelReason.SHUTDOWN] * 3
    kinds = recorder.kinds()
    assert kinds[-1] == "shutdown_completed"
    assert kinds.count("shutdown_requested") == 1
    assert kinds.index("shutdown_requested") < kinds.index("task_cancel_requested")
    assert len(recorder.of(TaskRemoved)) == 3
    assert "grace_exceeded" not in kinds


def test_shutdown_of_a_supervisor_without_tasks_is_told_too(
    supervisor: Supervisor, recorder: EventRecorder
) -> None:
    supervisor.start()
    supervisor.shutdown()
    assert recorder.kinds() == ["shutdown_requested", "shutdown_completed"]


def test_shutdown_of_a_supervisor_that_never_started_ends_it_all_the_same(clock: VirtualClock) -> None:
    supervisor = Supervisor(clock=clock)
    events = supervisor.events()
    supervisor.shutdown()
    assert list(events) == []
    with pytest.raises(ShuttingDown):
        supervisor.start()


@pytest.mark.parametrize("asked", ["shutdown", "request_shutdown"])
def test_after_a_shutdown_nothing_comes_in_and_nothing_is_found(supervisor: Supervisor, asked: str) -> None:
    handle = supervisor.add(TaskSpec.once("t", stays))
    getattr(supervisor, asked)()
    spec = TaskSpec.once("u", stays)
    for refused in (
        supervisor.start,
        lambda: supervisor.add(spec),
        lambda: supervisor.add_all([spec]),
        lambda: supervisor.submit(spec),
        lambda: supervisor.run([spec]),
        lambda: supervisor.once(lambda: None),
    ):
        with pytest.raises(ShuttingDown, match="make a new one"):
            refused()
    supervisor.shutdown()
    assert supervisor.tasks() == []
    assert supervisor.get("t") is None
    assert supervisor.remove("t") is False
    assert supervisor.cancel(handle) is False
    assert supervisor.wait() is True
    assert list(supervisor.events()) == []
    assert handle.wait().kind is OutcomeKind.CANCELED


@pytest.mark.parametrize("seed", range(10))
def test_all_who_shut_down_wait_for_one_operation_and_get_one_result(
    seed: int,
) -> None:
    clock, recorder = VirtualClock(seed), EventRecorder()
    supervisor = Supervisor(clock=clock, subscribers=[recorder])
    supervisor.add(TaskSpec.once("t", lingering(clock, 3.0)))
    clock.settle()
    returned: list[float] = []

    def shut_down() -> None:
        supervisor.shutdown()
        returned.append(clock.monotonic())

    for thread in [clock.spawn(shut_down, f"caller {n}") for n in range(4)]:
        thread.join()
    supervisor.shutdown()
    assert returned == [3.0] * 4
    kinds = recorder.kinds()
    assert [kinds.count(kind) for kind in ("shutdown_requested", "shutdown_completed", "task_removed")] == [
        1,
        1,
        1,
    ]


def test_the_grace_is_one_deadline_for_all_and_everybody_gets_the_same_stuck_tasks(
    make_supervisor: Callable[..., Supervisor],
    clock: VirtualClock,
    recorder: EventRecorder,
    stubborn: Stubborn,
) -> None:
    supervisor = make_supervisor(grace=5.0)
    handles = [supervisor.add(TaskSpec.once(name, stubborn)) for name in ("x", "y")]
    supervisor.add(TaskSpec.once("good", stays))
    clock.settle()
    caught: list[tuple[float, GraceExceeded]] = []

    def shut_down() -> None:
        try:
            supervisor.shutdown()
        except GraceExceeded as error:
            caught.append((clock.monotonic(), error))

    threads = [clock.spawn(shut_down, f"caller {n}") for n in range(2)]
    for thread in threads:
        thread.join()
    clock.advance(100.0)
    shut_down()
    assert [at for at, _ in caught] == [5.0, 5.0, 105.0]
    stuck = caught[0][1].stuck
    assert all(error.stuck is stuck for _, error in caught)
    assert [(each.name, each.id) for each in stuck] == [(each.name, each.id) for each in handles]
    assert all(isinstance(each, StuckTask) and "self._latch.wait()" in each.stack for each in stuck)
    assert str(caught[0][1]).startswith("2 tasks did not stop within 5 s")
    assert [each.wait().kind for each in handles] == [OutcomeKind.FORCE_ABORTED] * 2
    assert recorder.kinds()[-2:] == ["grace_exceeded", "shutdown_completed"]
    (event,) = recorder.of(GraceExceededEvent)
    assert event.stuck == stuck
    assert event.to_dict()["stuck"] == [
        {"name": each.name, "id": each.id, "stack": each.stack} for each in stuck
    ]


@pytest.mark.parametrize("config", [1.0, 100.0])
@pytest.mark.parametrize("grace", [0, 4.0, timedelta(seconds=4)], ids=["zero", "float", "timedelta"])
def test_the_grace_of_the_call_counts_not_that_of_the_config(
    make_supervisor: Callable[..., Supervisor],
    clock: VirtualClock,
    stubborn: Stubborn,
    config: float,
    grace: float | timedelta,
) -> None:
    supervisor = make_supervisor(grace=config)
    handle = supervisor.add(TaskSpec.once("z", stubborn))
    clock.settle()
    with pytest.raises(GraceExceeded) as caught:
        supervisor.shutdown(grace)
    assert [each.name for each in caught.value.stuck] == ["z"]
    assert clock.monotonic() == (4.0 if grace else 0.0)
    assert handle.wait().kind is OutcomeKind.FORCE_ABORTED


def test_a_task_that_stops_within_the_grace_of_the_call_is_not_given_up_by_that_of_the_config(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock
) -> None:
    supervisor = make_supervisor(grace=1.0)
    handle = supervisor.add(TaskSpec.once("t", lingering(clock, 3.0)))
    clock.settle()
    supervisor.shutdown(grace=10.0)
    assert clock.monotonic() == 3.0
    assert handle.wait().kind is OutcomeKind.CANCELED


def test_a_task_removed_before_shares_the_deadline_of_the_shutdown(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock, stubborn: Stubborn
) -> None:
    supervisor = make_supervisor(grace=10.0)
    supervisor.add(TaskSpec.once("t", stubborn))
    clock.settle()
    supervisor.remove("t")
    clock.advance(1.0)
    with pytest.raises(GraceExceeded):
        supervisor.shutdown(grace=2.0)
    assert clock.monotonic() == 3.0


def test_a_second_caller_may_shorten_the_grace(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock, stubborn: Stubborn
) -> None:
    supervisor = make_supervisor(grace=60.0)
    supervisor.add(TaskSpec.once("t", stubborn))
    clock.settle()
    supervisor.request_shutdown()
    clock.advance(1.0)
    with pytest.raises(GraceExceeded):
        supervisor.shutdown(grace=1.0)
    assert clock.monotonic() == 2.0


@pytest.mark.parametrize(
    ("state", "spec"),
    [
        ("backoff", TaskSpec.restartable("t", lambda: 1 / 0)),
        ("idle", TaskSpec.periodic("t", lambda: None, 60.0)),
        ("running", TaskSpec.once("t", stays)),
    ],
)
def test_a_shutdown_ends_every_wait_at_once(
    supervisor: Supervisor, clock: VirtualClock, state: str, spec: TaskSpec
) -> None:
    handle = supervisor.add(spec)
    clock.settle()
    assert handle.info().state == state
    supervisor.shutdown()
    assert clock.monotonic() == 0.0
    assert handle.wait().kind is OutcomeKind.CANCELED


def test_request_shutdown_returns_at_once_and_works_from_a_body_and_a_subscriber(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock
) -> None:
    from_body = make_supervisor(name="one")

    def body(ctx: TaskContext) -> bool:
        from_body.request_shutdown()
        return ctx.wait(60.0)

    assert from_body.add(TaskSpec.once("t", body)).wait().kind is OutcomeKind.CANCELED
    from_body.shutdown()

    from_subscriber = make_supervisor(name="two")
    from_subscriber.subscribe(lambda _: from_subscriber.request_shutdown(), kinds=["attempt_starting"])
    assert from_subscriber.add(TaskSpec.once("t", stays)).wait().kind is OutcomeKind.CANCELED
    from_subscriber.shutdown()
    assert clock.monotonic() == 0.0


def test_shutdown_may_be_called_from_another_thread_than_start(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    handle = supervisor.add(TaskSpec.once("t", stays))
    clock.spawn(supervisor.shutdown, "other").join()
    assert handle.wait().kind is OutcomeKind.CANCELED


# Leaving `with`


def test_leaving_with_shuts_down(clock: VirtualClock) -> None:
    with Supervisor(clock=clock) as supervisor:
        handle = supervisor.add(TaskSpec.once("t", stays))
    assert handle.wait().kind is OutcomeKind.CANCELED
    with pytest.raises(ShuttingDown):
        supervisor.add(TaskSpec.once("t", stays))


def leave(
    clock: VirtualClock, stubborn: Stubborn, error: BaseException | None, seen: list[TaskHandle]
) -> None:
    with Supervisor(SupervisorConfig(grace=2.0), clock=clock) as supervisor:
        seen.append(supervisor.add(TaskSpec.once("t", stubborn)))
        clock.settle()
        if error is not None:
            raise error


def test_a_clean_exit_raises_graceexceeded(clock: VirtualClock, stubborn: Stubborn) -> None:
    with pytest.raises(GraceExceeded, match="1 task did not stop within 2 s"):
        leave(clock, stubborn, None, [])
    assert clock.monotonic() == 2.0


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_exception_in_flight_is_never_hidden(
    clock: VirtualClock, stubborn: Stubborn, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    handles: list[TaskHandle] = []
    with caplog.at_level(logging.ERROR, "supervisor"), pytest.raises(type(error)) as caught:
        leave(clock, stubborn, error, handles)
    assert caught.value is error
    assert handles[0].wait().kind is OutcomeKind.FORCE_ABORTED
    assert "1 task did not stop within 2 s" in caplog.text


# Draining subscribers


@pytest.mark.parametrize("dedicated", [False, True])
def test_shutdown_delivers_what_is_queued_within_drain_timeout(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock, dedicated: bool
) -> None:
    supervisor = make_supervisor(drain_timeout=10.0)
    heard: list[str] = []

    def slow(event: Event) -> None:
        clock.sleep(1.0)
        heard.append(event.kind)

    supervisor.subscribe(slow, dedicated=dedicated)
    supervisor.add(TaskSpec.once("t", lambda: None))
    supervisor.shutdown()
    assert heard[-1] == "shutdown_completed"
    assert clock.monotonic() == len(heard) <= 10.0


def test_a_subscriber_that_blocks_holds_up_a_shutdown_for_drain_timeout_and_no_longer(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = make_supervisor(drain_timeout=3.0)
    latch = clock.latch()
    heard: list[str] = []

    def blocks(event: Event) -> None:
        heard.append(event.kind)
        latch.wait()

    for _ in range(3):
        supervisor.subscribe(blocks, dedicated=True)
    handle = supervisor.add(TaskSpec.once("t", lambda: 1))
    assert handle.wait().ok
    supervisor.shutdown()
    assert clock.monotonic() == 3.0
    assert "subscribers took longer than 3 s" in caplog.text
    latch.open()
    clock.settle()
    assert heard == ["task_added"] * 3


def test_a_run_that_ends_by_itself_waits_for_a_blocked_subscriber_no_longer_either(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock
) -> None:
    supervisor = make_supervisor(drain_timeout=3.0)
    latch = clock.latch()
    supervisor.subscribe(lambda _: latch.wait())
    (outcome,) = supervisor.run([TaskSpec.once("t", lambda: 1)])
    assert outcome.ok
    assert clock.monotonic() == 3.0
    latch.open()
    clock.settle()


def test_an_on_cancel_callback_that_blocks_holds_up_neither_the_others_nor_the_end(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock
) -> None:
    supervisor = make_supervisor(drain_timeout=3.0)
    latch = clock.latch()
    called: list[str] = []

    def body(ctx: TaskContext) -> None:
        ctx.on_cancel(lambda: called.append(ctx.name) or latch.wait())
        ctx.wait()

    handles = supervisor.add_all(TaskSpec.once(name, body) for name in ("a", "b"))
    clock.settle()
    supervisor.shutdown()
    assert clock.monotonic() == 3.0
    assert called == ["a", "b"]
    assert [each.wait().kind for each in handles] == [OutcomeKind.CANCELED] * 2
    latch.open()
    clock.settle()


def test_the_drain_does_not_change_the_result_of_the_shutdown(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock, stubborn: Stubborn
) -> None:
    supervisor = make_supervisor(drain_timeout=3.0, grace=2.0)
    latch = clock.latch()
    supervisor.subscribe(lambda _: latch.wait())
    supervisor.add(TaskSpec.once("t", stubborn))
    clock.settle()
    with pytest.raises(GraceExceeded):
        supervisor.shutdown()
    assert clock.monotonic() == 5.0
    latch.open()


def test_two_hundred_tasks_stop_together(supervisor: Supervisor, clock: VirtualClock) -> None:
    handles = supervisor.add_all(TaskSpec.once(f"t{n}", stays) for n in range(200))
    clock.settle()
    supervisor.shutdown()
    assert clock.monotonic() == 0.0
    assert all(each.wait().kind is OutcomeKind.CANCELED for each in handles)
