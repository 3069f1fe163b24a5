"""The heart of a worker: leases are extended while steps run, and what happens when one is lost."""

from __future__ import annotations

import pytest

from supervisor import CancelReason, CancelToken
from supervisor.durable import StepInvocation
from supervisor.testing import no_leaked_threads
from tests.durable.world import World


def tokens_of(world: World) -> list[tuple[float, CancelReason | None]]:
    """Register the step `watched`, which runs until it is canceled; when and why it was."""
    found: list[tuple[float, CancelReason | None]] = []

    @world.flows.step
    def watched(input: object, invocation: StepInvocation) -> str:
        world.begun.append((invocation.run_id, world.seconds))
        invocation.token.wait(1000.0)
        found.append((world.seconds, invocation.token.reason))
        return "a result that comes late"

    return found


def test_a_lease_is_extended_three_times_in_its_length_while_a_step_runs(world: World) -> None:
    world.engine.submit("one", "deaf", run_id="r1")
    world.serve(world.worker(lease_seconds=6.0))
    world.clock.advance(20)
    assert world.times("heartbeat") == [2.0, 4.0, 6.0, 8.0]
    assert world.ended == [("r1", 10.0)]


def test_nobody_takes_over_a_step_that_takes_longer_than_a_lease(world: World) -> None:
    world.engine.submit("five", "slow", run_id="r1")
    world.serve(world.worker(lease_seconds=3.0))
    world.serve(world.worker(world.another(), lease_seconds=3.0))
    world.clock.advance(50)
    assert world.statuses() == {"r1": "completed"}
    assert [when for _, when in world.begun] == [0.0, 10.0, 20.0, 30.0, 40.0]


def test_the_heart_beats_on_while_a_worker_stops(world: World) -> None:
    world.engine.submit("one", "slow", run_id="r1")
    stop = world.serve(world.worker(lease_seconds=3.0))
    world.clock.advance(0.5)
    stop.cancel()
    world.clock.advance(20)
    assert world.times("heartbeat") == [float(n) for n in range(1, 10)]
    assert world.statuses() == {"r1": "completed"}


def test_one_heart_beats_for_all_leases_of_a_worker(world: World) -> None:
    for number in range(3):
        world.engine.submit("one", "slow", run_id=f"r{number}")
    world.serve(world.worker(concurrency=3, lease_seconds=12.0))
    world.clock.advance(10)
    assert world.times("heartbeat") == [4.0] * 3 + [8.0] * 3


def test_a_worker_without_work_has_no_beat_and_one_that_stopped_no_heart(world: World) -> None:
    with no_leaked_threads():
        stop = world.serve(world.worker(lease_seconds=3.0))
        world.clock.advance(100)
        assert world.times("heartbeat") == []
        stop.cancel()
        world.clock.settle()


def test_a_beat_that_fails_is_made_good_by_the_next_one(world: World) -> None:
    world.engine.submit("one", "slow", run_id="r1")
    world.serve(world.worker(lease_seconds=6.0))
    world.serve(world.worker(world.another(), lease_seconds=6.0))
    world.clock.advance(1)
    world.failing.add("heartbeat")
    world.clock.advance(2)
    world.failing.clear()
    world.clock.advance(7)
    assert world.times("heartbeat") == [2.0, 4.0, 6.0, 8.0]
    assert (world.begun, world.ended) == ([("r1", 0.0)], [("r1", 10.0)])
    assert world.statuses() == {"r1": "completed"}


def test_a_lost_lease_cancels_the_step_and_its_result_does_not_count(world: World) -> None:
    found = tokens_of(world)
    world.engine.submit("one", "watched", run_id="r1")
    world.serve(world.worker(lease_seconds=6.0))
    world.clock.advance(1)
    world.failing.add("heartbeat")  # it is cut off
    world.clock.advance(4.5)
    assert world.queue.inner.reclaim_expired() == 0
    world.clock.advance(1)
    assert world.queue.inner.reclaim_expired() == 1
    taken = world.queue.inner.lease(100.0)
    before = world.kinds("r1")
    world.failing.clear()
    world.clock.advance(10)
    assert found == [(8.0, CancelReason.REPLACED)]
    assert world.kinds("r1") == before == ["run_created", "run_started", "step_created", "step_started"]
    world.queue.ack(taken)  # what the new owner has is not touched


