"""Every Python block of the README, of CONTRIBUTING and of docs/ is a complete program that runs to its end.

`<!-- not run: reason -->` directly above a block takes it out. `<!-- prints -->` directly
above a ```text block says: this is exactly what the Python block before it prints.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path

import pytest

from tests.programs import ROOT, Finished, run_files, run_program, selected

pytestmark = pytest.mark.timeout(300)

PAGES = [
    page
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    if page.exists()
]
PYTHON = {"python", "py", "python3"}
SHELL = {"bash", "sh", "shell", "console"}
OURS = re.compile(
    r"(?:^|&&|\|\||;|\|)\s*(?:uv run )?(?:\S*python[\d.]* -m supervisor|threadvisor)(?![\w./-])([^&;|#>]*)"
)
FENCE = re.compile(r"^(?P<indent>\s*)(?P<marks>`{3,}|~{3,})\s*\{?\s*\.?(?P<language>[\w+-]*)")
COMMENT = re.compile(r"<!--\s*(not run: *(?P<reason>.*?)|(?P<prints>prints))\s*-->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int  # of the first line inside the fence, from 1
    language: str  # in lower case; empty when the fence names none
    text: str
    comment: str  # the HTML comment directly above, empty without one

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        return self.language in PYTHON and not self.comment.startswith("<!-- not run:")


def blocks_of(page: str, markdown: str) -> list[Block]:
    """Return the fenced blocks of a page, in order. Raises ValueError for a fence that is never closed."""
    found: list[Block] = []
    lines = markdown.splitlines()
    number = 0
    while number < len(lines):
        fence = FENCE.match(lines[number])
        if fence is None:
            number += 1
            continue
        opened = number
        marks = fence["marks"]
        number += 1
        while number < len(lines) and not _closes(lines[number], marks):
            number += 1
        if number == len(lines):
            raise ValueError(f"{page}:{opened + 1}: this fence is never closed")
        found.append(
            Block(
                page=page,
                line=opened + 2,
                language=fence["language"].lower(),
                text=textwrap.dedent("\n".join(lines[opened + 1 : number])) + "\n",
                comment=_comment_above(lines, opened),
            )
        )
        number += 1
    return found


def _closes(line: str, marks: str) -> bool:
    stripped = line.strip()
    return len(stripped) >= len(marks) and set(stripped) == {marks[0]}


def _comment_above(lines: list[str], fence: int) -> str:
    above = fence - 1
    while above >= 0 and not lines[above].strip():
        above -= 1
    text = lines[above].strip() if above >= 0 else ""
    return text if COMMENT.fullmatch(text) else ""


def commands_of(block: Block) -> list[list[str]]:
    """Return the arguments of every call of our command in a shell block."""
    text = block.text.replace("\\\n", " ")
    return [shlex.split(found[1]) for line in text.splitlines() for found in OURS.finditer(line.lstrip("$ "))]


BLOCKS = [
    block
    for page in PAGES
    for block in blocks_of(page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8"))
]
PROGRAMS = [block for block in BLOCKS if block.runs]
PRINTED = [(before, block) for before, block in pairwise(BLOCKS) if "<!-- prints -->" in block.comment]
COMMANDS = [(block, command) for block in BLOCKS if block.language in SHELL for command in commands_of(block)]


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    """The blocks that are wanted in this session, all run before the first is looked at."""
    folder = tmp_path_factory.mktemp("blocks")
    files: dict[str, Path] = {}
    for block in selected(request, "block"):
        file = files[block.name] = folder / (re.sub(r"\W+", "_", block.name) + ".py")
        above = "\n" * (block.line - 1)  # so that a traceback shows the line of the page
        file.write_text(above + block.text, encoding="utf-8")
    return run_files(files)


@cache
def help_of(*subcommands: str) -> Finished:
    return run_program("-m", "supervisor", *subcommands, "--help")


def subcommands_of(command: list[str]) -> list[str]:
    """Return the words of a call that name a subcommand; `runs` and `db` have some of their own."""
    words = list(takewhile(lambda word: not word.startswith("-"), command))
    return words[: 2 if words[:1] in (["runs"], ["db"]) else 1]


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.name)
def test_a_python_block_runs_to_its_end(block: Block, results: dict[str, Finished]) -> None:
    finished = results[block.name]
    assert finished.returncode == 0, finished.report()
    assert "Traceback" not in finished.stderr, finished.report()
    following = [after for before, after in PRINTED if before == block]
    if following:
        assert finished.stdout.rstrip() == following[0].text.rstrip()


@pytest.mark.parametrize(
    ("block", "command"), COMMANDS, ids=[f"{block.name} {shlex.join(command)}" for block, command in COMMANDS]
)
def test_a_command_of_the_docs_exists_with_its_options(block: Block, command: list[str]) -> None:
    finished = help_of(*subcommands_of(command))
    assert finished.returncode == 0, f"{block.name}\n{finished.report()}"
    options = {word.split("=")[0] for word in command if word.startswith("--")}
    missing = sorted(option for option in options if option not in finished.stdout)
    assert missing == [], f"{block.name}: not told by --help\n{finished.stdout}"


def test_the_readme_has_a_program() -> None:
    assert [block.name for block in PROGRAMS if block.page == "README.md"] != []


def test_a_block_that_is_not_run_says_why() -> None:
    silent = [b.name for b in BLOCKS if re.fullmatch(r"<!--\s*not run: *-->", b.comment)]
    assert silent == []


def test_a_prints_comment_follows_a_program() -> None:
    stray = [
        block.name
        for number, block in enumerate(BLOCKS)
        if "<!-- prints -->" in block.comment
        and not (number and BLOCKS[number - 1].runs and BLOCKS[number - 1].page == block.page)
    ]
    assert stray == []


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8")))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").glob("**/*.md")}
    assert pages ^ listed == set()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_a_link_to_a_file_of_the_project_leads_to_one(name: str) -> None:
    text = re.sub(r"(?ms)^```.*?^```", "", (ROOT / name).read_text("utf-8"))
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    missing = [t for t in targets if t and "://" not in t and not (ROOT / t).exists()]
    assert missing == []


def test_blocks_are_found_with_their_line_language_and_comment() -> None:
    page = "# T\n\n<!-- not run: needs a server -->\n\n```python\nx\n```\n\n  ```py title='a'\n  y\n    z\n  ```\n````md\n```\n````\n"
    found = [(b.line, b.language, b.text, b.runs) for b in blocks_of("p", page)]
    assert found == [(6, "python", "x\n", False), (10, "py", "y\n  z\n", True), (14, "md", "```\n", False)]


def test_a_fence_that_is_never_closed_is_an_error() -> None:
    with pytest.raises(ValueError, match="p:2"):
        blocks_of("p", "text\n```python\nx\n")


def test_subcommands_of_subcommands_are_asked_for_their_help() -> None:
    assert subcommands_of(["runs", "signal", "r-1", "--id", "x"]) == ["runs", "signal"]
    assert subcommands_of(["run", "jobs:tasks", "--grace", "3"]) == ["run"]
    assert subcommands_of(["runs", "--store", "x"]) == ["runs"]
    assert subcommands_of(["--help"]) == []


def test_calls_of_our_command_are_found_in_shell_blocks() -> None:
    text = "python3 -m venv .venv && .venv/bin/python -m supervisor demo --seed 3\npip install threadvisor\n$ threadvisor --help\n"
    block = Block(page="p", line=1, language="bash", text=text, comment="")
    assert commands_of(block) == [["demo", "--seed", "3"], ["--help"]]
