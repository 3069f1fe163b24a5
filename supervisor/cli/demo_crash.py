"""The part of the demo in which a process is killed in the middle of a durable run, and another one ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

from supervisor.cli.bars import bars_of
from supervisor.cli.demo_run import DEADLY, RUN
from supervisor.cli.run_screen import WIDTH
from supervisor.cli.terminal import Terminal
from supervisor.cli.timeline import timeline
from supervisor.cli.words import Line, Tone
from supervisor.durable.errors import FlowError
from supervisor.durable.history import Envelope, StepCompleted
from supervisor.durable.projection import Projection
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.sqlite import SqliteEventStore
from supervisor.tasks.signals import forwarded

__all__ = ["crash_and_go_on"]

_ROOT = Path(__file__).resolve().parents[2]  # what `supervisor` is imported from
_TITLE = "A durable run in a SQLite file. Its process is killed in the middle, and started again:"


class _Process:
    """A process of the demo's program: its lines, and its end."""

    def __init__(self, file: Path) -> None:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "supervisor.cli.demo_run", str(file)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # a Ctrl-C is for us, and we see to its end
        )
        self.errors = ""

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        _, self.errors = self._child.communicate()

    def kill(self) -> None:
        """End it at once: SIGKILL, where there are signals."""
        self._child.kill()

    def lines(self) -> Iterator[tuple[str, str, int, str]]:
        """Yield what it says: its process id, a step, an attempt, and what became of that."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            pid, step, attempt, what = line.split()
            yield pid, step, int(attempt), what


def crash_and_go_on(terminal: Terminal, folder: Path) -> tuple[list[str], int | None]:
    """Play it, and print it; return what differs from the story, and the signal that ended it early."""
    terminal.say(_paragraph(_TITLE, Tone.HEAD, terminal.width))
    file = folder / "flows.db"
    signals: list[int] = []
    begun: list[tuple[str, str]] = []  # process and step of each attempt
    recorded: set[str] = set()  # steps that had ended in the history when the first process was killed
    errors = ""
    with forwarded(signals.append):
        for first in (True, False):
            with _Process(file) as process:
                for pid, step, attempt, what in process.lines():
                    if signals or terminal.lost:
                        break
                    if what == "begins":
                        begun.append((pid, step))
                    terminal.say([_told(pid, step, attempt, what, again=not first and step == DEADLY)])
                    if first and step == DEADLY:
                        process.kill()
                        terminal.say([[(f"  process {pid}  is killed", Tone.BAD)]])
                        break
            errors += process.errors
            if signals or terminal.lost:
                return [], signals[0] if signals else None
            if first:
                recorded = _completed(file)
    try:
        history = _history(file)
    except FlowError as error:
        return [f"the durable run left no history: {error}", *errors.splitlines()], None
    run = Projection.of(RUN, history).snapshot()
    if run.status is not RunStatus.COMPLETED:
        return [f"the durable run is {run.status}, not completed", *errors.splitlines()], None
    processes = list(dict.fromkeys(pid for pid, _ in begun))
    twice = [step for pid, step in begun if len(processes) > 1 and pid == processes[1] and step in recorded]
    if twice or len(processes) != 2:
        return [f"{len(processes)} processes ran the steps, and ran again what was recorded: {twice}"], None
    drawn = timeline(
        bars_of(history),
        run.created_at,
        run.updated_at,
        width=terminal.width or WIDTH,
        symbols=terminal.symbols,
    )
    told = f"No step that was recorded ran again: {', '.join(sorted(recorded))} have run in the first process only."
    terminal.say([[], *drawn, [], *_paragraph(told, Tone.PLAIN, terminal.width), []])
    return [], None


def _paragraph(text: str, tone: Tone, width: int | None) -> list[Line]:
    return [[(line, tone)] for line in (wrap(text, width) if width else [text])]


def _told(pid: str, step: str, attempt: int, what: str, *, again: bool) -> Line:
    line = f"  process {pid}  {step}"
    if attempt > 1:
        line += f", attempt {attempt}"
    if what == "fails":
        return [(f"{line} fails", Tone.WARN)]
    return [(line, Tone.PLAIN), (" again: its end was not recorded" if again else "", Tone.WARN)]


def _history(file: Path) -> list[Envelope]:
    store = SqliteEventStore(file)
    try:
        return store.read(RUN)
    finally:
        store.close()


def _completed(file: Path) -> set[str]:
    try:
        return {each.event.step_id for each in _history(file) if isinstance(each.event, StepCompleted)}
    except FlowError:
        return set()
