"""EventRecorder: what it keeps, how it tells, and how long it waits."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from supervisor import (
    AttemptFailed,
    AttemptStarting,
    BackoffPolicy,
    Event,
    EventsDropped,
    Fail,
    Jitter,
    Supervisor,
    TaskFinished,
    TaskSpec,
)
from supervisor.tasks.lifecycle import TaskEvent
from supervisor.testing import EventRecorder, VirtualClock, VirtualDeadlock

ONE_SECOND = BackoffPolicy(initial=1.0, jitter=Jitter.NONE)


def fails() -> None:
    raise Fail("boom")


def nothing() -> None:
    pass


def dropped(seq: int, at: datetime) -> EventsDropped:
    return EventsDropped(seq=seq, at=at, subscriber="s", dropped=1)


def test_times_are_exact_seconds_of_virtual_time(
    clock: VirtualClock, supervisor: Supervisor, recorder: EventRecorder
) -> None:
    supervisor.add(TaskSpec.restartable("t", fails, backoff=ONE_SECOND))
    clock.advance(7.0)
    assert recorder.times(AttemptStarting) == [0.0, 1.0, 3.0, 7.0]
    assert recorder.times("attempt_starting", "t") == [0.0, 1.0, 3.0, 7.0]
    assert recorder.times(AttemptStarting, "other") == []


def test_times_count_from_when_it_was_attached(clock: VirtualClock) -> None:
    clock.advance(5.0)
    recorder = EventRecorder()
    with Supervisor(clock=clock, subscribers=[recorder]) as supervisor:
        clock.advance(0.25)
        supervisor.add(TaskSpec.once("t", nothing)).wait()
    assert recorder.times(TaskFinished) == [0.25]


def test_a_task_is_named_by_name_id_or_handle(supervisor: Supervisor, recorder: EventRecorder) -> None:
    one = supervisor.add(TaskSpec.once("one", nothing))
    two = supervisor.add(TaskSpec.once("two", nothing))
    one.wait()
    two.wait()
    supervisor.shutdown()
    story = ["task_added", "attempt_starting", "attempt_succeeded", "task_finished", "task_removed"]
    assert recorder.kinds("one") == recorder.kinds(one.id) == recorder.kinds(one) == story
    assert recorder.kinds(two) == story
    assert recorder.kinds("three") == []
    assert sorted(recorder.kinds()) == sorted([*story, *story, "shutdown_requested", "shutdown_completed"])
    assert [event.seq for event in recorder.events] == list(range(1, 13))
    assert len(recorder) == 12


def test_a_class_stands_for_all_below_it(supervisor: Supervisor, recorder: EventRecorder) -> None:
    supervisor.add(TaskSpec.once("t", nothing)).wait()
    supervisor.shutdown()
    assert len(recorder.of(TaskEvent)) == 5
    assert recorder.of(Event) == recorder.events
    assert [event.task for event in recorder.of(TaskFinished)] == ["t"]
    assert recorder.of("task_finished") == recorder.of(TaskFinished, "t") == recorder.of(TaskFinished)


def test_waiting_drives_virtual_time_to_the_event_and_no_further(
    clock: VirtualClock, supervisor: Supervisor, recorder: EventRecorder
) -> None:
    supervisor.add(TaskSpec.restartable("t", fails, backoff=ONE_SECOND, max_retries=2))
    finished = recorder.wait_for(TaskFinished, timeout=60)
    assert (finished.task, finished.attempts, clock.monotonic()) == ("t", 3, 3.0)


def test_an_event_recorded_before_is_found_at_once(
    clock: VirtualClock, supervisor: Supervisor, recorder: EventRecorder
) -> None:
    supervisor.add(TaskSpec.once("t", nothing)).wait()
    clock.advance(1.0)
    assert recorder.wait_for("attempt_starting", 0).attempt == 1
    assert clock.monotonic() == 1.0


def test_waiting_for_an_event_of_one_task_passes_by_the_others(
    supervisor: Supervisor, recorder: EventRecorder
) -> None:
    supervisor.add(TaskSpec.once("one", nothing)).wait()
    two = supervisor.add(TaskSpec.restartable("two", fails, backoff=ONE_SECOND, max_retries=1))
    for task in (two, two.id, "two"):
        assert recorder.wait_for(TaskFinished, timedelta(seconds=5), task=task).task_id == two.id


def test_too_late_is_an_error_that_lists_what_came_instead(
    clock: VirtualClock, supervisor: Supervisor, recorder: EventRecorder
) -> None:
    supervisor.add(TaskSpec.restartable("t", fails, backoff=ONE_SECOND))
    with pytest.raises(TimeoutError) as caught:
        recorder.wait_for(TaskFinished, timeout=2.5, task="t")
    assert clock.monotonic() == 2.5
    lines = str(caught.value).splitlines()
    assert lines[0] == "no TaskFinished of task 't' within 2.5 s; 7 recorded:"
    assert lines[-1] == "  #7 at 1 s: backoff_scheduled of 't'"


def test_an_error_after_silence_says_so(supervisor: Supervisor, recorder: EventRecorder) -> None:
    with pytest.raises(TimeoutError, match=re.escape("no task_added within 1 s; nothing was recorded")):
        recorder.wait_for("task_added", 1)


def test_an_error_lists_the_last_forty_events(recorder: EventRecorder, clock: VirtualClock) -> None:
    recorder.attached(clock)
    for seq in range(1, 102):
        recorder(dropped(seq, clock.now()))
    with pytest.raises(TimeoutError) as caught:
        recorder.wait_for(TaskFinished, 0, task=7)
    lines = str(caught.value).splitlines()
    assert lines[0] == "no TaskFinished of task #7 within 0 s; 101 recorded:"
    assert lines[1] == "  ... 61 before"
    assert len(lines) == 42


def test_waiting_for_ever_for_what_never_comes_is_a_deadlock(
    supervisor: Supervisor, recorder: EventRecorder
) -> None:
    supervisor.start()
    with pytest.raises(VirtualDeadlock):
        recorder.wait_for(TaskFinished, None)


def test_an_unknown_label_and_a_wrong_kind_are_refused(recorder: EventRecorder) -> None:
    with pytest.raises(ValueError, match="no event has the label 'task_finish'"):
        recorder.wait_for("task_finish", 1)
    with pytest.raises(TypeError, match="kind must be an event class or its label, got 3"):
        recorder.of(3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="task must be a name, an id or a handle"):
        recorder.kinds(2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout must not be negative"):
        recorder.wait_for(TaskFinished, -1)


def test_clear_forgets_and_the_next_wait_is_for_the_next_event(
    clock: VirtualClock, supervisor: Supervisor, recorder: EventRecorder
) -> None:
    supervisor.add(TaskSpec.restartable("t", fails, backoff=ONE_SECOND))
    assert recorder.wait_for(AttemptFailed).attempt == 1
    recorder.clear()
    assert recorder.events == []
    assert recorder.wait_for(AttemptFailed).attempt == 2
    assert clock.monotonic() == 1.0


def test_clearing_during_a_wait_hides_no_later_event(clock: VirtualClock) -> None:
    recorder = EventRecorder(clock)

    def other() -> None:
        for seq in range(1, 4):
            recorder(dropped(seq, clock.now()))
        clock.sleep(1.0)
        recorder.clear()
        recorder(AttemptStarting(seq=4, at=clock.now(), task_id=1, task="t", attempt=1))

    clock.spawn(other, "other")
    assert recorder.wait_for(AttemptStarting, 2.0).seq == 4


def test_the_list_of_events_is_a_copy(supervisor: Supervisor, recorder: EventRecorder) -> None:
    supervisor.add(TaskSpec.once("t", nothing)).wait()
    recorder.events.clear()
    assert recorder.events != []


def test_a_recorder_serves_two_supervisors_of_one_clock_but_not_of_two(
    clock: VirtualClock, recorder: EventRecorder
) -> None:
    with Supervisor(clock=clock, subscribers=[recorder]) as one, Supervisor(clock=clock) as two:
        two.subscribe(recorder)
        one.add(TaskSpec.once("a", nothing)).wait()
        two.add(TaskSpec.once("b", nothing)).wait()
    assert {event.task for event in recorder.of(TaskFinished)} == {"a", "b"}
    with pytest.raises(ValueError, match="make one for each clock"):
        Supervisor(clock=VirtualClock(), subscribers=[recorder])


def test_on_the_machines_clock_it_waits_in_real_time() -> None:
    recorder = EventRecorder()
    with Supervisor(subscribers=[recorder]) as supervisor:
        handle = supervisor.add(TaskSpec.once("t", nothing))
        assert recorder.wait_for("task_removed", task=handle).task == "t"


def test_without_a_supervisor_it_is_a_plain_list(recorder: EventRecorder) -> None:
    event = dropped(1, datetime.now(UTC))
    recorder(event)
    assert recorder.events == [event]
    assert recorder.wait_for(EventsDropped, 0) is event
    assert recorder.kinds() == ["events_dropped"]
