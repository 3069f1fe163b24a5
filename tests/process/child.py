"""A program in a process of its own that a test talks with: read its lines, send it signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from types import TracebackType
from typing import Self

from tests.programs import ROOT, Finished

LIMIT = 30.0  # seconds, after which a program is killed; no claim of a test is about time

PRELUDE = """
import os, signal, sys, threading
from supervisor import *

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

deaf_runs = threading.Event()

def stubborn():
    deaf_runs.set()
    threading.Event().wait()

def waits(ctx):
    ctx.wait()

def announce_blocked():
    # Say "blocked" once the main thread waits inside the library.
    main = threading.main_thread().ident
    def watch():
        seen = 0
        while seen < 3:  # three looks in a row: not only on its way through
            frame = sys._current_frames()[main]
            inside = frame.f_code.co_name in ("wait", "get", "take", "wait_for", "acquire", "_acquire")
            seen = seen + 1 if inside else 0
            threading.Event().wait(0.005)
        say("blocked")
    threading.Thread(target=watch, daemon=True).start()
"""


class Child:
    """A running program; killed when the block is left and at `LIMIT`."""

    def __init__(self, code: str, *arguments: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        env["PYTHONPATH"] = str(ROOT)
        self._process = subprocess.Popen(
            # Since 3.12 a fork beside threads warns; here it is what the test is about.
            [
                sys.executable,
                "-W",
                "ignore::DeprecationWarning",
                "-c",
                PRELUDE + textwrap.dedent(code),
                *arguments,
            ],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._killer = threading.Timer(LIMIT, self._kill)
        self._killer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        self.finish()

    def _kill(self) -> None:
        # with the children it may have forked, which hold its output open
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def line(self) -> str:
        """Wait for a line of its output; "" at the end."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def expect(self, line: str) -> None:
        """Wait for a line and check it."""
        if (found := self.line()) != line:
            raise AssertionError(f"expected {line!r}, got {found!r}\n{self.finish().report()}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def finish(self) -> Finished:
        """Wait for its end and return what it left behind."""
        out, err = "", ""
        if self._process.stdout is not None and not self._process.stdout.closed:
            out, err = self._process.communicate()
        self._killer.cancel()
        self._killer.join()
        return Finished(returncode=self._process.wait(), stdout=out, stderr=err)


def run(code: str, *arguments: str) -> Finished:
    """Run a program to its end."""
    with Child(code, *arguments) as child:
        return child.finish()


def run_clean(code: str, *arguments: str) -> list[str]:
    """Run a program that must end well and write nothing to stderr; return the lines it wrote."""
    done = run(code, *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.report()
    return done.stdout.splitlines()
