"""The parser, and what it calls."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import Any

import supervisor
from supervisor.cli.durable_parser import add_commands, call_db, call_runs, call_worker

__all__ = ["INTERRUPTED", "NEVER_AGAIN", "NO_READER", "TASK_FAILED", "WRONG_USE", "main"]

TASK_FAILED = 1
NEVER_AGAIN = 1  # of a schedule
WRONG_USE = 2  # as argparse has it
INTERRUPTED = 130  # 128 + SIGINT
NO_READER = 141  # 128 + SIGPIPE

LEVELS = ("debug", "info", "warning", "error", "critical")

_ABOUT = """\
Supervised threads for synchronous Python: give it functions, and it keeps them running.
This is not supervisord, the process manager.
"""
_FIRST_STEPS = """\
first steps:
  {prog} demo
      watch real tasks succeed, fail, hang and give up, and a scheduled flow trip and be
      reset, for about ten seconds
  {prog} run jobs:tasks
      run `tasks` of jobs.py in this directory: a Supervisor, a Scheduler, a list of TaskSpec,
      or a function that returns one of them
  {prog} cron "0 9 * * MON" --tz Europe/Berlin
      see when a schedule fires
  {prog} graph jobs:workflow
      print a workflow as a Mermaid diagram
  {prog} worker shop:engine
      serve the durable runs of an engine
  {prog} runs list --store sqlite:flows.db
      see durable runs; `runs show RUN` draws one
"""
_RUN = """\
Run tasks in the foreground until every task has ended or a signal asks to stop; a scheduler
until it is stopped.

MODULE:OBJECT names a Supervisor, a Scheduler, a TaskSpec, a list of them, or a function
without arguments that returns one of these. The current directory is importable.

SIGINT (Ctrl-C) and SIGTERM ask every task to stop; a second signal ends the grace at once.
A scheduler fires nothing more, lets runs end within the grace, then asks them to cancel.
"""
_EXIT_CODES = """\
exit codes:
  0      every task completed or was canceled; no flow is tripped
  1      a task ended failed, fatal, panicked or force_aborted; a flow is tripped;
         or, a signal or not, runs of flows ignored the stop
  2      there was nothing that could be run; the message says why
  128+N  signal N stopped it, however the tasks and flows ended: 130 for SIGINT,
         143 for SIGTERM
"""
_CRON = """\
Print the next times at which a cron expression fires, in its time zone and in UTC, and what
a change of the clock does to it.

EXPR has five fields as crontab has them (minute hour day-of-month month day-of-week), six
with the second first, or seven with a year last; or it is @hourly, @daily, @weekly,
@monthly or @yearly. Quote it, or the shell replaces each *.
"""
_CRON_CODES = """\
exit codes:
  0      there is a next time
  1      it never fires again
  2      the expression or the zone is refused; the message says why
"""
_GRAPH = """\
Print a workflow as a Mermaid state diagram, which Markdown viewers draw from a block marked
`mermaid`. Nothing of the workflow runs.

MODULE:OBJECT names a Workflow, or a function without arguments that returns one. The
current directory is importable. Arrows are what `register(next_states=...)` has told, and
where splits go on.
"""
_DEMO = """\
Supervise four real tasks and a flow for about ten seconds: a poller of an HTTP server on
loopback that answers, fails and hangs in turn; a periodic scan that hashes a directory tree;
an import of a CSV file into SQLite; a worker that crashes until its retry limit; a scheduled
flow that fails until it trips, and completes once the demo has mended its cause and reset it.
Then a durable run: its process is killed in the middle, and a second one ends it.
All of it happens in a temporary directory and on 127.0.0.1, and nothing is left behind.

A terminal shows a table that is redrawn in place, a pipe gets plain lines.
NO_COLOR and COLUMNS are respected. Exit code 0 when all went as told, 1 when not.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = _parser(_program())
    try:
        options = parser.parse_args(arguments)
        if options.command is None:
            parser.print_help(sys.stderr)
            return WRONG_USE
        code = _COMMANDS[options.command](options)
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes once more when it exits
        return NO_READER


