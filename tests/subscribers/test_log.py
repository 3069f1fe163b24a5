"""LogSubscriber: a level and a line for every event."""

from __future__ import annotations

import logging
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest

import supervisor as api
import supervisor.flows as flows_api
from supervisor import (
    AttemptFailed,
    AttemptStarting,
    BackoffPolicy,
    BackoffScheduled,
    Event,
    EventsDropped,
    Fail,
    Fatal,
    OutcomeKind,
    RejectionKind,
    SlotChanged,
    StuckTask,
    Supervisor,
    TaskContext,
    TaskFinished,
    TaskSpec,
)
from supervisor.flows import Scheduler, StateEntered, Workflow
from supervisor.subscribers import LogSubscriber
from supervisor.testing import VirtualClock
from tests.programs import run_code

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
NOON = datetime(2000, 1, 1, 12, tzinfo=UTC)

VALUES: dict[str, Any] = {
    "task": "t",
    "task_id": 7,
    "attempt": 2,
    "duration": 1.5,
    "timeout": 2.0,
    "late_by": 10.0,
    "delay": 0.25,
    "cause": "failure",
    "ended": "returned",
    "stack": 'File "a.py", line 1',
    "error": "ValueError: boom",
    "exit_code": None,
    "outcome": OutcomeKind.COMPLETED,
    "attempts": 3,
    "reason": "why",
    "rejection": RejectionKind.SLOT_BUSY,
    "slot": "s",
    "state": "idle",
    "stuck": (StuckTask("a", 1, "stack"), StuckTask("b", 2, "stack")),
    "subscriber": "s",
    "dropped": 4,
    "flow_id": "f",
    "run": 5,
    "next_fire": NOON,
    "until": NOON,
    "streak": 2,
    "exit_state": "S.DONE",
    "index": 3,
    "resource": "db",
}


def made(cls: type[Event], **changes: Any) -> Event:
    names = [each.name for each in fields(cls)]
    values = {"seq": 1, "at": NOON, **VALUES, **changes}
    return cls(**{name: values[name] for name in names})


def logged(caplog: pytest.LogCaptureFixture, *events: Event, **settings: Any) -> list[logging.LogRecord]:
    caplog.set_level(DEBUG, "supervisor.events")
    subscriber = LogSubscriber(**settings)
    for event in events:
        subscriber(event)
    return caplog.records


LINES = {
    "task_added": (INFO, "task 't' added"),
    "task_rejected": (WARNING, "task 't' rejected (slot_busy): why"),
    "attempt_starting": (DEBUG, "task 't' attempt 2 starts"),
    "attempt_succeeded": (INFO, "task 't' attempt 2 succeeded in 1.500 s"),
    "attempt_failed": (ERROR, "task 't' attempt 2 failed after 1.500 s: ValueError: boom"),
    "attempt_timed_out": (WARNING, "task 't' attempt 2 timed out after 2 s"),
    "attempt_overrunning": (
        WARNING,
        "task 't' attempt 2 still runs 10.000 s after its deadline, here:\nFile \"a.py\", line 1",
    ),
    "attempt_returned_late": (WARNING, "task 't' attempt 2 ended (returned) 10.000 s after its deadline"),
    "attempt_canceled": (INFO, "task 't' attempt 2 canceled after 1.500 s"),
    "backoff_scheduled": (DEBUG, "task 't' waits 0.250 s after attempt 2 (failure): ValueError: boom"),
    "task_cancel_requested": (DEBUG, "task 't' asked to stop (why)"),
    "task_finished": (INFO, "task 't' finished: completed, attempts: 3: why"),
    "task_removed": (INFO, "task 't' removed"),
    "slot_changed": (DEBUG, "slot 's' is idle"),
    "shutdown_requested": (INFO, "shutdown requested"),
    "shutdown_completed": (INFO, "shutdown completed"),
    "grace_exceeded": (WARNING, "grace exceeded, stuck tasks: 'a', 'b'"),
    "subscriber_failed": (ERROR, "subscriber 's' failed: ValueError: boom"),
    "events_dropped": (WARNING, "subscriber 's' lost 4 events"),
    "flow_scheduled": (DEBUG, "flow 'f' fires next at 2000-01-01 12:00:00+00:00"),
    "flow_started": (DEBUG, "flow 'f' run 5 starts (failure)"),
    "flow_skipped": (DEBUG, "flow 'f' skipped a tick (why)"),
    "flow_succeeded": (INFO, "flow 'f' run 5 succeeded in 1.500 s: S.DONE"),
    "flow_failed": (WARNING, "flow 'f' run 5 failed after 1.500 s, failures in a row: 2: ValueError: boom"),
    "flow_backoff": (DEBUG, "flow 'f' waits 0.250 s, failures in a row: 2"),
    "flow_tripped": (
        ERROR,
        "flow 'f' tripped and waits for a reset, failures in a row: 2: ValueError: boom",
    ),
    "flow_reset": (INFO, "flow 'f' reset"),
    "flow_canceled": (INFO, "flow 'f' run 5 canceled after 1.500 s"),
    "state_entered": (DEBUG, "flow 'f' enters idle"),
    "flow_task_retrying": (
        WARNING,
        "flow 'f' state idle task 't' attempt 2 failed, again in 0.250 s: ValueError: boom",
    ),
    "branch_finished": (DEBUG, "flow 'f' state idle branch 3 't' finished in 1.500 s: ValueError: boom"),
    "resource_failed": (ERROR, "flow 'f' resource 'db' failed in its tear-down: ValueError: boom"),
}
CLASSES = {
    cls.kind: cls
    for module in (api, flows_api)
    for name in module.__all__
    if isinstance(cls := getattr(module, name), type) and issubclass(cls, Event) and cls is not Event
}


