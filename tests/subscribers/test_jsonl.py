"""JsonlSubscriber: what is written, when, and what happens when it can't be."""

from __future__ import annotations

import gc
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from supervisor import (
    AttemptFailed,
    BackoffPolicy,
    Event,
    EventsDropped,
    Fail,
    GraceExceededEvent,
    StuckTask,
    Supervisor,
    TaskAdded,
    TaskContext,
    TaskSpec,
)
from supervisor.flows import Scheduler, Workflow
from supervisor.subscribers import JsonlSubscriber
from supervisor.testing import EventRecorder, VirtualClock
from tests.programs import run_code

NOON = datetime(2000, 1, 1, 12, tzinfo=UTC)


def lines(path: Path) -> list[Any]:
    text = path.read_text("ascii")
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def lost(seq: int) -> Event:
    return EventsDropped(seq=seq, at=NOON, subscriber="s", dropped=seq)


def test_the_file_reads_back_equal_to_the_events(
    tmp_path: Path, supervisor: Supervisor, recorder: EventRecorder
) -> None:
    def body(ctx: TaskContext) -> None:
        ctx.sleep(0.1)
        raise Fail("boom")

    with JsonlSubscriber(tmp_path / "events.jsonl") as subscriber:
        supervisor.subscribe(subscriber)
        supervisor.add(
            TaskSpec.restartable("t", body, backoff=BackoffPolicy.constant(1.0), max_retries=2, timeout=5)
        ).wait()
        supervisor.shutdown()
    found = lines(tmp_path / "events.jsonl")
    assert found == [event.to_dict() for event in recorder.events]
    assert [each["seq"] for each in found] == list(range(1, 14))


def test_a_nested_value_and_a_hostile_text_read_back_equal(tmp_path: Path) -> None:
    events = [
        GraceExceededEvent(seq=1, at=NOON, stuck=(StuckTask("a", 1, "x\ny"),)),
        TaskAdded(seq=2, at=NOON, task_id=1, task="naïve \ud800 \u2028 \n \x00 \"'"),
    ]
    with JsonlSubscriber(str(tmp_path / "events.jsonl")) as subscriber:
        for event in events:
            subscriber(event)
    assert lines(tmp_path / "events.jsonl") == [event.to_dict() for event in events]


def test_each_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with JsonlSubscriber(path) as subscriber:
        assert lines(path) == []
        for seq in range(1, 4):
            subscriber(lost(seq))
            assert len(lines(path)) == seq


def test_a_file_that_exists_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for seq in (1, 2):
        with JsonlSubscriber(path) as subscriber:
            subscriber(lost(seq))
    assert [each["seq"] for each in lines(path)] == [1, 2]


def test_a_missing_folder_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "events.jsonl"
    with pytest.raises(FileNotFoundError, match=re.escape(f"no folder {str(path.parent)!r} for the events")):
        JsonlSubscriber(path)


def test_a_folder_in_place_of_the_file_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        JsonlSubscriber(tmp_path)


def test_an_event_after_closing_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    subscriber = JsonlSubscriber(tmp_path / "events.jsonl")
    subscriber.close()
    subscriber.close()
    with pytest.raises(ValueError, match="closed> gets events; close its subscription"):
        subscriber(lost(1))
    assert lines(tmp_path / "events.jsonl") == []


def test_a_subscriber_nobody_closed_loses_nothing_and_warns_of_nothing(tmp_path: Path) -> None:
    subscriber = JsonlSubscriber(tmp_path / "events.jsonl")
    subscriber(lost(1))
    del subscriber
    gc.collect()
    assert len(lines(tmp_path / "events.jsonl")) == 1


class FullDisk:
    """A file that takes `room` bytes more, and then has no space until `room` is set again."""

    closed = False

    def __init__(self, room: int) -> None:
        self.room = room
        self.written = b""

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        taken = data[: self.room]
        self.room -= len(taken)
        self.written += taken
        return len(taken)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("room", [0, 1, 30])
