"""Faults that users of workflow engines met: counting, order, growth, what errors tell, odd tasks."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from itertools import pairwise, permutations
from typing import Any

import pytest

from supervisor import BackoffPolicy, Fail, Jitter
from supervisor.flows import (
    FLOW_TASK_BACKOFF,
    FlowTaskRetrying,
    JoinConfig,
    JoinStrategy,
    Resources,
    RetryExhausted,
    Workflow,
    batch,
)
from supervisor.testing import EventRecorder, VirtualClock
from tests.bodies import Scripted
from tests.flows.walking import DOUBLING, S, Split, Timed, Walk, failure, one

# "Retries" were counted as "attempts", or the other way round.


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_limit_counts_retries_and_the_error_counts_attempts(clock: VirtualClock, retries: int) -> None:
    body = Scripted(Fail("no"))
    error = failure(clock, one(body, max_retries=retries))
    assert body.calls == retries + 1
    if retries:
        assert error.attempts == error.attempt == retries + 1


# A backoff grew for hours until its power overflowed, and the loop died with it.


def test_a_backoff_saturates_in_an_outage_of_weeks(clock: VirtualClock) -> None:
    body = Scripted(*[Fail("down")] * 5000, S.DONE)
    workflow = one(body, max_retries=10_000, backoff=BackoffPolicy(1.0, 100.0, 300.0, Jitter.NONE))
    walk = Walk(clock, workflow).finish(1e7)
    assert walk.result is S.DONE
    assert walk.ended == 1.0 + 100.0 + 4998 * 300.0


@pytest.mark.parametrize("failures", [1, 43, 64, 1023, 1024, 5000, 10**9])
def test_the_default_backoff_stays_under_its_cap(failures: int) -> None:
    for draw in (0.0, 0.5, 0.999999):
        assert 0.0 <= FLOW_TASK_BACKOFF.delay(failures, draw) <= 33.0


# The wait that had grown was never reset.


def test_the_backoff_starts_anew_each_time_a_state_is_entered(
    clock: VirtualClock, recorder: EventRecorder
) -> None:
    steps = [Fail("1"), Fail("2"), Fail("3"), S.A, Fail("4"), S.DONE]
    Walk(clock, one(Scripted(*steps), max_retries=3, backoff=DOUBLING), subscribers=[recorder]).finish()
    assert [event.delay for event in recorder.of(FlowTaskRetrying)] == [1.0, 2.0, 4.0, 1.0]


# Identity came from the order of completion.


@pytest.mark.parametrize("order", list(permutations([1, 2, 3])))
def test_results_of_branches_stand_in_input_order_whoever_was_first(
    clock: VirtualClock, order: tuple[int, int, int]
) -> None:
    timed = Timed(clock)
    split = Split(
        JoinStrategy.ALL, [timed(seconds, name) for seconds, name in zip(order, "abc", strict=True)]
    )
    split.walk(clock)
    assert split.result.values == ["a", "b", "c"]
    assert [branch.index for branch in split.result.branches] == [0, 1, 2]


# A limit counted from the start of the worker, and all later jobs timed out at once.


def test_the_timeout_of_an_attempt_counts_from_its_own_start(clock: VirtualClock) -> None:
    timed = Timed(clock)
    split = Split(JoinStrategy.ALL, [timed(3, n) for n in range(4)], bulkhead=1, deadline=5.0)
    assert split.walk(clock).ended == 12.0, "the time in the queue is not counted"
    body = Scripted(*[Fail("no")] * 5, S.DONE)
    workflow = one(lambda: clock.sleep(4.9) or body(), max_retries=5, timeout=5.0, backoff=DOUBLING)
    assert Walk(clock, workflow).finish().result is S.DONE


# A worker stopped taking work at its limit of concurrency.


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_of_many_items_is_worked_off_whatever_the_interleaving(seed: int) -> None:
    clock, seen = VirtualClock(seed), list[Any]()
    task = batch(
        lambda res: range(300), lambda n: clock.sleep(0.001 * (n % 3)), lambda res, r: seen.append(len(r)) or S.DONE,
        concurrency=4,
    )  # fmt: skip
    assert Walk(clock, one(task)).finish(100.0).result is S.DONE
    assert seen == [300]


def test_on_the_real_clock_no_wake_up_is_lost_when_a_place_comes_free() -> None:
    for _ in range(3):
        task = batch(
            lambda res: range(300), str, lambda res, r: S.DONE if len(r) == 300 else S.OTHER, concurrency=4
        )
        assert one(task).run(S.A) is S.DONE


# Only the caller's traceback was visible.


def load_prices() -> Any:
    raise KeyError("price")


def test_an_error_of_a_branch_keeps_its_own_traceback(clock: VirtualClock) -> None:
    walk = Split(JoinStrategy.ALL, [load_prices]).walk(clock)
    assert "KeyError: 'price'" in str(walk.error)
    trace, names = walk.error.result.errors[0].__traceback__, list[str]()
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert names[-1] == "load_prices"


def test_a_retry_tells_the_type_the_message_and_the_function(
    clock: VirtualClock, recorder: EventRecorder
) -> None:
    def outer() -> Any:
        try:
            return load_prices()
        except KeyError as error:
            raise ValueError("bad row") from error

    failure(clock, one(outer, max_retries=1), subscribers=[recorder])
    text = recorder.of(FlowTaskRetrying)[0].error
    for words in ("ValueError: bad row", "outer", "KeyError: 'price'"):
        assert words in text


# The object of a workflow could be used once only.


def test_the_same_objects_serve_run_after_run_failed_ones_too(clock: VirtualClock) -> None:
    log: list[str] = []

    class R:
        def setup(self) -> None:
            log.append("setup")

        def teardown(self) -> None:
            log.append("teardown")

    steps = Scripted(S.DONE, ValueError("no"), S.DONE)
    workflow = Workflow(Resources(r=R())).register(S.A, steps).add_exit_state(S.DONE)
    assert [Walk(clock, workflow).finish().result for _ in range(3)] == [S.DONE, None, S.DONE]
    assert log == ["setup", "teardown"] * 3


# A callable without a name crashed what wanted to show it.


class Nameless:
    __slots__ = ()

    def __call__(self) -> Any:
        raise Fail("no")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    "task",
    [
        functools.partial(load_prices),
        lambda: load_prices(),
        Nameless(),
        Nameless().__call__,
        Scripted(Fail("no")),
    ],
    ids=["partial", "lambda", "object", "method", "scripted"],
)
def test_every_callable_can_be_run_retried_drawn_and_told(
    clock: VirtualClock, recorder: EventRecorder, task: Any
) -> None:
    workflow = one(task, max_retries=1)
    assert isinstance(failure(clock, workflow, subscribers=[recorder]), RetryExhausted)
    assert recorder.of(FlowTaskRetrying)[0].task
    split = (
        Workflow().register_split(S.A, [task], JoinConfig(JoinStrategy.ALL, S.DONE)).add_exit_state(S.DONE)
    )
    assert "S.A" in split.to_mermaid()
    assert "branch 0" in str(failure(clock, split))


# Text of hostile errors broke what showed it.


class Hostile(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize("retries", [0, 1])
def test_an_error_that_can_not_be_shown_spoils_nothing(
    clock: VirtualClock, recorder: EventRecorder, retries: int
) -> None:
    error = failure(clock, one(Scripted(Hostile()), max_retries=retries), subscribers=[recorder])
    assert isinstance(error, RetryExhausted if retries else Hostile)
    if retries:
        assert "Hostile" in str(error)
    walk = Split(JoinStrategy.ALL, [Scripted(Hostile())]).walk(clock)
    assert "Hostile" in str(walk.error)


def test_an_error_with_a_text_of_megabytes_makes_no_text_of_megabytes(clock: VirtualClock) -> None:
    error = failure(clock, one(Scripted(ValueError("x" * 5_000_000)), max_retries=1))
    assert len(str(error)) < 10_000


# Ended runs left threads, timers and objects behind.


def test_many_runs_leave_neither_object_nor_thread() -> None:
    class Mark: ...

    marks: list[weakref.ref[Mark]] = []
    join = JoinConfig(JoinStrategy.ALL, S.DONE, timeout=3600.0)

    def body(res: Any, run: Any) -> S:
        mark = Mark()
        marks.append(weakref.ref(mark))
        run.token.on_cancel(lambda: mark)
        return S.B

    workflow = one(body, timeout=3600.0).with_total_timeout(3600.0)
    workflow.register_split(S.B, [lambda: None] * 2, join, timeout=3600.0)
    for _ in range(30):
        workflow.run(S.A)
    for thread in threading.enumerate():
        if thread.name.startswith(("supervisor:", "run-")):
            thread.join(10)
    gc.collect()
    assert [ref() for ref in marks] == [None] * 30
    assert not [each.name for each in threading.enumerate() if each.name.startswith(("supervisor:", "run-"))]


def test_a_long_lived_token_does_not_gather_what_its_runs_left(clock: VirtualClock) -> None:
    from supervisor import CancelToken

    token = CancelToken(clock=clock)

    def body(res: Any, run: Any) -> S:
        run.token.on_cancel(lambda: None)
        return S.DONE

    workflow = one(body)

    def grown() -> int:
        gc.collect()
        return sum(type(each) is CancelToken for each in gc.get_objects())

    Walk(clock, workflow, token=token).finish()
    before = grown()
    for _ in range(50):
        Walk(clock, workflow, token=token).finish()
    assert grown() <= before + 1


# A state that leads to itself at once took the whole machine.


def test_a_hot_cycle_leaves_control_to_a_stop() -> None:
    from supervisor import Canceled, CancelToken

    token, begun = CancelToken(), threading.Event()

    def again() -> S:
        begun.set()
        return S.A

    errors: list[BaseException] = []

    def run() -> None:
        try:
            one(again).run(S.A, token=token)
        except Canceled as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(10)
    token.cancel()
    thread.join(10)
    assert len(errors) == 1


def test_attempts_follow_each_other_and_never_overlap(clock: VirtualClock) -> None:
    spans: list[tuple[float, float]] = []

    def body() -> S:
        began = clock.monotonic()
        clock.sleep(7.0)  # deaf to its deadline
        spans.append((began, clock.monotonic()))
        raise Fail("no")

    failure(clock, one(body, timeout=5.0, max_retries=4, backoff=DOUBLING))
    assert len(spans) == 5
    for (_, ended), (began, _) in pairwise(spans):
        assert began > ended
