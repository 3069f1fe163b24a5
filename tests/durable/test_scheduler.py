"""The scheduler: what one tick queues, and when `serve` ticks."""

from __future__ import annotations

import threading
from datetime import datetime

import pytest

from supervisor import CancelToken
from supervisor.durable import (
    FlowEngine,
    FlowRuntime,
    FlowScheduler,
    MemoryWorkQueue,
    RetryPolicy,
    SchedulerTick,
    WorkflowContext,
)
from tests.durable.world import World

# -- one tick


def test_a_tick_queues_what_is_due_and_nothing_else(world: World) -> None:
    world.engine.start("nap", 60, run_id="soon")
    world.engine.start("nap", 61, run_id="later")
    scheduler = FlowScheduler(world.engine)
    assert scheduler.enqueue_due_work(world.at(59.999999)) == SchedulerTick(0, 0, 0, ())
    assert world.queue.pending() == 0
    assert scheduler.enqueue_due_work(world.at(60)) == SchedulerTick(1, 0, 1, ("soon",))
    assert world.queue.lease(1.0).run_id == "soon"
    assert world.queue.lease(1.0) is None


def test_a_second_tick_finds_the_same_work_and_queues_no_second_task(world: World) -> None:
    world.engine.start("nap", 60, run_id="r1")
    scheduler, other = FlowScheduler(world.engine), FlowScheduler(world.another())
    assert scheduler.enqueue_due_work(world.at(60)) == SchedulerTick(1, 0, 1, ("r1",))
    assert scheduler.enqueue_due_work(world.at(60)) == SchedulerTick(1, 0, 0, ("r1",))
    assert other.enqueue_due_work(world.at(60)) == SchedulerTick(1, 0, 0, ("r1",))
    assert world.queue.pending() == 1


def test_work_that_is_being_done_counts_as_due_but_not_as_newly_queued(world: World) -> None:
    world.engine.start("nap", 60, run_id="r1")
    scheduler = FlowScheduler(world.engine)
    scheduler.enqueue_due_work(world.at(60))
    world.queue.lease(30.0)
    assert scheduler.enqueue_due_work(world.at(60)) == SchedulerTick(1, 0, 0, ("r1",))


def test_the_wait_of_a_cancelled_run_is_not_due(world: World) -> None:
    world.engine.start("nap", 60, run_id="asked")
    world.engine.start("nap", 60, run_id="forced")
    world.engine.cancel("asked")
    world.engine.force_cancel("forced")
    scheduler = FlowScheduler(world.engine)
    assert scheduler.enqueue_due_work(world.at(100)) == SchedulerTick(0, 0, 0, ())
    assert scheduler.next_scheduled_wakeup() is None


def test_a_retry_that_is_due_is_queued_and_a_worker_brings_it_to_its_end(world: World) -> None:
    failures = [ValueError("once")]

    @world.flows.step
    def flaky():
        if failures:
            raise failures.pop()
        return "done"

    @world.flows.decider
    def retries(ctx):
        if ctx.step_completed("s"):
            return ctx.complete(ctx.step_output("s"))
        return ctx.schedule_step_with_retry("s", "flaky", None, RetryPolicy.fixed(2, 60))

    world.engine.start("retries", run_id="r1")
    scheduler = FlowScheduler(world.engine)
    assert scheduler.next_scheduled_wakeup() == world.at(60)
    assert scheduler.enqueue_due_work(world.at(59)) == SchedulerTick(0, 0, 0, ())
    world.clock.advance(60)
    assert scheduler.enqueue_due_work(world.clock.now()) == SchedulerTick(0, 1, 1, ("r1",))
    assert world.worker().run_until_idle() == 1
    found = world.engine.snapshot("r1")
    assert (found.status, found.output, found.steps["s"].attempt) == ("completed", "done", 2)
    assert scheduler.next_scheduled_wakeup() is None


def test_a_tick_into_the_future_is_carried_out_by_the_worker_as_a_catch_up(world: World) -> None:
    world.engine.start("nap", 3600, run_id="r1")
    FlowScheduler(world.engine).enqueue_due_work(world.at(3600))
    assert world.worker().run_until_idle() == 1
    assert world.engine.result("r1", timeout=0) == "awake"
    assert world.seconds == 0.0


