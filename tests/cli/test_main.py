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
"""


def test_the_help_tells_what_there_is_and_the_first_steps() -> None:
    done = run_program("-m", "supervisor", "--help")
    assert (done.returncode, done.stdout, done.stderr) == (0, HELP, "")


def test_without_a_command_the_help_is_an_error() -> None:
    done = run_program("-m", "supervisor")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", HELP)


@pytest.mark.parametrize("command", ["run", "cron", "graph", "demo"])
def test_each_command_has_help_of_no_more_than_100_columns(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        main([command, "--help"])
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
        "print([name for name in ('sqlite3', 'http', 'csv', 'logging', 'json', 'supervisor.flows') if name in sys.modules])"
    )
    assert run_program("-c", code).stdout.splitlines()[-1] == "[]"
