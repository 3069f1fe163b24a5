"""What the next fire of a cron expression costs, beside croniter's own parse and next.

Three hundred expressions of the daily kinds, more than are kept read, asked in turn: so each is read
anew. The last two rows are what a program that asks again pays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import cycle
from zoneinfo import ZoneInfo

from croniter import croniter

from supervisor.kernel.cron import Cron, next_fire
from tests.benchmarks.measure import Figure, Goal, in_turn, timed

AFTER = datetime(2026, 11, 30, 8, 7, 6, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
KINDS = [
    "{} {} 9 * * MON", "{} {}/15 * * * *", "{} {} 2 * * *", "{} {} 9-17 * * MON-FRI", "{} {} 0 1,15 * *",
    "{} {} 6 1 */3 *",
]  # fmt: skip
TEXTS = [kind.format(n, n + 3) for n in range(50) for kind in KINDS]
PARSE_UTC, PARSE_ZONE = "croniter, parse and next", "croniter, parse and next, Europe/Berlin"
FRESH_UTC, FRESH_ZONE = "next_fire, read anew", "next_fire, read anew, Europe/Berlin"
AGAIN, KEPT = "next_fire, asked again", "Cron.next_after, kept"


def with_croniter(text: str) -> datetime:
    return croniter(text, AFTER.replace(tzinfo=None), second_at_beginning=True).get_next(datetime)


def with_croniter_there(text: str) -> datetime:
    return croniter(text, AFTER.astimezone(BERLIN), second_at_beginning=True).get_next(datetime)


def measure(*, quick: bool) -> Figure:
    rounds = 3 if quick else 41
    texts = cycle(TEXTS)
    few = cycle(TEXTS[:60])
    kept: Iterator[Cron] = cycle([Cron(text) for text in TEXTS[:60]])
    calls: dict[str, Callable[[], object]] = {
        PARSE_UTC: lambda: with_croniter(next(texts)),
        FRESH_UTC: lambda: next_fire(next(texts), AFTER),
        PARSE_ZONE: lambda: with_croniter_there(next(texts)),
        FRESH_ZONE: lambda: next_fire(next(texts), AFTER, BERLIN),
        KEPT: lambda: next(kept).next_after(AFTER),
        AGAIN: lambda: next_fire(next(few), AFTER),
    }

    def case(call: Callable[[], object], warm: int) -> Callable[[], float]:
        def run() -> float:
            for _ in range(warm):  # after another case has filled what is kept
                call()
            return timed(lambda: [call() for _ in range(300)]) / 300 * 1e6

        return run

    samples = in_turn({name: case(call, 60 if name == AGAIN else 0) for name, call in calls.items()}, rounds)
    return Figure(
        title="Cron: the next fire",
        unit="µs a call",
        reference=PARSE_UTC,
        rows=samples.rows(PARSE_UTC),
        goals=[
            Goal(claim="read anew, to croniter", measured=samples.ratio(FRESH_UTC, PARSE_UTC), limit=1.3),
            Goal(claim="the same in a zone", measured=samples.ratio(FRESH_ZONE, PARSE_ZONE), limit=1.3),
        ],
    )
