"""Run the benchmarks and print their tables.

    python -m tests.benchmarks [--quick] [--json FILE] [FIGURE ...]

FIGURE: attempts, tasks, events, cancel, parked, imports, timing, cron, flows, splits, schedules, durable,
histories; all without one. --quick looks only whether they run: its numbers mean nothing. Peers (tenacity,
stamina, pykka, APScheduler 3, schedule, DBOS, procrastinate) come with the group `bench` of pyproject.toml;
`durable` needs the programs of a PostgreSQL server too, as the tests do. Ends with exit code 1 when a goal was
missed.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.benchmarks.measure import Figure, Load, json_line, table  # noqa: E402

FIGURES = (
    "attempts", "tasks", "events", "cancel", "parked", "imports", "timing", "cron", "flows", "splits", "schedules",
    "durable", "histories",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description="Benchmarks of supervisor."
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=", ".join(FIGURES))
    parser.add_argument("--quick", action="store_true", help="a few rounds, to see whether it runs")
    parser.add_argument("--json", metavar="FILE", help="append one JSON line per figure")
    asked = parser.parse_args()
    if unknown := set(asked.figures) - set(FIGURES):
        parser.error(f"no figure {', '.join(sorted(unknown))}; there are {', '.join(FIGURES)}")
    print(f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores\n")
    missed = 0
    for name in asked.figures or FIGURES:
        load = Load()
        found: Figure | Iterable[Figure] = import_module(f"tests.benchmarks.{name}").measure(
            quick=asked.quick
        )
        for figure in [found] if isinstance(found, Figure) else found:
            if (other := load.other()) is not None:
                figure.notes.append(f"other processes used {other:.2f} cores meanwhile")
            print(table(figure), flush=True)
            missed += sum(not goal.kept for goal in figure.goals)
            if asked.json:
                with open(asked.json, "a", encoding="utf-8") as file:
                    print(json_line(figure), file=file)
            load = Load()
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
