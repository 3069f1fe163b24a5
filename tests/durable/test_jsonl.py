"""What is special about a directory of text files: torn and damaged lines, full disks, other processes.

What every store promises is in test_stores.py.
"""

from __future__ import annotations

import errno
import json
import os
import signal as signals
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.durable.errors import (
    CorruptHistory,
    EventConflict,
    InvalidTransition,
    RunNotFound,
    StoreError,
)
from supervisor.durable.history import RunCompleted, RunStarted, WaitCompleted
from supervisor.durable.payload import encode
from supervisor.durable.projection import Projection, Wakeup
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.index import WakeupIndex
from supervisor.durable.stores.jsonl import JsonlEventStore
from supervisor.testing import VirtualClock
from tests.durable.making import AT, begin, created, later, signal, wait
from tests.process.child import Child, run_clean

Open = Callable[[], JsonlEventStore]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def opened(directory: Path) -> Iterator[Open]:
    """Open the directory with nothing known of it: what was open before is closed."""
    made: list[JsonlEventStore] = []

    def open_again() -> JsonlEventStore:
        while made:
            made.pop().close()
        made.append(JsonlEventStore(directory, fsync=False))
        return made[0]

    yield open_again
    while made:
        made.pop().close()


def text_of(envelopes: list[Any]) -> bytes:
    """The line that an append of these must be."""
    texts = [encode(each.to_dict(), "it") for each in envelopes]
    return (texts[0] if len(texts) == 1 else f"[{','.join(texts)}]").encode() + b"\n"


# -- what is written ---------------------------------------------------------------------------


def test_a_line_is_an_append(opened: Open, directory: Path) -> None:
    store = opened()
    first = store.append("r", 0, [created(input="é\n\u2028\0")], AT)
    second = store.append("r", 1, [RunStarted(), signal("s")], AT)
    assert (directory / "r.jsonl").read_bytes() == text_of(first) + text_of(second)
    one, several = map(json.loads, (directory / "r.jsonl").read_bytes().rstrip(b"\n").split(b"\n"))
    assert one == first[0].to_dict()
    assert several == [each.to_dict() for each in second]


def test_an_append_is_one_write(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    begin(store, "other")
    sizes: list[int] = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: sizes.append(len(data)) or write(fd, data))
    written = begin(store, "r", [signal("s", payload="x" * 300_000)])
    assert sizes == [len(text_of(written))]


