"""Histories for the pictures of runs, at known instants."""

from __future__ import annotations

from datetime import datetime

from supervisor.cli.words import ASCII, Line, plain
from supervisor.durable.history import Envelope, FlowEvent
from supervisor.durable.projection import Projection
from supervisor.durable.snapshot import RunSnapshot
from tests.durable.making import later

__all__ = ["ASCII", "history", "run_of", "text"]


def history(*moments: tuple[float, list[FlowEvent]], run_id: str = "order-7") -> list[Envelope]:
    """The envelopes of events, each group at so many seconds."""
    found: list[Envelope] = []
    for seconds, events in moments:
        at: datetime = later(seconds)
        for event in events:
            found.append(Envelope(run_id, len(found) + 1, f"e{len(found) + 1}", at, event))
    return found


def run_of(envelopes: list[Envelope]) -> RunSnapshot:
    return Projection.of(envelopes[0].run_id, envelopes).snapshot()


def text(lines: list[Line]) -> list[str]:
    return [plain(line).rstrip() for line in lines]
