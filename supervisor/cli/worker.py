"""The command `worker`: serve somebody's durable runs in the foreground, until a signal asks to stop."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from functools import partial

from supervisor.cli.main import TASK_FAILED
from supervisor.cli.run import refused
from supervisor.cli.store import VARIABLE, RefusedError, answered, prepared
from supervisor.cli.target import TargetError, load_engine
from supervisor.cli.terminal import Terminal
from supervisor.cli.times import span
from supervisor.cli.words import Line, Tone, labeled
from supervisor.durable.engine import FlowEngine
from supervisor.durable.errors import StoreError
from supervisor.durable.history import Envelope, RunCancelled, RunCompleted, RunFailed, RunRetryExhausted
from supervisor.durable.runtime import FlowRuntime
from supervisor.durable.serving import Serving
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.memory import MemoryEventStore
from supervisor.kernel.cancellation import CancelReason
from supervisor.kernel.clock import SYSTEM_CLOCK, Queue
from supervisor.kernel.errors import GraceExceeded
from supervisor.kernel.text import printable, shown
from supervisor.tasks.config import SupervisorConfig
from supervisor.tasks.signals import forwarded
from supervisor.tasks.spec import TaskSpec
from supervisor.tasks.supervisor import Supervisor

__all__ = ["worker"]

_AT_ONCE = 0.5  # seconds that steps have to end after a second signal
_NAMES = 12  # workflows, and steps, that are told one by one


def worker(
    target: str,
    *,
    url: str | None,
    workers: int,
    poll: float,
    lease: float,
    grace: float,
    verbose: bool,
) -> int:
    """Serve `module:object` until a signal comes; return the exit code. In the main thread."""
    terminal = Terminal(sys.stderr, os.environ)

    def work() -> int:
        with ExitStack() as stack:
            engine = _engine(stack, target, url)
            if verbose:
                engine.subscribe(_Ends(engine, terminal))
            terminal.say(_served(engine, target, workers, terminal.width))
            logging.basicConfig(
                format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", level=logging.WARNING
            )
            return _serve(engine.serve(workers, poll, lease, grace=grace), engine, terminal, grace)

    try:
        return answered(terminal, work)
    except TargetError as error:
        return refused(terminal, str(error), error.traceback)
    except GraceExceeded as error:  # of a `serve` that the module began itself: the engine is closed with it
        return _ran_on(terminal, error)


def _engine(stack: ExitStack, target: str, url: str | None) -> FlowEngine:
    """Return the engine to serve; it is closed with the stack. Raises TargetError, RefusedError, StoreError."""
    found = load_engine(target)
    if isinstance(found, FlowRuntime):
        if url is None and not os.environ.get(VARIABLE):
            raise RefusedError(
                f"{target} is a FlowRuntime, which has no store; give --store URL, or name a FlowEngine"
            )
        store = prepared(url)
        stack.callback(store.close)
        engine = FlowEngine(found, store)
    elif url is not None:
        raise RefusedError(
            f"--store can't change {target}, which has its own; name its FlowRuntime, or leave --store out"
        )
    else:
        engine = found
        stack.callback(engine.store.close)
    stack.callback(engine.close)
    return engine


def _serve(serving: Serving, engine: FlowEngine, terminal: Terminal, grace: float) -> int:
    """Serve until a signal comes, and stop in order; a second one ends the grace at once."""
    told = SYSTEM_CLOCK.queue()  # numbers of signals, and then how the stop ended
    first = 0
    try:
        with forwarded(told.put), serving, Supervisor(SupervisorConfig(name="stop")) as stopper:
            first = int(told.get())
            text = f"stopping: steps that run have {grace:g} s to end; another signal ends it at once"
            terminal.say([[(text, Tone.QUIET)]])
            stopper.add(TaskSpec.once("stop", partial(_stop, serving, told)))
            if isinstance(told.get(), int):
                # What listens to its token ends now; the rest is left, and run again when its lease is over.
                engine.seats.cancel_all(CancelReason.SHUTDOWN)
                stopper.add(TaskSpec.once("last", partial(_later, told)))
                if _first_text(told) == _LATE:
                    text = "ended at once: steps that ran are run again when their lease is over"
                    terminal.say([[(text, Tone.WARN)]])
                    os._exit(128 + first)
    except GraceExceeded as error:
        return _ran_on(terminal, error)
    return 128 + first


def _ran_on(terminal: Terminal, error: GraceExceeded) -> int:
    where = ", ".join(line.strip() for line in str(error).splitlines()[1:])
    text = (
        f"steps ran on after the grace, and are run again when their lease is over: {where}; let long steps "
        "watch current_step().token"
    )
    terminal.say([[("error: ", Tone.BAD), (printable(text), Tone.PLAIN)]])
    return TASK_FAILED


_ENDED, _LATE = "ended", "late"


def _stop(serving: Serving, told: Queue) -> None:
    try:
        serving.stop()
    except GraceExceeded:
        pass  # the main thread gets it as well
    finally:
        told.put(_ENDED)


def _later(told: Queue) -> None:
    SYSTEM_CLOCK.latch().wait(_AT_ONCE)
    told.put(_LATE)


def _first_text(told: Queue) -> str:
    """Wait for a text, past the numbers of further signals."""
    while not isinstance(found := told.get(), str):
        pass
    return found


def _served(engine: FlowEngine, target: str, workers: int, width: int | None) -> list[Line]:
    workflows, steps = engine.runtime.names()
    count = "1 worker" if workers == 1 else f"{workers} workers"
    lines: list[Line] = [[(f"serving {target} with {count}", Tone.HEAD), (", Ctrl-C stops it", Tone.QUIET)]]
    lines.append([(f"  {'store':<8}", Tone.BUSY), (shown(engine.store).strip("<>"), Tone.PLAIN)])
    lines += labeled("flows", _names([f"{name} {version}" for name, version in workflows]), width)
    lines += labeled("steps", _names(steps), width)
    if isinstance(engine.store, MemoryEventStore):
        text = "the store is in memory: runs come only from this process, and end with it"
        lines.append([("note: ", Tone.WARN), (text, Tone.PLAIN)])
    if not workflows:
        lines.append(
            [("note: ", Tone.WARN), ("no workflow is registered: every run is left to others", Tone.PLAIN)]
        )
    return lines


def _names(names: list[str]) -> str:
    more = [f"and {len(names) - _NAMES} more"] if len(names) > _NAMES else []
    return printable(", ".join([*names[:_NAMES], *more]) or "none")


class _Ends:
    """A subscriber that tells in one line how each run has ended."""

    def __init__(self, engine: FlowEngine, terminal: Terminal) -> None:
        self._engine = engine
        self._terminal = terminal

    def __call__(self, event: object) -> None:
        if not isinstance(event, Envelope):
            return
        if isinstance(event.event, RunCompleted | RunFailed | RunRetryExhausted | RunCancelled):
            try:
                run = self._engine.snapshot(event.run_id)
            except StoreError:  # the line is a courtesy
                return
            tone = Tone.GOOD if run.status is RunStatus.COMPLETED else Tone.BAD
            lasted = span((run.updated_at - run.created_at).total_seconds())
            why = f": {run.error}" if run.error else ""
            self._terminal.say(
                [
                    [
                        (f"{run.run_id} ({printable(run.workflow)}) ", Tone.PLAIN),
                        (str(run.status), tone),
                        (f" after {printable(lasted + why)}", Tone.PLAIN),
                    ]
                ]
            )