def _run(options: Namespace) -> int:
    from supervisor.cli.run import run

    return run(options.target, log_level=options.log_level, events=options.events, grace=options.grace)


def _demo(options: Namespace) -> int:
    from supervisor.cli.demo import demo

    return demo(options.seconds)


def _cron(options: Namespace) -> int:
    from supervisor.cli.cron import cron

    return cron(options.expression, options.tz, options.count, options.after)


def _graph(options: Namespace) -> int:
    from supervisor.cli.graph import graph

    return graph(options.target)


_COMMANDS = {
    "run": _run,
    "cron": _cron,
    "graph": _graph,
    "runs": call_runs,
    "worker": call_worker,
    "db": call_db,
    "demo": _demo,
}


def _program() -> str:
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return "python -m supervisor" if name in ("", "-c", "-m", "__main__.py") else name


def _version() -> str:
    return getattr(supervisor, "__version__", "?")  # none when supervisord has overwritten it


def _parser(program: str) -> ArgumentParser:
    looks: dict[str, Any] = {"formatter_class": RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = ArgumentParser(program, description=_ABOUT, epilog=_FIRST_STEPS.format(prog=program), **looks)
    parser.add_argument("--version", action="version", version=f"threadvisor {_version()}")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")

    run = commands.add_parser(
        "run",
        help="run the tasks or the scheduler of a module",
        description=_RUN,
        epilog=_EXIT_CODES,
        **looks,
    )
    run.add_argument("target", metavar="MODULE:OBJECT", help="what to run, such as jobs:tasks")
    run.add_argument(
        "--log-level",
        metavar="LEVEL",
        type=str.lower,
        choices=LEVELS,
        help=f"log events from this level up to stderr: {', '.join(LEVELS)} "
        "(default: warning; for a Supervisor what it has set up itself)",
    )
    run.add_argument(
        "--events", metavar="FILE", help="append every event to this file, one JSON object a line"
    )
    run.add_argument(
        "--grace",
        metavar="SECONDS",
        type=_seconds,
        help="time for tasks to stop before they are given up "
        "(default: 60; for a Supervisor its own, which this can't change; "
        "for a Scheduler, time for runs to end before they are asked to cancel, default: 30)",
    )

    cron = commands.add_parser(
        "cron", help="see when a cron expression fires", description=_CRON, epilog=_CRON_CODES, **looks
    )
    cron.add_argument("expression", metavar="EXPR", help='such as "0 9 * * MON"')
    cron.add_argument(
        "--tz", metavar="ZONE", default="UTC", help="time zone, such as Europe/Berlin (default: UTC)"
    )
    cron.add_argument(
        "-n", dest="count", metavar="N", type=_count, default=5, help="how many times (default: 5)"
    )
    cron.add_argument(
        "--after",
        metavar="TIME",
        help="from when, such as 2026-10-25T02:00; without an offset it is meant in ZONE (default: now)",
    )

    graph = commands.add_parser(
        "graph", help="print a workflow as a Mermaid diagram", description=_GRAPH, **looks
    )
    graph.add_argument("target", metavar="MODULE:OBJECT", help="what to draw, such as jobs:workflow")

    add_commands(commands, looks)

    demo = commands.add_parser(
        "demo", help="watch real tasks and a flow for ten seconds", description=_DEMO, **looks
    )
    demo.add_argument(
        "--seconds",
        metavar="SECONDS",
        type=_length,
        default=10.0,
        help="how long; below 10 everything in it is faster in proportion (default: 10, at least 2)",
    )
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise ArgumentTypeError(f"not a number of seconds: {text!r}")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= (count := int(text)) <= 10_000:
        raise ArgumentTypeError(f"must be a whole number from 1 to 10000, got {text!r}")
    return count


def _length(text: str) -> float:
    seconds = _seconds(text)
    if not 2.0 <= seconds <= 3600.0:
        raise ArgumentTypeError(f"must be from 2 to 3600 seconds, got {text!r}")
    return seconds
