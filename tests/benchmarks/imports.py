"""What `import supervisor` adds to the start of an interpreter, and which modules cost it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.measure import Figure, Goal, Row, in_turn, timed

ROOT = Path(__file__).resolve().parents[2]
BARE, OURS = "nothing", "import supervisor"
ALL = "from supervisor import Supervisor, TaskSpec"  # names are loaded when they are first asked for
_LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \| (\s*)(\S+)")


def measure(*, quick: bool) -> Figure:
    rounds = 3 if quick else 41
    statements = {
        BARE: "pass",
        OURS: "import supervisor",
        ALL: ALL,
        "import dataclasses (which ours needs)": "import dataclasses",
        "import pykka": "import pykka",
        "import tenacity": "import tenacity",
    }
    samples = in_turn(
        {name: lambda line=line: timed(lambda: start(line)) * 1e3 for name, line in statements.items()},
        rounds,
    )
    rows = [Row(case=name, value=samples.above(name, BARE)) for name in statements if name != BARE]
    for row in list(rows):
        ratio = samples.ratio(row.case, "import tenacity", BARE)
        rows[rows.index(row)] = Row(case=row.case, value=row.value, ratio=ratio)
    return Figure(
        title="Imports: above the start of an interpreter",
        unit="ms",
        reference="import tenacity",
        rows=rows,
        goals=[Goal(claim="import in ms", measured=samples.above(OURS, BARE), limit=40.0)],
        notes=[
            f"a bare start: {samples.spread(BARE)} ms",
            "dearest modules (self, ms): " + ", ".join(f"{name} {ms:.1f}" for name, ms in dearest(12)),
        ],
    )


def start(statement: str, *flags: str) -> str:
    """Run one line in a new interpreter; return what it wrote to standard error."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {statement}"
    command = [sys.executable, "-I", *flags, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def dearest(count: int) -> list[tuple[str, float]]:
    """Return the modules that cost most themselves, in ms; medians of some runs."""
    costs: dict[str, list[int]] = {}
    for _ in range(7):
        lines = start(ALL, "-X", "importtime").splitlines()
        seen = [match.groups() for line in lines if (match := _LINE.match(line))]
        after_site = next(n for n, each in enumerate(seen) if each[3] == "site")
        for own, _, _, name in seen[after_site + 1 :]:
            costs.setdefault(name, []).append(int(own))
    middles = {name: sorted(each)[len(each) // 2] / 1000 for name, each in costs.items()}
    return sorted(middles.items(), key=lambda item: -item[1])[:count]
