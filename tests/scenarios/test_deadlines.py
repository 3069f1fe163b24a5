"""Deadlines: from when they count, who decides a tie, and that nothing stray hits a later attempt."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from supervisor import (
    AttemptReturnedLate,
    AttemptSucceeded,
    AttemptTimedOut,
    BackoffPolicy,
    CancelReason,
    OutcomeKind,
    Supervisor,
    SupervisorConfig,
    TaskContext,
    TaskFinished,
    TaskSpec,
)
from supervisor.testing import EventRecorder, VirtualClock

# A limit that runs from the start of the worker times every later job out at once.


def test_a_deadline_counts_from_the_start_of_each_attempt(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    supervisor.add(TaskSpec.periodic("t", lambda: clock.sleep(0.2), 1.0, timeout=0.3))
    clock.advance(1.2 * 50 - 0.9)
    assert len(recorder.of(AttemptSucceeded)) == 50
    assert recorder.of(AttemptTimedOut) == []


def test_time_in_the_queue_for_a_permit_does_not_count(clock: VirtualClock) -> None:
    recorder = EventRecorder()
    config = SupervisorConfig(max_concurrent=1)
    with Supervisor(config, clock=clock, subscribers=[recorder]) as sup:
        specs = [TaskSpec.once(f"t{n}", lambda: clock.sleep(0.2), timeout=0.3) for n in range(8)]
        assert {handle.wait().kind for handle in sup.add_all(specs)} == {OutcomeKind.COMPLETED}
    assert clock.monotonic() == 1.6
    assert recorder.of(AttemptTimedOut) == []


def test_time_in_backoff_does_not_count(supervisor: Supervisor, clock: VirtualClock) -> None:
    starts: list[float] = []

    def body() -> None:
        starts.append(clock.monotonic())
        clock.sleep(0.2)
        if len(starts) < 4:
            raise ValueError

    spec = TaskSpec.restartable("t", body, timeout=0.3, backoff=BackoffPolicy.constant(5.0))
    assert supervisor.add(spec).wait().ok
    assert starts == pytest.approx([0.0, 5.2, 10.4, 15.6])


@pytest.mark.parametrize(
    ("length", "in_time"),
    [(0.0, True), (0.29, True), (0.299999999, True), (0.3, True), (0.300000001, False), (0.31, False)],
)
def test_an_attempt_is_a_success_or_timed_out_and_never_both(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder, length: float, in_time: bool
) -> None:
    outcome = supervisor.add(TaskSpec.once("t", lambda: clock.sleep(length), timeout=0.3)).wait()
    supervisor.shutdown()
    verdicts = [kind for kind in recorder.kinds("t") if kind in ("attempt_succeeded", "attempt_timed_out")]
    assert verdicts == ["attempt_succeeded" if in_time else "attempt_timed_out"]
    assert outcome.ok is in_time


def test_what_a_late_body_raises_changes_nothing(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    def body(ctx: TaskContext) -> str:
        if ctx.attempt == 1:
            clock.sleep(2.0)
            raise SystemExit(1)
        return "second"

    spec = TaskSpec.restartable("t", body, timeout=1.0, backoff=BackoffPolicy.constant(1.0))
    outcome = supervisor.add(spec).wait()
    supervisor.shutdown()
    assert (outcome.kind, outcome.value, outcome.attempts) == (OutcomeKind.COMPLETED, "second", 2)
    (late,) = recorder.of(AttemptReturnedLate)
    assert (late.late_by, late.ended) == (1.0, "SystemExit")
    assert clock.monotonic() == 3.0  # the backoff counts from the real end


# A cancellation that comes after the body has returned kills whatever the thread does next.


@pytest.fixture
def hasty_switching() -> Iterator[None]:
    """Let threads of the interpreter take turns a thousand times more often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_switching")
def test_a_deadline_that_collides_with_the_return_decides_only_its_own_attempt() -> None:
    """On the real clock, as only its races count: each body ends within a hair of its deadline."""
    recorder, strays = EventRecorder(), []
    config = SupervisorConfig(event_capacity=100_000, subscriber_capacity=100_000)

    def body(ctx: TaskContext) -> None:
        end, reason = ctx.deadline, ctx.cancel_reason
        assert end is not None
        if reason is CancelReason.TIMEOUT and time.monotonic() < end:
            strays.append(ctx.attempt)  # canceled by the deadline of an earlier attempt
        while time.monotonic() < end - 0.00002 * (ctx.attempt % 5):
            pass
        if ctx.attempt < 200:
            raise ValueError

    with Supervisor(config, subscribers=[recorder]) as sup:
        spec = TaskSpec.restartable("t", body, timeout=0.001, backoff=None)
        other = TaskSpec.periodic("other", lambda: None, 0.001)
        sup.add(other)
        ends = [sup.add(spec.replace(name=f"t{n}")) for n in range(2)]
        outcomes = [end.wait(30) for end in ends]
        alive = {thread.name for thread in threading.enumerate()}
    assert "supervisor" in alive
    assert "supervisor:other" in alive
    assert strays == []
    assert len(recorder.of(TaskFinished)) == 3
    for end, outcome in zip(ends, outcomes, strict=True):
        assert outcome.kind is OutcomeKind.COMPLETED
        kinds = recorder.kinds(end)
        verdicts = [kinds.count(f"attempt_{how}") for how in ("succeeded", "failed", "timed_out", "canceled")]
        assert sum(verdicts) == kinds.count("attempt_starting") == outcome.attempts


# The clock of the machine: a verdict must not wait for a body that nobody can interrupt.


@pytest.mark.parametrize("how", ["sleeping", "in C", "spinning"])
def test_a_verdict_is_told_while_the_body_is_stuck(how: str) -> None:
    told = threading.Event()
    ended: list[str] = []

    def stuck(ctx: TaskContext) -> None:
        if how == "sleeping":
            time.sleep(0.5)  # the thing to be seen: a body that looks at nothing while it sleeps
        elif how == "in C":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire(timeout=0.5)
        else:
            while not told.is_set():
                pass
        ended.append("yes")

    def listen(event: AttemptTimedOut) -> None:
        assert ended == []
        told.set()

    with Supervisor() as sup:
        sup.subscribe(listen, kinds=[AttemptTimedOut])
        outcome = sup.add(TaskSpec.once("t", stuck, timeout=0.02)).wait(20)
    assert told.is_set()
    assert outcome.kind is OutcomeKind.FAILED
    assert outcome.reason == "timed out after 0.02 s"
