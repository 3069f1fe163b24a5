"""The command `run`: somebody's tasks, or somebody's scheduler, in the foreground."""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import ExitStack

from supervisor.cli.main import TASK_FAILED, WRONG_USE
from supervisor.cli.target import TargetError, load
from supervisor.cli.terminal import Terminal
from supervisor.cli.words import Line, Tone
from supervisor.flows.scheduler import Scheduler
from supervisor.kernel.errors import GraceExceeded, SupervisorError
from supervisor.kernel.text import error_text, traceback_text
from supervisor.tasks.config import SupervisorConfig
from supervisor.tasks.lifecycle import TaskFinished, TaskRejected
from supervisor.tasks.outcome import OutcomeKind
from supervisor.tasks.signals import forwarded
from supervisor.tasks.supervisor import Supervisor

__all__ = ["Tally", "refused", "run"]

_FAILURES = {OutcomeKind.FAILED, OutcomeKind.FATAL, OutcomeKind.PANICKED, OutcomeKind.FORCE_ABORTED}
_SHOWN = 100  # outcomes of each sort that are told one by one
_CAPACITY = 1_000_000  # outcomes that may wait to be counted; each is one small event


class Tally:
    """A subscriber that counts how tasks ended. Memory stays bounded, however many there are."""

    def __init__(self) -> None:
        self.counts: Counter[OutcomeKind] = Counter()
        self._told: dict[bool, list[tuple[int, Line]]] = {True: [], False: []}  # by "failed"; with seq

    @property
    def failed(self) -> bool:
        """A task ended in a way that the exit code tells."""
        return any(self.counts[kind] for kind in _FAILURES)

    def __call__(self, event: TaskFinished | TaskRejected) -> None:
        kind = event.outcome if isinstance(event, TaskFinished) else OutcomeKind.REJECTED
        self.counts[kind] += 1
        told = self._told[kind in _FAILURES]
        if len(told) < _SHOWN:
            told.append((event.seq, _line(event, kind)))

    def lines(self) -> list[Line]:
        """Return a line for each outcome, in order, and one for those that are too many."""
        lines = [line for _, line in sorted(self._told[True] + self._told[False], key=lambda pair: pair[0])]
        if self.counts.total() > len(lines):
            counts = ", ".join(f"{count} {kind}" for kind, count in self.counts.most_common())
            lines.append([(f"... and more, in all {counts}", Tone.PLAIN)])
        return lines


def run(target: str, *, log_level: str | None, events: str | None, grace: float | None) -> int:
    """Run `module:object` to its end or to a signal; return the exit code."""
    terminal = Terminal(sys.stderr, os.environ)
    try:
        found = load(target)
        if isinstance(found, Scheduler):
            return _run_flows(found, target, terminal, log_level=log_level, events=events, grace=grace)
        if isinstance(found, Supervisor):
            if grace is not None:
                raise TargetError(
                    f"--grace can't change {target}; give it a SupervisorConfig(grace={grace:g})"
                )
            supervisor, specs = found, []
        else:
            if not found:
                raise TargetError(f"{target} is an empty list: there is nothing to run")
            config = SupervisorConfig() if grace is None else SupervisorConfig(grace=grace)
            supervisor, specs = Supervisor(config), found
    except TargetError as error:
        return refused(terminal, str(error), error.traceback)
    tally = Tally()
    with ExitStack() as stack:
        try:
            _keep(stack, supervisor, events)
        except TargetError as error:
            return refused(terminal, str(error))
        if log_level is not None or specs:  # a Supervisor brings its own, unless it is asked for more
            _log(stack, supervisor, log_level)
        kinds = (TaskFinished, TaskRejected)
        stack.enter_context(
            supervisor.subscribe(tally, kinds=kinds, name="outcomes", capacity=_CAPACITY, dedicated=True)
        )
        try:
            if not specs:
                supervisor.start()  # one that was shut down refuses, where an empty run has nothing to say
            supervisor.run(specs)
        except GraceExceeded:
            pass  # the outcomes tell it
        except SupervisorError as error:
            if specs:  # a refused batch leaves a supervisor without tasks
                supervisor.shutdown()
            return refused(terminal, f"{target} can't be run: {error}")
    terminal.say(tally.lines() or [[(f"{target} had no tasks to run", Tone.PLAIN)]])
    if supervisor.received_signal is not None:
        return 128 + supervisor.received_signal
    return TASK_FAILED if tally.failed else 0


