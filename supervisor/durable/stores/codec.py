"""What all stores do the same way: check what is to be appended, keep projections, write and read text."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from os import urandom

from supervisor.durable.errors import (
    CorruptHistory,
    EventConflict,
    InvalidRunId,
    InvalidTransition,
    SerializationError,
)
from supervisor.durable.history import FORMS, Envelope, FlowEvent
from supervisor.durable.payload import decode, encode
from supervisor.durable.projection import Projection
from supervisor.kernel.arguments import count, instant
from supervisor.kernel.text import shown

__all__ = ["Draft", "Folds", "check_run_id", "decode_event", "draft", "new_run_id"]

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,200}", re.ASCII)
_KEPT = 1024  # projections that a store keeps

Row = tuple[Envelope, str]
"""An event and its JSON text."""


def check_run_id(run_id: object) -> str:
    """Return the id. Raises InvalidRunId for what is none."""
    if not isinstance(run_id, str) or _RUN_ID.fullmatch(run_id) is None:
        raise InvalidRunId(f"a run id has 1 to 200 ASCII letters, digits, '-' and '_', got {shown(run_id)}")
    return run_id


def new_run_id(now: datetime) -> str:
    """Return a new id, which begins with the time: what is made at one time lies side by side in a database.

    A UUID of version 7 (RFC 9562, section 5.7) in hex.
    """
    milliseconds, noise = max(int(now.timestamp() * 1000), 0), urandom(10).hex()
    return f"{milliseconds:012x}7{noise[:3]}{'89ab'[int(noise[3], 16) & 3]}{noise[4:19]}"


class Draft:
    """An append that is checked as far as it can be without the history."""

    __slots__ = ("at", "envelopes", "expected", "rows", "run_id")

    def __init__(self, run_id: str, expected: int, rows: list[Row], at: datetime) -> None:
        self.run_id: str = run_id
        self.expected: int = expected  # sequence of the last event there is
        self.rows: list[Row] = rows
        self.envelopes: list[Envelope] = [envelope for envelope, _ in rows]  # what is to be appended
        self.at: datetime = at

    @property
    def sequence(self) -> int:
        """Of the last event after the append."""
        return self.expected + len(self.rows)


def draft(run_id: object, expected: object, events: Sequence[FlowEvent], at: object) -> Draft:
    """Check the arguments of an `append`; every event gets its id here, so that a retry has the same.

    Raises InvalidRunId, SerializationError, PayloadTooLarge, TypeError or ValueError.
    """
    checked_id = check_run_id(run_id)
    sequence = count(expected, "expected_sequence", 0)
    when = instant(at, "at")
    if not isinstance(events, Sequence) or not events:  # type: ignore[redundant-expr]
        raise ValueError(f"events must be a list of one or more events, got {shown(events)}")
    rows: list[Row] = []
    digits, where = urandom(16 * len(events)).hex(), f" of run {checked_id!r}"
    for number, each in enumerate(events):
        event, form = FORMS.check(each)
        text = encode(form, event.type + where)
        event_id = _event_id(digits[32 * number : 32 * number + 32])
        rows.append((Envelope(checked_id, sequence + number + 1, event_id, when, event), text))
    return Draft(checked_id, sequence, rows, when)


def _event_id(digits: str) -> str:
    # a random UUID (version 4, RFC 9562) in hex; the uuid module takes as long as all else of a small event
    return f"{digits[:12]}4{digits[13:16]}a{digits[17:]}"


def decode_event(text: str | bytes, run_id: str, sequence: int) -> FlowEvent:
    """Return the event of a stored JSON text. Raises CorruptHistory, which says whose it is."""
    try:
        data = decode(text)
        if not isinstance(data, dict):
            raise ValueError(f"not an object: {shown(data)}")
        return FORMS.read(data)  # pyright: ignore[reportUnknownArgumentType]
    except (SerializationError, ValueError, RecursionError) as error:
        raise CorruptHistory(
            f"event {sequence} of run {run_id!r} can't be read ({error}); it was left as it is"
        ) from error


class Folds:
    """Projections at the tip of recently used runs, so that an append folds only what is new.

    For one thread at a time: guarded by whoever owns it.
    """

    __slots__ = ("_kept", "_limit", "_read")

    def __init__(self, read: Callable[[str, int], list[Envelope]], limit: int = _KEPT) -> None:
        self._read = read  # the events of a run after a sequence; [] when there are none
        self._limit = limit
        self._kept: OrderedDict[str, Projection] = OrderedDict()

    def extend(self, draft: Draft, tip: int, tip_id: str | None = None) -> Projection:
        """Fold a draft on the history whose last event has the sequence `tip`; return what it says then.

        tip_id: event id of that event, if it is known: a run that was replaced behind the back of the store is
        noticed. The projection is kept only by `keep`: call it once the draft is durable.
        Raises EventConflict or InvalidTransition; then nothing is kept that would be wrong.
        """
        if draft.expected != tip:
            raise EventConflict(draft.run_id, draft.expected, tip)
        projection = self.at(draft.run_id, tip, tip_id)
        for envelope in draft.envelopes:
            projection.fold(envelope)
        return projection

    def at(self, run_id: str, tip: int, tip_id: str | None = None) -> Projection:
        """Take out the projection of a run whose last event has the sequence `tip`; `keep` puts it back.

        Raises InvalidTransition or CorruptHistory for what is no history.
        """
        return self.reach(self.take(run_id), run_id, tip, tip_id)

    def take(self, run_id: str) -> Projection | None:
        """Take out what is kept of a run, wherever it is."""
        return self._kept.pop(run_id, None)

    def reach(
        self, projection: Projection | None, run_id: str, tip: int, tip_id: str | None = None
    ) -> Projection:
        """Bring what was taken to the tip, see `at`. Touches nothing that is kept, so it needs no guard."""
        if projection is None or projection.sequence > tip:
            projection = Projection(run_id)
        if projection.sequence < tip:
            projection = self._catch_up(projection, tip)
        if tip_id is not None and projection.last_event_id != tip_id:
            projection = self._catch_up(Projection(run_id), tip)
        return projection

    def keep(self, projection: Projection) -> None:
        """Keep a projection that is at the tip; one of a run that has ended is of no more use."""
        if projection.terminal:
            return
        self._kept[projection.run_id] = projection
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)

    def forget(self, run_id: str) -> None:
        """Drop what is kept of a run."""
        self._kept.pop(run_id, None)

    def _catch_up(self, projection: Projection, tip: int) -> Projection:
        run_id = projection.run_id
        try:
            for envelope in self._read(run_id, projection.sequence):
                if envelope.sequence <= tip:
                    projection.fold(envelope)
        except InvalidTransition as error:
            raise InvalidTransition(f"what is stored is no history, and was left as it is: {error}") from None
        if projection.sequence != tip:
            raise CorruptHistory(
                f"run {run_id!r} has events up to {projection.sequence}, and should have {tip}; left as it is"
            )
        return projection
