"""How everything here is measured: peers side by side, in turn, and ratios of what ran together.

The machine is taken to be noisy. Cases that are compared run once in each round, in an order that is
drawn anew, and a ratio is taken inside a round before the median over the rounds is. A spread is the
range of the middle half of the rounds.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

Case = Callable[[], float]

_order = random.Random(7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The middle of some samples and the range of their middle half."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{short(self.middle)} ({short(self.low)} to {short(self.high)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table."""

    case: str
    value: Spread
    ratio: Spread | None = None  # to the reference of the figure


@dataclass(slots=True, kw_only=True)
class Figure:
    """One table, and what was promised about it."""

    title: str
    unit: str
    reference: str  # case that the ratios are taken to
    rows: list[Row]
    goals: list[Goal]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A promise and how far it is kept."""

    claim: str
    measured: Spread
    limit: float
    at_least: bool = False

    @property
    def kept(self) -> bool:
        return self.measured.middle >= self.limit if self.at_least else self.measured.middle <= self.limit

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        verdict = "kept" if self.kept else "MISSED"
        return f"{self.claim} {sign} {short(self.limit)}: {self.measured} -> {verdict}"


class Samples:
    """What each case gave in each round."""

    def __init__(self, by_case: Mapping[str, list[float]]) -> None:
        self.by_case = dict(by_case)

    def spread(self, case: str) -> Spread:
        return spread(self.by_case[case])

    def ratio(self, case: str, reference: str, base: str | None = None) -> Spread:
        """Return case / reference, each above `base` where one is given."""
        floor = [0.0] * len(self.by_case[case]) if base is None else self.by_case[base]
        pairs = zip(self.by_case[case], self.by_case[reference], floor, strict=True)
        return spread([(one - zero) / (other - zero) for one, other, zero in pairs])

    def above(self, case: str, base: str) -> Spread:
        pairs = zip(self.by_case[case], self.by_case[base], strict=True)
        return spread([one - zero for one, zero in pairs])

    def rows(self, reference: str) -> list[Row]:
        return [
            Row(case=case, value=self.spread(case), ratio=self.ratio(case, reference))
            for case in self.by_case
        ]


def in_turn(cases: Mapping[str, Case], rounds: int, *, warm: bool = True) -> Samples:
    """Run each case once to warm it up, then once in each round, in a new order each time."""
    if warm:
        for case in cases.values():
            case()
    by_case: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        names = list(cases)
        _order.shuffle(names)
        for name in names:
            gc.collect()
            by_case[name].append(cases[name]())
    return Samples(by_case)


def spread(samples: list[float]) -> Spread:
    ordered = sorted(samples)
    last = len(ordered) - 1
    return Spread(
        low=ordered[round(last * 0.25)],
        middle=statistics.median(ordered),
        high=ordered[round(last * 0.75)],
    )


def percentile(samples: list[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def short(number: float) -> str:
    """Return a number with three digits that count."""
    if abs(number) >= 1000:
        return f"{number:,.0f}".replace(",", " ")
    return f"{number:.3g}"


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class Load:
    """How many cores the rest of the machine used since this was made; None where it can't be told."""

    def __init__(self) -> None:
        self._began, self._all, self._own = time.perf_counter(), _busy(), _own()

    def other(self) -> float | None:
        if self._all is None or (now := _busy()) is None:
            return None
        return max(0.0, (now - self._all) - (_own() - self._own)) / (time.perf_counter() - self._began)


def _busy() -> float | None:
    try:
        with open("/proc/stat") as file:
            user, nice, system, _, _, irq, soft, steal = (int(n) for n in file.readline().split()[1:9])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _own() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def table(figure: Figure) -> str:
    """Return a figure as Markdown."""
    lines = [f"## {figure.title}", "", f"| | {figure.unit} | ratio to {figure.reference} |", "|---|---|---|"]
    lines += [f"| {row.case} | {row.value} | {row.ratio or ''} |" for row in figure.rows]
    lines += ["", *(f"- {goal}" for goal in figure.goals), *(f"- {note}" for note in figure.notes), ""]
    return "\n".join(lines)


def json_line(figure: Figure) -> str:
    return json.dumps(asdict(figure) | {"kept": [goal.kept for goal in figure.goals]})