def _run_flows(
    scheduler: Scheduler,
    target: str,
    terminal: Terminal,
    *,
    log_level: str | None,
    events: str | None,
    grace: float | None,
) -> int:
    """Start a scheduler and run it until it stops or a signal comes. Raises TargetError."""
    from supervisor.cli.run_flows import run_scheduler

    if not len(scheduler):
        raise TargetError(f"{target} is a scheduler without flows: there is nothing to run")
    supervisor = scheduler.supervisor
    with ExitStack() as stack:
        _keep(stack, supervisor, events)
        _log(stack, supervisor, log_level)
        stack.callback(_end, supervisor)  # first of all, so that subscribers get what is under way
        signals: list[int] = []
        stack.enter_context(forwarded(signals.append))  # before anything runs that a signal would tear apart
        try:
            running = scheduler.start()
        except SupervisorError as error:
            raise TargetError(f"{target} can't be run: {error}") from None
        except Exception as error:
            raise TargetError(
                f"starting {target} failed: {error_text(error)}", traceback_text(error)
            ) from None
        return run_scheduler(running, terminal, grace, signals)


def _end(supervisor: Supervisor) -> None:
    """End what a scheduler ran on: its own has ended, but one that was given stays up."""
    try:
        supervisor.shutdown()
    except GraceExceeded as error:
        Terminal(sys.stderr, os.environ).say([[("error: ", Tone.BAD), (str(error), Tone.PLAIN)]])


def _keep(stack: ExitStack, supervisor: Supervisor, events: str | None) -> None:
    """Append every event to the file `events`, unless that is None. Raises TargetError."""
    if events is not None:
        from supervisor.subscribers.jsonl import JsonlSubscriber

        try:
            file = stack.enter_context(JsonlSubscriber(events))
        except OSError as error:
            raise TargetError(f"--events {events}: {error.strerror or 'its folder is missing'}") from None
        stack.enter_context(supervisor.subscribe(file, name="--events"))


def _log(stack: ExitStack, supervisor: Supervisor, level: str | None) -> None:
    import logging

    from supervisor.subscribers.log import LogSubscriber

    name = (level or "warning").upper()
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", level=name)
    if level is not None:  # also where the module has set logging up before
        logging.getLogger("supervisor").setLevel(name)
    stack.enter_context(supervisor.subscribe(LogSubscriber(), name="--log-level"))


def refused(terminal: Terminal, message: str, traceback: str = "") -> int:
    """Say why a command can't do what was asked; return the exit code."""
    if traceback:
        terminal.say([[(line, Tone.QUIET)] for line in traceback.splitlines()])
    terminal.say([[("error: ", Tone.BAD), (message, Tone.PLAIN)]])
    return WRONG_USE


def _line(event: TaskFinished | TaskRejected, kind: OutcomeKind) -> Line:
    tone = Tone.BAD if kind in _FAILURES else Tone.GOOD if kind is OutcomeKind.COMPLETED else Tone.PLAIN
    text = f"{event.task}: "
    after = ""
    if isinstance(event, TaskFinished) and event.attempts != 1:
        after = f" after {event.attempts} attempts"
    if event.reason:
        after += ": " + event.reason.rstrip().replace("\n", "\n    ")  # the stack of a stuck body
    return [(text, Tone.PLAIN), (kind.value, tone), (after, Tone.PLAIN)]
