"""Wrong arguments are refused at once, by name, and nothing changes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from supervisor import BackoffPolicy, CancelToken, Supervisor, TaskId, TaskSpec
from supervisor.testing import VirtualClock


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"clock": 3}, "clock must be a Clock"),
        ({"subscribers": 3}, "subscribers must be a collection"),
        ({"config": {}}, "config must be a SupervisorConfig"),
        ({"defaults": 3}, "defaults must be TaskDefaults"),
        ({"rng": 3}, "rng must have a method random"),
    ],
)
def test_a_wrong_setting_of_a_supervisor_is_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        Supervisor(**settings)


def test_kinds_that_are_no_collection_are_refused(supervisor: Supervisor) -> None:
    with pytest.raises(TypeError, match="kinds must be event classes or their labels, got 3"):
        supervisor.subscribe(print, kinds=3)  # type: ignore[arg-type]


def test_the_label_of_a_class_that_no_event_has_is_refused(supervisor: Supervisor) -> None:
    with pytest.raises(ValueError, match="no event has the label 'task'; there are attempt_canceled"):
        supervisor.subscribe(print, kinds=["task"])


def test_a_coroutine_function_is_no_subscriber(supervisor: Supervisor) -> None:
    async def listens(event: object) -> None:
        """Would never run."""

    with pytest.raises(TypeError, match=r"subscriber: .*listens is a coroutine function"):
        supervisor.subscribe(listens)


@pytest.mark.parametrize("draw", ["x", None])
def test_a_draw_that_is_no_number_is_refused(draw: Any) -> None:
    with pytest.raises(TypeError, match="draw must be a number"):
        BackoffPolicy().delay(1, draw)


@pytest.mark.parametrize("reason", ["x", None, 3])
def test_a_reason_to_cancel_is_a_cancel_reason(reason: Any) -> None:
    token = CancelToken()
    with pytest.raises(TypeError, match="reason must be a CancelReason"):
        token.cancel(reason)
    assert not token.canceled


@pytest.mark.parametrize("seed", [1.5, "x", True])
def test_a_seed_is_an_int(seed: Any) -> None:
    with pytest.raises(TypeError, match="seed must be an int or None"):
        VirtualClock(seed=seed)


def test_the_wall_clock_stays_in_the_calendar(clock: VirtualClock) -> None:
    with pytest.raises(ValueError, match="between years 1 and 9999"):
        clock.step_wall(-1e12)
    assert clock.now() == datetime(2000, 1, 1, tzinfo=UTC)


class Unusable:
    """A generator of draws that gives none."""

    def __init__(self, draw: object) -> None:
        self.draw = draw

    def random(self) -> Any:
        if isinstance(self.draw, Exception):
            raise self.draw
        return self.draw


@pytest.mark.parametrize("draw", [ValueError("empty"), 1.0, -0.1, "x", float("nan")])
def test_a_generator_that_gives_no_draw_costs_the_jitter_and_not_the_task(
    clock: VirtualClock, draw: object, caplog: pytest.LogCaptureFixture
) -> None:
    def fails_once(ctx: Any) -> int:
        if ctx.attempt == 1:
            raise ValueError("again")
        return 7

    with Supervisor(clock=clock, rng=Unusable(draw)) as sup:
        spec = TaskSpec.restartable("t", fails_once, backoff=BackoffPolicy(initial=1.0))
        assert sup.add(spec).wait().value == 7
        assert clock.monotonic() == 0.75  # half of the base, and half of the other half
    assert "rng is unusable" in caplog.text


def test_an_id_has_a_class_of_its_own(supervisor: Supervisor) -> None:
    handle = supervisor.add(TaskSpec.once("t", lambda: None))
    assert isinstance(handle.id, TaskId)
    assert isinstance(handle.info().id, TaskId)
    assert handle.id == int(handle.id) >= 1


def test_a_wait_of_ten_virtual_years_is_one_step(clock: VirtualClock, supervisor: Supervisor) -> None:
    years = 10 * 365 * 86400.0
    supervisor.add(TaskSpec.once("t", lambda ctx: ctx.sleep(years))).wait()
    assert clock.monotonic() == years


def test_several_threads_may_read_one_stream_of_events(clock: VirtualClock) -> None:
    got: list[str] = []
    ended: list[int] = []
    sup = Supervisor(clock=clock)
    stream = sup.events("task_added")

    def read(number: int) -> None:
        got.extend(event.kind for event in stream)
        ended.append(number)

    for number in range(3):
        clock.spawn(lambda number=number: read(number), f"reader {number}")  # type: ignore[misc]
    with sup:
        sup.add_all([TaskSpec.once(f"t{n}", lambda: None) for n in range(5)])
    clock.settle()
    assert got == ["task_added"] * 5
    assert sorted(ended) == [0, 1, 2]
