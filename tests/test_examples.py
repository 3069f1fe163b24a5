"""Every example does what its docstring says: it runs, and prints exactly these lines.

The docstring holds the lines after `Prints::`, indented. Under
`Prints (... stands for any text)::` three dots match any text within their line.
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

from tests.programs import ROOT, Finished, run_files, selected

pytestmark = pytest.mark.timeout(300)

EXAMPLES = sorted((ROOT / "examples").glob("**/*.py"))
PUBLIC = {
    "supervisor",
    "supervisor.testing",
    "supervisor.subscribers",
    "supervisor.flows",
    "supervisor.durable",
}
EXACT = "Prints::"
WITH_WILDCARDS = "Prints (... stands for any text)::"


def name_of(example: Path) -> str:
    return example.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> dict[str, Finished]:
    """The examples that are wanted in this session, all run before the first is looked at."""
    return run_files({name_of(example): example for example in selected(request, "example")})


def expected_output(docstring: str) -> tuple[list[str], bool]:
    """Return the lines after `Prints::` and whether three dots stand for any text.

    Raises ValueError when the section is missing, written twice or empty.
    """
    lines = docstring.splitlines()
    headers = [number for number, line in enumerate(lines) if line.strip() in (EXACT, WITH_WILDCARDS)]
    if len(headers) != 1:
        raise ValueError(f"write one section {EXACT!r} or {WITH_WILDCARDS!r}, found {len(headers)}")
    header = lines[headers[0]]
    margin = len(header) - len(header.lstrip())
    block: list[str] = []
    for line in lines[headers[0] + 1 :]:
        if line.strip() and len(line) - len(line.lstrip()) <= margin:
            break
        block.append(line)
    wanted = textwrap.dedent("\n".join(block)).strip("\n").rstrip()
    if not wanted:
        raise ValueError(f"the section {header.strip()!r} is followed by no indented line")
    return [line.rstrip() for line in wanted.splitlines()], header.strip() == WITH_WILDCARDS


def differences(printed: str, docstring: str) -> list[str]:
    """Say where the printed text differs from what the docstring promises."""
    wanted, wildcards = expected_output(docstring)
    got = [line.rstrip() for line in printed.rstrip().splitlines()]
    problems = [
        f"line {number}: wanted {want!r}, got {have!r}"
        for number, (want, have) in enumerate(zip(wanted, got, strict=False), start=1)
        if not _same(want, have, wildcards)
    ]
    if len(wanted) != len(got):
        problems.append(f"wanted {len(wanted)} lines, got {len(got)}")
    return problems


def _same(wanted: str, printed: str, wildcards: bool) -> bool:
    if not wildcards:
        return wanted == printed
    pattern = ".+".join(re.escape(part) for part in wanted.split("..."))
    return re.fullmatch(pattern, printed) is not None


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_prints_exactly_what_its_docstring_says(
    example: Path, results: dict[str, Finished]
) -> None:
    finished = results[name_of(example)]
    docstring = ast.get_docstring(ast.parse(example.read_text("utf-8")))
    assert docstring, f"{name_of(example)} has no docstring"
    assert finished.returncode == 0, finished.report()
    assert finished.stderr == "", finished.report()
    assert differences(finished.stdout, docstring) == [], finished.report()


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_is_one_main_function_on_public_names(example: Path) -> None:
    tree = ast.parse(example.read_text("utf-8"))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert "main" in functions, f"{name_of(example)} has no main()"
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module)):
                modules = [module]
            case _:
                continue
        private = [m for m in modules if m.split(".")[0] == "supervisor" and m not in PUBLIC]
        assert private == [], f"{name_of(example)}, line {node.lineno}: examples use public names only"


def test_there_are_examples() -> None:
    assert EXAMPLES != []


def test_the_lines_after_prints_are_what_is_wanted() -> None:
    docstring = "Idea.\n\nPrints::\n\n    a\n      b\n\n    c\n\nMore text."
    assert expected_output(docstring) == (["a", "  b", "", "c"], False)


def test_output_that_differs_in_one_character_is_found() -> None:
    assert differences("a\nc\n", "Prints::\n\n    a\n    b") == ["line 2: wanted 'b', got 'c'"]


def test_a_line_too_many_is_found() -> None:
    assert differences("a\nb\n", "Prints::\n\n    a") == ["wanted 1 lines, got 2"]


def test_three_dots_match_only_where_the_docstring_says_so() -> None:
    assert differences("took 3 s", "Prints::\n\n    took ... s") == [
        "line 1: wanted 'took ... s', got 'took 3 s'"
    ]
    assert differences("took 3 s", "Prints (... stands for any text)::\n\n    took ... s") == []
    assert differences("took", "Prints (... stands for any text)::\n\n    took ... s") != []


@pytest.mark.parametrize("docstring", ["Idea.", "Prints::\n", "Prints::\n\n    a\n\nPrints::\n\n    b"])
def test_a_docstring_without_one_clear_section_is_refused(docstring: str) -> None:
    with pytest.raises(ValueError, match="section"):
        expected_output(docstring)
