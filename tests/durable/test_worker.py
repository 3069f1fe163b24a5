"""The worker: one delivery after the other, and what becomes of those that fail."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from supervisor import CancelToken
from supervisor.durable import (
    FlowEngine,
    FlowRuntime,
    FlowScheduler,
    FlowWorker,
    NonDeterministic,
    RunTerminal,
    StoreError,
)
from tests.durable.world import World

# -- one delivery


def test_run_once_drives_the_oldest_run_and_tells_which(world: World) -> None:
    for name in ("r1", "r2"):
        world.engine.submit("one", "quick", run_id=name)
    worker = world.worker()
    assert worker.run_once() == "r1"
    assert world.statuses() == {"r1": "completed", "r2": "pending"}
    assert (worker.run_once(), worker.run_once()) == ("r2", None)
    assert world.queue.pending() == 0


def test_run_until_idle_counts_what_it_drove(world: World) -> None:
    for number in range(3):
        world.engine.submit("five", "quick", run_id=f"r{number}")
    worker = world.worker()
    assert (worker.run_until_idle(), worker.run_until_idle()) == (3, 0)
    assert [run for run, _ in world.begun] == ["r0"] * 5 + ["r1"] * 5 + ["r2"] * 5


def test_a_run_that_is_submitted_twice_is_driven_once(world: World) -> None:
    for _ in range(2):
        world.engine.submit("one", "quick", run_id="r1")
    assert world.worker().run_until_idle() == 1


def test_a_run_that_is_queued_while_it_is_driven_is_driven_once_more(world: World) -> None:
    world.engine.submit("one", "slow", run_id="r1")
    world.serve(world.worker())
    world.clock.advance(5)
    assert world.queue.enqueue("r1") is False
    world.clock.advance(5)
    assert world.times("lease") == [0.0, 10.0, 10.0]  # the run, the run again, nothing
    assert world.begun == [("r1", 0.0)]
    assert world.queue.pending() == 0


def test_a_worker_completes_only_the_waits_of_its_run(world: World) -> None:
    for name in ("r1", "r2"):
        world.engine.start("nap", 60, run_id=name)
    world.clock.advance(60)
    world.queue.enqueue("r2")
    assert world.worker().run_until_idle() == 1
    assert world.statuses() == {"r1": "suspended", "r2": "completed"}


def test_a_delivery_that_comes_twice_completes_a_wait_once(world: World) -> None:
    world.engine.start("nap", 60, run_id="r1")
    world.clock.advance(60)
    worker = world.worker()
    for _ in range(2):
        world.queue.enqueue("r1")
        assert worker.run_once() == "r1"
    assert world.kinds("r1").count("wait_completed") == 1


def test_the_task_of_a_cancelled_run_is_done_and_adds_nothing(world: World) -> None:
    world.engine.start("nap", 60, run_id="r1")
    world.clock.advance(60)
    world.queue.enqueue("r1")
    world.engine.force_cancel("r1")
    before = world.kinds("r1")
    assert world.worker().run_until_idle() == 1
    assert world.kinds("r1") == before
    assert world.queue.seconds_to_next() is None


def test_a_run_that_waits_leaves_the_queue(world: World) -> None:
    world.engine.submit("nap", 60, run_id="r1")
    assert world.worker().run_until_idle() == 1
    assert world.statuses() == {"r1": "suspended"}
    assert world.queue.seconds_to_next() is None


# -- deliveries that fail


def test_a_failed_delivery_is_tried_five_times_each_after_twice_the_pause(world: World) -> None:
    world.queue.enqueue("nobody")
    world.serve(world.worker())
    world.clock.advance(60)
    assert [when for when in world.times("lease") if when in (0.0, 0.1, 0.3, 0.7, 1.5)] == [
        *[0.0, 0.0],
        *[0.1, 0.1],
        *[0.3, 0.3],
        *[0.7, 0.7],
        *[1.5, 1.5],
    ]
    (letter,) = world.queue.dead_letters()
    reason = "RunNotFound: no run 'nobody' in this store"
    assert (letter.run_id, letter.reason, letter.at) == ("nobody", reason, world.at(1.5))
    (failure,) = world.engine.failures()
    assert (failure.run_id, failure.reason, failure.at) == (
        "nobody",
        f"given up after 5 deliveries: {reason}",
        world.at(1.5),
    )
    assert world.queue.seconds_to_next() is None


def test_a_store_that_fails_in_a_delivery_is_told_each_time(world: World) -> None:
    world.engine.submit("one", "quick", run_id="r1")
    world.failing.add("append")
    world.serve(world.worker())
    world.clock.advance(60)
    during, error = "driving run 'r1'", "StoreError: append fails"
    assert world.told("store_failed") == [
        (0.0, during, error, 0.1),
        (0.1, during, error, 0.2),
        (0.3, during, error, 0.4),
        (0.7, during, error, 0.8),
        (1.5, during, error, 1.6),
    ]
    assert [each.run_id for each in world.queue.dead_letters()] == ["r1"]


def test_a_delivery_that_succeeds_in_the_end_is_no_dead_letter(world: World) -> None:
    world.engine.submit("one", "quick", run_id="r1")
    world.failing.add("append")
    world.serve(world.worker())
    world.clock.advance(1.4)
    world.failing.clear()
    world.clock.advance(0.1)
    assert world.statuses() == {"r1": "completed"}
    assert (world.queue.dead_letters(), world.engine.failures()) == ([], [])


def test_the_others_are_driven_while_one_waits_for_its_next_delivery(world: World) -> None:
    world.queue.enqueue("nobody")
    world.engine.submit("one", "quick", run_id="r1")
    world.serve(world.worker())
    assert world.ended == [("r1", 0.0)]


def test_a_decider_that_raises_is_a_failed_delivery_and_leaves_the_run_as_it_was(world: World) -> None:
    @world.flows.decider
    def broken(ctx):
        raise KeyError("typo")

    world.engine.submit("broken", run_id="r1")
    world.serve(world.worker())
    world.clock.advance(60)
    (letter,) = world.queue.dead_letters()
    assert (letter.reason.partition(" (in ")[0], letter.at) == ("KeyError: 'typo'", world.at(1.5))
    assert world.kinds("r1") == ["run_created", "run_started"]
    assert world.told("store_failed") == []


def test_a_dead_letter_that_is_redriven_starts_counting_anew_and_its_mark_goes(world: World) -> None:
    world.engine.submit("one", "quick", run_id="r1")
    world.failing.add("append")
    world.serve(world.worker())
    world.clock.advance(60)
    (letter,) = world.queue.dead_letters()
    assert world.queue.redrive(letter.id) is True
    world.clock.advance(1)  # four more failures
    assert (world.queue.dead_letters(), len(world.engine.failures())) == ([], 1)
    world.failing.clear()
    world.clock.advance(1)
    assert world.statuses() == {"r1": "completed"}
    assert (world.queue.redrive(letter.id), world.engine.failures()) == (False, [])


def test_a_dead_letter_whose_mark_can_not_be_written_is_one_all_the_same(world: World) -> None:
    world.queue.enqueue("nobody")
    world.failing.add("mark_failure")
    world.serve(world.worker())
    world.clock.advance(60)
    assert [each.run_id for each in world.queue.dead_letters()] == ["nobody"]
    world.engine.submit("one", "quick", run_id="r1")
    world.clock.settle()
    assert world.ended == [("r1", 60.0)]


def test_a_queue_that_can_not_take_a_task_back_is_asked_again(world: World) -> None:
    world.engine.submit("one", "quick", run_id="r1")
    world.failing |= {"append", "release"}
    world.serve(world.worker(lease_seconds=20.0))
    world.clock.settle()
    world.failing.clear()
    world.clock.advance(19.9)
    assert world.times("release") == [0.0, 0.1]
    assert world.ended == [("r1", 0.2)]


def test_an_ack_that_fails_delivers_the_task_again_and_runs_nothing_twice(world: World) -> None:
    world.engine.submit("five", "quick", run_id="r1")
    world.failing.add("ack")
    world.serve(world.worker())
    world.clock.settle()
    world.failing.clear()
    world.clock.advance(60)
    assert len(world.begun) == 5
    assert world.queue.seconds_to_next() is None
    assert world.queue.dead_letters() == []


@pytest.mark.parametrize("method", ["lease", "reclaim_expired", "seconds_to_next"])
def test_a_queue_that_fails_is_told_and_asked_again_after_a_longer_and_longer_pause(
    world: World, method: str
) -> None:
    world.failing.add(method)
    world.serve(world.worker())
    world.clock.advance(0.5)
    during, error = "taking a run from the queue", f"StoreError: {method} fails"
    assert world.told("store_failed") == [
        (0.0, during, error, 0.1),
        (0.1, during, error, 0.2),
        (0.3, during, error, 0.4),
    ]
    world.failing.clear()
    world.engine.submit("one", "quick", run_id="r1")
    world.clock.advance(5)
    assert world.statuses() == {"r1": "completed"}


def test_run_once_raises_what_the_queue_says(world: World) -> None:
    world.failing.add("lease")
    with pytest.raises(StoreError, match="lease fails"):
        world.worker().run_once()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_step_is_raised_and_its_attempt_delivered_again(
    world: World, error: type[BaseException]
) -> None:
    raising: list[BaseException] = [error("stop")]

    @world.flows.step
    def interrupted():
        if raising:
            raise raising.pop()
        return "done"

    world.engine.submit("one", "interrupted", run_id="r1")
    worker = world.worker()
    with pytest.raises(error):
        worker.run_once()
    assert world.engine.snapshot("r1").steps["s"].status == "running"
    world.clock.advance(0.1)
    assert worker.run_once() == "r1"
    found = world.engine.snapshot("r1")
    assert (found.output, found.steps["s"].attempt) == ("done", 1)


# -- drives without a lease


def test_a_signal_that_relied_on_a_drive_which_fails_is_left_to_a_worker(world: World) -> None:
    @world.flows.workflow
    def letter(ctx):
        ctx.step("s", "slow")
        return ctx.wait_signal("w", "letter")

    raised: list[str] = []

    def start() -> None:
        try:
            world.engine.start("letter", run_id="r1")
        except StoreError as error:
            raised.append(str(error))

    thread = world.clock.spawn(start, "starter")
    world.clock.advance(5)
    world.engine.signal("r1", "letter", "hello")
    world.failing.add("append")
    thread.join()
    world.failing.clear()
    assert raised == ["append fails"]
    assert world.worker().run_until_idle() == 1
    assert world.engine.result("r1", timeout=0) == "hello"


def test_a_worker_keeps_the_task_of_a_run_that_a_caller_drives(world: World) -> None:
    thread = world.clock.spawn(lambda: world.engine.start("one", "slow", run_id="r1"), "starter")
    world.clock.advance(0.5)
    world.engine.recover()
    world.serve(world.worker())
    world.clock.advance(5)
    assert world.times("lease") == [when for n in range(6) for when in (0.5 + n, 0.5 + n)]
    thread.join()
    world.clock.advance(1)
    assert world.begun == [("r1", 0.0)]
    assert world.queue.seconds_to_next() is None


def test_a_queue_that_fails_in_a_signal_does_not_keep_the_run_for_ever(world: World) -> None:
    @world.flows.workflow
    def letter(ctx):
        return ctx.wait_signal("w", "letter")

    world.engine.start("letter", run_id="r1")
    world.failing.add("leased")
    with pytest.raises(StoreError, match="leased fails"):
        world.engine.signal("r1", "letter", "hello", signal_id="s1")
    world.failing.clear()
    world.engine.signal("r1", "letter", "hello", signal_id="s1")
    assert world.engine.result("r1", timeout=0) == "hello"


# -- runs that only a person can help


def changed(world: World) -> tuple[FlowRuntime, FlowRuntime]:
    """A workflow as it was, and as somebody changed it."""
    before, after = FlowRuntime(), FlowRuntime()

    def old(ctx: Any) -> Any:
        ctx.step("s", "quick", 1)
        ctx.wait_signal("w", "go")
        return ctx.step("t", "quick", 2)

    def new(ctx: Any) -> Any:
        ctx.step("s", "quick", 99)
        ctx.wait_signal("w", "go")
        return ctx.step("t", "quick", 2)

    for flows, function in ((before, old), (after, new)):
        flows.step(lambda input: input, name="quick")
        flows.workflow(function, name="changing")
    return before, after


def test_a_workflow_that_differs_from_its_history_is_marked_once_and_not_tried_again(world: World) -> None:
    before, after = changed(world)
    world.another(before).start("changing", run_id="r1")
    history = world.kinds("r1")
    engine = world.another(after)
    world.queue.enqueue("r1")
    world.engine.submit("one", "quick", run_id="r2")
    world.serve(world.worker(engine))
    world.clock.advance(5)
    assert world.queue.pending() == 1  # r2, whose workflow is not known there
    world.serve(world.worker())
    world.clock.advance(60)
    assert world.statuses() == {"r1": "suspended", "r2": "completed"}
    assert world.kinds("r1") == history
    (failure,) = world.engine.failures()
    assert (failure.run_id, failure.at) == ("r1", world.at(0))
    assert failure.reason.startswith("NonDeterministic: run 'r1' is not deterministic: ")
    assert (world.queue.dead_letters(), world.queue.seconds_to_next()) == ([], None)


def test_the_mark_goes_when_the_run_is_driven_well_again(world: World) -> None:
    before, after = changed(world)
    good = world.another(before)
    good.start("changing", run_id="r1")
    with pytest.raises(NonDeterministic):
        world.another(after).drive("r1")
    assert [each.run_id for each in world.engine.failures()] == ["r1"]
    world.queue.enqueue("r1")
    world.worker(good).run_until_idle()
    assert world.engine.failures() == []
    good.signal("r1", "go")
    assert good.result("r1", timeout=0) == 2


# -- runs that this process does not know


def test_a_run_of_an_unknown_workflow_is_told_and_left_to_others_about_once_a_second(world: World) -> None:
    world.engine.submit("one", "quick", run_id="r1")
    world.calls.clear()
    world.serve(world.worker(world.another(FlowRuntime())))
    world.clock.advance(3.5)
    reason = "no workflow 'one' of version '1' is registered here; known: none"
    assert world.told("run_unserved") == [(when, "r1", reason) for when in (0.0, 1.1, 2.2, 3.3)]
    assert world.times("lease") == [0.0, 0.0, 1.1, 1.1, 2.2, 2.2, 3.3, 3.3]
    assert (world.queue.dead_letters(), world.engine.failures()) == ([], [])


def test_who_knows_a_run_gets_it_before_who_left_it(world: World) -> None:
    world.engine.submit("one", "quick", run_id="r1")
    for _ in range(3):
        world.serve(world.worker(world.another(FlowRuntime())))
    world.clock.advance(0.5)
    world.serve(world.worker())
    world.clock.advance(2.5)
    assert [when for when, *_ in world.told("run_unserved")] == [0.0, 1.0, 2.0]  # each of them once
    assert world.ended == [("r1", 3.0)]


def test_a_run_that_was_left_holds_up_no_other(world: World) -> None:
    world.engine.submit("one", "gone", run_id="r1")
    world.serve(world.worker())
    world.clock.advance(0.5)
    world.engine.submit("one", "quick", run_id="r2")
    world.clock.settle()
    assert world.ended == [("r2", 0.5)]


def test_an_unknown_step_leaves_the_run_as_it_is_for_somebody_who_knows_it(world: World) -> None:
    poor = FlowRuntime()

    @poor.workflow
    def one(ctx, step):
        return ctx.step("s", step)

    world.engine.submit("one", "quick", run_id="r1")
    world.serve(world.worker(world.another(poor)))
    world.clock.advance(2.5)
    reason = "no step 'quick' is registered here; known: none"
    assert world.told("run_unserved") == [(when, "r1", reason) for when in (0.0, 1.1, 2.2)]
    assert world.kinds("r1") == ["run_created", "run_started"]
    world.serve(world.worker())
    world.clock.advance(1)
    assert world.ended == [("r1", 3.2)]


def test_a_name_that_is_registered_later_lets_the_run_go_on(world: World) -> None:
    world.engine.submit("one", "gone", run_id="r1")
    world.engine.submit("one", "quick", run_id="r2")
    world.serve(world.worker())
    assert world.statuses() == {"r1": "running", "r2": "completed"}
    world.clock.advance(3)
    world.flows.step(lambda: "here", name="gone")
    world.clock.advance(0.3)
    assert world.engine.result("r1", timeout=0) == "here"


# -- long runs


def test_a_run_that_asks_too_often_in_one_drive_has_its_turn_again_and_goes_on(world: World) -> None:
    patient = world.another(max_replays=2)
    world.engine.submit("five", "quick", run_id="long")
    world.engine.submit("one", "quick", run_id="short")
    worker = world.worker(patient)
    assert worker.run_until_idle() == 4  # three times two steps at most, and the short one
    assert world.statuses() == {"long": "completed", "short": "completed"}
    assert [run for run, _ in world.begun].count("long") == 5
    assert (world.queue.dead_letters(), world.engine.failures()) == ([], [])


# -- several at once, and the stop


def test_concurrency_is_how_many_runs_are_driven_at_once(world: World) -> None:
    for number in range(5):
        world.engine.submit("one", "slow", run_id=f"r{number}")
    world.serve(world.worker(concurrency=2))
    world.clock.advance(30)
    assert [when for _, when in world.begun] == [0.0, 0.0, 10.0, 10.0, 20.0]
    assert [when for _, when in world.ended] == [10.0, 10.0, 20.0, 20.0, 30.0]


def test_a_task_that_comes_wakes_a_worker_at_once(world: World) -> None:
    world.serve(world.worker(poll=1000))
    world.clock.advance(123)
    world.engine.submit("one", "quick", run_id="r1")
    world.clock.settle()
    assert world.ended == [("r1", 123.0)]


def test_a_worker_without_work_looks_once_each_poll(world: World) -> None:
    world.serve(world.worker(poll=10))
    world.clock.advance(35)
    assert world.times("lease") == [0.0, 10.0, 20.0, 30.0]


def test_a_stop_waits_for_the_steps_that_run_and_gives_the_rest_back(world: World) -> None:
    for name in ("r1", "r2", "r3"):
        world.engine.submit("five", "slow", run_id=name)
    stop, ends = CancelToken(clock=world.clock), []

    def serve() -> None:
        world.worker(concurrency=2).serve(stop)
        ends.append(world.seconds)

    thread = world.clock.spawn(serve, "worker")
    world.clock.advance(13)
    stop.cancel()
    thread.join()
    assert ends == [20.0]
    steps = {name: world.engine.snapshot(name).steps for name in ("r1", "r2", "r3")}
    assert {name: [str(each.status) for each in found.values()] for name, found in steps.items()} == {
        "r1": ["completed", "completed"],
        "r2": ["completed", "completed"],
        "r3": [],
    }
    assert world.queue.pending() == 3
    assert world.worker(world.another()).run_once() == "r1"  # it has kept its place
    assert world.statuses() == {"r1": "completed", "r2": "running", "r3": "pending"}


def test_a_stop_during_the_last_step_lets_the_run_end(world: World) -> None:
    world.engine.submit("one", "slow", run_id="r1")
    stop = world.serve(world.worker())
    world.clock.advance(5)
    stop.cancel()
    world.clock.advance(5)
    assert world.statuses() == {"r1": "completed"}
    assert world.queue.seconds_to_next() is None


def test_an_event_of_the_standard_library_stops_it_within_a_tenth_of_a_second(world: World) -> None:
    stop, ends = threading.Event(), []

    def serve() -> None:
        world.worker(concurrency=3, poll=1000).serve(stop)
        ends.append(world.seconds)

    thread = world.clock.spawn(serve, "worker")
    world.clock.advance(5.05)
    stop.set()
    thread.join()
    assert ends == [pytest.approx(5.1)]


def test_a_scheduler_and_a_worker_carry_a_run_through_waits_and_retries(world: World) -> None:
    world.engine.submit("stubborn", [3, 60.0], run_id="r1")
    world.engine.submit("nap", 90, run_id="r2")
    world.serve(FlowScheduler(world.engine))
    world.serve(world.worker())
    world.clock.advance(200)
    assert world.statuses() == {"r1": "failed", "r2": "completed"}
    assert [when for _, when in world.begun] == [0.0, 60.0, 120.0]
    assert world.engine.snapshot("r2").updated_at == world.at(90)
    with pytest.raises(RunTerminal):
        world.engine.cancel("r1")


# -- the queue fails at the end of a delivery


def test_a_failed_ack_is_a_failed_delivery_that_is_soon_repeated(world: World) -> None:
    world.engine.submit("one", "quick", run_id="r1")
    world.failing.add("ack")
    world.serve(world.worker(lease_seconds=30.0, poll=1000.0))
    world.clock.advance(0.05)
    world.failing.clear()
    world.clock.advance(1)
    assert (world.times("ack"), world.times("release")) == ([0.0, 0.1], [0.0])
    assert world.queue.seconds_to_next() is None
    assert world.begun == [("r1", 0.0)]


def test_a_task_whose_ack_always_fails_is_a_dead_letter_after_five_deliveries(world: World) -> None:
    world.engine.submit("one", "quick", run_id="r1")
    world.failing.add("ack")
    world.serve(world.worker(lease_seconds=30.0, poll=1000.0))
    world.clock.advance(20)
    assert world.times("ack") == pytest.approx([0.0, 0.1, 0.3, 0.7, 1.5])
    (letter,) = world.queue.dead_letters()
    assert (letter.run_id, letter.reason) == ("r1", "StoreError: ack fails")
    (mark,) = world.engine.failures()
    assert mark.reason == "given up after 5 deliveries: StoreError: ack fails"


def test_a_run_that_can_not_be_given_back_is_given_back_when_the_queue_answers_again(world: World) -> None:
    world.engine.submit("one", "quick", run_id="r1")
    world.failing.update({"ack", "release"})
    world.serve(world.worker(lease_seconds=30.0, poll=1000.0))
    world.clock.advance(1)
    assert world.times("release") == pytest.approx([0.0, 0.1, 0.3, 0.7])
    world.failing.clear()
    world.clock.advance(1)
    assert world.times("release")[4:] == pytest.approx([1.5])
    assert world.times("ack")[1:] == pytest.approx([1.6])
    assert world.queue.seconds_to_next() is None


def test_a_run_that_can_not_be_given_back_keeps_nobody_from_stopping(world: World) -> None:
    world.engine.submit("one", "quick", run_id="r1")
    world.failing.update({"ack", "release"})
    stop = world.serve(world.worker(lease_seconds=30.0, poll=1000.0))
    world.clock.advance(0.5)
    stop.cancel()
    world.clock.settle()
    assert world.times("release") == pytest.approx([0.0, 0.1, 0.3, 0.5])
    assert world.queue.leased("r1")


# -- settings


def test_settings_that_make_no_sense_are_refused(world: World) -> None:
    for options, text in (
        ({"concurrency": 0}, "concurrency"),
        ({"lease_seconds": 0}, "lease_seconds must be > 0, got 0"),
        ({"lease_seconds": -1}, "lease_seconds"),
        ({"poll": -1}, "poll"),
    ):
        with pytest.raises(ValueError, match=text):
            FlowWorker(world.engine, **options)
    with pytest.raises(TypeError, match="engine must be a FlowEngine, got None"):
        FlowWorker(None)  # type: ignore[arg-type]
    for taker in (FlowWorker, FlowScheduler):
        with pytest.raises(TypeError, match="queue must be a WorkQueue such as MemoryWorkQueue\\(\\), got 5"):
            taker(world.engine, 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"stop must be a CancelToken or a threading.Event, got None"):
        world.worker().serve(None)


def test_the_queue_is_that_of_the_engine_or_another_one(world: World) -> None:
    with FlowEngine(world.flows, world.store, clock=world.clock) as engine:
        engine.submit("one", "quick", run_id="r1")
        assert FlowWorker(engine, world.queue).run_once() is None
        assert FlowWorker(engine).run_once() == "r1"


def test_who_could_not_beat_for_long_asks_for_its_lease_before_it_calls_the_next_step(world: World) -> None:
    world.engine.submit("five", "slow", run_id="r")
    world.failing.add("heartbeat")
    world.serve(world.worker(lease_seconds=3.0))
    world.clock.advance(2.5)
    world.serve(world.worker(world.another(), lease_seconds=300.0))
    world.clock.advance(6.0)
    world.failing.clear()
    world.clock.advance(20.0)
    begun = [when for _, when in world.begun]
    # The first records its step at 10 s, and finds that the run is not its own; the second, which had begun the
    # same step at 3 s, learns of that at 13 s and goes on.
    assert begun == [0.0, 3.0, 13.0, 23.0]
