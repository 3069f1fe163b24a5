"""Many durable runs, a line each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from supervisor.cli.run_words import ID, VALUE, tone_of, under_way
from supervisor.cli.times import absolute, relative
from supervisor.cli.words import Column, Line, Piece, Symbols, Tone, cut, shortened, table
from supervisor.durable.snapshot import RunSnapshot, RunStatus
from supervisor.durable.stores.protocol import Failure

__all__ = ["run_table"]

_COLUMNS = (
    Column(title="RUN", least=8),
    Column(title="WORKFLOW", room=50),
    Column(title="STATUS", least=10),
    Column(title="EVENTS", right=True, room=90),
    Column(title="CREATED", room=112),
    Column(title="CHANGED", least=9),
    Column(title="", least=20, room=100),
    Column(title="WHAT", room=60),
)


def run_table(
    runs: Sequence[RunSnapshot],
    failures: Mapping[str, Failure],
    now: datetime,
    *,
    width: int | None,
    symbols: Symbols,
) -> list[Line]:
    """Return a head and a line for each run.  failures: by run.  width: None for lines of any length."""
    rows: list[Line] = []
    for run in runs:
        what = _what(run, failures.get(run.run_id), now)
        rows.append(
            [
                (shortened(run.run_id, ID if width else 200, symbols), Tone.PLAIN),
                (shortened(f"{run.workflow} {run.version}", ID, symbols), Tone.PLAIN),
                (str(run.status), tone_of(run.status)),
                (str(run.sequence), Tone.QUIET),
                (relative(run.created_at, now), Tone.PLAIN),
                (relative(run.updated_at, now), Tone.PLAIN),
                (absolute(run.updated_at), Tone.QUIET),
                (shortened(what[0], VALUE, symbols), what[1]),
            ]
        )
    return [cut(line, width, symbols) for line in table(_COLUMNS, rows, width)]


def _what(run: RunSnapshot, failure: Failure | None, now: datetime) -> Piece:
    """Return what there is to say about a run in one line."""
    if failure is not None and not run.terminal:
        return f"waits for a person: {failure.reason}", Tone.BAD
    match run.status:
        case RunStatus.FAILED:
            return run.error or "", Tone.BAD
        case RunStatus.CANCELLED | RunStatus.CANCELLING:
            request = run.cancellation_request
            return (request.reason or "" if request is not None else ""), Tone.WARN
        case RunStatus.SUSPENDED | RunStatus.RUNNING:
            return "; ".join(under_way(run, now)), Tone.QUIET
        case _:
            return "", Tone.PLAIN