def test_every_event_has_a_line_of_its_own() -> None:
    assert sorted(LINES) == sorted(CLASSES)


@pytest.mark.parametrize("kind", LINES)
def test_an_event_is_logged_at_its_level_in_its_words(caplog: pytest.LogCaptureFixture, kind: str) -> None:
    [record] = logged(caplog, made(CLASSES[kind]))
    assert (record.levelno, record.getMessage()) == LINES[kind]
    assert record.name == "supervisor.events"


@pytest.mark.parametrize(
    ("outcome", "level"),
    [
        (OutcomeKind.COMPLETED, INFO),
        (OutcomeKind.CANCELED, INFO),
        (OutcomeKind.FAILED, WARNING),
        (OutcomeKind.FORCE_ABORTED, WARNING),
        (OutcomeKind.REJECTED, WARNING),
        (OutcomeKind.FATAL, ERROR),
        (OutcomeKind.PANICKED, ERROR),
    ],
)
def test_a_tasks_end_is_as_grave_as_its_outcome(
    caplog: pytest.LogCaptureFixture, outcome: OutcomeKind, level: int
) -> None:
    [record] = logged(caplog, made(TaskFinished, outcome=outcome, reason=None))
    assert (record.levelno, record.getMessage()) == (level, f"task 't' finished: {outcome}, attempts: 3")


def test_every_field_that_is_set_is_on_the_record_under_its_prefix(caplog: pytest.LogCaptureFixture) -> None:
    [record] = logged(caplog, event := made(AttemptFailed))
    extra = {name: value for name, value in vars(record).items() if name.startswith("supervisor_")}
    assert extra == {
        "supervisor_kind": "attempt_failed",
        "supervisor_seq": 1,
        "supervisor_at": "2000-01-01T12:00:00+00:00",
        "supervisor_task_id": 7,
        "supervisor_task": "t",
        "supervisor_attempt": 2,
        "supervisor_duration": 1.5,
        "supervisor_error": "ValueError: boom",
    }
    assert extra == {f"supervisor_{k}": v for k, v in event.to_dict().items() if v is not None}


def test_a_field_that_is_not_set_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    [record] = logged(caplog, made(BackoffScheduled, cause="interval", error=None))
    assert record.getMessage() == "task 't' waits 0.250 s after attempt 2 (interval)"
    assert not hasattr(record, "supervisor_error")


def test_a_name_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    [record] = logged(caplog, made(AttemptStarting, task="a\nERROR b %s"))
    assert record.getMessage() == r"task 'a\nERROR b %s' attempt 2 starts"


def test_a_level_that_is_off_builds_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: Event) -> dict[str, object]:
        raise AssertionError("read though nobody listens")

    monkeypatch.setattr(TaskFinished, "to_dict", read)
    subscriber = LogSubscriber()
    caplog.set_level(WARNING, "supervisor.events")
    subscriber(made(TaskFinished))
    assert caplog.records == []
    with pytest.raises(AssertionError, match="nobody listens"):
        subscriber(made(TaskFinished, outcome=OutcomeKind.FATAL))


def test_levels_can_be_given_by_class_and_by_label(caplog: pytest.LogCaptureFixture) -> None:
    levels = {AttemptFailed: INFO, "task_finished": DEBUG}
    records = logged(
        caplog, made(AttemptFailed), made(TaskFinished, outcome=OutcomeKind.FATAL), levels=levels
    )
    assert [record.levelno for record in records] == [INFO, DEBUG]


