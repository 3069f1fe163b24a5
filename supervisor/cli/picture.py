"""What people see of an account: the live picture, a line, the summary. Pure."""

from __future__ import annotations

from datetime import datetime
from textwrap import wrap

from supervisor.cli.account import Account, Entry, Row, State
from supervisor.cli.words import Column, Line, Piece, Symbols, Tone, cut, table
from supervisor.tasks.outcome import OutcomeKind

__all__ = ["entry_line", "live", "summary"]

_BAR = 24  # characters
_NARROW = 24  # characters; a reason in a column of less would be a tower
_LOG = 8  # newest entries below the table
_LIVE = (
    Column(title="  TASK", least=12),
    Column(title="STATE", least=18),
    Column(title="ATTEMPT", right=True, room=40),
    Column(title="RETRIES", right=True, room=50),
    Column(title="TIMEOUTS", right=True, room=60),
    Column(title="LAST RESULT", room=76),
)
_SUMMARY = (
    Column(title="  TASK", least=12),
    Column(title="ATTEMPTS", right=True, room=40),
    Column(title="RETRIES", right=True, room=50),
    Column(title="TIMEOUTS", right=True, room=60),
    Column(title="OUTCOME", least=9),
    Column(title="REASON"),
)


def live(
    account: Account, now: datetime, total: float, *, width: int, height: int, symbols: Symbols
) -> list[Line]:
    """Return the picture at `now`: a bar, a table and the newest entries; never larger than asked for.

    total: seconds the whole is meant to take.
    """
    rows = list(account.rows.values())
    cells = [[_name(row, symbols), _state(row, now), *_counts(row), (row.said, row.tone)] for row in rows]
    head: list[Line] = [_progress(account, now, total, symbols), []]
    body = [cut(line, width, symbols) for line in table(_LIVE, cells, width)]
    room = min(_LOG, height - len(head) - len(body) - 1)
    log: list[Line] = []
    if room > 0:
        newest = account.entries[-room:]
        log = [[], *(entry_line(entry, account) for entry in newest), *([[]] * (room - len(newest)))]
    return [cut(line, width, symbols) for line in [*head, *body, *log]][: max(1, height)]


def entry_line(entry: Entry, account: Account) -> Line:
    """Return one entry as a line: when, who, what."""
    longest = max([10, *(len(name) for name in account.rows)])
    return [
        (f"{entry.after:6.2f} s  ", Tone.QUIET),
        (f"{entry.task:<{longest}}  " if entry.task else "", Tone.PLAIN),
        (entry.text, entry.tone),
    ]


def summary(account: Account, *, width: int | None, symbols: Symbols) -> list[Line]:
    """Return the table of how every task ended. width: None for lines of any length."""
    rows = list(account.rows.values())
    cells: list[list[Piece]] = []
    for row in rows:
        outcome = "running" if row.outcome is None else row.outcome.value
        cells.append([_name(row, symbols), *_counts(row), (outcome, _tone(row)), ("", Tone.PLAIN)])
    head, *lines = table(_SUMMARY, cells, width)
    offset = sum(len(text) for text, _ in head) - len(_SUMMARY[-1].title)
    below = width is not None and width - offset < _NARROW
    if below:  # the reason gets lines of its own
        head, *lines = table(_SUMMARY[:-1], [line[:-1] for line in cells], width)
        offset = 4
    shown = [head]
    for row, line in zip(rows, lines, strict=True):
        parts = [row.why] if width is None else wrap(row.why, max(1, width - offset))
        if parts and not below:
            line = [*line, (parts.pop(0), Tone.PLAIN)]
        shown += [line, *([(" " * offset + part, Tone.PLAIN)] for part in parts)]
    return [cut(line, width, symbols) for line in shown]


def _progress(account: Account, now: datetime, total: float, symbols: Symbols) -> Line:
    began = account.began or now
    passed = max(0.0, (now - began).total_seconds())
    filled = min(_BAR, int(_BAR * passed / total))
    if account.ended:
        what = "every task has ended"
    elif account.stopping:
        what = "every task is asked to stop"
    else:
        tasks = [row for row in account.rows.values() if row.outcome is None and not row.flow]
        what = f"{len(tasks)} tasks at work"
    return [
        (symbols.filled * filled, Tone.BUSY),
        (symbols.empty * (_BAR - filled), Tone.QUIET),
        (f"  {min(passed, 9999):4.1f} s of about {total:g} s", Tone.PLAIN),
        (f"  {symbols.dot} {what}", Tone.QUIET),
    ]


def _name(row: Row, symbols: Symbols) -> Piece:
    return f"{_mark(row, symbols)} {row.task}", _tone(row)


def _mark(row: Row, symbols: Symbols) -> str:
    match row.outcome:
        case None if row.state is State.TRIPPED:
            return symbols.bad
        case None:
            working = row.state in (State.RUNNING, State.LATE)
            return symbols.running if working else symbols.waiting
        case OutcomeKind.COMPLETED:
            return symbols.good
        case OutcomeKind.CANCELED:
            return symbols.stopped
        case _:
            return symbols.bad


def _tone(row: Row) -> Tone:
    match row.outcome:
        case None:
            pass
        case OutcomeKind.COMPLETED:
            return Tone.GOOD
        case OutcomeKind.CANCELED:
            return Tone.PLAIN
        case _:
            return Tone.BAD
    match row.state:
        case State.RUNNING:
            return Tone.BUSY
        case State.LATE | State.BACKOFF:
            return Tone.WARN
        case State.TRIPPED:
            return Tone.BAD
        case _:
            return Tone.PLAIN


def _state(row: Row, now: datetime) -> Piece:
    passed = max(0.0, (now - row.since).total_seconds())
    left = 0.0 if row.until is None else max(0.0, (row.until - now).total_seconds())
    tone = _tone(row)
    match row.state:
        case State.ENDED:
            return (row.outcome.value if row.outcome else ""), tone
        case _ if row.stopped_by:
            return "stopping", Tone.WARN
        case State.WAITING:
            return "waiting", tone
        case State.RUNNING:
            return f"running {passed:.1f} s", tone
        case State.LATE:
            return f"timed out {passed:.1f} s", tone
        case State.BACKOFF:
            return f"backoff {left:.1f} s", tone
        case State.TRIPPED:
            return f"tripped {passed:.1f} s", tone
        case State.IDLE if row.until is None:
            return "idle", tone
        case State.IDLE:
            return f"next in {left:.1f} s", tone


def _counts(row: Row) -> list[Piece]:
    return [
        (str(row.attempt), Tone.PLAIN),
        (str(row.retries), Tone.PLAIN if row.retries else Tone.QUIET),
        (str(row.timeouts), Tone.WARN if row.timeouts else Tone.QUIET),
    ]
