"""The parsers of the commands for durable runs: `runs`, `db` and `worker`, and what they call."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import Any

__all__ = ["STATUSES", "add_commands", "call_db", "call_runs", "call_worker"]

STATUSES = ("pending", "running", "suspended", "cancelling", "completed", "failed", "cancelled")

_STORE = "store of the runs: sqlite:PATH, jsonl:DIRECTORY or postgresql://... (default: $SUPERVISOR_STORE)"
_RUNS = """\
Look at durable runs from outside, and tell them something. The workflows needn't be here: a
signal or a cancellation is written into the history of the run, and a worker goes on with it.
"""
_RUNS_CODES = """\
exit codes:
  0      done
  1      there is no such run, or it does not allow this: it has ended, for example
  2      the store can't be opened, or what was given is refused; the message says why

--store may stand behind the subcommand as well; without it, SUPERVISOR_STORE tells the store.
"""
_LIST = "Print runs, the newest first: a table, or with --json one JSON object a line."
_SHOW = """\
Print one run: what it is, a timeline of its steps and waits, and what went in and came out.
In the timeline each attempt of a step, and each wait, has a line; dots are delays before the
next attempt, an arrow is what has not ended.
"""
_HISTORY = "Print the events of a run, in order: a table, or with --json one JSON object a line."
_SIGNAL = """\
Send a signal to a run. If nothing waits for it yet, it is kept. With --id, the same signal sent
twice is one signal.
"""
_CANCEL = """\
Ask a run to end: what it waits for is given up, its workflow may clean up, and it is cancelled
then. --force ends it at once, without clean-up.
"""
_FAILURES = """\
Print the runs that wait for a person: their workflow and their history disagree, or they could
not be delivered to a worker again and again. The mark goes when the run is driven well.
"""
_REDRIVE = """\
Queue again what was given up: a run by its id, a dead letter by its number, or all. Without any
of these, print what there is. Mend the cause first, or it comes back.
"""
_DB = "Make and check the tables of a SQLite or PostgreSQL store."
_DB_CODES = """\
exit codes:
  0      done; status: every migration is applied
  1      status: a migration is missing
  2      the store can't be opened, or has no tables; the message says why
"""
_WORKER = """\
Serve durable runs in the foreground: a scheduler that finds what is due, and workers that drive
runs, until a signal asks to stop. Any number of them may serve the same SQLite or PostgreSQL
store.

MODULE:ENGINE names a FlowEngine, or a FlowRuntime beside --store, or a function without
arguments that returns one of these. The current directory is importable.

SIGINT (Ctrl-C) and SIGTERM ask it to stop: no run is taken any more, steps that run may end. A
second signal ends it at once; what ran is run again by another worker, when its lease is over.
"""
_WORKER_CODES = """\
exit codes:
  1      steps ran on all the same when the grace was over
  2      there was nothing that could be served; the message says why
  128+N  signal N stopped it: 130 for SIGINT, 143 for SIGTERM