def test_after_a_full_disk_only_the_line_it_cut_is_damaged(tmp_path: Path, room: int) -> None:
    subscriber = JsonlSubscriber(tmp_path / "events.jsonl")
    subscriber.close()
    disk: Any = FullDisk(room)
    subscriber._file = disk
    for seq in (1, 2):
        with pytest.raises(OSError, match="No space left"):
            subscriber(lost(seq))
    disk.room = 1000
    for seq in (3, 4):
        subscriber(lost(seq))
    whole = []
    for line in disk.written.splitlines():
        try:
            whole.append(json.loads(line)["seq"])
        except ValueError:
            pass
    assert whole == [3, 4]


def test_a_failing_disk_is_reported_and_hurts_no_task(
    tmp_path: Path, supervisor: Supervisor, recorder: EventRecorder
) -> None:
    subscriber = JsonlSubscriber(tmp_path / "events.jsonl")
    subscriber.close()
    supervisor.subscribe(subscriber, name="file")
    assert supervisor.add(TaskSpec.once("t", lambda: 1)).wait().value == 1
    supervisor.shutdown()
    assert {event.subscriber for event in recorder.of("subscriber_failed")} == {"file"}


WRITER = """
import sys
from datetime import UTC, datetime
from supervisor import AttemptFailed
from supervisor.subscribers import JsonlSubscriber
out = JsonlSubscriber(sys.argv[1])
for seq in range(300):
    out(AttemptFailed(seq=seq, at=datetime.now(UTC), task_id=1, task=sys.argv[2], attempt=1, duration=0.0,
                      error="x" * 3000, exit_code=None))
"""


def test_processes_that_share_a_file_tear_no_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    program = f"""
import subprocess, sys
code = {WRITER!r}
both = [subprocess.Popen([sys.executable, "-c", code, {str(path)!r}, name]) for name in "ab"]
print([each.wait() for each in both])
"""
    finished = run_code(program)
    assert finished.stdout == "[0, 0]\n", finished.report()
    found = lines(path)
    for name in "ab":
        assert [each["seq"] for each in found if each["task"] == name] == list(range(300))


FORK = """
import os, sys
from datetime import UTC, datetime
from supervisor import EventsDropped
from supervisor.subscribers import JsonlSubscriber
out = JsonlSubscriber("events.jsonl")
child = os.fork()
out(EventsDropped(seq=1 if child else 2, at=datetime.now(UTC), subscriber="s", dropped=1))
if child:
    os.waitpid(child, 0)
    out.close()
    print(len(open("events.jsonl").read().splitlines()))
else:
    os._exit(0)
"""


def test_a_forked_child_goes_on_writing_to_the_same_file() -> None:
    finished = run_code(FORK)
    assert finished.stdout == "2\n", finished.report()


def test_an_error_with_a_long_text_is_one_line(tmp_path: Path) -> None:
    event = AttemptFailed(
        seq=1, at=NOON, task_id=1, task="t", attempt=1, duration=0.5, error="x\n" * 100_000, exit_code=3
    )
    with JsonlSubscriber(tmp_path / "events.jsonl") as subscriber:
        subscriber(event)
    assert lines(tmp_path / "events.jsonl") == [event.to_dict()]


def test_events_of_flows_are_written_as_they_are(clock: VirtualClock, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    with JsonlSubscriber(file) as subscriber:
        scheduler = Scheduler(clock=clock, subscribers=[subscriber])
        scheduler.every("f", Workflow().register(1, lambda: 2).add_exit_state(2), 1, 60.0)
        with scheduler.start():
            clock.advance(1.0)
    told = [event for event in lines(file) if event.get("flow_id") == "f"]
    assert [event["kind"] for event in told] == [
        "flow_scheduled",
        "flow_started",
        "state_entered",
        "state_entered",
        "flow_succeeded",
        "flow_scheduled",
    ]
    assert told[-1]["next_fire"] == "2000-01-01T00:01:00+00:00"
    assert (told[-2]["run"], told[-2]["exit_state"]) == (1, "2")