def test_many_wakeups_of_one_run_are_one_task_and_different_runs_one_each(world: World) -> None:
    @world.flows.workflow
    def both(ctx, delay):
        policy = RetryPolicy.fixed(2, delay)
        ctx.gather([ctx.call(each, "fails", retry=policy) for each in ("a", "b", "c")])

    world.engine.start("both", 50, run_id="r2")
    world.engine.start("both", 40, run_id="r1")
    world.engine.start("nap", 45, run_id="r3")
    tick = FlowScheduler(world.engine).enqueue_due_work(world.at(50))
    assert tick == SchedulerTick(due_waits=1, due_retries=6, enqueued_tasks=3, run_ids=("r1", "r3", "r2"))


def test_one_tick_asks_the_store_for_due_work_once(world: World) -> None:
    for number in range(20):
        world.engine.start("nap", 60, run_id=f"r{number}")
    world.calls.clear()
    FlowScheduler(world.engine).enqueue_due_work(world.at(60))
    asked = [name for name, _ in world.calls if name != "enqueue"]
    assert asked == ["list_due_wakeups", "failures"]  # those that wait for a person are left out


def test_the_next_wakeup_is_the_earliest_instant_overdue_ones_included_and_signals_not(world: World) -> None:
    @world.flows.workflow
    def letter(ctx):
        ctx.wait_signal("w", "letter")

    scheduler = FlowScheduler(world.engine)
    world.engine.start("letter")
    assert scheduler.next_scheduled_wakeup() is None
    world.engine.start("nap", 60)
    world.engine.start("nap", 30)
    assert scheduler.next_scheduled_wakeup() == world.at(30)
    world.clock.advance(45)
    assert scheduler.next_scheduled_wakeup() == world.at(30)


def test_a_tick_takes_a_thousand_wakeups_the_oldest_first(world: World) -> None:
    for number in range(1001):
        world.engine.start("nap", 60 + (number == 0), run_id=f"r{number:04}")
    scheduler = FlowScheduler(world.engine)
    tick = scheduler.enqueue_due_work(world.at(61))
    assert (tick.due_waits, tick.enqueued_tasks, tick.run_ids[0], tick.run_ids[-1]) == (
        1000,
        1000,
        "r0001",
        "r1000",
    )
    world.clock.advance(61)
    assert world.worker().run_until_idle() == 1000
    assert scheduler.enqueue_due_work(world.at(61)) == SchedulerTick(1, 0, 1, ("r0000",))


def test_a_tick_needs_an_aware_instant(world: World) -> None:
    with pytest.raises(ValueError, match="aware"):
        FlowScheduler(world.engine).enqueue_due_work(datetime(2000, 1, 1))


def test_a_scheduler_needs_an_engine() -> None:
    with pytest.raises(TypeError, match="engine must be a FlowEngine, got 'engine'"):
        FlowScheduler("engine")  # type: ignore[arg-type]


# -- serve


def test_it_sleeps_until_the_next_wakeup_and_not_longer(world: World) -> None:
    world.engine.start("nap", 60, run_id="r1")
    world.engine.start("nap", 100, run_id="r2")
    world.serve(FlowScheduler(world.engine), max_sleep=1000)
    world.serve(world.worker())
    world.clock.advance(120)
    assert world.engine.snapshot("r1").updated_at == world.at(60)
    assert world.engine.snapshot("r2").updated_at == world.at(100)
    # One tick at each wakeup, and one a second later, to see that what was due is done.
    assert world.times("list_due_wakeups") == [0.0, 60.0, 61.0, 100.0, 101.0]


def test_it_looks_at_least_every_max_sleep_seconds(world: World) -> None:
    world.serve(FlowScheduler(world.engine), max_sleep=30)
    world.clock.advance(100)
    assert world.times("list_due_wakeups") == [0.0, 30.0, 60.0, 90.0]


def test_a_new_wait_that_is_due_earlier_wakes_it(world: World) -> None:
    world.engine.start("nap", 60, run_id="late")
    world.serve(FlowScheduler(world.engine), max_sleep=1000)
    world.serve(world.worker())
    world.clock.advance(10)
    world.engine.start("nap", 5, run_id="early")
    world.clock.advance(10)
    assert world.engine.snapshot("early").updated_at == world.at(15)
    assert world.times("list_due_wakeups") == [0.0, 10.0, 15.0, 16.0]