def test_an_append_to_a_long_history_reads_nothing_of_it(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    begin(store, "r", [signal(f"s{i}") for i in range(1000)])
    store.append("r", 1002, [signal("a")], AT)
    monkeypatch.setattr(os, "read", lambda fd, size: pytest.fail("it was read"))
    store.append("r", 1003, [signal("b")], AT)


def test_reading_the_end_of_a_long_history_does_not_read_all_of_it(
    opened: Open, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    begin(store, "r")
    for i in range(300):
        store.append("r", 2 + i, [signal(f"s{i}")], AT)
    read, total = os.read, 0

    def counting(fd: int, size: int) -> bytes:
        nonlocal total
        data = read(fd, size)
        total += len(data)
        return data

    monkeypatch.setattr(os, "read", counting)
    assert [each.sequence for each in store.read("r", after=300)] == [301, 302]
    assert 0 < total < (directory / "r.jsonl").stat().st_size / 4


def test_any_part_of_a_history_of_mixed_lines_is_read(opened: Open) -> None:
    store = opened()
    begin(store, "r", [signal(f"a{i}") for i in range(70)])
    for i in range(70):
        store.append("r", 72 + i, [signal(f"b{i}")], AT)
    store.append("r", 142, [signal(f"c{i}") for i in range(200)], AT)
    for again in (False, True):
        store = opened() if again else store
        for after in (0, 1, 63, 64, 65, 71, 72, 73, 127, 128, 141, 142, 143, 250, 341, 342, 400):
            found = [each.sequence for each in store.read("r", after=after, limit=150)]
            assert found == list(range(after + 1, min(342, after + 150) + 1))


def test_the_writing_process_lists_its_directory_once(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    begin(store, "a", [wait("w", 5)])
    assert store.next_scheduled_wakeup() == later(5)
    monkeypatch.setattr(os, "scandir", lambda path: pytest.fail("it was listed"))
    store.append("a", 3, [wait("v", 4)], AT)
    assert store.next_scheduled_wakeup() == later(4)
    begin(store, "b", [wait("w", 3)])
    assert store.next_scheduled_wakeup() == later(3)
    assert store.list_run_ids() == store.find_runs() == ["a", "b"]


class Syncs:
    """What was synced: `file` or `directory`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.fails: str | None = None
        sync = os.fsync

        def fsync(fd: int) -> None:
            kind = "directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file"
            self.seen.append(kind)
            if kind == self.fails:
                raise OSError(errno.EIO, "the disk is broken")
            sync(fd)

        monkeypatch.setattr(os, "fsync", fsync)

    def take(self) -> list[str]:
        found, self.seen = self.seen, []
        return found


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    return Syncs(monkeypatch)


def test_an_append_syncs_the_file_and_a_new_file_the_directory_too(directory: Path, syncs: Syncs) -> None:
    store = JsonlEventStore(directory / "a" / "b")
    assert syncs.take() == ["directory"] * 3  # the names of runs, a and b
    begin(store, "r")
    assert syncs.take() == ["file", "directory"]
    store.append("r", 2, [signal("s")], AT)
    assert syncs.take() == ["file"]
    store.mark_failure("r", "why", AT)
    assert syncs.take() == ["file", "directory"]
    store.close()


def test_the_first_event_in_a_file_that_was_there_syncs_the_directory(directory: Path, syncs: Syncs) -> None:
    directory.mkdir()
    (directory / "r.jsonl").write_bytes(b'{"torn')
    store = JsonlEventStore(directory)
    begin(store, "r")
    assert syncs.take() == ["file", "directory"]
    store.close()


def test_without_fsync_nothing_is_synced(directory: Path, syncs: Syncs) -> None:
    directory.mkdir()
    store = JsonlEventStore(directory, fsync=False)
    begin(store, "r")
    assert syncs.take() == []
    store.close()


# -- torn tails --------------------------------------------------------------------------------


@pytest.mark.parametrize("several", [False, True], ids=["one event", "several"])
def test_an_append_that_is_torn_at_any_byte_is_as_if_it_had_not_been(
    opened: Open, directory: Path, several: bool
) -> None:
    store = opened()
    before = begin(store, "r", [wait("w", 5)])
    lost = store.append("r", 3, [signal("é🜲")] + [WaitCompleted("w"), RunCompleted()] * several, AT)
    path = directory / "r.jsonl"
    whole = path.read_bytes()
    start = len(whole) - len(text_of(lost))
    for cut in range(start + 1, len(whole) - 1):
        path.write_bytes(whole[:cut])
        store = opened()
        assert store.read("r") == before
        assert path.stat().st_size == cut  # a reader changes nothing
        assert store.list_due_wakeups(later(5)) == [Wakeup("wait", "r", "w", later(5))]
        with pytest.raises(EventConflict) as caught:
            store.append("r", 4, [signal("x")], AT)
        assert caught.value.actual == 3
        after = store.append("r", 3, [WaitCompleted("w")], AT)
        assert path.read_bytes() == whole[:start] + text_of(after)
        assert store.read("r") == before + after


def test_a_whole_last_line_without_newline_is_kept(opened: Open, directory: Path) -> None:
    before = begin(opened(), "r", [wait("w", 5)])
    before += opened().append("r", 3, [WaitCompleted("w"), signal("s")], AT)
    path = directory / "r.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    store = opened()
    assert store.read("r") == before
    assert store.read("r", after=4) == before[4:]
    assert store.list_due_wakeups(later(5)) == []
    first = store.append("r", 5, [signal("a")], AT)
    second = store.append("r", 6, [signal("b")], AT)
    assert path.read_bytes() == whole + text_of(first) + text_of(second)
    assert store.read("r") == opened().read("r") == before + first + second
    assert opened().read("r", after=6) == second


def test_a_run_whose_first_append_is_torn_at_any_byte_is_not_there(opened: Open, directory: Path) -> None:
    begin(opened(), "r")
    path = directory / "r.jsonl"
    whole = path.read_bytes()
    for cut in range(len(whole) - 1):
        path.write_bytes(whole[:cut])
        store = opened()
        assert store.list_run_ids() == []
        assert store.find_runs() == []
        with pytest.raises(RunNotFound):
            store.read("r")
        with pytest.raises(EventConflict) as caught:
            store.append("r", 2, [signal("s")], AT)
        assert caught.value.actual == 0
        assert store.list_run_ids() == []
        written = begin(store, "r")
        assert path.read_bytes() == text_of(written)
        assert store.list_run_ids() == ["r"]


@pytest.mark.parametrize(
    "tail",
    [b"garbage", b"{", b"\0" * 4096, b"   ", b"\xff\xfe", b"[" * 100_000, b'"', b"{}{}"],
    ids=["word", "brace", "zeros", "blanks", "no text", "deep", "quote", "two values"],
)
def test_an_unterminated_tail_that_is_no_json_is_cut_off(opened: Open, directory: Path, tail: bytes) -> None:
    before = begin(opened(), "r")
    path = directory / "r.jsonl"
    with path.open("ab") as file:
        file.write(tail)
    store = opened()
    assert store.read("r") == before
    after = store.append("r", 2, [signal("s")], AT)
    assert path.read_bytes() == text_of(before) + text_of(after)


def test_a_tail_that_is_torn_while_the_store_is_open_is_cut_off(opened: Open, directory: Path) -> None:
    store = opened()
    before = begin(store, "r")
    path = directory / "r.jsonl"
    with path.open("ab") as file:
        file.write(b'{"schema')
    assert store.read("r") == before
    before += store.append("r", 2, [signal("a")], AT)
    with path.open("ab") as file:
        file.write(b'{"schema')
    before += store.append("r", 3, [signal("b")], AT)
    assert store.read("r") == opened().read("r") == before


# -- damage ------------------------------------------------------------------------------------


def three_lines(store: JsonlEventStore) -> None:
    store.append("r", 0, [created()], AT)
    store.append("r", 1, [RunStarted()], AT)
    store.append("r", 2, [wait("w", 5)], AT)


def changed(lines: list[bytes], place: int, **values: Any) -> list[bytes]:
    return [
        json.dumps(json.loads(line) | values).encode() if number == place else line
        for number, line in enumerate(lines)
    ]


DAMAGES: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int]] = {
    "first line": (lambda lines: [b"garbage", *lines[1:]], 1),
    "middle line": (lambda lines: [lines[0], b'{"torn', lines[2]], 2),
    "terminated last line": (lambda lines: [*lines, b"garbage"], 4),
    "terminated tear": (lambda lines: [*lines[:2], lines[2][:-9]], 3),
    "zeros": (lambda lines: [lines[0], b"\0" * 40, *lines[1:]], 2),
    "no text": (lambda lines: [lines[0], b"\xff\xfe", *lines[1:]], 2),
    "two events on a line": (lambda lines: [lines[0] + lines[1], lines[2]], 1),
    "another run": (lambda lines: changed(lines, 1, run_id="other"), 2),
    "a line gone": (lambda lines: [lines[0], lines[2]], 2),
    "a line twice": (lambda lines: [lines[0], lines[1], lines[1], lines[2]], 3),
    "lines swapped": (lambda lines: [lines[1], lines[0], lines[2]], 1),
    "a newer format": (lambda lines: changed(lines, 2, schema_version=2), 3),
    "an unknown event": (lambda lines: changed(lines, 1, event={"type": "run_paused"}), 2),
    "no instant": (lambda lines: changed(lines, 1, at="yesterday"), 2),
    "a naive instant": (lambda lines: changed(lines, 1, at="2026-01-31T12:00:00"), 2),
    "a number": (lambda lines: [*lines, b"7"], 4),
    "an empty object": (lambda lines: [*lines, b"{}"], 4),
    "an empty list": (lambda lines: [*lines, b"[]"], 4),
    "a list of lists": (lambda lines: [*lines, b"[[]]"], 4),
}


@pytest.mark.parametrize(("damage", "line"), DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("used", [False, True], ids=["fresh", "open"])
def test_a_damaged_line_is_named_and_never_written_behind(
    opened: Open, directory: Path, damage: Callable[[list[bytes]], list[bytes]], line: int, used: bool
) -> None:
    store = opened()
    three_lines(store)
    begin(store, "fine", [wait("w", 7)])
    path = directory / "r.jsonl"
    data = b"\n".join(damage(path.read_bytes().splitlines())) + b"\n"
    path.write_bytes(data)
    if not used:
        store = opened()
    for call in (
        lambda: store.read("r"),
        lambda: store.append("r", 3, [WaitCompleted("w")], AT),
        lambda: store.read("r", after=99),
        lambda: store.append("r", 0, [created()], AT),
    ):
        with pytest.raises(CorruptHistory, match=rf"line {line} of .*r\.jsonl can't be read"):
            call()
    assert path.read_bytes() == data
    # the other runs go on, and the damaged one can be seen
    assert store.list_run_ids() == ["fine", "r"]
    assert store.list_due_wakeups(later(9)) == [Wakeup("wait", "fine", "w", later(7))]
    assert store.next_scheduled_wakeup() == later(7)
    for statuses in (None, [RunStatus.COMPLETED], []):
        assert "r" in store.find_runs(statuses)
    assert store.find_runs(workflow="nothing") == ["r"]
    assert store.find_runs(limit=1) == ["fine"]
    assert store.find_runs(newest_first=True, limit=1) == ["r"]
    store.append("fine", 3, [WaitCompleted("w")], AT)


def test_a_file_that_was_mended_is_read_again(opened: Open, directory: Path) -> None:
    store = opened()
    three_lines(store)
    path = directory / "r.jsonl"
    good = path.read_bytes()
    path.write_bytes(b"garbage\n" + good)
    with pytest.raises(CorruptHistory):
        store.read("r")
    path.write_bytes(good)
    assert len(store.read("r")) == 3
    assert store.list_due_wakeups(later(5)) == [Wakeup("wait", "r", "w", later(5))]
    assert len(store.append("r", 3, [WaitCompleted("w")], AT)) == 1


@pytest.mark.parametrize("tail", [b"{}", b"7", b'{"schema_version":2}', b"[]"])
def test_an_unterminated_line_that_is_whole_and_no_event_is_not_cut_off(
    opened: Open, directory: Path, tail: bytes
) -> None:
    begin(opened(), "r")
    path = directory / "r.jsonl"
    data = path.read_bytes() + tail
    path.write_bytes(data)
    store = opened()
    with pytest.raises(CorruptHistory, match="line 2 of"):
        store.append("r", 2, [signal("s")], AT)
    assert path.read_bytes() == data


def test_lines_that_are_no_history_can_be_read_and_not_appended_to(opened: Open, directory: Path) -> None:
    begin(opened(), "r", [RunCompleted()])
    begin(opened(), "fine")
    path = directory / "r.jsonl"
    line = json.dumps(changed_event(path, sequence=4, event={"type": "run_started"})).encode()
    data = path.read_bytes() + line + b"\n"
    path.write_bytes(data)
    store = opened()
    assert len(store.read("r")) == 4
    with pytest.raises(InvalidTransition, match="what is stored is no history, and was left as it is"):
        store.append("r", 4, [signal("s")], AT)
    assert path.read_bytes() == data
    assert store.find_runs([RunStatus.RUNNING]) == ["fine", "r"]
    assert store.list_run_ids() == ["fine", "r"]


def changed_event(path: Path, **values: Any) -> dict[str, Any]:
    return json.loads(path.read_bytes().splitlines()[0])[0] | values


def test_blank_lines_are_passed_over_and_counted(opened: Open, directory: Path) -> None:
    three_lines(opened())
    path = directory / "r.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([b"", lines[0], b"", b"  ", lines[1], lines[2], b"", b""]))
    assert len(opened().read("r")) == 3
    with path.open("ab") as file:
        file.write(b"garbage\n")
    with pytest.raises(CorruptHistory, match="line 8 of"):
        opened().read("r")


# -- a disk that fails -------------------------------------------------------------------------


class Disk:
    """An `os.write` that takes at most `chunk` bytes a call and is full after `room` bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self.chunk: int | None = None
        write = os.write

        def writes(fd: int, data: Any) -> int:
            size = len(data) if self.chunk is None else min(len(data), self.chunk)
            if self.room is not None:
                if self.room == 0:
                    raise OSError(errno.ENOSPC, "no space left on the disk")
                size = min(size, self.room)
                self.room -= size
            return write(fd, bytes(data)[:size])

        monkeypatch.setattr(os, "write", writes)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_a_short_write_is_completed(opened: Open, directory: Path, disk: Disk) -> None:
    store = opened()
    disk.chunk = 7
    written = begin(store, "r", [signal("é🜲")])
    assert (directory / "r.jsonl").read_bytes() == text_of(written)
    assert store.read("r") == opened().read("r") == written


def test_a_disk_that_is_full_at_any_byte_leaves_the_file_as_it_was(
    opened: Open, directory: Path, disk: Disk
) -> None:
    store = opened()
    before = begin(store, "r", [wait("w", 5)])
    path = directory / "r.jsonl"
    data = path.read_bytes()
    begin(store, "s", [wait("w", 9)])
    like = store.append("s", 3, [WaitCompleted("w"), RunCompleted()], AT)
    for room in range(len(text_of(like))):
        disk.room = room
        with pytest.raises(StoreError, match=r"could not append to run 'r' in .*no space left"):
            store.append("r", 3, [WaitCompleted("w"), RunCompleted()], AT)
        assert path.read_bytes() == data
        assert store.read("r") == before
        assert store.list_due_wakeups(later(5)) == [Wakeup("wait", "r", "w", later(5))]
    disk.room = None
    after = store.append("r", 3, [WaitCompleted("w"), RunCompleted()], AT)
    assert store.read("r") == opened().read("r") == before + after


def test_a_run_that_a_full_disk_has_no_place_for_is_not_there(
    opened: Open, directory: Path, disk: Disk
) -> None:
    store = opened()
    for room in range(50):
        disk.room = room
        with pytest.raises(StoreError, match="no space left"):
            begin(store, "r")
        assert not (directory / "r.jsonl").exists()
        assert store.list_run_ids() == []
    disk.room = None
    begin(store, "r")
    assert store.list_run_ids() == ["r"]


def test_what_can_not_be_cut_back_is_a_torn_tail(
    opened: Open, directory: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    before = begin(store, "r")
    path = directory / "r.jsonl"
    data = path.read_bytes()
    truncate = os.ftruncate

    def fails(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "ftruncate", fails)
    disk.room = 10
    with pytest.raises(StoreError, match="no space left"):
        store.append("r", 2, [signal("s")], AT)
    assert path.read_bytes() == data + b'{"schema_v'
    assert store.read("r") == before
    disk.room = None
    with pytest.raises(StoreError, match="the disk is broken"):  # it is not written behind
        store.append("r", 2, [signal("s")], AT)
    monkeypatch.setattr(os, "ftruncate", truncate)
    after = store.append("r", 2, [signal("s")], AT)
    assert path.read_bytes() == data + text_of(after)
    assert store.read("r") == before + after


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_can_not_be_synced_is_taken_back(directory: Path, syncs: Syncs, kind: str) -> None:
    store = JsonlEventStore(directory)
    begin(store, "other")
    syncs.fails = kind
    with pytest.raises(StoreError, match="the disk is broken"):
        begin(store, "r")
    assert store.list_run_ids() == ["other"]
    assert not (directory / "r.jsonl").exists()
    syncs.fails = None
    written = begin(store, "r")
    syncs.fails = "file"
    with pytest.raises(StoreError):
        store.append("r", 2, [signal("s")], AT)
    assert store.read("r") == written
    syncs.fails = None
    store.append("r", 2, [signal("s")], AT)
    store.close()


def test_an_append_that_a_ctrl_c_ends_is_taken_back(
    opened: Open, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    before = begin(store, "r")
    write = os.write

    def interrupted(fd: int, data: Any) -> int:
        write(fd, bytes(data)[:20])
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.append("r", 2, [signal("s")], AT)
    monkeypatch.setattr(os, "write", write)
    assert store.read("r") == before
    assert (directory / "r.jsonl").read_bytes() == text_of(before)
    store.append("r", 2, [signal("s")], AT)


def test_an_append_that_a_ctrl_c_ends_once_it_is_durable_is_found(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    begin(store, "r")
    assert store.next_scheduled_wakeup() is None
    put = WakeupIndex.put

    def interrupted(self: WakeupIndex, run_id: str, wakeups: list[Wakeup]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(WakeupIndex, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.append("r", 2, [wait("w", 5)], AT)
    monkeypatch.setattr(WakeupIndex, "put", put)
    assert store.next_scheduled_wakeup() == later(5)
    assert len(store.append("r", 3, [WaitCompleted("w")], AT)) == 1


# -- the directory -----------------------------------------------------------------------------


def test_the_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    store = JsonlEventStore(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    assert list((tmp_path / "a" / "b").iterdir()) == []  # nothing is in it until something is written
    store.close()


def test_a_directory_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match=r"could not make the directory .*file"):
        JsonlEventStore(tmp_path / "file")
    with pytest.raises(StoreError, match=r"could not make the directory .*deeper"):
        JsonlEventStore(tmp_path / "file" / "deeper")


def test_other_files_are_left_alone(opened: Open, directory: Path) -> None:
    directory.mkdir()
    mine = {
        "notes.txt": b"mine",
        "a.b.jsonl": b"not an id\n",
        ".jsonl": b"mine",
        "r.jsonl.bak": b"old",
        "R.JSONL": b"other",
        "ä.jsonl": b"mine",
        f"{'x' * 201}.jsonl": b"too long",
    }
    for name, data in mine.items():
        (directory / name).write_bytes(data)
    (directory / "folder.jsonl").mkdir()
    store = opened()
    assert store.list_run_ids() == []
    begin(store, "r")
    assert store.list_run_ids() == ["r"]
    assert store.list_due_wakeups(AT) == []
    store.close()
    assert {name: (directory / name).read_bytes() for name in mine} == mine


def test_a_file_that_is_put_into_the_directory_is_a_run(opened: Open, directory: Path) -> None:
    store = opened()
    begin(store, "r", [wait("w", 5)])
    assert store.list_run_ids() == ["r"]
    data = (directory / "r.jsonl").read_bytes().replace(b'"run_id":"r"', b'"run_id":"copy"')
    (directory / "copy.jsonl").write_bytes(data)
    assert [each.run_id for each in store.list_due_wakeups(later(5))] == ["copy", "r"]
    assert store.list_run_ids() == ["copy", "r"]


def test_a_file_that_is_taken_out_of_the_directory_is_no_run(opened: Open, directory: Path) -> None:
    store = opened()
    begin(store, "r", [wait("w", 5)])
    begin(store, "s", [wait("w", 7)])
    assert store.next_scheduled_wakeup() == later(5)
    (directory / "r.jsonl").unlink()
    assert store.next_scheduled_wakeup() == later(7)
    assert store.list_run_ids() == store.find_runs() == ["s"]
    with pytest.raises(RunNotFound):
        store.read("r")
    assert [each.sequence for each in begin(store, "r")] == [1, 2]
    assert store.list_run_ids() == ["r", "s"]


def test_a_run_whose_file_is_taken_away_while_it_is_open_starts_anew(opened: Open, directory: Path) -> None:
    store = opened()
    begin(store, "r", [RunCompleted()])
    (directory / "r.jsonl").unlink()
    with pytest.raises(EventConflict) as caught:
        store.append("r", 3, [signal("s")], AT)
    assert caught.value.actual == 0
    begin(store, "r")
    assert store.find_runs([RunStatus.RUNNING]) == ["r"]


def test_ids_that_are_asked_for_and_not_there_are_not_remembered(opened: Open) -> None:
    store = opened()
    for i in range(100):
        with pytest.raises(RunNotFound):
            store.read(f"nobody-{i}")
    assert store._files._catalog.entries() == set()


def test_stores_on_one_directory_share_it_whatever_it_is_called(directory: Path) -> None:
    one = JsonlEventStore(directory, fsync=False)
    link = directory.with_name("link")
    link.symlink_to(directory, target_is_directory=True)
    two = JsonlEventStore(link, fsync=False)
    three = JsonlEventStore(directory / ".." / directory.name, fsync=False)
    begin(one, "r")
    two.append("r", 2, [signal("a")], AT)
    three.append("r", 3, [signal("b")], AT)
    assert len(one.read("r")) == 4
    clock = VirtualClock()
    assert one.work_queue(clock) is two.work_queue(clock)
    one.close()
    one.close()
    assert two.work_queue(clock).enqueue("r") is True  # as long as one store is open
    two.append("r", 4, [signal("c")], AT)
    two.close()
    three.append("r", 5, [signal("d")], AT)
    three.close()


# -- failures ----------------------------------------------------------------------------------


def test_marks_of_failures_are_replaced_as_a_whole(
    opened: Open, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    store.mark_failure("a", "why", AT)
    path = directory / "failures.json"
    data = path.read_bytes()
    assert json.loads(data) == {
        "failures": [{"run_id": "a", "reason": "why", "at": "2026-01-31T12:00:00.123456Z"}]
    }

    def fails(self: Path, target: Path) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fails)
        with pytest.raises(StoreError, match=r"could not mark a failure of run 'b'.*the disk is broken"):
            store.mark_failure("b", "why", AT)
    assert path.read_bytes() == data
    assert [each.run_id for each in store.failures()] == ["a"]
    store.mark_failure("b", "why", AT)
    assert [each.run_id for each in opened().failures()] == ["a", "b"]


@pytest.mark.parametrize("data", [b"", b"garbage", b"[]", b'{"failures":[{}]}', b"\xff"])
def test_marks_that_can_not_be_read_are_left_as_they_are(opened: Open, directory: Path, data: bytes) -> None:
    store = opened()
    begin(store, "r")
    path = directory / "failures.json"
    path.write_bytes(data)
    for call in (
        store.failures,
        lambda: store.mark_failure("r", "why", AT),
        lambda: store.clear_failure("r"),
    ):
        with pytest.raises(CorruptHistory, match=r"failures\.json can't be read"):
            call()
    assert path.read_bytes() == data
    assert len(store.read("r")) == 2


def test_a_failure_may_be_told_in_text_that_utf_8_can_not_hold(opened: Open) -> None:
    opened().mark_failure("r", "odd \ud800 text", AT)
    assert opened().failures()[0].reason == "odd \ud800 text"


# -- other processes ---------------------------------------------------------------------------

PROGRAM = """
from datetime import UTC, datetime
from supervisor.durable.engine import FlowEngine
from supervisor.durable.errors import StoreError
from supervisor.durable.history import RunCompleted, RunCreated, RunStarted, SignalReceived, WaitCreated
from supervisor.durable.runtime import FlowRuntime
from supervisor.durable.stores.index import WakeupIndex
from supervisor.durable.stores.jsonl import JsonlEventStore

AT = datetime(2026, 1, 31, 12, 0, 0, 0, UTC)

def sent(name):
    return SignalReceived({"signal_id": str(name), "name": "go"})

def begun():
    return [RunCreated({"name": "checkout", "version": "1"}), RunStarted()]

def refused(call):
    try:
        call()
    except StoreError as error:
        return str(error)
    return "not refused"

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})

def told():
    signal.sigwait({signal.SIGUSR1})

store = JsonlEventStore(sys.argv[1])
"""


def test_a_second_process_is_kept_from_writing_and_serving_until_the_first_is_done(
    opened: Open, directory: Path
) -> None:
    store = opened()
    begin(store, "r")
    assert (directory / "writer.lock").read_text() == str(os.getpid())
    program = (
        PROGRAM
        + """
say(len(store.read("r")))
say(refused(lambda: store.append("r", 2, [sent("s")], AT)))
say(refused(lambda: store.append("new", 0, begun(), AT)))
say(refused(lambda: store.mark_failure("r", "why", AT)))
say(refused(lambda: FlowEngine(FlowRuntime(), store).serve()))
say(store.list_run_ids())
told()
say(len(store.append("r", 3, [sent("s")], AT)))
told()
"""
    )
    with Child(program, str(directory)) as child:
        child.expect("2")
        refusal = (
            f"process {os.getpid()} writes to {directory}, and only one may; end that one, or use a "
            "SqliteEventStore where several processes write"
        )
        for _ in range(4):
            child.expect(refusal)
        child.expect("['r']")
        store.append("r", 2, [signal("x")], AT)
        store.close()
        child.send(signals.SIGUSR1)
        child.expect("1")
        store = opened()
        assert len(store.read("r")) == 4
        with pytest.raises(StoreError, match=rf"process {child._process.pid} writes to"):
            store.append("r", 4, [signal("y")], AT)
    store.append("r", 4, [signal("y")], AT)  # the lock has died with its process


def test_a_reader_sees_each_append_of_another_process(opened: Open, directory: Path) -> None:
    program = (
        PROGRAM
        + """
from supervisor.durable.history import WaitCompleted
say("ready"); told()
store.append("r", 0, begun(), AT); say("done"); told()
store.append("r", 2, [WaitCreated("w", AT)], AT); say("done"); told()
store.append("r", 3, [WaitCompleted("w"), sent("x")], AT); say("done"); told()
store.append("new", 0, begun(), AT)
store.mark_failure("new", "why", AT); say("done"); told()
store.append("r", 5, [RunCompleted()], AT)
store.clear_failure("new"); say("done"); told()
"""
    )
    store = opened()

    def seen() -> tuple[Any, ...]:
        return (
            store.list_run_ids(),
            len(store.read("r")) if "r" in store.list_run_ids() else 0,
            [each.subject_id for each in store.list_due_wakeups(later(9))],
            {status.value: ids for status in RunStatus if (ids := store.find_runs([status]))},
            [each.run_id for each in store.failures()],
        )

    with Child(program, str(directory)) as child:
        child.expect("ready")
        for expected in (
            (["r"], 2, [], {"running": ["r"]}, []),
            (["r"], 3, ["w"], {"suspended": ["r"]}, []),
            (["r"], 5, [], {"running": ["r"]}, []),
            (["new", "r"], 5, [], {"running": ["new", "r"]}, ["new"]),
            (["new", "r"], 6, [], {"running": ["new"], "completed": ["r"]}, []),
        ):
            child.send(signals.SIGUSR1)
            child.expect("done")
            assert seen() == expected


def test_a_process_that_is_killed_while_it_appends_loses_nothing_that_it_was_told_of(
    opened: Open, directory: Path
) -> None:
    program = (
        PROGRAM
        + """
from supervisor.durable.errors import RunNotFound
ids = ["a", "b", "c"]
tips = {}
for run_id in ids:
    try:
        tips[run_id] = len(store.read(run_id))
    except RunNotFound:
        tips[run_id] = len(store.append(run_id, 0, begun(), AT))
while True:
    for run_id in ids:
        events = [sent(f"{tips[run_id]}-{i}") for i in range(tips[run_id] % 3 + 1)]
        tips[run_id] = store.append(run_id, tips[run_id], events, AT)[-1].sequence
        say(run_id, tips[run_id])
"""
    )
    for round in range(5):
        told: dict[str, int] = {}
        with Child(program, str(directory)) as child:
            for _ in range(20 + 7 * round):
                run_id, tip = child.line().split()
                told[run_id] = int(tip)
            child.send(signals.SIGKILL)
            for line in child.finish().stdout.splitlines(keepends=True):
                if line.endswith("\n"):
                    run_id, tip = line.split()
                    told[run_id] = int(tip)
        store = opened()
        for run_id, tip in told.items():
            history = store.read(run_id)
            assert Projection.of(run_id, history).sequence == len(history) >= tip
            assert len(history) <= tip + 3  # the append that it was not told of, at most
            store.append(run_id, len(history), [signal(f"after-{round}")], AT)
        store.close()


FORKS = (
    PROGRAM
    + """
def forked(body):
    # What a child says goes through its own exit code and our stdout; it ends without clean-up of ours.
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException as error:
            say("broken", repr(error))
        os._exit(0)
    return pid

def waited(pid):
    os.waitpid(pid, 0)
"""
)


def test_a_forked_child_has_not_the_right_to_write_but_may_read(directory: Path) -> None:
    lines = run_clean(
        FORKS
        + """
store.append("r", 0, begun(), AT)

def child():
    say(len(store.read("r")), store.list_run_ids())
    say(f"process {os.getppid()} writes to" in refused(lambda: store.append("r", 2, [sent("c")], AT)))
    store.close()
    say(refused(lambda: store.read("r")).startswith("the store on"))

waited(forked(child))
store.append("r", 2, [sent("p")], AT)
say(len(store.read("r")))
""",
        str(directory),
    )
    assert lines == ["2 ['r']", "True", "True", "3"]


def test_a_child_may_take_the_right_when_the_parent_gives_it_up_and_holds_it_no_longer_than_it_lives(
    directory: Path,
) -> None:
    lines = run_clean(
        FORKS
        + """
store.append("r", 0, begun(), AT)

def child():
    told()  # that the parent has closed
    store.append("r", 3, [sent("c")], AT)
    say("child", len(store.read("r")))

pid = forked(child)
store.close()
store = JsonlEventStore(sys.argv[1])
store.append("r", 2, [sent("p")], AT)  # the child has not inherited the lock
store.close()
store = JsonlEventStore(sys.argv[1])
say("parent", len(store.read("r")))
os.kill(pid, signal.SIGUSR1)
waited(pid)
store.append("r", 4, [sent("q")], AT)
say("parent", len(store.read("r")))
""",
        str(directory),
    )
    assert lines == ["parent 3", "child 4", "parent 5"]


def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(opened: Open, directory: Path) -> None:
    program = (
        FORKS
        + """
store.append("r", 0, begun(), AT)
def child():
    say("child lives")
    told()
forked(child)
told()
"""
    )
    with Child(program, str(directory)) as parent:
        parent.expect("child lives")
        with pytest.raises(StoreError, match="writes to"):
            opened().append("r", 2, [signal("s")], AT)
        parent.send(signals.SIGKILL)
        parent._process.wait()
        assert len(opened().append("r", 2, [signal("s")], AT)) == 1


def test_a_fork_while_a_thread_appends_leaves_a_child_that_works(directory: Path) -> None:
    lines = run_clean(
        FORKS
        + """
write = os.write
inside, go = threading.Event(), threading.Event()

def slow(fd, data):
    if fd > 2:
        inside.set()
        go.wait()
    return write(fd, data)

os.write = slow
thread = threading.Thread(target=store.append, args=("r", 0, begun(), AT))
thread.start()
inside.wait()

def child():
    say(store.list_run_ids())
    store.close()

waited(forked(child))
go.set()
thread.join()
say(store.list_run_ids())
""",
        str(directory),
    )
    assert lines == ["[]", "['r']"]


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(ValueError, match="directory must be the path of one, got ''"):
        JsonlEventStore("")
