"""What is due, in order: for the stores that have no database to ask."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from datetime import datetime

from supervisor.durable.projection import Wakeup

__all__ = ["WakeupIndex"]

_Entry = tuple[datetime, str, str, str]  # Wakeup.order


class WakeupIndex:
    """The wakeups of all runs, sorted. For one thread at a time: guarded by whoever owns it."""

    __slots__ = ("_by_run", "_sorted")

    def __init__(self) -> None:
        self._sorted: list[_Entry] = []
        self._by_run: dict[str, tuple[Wakeup, ...]] = {}

    def put(self, run_id: str, wakeups: list[Wakeup]) -> None:
        """Replace the wakeups of a run."""
        before, after = self._by_run.pop(run_id, ()), tuple(wakeups)
        if after:
            self._by_run[run_id] = after
        for gone in set(before) - set(after):
            del self._sorted[bisect_left(self._sorted, gone.order)]
        for new in set(after) - set(before):
            insort(self._sorted, new.order)

    def due(self, now: datetime, limit: int) -> list[Wakeup]:
        """Return what is due at `now` or before, in order, at most `limit`."""
        found: list[Wakeup] = []
        for due_at, run_id, subject_id, kind in self._sorted:
            if due_at > now or len(found) >= limit:
                break
            found.append(Wakeup(kind, run_id, subject_id, due_at))
        return found

    def next(self, after: datetime | None) -> datetime | None:
        """Return the earliest instant, of those after `after` if it is given."""
        place = 0 if after is None else bisect_right(self._sorted, after, key=lambda entry: entry[0])
        return self._sorted[place][0] if place < len(self._sorted) else None
