"""What a task goes through: names, order of events, ends that are told, waits that can be cut."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from supervisor import (
    Admission,
    BackoffPolicy,
    Canceled,
    Event,
    Fail,
    Fatal,
    Jitter,
    OutcomeKind,
    Supervisor,
    SupervisorConfig,
    TaskAlreadyExists,
    TaskContext,
    TaskFinished,
    TaskHandle,
    TaskSpec,
    Timeout,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.naming import without_address

MINUTE = BackoffPolicy.constant(60.0)


def fails() -> None:
    raise Fail("no")


def parks(ctx: TaskContext) -> None:
    ctx.wait()


# A pause that is a plain sleep holds up the shutdown for its whole length.


@pytest.mark.parametrize(
    "spec",
    [
        TaskSpec.restartable("backoff", fails, backoff=MINUTE),
        TaskSpec.periodic("interval", lambda: None, 3600.0),
        TaskSpec.once("body", lambda ctx: ctx.wait(86400.0)),
        TaskSpec.once("endless", parks),
        TaskSpec.once("sleep", lambda ctx: ctx.sleep(86400.0)),
        TaskSpec.once("child", lambda ctx: ctx.child(86400.0).wait()),
        TaskSpec.restartable("deadline", parks, timeout=86400.0, backoff=MINUTE),
    ],
    ids=lambda spec: spec.name,
)
@pytest.mark.parametrize("stop", ["shutdown", "cancel", "remove"])
def test_no_wait_delays_a_stop(clock: VirtualClock, spec: TaskSpec, stop: str) -> None:
    sup = Supervisor(clock=clock)
    handle = sup.add(spec)
    clock.advance(1.0)
    if stop == "remove":
        assert handle.remove()
        handle.wait()
    elif stop == "cancel":
        assert handle.cancel()
    else:
        sup.shutdown()
    assert clock.monotonic() == 1.0
    assert handle.wait().kind in (OutcomeKind.CANCELED, OutcomeKind.FAILED)
    sup.shutdown()


@pytest.mark.parametrize("line", ["permit", "slot"])
def test_no_queue_delays_a_stop(clock: VirtualClock, line: str) -> None:
    sup = Supervisor(SupervisorConfig(max_concurrent=1), clock=clock)
    sup.submit(TaskSpec.once("first", parks), slot="s")
    clock.settle()
    if line == "permit":
        waiting = sup.add(TaskSpec.once("second", parks))
    else:
        waiting = sup.submit(TaskSpec.once("second", parks), slot="s", admission=Admission.QUEUE)
    clock.settle()
    assert waiting.cancel()
    assert waiting.wait().kind is OutcomeKind.CANCELED
    sup.shutdown()
    assert clock.monotonic() == 0.0


# Two jobs with one id were accepted, and the conflict came up far from its cause.


@pytest.mark.parametrize(
    "first",
    [
        TaskSpec.once("a", parks),
        TaskSpec.restartable("a", fails, backoff=MINUTE),
        TaskSpec.periodic("a", lambda: None, 60.0),
    ],
    ids=["running", "backing off", "between runs"],
)
def test_a_name_in_use_is_refused_at_once_and_the_first_goes_on(
    supervisor: Supervisor, clock: VirtualClock, first: TaskSpec
) -> None:
    handle = supervisor.add(first)
    clock.settle()
    with pytest.raises(TaskAlreadyExists, match="'a'"):
        supervisor.add(TaskSpec.once("a", lambda: None))
    assert [task.id for task in supervisor.tasks()] == [handle.id]
    assert not handle.done()


@pytest.mark.parametrize("ends", [lambda: None, fails], ids=["completed", "failed"])
def test_a_name_is_free_as_soon_as_the_outcome_is_there(
    supervisor: Supervisor, ends: Callable[[], None]
) -> None:
    for _ in range(5):
        supervisor.add(TaskSpec.once("a", ends)).wait()


def test_of_many_threads_that_add_one_name_exactly_one_wins() -> None:
    """On the real clock: nothing but the lock of the registry decides."""
    for _ in range(5):
        won: list[TaskHandle] = []
        refused: list[TaskAlreadyExists] = []
        gate = threading.Barrier(16)

        def add(
            sup: Supervisor, gate: threading.Barrier, won: list[TaskHandle], refused: list[TaskAlreadyExists]
        ) -> None:
            gate.wait()
            try:
                won.append(sup.add(TaskSpec.once("a", parks)))
            except TaskAlreadyExists as error:
                refused.append(error)

        with Supervisor() as sup:
            threads = [threading.Thread(target=add, args=(sup, gate, won, refused)) for _ in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert (len(won), len(refused)) == (1, 15)


# Events came out of order: "finished" before "started".

_ORDER = {
    None: {"task_added"},
    "task_added": {"attempt_starting", "task_cancel_requested", "task_finished"},
    "attempt_starting": {"attempt_succeeded", "attempt_failed", "attempt_canceled", "task_cancel_requested"},
    "attempt_succeeded": {"backoff_scheduled", "task_cancel_requested", "task_finished"},
    "attempt_failed": {"backoff_scheduled", "task_cancel_requested", "task_finished"},
    "attempt_canceled": {"task_finished"},
    "backoff_scheduled": {"attempt_starting", "task_cancel_requested", "task_finished"},
    "task_finished": {"task_removed"},
    "task_removed": set[str](),
}
_AFTER_CANCEL = {
    "attempt_starting",
    "attempt_succeeded",
    "attempt_failed",
    "attempt_canceled",
    "backoff_scheduled",
    "task_finished",
}


def check_order(events: list[Event]) -> None:
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    by_task: dict[int, list[str]] = {}
    for event in events:
        if (id := getattr(event, "task_id", None)) is not None:
            by_task.setdefault(id, []).append(event.kind)
    for kinds in by_task.values():
        last, canceled = None, False
        for kind in kinds:
            if kind == "task_cancel_requested":
                assert not canceled, kinds
                canceled = True
                continue
            allowed = _ORDER[last]
            assert kind in (allowed | _AFTER_CANCEL if canceled and last is None else allowed), kinds
            last = kind
        assert last == "task_removed", kinds
        assert kinds.count("task_finished") == 1


def mixed(number: int) -> TaskSpec:
    calls: list[None] = []

    def body(ctx: TaskContext) -> None:
        calls.append(None)
        if number % 3 == 0:
            ctx.sleep(0.02 * (number % 7))
        if len(calls) <= number % 4:
            raise Fail(str(number))

    backoff = BackoffPolicy(initial=0.01, jitter=Jitter.FULL)
    return TaskSpec.restartable(f"t{number}", body, backoff=backoff, max_retries=2)


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_the_events_of_each_task_are_in_order_and_seq_has_no_gaps(seed: int | None) -> None:
    clock, recorder = VirtualClock(seed=seed), EventRecorder()
    config = SupervisorConfig(event_capacity=10_000, subscriber_capacity=10_000, max_concurrent=7)
    with Supervisor(config, clock=clock, subscribers=[recorder]) as sup:
        handles = sup.add_all(mixed(number) for number in range(60))
        for handle in handles[::5]:
            handle.remove()
        sup.wait()
    check_order(recorder.events)


@pytest.mark.parametrize("tasks", [500])
def test_on_the_real_clock_order_holds_and_no_callback_runs_beside_itself(tasks: int) -> None:
    events: list[Event] = []
    inside, overlaps = [0], [0]

    def watch(event: Event) -> None:
        inside[0] += 1
        overlaps[0] += inside[0] != 1
        events.append(event)
        inside[0] -= 1

    config = SupervisorConfig(event_capacity=100_000, subscriber_capacity=100_000)
    with Supervisor(config, subscribers=[watch]) as sup:
        for batch in range(0, tasks, 50):
            sup.add_all(mixed(4 * number + 1) for number in range(batch, batch + 50))
        sup.wait()
    check_order(events)
    assert overlaps == [0]
    assert len({getattr(event, "task_id", None) for event in events}) == tasks + 1


# An actor died and nobody was told: the number of running ones just fell.


class Broken:
    def __call__(self) -> None:
        raise AttributeError("not as you think")


def leaves_with(error: BaseException) -> Callable[[TaskContext], None]:
    def body(ctx: TaskContext) -> None:
        def close() -> None:
            raise error

        ctx.callback(close)

    return body


def raises(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [
        (lambda: 5, OutcomeKind.COMPLETED, None),
        (raises(Fail("used up")), OutcomeKind.FAILED, "used up"),
        (raises(Fatal("no use")), OutcomeKind.FATAL, "no use"),
        (raises(Timeout("slow")), OutcomeKind.FAILED, "slow"),
        (raises(Canceled()), OutcomeKind.CANCELED, None),
        (lambda: int("x", 99), OutcomeKind.FAILED, "ValueError: int() base must be >= 2 and <= 36, or 0"),
        (lambda: parse_order(1), OutcomeKind.FAILED, "TypeError: parse_order() takes 0 positional"),  # type: ignore[call-arg]
        (Broken(), OutcomeKind.FAILED, "AttributeError: not as you think"),
        (raises(SystemExit("bye")), OutcomeKind.FATAL, "bye"),
        (raises(KeyboardInterrupt()), OutcomeKind.PANICKED, "KeyboardInterrupt"),
        (raises(MemoryError()), OutcomeKind.FAILED, "MemoryError"),
        (raises(StopIteration()), OutcomeKind.FAILED, "StopIteration"),
        (leaves_with(ValueError("close")), OutcomeKind.PANICKED, "ValueError: close"),
        (leaves_with(SystemExit(1)), OutcomeKind.PANICKED, ""),
        (leaves_with(Canceled()), OutcomeKind.PANICKED, ""),
    ],
    ids=without_address,
)
def test_every_end_is_told_once_with_its_reason_and_gives_an_outcome(
    supervisor: Supervisor,
    recorder: EventRecorder,
    body: Callable[..., object],
    kind: OutcomeKind,
    reason: str | None,
) -> None:
    outcome = supervisor.add(TaskSpec.once("t", body)).wait()
    supervisor.shutdown()
    (finished,) = recorder.of(TaskFinished)
    assert (outcome.kind, finished.outcome) == (kind, kind)
    assert outcome.reason == finished.reason
    assert recorder.kinds("t").count("attempt_failed") == (0 if kind in ("completed", "canceled") else 1)
    assert (outcome.reason is None) if reason is None else (reason in (outcome.reason or ""))
    if kind not in (OutcomeKind.COMPLETED, OutcomeKind.CANCELED):
        assert outcome.error is not None
        assert outcome.traceback is not None


@pytest.mark.parametrize(
    "body", [5, None, "t", lambda *, missing: missing, lambda a, b: (a, b)], ids=without_address
)
def test_what_could_never_be_called_is_refused_before_it_is_a_task(body: Any) -> None:
    with pytest.raises(TypeError, match="task 't'"):
        TaskSpec.once("t", body)


# Only the traceback of the caller was to be seen, not the place of the real error.


def parse_order() -> None:
    int("four")


def load_order() -> None:
    try:
        parse_order()
    except ValueError as error:
        raise Fail("order 12 is unreadable") from error


def test_an_outcome_tells_the_place_and_the_cause_of_the_real_error(
    supervisor: Supervisor, recorder: EventRecorder
) -> None:
    outcome = supervisor.add(TaskSpec.once("t", load_order)).wait()
    supervisor.shutdown()
    assert outcome.traceback is not None
    for part in (
        "parse_order",
        "load_order",
        "ValueError",
        "'four'",
        "order 12 is unreadable",
        "direct cause",
    ):
        assert part in outcome.traceback
    assert "attempt.py" not in outcome.traceback
    (failed,) = recorder.of("attempt_failed")
    for part in ("Fail: order 12 is unreadable", "load_order", "test_lifecycle.py", "ValueError"):
        assert part in failed.error
    assert isinstance(outcome.error, Fail)
    assert outcome.error.__traceback__ is None
    assert isinstance(outcome.error.__cause__, ValueError)
    assert outcome.error.__cause__.__traceback__ is None
