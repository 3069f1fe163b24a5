"""Look into the built files: what must be there, what must not. Usage: check_wheel.py WHEEL SDIST"""

from __future__ import annotations

import sys
import tarfile
import zipfile


def for_users(name: str) -> bool:
    parts = name.split("/")
    test = "tests" in parts or parts[-1].startswith(("test_", "conftest"))
    return not test and not name.endswith((".pyc", ".md"))


def main(wheel: str, sdist: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
        entry_points = next(name for name in files if name.endswith(".dist-info/entry_points.txt"))
        scripts = archive.read(entry_points).decode()
    tops = {name.split("/")[0] for name in files}
    with tarfile.open(sdist) as source:
        sources = {name.partition("/")[2] for name in source.getnames()}

    problems = [
        f"the wheel lacks {name}"
        for name in ("supervisor/py.typed", "supervisor/__main__.py")
        if name not in files
    ]
    if len(tops) != 2 or "supervisor" not in tops:
        problems.append(f"the wheel must hold supervisor/ and its .dist-info/, it holds {sorted(tops)}")
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in files):
        problems.append("the wheel lacks the LICENSE")
    strays = sorted(name for name in files if not for_users(name))
    if strays:
        problems.append(f"the wheel holds what is not for users: {strays}")
    if scripts.split() != ["[console_scripts]", "threadvisor", "=", "supervisor.__main__:main"]:
        problems.append(f"the only script must be threadvisor, found {scripts!r}")
    wanted = (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "tests/test_architecture.py",
        "docs/index.md",
    )
    problems += [f"the sdist lacks {name}" for name in wanted if name not in sources]
    problems += [f"the sdist holds {name}" for name in sources if name.startswith(".ci/build")]

    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        raise SystemExit(1)
    print(f"{len(files)} files in the wheel, {len(sources)} in the sdist")


if __name__ == "__main__":
    main(*sys.argv[1:])
