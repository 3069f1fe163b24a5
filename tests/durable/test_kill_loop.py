"""Real processes, really killed. The long form is a program: see `tests/durable/kill_loop.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor.durable.history import Envelope, RunCompleted, StepCompleted
from tests.durable.kill_loop import KillLoop, Plan, Verdict, judge_run
from tests.durable.making import AT, begun, step
from tests.postgres_server import PostgresServer


@pytest.mark.slow
def test_killed_workers_lose_nothing_and_do_no_recorded_step_again_on_sqlite(tmp_path: Path) -> None:
    verdict = KillLoop(Plan(store=f"sqlite:{tmp_path / 'flows.db'}", folder=tmp_path, kills=6, runs=16)).run()
    assert verdict.problems == [], str(verdict)
    assert sum(verdict.kills.values()) == 6
    assert min(verdict.runs.values()) >= 2


@pytest.mark.slow
def test_workers_that_stand_still_for_longer_than_their_leases_harm_no_history(tmp_path: Path) -> None:
    plan = Plan(store=f"sqlite:{tmp_path / 'flows.db'}", folder=tmp_path, kills=4, runs=16, stalls=1.0)
    verdict = KillLoop(plan).run()
    assert verdict.problems == [], str(verdict)
    assert sum(verdict.kills.values()) == 4


@pytest.mark.slow
def test_killed_workers_lose_nothing_and_do_no_recorded_step_again_on_postgresql(
    tmp_path: Path, pg_dsn: str
) -> None:
    verdict = KillLoop(Plan(store=pg_dsn, folder=tmp_path, kills=6, runs=16)).run()
    assert verdict.problems == [], str(verdict)
    assert sum(verdict.kills.values()) == 6
    assert min(verdict.runs.values()) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("goes", [PostgresServer.stop, PostgresServer.kill], ids=["stopped", "killed"])
def test_nor_does_a_postgresql_that_is_started_anew_among_the_kills(
    tmp_path: Path, pg_server: PostgresServer, pg_of_our_own: str, goes: Callable[[PostgresServer], None]
) -> None:
    def restart() -> None:
        try:
            goes(pg_server)
        finally:
            pg_server.start()

    plan = Plan(store=pg_of_our_own, folder=tmp_path, kills=6, runs=16, interlude=restart)
    verdict = KillLoop(plan).run()
    assert verdict.problems == [], str(verdict)
    assert sum(verdict.kills.values()) == 6


# The judge is shown what it has to find.


def history(*, mark: str = "m1") -> list[Envelope]:
    events = [
        *begun("line", 1),
        *step("s0"),
        StepCompleted("s0", {"value": 2, "mark": mark}),
        RunCompleted(2),
    ]
    return [Envelope("r1", number, f"id{number}", AT, event) for number, event in enumerate(events, 1)]


def lines(*more: dict[str, Any]) -> list[dict[str, Any]]:
    """What two writers and one body note when all is well, and more."""
    return [
        {"what": "stored", "pid": 1, "at": 10, "events": [[n, f"id{n}"] for n in (1, 2, 3, 4)]},
        {"what": "start", "pid": 1, "at": 20, "step": "s0", "attempt": 1},
        {"what": "end", "pid": 1, "at": 30, "step": "s0", "attempt": 1, "mark": "m1"},
        {"what": "stored", "pid": 1, "at": 40, "events": [[5, "id5"], [6, "id6"]]},
        *more,
    ]


def test_a_run_as_it_should_be_is_no_problem() -> None:
    verdict = Verdict()
    assert judge_run(history(), lines(), verdict) == []
    assert (verdict.completed, verdict.starts, verdict.redelivered, verdict.unwitnessed) == (1, 1, 0, 0)


def test_a_body_that_begins_again_before_its_completion_is_durable_is_counted() -> None:
    verdict = Verdict()
    again = [
        {"what": "start", "pid": 2, "at": 25, "step": "s0", "attempt": 1},
        {"what": "end", "pid": 2, "at": 35, "step": "s0", "attempt": 1, "mark": "m2"},
    ]
    assert judge_run(history(), lines(*again), verdict) == []
    assert (verdict.starts, verdict.redelivered, verdict.overlapping) == (2, 1, 1)


def test_a_body_that_begins_after_its_completion_is_durable_is_found() -> None:
    late = {"what": "start", "pid": 2, "at": 41, "step": "s0", "attempt": 1}
    (problem,) = judge_run(history(), lines(late), Verdict())
    assert problem.startswith("step s0 began again after it was completed: ")


def test_a_process_that_stood_still_for_longer_than_its_lease_may_begin_a_body_too_late() -> None:
    late = {"what": "start", "pid": 2, "at": 41, "step": "s0", "attempt": 1}
    assert judge_run(history(), lines(late), Verdict(), stalled={2}) == []
    assert len(judge_run(history(), lines(late), Verdict(), stalled={1})) == 1


def test_an_acknowledged_event_that_is_not_there_is_found() -> None:
    lost = {"what": "stored", "pid": 2, "at": 50, "events": [[7, "id7"]]}
    assert judge_run(history(), lines(lost), Verdict()) == ["event 7 was acknowledged and is not there"]


def test_a_result_that_no_body_returned_is_found() -> None:
    assert judge_run(history(mark="m9"), lines(), Verdict()) == [
        "step s0 is completed with what none of its bodies returned"
    ]


def test_a_body_without_a_recorded_start_is_found() -> None:
    stray = {"what": "start", "pid": 2, "at": 5, "step": "s0", "attempt": 2}
    assert judge_run(history(), lines(stray), Verdict()) == [
        "the body of ('s0', 2) ran, and its start is not recorded"
    ]


def test_a_run_that_has_not_ended_is_found() -> None:
    assert judge_run(history()[:-1], [*lines()[:-1]], Verdict()) == ["it is running"]
