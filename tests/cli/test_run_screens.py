"""What people see of runs: the screen of one run, the table of many, a history; exact, and never too wide."""

from __future__ import annotations

from datetime import datetime

import pytest

from supervisor.cli.history_table import history_lines
from supervisor.cli.run_screen import run_lines
from supervisor.cli.run_table import run_table
from supervisor.cli.words import ASCII, Line, Tone, breadth
from supervisor.durable.history import (
    Envelope,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunStarted,
    SignalWaitCreated,
    StepCompleted,
    StepRetrying,
    StepStarted,
    WaitCompleted,
)
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.protocol import Failure
from tests.cli.histories import history, run_of, text
from tests.durable.making import AT, begun, cancellation, later, signal, step, wait

PATIENT = RetryPolicy.fixed(3, 1.5)
PENDING = history((0, [RunCreated({"name": "checkout", "version": "2"}, {"id": 7})]))
RUNNING = history((0, begun()), (1, step("charge", PATIENT, {"id": 7})))
RESTING = history(
    (0, begun()),
    (0, step("charge", PATIENT, {"id": 7})),
    (1, [StepRetrying("charge", 1, "ConnectionError: no answer", later(2.5))]),
)
WAITING = history(
    (0, begun()),
    (0, step("reserve")),
    (1, [StepCompleted("reserve", True), wait("cool-down", 3)]),
    (
        3,
        [
            WaitCompleted("cool-down"),
            signal("s1", "stop", {"by": "Ann"}),
            SignalWaitCreated("approval", "approve"),
        ],
    ),
)
COMPLETED = history(
    (0, [RunCreated({"name": "checkout", "version": "2"}, {"id": 7}), RunStarted()]),
    (0, step("charge", PATIENT, {"id": 7})),
    (1, [StepRetrying("charge", 1, "ConnectionError: no answer", later(2.5))]),
    (2.5, [StepStarted("charge", 2)]),
    (3, [StepCompleted("charge", {"receipt": 1}), RunCompleted({"receipt": 1})]),
)
FAILED = history((0, begun()), (1, [RunFailed("ValueError: " + "no such customer, " * 8)]))
CANCELLING = history((0, [*begun(), wait("w", 60)]), (4, [cancellation("not wanted"), *step("undo")]))
CANCELLED = history((0, begun()), (4, [cancellation("not wanted"), RunCancelled("not wanted")]))
ALL = {
    RunStatus.PENDING: PENDING,
    RunStatus.RUNNING: RUNNING,
    RunStatus.SUSPENDED: WAITING,
    RunStatus.CANCELLING: CANCELLING,
    RunStatus.COMPLETED: COMPLETED,
    RunStatus.FAILED: FAILED,
    RunStatus.CANCELLED: CANCELLED,
}


def screen(
    envelopes: list[Envelope],
    now: datetime,
    *,
    width: int | None = 79,
    failure: Failure | None = None,
    most: int = 40,
) -> list[str]:
    lines = run_lines(
        run_of(envelopes), envelopes, now, failure=failure, width=width, symbols=ASCII, most=most
    )
    return text(lines)


def test_a_completed_run_is_told_with_its_timeline_and_what_came_out() -> None:
    assert screen(COMPLETED, later(3600)) == [
        "order-7  checkout version 2",
        "  status  + completed after 3 s",
        "  created 2026-01-31 12:00:00Z, 60 min ago",
        "  ended   2026-01-31 12:00:03Z, 59 min ago",
        "  events  8",
        "",
        "charge    x #################x...........................                   1 s",
        "charge #2 +                                              #########       0.50 s",
        "            |0       |500 ms  |1000 ms |1500 ms |2000 ms |2500 ms|3000 ms",
        "",
        '  input   {"id": 7}',
        '  output  {"receipt": 1}',
        "",
        "  STEP      NAME  TRIES  RESULT",
        '+ charge    work      2  {"receipt": 1}',
    ]


