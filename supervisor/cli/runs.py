"""The command `runs`: look at durable runs from outside, and give them signals, ends and another chance."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from supervisor.cli.history_table import history_lines
from supervisor.cli.main import NO_READER, TASK_FAILED, WRONG_USE
from supervisor.cli.run_screen import run_lines
from supervisor.cli.run_table import run_table
from supervisor.cli.store import NOT_ALLOWED, RefusedError, address, answered, opened
from supervisor.cli.terminal import Terminal
from supervisor.cli.times import absolute, relative
from supervisor.cli.words import Column, Line, Tone, cut, shortened, table
from supervisor.durable.engine import FlowEngine
from supervisor.durable.errors import CorruptHistory, InvalidTransition, RunNotFound
from supervisor.durable.instants import written
from supervisor.durable.projection import Projection
from supervisor.durable.queues.protocol import DeadLetter
from supervisor.durable.snapshot import RunSnapshot, RunStatus
from supervisor.durable.stores.opening import StoreAddress
from supervisor.durable.stores.protocol import Failure
from supervisor.kernel.clock import SYSTEM_CLOCK

__all__ = ["Runs"]

_LETTERS = (
    Column(title="ID", right=True),
    Column(title="RUN", least=8),
    Column(title="SINCE", least=8),
    Column(title="", least=20, room=70),
    Column(title="REASON"),
)


class Runs:
    """The subcommands; each method prints its answer and returns the exit code."""

    def __init__(self, url: str | None, *, as_json: bool = False) -> None:
        self._url = url
        self._as_json = as_json
        # JSON is for machines: no colors, no cut
        self._out = Terminal(sys.stdout, {} if as_json else os.environ)
        self._errors = Terminal(sys.stderr, os.environ)

    def all(self, status: str | None, workflow: str | None, limit: int) -> int:
        """Print runs, the newest first."""

        def work() -> int:
            with opened(address(self._url)) as engine:
                wanted = None if status is None else (RunStatus(status),)
                ids = engine.directory.find_runs(wanted, workflow, limit + 1, newest_first=True)
                runs: list[RunSnapshot] = []
                damaged: list[str] = []
                for run_id in ids[:limit]:
                    try:
                        runs.append(engine.snapshot(run_id))
                    except (CorruptHistory, InvalidTransition) as error:
                        damaged.append(str(error))
                marks = {each.run_id: each for each in engine.failures()}
            if self._as_json:
                self._print_json(run.to_dict() for run in runs)
            elif runs:
                width, symbols = self._out.width, self._out.symbols
                self._out.say(run_table(runs, marks, SYSTEM_CLOCK.now(), width=width, symbols=symbols))
            elif not damaged:
                self._note("there are no runs" + (" of that kind" if status or workflow else ""))
            for each in damaged:
                self._errors.say([[("error: ", Tone.BAD), (each, Tone.PLAIN)]])
            if len(ids) > limit:
                self._note(f"these are the newest {limit}; --limit N shows more")
            return TASK_FAILED if damaged else 0

        return self._answered(work)

    def show(self, run_id: str, *, everything: bool) -> int:
        """Print one run with its timeline."""

        def work() -> None:
            with opened(address(self._url)) as engine:
                history = engine.history(run_id)
                run = Projection.of(run_id, history).snapshot()
                mark = next((each for each in engine.failures() if each.run_id == run_id), None)
            if self._as_json:
                self._out.say(
                    [(line, Tone.PLAIN)] for line in json.dumps(run.to_dict(), indent=2).splitlines()
                )
                return
            self._out.say(
                run_lines(
                    run,
                    history,
                    SYSTEM_CLOCK.now(),
                    failure=mark,
                    width=self._out.width,
                    symbols=self._out.symbols,
                    most=None if everything else 40,
                )
            )

        return self._answered(work)

    def history(self, run_id: str) -> int:
        """Print every event of a run."""

        def work() -> None:
            with opened(address(self._url)) as engine:
                history = engine.history(run_id)
            if self._as_json:
                self._print_json(each.to_dict() for each in history)
            else:
                self._out.say(history_lines(history, width=self._out.width, symbols=self._out.symbols))

        return self._answered(work)

    def signal(self, run_id: str, name: str, payload: str | None, signal_id: str | None) -> int:
        """Send a signal to a run."""

        def work() -> None:
            value = None if payload is None else _value(payload)
            where = address(self._url)
            chosen = uuid4().hex if signal_id is None else signal_id
            with opened(where) as engine:
                engine.signal(run_id, name, value, chosen)
                run = engine.snapshot(run_id)
            wait_id = run.signals[chosen].wait_id
            if run.terminal:  # it takes no new ones, so this one was there
                self._say(
                    f"signal {name!r} was sent to run {run_id!r} as {chosen} before, and the run has ended "
                    f"({run.status})"
                )
                return
            taken = "nothing waits for it yet, it is kept"
            if wait_id is not None:
                taken = f"wait {wait_id!r} has got it, {_next(where)}"
            self._say(f"signal {name!r} was sent to run {run_id!r} as {chosen}: {taken}")

        return self._answered(work)

    def cancel(self, run_id: str, reason: str | None, *, force: bool) -> int:
        """Ask a run to end, or end it."""

        def work() -> None:
            where = address(self._url)
            with opened(where) as engine:
                if force:
                    engine.force_cancel(run_id, reason)
                    self._say(f"run {run_id!r} is cancelled")
                else:
                    engine.cancel(run_id, reason)
                    self._say(f"run {run_id!r} is asked to cancel: it may clean up, {_next(where)}")

        return self._answered(work)

    def failures(self) -> int:
        """Print the runs that wait for a person."""

        def work() -> None:
            with opened(address(self._url)) as engine:
                marks = engine.failures()
                # of several letters of a run the newest
                letters = {each.run_id: each.id for each in engine.queue.dead_letters()} if marks else {}
            rows = [{**_row(each), "id": letters.get(each.run_id)} for each in marks]
            self._print_letters(rows, "no run waits for a person")

        return self._answered(work)

    def redrive(self, target: str | None, *, everything: bool) -> int:
        """Print what can be queued again, or queue it.  target: a run, or the id of a dead letter."""

        def work() -> int:
            where = address(self._url)
            with opened(where) as engine:
                rows = _to_redrive(engine)
                if target is None and not everything:
                    self._print_letters(rows, "nothing is to be redriven")
                    if rows and not self._as_json:
                        self._note("queue one again with: runs redrive ID or RUN; all of them with --all")
                    return 0
                if target is not None and everything:
                    raise RefusedError("--all and a run are given; leave one of them out")
                if where.kind == "jsonl":
                    raise RefusedError(
                        "the queue of a JSONL directory is in the memory of the process that serves it; that one "
                        "queues every unfinished run when it is started, so start it again"
                    )
                chosen = rows if target is None else _chosen(engine, rows, target)
                for row in chosen:
                    self._redrive(engine, row)
                if not chosen:
                    self._note("nothing is to be redriven")
            return 0

        return self._answered(work)

    def _redrive(self, engine: FlowEngine, row: dict[str, Any]) -> None:
        run_id, letter = row["run_id"], row["id"]
        queued = engine.queue.redrive(letter) if letter is not None else engine.queue.enqueue(run_id)
        self._say(f"run {run_id!r} is queued again" if queued else f"run {run_id!r} is in the queue already")

    def _print_letters(self, rows: list[dict[str, Any]], nothing: str) -> None:
        if self._as_json:
            self._print_json({**row, "at": written(row["at"])} for row in rows)
        elif not rows:
            self._note(nothing)
        else:
            now, width, symbols = SYSTEM_CLOCK.now(), self._out.width, self._out.symbols
            lettered = any(row["id"] is not None for row in rows)
            cells: list[Line] = [
                [
                    ("" if row["id"] is None else str(row["id"]), Tone.PLAIN),
                    (row["run_id"], Tone.PLAIN),
                    (relative(row["at"], now), Tone.PLAIN),
                    (absolute(row["at"]), Tone.QUIET),
                    (shortened(row["reason"], 500, symbols), Tone.BAD),
                ]
                for row in rows
            ]
            columns, cells = (_LETTERS, cells) if lettered else (_LETTERS[1:], [row[1:] for row in cells])
            self._out.say(cut(line, width, symbols) for line in table(columns, cells, width))

    def _answered(self, work: Any) -> int:
        code = answered(self._errors, work)
        if self._out.lost is None:
            return code
        if isinstance(self._out.lost, BrokenPipeError):
            return NO_READER
        text = f"standard output can't be written: {self._out.lost}"
        self._errors.say([[("error: ", Tone.BAD), (text, Tone.PLAIN)]])
        return WRONG_USE

    def _print_json(self, documents: Iterable[Any]) -> None:
        self._out.say([(json.dumps(each), Tone.PLAIN)] for each in documents)

    def _say(self, text: str) -> None:
        self._out.say([[(text, Tone.PLAIN)]])

    def _note(self, text: str) -> None:
        self._errors.say([[(text, Tone.QUIET)]])


def _next(where: StoreAddress) -> str:
    if where.kind == "jsonl":
        return "and the process that serves this directory goes on with it when it is started"
    return "and a worker goes on with it"


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RefusedError(
            f"--payload is no JSON ({error}); text needs quotes of its own: --payload '\"yes\"'"
        ) from None


def _row(each: Failure | DeadLetter) -> dict[str, Any]:
    letter = each.id if isinstance(each, DeadLetter) else None
    return {"id": letter, "run_id": each.run_id, "reason": each.reason, "at": each.at}


def _to_redrive(engine: FlowEngine) -> list[dict[str, Any]]:
    """Return dead letters, and marked runs that have none and have not ended."""
    letters = engine.queue.dead_letters()
    known = {each.run_id for each in letters}
    rows = [_row(each) for each in letters]
    for mark in engine.failures():
        if mark.run_id not in known and not _ended(engine, mark.run_id):
            rows.append(_row(mark))
    return rows


def _ended(engine: FlowEngine, run_id: str) -> bool:
    try:
        return engine.snapshot(run_id).terminal
    except (RunNotFound, CorruptHistory, InvalidTransition):
        return False


def _chosen(engine: FlowEngine, rows: list[dict[str, Any]], target: str) -> list[dict[str, Any]]:
    """Return what a person means: a run, or else the id of a dead letter. Raises RefusedError, RunNotFound."""
    chosen = [row for row in rows if row["run_id"] == target]
    if not chosen and target.isdecimal():
        chosen = [row for row in rows if row["id"] == int(target)]
    if chosen:
        return chosen
    try:
        run = engine.snapshot(target)
    except RunNotFound:
        raise RefusedError(
            f"{target!r} is neither a dead letter nor a run that waits for a person; `runs redrive` lists them",
            NOT_ALLOWED,
        ) from None
    raise RefusedError(
        f"run {target!r} is {run.status} and does not wait for a person; there is nothing to redrive",
        NOT_ALLOWED,
    )
