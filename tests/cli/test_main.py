"""The parser: help that reads well, mistakes that are told."""

from __future__ import annotations

import pytest

from supervisor import __version__
from supervisor.cli.main import main
from tests.programs import run_program

HELP = """\
usage: python -m supervisor [-h] [--version] COMMAND ...

Supervised threads for synchronous Python: give it functions, and it keeps them running.
This is not supervisord, the process manager.

options:
  -h, --help  show this help message and exit
  --version   show program's version number and exit

commands:
  COMMAND
    run       run the tasks or the scheduler of a module
    cron      see when a cron expression fires
    graph     print a workflow as a Mermaid diagram
    runs      look at durable runs, signal and cancel them
    worker    serve the durable runs of a module
    db        make and check the tables of a store
    demo      watch real tasks and a flow for ten seconds

first steps:
  python -m supervisor demo
      watch real tasks succeed, fail, hang and give up, and a scheduled flow trip and be
      reset, for about ten seconds
  python -m supervisor run jobs:tasks
      run `tasks` of jobs.py in this directory: a Supervisor, a Scheduler, a list of TaskSpec,
      or a function that returns one of them
  python -m supervisor cron "0 9 * * MON" --tz Europe/Berlin
      see when a schedule fires
  python -m supervisor graph jobs:workflow
      print a workflow as a Mermaid diagram
  python -m supervisor worker shop:engine
      serve the durable runs of an engine
  python -m supervisor runs list --store sqlite:flows.db
      see durable runs; `runs show RUN` draws one
"""


def test_the_help_tells_what_there_is_and_the_first_steps() -> None:
    done = run_program("-m", "supervisor", "--help")
    assert (done.returncode, done.stdout, done.stderr) == (0, HELP, "")


def test_without_a_command_the_help_is_an_error() -> None:
    done = run_program("-m", "supervisor")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", HELP)


@pytest.mark.parametrize(
    "command",
    [
        "run",
        "cron",
        "graph",
        "demo",
        "worker",
        "db",
        *(f"db {each}" for each in ("migrate", "status", "sql")),
        "runs",
        *(f"runs {each}" for each in ("list", "show", "history", "signal", "cancel", "redrive", "failures")),
    ],
)
def test_each_command_has_help_of_no_more_than_100_columns(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main([*command.split(), "--help"])
    assert exit.value.code == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"threadvisor {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fly"], "invalid choice: 'fly'"),
        (["run"], "the following arguments are required: MODULE:OBJECT"),
        (["run", "a:b", "--log-level", "loud"], "argument --log-level: invalid choice: 'loud'"),
        (["run", "a:b", "--grace", "-1"], "argument --grace: not a number of seconds: '-1'"),
        (["run", "a:b", "--grace", "nan"], "argument --grace: not a number of seconds: 'nan'"),
        (["demo", "--seconds", "soon"], "argument --seconds: not a number of seconds: 'soon'"),
        (["demo", "--seconds", "1"], "argument --seconds: must be from 2 to 3600 seconds, got '1'"),
        (["cron"], "the following arguments are required: EXPR"),
        (["cron", "@daily", "-n", "0"], "argument -n: must be a whole number from 1 to 10000, got '0'"),
        (["cron", "@daily", "-n", "two"], "argument -n: must be a whole number from 1 to 10000, got 'two'"),
        (["graph"], "the following arguments are required: MODULE:OBJECT"),
        (["runs"], "the following arguments are required: SUBCOMMAND"),
        (["runs", "list", "--status", "done"], "argument --status: invalid choice: 'done'"),
        (["runs", "list", "--limit", "0"], "argument --limit: must be a whole number from 1 on, got '0'"),
        (["runs", "show"], "the following arguments are required: RUN"),
        (["runs", "signal", "order-7"], "the following arguments are required: NAME"),
        (["db"], "the following arguments are required: SUBCOMMAND"),
        (["worker"], "the following arguments are required: MODULE:ENGINE"),
        (
            ["worker", "a:b", "--workers", "0"],
            "argument --workers: must be a whole number from 1 to 1000, got '0'",
        ),
        (["worker", "a:b", "--lease", "0"], "argument --lease: must be at least 0.001 seconds, got '0'"),
        (["worker", "a:b", "--grace", "soon"], "argument --grace: not a number of seconds: 'soon'"),
        (["demo", "--sec", "3"], "unrecognized arguments: --sec 3"),
    ],
)
def test_a_mistake_is_told_and_the_exit_code_is_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_the_help_loads_neither_the_demo_nor_the_runner() -> None:
    code = (
        "import sys\nfrom supervisor.cli.main import main\n"
        "try: main(['--version'])\nexcept SystemExit: pass\n"
        "print([name for name in ('sqlite3', 'http', 'csv', 'logging', 'json', 'supervisor.flows', 'supervisor.durable') if name in sys.modules])"
    )
    assert run_program("-c", code).stdout.splitlines()[-1] == "[]"
