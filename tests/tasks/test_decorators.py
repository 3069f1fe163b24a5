"""`@supervisor.once`, `.restartable`, `.periodic`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest

from supervisor import BackoffPolicy, Supervisor, TaskAlreadyExists, TaskContext, TaskSpec
from supervisor.testing import EventRecorder, VirtualClock


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(
    "decorator",
    [
        lambda s: s.once,
        lambda s: s.once(name="t"),
        lambda s: s.restartable,
        lambda s: s.restartable(name="t"),
        lambda s: s.periodic(every=5, name="t"),
        lambda s: s.periodic(5, name="t"),
    ],
)
def test_the_function_comes_back_unchanged_and_can_still_be_called(
    supervisor: Supervisor, decorator: Callable[[Supervisor], Callable[..., object]], started: bool
) -> None:
    def work(x: int = 1) -> int:
        return x + 1

    if started:
        supervisor.start()
    assert decorator(supervisor)(work) is work
    assert work(2) == 3


@pytest.mark.parametrize("form", ["once", "restartable"])
@pytest.mark.parametrize("parentheses", [False, True])
def test_with_and_without_parentheses_the_name_is_that_of_the_function(
    supervisor: Supervisor, recorder: EventRecorder, form: str, parentheses: bool
) -> None:
    decorator = getattr(supervisor, form)
    runs: list[int] = []

    @(decorator() if parentheses else decorator)
    def collect_garbage() -> None:
        runs.append(1)

    supervisor.start()
    supervisor.wait()
    assert runs == [1]
    assert {event.task for event in recorder.of("task_added")} == {"collect_garbage"}


def test_a_decorated_function_waits_for_the_start(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    @supervisor.once
    def early() -> None: ...

    clock.advance(5.0)
    assert supervisor.tasks() == []
    assert supervisor.get("early") is None
    assert recorder.events == []
    supervisor.start()
    assert [info.name for info in supervisor.tasks()] == ["early"]
    supervisor.wait()
    assert recorder.times("attempt_starting") == [5.0]


def test_after_the_start_it_runs_at_once(supervisor: Supervisor) -> None:
    supervisor.start()

    @supervisor.once
    def now() -> int:
        return 1

    handle = supervisor.get("now")
    assert handle is not None
    assert handle.wait().value == 1


@pytest.mark.parametrize(
    "begin", [lambda s: s.run(), lambda s: s.__enter__() and s.wait()], ids=["run", "with"]
)
def test_run_and_with_start_what_was_declared(
    supervisor: Supervisor, begin: Callable[[Supervisor], object]
) -> None:
    runs: list[str] = []
    for name in ("a", "b"):
        supervisor.once(name=name)(partial(runs.append, name))
    begin(supervisor)
    assert sorted(runs) == ["a", "b"]


def test_add_starts_what_was_declared_too(supervisor: Supervisor) -> None:
    runs: list[str] = []
    supervisor.once(name="a")(partial(runs.append, "a"))
    supervisor.add(TaskSpec.once("b", partial(runs.append, "b")))
    supervisor.wait()
    assert sorted(runs) == ["a", "b"]


def test_the_settings_are_those_of_the_spec(
    supervisor: Supervisor, clock: VirtualClock, recorder: EventRecorder
) -> None:
    @supervisor.restartable(backoff=BackoffPolicy.constant(2.0), max_retries=2, name="retried")
    def fails() -> None:
        raise ValueError("boom")

    @supervisor.periodic(every=timedelta(seconds=3))
    def tick(ctx: TaskContext) -> None:
        if ctx.attempt == 3:
            supervisor.remove("tick")

    @supervisor.once(timeout=1.0, args=(60.0,))
    def slow(ctx: TaskContext, seconds: float) -> None:
        ctx.wait(seconds)

    supervisor.start()
    supervisor.wait()
    assert recorder.times("attempt_starting", "retried") == [0.0, 2.0, 4.0]
    assert recorder.times("attempt_starting", "tick") == [0.0, 3.0, 6.0]
    assert recorder.times("attempt_timed_out", "slow") == [1.0]


def test_a_name_declared_twice_is_refused(supervisor: Supervisor) -> None:
    @supervisor.once
    def work() -> None: ...

    with pytest.raises(TaskAlreadyExists, match="'work' is declared"):
        supervisor.restartable(work)


def test_periodic_without_an_interval_says_how_to_write_it(supervisor: Supervisor) -> None:
    with pytest.raises(TypeError, match=r"@supervisor\.periodic\(every=SECONDS\)"):
        supervisor.periodic(lambda: None)  # type: ignore[arg-type]


def test_a_wrong_setting_is_refused_where_the_function_is_decorated(supervisor: Supervisor) -> None:
    with pytest.raises(ValueError, match="max_retries"):
        supervisor.restartable(max_retries=0)(lambda: None)
    with pytest.raises(TypeError, match="coroutine"):

        @supervisor.once
        async def work() -> None: ...