def test_a_suspended_run_tells_what_it_waits_for_and_which_signals_wait_for_it() -> None:
    assert screen(WAITING, later(10)) == [
        "order-7  checkout version 1",
        "  status  o suspended, 10 s after it was created",
        "  created 2026-01-31 12:00:00Z, 10 s ago",
        "  changed 2026-01-31 12:00:03Z, 7 s ago",
        "  events  9",
        "  now     waits for signal 'approve'",
        "",
        "reserve     + #####                                                         1 s",
        "cool-down   +      ----------                                               2 s",
        "approval    o                ------------------------------------>          7 s",
        "signal stop o                o",
        "              |0        |2 s      |4 s       |6 s      |8 s      |10 s",
        "",
        "  input   null",
        "",
        "  STEP      NAME  TRIES  RESULT",
        "+ reserve   work      1  true",
        "",
        "  WAIT         FOR                   RESULT",
        "+ cool-down    2026-01-31 12:00:03Z",
        "o approval     signal 'approve'",
        'o signal stop  a wait for \'stop\'     {"by": "Ann"}',
    ]


def test_a_run_that_rests_tells_when_the_next_attempt_is() -> None:
    lines = screen(RESTING, later(2))
    assert lines[1] == "  status  o suspended, 2 s after it was created"
    assert lines[5] == "  now     attempt 2 of charge now"
    assert screen(RESTING, later(1.5))[5] == "  now     attempt 2 of charge in 1 s"
    assert lines[-1] == "o charge    work      1  again now: ConnectionError: no answer"


def test_a_failed_run_tells_its_error_in_full_on_several_lines() -> None:
    assert screen(FAILED, later(9)) == [
        "order-7  checkout version 1",
        "  status  x failed after 1 s",
        "  created 2026-01-31 12:00:00Z, 9 s ago",
        "  ended   2026-01-31 12:00:01Z, 8 s ago",
        "  events  3",
        "",
        "  input   null",
        "  error   ValueError: no such customer, no such customer, no such customer, no",
        "          such customer, no such customer, no such customer, no such customer,",
        "          no such customer,",
    ]


def test_a_run_that_is_asked_to_end_tells_why_and_since_when() -> None:
    assert screen(CANCELLING, later(5))[:8] == [
        "order-7  checkout version 1",
        "  status  * cancelling, 5 s after it was created",
        "  created 2026-01-31 12:00:00Z, 5 s ago",
        "  changed 2026-01-31 12:00:04Z, 1 s ago",
        "  events  6",
        "  now     runs undo",
        "  cancel  asked for 2026-01-31 12:00:04Z, 1 s ago: not wanted",
        "",
    ]


def test_a_run_that_waits_for_a_person_says_so() -> None:
    mark = Failure("order-7", "run 'order-7' is not deterministic: ...", later(2))
    lines = screen(RUNNING, later(3), failure=mark)
    assert lines[5:8] == [
        "  now     runs charge",
        "  marked  waits for a person since 2026-01-31 12:00:02Z, 1 s ago: run 'order-7'",
        "          is not deterministic: ...",
    ]


def test_a_pending_run_has_nothing_to_draw_yet() -> None:
    assert screen(PENDING, later(3)) == [
        "order-7  checkout version 2",
        "  status  o pending, 3 s after it was created",
        "  created 2026-01-31 12:00:00Z, 3 s ago",
        "  changed 2026-01-31 12:00:00Z, 3 s ago",
        "  events  1",
        "",
        '  input   {"id": 7}',
    ]


def test_of_a_thousand_steps_the_middle_is_folded_in_the_table_as_well() -> None:
    found = history((0, begun()), *((n, [*step(f"s{n}"), StepCompleted(f"s{n}", n)]) for n in range(1000)))
    assert screen(found, later(1000), most=5)[-7:] == [
        "",
        "  STEP      NAME  TRIES  RESULT",
        "+ s0        work      1  0",
        "+ s1        work      1  1",
        "~ 996 more",
        "+ s998      work      1  998",
        "+ s999      work      1  999",
    ]