def test_due_work_that_is_queued_already_is_looked_at_once_a_second(world: World) -> None:
    world.engine.start("nap", 60, run_id="r1")
    world.serve(FlowScheduler(world.engine), max_sleep=1000)  # and no worker
    world.clock.advance(63.5)
    assert world.times("list_due_wakeups") == [0.0, 60.0, 61.0, 62.0, 63.0]
    assert world.times("enqueue") == [60.0, 61.0, 62.0, 63.0]
    assert world.queue.pending() == 1


def test_more_than_a_thousand_wakeups_are_all_worked_off(world: World) -> None:
    for number in range(1005):
        world.engine.start("nap", 60, run_id=f"r{number:04}")
    world.serve(FlowScheduler(world.engine))
    world.serve(world.worker())
    world.clock.advance(62)
    assert set(world.statuses().values()) == {"completed"}


def test_two_schedulers_queue_a_run_once(world: World) -> None:
    world.engine.start("nap", 60, run_id="r1")
    world.serve(FlowScheduler(world.engine))
    world.serve(FlowScheduler(world.another()))
    world.clock.advance(60)
    assert world.queue.pending() == 1
    world.serve(world.worker())
    assert world.kinds("r1").count("wait_completed") == 1
    assert world.queue.pending() == 0


def test_a_store_that_fails_is_told_and_asked_again_after_a_longer_and_longer_pause(world: World) -> None:
    world.engine.start("nap", 60, run_id="r1")
    world.failing.add("list_due_wakeups")
    world.serve(FlowScheduler(world.engine))
    world.clock.advance(2)
    during, error = "looking for due work", "StoreError: list_due_wakeups fails"
    assert world.told("store_failed") == [
        (0.0, during, error, 0.1),
        (0.1, during, error, 0.2),
        (0.3, during, error, 0.4),
        (0.7, during, error, 0.8),
        (1.5, during, error, 1.6),
    ]
    world.failing.clear()
    world.serve(world.worker())
    world.clock.advance(58)
    assert world.engine.snapshot("r1").updated_at == world.at(60)


def test_a_store_that_fails_for_long_is_asked_every_five_seconds_and_never_given_up(world: World) -> None:
    world.failing.add("list_due_wakeups")
    world.serve(FlowScheduler(world.engine))
    world.clock.advance(3600)
    told = world.told("store_failed")
    assert [retry_in for *_, retry_in in told[:7]] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert {retry_in for *_, retry_in in told[6:]} == {5.0}
    assert len(told) == 725


@pytest.mark.parametrize("method", ["reclaim_expired", "enqueue", "next_scheduled_wakeup"])
def test_it_goes_on_whichever_call_fails(world: World, method: str) -> None:
    world.engine.start("nap", 60, run_id="r1")
    world.failing.add(method)
    world.serve(FlowScheduler(world.engine))
    world.clock.advance(70)
    assert world.told("store_failed")
    world.failing.clear()
    world.clock.advance(5)
    assert world.queue.pending() == 1


def test_the_pause_starts_short_again_after_a_success(world: World) -> None:
    world.failing.add("list_due_wakeups")
    world.serve(FlowScheduler(world.engine), max_sleep=10)
    world.clock.advance(0.5)
    world.failing.clear()
    world.clock.advance(5)
    world.failing.add("list_due_wakeups")
    world.clock.advance(10)
    assert [retry_in for *_, retry_in in world.told("store_failed")][:6] == [0.1, 0.2, 0.4, 0.1, 0.2, 0.4]