def test_a_class_gives_its_level_to_all_below_it(caplog: pytest.LogCaptureFixture) -> None:
    records = logged(caplog, made(SlotChanged), made(EventsDropped), levels={Event: 42})
    assert [record.levelno for record in records] == [42, 42]


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="no event has the label 'attempt_fail'"):
        LogSubscriber(levels={"attempt_fail": INFO})
    with pytest.raises(TypeError, match=r"a level must be an int such as logging\.WARNING, got 'INFO'"):
        LogSubscriber(levels={AttemptFailed: "INFO"})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="logger must be a Logger or a name, got 3"):
        LogSubscriber(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("logger", ["my.app", logging.getLogger("my.app")])
def test_another_logger_can_be_given(caplog: pytest.LogCaptureFixture, logger: str | logging.Logger) -> None:
    caplog.set_level(DEBUG, "my.app")
    LogSubscriber(logger)(made(AttemptFailed))
    assert [record.name for record in caplog.records] == ["my.app"]


OTHER_LAYER = """
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from supervisor import Event
from supervisor.subscribers import LogSubscriber

@dataclass(frozen=True, slots=True, kw_only=True)
class ShipLoaded(Event):
    ship: str
    tons: float

logging.basicConfig(format="%(levelname)s %(message)s %(supervisor_ship)s", level=logging.INFO)
LogSubscriber()(ShipLoaded(seq=1, at=datetime.now(UTC), ship="Ada", tons=2.5))
"""


def test_an_event_of_another_layer_is_logged_with_its_fields() -> None:
    finished = run_code(OTHER_LAYER)
    assert finished.stderr == "INFO ship_loaded ship='Ada' tons=2.5 Ada\n"


def test_a_story_is_told_in_order(
    caplog: pytest.LogCaptureFixture, clock: VirtualClock, supervisor: Supervisor
) -> None:
    caplog.set_level(DEBUG, "supervisor.events")
    supervisor.subscribe(LogSubscriber())
    steps = iter([Fail("boom"), Fatal("over")])

    def body(ctx: TaskContext) -> None:
        ctx.sleep(0.5)
        raise next(steps)

    backoff = BackoffPolicy.constant(2.0)
    supervisor.add(TaskSpec.restartable("t", body, backoff=backoff)).wait()
    supervisor.shutdown()
    told = [(record.levelno, record.getMessage().split(" (in ")[0]) for record in caplog.records]
    assert told == [
        (INFO, "task 't' added"),
        (DEBUG, "task 't' attempt 1 starts"),
        (ERROR, "task 't' attempt 1 failed after 0.500 s: Fail: boom"),
        (DEBUG, "task 't' waits 2.000 s after attempt 1 (failure): Fail: boom"),
        (DEBUG, "task 't' attempt 2 starts"),
        (ERROR, "task 't' attempt 2 failed after 0.500 s: Fatal: over"),
        (ERROR, "task 't' finished: fatal, attempts: 2: over"),
        (INFO, "task 't' removed"),
        (INFO, "shutdown requested"),
        (INFO, "shutdown completed"),
    ]


def test_a_flow_is_told_in_order(
    caplog: pytest.LogCaptureFixture, clock: VirtualClock, supervisor: Supervisor
) -> None:
    caplog.set_level(DEBUG, "supervisor.events")
    broken = True

    def look() -> str:
        clock.sleep(0.5)
        if broken:
            raise Fail("boom")
        return "done"

    supervisor.subscribe(LogSubscriber(levels={StateEntered: 5}))
    scheduler = Scheduler(supervisor=supervisor)
    workflow = Workflow().register("look", look).add_exit_state("done")
    scheduler.every("f", workflow, "look", 10.0)
    scheduler.set_backoff("f", BackoffPolicy.constant(2.0), streak_limit=2)
    running = scheduler.start()
    clock.advance(12.0)
    broken = False
    running.reset_flow("f")
    running.trigger("f")
    clock.advance(1.0)
    told = [
        (record.levelno, record.getMessage().split(" (in ")[0])
        for record in caplog.records
        if record.getMessage().startswith("flow")
    ]
    assert told == [
        (DEBUG, "flow 'f' fires next at 2000-01-01 00:00:00+00:00"),
        (DEBUG, "flow 'f' run 1 starts (schedule)"),
        (WARNING, "flow 'f' run 1 failed after 0.500 s, failures in a row: 1: boom"),
        (DEBUG, "flow 'f' waits 2.000 s, failures in a row: 1"),
        (DEBUG, "flow 'f' fires next at 2000-01-01 00:00:10.500000+00:00"),
        (DEBUG, "flow 'f' run 2 starts (schedule)"),
        (WARNING, "flow 'f' run 2 failed after 0.500 s, failures in a row: 2: boom"),
        (ERROR, "flow 'f' tripped and waits for a reset, failures in a row: 2: boom"),
        (DEBUG, "flow 'f' fires next at 2000-01-01 00:00:21+00:00"),
        (INFO, "flow 'f' reset"),
        (DEBUG, "flow 'f' fires next at 2000-01-01 00:00:21+00:00"),
        (DEBUG, "flow 'f' run 3 starts (trigger)"),
        (INFO, "flow 'f' run 3 succeeded in 0.500 s: 'done'"),
        (DEBUG, "flow 'f' fires next at 2000-01-01 00:00:22.500000+00:00"),
    ]
