"""Ready-made tasks: a batch, a poll, a timer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from supervisor import Fail, Fatal
from supervisor.flows import (
    FLOW_TASK_BACKOFF,
    BranchFinished,
    ConfigurationError,
    FlowTaskRetrying,
    FlowTimeout,
    MemoryStore,
    Pending,
    Ready,
    Resources,
    RetryExhausted,
    Workflow,
    batch,
    poll,
    timer,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.bodies import Scripted
from tests.flows.walking import DOUBLING, S, Walk, failure, one
from tests.naming import without_address

START = datetime(2000, 1, 1, tzinfo=UTC)

# -- poll


def test_a_poll_goes_on_as_soon_as_it_is_ready(clock: VirtualClock) -> None:
    walk = Walk(clock, one(poll(lambda res: Ready(S.DONE)))).finish()
    assert (walk.result, walk.ended) == (S.DONE, 0.0)


def test_a_poll_pauses_as_it_is_told(clock: VirtualClock) -> None:
    answers = Scripted(Pending(1.0), Pending(timedelta(seconds=2)), Pending(0), Pending(0.5), Ready(S.DONE))
    walk = Walk(clock, one(poll(lambda res: answers()))).finish()
    assert (walk.result, walk.ended, answers.calls) == (S.DONE, 3.5, 5)


@pytest.mark.parametrize(
    "fn",
    [
        lambda: Ready(S.DONE),
        lambda res: Ready(S.DONE),
        lambda res, run: Ready(S.DONE),
        Scripted(Ready(S.DONE)),
    ],
)
def test_a_poll_gets_what_it_requires(clock: VirtualClock, fn: Any) -> None:
    assert Walk(clock, one(poll(fn))).finish().result is S.DONE


def test_a_poll_sees_the_resources(clock: VirtualClock) -> None:
    store = MemoryStore()
    workflow = Workflow(Resources(store=store)).add_exit_state(S.DONE)
    workflow.register(
        S.A, poll(lambda res: Ready(S.DONE) if res["store"].get("there", False) else Pending(1.0))
    )
    walk = Walk(clock, workflow)
    clock.advance(3.5)
    store.put("there", True)
    assert walk.finish().ended == 4.0


def test_a_poll_that_raises_is_an_attempt_that_failed(clock: VirtualClock) -> None:
    answers = Scripted(Pending(1.0), Fail("no"), Pending(1.0), Ready(S.DONE))
    walk = Walk(clock, one(poll(lambda res: answers()), max_retries=1, backoff=DOUBLING)).finish()
    assert (walk.result, walk.ended) == (S.DONE, 3.0)
    assert isinstance(failure(clock, one(poll(lambda res: 1 / 0))), ZeroDivisionError)


def test_an_endless_poll_ends_with_the_timeout_of_its_task(clock: VirtualClock) -> None:
    error = failure(clock, one(poll(lambda res: Pending(3.0)), timeout=10.0))
    assert type(error) is FlowTimeout
    assert clock.monotonic() == 10.0


@pytest.mark.parametrize("answer", [None, S.DONE, True, 1.0, Ready], ids=without_address)
def test_another_answer_than_ready_or_pending_is_a_type_error(clock: VirtualClock, answer: Any) -> None:
    error = failure(clock, one(poll(lambda res: answer)))
    assert type(error) is TypeError
    assert "Ready(state) or Pending(delay)" in str(error)


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), True, "1", None])
def test_a_pause_that_can_not_be_right_is_an_error_that_names_it(clock: VirtualClock, delay: Any) -> None:
    error = failure(clock, one(poll(lambda res: Pending(delay))))
    assert isinstance(error, ValueError | TypeError)
    assert "delay" in str(error)


@pytest.mark.parametrize("state", [S.OTHER, None])
def test_ready_for_an_unknown_state_is_the_ordinary_error(clock: VirtualClock, state: Any) -> None:
    assert "S.DONE" in str(failure(clock, one(poll(lambda res: Ready(state)))))


async def coroutine(res: Any) -> Ready:
    return Ready(S.DONE)


@pytest.mark.parametrize("fn", [None, 1, "fn", coroutine, lambda a, b, c: None], ids=without_address)
def test_what_can_not_be_polled_is_refused_when_the_task_is_made(fn: Any) -> None:
    with pytest.raises(ConfigurationError, match="poll"):
        poll(fn)


def test_ready_and_pending_are_values() -> None:
    assert Ready(S.A) == Ready(S.A)
    assert Pending(1.0) == Pending(1.0) != Pending(2.0)


# -- timer


@pytest.mark.parametrize("delay", [0, 0.0, 2.5, 60, timedelta(minutes=5), 1e6])
def test_a_timer_goes_on_after_its_delay(clock: VirtualClock, delay: Any) -> None:
    walk = Walk(clock, one(timer(delay, S.DONE))).finish(2e6)
    assert walk.result is S.DONE
    assert walk.ended == (delay.total_seconds() if isinstance(delay, timedelta) else delay)


@pytest.mark.parametrize(
    ("instant", "ends"),
    [
        (START + timedelta(seconds=90), 90.0),
        (START + timedelta(seconds=0.25), 0.25),
        (START, 0.0),
        (START - timedelta(days=1), 0.0),
        (datetime(2000, 1, 1, 2, 0, tzinfo=timezone(timedelta(hours=1))), 3600.0),
    ],
)
def test_a_timer_goes_on_at_its_instant(clock: VirtualClock, instant: datetime, ends: float) -> None:
    walk = Walk(clock, one(timer(instant, S.DONE))).finish()
    assert (walk.result, walk.ended) == (S.DONE, ends)


def test_an_instant_follows_the_wall_clock_when_it_is_set_forward(clock: VirtualClock) -> None:
    walk = Walk(clock, one(timer(START + timedelta(hours=1), S.DONE)))
    clock.advance(100.0)
    clock.step_wall(3600.0)
    walk.finish()
    assert walk.ended == 120.0, "noticed when the piece of 30 s is over"


def test_an_instant_follows_the_wall_clock_when_it_is_set_back(clock: VirtualClock) -> None:
    walk = Walk(clock, one(timer(START + timedelta(seconds=100), S.DONE)))
    clock.advance(50.0)
    clock.step_wall(-1000.0)
    assert walk.finish().ended == 1100.0


@pytest.mark.parametrize("step", [86_400.0, -86_400.0])
def test_a_delay_does_not_notice_the_wall_clock(clock: VirtualClock, step: float) -> None:
    walk = Walk(clock, one(timer(100.0, S.DONE)))
    clock.advance(50.0)
    clock.step_wall(step)
    assert walk.finish().ended == 100.0


def test_a_timer_ends_with_the_timeout_of_its_task(clock: VirtualClock) -> None:
    for wait in (60.0, START + timedelta(days=1)):
        assert type(failure(clock, one(timer(wait, S.DONE), timeout=5.0))) is FlowTimeout
    assert clock.monotonic() == 10.0


@pytest.mark.parametrize(
    "wait",
    [-1, float("nan"), float("inf"), True, "60", None, datetime(2000, 1, 1), timedelta(seconds=-1)],
    ids=without_address,
)
def test_a_wait_that_can_not_be_right_is_refused_when_the_timer_is_made(wait: Any) -> None:
    with pytest.raises(ConfigurationError, match="timer"):
        timer(wait, S.DONE)


def test_one_timer_may_serve_several_states(clock: VirtualClock) -> None:
    pause = timer(5.0, S.DONE)
    for _ in range(2):
        walk = Walk(clock, one(pause)).finish()
        assert walk.ended == 5.0


# -- batch


class Batch:
    """A batch whose items take a second each; keeps what it was given and how many ran at once."""

    def __init__(self, clock: VirtualClock, items: Any, **settings: Any) -> None:
        self.clock = clock
        self.items = items
        self.results: Any = None
        self.calls: list[Any] = []
        self.inside = self.most = 0
        self.workflow = Workflow(Resources(store=MemoryStore())).add_exit_state(S.DONE)
        self.workflow.register(S.A, batch(self.load, self.process, self.finish, **settings))

    def load(self, res: Any) -> Any:
        assert isinstance(res["store"], MemoryStore)
        return self.items

    def process(self, item: Any) -> Any:
        self.calls.append(item)
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.clock.sleep(1.0)
        self.inside -= 1
        if isinstance(item, BaseException):
            raise item
        return item * 2

    def finish(self, res: Any, results: Any) -> S:
        assert isinstance(res["store"], MemoryStore)
        self.results = results
        return S.DONE


@pytest.mark.parametrize(("concurrency", "ends"), [(1, 6.0), (2, 3.0), (4, 2.0), (6, 1.0), (99, 1.0)])
def test_a_batch_processes_at_most_so_many_at_once(
    clock: VirtualClock, concurrency: int, ends: float
) -> None:
    work = Batch(clock, range(6), concurrency=concurrency)
    walk = Walk(clock, work.workflow).finish()
    assert (walk.result, walk.ended) == (S.DONE, ends)
    assert work.most == min(concurrency, 6)
    assert [(each.index, each.value) for each in work.results] == [(n, 2 * n) for n in range(6)]


def test_one_after_the_other_is_the_default_and_in_input_order(clock: VirtualClock) -> None:
    work = Batch(clock, "cab")
    Walk(clock, work.workflow).finish()
    assert work.calls == ["c", "a", "b"]
    assert work.most == 1


def test_results_come_in_input_order_whatever_took_how_long(clock: VirtualClock) -> None:
    seen: list[Any] = []

    def process(seconds: float) -> float:
        clock.sleep(seconds)
        return seconds

    task = batch(
        lambda res: [3, 1, 2], process, lambda res, results: seen.extend(results) or S.DONE, concurrency=3
    )
    Walk(clock, one(task)).finish()
    assert [(each.index, each.value, each.duration, each.ok) for each in seen] == [
        (0, 3, 3.0, True),
        (1, 1, 1.0, True),
        (2, 2, 2.0, True),
    ]


@pytest.mark.parametrize("error", [ValueError("bad"), Fatal("bad"), KeyboardInterrupt()])
def test_an_item_that_fails_is_a_result_and_no_failure_of_the_batch(
    clock: VirtualClock, error: BaseException
) -> None:
    work = Batch(clock, [1, error, 3])
    assert Walk(clock, work.workflow).finish().result is S.DONE
    assert [each.error for each in work.results] == [None, error, None]
    assert [each.value for each in work.results] == [2, None, 6]


def test_each_item_has_its_own_retries(clock: VirtualClock, recorder: EventRecorder) -> None:
    seen: list[Any] = []
    flaky, poison = Scripted(Fail("no"), Fail("no"), "third"), Scripted(Fail("never"))
    task = batch(
        lambda res: [flaky, poison], lambda item: item(), lambda res, results: seen.extend(results) or S.DONE,
        concurrency=2, max_retries=2,
    )  # fmt: skip
    Walk(clock, one(task), subscribers=[recorder]).finish()
    assert (flaky.calls, poison.calls) == (3, 3)
    assert seen[0].value == "third"
    assert type(seen[1].error) is RetryExhausted
    assert seen[1].error.attempts == 3
    assert {event.task for event in recorder.of(FlowTaskRetrying)} == {"item 0", "item 1"}
    assert all(event.delay <= FLOW_TASK_BACKOFF.delay(2, 0.999) for event in recorder.of(FlowTaskRetrying))


def test_nothing_to_do_goes_straight_to_the_finish(clock: VirtualClock) -> None:
    for nothing in ([], (), iter([])):
        work = Batch(clock, nothing)
        walk = Walk(clock, work.workflow).finish()
        assert (walk.result, walk.ended) == (S.DONE, 0.0)
        assert list(work.results) == []


def test_items_may_come_lazily(clock: VirtualClock) -> None:
    work = Batch(clock, (n for n in range(3)))
    Walk(clock, work.workflow).finish()
    assert [each.value for each in work.results] == [0, 2, 4]


def test_a_load_that_fails_ends_the_attempt_before_anything(clock: VirtualClock) -> None:
    calls: list[Any] = []
    task = batch(lambda res: 1 / 0, calls.append, lambda res, results: calls.append(results))
    assert isinstance(failure(clock, one(task)), ZeroDivisionError)
    assert calls == []


def test_a_finish_that_fails_is_a_failure_of_the_attempt_and_all_is_done_again(clock: VirtualClock) -> None:
    calls: list[int] = []
    finish = Scripted(Fail("no"), S.DONE)
    task = batch(lambda res: [1, 2], calls.append, lambda res, results: finish())
    assert Walk(clock, one(task, max_retries=1)).finish().result is S.DONE
    assert calls == [1, 2, 1, 2]


def test_a_batch_ends_with_the_timeout_of_its_task_and_starts_no_more_items(clock: VirtualClock) -> None:
    work = Batch(clock, range(10))
    error = failure(clock, one(batch(lambda res: work.items, work.process, work.finish), timeout=2.5))
    assert type(error) is FlowTimeout
    assert clock.monotonic() == 2.5
    clock.advance(100.0)
    assert work.calls == [0, 1, 2]
    assert work.results is None


def test_items_are_told_as_branches_and_leave_no_split(clock: VirtualClock, recorder: EventRecorder) -> None:
    seen: list[Any] = []
    task = batch(lambda res: "ab", str.upper, lambda res, results: S.B)
    workflow = one(task).register(S.B, lambda res, run: seen.append(dict(run.splits)) or S.DONE)
    Walk(clock, workflow, subscribers=[recorder]).finish()
    assert [(event.index, event.task, event.error) for event in recorder.of(BranchFinished)] == [
        (0, "item 0", None),
        (1, "item 1", None),
    ]
    assert seen == [{}]


async def later(item: Any) -> None:
    """Would never run."""


@pytest.mark.parametrize(
    "settings",
    [
        {"load": None}, {"process": 1}, {"finish": "x"},
        {"load": later}, {"process": later}, {"finish": later},
        {"process": lambda a, b: None}, {"load": lambda a, b: None}, {"finish": lambda a, b, c: None},
        {"concurrency": 0}, {"concurrency": -1}, {"concurrency": 1.5}, {"concurrency": True},
        {"max_retries": -1}, {"max_retries": True}, {"max_retries": None},
    ],
    ids=without_address,
)  # fmt: skip
def test_settings_of_a_batch_that_can_not_be_right_are_refused_when_it_is_made(
    settings: dict[str, Any],
) -> None:
    (name,) = settings
    good: dict[str, Any] = {
        "load": lambda res: [],
        "process": lambda item: None,
        "finish": lambda res, results: S.DONE,
    }
    with pytest.raises(ConfigurationError, match=name):
        batch(**{**good, **settings})


def test_models_carry_the_name_of_what_they_call(clock: VirtualClock, recorder: EventRecorder) -> None:
    def arrived(res: Any) -> Any:
        raise Fail("no")

    failure(clock, one(poll(arrived), max_retries=1), subscribers=[recorder])
    failure(
        clock,
        one(batch(lambda res: 1 / 0, arrived, lambda res, results: S.DONE), max_retries=1),
        subscribers=[recorder2 := EventRecorder()],
    )
    assert [event.task for event in recorder.of(FlowTaskRetrying)] == ["arrived"]
    assert [event.task for event in recorder2.of(FlowTaskRetrying)] == ["arrived"]


def test_models_work_as_branches_too(clock: VirtualClock) -> None:
    from supervisor.flows import JoinConfig, JoinStrategy

    branches = [
        timer(2.0, "t"),
        poll(lambda res: Ready("p")),
        batch(lambda res: [1], str, lambda res, results: "b"),
    ]
    values: list[Any] = []
    workflow = (
        Workflow()
        .register_split(S.A, branches, JoinConfig(JoinStrategy.ALL, S.B))
        .register(S.B, lambda res, run: values.extend(run.splits[S.A].values) or S.DONE)
        .add_exit_state(S.DONE)
    )
    assert Walk(clock, workflow).finish().ended == 2.0
    assert values == ["t", "p", "b"]
