"""Locks are taken in one order, the one that docs/architecture.md tells, so no two threads can wait for each other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from supervisor import (
    Admission,
    BackoffPolicy,
    CapacityExceeded,
    Event,
    Supervisor,
    SupervisorConfig,
    TaskAlreadyExists,
    TaskContext,
    TaskSpec,
)
from supervisor.kernel.clock import SystemClock
from tests.programs import ROOT

ORDER = ["Watch", "Running", "CancelToken"]
LEAVES = ["Deadlines", "EventBus", "Promise", "Permits"]


class Recorder:
    """Notes which lock was taken while which other was held, by the classes that own them."""

    def __init__(self) -> None:
        self.pairs: set[tuple[str, str]] = set()  # (held, taken)
        self.owners: set[str] = set()
        self.held = threading.local()


class NamedLock:
    def __init__(self, recorder: Recorder, owner: str) -> None:
        self._lock = threading.Lock()
        self._recorder = recorder
        self._owner = owner
        recorder.owners.add(owner)

    def _stack(self) -> list[str]:
        stack: list[str] = self._recorder.held.__dict__.setdefault("stack", [])
        return stack

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        if taken and blocking:  # a try can't wait, so it can't close a circle
            stack = self._stack()
            self._recorder.pairs |= {(held, self._owner) for held in stack}
            stack.append(self._owner)
        elif taken:
            self._stack().append(self._owner)
        return taken

    def release(self) -> None:
        self._stack().remove(self._owner)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()


class RecordingClock(SystemClock):
    """The machine's clock, with locks that know to whom they belong."""

    __slots__ = ("recorder",)

    def __init__(self) -> None:
        super().__init__()
        self.recorder = Recorder()
        self.lock = self._named_lock

    def _named_lock(self) -> Any:
        owner = type(sys._getframe(1).f_locals["self"])
        names = [cls.__name__ for cls in owner.__mro__ if cls.__name__ in ORDER + LEAVES]
        return NamedLock(self.recorder, names[0] if names else owner.__name__)


def busy_life(clock: RecordingClock) -> None:
    """Go through everything that takes locks: retries, deadlines, slots, permits, refusals, a stop."""
    stuck = threading.Event()

    def fails(ctx: TaskContext) -> None:
        child = ctx.child(timeout=10)
        child.on_cancel(lambda: None)
        if ctx.attempt < 3:
            raise ValueError

    def waits(ctx: TaskContext) -> None:
        ctx.on_cancel(lambda: supervisor.tasks())
        ctx.child(timeout=0.001).wait()
        ctx.wait()

    def curious(event: Event) -> None:
        supervisor.get(1)

    config = SupervisorConfig(max_concurrent=4, max_tasks=12, grace=5)
    supervisor = Supervisor(config, clock=clock, subscribers=[curious])
    with supervisor:
        brief = BackoffPolicy.constant(0.001)
        flaky = supervisor.add(TaskSpec.restartable("flaky", fails, backoff=brief, timeout=5))
        slow = supervisor.add(TaskSpec.restartable("slow", waits, timeout=0.01, max_retries=1, backoff=brief))
        supervisor.add(TaskSpec.periodic("often", lambda: None, every=0.001))
        deaf = supervisor.add(TaskSpec.once("deaf", stuck.wait, timeout=0.01, overrun=0.01))
        owner = supervisor.submit(TaskSpec.once("owner", waits), slot="s")
        supervisor.submit(TaskSpec.once("dropped", waits), slot="s", admission=Admission.DROP_IF_RUNNING)
        newer = supervisor.submit(TaskSpec.once("newer", waits), slot="s", admission=Admission.REPLACE)
        supervisor.submit(TaskSpec.once("queued", waits), slot="s")
        for refused in (["flaky", "x"], [str(number) for number in range(20)]):
            try:
                supervisor.add_all(TaskSpec.once(name, waits) for name in refused)
            except (TaskAlreadyExists, CapacityExceeded):
                pass
        for handle in (flaky, slow, deaf, owner):
            handle.wait(timeout=10)
        stuck.set()
        newer.cancel(timeout=10)
        with supervisor.subscribe(lambda event: None, dedicated=True):
            supervisor.remove("often")


def test_locks_are_taken_in_the_order_that_the_architecture_page_tells() -> None:
    clock = RecordingClock()
    busy_life(clock)
    recorder = clock.recorder
    assert recorder.owners == set(ORDER + LEAVES)
    allowed = {(above, below) for number, above in enumerate(ORDER) for below in ORDER[number + 1 :] + LEAVES}
    assert recorder.pairs - allowed == set()
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert " -> ".join(f"`{name}`" for name in ORDER) in page
    assert ", ".join(f"`{name}`" for name in LEAVES) in page


def test_a_lock_that_is_taken_in_the_wrong_order_is_found() -> None:
    recorder = Recorder()
    upper, lower = NamedLock(recorder, "Running"), NamedLock(recorder, "Deadlines")
    nested: Callable[[], bool] = upper.acquire
    with lower:
        nested()
    upper.release()
    assert recorder.pairs == {("Deadlines", "Running")}
