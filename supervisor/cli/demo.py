"""The command `demo`: a story of four tasks and a flow, and whether it went as told."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from supervisor.cli.account import Account, fold
from supervisor.cli.demo_crash import crash_and_go_on
from supervisor.cli.demo_flow import FLOW, LIMIT, keep_reports
from supervisor.cli.demo_tasks import FILES, RETRIES, ROWS, Place, Server, prepare, specs
from supervisor.cli.main import NO_READER, TASK_FAILED
from supervisor.cli.picture import entry_line, live, summary
from supervisor.cli.terminal import Terminal
from supervisor.cli.words import Line, Tone, labeled
from supervisor.flows.lifecycle import FlowSucceeded, FlowTrippedEvent
from supervisor.kernel.clock import SYSTEM_CLOCK
from supervisor.kernel.errors import GraceExceeded, ShuttingDown
from supervisor.kernel.event import Event
from supervisor.tasks.config import SupervisorConfig
from supervisor.tasks.context import TaskContext
from supervisor.tasks.handle import TaskHandle
from supervisor.tasks.lifecycle import TaskFinished
from supervisor.tasks.outcome import OutcomeKind, TaskOutcome
from supervisor.tasks.spec import TaskSpec
from supervisor.tasks.supervisor import Supervisor

__all__ = ["demo"]

_REDRAW = 0.125  # seconds
_GRACE = 3.0  # seconds

_STORY = {
    "poll": "asks a web server every {every:g} s. The server answers, fails and hangs in turn: "
    "look for backoffs that grow, and for attempts cut off after {timeout:g} s.",
    "scan": "hashes a directory tree of {files} files, again and again. It just works.",
    "import": "copies {rows:,} rows of a CSV file into SQLite, once.",
    "worker": "crashes on bad data whenever it is tried, and is given up after {retries} retries.",
    "server": "is the web server that poll asks: one more task, supervised like the others.",
    FLOW: "is a flow of three states, fired every {pace:g} s by a task, the dispatcher. Its folder is missing: it "
    "trips after {limit} failures in a row, until the demo has made the folder and resets it.",
}


def demo(seconds: float) -> int:
    """Play the demo for about `seconds` seconds; return the exit code."""
    # Two supervisors: one for the story, and one that watches it, so that the account holds the story alone.
    story = Supervisor(SupervisorConfig(name="demo", grace=_GRACE))
    watch = Supervisor(SupervisorConfig(name="watch"))
    terminal = Terminal(sys.stdout, os.environ, on_lost=story.request_shutdown)
    view = _View(terminal, seconds)
    story.subscribe(view, name="account")
    pace = min(1.0, seconds / 10.0)
    terminal.say(_introduction(pace, seconds, terminal.width))
    if terminal.lost:
        return _unread(terminal.lost)
    with TemporaryDirectory(prefix="threadvisor-", ignore_cleanup_errors=True) as folder, Server() as server:
        place = prepare(Path(folder))
        tasks = specs(place, server, pace)
        outcomes: list[TaskOutcome] = []
        try:
            with watch:
                events = story.events(TaskFinished, FlowTrippedEvent, FlowSucceeded)
                keeper = watch.add(TaskSpec.once(FLOW, keep_reports, args=(story, events, place, pace)))
                watch.add(TaskSpec.once("end", partial(_end, story, keeper, seconds)))
                if terminal.redraws:
                    watch.add(TaskSpec.periodic("redraw", view.redraw, _REDRAW))
                outcomes = story.run(tasks)
        except (GraceExceeded, ShuttingDown):
            pass  # the account tells the one; the reader that is lost has no use for the other
        finally:
            terminal.wipe()
        if terminal.lost:
            return _unread(terminal.lost)
        values = {spec.name: outcome.value for spec, outcome in zip(tasks, outcomes, strict=False)}
        account = view.account
        terminal.say(
            [
                *([] if terminal.redraws else [[]]),
                *summary(account, width=terminal.width, symbols=terminal.symbols),
                [],
            ]
        )
        if story.received_signal is not None:
            terminal.say([[("Interrupted: every task was asked to stop, and has ended.", Tone.HEAD)]])
            return 128 + story.received_signal
        surprises = _surprises(account, values, place)
        if not surprises:
            terminal.say(_brought(account, values, int(_report(place)[1]), terminal.width))
            surprises, number = crash_and_go_on(terminal, Path(folder))
            if terminal.lost:
                return _unread(terminal.lost)
            if number is not None:
                terminal.say([[("Interrupted: its process has ended.", Tone.HEAD)]])
                return 128 + number
    if surprises:
        terminal.say([[("This is not the story that was to be told:", Tone.BAD)]])
        terminal.say([[(f"  {surprise}", Tone.PLAIN)] for surprise in surprises])
        return TASK_FAILED
    terminal.say(
        [
            [("All went as told.", Tone.GOOD)],
            [("Your own tasks and flows: python -m supervisor run module:object", Tone.PLAIN)],
        ]
    )
    return 0


class _View:
    """What a subscriber shows: lines as they come, or a picture that somebody asks to redraw."""

    def __init__(self, terminal: Terminal, total: float) -> None:
        self.account = Account()  # replaced by the delivery thread, never changed
        self._terminal = terminal
        self._total = total

    def __call__(self, event: Event) -> None:
        before, self.account = self.account, fold(self.account, event)
        if not self._terminal.redraws:
            self._terminal.say(entry_line(entry, self.account) for entry in self.account.news(before))

    def redraw(self) -> None:
        width, height = self._terminal.size()
        picture = live(
            self.account,
            SYSTEM_CLOCK.now(),
            self._total,
            width=width,
            height=height,
            symbols=self._terminal.symbols,
        )
        self._terminal.draw(picture)


def _end(story: Supervisor, keeper: TaskHandle, seconds: float, ctx: TaskContext) -> None:
    """End the story in time; on a slow machine wait as long again for what ends by itself."""
    ctx.sleep(seconds)
    for handle in (story.get("import"), story.get("worker"), keeper):
        if handle is not None:
            try:
                handle.wait(seconds)
            except TimeoutError:
                break
    story.request_shutdown()


def _unread(error: Exception) -> int:
    if isinstance(error, BrokenPipeError):
        return NO_READER
    Terminal(sys.stderr, os.environ).say([[(f"error: standard output can't be written: {error}", Tone.BAD)]])
    return TASK_FAILED


def _introduction(pace: float, seconds: float, width: int | None) -> list[Line]:
    facts = {
        "pace": pace,
        "limit": LIMIT,
        "every": 0.5 * pace,
        "timeout": pace,
        "files": FILES,
        "rows": ROWS,
        "retries": RETRIES,
    }
    title = f"Four tasks and a flow for {seconds:g} seconds, all on threads."
    lines: list[Line] = [[(title, Tone.HEAD), (" Ctrl-C ends it early.", Tone.QUIET)], []]
    for name, text in _STORY.items():
        lines += labeled(name, text.format(**facts), width)
    return [*lines, []]


def _surprises(account: Account, values: Mapping[str, Any], place: Place) -> list[str]:
    """Return what differs from the story; nothing when it went as told."""
    rows = account.rows
    expected = {
        "poll": OutcomeKind.CANCELED,
        "scan": OutcomeKind.CANCELED,
        "import": OutcomeKind.COMPLETED,
        "worker": OutcomeKind.FAILED,
        "server": OutcomeKind.CANCELED,
        FLOW: OutcomeKind.COMPLETED,
    }
    found = [
        f"{name} ended {row.outcome if row else 'unseen'}, not {kind}: {row.reason if row else ''}"
        for name, kind in expected.items()
        if (row := rows.get(name)) is None or row.outcome is not kind
    ]
    if found:
        return found
    poller, scanner, worker, flow = rows["poll"], rows["scan"], rows["worker"], rows[FLOW]
    checks = {
        "poll met no failure": poller.failures > 0,
        "poll met no timeout": poller.timeouts > 0,
        "poll got no answer": poller.successes > 0,
        "scan ran only once": scanner.successes > 1,
        "scan failed": scanner.failures == 0,
        "worker was not retried to its limit": worker.attempt == RETRIES + 1,
        f"{FLOW} did not fail {LIMIT} times": flow.failures == LIMIT,
        f"{FLOW} did not trip once": flow.trips == 1,
        f"{FLOW} was not reset once": flow.resets == 1,
    }
    found = [surprise for surprise, well in checks.items() if not well]
    with closing(sqlite3.connect(place.database)) as database:
        stored: int = database.execute("SELECT count(*) FROM orders").fetchone()[0]
    if not stored == values["import"] == ROWS:
        found.append(f"import returned {values['import']} rows and stored {stored}, of {ROWS}")
    if not found and int(_report(place)[0]) != ROWS:
        found.append(f"{FLOW} wrote of {_report(place)[0]} orders, of {ROWS}")
    return found


def _report(place: Place) -> list[str]:
    return (place.reports / "orders.txt").read_text("utf-8").split()


def _brought(account: Account, values: Mapping[str, Any], cents: int, width: int | None) -> list[Line]:
    rows = account.rows
    poller = rows["poll"]
    brought = {
        "poll": f"{poller.successes} answers, {poller.failures} errors, {poller.timeouts} timeouts",
        "scan": f"{rows['scan'].successes} times sha256 {values['scan'][:12]}",
        "import": f"{values['import']:,} rows, counted again in the database",
        FLOW: f"{rows[FLOW].successes} reports since the reset: {ROWS:,} orders worth {cents / 100:,.2f}",
    }
    return [
        [("What the work has brought:", Tone.HEAD)],
        *(line for name, text in brought.items() for line in labeled(name, text, width)),
        [],
    ]
