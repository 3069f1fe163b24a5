"""What one run changes about a flow: pure transitions, held to a model in many orders."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor import BackoffPolicy
from supervisor.flows import Backoff, Completed, FlowInfo, Idle, Running, Scheduler, Tripped
from supervisor.flows.status import FLOW_BACKOFF, Record, Status, later
from supervisor.testing import VirtualClock
from tests.flows.scheduling import EXACT, Body, Start, at


def fail(record: Record, now: float, *, limit: int | None = None, draw: float = 0.5) -> Record:
    return record.fail(at(now), now, 1.0, "boom", EXACT, limit, draw)


def test_at_first_a_flow_is_idle_and_has_no_past() -> None:
    record = Record()
    assert record.status == Idle()
    assert (record.run_count, record.last_run, record.last_duration, record.streak) == (0, None, None, 0)
    assert (record.eligible, record.skipped, record.paused) == (None, 0, False)
    assert record.refusal(0.0) is None


def test_a_start_counts_and_notes_when() -> None:
    record = Record().start(at(5))
    assert record.status == Running(at(5))
    assert (record.run_count, record.last_run) == (1, at(5))
    assert record.refusal(6.0) == "running"


def test_a_success_clears_streak_and_window() -> None:
    record = fail(fail(Record().start(at(0)), 1.0), 2.0).start(at(3)).succeed(at(4), 4.0, 1.5)
    assert record.status == Completed(at(4))
    assert (record.streak, record.eligible, record.eligible_at, record.last_duration) == (0, None, None, 1.5)
    assert record.refusal(4.0) is None


def test_failure_number_s_opens_a_window_from_the_end_of_the_run() -> None:
    record = Record()
    for streak, delay in enumerate([1.0, 2.0, 4.0, 8.0], start=1):
        record = fail(record.start(at(100)), 101.0)
        assert record.status == Backoff(at(101 + delay), streak, "boom")
        assert (record.eligible, record.eligible_at) == (101.0 + delay, at(101 + delay))


def test_a_window_ends_exactly_at_its_end() -> None:
    record = fail(Record().start(at(0)), 1.0)
    assert record.refusal(1.999999) == "backoff"
    assert record.refusal(2.0) is None
    assert record.refusal(2.0 - 1e-12) is None


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_limit_trips_and_leaves_no_window(limit: int) -> None:
    record = Record()
    for streak in range(1, limit + 1):
        assert record.refusal(1e9) is None
        record = fail(record.start(at(0)), 0.0, limit=limit)
        assert isinstance(record.status, Tripped if streak == limit else Backoff)
    assert record.status == Tripped(limit, "boom")
    assert (record.eligible, record.eligible_at) == (None, None)
    assert record.refusal(1e9) == "tripped"


def test_without_a_limit_no_streak_trips() -> None:
    record = Record()
    for _ in range(2000):
        record = fail(record.start(at(0)), 0.0)
    assert record.status == Backoff(at(60), 2000, "boom")


def test_a_cancel_is_idle_and_leaves_streak_and_window() -> None:
    failed = fail(Record().start(at(0)), 1.0)
    record = failed.start(at(1.5)).cancel(1.75, 0.25)
    assert record.status == Idle()
    assert (record.streak, record.eligible, record.run_count) == (1, 2.0, 2)
    assert (record.ended, record.last_duration) == (1.75, 0.25)


def test_a_reset_forgets_failures_but_not_the_past() -> None:
    failed = fail(Record().start(at(0)), 1.0, limit=1).skip()
    record = failed.reset()
    assert record.status == Idle()
    assert (record.streak, record.eligible, record.eligible_at) == (0, None, None)
    assert (record.run_count, record.last_run, record.last_duration, record.skipped) == (1, at(0), 1.0, 1)
    assert Record().start(at(0)).succeed(at(1), 1.0, 1.0).reset().status == Idle()


def test_a_reset_during_a_run_lets_it_run_and_its_failure_is_the_first() -> None:
    record = fail(fail(Record().start(at(0)), 1.0).start(at(2)), 3.0).start(at(4)).reset()
    assert record.status == Running(at(4))
    assert record.streak == 0
    assert fail(record, 5.0).status == Backoff(at(6), 1, "boom")


def test_of_several_refusals_the_nearest_reason_is_told() -> None:
    paused = Record()._replace(paused=True)
    assert paused.refusal(0.0) == "paused"
    assert paused.start(at(0)).refusal(0.0) == "running"
    assert fail(paused.start(at(0)), 0.0, limit=1).refusal(0.0) == "paused"


def test_an_instant_beyond_the_calendar_is_its_end() -> None:
    assert later(at(0), 1e300) == datetime.max.replace(tzinfo=UTC)
    record = Record().fail(at(0), 0.0, 0.0, "x", BackoffPolicy.constant(1e300), None, 0.5)
    assert record.eligible == 1e300
    assert record.eligible_at == datetime.max.replace(tzinfo=UTC)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["start", "succeed", "fail", "cancel", "reset", "skip", "pause", "resume"]),
        st.floats(0.0, 1000.0, allow_nan=False),
        st.floats(0.0, 1.0, exclude_max=True, allow_nan=False),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(steps=STEPS, limit=st.none() | st.integers(1, 4))
def test_in_any_order_status_streak_and_window_agree(
    steps: list[tuple[str, float, float]], limit: int | None
) -> None:
    record, now, streak, runs, skips = Record(), 0.0, 0, 0, 0
    for step, passed, draw in steps:
        now += passed
        if step == "start":
            if record.running or isinstance(record.status, Tripped):
                continue
            record, runs = record.start(at(now)), runs + 1
        elif step in ("succeed", "fail", "cancel"):
            if not record.running:
                continue
            if step == "succeed":
                record, streak = record.succeed(at(now), now, passed), 0
            elif step == "cancel":
                record = record.cancel(now, passed)
            else:
                streak += 1
                record = record.fail(at(now), now, passed, "boom", FLOW_BACKOFF, limit, draw)
                if limit is not None and streak >= limit:
                    assert record.status == Tripped(streak, "boom")
                else:
                    assert record.eligible == now + FLOW_BACKOFF.delay(streak, draw)
        elif step == "reset":
            record, streak = record.reset(), 0
        elif step == "skip":
            record, skips = record.skip(), skips + 1
        else:
            record = record._replace(paused=step == "pause")
        assert (record.streak, record.run_count, record.skipped) == (streak, runs, skips)
        status = record.status
        assert (record.eligible is None) == (record.eligible_at is None)
        if isinstance(status, Backoff):
            assert (status.streak, status.until) == (streak, record.eligible_at)
        if isinstance(status, Tripped):
            assert (status.streak, record.eligible) == (streak, None)
        if isinstance(status, Completed):
            assert (streak, record.eligible) == (0, None)
        if streak == 0:
            assert record.eligible is None
        refusal = record.refusal(now)
        assert (refusal == "running") == record.running
        if refusal is None:
            assert not record.paused
            assert record.eligible is None or record.eligible <= now + 1e-9


# Snapshots


def test_before_its_first_run_a_flow_is_idle(scheduler: Scheduler, start: Start, clock: VirtualClock) -> None:
    scheduler.manual("a", Body(clock))
    assert start(scheduler).list() == [
        FlowInfo(
            id="a",
            status=Idle(),
            run_count=0,
            last_run=None,
            last_duration=None,
            failure_streak=0,
            next_eligible=None,
            next_fire=None,
            skipped=0,
            paused=False,
        )
    ]


def test_a_snapshot_has_the_fields_and_the_five_statuses_of_the_docs() -> None:
    names = "id status run_count last_run last_duration failure_streak next_eligible next_fire skipped paused"
    assert [field.name for field in dataclasses.fields(FlowInfo)] == names.split()
    fields = {cls.__name__: [field.name for field in dataclasses.fields(cls)] for cls in get_args(Status)}
    assert fields == {
        "Idle": [],
        "Running": ["started"],
        "Completed": ["at"],
        "Backoff": ["until", "streak", "last_error"],
        "Tripped": ["streak", "last_error"],
    }


def test_a_snapshot_is_a_copy_nobody_can_change(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    scheduler.every("a", Body(clock, 0.5), interval=1.0)
    running = start(scheduler)
    before = running.status("a")
    assert before is not None
    with pytest.raises(AttributeError):
        before.run_count = 5  # type: ignore[misc]
    with pytest.raises(AttributeError):
        before.status.started = at(9)  # type: ignore[union-attr, misc]
    clock.advance(10.0)
    assert before.run_count == 1
    assert before.status == Running(at(0))
    running.list().clear()
    assert len(running.list()) == 1


def test_statuses_match_by_position_with_a_wildcard(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    no = ValueError("no")
    scheduler.manual("idle", Body(clock))
    scheduler.manual("running", Body(clock, 50.0))
    scheduler.manual("completed", Body(clock))
    scheduler.manual("backoff", Body(clock, no))
    scheduler.manual("tripped", Body(clock, no))
    scheduler.set_backoff("backoff", EXACT)
    scheduler.set_backoff("tripped", EXACT, streak_limit=1)
    running = start(scheduler)
    for name in ("running", "completed", "backoff", "tripped"):
        running.trigger(name)
    clock.advance(0.5)
    words: list[str] = []
    for info in running.list():
        match info.status:
            case Running(started):
                words.append(f"runs since {started:%S}")
            case Completed(ended):
                words.append(f"done at {ended:%S}")
            case Backoff(until, streak, error):
                words.append(f"waits until {until:%S} after {streak}: {error}")
            case Tripped(streak, error):
                words.append(f"tripped after {streak}: {error}")
            case _:
                words.append("idle")
    assert words == [
        "idle",
        "runs since 00",
        "done at 00",
        "waits until 01 after 1: ValueError: no (in flow 'backoff')",
        "tripped after 1: ValueError: no (in flow 'tripped')",
    ]


def test_a_list_is_in_the_order_of_registration(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    names = ["m", "z", "a", "10", "9"]
    for name in names:
        scheduler.manual(name, Body(clock))
    running = start(scheduler)
    assert [info.id for info in running.list()] == names
    running.trigger("9")
    running.trigger("z")
    clock.settle()
    assert [info.id for info in running.list()] == names
    running.stop()
    assert [info.id for info in running.list()] == names


def test_every_instant_is_aware_utc_and_last_run_is_the_start(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    scheduler.cron("a", Body(clock, 0.25, ValueError("no")), expression="* * * * * *", tz="Asia/Tokyo")
    running = start(scheduler)
    seen: list[datetime] = []
    for _ in range(8):
        clock.advance(0.5)
        info = running.status("a")
        assert info is not None
        instants = [info.last_run, info.next_eligible, info.next_fire]
        instants += [getattr(info.status, name, None) for name in ("started", "at", "until")]
        assert {each.tzinfo for each in instants if each is not None} == {UTC}
        if info.last_run is not None:
            seen.append(info.last_run)
    assert seen == sorted(seen)
    assert seen[:4] == [at(1), at(1), at(2), at(2)]


def test_run_count_counts_every_accepted_run_and_nothing_else(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    body = Body(clock, 2.5, ValueError("no"), 100.0, 0.0)
    scheduler.cron("a", body, expression="* * * * * *")
    scheduler.set_backoff("a", EXACT)
    running = start(scheduler)
    clock.advance(1.5)
    with pytest.raises(RuntimeError):
        running.trigger("a")
    clock.advance(2.0)  # ticks at 2 and 3 skipped
    clock.advance(1.5)  # fails at 4; at 5 again, a long one
    running.cancel_flow("a")  # which sleeps on
    clock.advance(200.0)
    info = running.status("a")
    assert info is not None
    assert info.run_count == len(body.starts)
    assert info.skipped + info.run_count == 205


def test_status_answers_during_and_after_the_stop_and_from_inside_a_run(
    scheduler: Scheduler, start: Start, clock: VirtualClock
) -> None:
    seen: list[tuple[str, int]] = []

    def looks() -> None:
        for seconds in (0.0, 2.0):
            clock.sleep(seconds)
            info = running.status("a")
            assert info is not None
            seen.append((type(info.status).__name__, len(running.list())))

    scheduler.manual("a", looks)
    running = start(scheduler)
    running.trigger("a")
    clock.settle()
    running.stop()
    assert seen == [("Running", 1), ("Running", 1)]
    info = running.status("a")
    assert info is not None
    assert (info.status, info.next_fire) == (Completed(at(2)), None)
    assert running.status("unknown") is None