@pytest.mark.parametrize("status", RunStatus)
@pytest.mark.parametrize("width", [10, 39, 79, 200, None])
def test_no_line_is_wider_than_the_terminal(status: RunStatus, width: int | None) -> None:
    envelopes = ALL[status]
    run = run_of(envelopes)
    assert run.status is status
    marks = {"order-7": Failure("order-7", "because " * 40, AT)}
    lines: list[Line] = [
        *run_lines(run, envelopes, later(5), failure=marks["order-7"], width=width, symbols=ASCII),
        *run_table([run], marks, later(5), width=width, symbols=ASCII),
        *history_lines(envelopes, width=width, symbols=ASCII),
    ]
    if width is not None:
        assert max(sum(breadth(part) for part, _ in line) for line in lines) <= width
    assert not any("\n" in part for line in lines for part, _ in line)


def test_runs_are_a_table_that_tells_what_each_is_at() -> None:
    runs = [run_of(each) for each in ALL.values()]
    assert text(run_table(runs, {}, later(130), width=111, symbols=ASCII)) == [
        "RUN       WORKFLOW    STATUS      EVENTS  CHANGED                          WHAT",
        "order-7   checkout 2  pending          1  2 min ago  2026-01-31 12:00:00Z",
        "order-7   checkout 1  running          4  2 min ago  2026-01-31 12:00:01Z  runs charge",
        "order-7   checkout 1  suspended        9  2 min ago  2026-01-31 12:00:03Z  waits for signal 'approve'",
        "order-7   checkout 1  cancelling       6  2 min ago  2026-01-31 12:00:04Z  not wanted",
        "order-7   checkout 2  completed        8  2 min ago  2026-01-31 12:00:03Z",
        "order-7   checkout 1  failed           3  2 min ago  2026-01-31 12:00:01Z  ValueError: no such customer, no su~",
        "order-7   checkout 1  cancelled        4  2 min ago  2026-01-31 12:00:04Z  not wanted",
    ]


def test_a_narrow_table_leaves_out_what_matters_least() -> None:
    runs = [run_of(WAITING)]
    assert text(run_table(runs, {}, later(130), width=79, symbols=ASCII)) == [
        "RUN       WORKFLOW    STATUS      CHANGED    WHAT",
        "order-7   checkout 1  suspended   2 min ago  waits for signal 'approve'",
    ]
    assert text(run_table(runs, {}, later(130), width=49, symbols=ASCII)) == [
        "RUN       STATUS      CHANGED",
        "order-7   suspended   2 min ago",
    ]


def test_a_run_that_waits_for_a_person_says_so_in_the_table() -> None:
    run = run_of(RUNNING)
    marks = {"order-7": Failure("order-7", "not deterministic", AT)}
    _, line = run_table([run], marks, later(1), width=None, symbols=ASCII)
    assert line[-1] == ("waits for a person: not deterministic", Tone.BAD)


def test_a_history_is_a_table_of_events_with_what_is_in_them() -> None:
    assert text(history_lines(COMPLETED, width=None, symbols=ASCII)) == [
        "#  AT                           AFTER  EVENT             WHAT",
        '1  2026-01-31 12:00:00.123Z       0 s  run_created       name checkout, version 2, input {"id": 7}',
        "2  2026-01-31 12:00:00.123Z       0 s  run_started",
        "3  2026-01-31 12:00:00.123Z       0 s  step_created      charge, step_name work, input "
        '{"id": 7}, retry {"max_attempts": 3, "delay_ms": 1500}',
        "4  2026-01-31 12:00:00.123Z       0 s  step_started      charge, attempt 1",
        "5  2026-01-31 12:00:01.123Z       1 s  step_retrying     charge, attempt 1, "
        "ConnectionError: no answer, retry_after 2026-01-31T12:00:02.623456Z",
        "6  2026-01-31 12:00:02.623Z     1.5 s  step_started      charge, attempt 2",
        '7  2026-01-31 12:00:03.123Z    0.50 s  step_completed    charge, output {"receipt": 1}',
        '8  2026-01-31 12:00:03.123Z       0 s  run_completed     output {"receipt": 1}',
    ]
