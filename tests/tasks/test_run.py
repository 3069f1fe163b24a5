"""`run`: a supervisor in the foreground of a script."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from supervisor import (
    AlreadyRunning,
    GraceExceeded,
    OutcomeKind,
    ShutdownCompleted,
    ShuttingDown,
    Supervisor,
    SupervisorConfig,
    TaskAlreadyExists,
    TaskContext,
    TaskSpec,
)
from supervisor.testing import EventRecorder, VirtualClock

if TYPE_CHECKING:
    from tests.tasks.conftest import Stubborn


def stays(ctx: TaskContext) -> None:
    ctx.wait()


def test_run_blocks_until_every_task_has_ended_and_gives_the_outcomes_in_order(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    def body(seconds: float) -> float:
        clock.sleep(seconds)
        return seconds

    outcomes = supervisor.run([TaskSpec.once(f"t{n}", body, args=(n,)) for n in (3.0, 1.0, 2.0)])
    assert [each.value for each in outcomes] == [3.0, 1.0, 2.0]
    assert clock.monotonic() == 3.0
    assert recorder.kinds()[-1] == "shutdown_completed"
    assert "shutdown_requested" not in recorder.kinds()


def test_run_tells_of_its_end_before_it_returns(supervisor: Supervisor, recorder: EventRecorder) -> None:
    supervisor.run([TaskSpec.once("t", lambda: None)])
    assert len(recorder.of(ShutdownCompleted)) == 1


def test_failed_tasks_are_outcomes_not_exceptions(supervisor: Supervisor) -> None:
    (outcome,) = supervisor.run([TaskSpec.once("t", lambda: 1 / 0)])
    assert outcome.kind is OutcomeKind.FAILED


def test_run_with_nothing_to_run_is_an_empty_list_at_once(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    assert supervisor.run() == []
    assert clock.monotonic() == 0.0


def test_run_waits_for_every_registered_task_but_gives_the_outcomes_of_its_own(
    supervisor: Supervisor, clock: VirtualClock
) -> None:
    supervisor.add(TaskSpec.once("before", clock.sleep, args=(5.0,)))

    def adds() -> None:
        supervisor.add(TaskSpec.once("later", clock.sleep, args=(7.0,)))
        supervisor.submit(TaskSpec.once("slot", clock.sleep, args=(8.0,)))

    outcomes = supervisor.run([TaskSpec.once("t", adds)])
    assert len(outcomes) == 1
    assert clock.monotonic() == 8.0


def test_a_second_run_is_refused(supervisor: Supervisor) -> None:
    supervisor.run([TaskSpec.once("t", lambda: None)])
    with pytest.raises(AlreadyRunning, match="make a new Supervisor"):
        supervisor.run([TaskSpec.once("t", lambda: None)])


def test_a_run_at_the_same_time_is_refused(supervisor: Supervisor, clock: VirtualClock) -> None:
    refused: list[BaseException] = []

    def run_again() -> None:
        clock.sleep(1.0)
        try:
            supervisor.run([])
        except AlreadyRunning as error:
            refused.append(error)

    clock.spawn(run_again, "other")
    supervisor.run([TaskSpec.once("t", clock.sleep, args=(2.0,))])
    assert len(refused) == 1


def test_a_refused_batch_does_not_use_it_up(supervisor: Supervisor) -> None:
    spec = TaskSpec.once("t", lambda: 1)
    with pytest.raises(TaskAlreadyExists):
        supervisor.run([spec, spec])
    assert [each.value for each in supervisor.run([spec])] == [1]


def test_after_a_shutdown_run_refuses_tasks(supervisor: Supervisor) -> None:
    supervisor.start()
    supervisor.shutdown()
    with pytest.raises(ShuttingDown):
        supervisor.run([TaskSpec.once("t", lambda: None)])


def test_run_without_tasks_joins_a_shutdown(supervisor: Supervisor, clock: VirtualClock) -> None:
    def lingers(ctx: TaskContext) -> None:
        ctx.wait()
        clock.sleep(3.0)

    supervisor.add(TaskSpec.once("t", lingers))
    clock.settle()
    supervisor.request_shutdown()
    assert supervisor.run() == []
    assert clock.monotonic() == 3.0


def test_run_ends_when_somebody_shuts_down_and_shares_the_operation(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    def ends_it() -> None:
        clock.sleep(4.0)
        supervisor.shutdown()

    thread = clock.spawn(ends_it, "other")
    outcomes = supervisor.run([TaskSpec.once("t", stays)])
    thread.join()
    assert clock.monotonic() == 4.0
    assert [each.kind for each in outcomes] == [OutcomeKind.CANCELED]
    kinds = recorder.kinds()
    assert [kinds.count("shutdown_requested"), kinds.count("shutdown_completed")] == [1, 1]


def test_a_task_may_end_the_run(supervisor: Supervisor, recorder: EventRecorder) -> None:
    outcomes = supervisor.run(
        [TaskSpec.once("stays", stays), TaskSpec.once("ends", supervisor.request_shutdown)]
    )
    assert outcomes[0].kind is OutcomeKind.CANCELED
    assert recorder.kinds().count("shutdown_requested") == 1


def test_run_raises_graceexceeded_when_something_is_stuck(
    make_supervisor: Callable[..., Supervisor], clock: VirtualClock, stubborn: Stubborn
) -> None:
    supervisor = make_supervisor(grace=2.0)
    with pytest.raises(GraceExceeded) as caught:
        supervisor.run([TaskSpec.once("stuck", stubborn), TaskSpec.once("ends", supervisor.request_shutdown)])
    assert [each.name for each in caught.value.stuck] == ["stuck"]
    assert clock.monotonic() == 2.0


def test_a_stop_event_that_is_set_ends_the_run(supervisor: Supervisor, recorder: EventRecorder) -> None:
    stop = threading.Event()

    def sets(ctx: TaskContext) -> None:
        ctx.wait(3.0)
        stop.set()

    outcomes = supervisor.run([TaskSpec.once("stays", stays), TaskSpec.once("sets", sets)], stop=stop)
    assert [each.kind for each in outcomes] == [OutcomeKind.CANCELED, OutcomeKind.COMPLETED]
    assert recorder.kinds().count("shutdown_requested") == 1


def test_a_stop_event_that_was_set_before_stops_what_it_adds(supervisor: Supervisor) -> None:
    stop = threading.Event()
    stop.set()
    (outcome,) = supervisor.run([TaskSpec.once("t", stays)], stop=stop)
    assert outcome.kind is OutcomeKind.CANCELED


def test_run_ends_by_itself_although_it_has_a_stop_event(supervisor: Supervisor, clock: VirtualClock) -> None:
    (outcome,) = supervisor.run([TaskSpec.once("t", clock.sleep, args=(2.0,))], stop=threading.Event())
    assert outcome.ok
    assert clock.monotonic() == 2.0


def test_what_is_no_event_is_refused_as_stop(supervisor: Supervisor) -> None:
    with pytest.raises(TypeError, match="stop must be an Event"):
        supervisor.run([], stop=True)  # type: ignore[arg-type]


# Signals, on the clock of the machine


@pytest.fixture
def handlers() -> dict[int, object]:
    return {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_gracefully_and_the_handlers_are_put_back(
    number: signal.Signals, handlers: dict[int, object]
) -> None:
    def kills(ctx: TaskContext) -> None:
        os.kill(os.getpid(), number)
        ctx.wait()

    recorder = EventRecorder()
    supervisor = Supervisor(subscribers=[recorder])
    (outcome,) = supervisor.run([TaskSpec.once("t", kills)])
    assert outcome.kind is OutcomeKind.CANCELED
    assert supervisor.received_signal == number
    assert recorder.kinds().count("shutdown_requested") == 1
    assert {each: signal.getsignal(each) for each in handlers} == handlers


def test_a_second_signal_ends_the_grace_at_once(handlers: dict[int, object]) -> None:
    released = threading.Event()

    def kills_twice(ctx: TaskContext) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        ctx.wait()
        os.kill(os.getpid(), signal.SIGINT)
        released.wait()

    supervisor = Supervisor(SupervisorConfig(grace=3600.0))
    with pytest.raises(GraceExceeded):
        supervisor.run([TaskSpec.once("t", kills_twice)])
    released.set()
    assert supervisor.received_signal == signal.SIGTERM
    assert {each: signal.getsignal(each) for each in handlers} == handlers


@pytest.mark.parametrize("signals", [True, False])
def test_handlers_are_touched_only_in_the_main_thread_and_on_request(
    handlers: dict[int, object], signals: bool
) -> None:
    seen: list[dict[int, object]] = []

    def body() -> None:
        seen.append({each: signal.getsignal(each) for each in handlers})

    specs = [TaskSpec.once("t", body)]
    if signals:
        thread = threading.Thread(target=lambda: Supervisor().run(specs))
        thread.start()
        thread.join()
    else:
        Supervisor().run(specs, signals=False)
    assert seen == [handlers]


def test_the_handlers_are_put_back_when_run_raises(handlers: dict[int, object]) -> None:
    class Broken:
        def is_set(self) -> bool:
            raise ValueError("no flag")

    supervisor = Supervisor()
    with pytest.raises(ValueError, match="no flag"):
        supervisor.run([TaskSpec.once("t", stays)], stop=Broken())
    assert {each: signal.getsignal(each) for each in handlers} == handlers
    assert supervisor.tasks() == []