"""


def add_commands(commands: Any, looks: dict[str, Any]) -> None:
    """Add the parsers to those of the program.  looks: of every parser."""
    _add_runs(commands, looks)
    _add_worker(commands, looks)
    _add_db(commands, looks)


def _with_store(parser: ArgumentParser) -> ArgumentParser:
    parser.add_argument("--store", metavar="URL", default=SUPPRESS, help=_STORE)
    return parser


def _add_runs(commands: Any, looks: dict[str, Any]) -> None:
    runs = commands.add_parser(
        "runs",
        help="look at durable runs, signal and cancel them",
        description=_RUNS,
        epilog=_RUNS_CODES,
        **looks,
    )
    _with_store(runs)
    actions = runs.add_subparsers(dest="action", title="subcommands", metavar="SUBCOMMAND", required=True)

    def action(
        name: str, help: str, description: str, *, json: bool = True, run: bool = True
    ) -> ArgumentParser:
        made: ArgumentParser = actions.add_parser(name, help=help, description=description, **looks)
        if run:
            made.add_argument("run", metavar="RUN", help="id of the run")
        if json:
            made.add_argument("--json", action="store_true", help="for machines")
        return _with_store(made)

    listed = action("list", "print runs, the newest first", _LIST, run=False)
    listed.add_argument(
        "--status", metavar="STATUS", choices=STATUSES, help=f"only these: {', '.join(STATUSES)}"
    )
    listed.add_argument("--workflow", metavar="NAME", help="only those of this workflow")
    listed.add_argument(
        "--limit", metavar="N", type=_number, default=100, help="at most so many (default: 100)"
    )
    show = action("show", "print one run with its timeline", _SHOW)
    show.add_argument(
        "--all", action="store_true", help="every step, where the middle of many would be folded"
    )
    action("history", "print the events of a run", _HISTORY)
    signal = action("signal", "send a signal to a run", _SIGNAL, json=False)
    signal.add_argument("name", metavar="NAME", help="what the run waits for")
    signal.add_argument("--payload", metavar="JSON", help="what comes with it (default: null)")
    signal.add_argument(
        "--id", metavar="ID", help="its own id, so that it can be sent twice (default: a new one)"
    )
    cancel = action("cancel", "ask a run to end", _CANCEL, json=False)
    cancel.add_argument("--reason", metavar="TEXT", help="is written into its history")
    cancel.add_argument("--force", action="store_true", help="end it at once, without clean-up")
    redrive = action("redrive", "queue again what was given up", _REDRIVE, run=False)
    redrive.add_argument("target", metavar="RUN|ID", nargs="?", help="a run, or the number of a dead letter")
    redrive.add_argument("--all", action="store_true", help="everything that is printed without it")
    action("failures", "print the runs that wait for a person", _FAILURES, run=False)


def _add_worker(commands: Any, looks: dict[str, Any]) -> None:
    worker = commands.add_parser(
        "worker",
        help="serve the durable runs of a module",
        description=_WORKER,
        epilog=_WORKER_CODES,
        **looks,
    )
    worker.add_argument("target", metavar="MODULE:ENGINE", help="what to serve, such as shop:engine")
    worker.add_argument(
        "--workers", metavar="N", type=_few, default=4, help="runs that are driven at once (default: 4)"
    )
    worker.add_argument(
        "--poll",
        metavar="SECONDS",
        type=_seconds,
        default=1.0,
        help="between two looks at the queue (default: 1)",
    )
    worker.add_argument(
        "--lease",
        metavar="SECONDS",
        type=_seconds,
        default=30.0,
        help="after which others take over the runs of a worker that is gone (default: 30)",
    )
    worker.add_argument(
        "--grace",
        metavar="SECONDS",
        type=_grace,
        default=30.0,
        help="time for steps to end before they are asked to cancel (default: 30)",
    )
    worker.add_argument("-v", "--verbose", action="store_true", help="print how each run has ended")
    _with_store(worker)


def _add_db(commands: Any, looks: dict[str, Any]) -> None:
    db = commands.add_parser(
        "db", help="make and check the tables of a store", description=_DB, epilog=_DB_CODES, **looks
    )
    _with_store(db)
    actions = db.add_subparsers(dest="action", title="subcommands", metavar="SUBCOMMAND", required=True)
    told = {
        "migrate": "bring the tables up to date; a SQLite file is made if there is none",
        "status": "print which migrations are applied",
        "sql": "print the SQL that makes all tables; touches no database",
    }
    for name, help in told.items():
        made = actions.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".", **looks)
        if name == "status":
            made.add_argument("--json", action="store_true", help="for machines, one JSON object a line")
        _with_store(made)


def call_runs(options: Namespace) -> int:
    """Call a subcommand of `runs`."""
    from supervisor.cli.runs import Runs

    runs = Runs(_store(options), as_json=getattr(options, "json", False))
    calls: dict[str, Callable[[], int]] = {
        "list": lambda: runs.all(options.status, options.workflow, options.limit),
        "show": lambda: runs.show(options.run, everything=options.all),
        "history": lambda: runs.history(options.run),
        "signal": lambda: runs.signal(options.run, options.name, options.payload, options.id),
        "cancel": lambda: runs.cancel(options.run, options.reason, force=options.force),
        "redrive": lambda: runs.redrive(options.target, everything=options.all),
        "failures": runs.failures,
    }
    return calls[options.action]()


def call_db(options: Namespace) -> int:
    """Call a subcommand of `db`."""
    from supervisor.cli.db import db

    return db(options.action, _store(options), as_json=getattr(options, "json", False))


def call_worker(options: Namespace) -> int:
    """Call `worker`."""
    from supervisor.cli.worker import worker

    return worker(
        options.target,
        url=_store(options),
        workers=options.workers,
        poll=options.poll,
        lease=options.lease,
        grace=options.grace,
        verbose=options.verbose,
    )


def _store(options: Namespace) -> str | None:
    return getattr(options, "store", None)


def _number(text: str) -> int:
    if not text.isdecimal() or int(text[:19]) < 1 or len(text) > 18:
        raise ArgumentTypeError(f"must be a whole number from 1 on, got {text!r}")
    return int(text)


def _few(text: str) -> int:
    if not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= 1000:
        raise ArgumentTypeError(f"must be a whole number from 1 to 1000, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    seconds = _grace(text)
    if seconds < 0.001:
        raise ArgumentTypeError(f"must be at least 0.001 seconds, got {text!r}")
    return seconds


def _grace(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds <= 1e9:
        raise ArgumentTypeError(f"not a number of seconds: {text!r}")
    return seconds