def test_the_new_owner_runs_the_same_attempt_and_only_its_result_is_recorded(world: World) -> None:
    tokens_of(world)
    other = world.another()
    world.engine.submit("one", "watched", run_id="r1")
    world.serve(world.worker(lease_seconds=6.0))
    world.clock.advance(1)
    world.failing.add("heartbeat")
    world.clock.advance(4)
    world.serve(world.worker(other, lease_seconds=100.0))
    world.clock.advance(3)  # the beat at 8 comes too late
    world.failing.clear()
    world.clock.advance(1100)
    assert [when for _, when in world.begun] == [0.0, 6.0]
    assert world.kinds("r1") == [
        "run_created",
        "run_started",
        "step_created",
        "step_started",
        "step_completed",
        "run_completed",
    ]
    assert world.engine.snapshot("r1").updated_at == world.at(1006)
    assert world.queue.seconds_to_next() is None


def test_a_deaf_step_that_ends_after_its_lease_was_lost_is_refused(world: World) -> None:
    world.engine.submit("one", "deaf", run_id="r1")
    world.serve(world.worker(lease_seconds=3.0))
    world.clock.advance(0.5)
    world.failing.add("heartbeat")
    world.clock.advance(3)
    assert world.queue.inner.reclaim_expired() == 1
    taken = world.queue.inner.lease(100.0)
    world.failing.clear()
    world.clock.advance(10)
    assert world.ended == [("r1", 10.0)]
    assert world.kinds("r1")[-1] == "step_started"
    world.queue.ack(taken)


def test_a_run_whose_lease_was_lost_stays_queued_while_its_step_is_deaf_in_the_same_process(
    world: World,
) -> None:
    world.engine.submit("one", "deaf", run_id="r1")
    world.serve(world.worker(concurrency=2, lease_seconds=3.0))
    world.clock.advance(0.5)
    world.failing.add("heartbeat")
    world.clock.advance(4)  # the lease has ended, and the other thread got the run
    world.failing.clear()
    world.clock.advance(5)
    assert world.begun == [("r1", 0.0)]  # one process never runs the same run on two threads
    assert world.queue.pending() == 1
    world.clock.advance(20)
    assert [run for run, _ in world.begun] == ["r1", "r1"]
    assert world.statuses() == {"r1": "completed"}
    assert world.kinds("r1").count("step_completed") == 1
    assert world.queue.seconds_to_next() is None


def test_a_cancellation_by_another_process_reaches_the_step_at_the_next_beat(world: World) -> None:
    found = tokens_of(world)
    world.engine.submit("one", "watched", run_id="r1")
    world.serve(world.worker(lease_seconds=30.0))
    world.clock.advance(12)
    world.another().cancel("r1", "enough")
    world.clock.advance(10)
    assert found == [(20.0, CancelReason.REQUESTED)]
    assert world.statuses() == {"r1": "cancelled"}


def test_a_cancellation_in_this_process_reaches_the_step_at_once(world: World) -> None:
    found = tokens_of(world)
    world.engine.submit("one", "watched", run_id="r1")
    world.serve(world.worker())
    world.clock.advance(12)
    world.engine.cancel("r1")
    world.clock.settle()
    assert found == [(12.0, CancelReason.REQUESTED)]
    assert world.statuses() == {"r1": "cancelled"}


def test_a_run_that_another_process_ends_by_force_is_let_go_at_the_next_beat(world: World) -> None:
    found = tokens_of(world)
    world.engine.submit("one", "watched", run_id="r1")
    world.serve(world.worker(lease_seconds=30.0))
    world.clock.advance(12)
    world.another().force_cancel("r1")
    world.clock.advance(10)
    assert found == [(20.0, CancelReason.REQUESTED)]
    assert world.kinds("r1")[-1] == "run_cancelled"
    assert world.queue.seconds_to_next() is None


@pytest.mark.parametrize("seed", range(6))
def test_a_lease_that_flickers_ends_every_run_and_records_every_step_once(seed: int) -> None:
    world = World(seed)
    try:
        for number in range(4):
            world.engine.submit("five", "slow", run_id=f"r{number}")
        for engine in (world.engine, world.another()):
            world.serve(world.worker(engine, concurrency=2, lease_seconds=3.0, poll=0.5))
        for _ in range(10):
            world.failing.add("heartbeat")
            world.clock.advance(4)
            world.failing.clear()
            world.clock.advance(11)
        world.clock.advance(300)
        assert set(world.statuses().values()) == {"completed"}
        for number in range(4):
            assert world.kinds(f"r{number}").count("step_started") == 5
            assert world.kinds(f"r{number}").count("step_completed") == 5
        assert (world.queue.seconds_to_next(), world.queue.dead_letters()) == (None, [])
    finally:
        world.close()


def test_the_token_of_a_step_is_of_the_clock_of_the_engine(world: World) -> None:
    stop = CancelToken(clock=world.clock)
    world.engine.submit("one", "slow", run_id="r1")
    thread = world.clock.spawn(lambda: world.worker().serve(stop), "worker")
    world.clock.advance(9.5)
    assert world.ended == []
    stop.cancel()
    thread.join()
    assert world.ended == [("r1", 10.0)]
