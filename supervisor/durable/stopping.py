"""What a loop is told to stop by: a cancel token, or an event of the standard library."""

from __future__ import annotations

from typing import Any

from supervisor.kernel.cancellation import CancelToken
from supervisor.kernel.text import shown

__all__ = ["Stop"]

_PIECE = 0.1  # seconds; an event can't wake who waits for something else


class Stop:
    """Tells whether to stop, and how long a loop may sleep before it looks again."""

    __slots__ = ("_event", "token")

    def __init__(self, stop: object) -> None:
        """Raises TypeError for what is neither a CancelToken nor an event with `is_set`."""
        inner: Any = getattr(stop, "token", stop)  # the context of a task has its token
        self.token: CancelToken | None = inner if isinstance(inner, CancelToken) else None
        self._event: Any = None
        if self.token is None:
            if not callable(getattr(stop, "is_set", None)):
                raise TypeError(f"stop must be a CancelToken or a threading.Event, got {shown(stop)}")
            self._event = stop

    @property
    def now(self) -> bool:
        """It is time to stop."""
        return self.token.canceled if self.token is not None else bool(self._event.is_set())

    def at_most(self, seconds: float) -> float:
        """Return for how long a loop may wait on `token`."""
        return seconds if self.token is not None else min(seconds, _PIECE)
