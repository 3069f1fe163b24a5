"""Serving: a scheduler and workers as supervised tasks, from recovery to the stop."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from supervisor import GraceExceeded
from supervisor.durable import FlowEngine, FlowRuntime, MemoryEventStore, StoreError
from supervisor.durable.history import RunCreated
from tests.durable.world import World

# -- start


def test_serving_drives_what_is_submitted_and_what_falls_due(world: World) -> None:
    with world.engine.serve(workers=2):
        world.engine.submit("one", "quick", run_id="r1")
        world.engine.submit("nap", 60, run_id="r2")
        assert world.engine.result("r1", timeout=1) is None
        assert world.engine.result("r2", timeout=100) == "awake"
    assert world.engine.snapshot("r2").updated_at == world.at(60)


def test_it_recovers_first_what_nobody_drives(world: World) -> None:
    def killed_in_a_step() -> None:
        raise SystemExit

    world.flows.step(killed_in_a_step)
    with pytest.raises(SystemExit):
        world.engine.start("one", "killed_in_a_step", run_id="running")
    world.engine.append("pending", 0, [RunCreated({"name": "one", "version": "1"}, "quick")], world.at(0))
    world.engine.start("nap", 60, run_id="waiting")
    found = FlowRuntime()
    found.step(lambda: "again", name="killed_in_a_step")
    found.step(lambda: "quick", name="quick")
    found.workflow(lambda ctx, step: ctx.step("s", step), name="one")
    engine = world.another(found)
    with engine.serve():
        assert engine.result("running", timeout=1) == "again"
        assert engine.result("pending", timeout=1) == "quick"
    assert world.statuses()["waiting"] == "suspended"


def test_its_tasks_are_supervised_under_names_that_tell(world: World) -> None:
    with world.engine.serve(workers=3) as serving:
        assert serving.supervisor is not None
        names = sorted(info.name for info in serving.supervisor.tasks())
        assert names == ["scheduler", "worker-1", "worker-2", "worker-3"]


def test_a_store_that_can_not_be_asked_at_the_start_is_asked_again(world: World) -> None:
    world.store.inner.append("lost", 0, [RunCreated({"name": "one", "version": "1"}, "quick")], world.start)
    world.failing.add("find_runs")
    with world.engine.serve():
        world.clock.advance(0.25)
        assert world.told("store_failed") == [
            (0.0, "recovering runs", "StoreError: find_runs fails", 0.1),
            (0.1, "recovering runs", "StoreError: find_runs fails", 0.2),
        ]
        world.failing.clear()
        assert world.engine.result("lost", timeout=1) is None


def test_a_closed_engine_takes_nothing_more(world: World) -> None:
    worker = world.worker()
    world.engine.start("nap", 60, run_id="r")
    world.queue.enqueue("r")
    world.engine.close()
    for call in (
        lambda: world.engine.submit("nap", 1),
        lambda: world.engine.start("nap", 1),
        lambda: world.engine.force_cancel("r"),
        lambda: world.engine.recover(),
        worker.run_once,
    ):
        with pytest.raises(StoreError, match="closed; make a new one"):
            call()
    assert (world.queue.pending(), world.queue.lease(1).failures) == (1, 0)
    world.clock.settle()


def test_a_serving_is_entered_once(world: World) -> None:
    serving = world.engine.serve()
    with serving:
        pass
    with pytest.raises(RuntimeError, match=r"entered once; call engine.serve\(\) again"):
        serving.__enter__()


def test_settings_that_make_no_sense_are_refused(world: World) -> None:
    for options in ({"workers": 0}, {"poll": -1}, {"lease_seconds": 0}, {"grace": -1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            world.engine.serve(**options)


def test_serving_again_after_a_stop_goes_on(world: World) -> None:
    world.engine.submit("five", "slow", run_id="r1")
    for seconds in (15, 15, 15):
        with world.engine.serve():
            world.clock.advance(seconds)
    assert [when for _, when in world.begun] == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert world.statuses() == {"r1": "completed"}


# -- stop


def test_leaving_the_block_waits_for_steps_that_run_and_gives_back_what_was_not_started(world: World) -> None:
    for name in ("r1", "r2"):
        world.engine.submit("five", "slow", run_id=name)
    with world.engine.serve(workers=1):
        world.clock.advance(3)
    assert world.seconds == 10.0
    assert world.ended == [("r1", 10.0)]
    assert world.engine.snapshot("r1").steps["s0"].status == "completed"
    assert world.statuses() == {"r1": "running", "r2": "pending"}
    assert world.queue.pending() == 2


def test_stopping_twice_is_the_same_as_once(world: World) -> None:
    with world.engine.serve() as serving:
        serving.stop()
        serving.stop()
    serving.stop()
    assert serving.stopped


def test_steps_that_take_longer_than_the_grace_are_canceled_and_delivered_again_later(world: World) -> None:
    world.engine.submit("one", "slow", run_id="r1")
    with world.engine.serve(grace=2.0):
        world.clock.advance(3)
    assert world.seconds == 5.0
    found = world.engine.snapshot("r1")
    assert (found.status, found.steps["s"].status, found.steps["s"].attempt) == ("running", "running", 1)
    assert world.queue.pending() == 1
    with world.another().serve():
        world.clock.advance(11)
    found = world.engine.snapshot("r1")
    assert (found.status, found.steps["s"].attempt) == ("completed", 1)
    assert [when for _, when in world.begun] == [0.0, 5.0]


def test_steps_that_are_deaf_even_then_are_named(world: World) -> None:
    world.engine.submit("one", "deaf", run_id="r1")
    with pytest.raises(GraceExceeded, match="worker-1"), world.engine.serve(workers=1, grace=2.0):
        world.clock.advance(1)
    assert world.seconds == 8.0  # two to end, five more once they were canceled
    world.clock.advance(30)
    assert world.ended == [("r1", 10.0)]
    assert world.statuses() == {"r1": "completed"}  # its lease was extended all the while
    assert world.queue.seconds_to_next() is None


def test_closing_the_engine_stops_what_serves(world: World) -> None:
    world.engine.submit("five", "slow", run_id="r1")
    engine = world.another()
    with engine.serve(workers=1) as serving:
        world.clock.advance(3)
        engine.close()
        assert serving.stopped
        assert world.seconds == 10.0
    engine.close()
    assert world.engine.snapshot("r1").steps["s0"].status == "completed"
    assert world.queue.pending() == 1
    with pytest.raises(StoreError, match="the engine is closed; make a new one"):
        engine.serve()


def test_closing_an_engine_whose_steps_are_deaf_tells_and_closes_all_the_same(world: World) -> None:
    engine = world.another()
    engine.submit("one", "deaf", run_id="r1")
    serving = engine.serve(workers=1, grace=0.0).__enter__()
    world.clock.advance(1)
    with pytest.raises(GraceExceeded, match="worker-1"):
        engine.close()
    engine.close()
    assert serving.stopped
    world.clock.advance(30)
    with pytest.raises(StoreError, match="the engine is closed"):
        engine.drive("r1")


def interrupted_after(world: World, seconds: float, grace: float) -> None:
    with world.engine.serve(workers=1, grace=grace):
        world.clock.advance(seconds)
        raise KeyboardInterrupt


def test_what_is_raised_in_the_block_comes_out_of_it_after_the_stop(world: World) -> None:
    world.engine.submit("one", "slow", run_id="r1")
    with pytest.raises(KeyboardInterrupt):
        interrupted_after(world, 3, grace=30.0)
    assert world.statuses() == {"r1": "completed"}


def test_what_is_raised_in_the_block_counts_more_than_steps_that_are_deaf(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.engine.submit("one", "deaf", run_id="r1")
    with pytest.raises(KeyboardInterrupt):
        interrupted_after(world, 1, grace=0.0)
    assert "worker-1" in caplog.text
    world.clock.advance(30)


def test_a_ctrl_c_while_waiting_for_a_result_stops_in_order() -> None:
    """On the real clock, with a real signal."""
    flows, running, release = FlowRuntime(), threading.Event(), threading.Event()

    @flows.step
    def waits():
        running.set()
        release.wait(20)
        return "done"

    flows.workflow(lambda ctx: ctx.step("s", waits), name="one")

    def interrupt() -> None:
        running.wait(20)
        os.kill(os.getpid(), signal.SIGINT)
        release.set()

    def serve(engine: FlowEngine) -> None:
        with engine.serve():
            engine.submit("one", run_id="r1")
            engine.result("r1", timeout=30)

    with FlowEngine(flows, MemoryEventStore()) as engine:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            serve(engine)
        thread.join()
        assert engine.result("r1", timeout=0) == "done"


# -- under load


def test_expired_leases_are_reclaimed_while_steps_hang_in_every_slot(world: World) -> None:
    for number in range(2):
        world.engine.submit("one", "slow", run_id=f"r{number}")
    world.engine.submit("one", "quick", run_id="lost")
    with world.engine.serve(workers=2, poll=1.0, lease_seconds=3.0):
        world.clock.settle()
        assert world.queue.inner.lease(2.0).run_id == "lost"  # by a worker that is killed now
        world.engine.start("nap", 4, run_id="due")
        world.clock.advance(5)
        assert world.ended == []  # every slot is busy
        assert world.queue.pending() == 2  # and yet both wait for the first that is free
        world.clock.advance(5)
        assert world.statuses() == dict.fromkeys(("r0", "r1", "lost", "due"), "completed")
        assert world.engine.snapshot("due").updated_at == world.at(10)


@pytest.mark.slow
def test_a_thousand_runs_at_once_are_all_driven_by_four_workers_five_times() -> None:
    """On the real clock: a wake-up that is lost at the limit would let a task lie until somebody polls."""
    flows = FlowRuntime()
    flows.step(lambda n: n + 1, name="add")
    flows.workflow(lambda ctx, n: ctx.step("s", "add", n), name="one")
    for _ in range(5):
        with FlowEngine(flows, MemoryEventStore()) as engine:
            with engine.serve(workers=4, poll=1000.0):
                runs = [engine.submit("one", n) for n in range(1000)]
                assert [engine.result(run, timeout=20) for run in runs] == list(range(1, 1001))
            assert engine.queue.seconds_to_next() is None


@pytest.mark.parametrize("seed", range(10))
def test_no_task_lies_while_a_worker_is_free_in_any_order_of_threads(seed: int) -> None:
    world = World(seed)
    try:
        with world.engine.serve(workers=4, poll=1000.0):
            for number in range(40):
                world.engine.submit("one", "quick", run_id=f"r{number}")
                if number % 7 == 0:
                    world.clock.settle()
            world.clock.settle()
            assert set(world.statuses().values()) == {"completed"}
            assert world.seconds == 0.0
            assert len(world.begun) == 40
    finally:
        world.close()
