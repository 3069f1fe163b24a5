"""The demo: it tells its story on a pipe and on a terminal, ends by itself, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.screen import Screen
from tests.programs import ROOT

Demo = Callable[..., "subprocess.Popen[bytes]"]
TASKS = ["poll", "scan", "import", "worker", "server"]
FLOW = "report"
WIDTH = 90


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """Start the demo in a process of its own; none is left when the test ends, nor a file of it."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str, stdout: int = subprocess.PIPE, **environ: str) -> subprocess.Popen[bytes]:
        names = ("NO_COLOR", "COLUMNS", "LINES", "TERM", "PYTHONIOENCODING")
        env = {name: value for name, value in os.environ.items() if name not in names}
        env |= {
            "PYTHONPATH": str(ROOT),
            "PYTHONUTF8": "1",
            "TMPDIR": str(tmp_path),
            "TERM": "xterm",
        } | environ
        process = subprocess.Popen(
            [sys.executable, "-m", "supervisor", "demo", *(options or ("--seconds", "2"))],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_pipe_gets_a_line_for_each_turn_and_a_summary(demo: Demo) -> None:
    running = demo()
    output, errors = running.communicate(timeout=30)
    text = output.decode()
    assert (running.returncode, errors) == (0, b""), text
    assert "\x1b" not in text
    head, account, summary, *rest = [part.splitlines() for part in re.split(r"\n\n(?! {2}poll)", text)]
    assert head[0] == "Four tasks and a flow for 2 seconds, all on threads. Ctrl-C ends it early."
    assert [line.split()[0] for line in head[2:] if line[2] != " "] == [*TASKS, FLOW]

    times = [float(line[:6]) for line in account]
    assert times == sorted(times)
    assert 2.0 <= times[-1] <= 5.0
    told = [(line.split()[2], line[22:]) for line in account]
    lines = {task: [text for name, text in told if name == task] for task in [*TASKS, FLOW]}
    for task in TASKS:
        assert {"added", "attempt 1 starts"} <= set(lines[task])
    poll = "\n".join(lines["poll"])
    assert re.search(r"attempt \d+ succeeded in \d+ ms", poll)
    assert "failed: Fail: HTTP 503 Service Unavailable" in poll
    assert re.search(r"attempt \d+ timed out after 0.20 s", poll)
    assert re.search(r"backoff of .* before attempt \d+", poll)
    assert "attempt 2 succeeded" in "\n".join(lines["scan"])
    assert "ended completed" in lines["import"]
    limit = "retry limit reached after 4 of 4 retries: ValueError: could not convert string to float: '21,5'"
    assert f"ended failed: {limit}" in lines["worker"]

    steps = [
        "run 1 failed",
        "backoff of",
        "run 3 failed",
        "tripped after 3 failures",
        "reset",
        "run 4 reached",
    ]
    seen = iter(lines[FLOW])
    assert [step for step in steps if any(line.startswith(step) for line in seen)] == steps
    assert any("no folder 'reports' (in flow 'report', state Report.WRITE" in line for line in lines[FLOW])

    assert summary[0].split() == ["TASK", "ATTEMPTS", "RETRIES", "TIMEOUTS", "OUTCOME", "REASON"]
    rows = {line.split()[1]: line.split(maxsplit=6)[2:] for line in summary[1:]}
    assert list(rows) == [*TASKS, FLOW, "dispatcher"]
    assert rows[FLOW][3:] == ["completed", "tripped once, reset once"]
    assert rows["import"] == ["1", "0", "0", "completed"]
    assert rows["worker"] == ["5", "4", "0", "failed", limit]
    assert rows["server"] == ["1", "0", "0", "canceled", "stopped by shutdown"]
    assert int(rows["poll"][1]) >= 1
    assert int(rows["poll"][2]) >= 1
    brought, crash, picture, told, end = rest
    assert brought[0] == "What the work has brought:"
    first, second = sorted(
        {line.split()[1] for line in crash[1:]}, key=[line.split()[1] for line in crash].index
    )
    assert crash == [
        "A durable run in a SQLite file. Its process is killed in the middle, and started again:",
        f"  process {first}  reserve",
        f"  process {first}  charge",
        f"  process {first}  charge fails",
        f"  process {first}  charge, attempt 2",
        f"  process {first}  pack",
        f"  process {first}  is killed",
        f"  process {second}  pack again: its end was not recorded",
        f"  process {second}  ship",
        f"  process {second}  notify",
    ]
    assert [line[:11] for line in picture[:-1]] == [
        "reserve   ✓",
        "charge    ✗",
        "charge #2 ✓",
        "pack      ✓",
        "ship      ✓",
        "notify    ✓",
    ]
    assert told == [
        "No step that was recorded ran again: charge, reserve have run in the first process only."
    ]
    assert end[0] == "All went as told."


@pytest.mark.slow
def test_a_terminal_gets_a_table_that_is_redrawn_in_place(demo: Demo) -> None:
    ours, theirs = os.openpty()
    running = demo(stdout=theirs, COLUMNS=str(WIDTH), LINES="40")
    os.close(theirs)
    output = everything(ours)
    assert running.wait(timeout=30) == 0
    assert "\x1b[32m" in output
    screen = Screen(WIDTH)
    screen.feed(output)
    assert screen.cursor_shown
    *pictures, wiped = screen.pictures
    assert 5 <= len(pictures) <= 8 * 2.5, "no more than eight redraws a second"
    heights = [len(picture) for picture in pictures]
    assert heights == sorted(heights), "it never shrinks"
    assert len(set(heights)) <= 4, "and grows only with its rows: none, the tasks, the flow, the dispatcher"
    assert all(picture[0] == pictures[0][0] for picture in pictures), "nothing above it moves"
    last = "\n".join(pictures[-1])
    for shown in (
        "TASK",
        "STATE",
        "ATTEMPT",
        "RETRIES",
        "TIMEOUTS",
        "━━━",
        "✓ import      completed",
        "✗ worker      failed",
    ):
        assert shown in last
    assert any(re.search(r"● poll +running", "\n".join(picture)) for picture in pictures)
    assert any(re.search(r"worker +backoff 0\.\d s", "\n".join(picture)) for picture in pictures)
    assert any(re.search(r"✗ report +tripped 0\.\d s", "\n".join(picture)) for picture in pictures)
    assert "STATE" not in "\n".join(wiped)
    assert not any("STATE" in line for line in screen.lines)
    assert sum("OUTCOME" in line for line in screen.lines) == 1
    assert screen.lines[-3:-1] == [
        "All went as told.",
        "Your own tasks and flows: python -m supervisor run module:object",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("mark", [b"reserve", b"is killed", b"again: its end was not recorded"])
def test_a_signal_in_the_durable_run_ends_its_process(demo: Demo, mark: bytes) -> None:
    running = demo()
    first_lines(running, b"Its process is killed in the middle")
    first_lines(running, mark)
    running.send_signal(signal.SIGTERM)
    output, errors = running.communicate(timeout=20)
    assert (running.returncode, errors) == (143, b"")
    assert output.endswith(b"Interrupted: its process has ended.\n")


@pytest.mark.slow
def test_the_durable_run_ends_when_nobody_reads_any_more(demo: Demo) -> None:
    running = demo()
    first_lines(running, b"Its process is killed in the middle")
    assert running.stdout is not None
    running.stdout.close()
    assert running.wait(timeout=20) == 141
    assert running.stderr is not None
    assert running.stderr.read() == b""


def everything(descriptor: int) -> str:
    """Read a pseudo-terminal until the program at its other side has closed it."""
    found = b""
    try:
        while more := os.read(descriptor, 65536):
            found += more
    except OSError:  # how Linux says that it is closed
        pass
    finally:
        os.close(descriptor)
    return found.decode()


def first_lines(running: subprocess.Popen[bytes], mark: bytes) -> None:
    assert running.stdout is not None
    for line in running.stdout:
        if mark in line:
            return
    raise AssertionError("it ended early")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_cleanly_with_the_summary(demo: Demo, number: int, code: int) -> None:
    running = demo("--seconds", "30")
    first_lines(running, b"import      ended completed")
    running.send_signal(number)
    output, errors = running.communicate(timeout=20)
    assert (running.returncode, errors) == (code, b"")
    assert b"OUTCOME" in output
    assert output.endswith(b"Interrupted: every task was asked to stop, and has ended.\n")


@pytest.mark.parametrize("mark", [b"Four tasks", b"attempt 1 starts"])
def test_it_ends_when_nobody_reads_any_more(demo: Demo, mark: bytes) -> None:
    running = demo("--seconds", "30")
    first_lines(running, mark)
    assert running.stdout is not None
    running.stdout.close()
    assert running.wait(timeout=20) == 141
    assert running.stderr is not None
    assert running.stderr.read() == b""


def test_a_full_disk_is_told(demo: Demo) -> None:
    with open("/dev/full", "wb") as full:
        running = demo("--seconds", "30", stdout=full.fileno())
    _, errors = running.communicate(timeout=20)
    assert running.returncode == 1
    assert errors == b"error: standard output can't be written: [Errno 28] No space left on device\n"


def test_an_encoding_without_symbols_gets_ascii(demo: Demo) -> None:
    running = demo("--seconds", "30", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    first_lines(running, b"import      ended completed")
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=20)
    assert output.isascii()
    assert b"\n+ import " in output