def test_a_queue_that_is_full_is_told_and_tried_again(world: World) -> None:
    told = []
    queue = MemoryWorkQueue(clock=world.clock, capacity=1)
    with FlowEngine(
        world.flows, world.store, queue=queue, clock=world.clock, subscribers=[told.append]
    ) as engine:
        for name in ("r1", "r2"):
            engine.start("nap", 60, run_id=name)
        told.clear()
        stop = world.serve(FlowScheduler(engine))
        world.clock.advance(60)
        error = "QueueFull: 1 tasks are queued, and the capacity is 1; try again later"
        assert [(each.error, each.retry_in) for each in told if each.kind == "store_failed"] == [(error, 0.1)]
        assert world.worker(engine).run_until_idle() == 1
        world.clock.advance(0.1)
        assert queue.pending() == 1
        assert world.worker(engine).run_until_idle() == 1
        stop.cancel()
        world.clock.settle()
    assert world.statuses() == {"r1": "completed", "r2": "completed"}


def test_it_puts_expired_leases_back_in_line(world: World) -> None:
    world.queue.enqueue("r1")
    world.queue.lease(20.0)  # by somebody who is killed now
    world.serve(FlowScheduler(world.engine), max_sleep=15)
    world.clock.advance(29.9)
    assert world.queue.pending() == 0
    world.clock.advance(0.1)
    assert world.queue.pending() == 1


def test_a_wall_clock_that_is_set_forward_is_noticed_within_max_sleep(world: World) -> None:
    world.engine.start("nap", 3600, run_id="r1")
    world.serve(FlowScheduler(world.engine), max_sleep=30)
    world.serve(world.worker())
    world.clock.advance(10)
    world.clock.step_wall(3600)
    world.clock.advance(19.9)
    assert world.statuses() == {"r1": "suspended"}
    world.clock.advance(0.1)
    assert world.statuses() == {"r1": "completed"}


def test_a_cancel_token_ends_it_at_once(world: World) -> None:
    stop, ends = CancelToken(clock=world.clock), []

    def serve() -> None:
        FlowScheduler(world.engine).serve(stop, max_sleep=1000)
        ends.append(world.seconds)

    thread = world.clock.spawn(serve, "scheduler")
    world.clock.advance(5)
    stop.cancel()
    thread.join()
    assert ends == [5.0]


def test_an_event_of_the_standard_library_ends_it_within_a_tenth_of_a_second(world: World) -> None:
    stop, ends = threading.Event(), []

    def serve() -> None:
        FlowScheduler(world.engine).serve(stop, max_sleep=1000)
        ends.append(world.seconds)

    thread = world.clock.spawn(serve, "scheduler")
    world.clock.advance(5.05)
    stop.set()
    thread.join()
    assert ends == [pytest.approx(5.1)]


def test_what_can_not_stop_it_is_refused(world: World) -> None:
    with pytest.raises(TypeError, match=r"stop must be a CancelToken or a threading.Event, got 1.0"):
        FlowScheduler(world.engine).serve(1.0)


def test_a_stop_that_came_before_is_no_tick(world: World) -> None:
    stop = CancelToken(clock=world.clock)
    stop.cancel()
    FlowScheduler(world.engine).serve(stop)
    assert world.times("list_due_wakeups") == []


def test_a_run_that_waits_for_a_person_is_not_queued_however_often_it_is_due(world: World) -> None:
    asked: list[int] = []
    say = [1]

    @world.flows.workflow
    def drifting(ctx: WorkflowContext) -> None:
        asked.append(1)
        ctx.step("a", "fails", say[0], retry=RetryPolicy.fixed(3, 1.0))

    world.engine.start("drifting", run_id="r")
    say[0] = 2
    asked.clear()
    world.serve(world.worker())
    world.serve(FlowScheduler(world.engine), max_sleep=1.0)
    world.clock.advance(60)
    assert len(asked) == 1
    assert [each.run_id for each in world.engine.failures()] == ["r"]


def test_a_thousand_runs_that_nobody_here_can_drive_do_not_hide_what_is_due_behind_them(
    world: World,
) -> None:
    other = FlowRuntime()
    other.step(lambda: 1 / 0, name="gone")
    other.workflow(lambda ctx: ctx.step("a", "gone", retry=RetryPolicy.fixed(3, 0.5)), name="lost")
    engine = world.another(other)
    for number in range(1000):
        engine.start("lost", run_id=f"lost-{number}")
    world.engine.start("nap", 0.8, run_id="known")
    world.serve(world.worker())
    world.serve(FlowScheduler(world.engine), max_sleep=1.0)
    world.clock.advance(3.0)
    assert world.engine.snapshot("known").status == "completed"
