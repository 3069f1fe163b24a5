"""EventRecorder: keeps what happened, and waits for what is to happen."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar, overload

from supervisor.kernel.arguments import patience
from supervisor.kernel.clock import SYSTEM_CLOCK, Clock, Condition, Lock
from supervisor.kernel.event import Event, labels
from supervisor.kernel.text import shown

__all__ = ["EventRecorder"]

_E = TypeVar("_E", bound=Event)
_SHOWN = 40  # events that a TimeoutError lists, the last ones


class _HasId(Protocol):
    @property
    def id(self) -> int: ...


class EventRecorder:
    """A subscriber that keeps every event, in order.

    `supervisor.subscribe(recorder)` tells it the clock, so that on a `VirtualClock` a wait drives the
    time. Without that it waits on the machine's clock, or on `clock`. One recorder may listen to several
    supervisors of one clock. Every method may be called from any thread.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._events: list[Event] = []  # appended to under _lock; read without: copying it is one step
        self._clock = clock
        self._start: datetime
        self._lock: Lock
        self._recorded: Condition
        self._use(clock or SYSTEM_CLOCK)

    def _use(self, clock: Clock) -> None:
        self._start = clock.now()
        self._lock = clock.lock()
        self._recorded = clock.condition(self._lock)

    def attached(self, clock: Clock) -> None:
        """Learn the clock to wait on; `Supervisor.subscribe` calls it.

        Raises ValueError when there is another clock already.
        """
        if self._clock is None:
            self._clock = clock
            self._use(clock)
        elif self._clock is not clock:
            raise ValueError(f"the recorder is on {self._clock!r}, not on {clock!r}; make one for each clock")

    def __call__(self, event: Event) -> None:
        """Record an event. Runs on the delivery thread."""
        with self._lock:
            self._events.append(event)
            self._recorded.notify_all()

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        return f"<EventRecorder {len(self._events)} events>"

    @property
    def events(self) -> list[Event]:
        """What was recorded so far, in order; a copy."""
        return self._events[:]

    @overload
    def of(self, kind: type[_E], task: str | int | _HasId | None = None) -> list[_E]: ...
    @overload
    def of(self, kind: str, task: str | int | _HasId | None = None) -> list[Any]: ...
    def of(self, kind: type[Event] | str, task: str | int | _HasId | None = None) -> list[Any]:
        """Return the events of one kind, of all tasks or of one.

        kind: event class (with all below it) or label.  task: name, id or handle.
        Raises ValueError for an unknown label.
        """
        wanted = _matcher(kind, task)
        return [event for event in self._events[:] if wanted(event)]

    def kinds(self, task: str | int | _HasId | None = None) -> list[str]:
        """Return the labels of what was recorded, in order; of one task when given.

        task: name, id or handle.
        """
        belongs = _belongs(task)
        return [event.kind for event in self._events[:] if belongs(event)]

    def times(self, kind: type[Event] | str, task: str | int | _HasId | None = None) -> list[float]:
        """Return when the events of one kind happened: seconds since the recorder was attached.

        Taken from the wall clock of the events: exact on virtual time, unless that was stepped.
        """
        wanted = _matcher(kind, task)
        return [(event.at - self._start).total_seconds() for event in self._events[:] if wanted(event)]

    @overload
    def wait_for(
        self,
        kind: type[_E],
        timeout: float | timedelta | None = 10.0,
        *,
        task: str | int | _HasId | None = None,
    ) -> _E: ...
    @overload
    def wait_for(
        self, kind: str, timeout: float | timedelta | None = 10.0, *, task: str | int | _HasId | None = None
    ) -> Any: ...
    def wait_for(
        self,
        kind: type[Event] | str,
        timeout: float | timedelta | None = 10.0,
        *,
        task: str | int | _HasId | None = None,
    ) -> Any:
        """Return the first event of a kind; blocks until there is one.

        Finds what was recorded before the call too: `clear` first to wait for the next one.
        timeout: seconds on the clock of the supervisor, None for ever.
        Raises TimeoutError, which lists what was recorded instead. Never call it from a subscriber:
        nothing is recorded meanwhile.
        """
        limit = patience(timeout, "timeout")
        wanted = _matcher(kind, task)
        found: list[Event] = []
        place = 0  # what stands before it was looked at
        watched = self._events

        def arrived() -> bool:
            nonlocal place, watched
            if watched is not self._events:  # cleared meanwhile
                watched, place = self._events, 0
            while not found and place < len(watched):
                event = watched[place]
                place += 1
                if wanted(event):
                    found.append(event)
            return bool(found)

        with self._lock:
            self._recorded.wait_for(arrived, limit)
        if not found:
            of_task = "" if task is None else f" of task {_named(task)}"
            raise TimeoutError(f"no {_label(kind)}{of_task} within {limit:g} s; {self._seen()}")
        return found[0]

    def clear(self) -> None:
        """Forget what was recorded."""
        with self._lock:
            self._events = []

    def _seen(self) -> str:
        events = self._events[:]
        if not events:
            return "nothing was recorded"
        lines = [f"  {self._told(event)}" for event in events[-_SHOWN:]]
        if len(events) > _SHOWN:
            lines.insert(0, f"  ... {len(events) - _SHOWN} before")
        return "\n".join([f"{len(events)} recorded:", *lines])

    def _told(self, event: Event) -> str:
        task = getattr(event, "task", None)
        seconds = (event.at - self._start).total_seconds()
        return f"#{event.seq} at {seconds:g} s: {event.kind}{'' if task is None else f' of {task!r}'}"


def _matcher(kind: object, task: str | int | _HasId | None) -> Callable[[Event], bool]:
    if not isinstance(kind, str | type):
        raise TypeError(f"kind must be an event class or its label, got {shown(kind)}")
    wanted, belongs = labels((kind,)) or frozenset[str](), _belongs(task)
    return lambda event: event.kind in wanted and belongs(event)


def _belongs(task: str | int | _HasId | None) -> Callable[[Event], bool]:
    if task is None:
        return lambda event: True
    if isinstance(task, str):
        return lambda event: getattr(event, "task", None) == task
    number = task if isinstance(task, int) else getattr(task, "id", None)
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"task must be a name, an id or a handle, got {shown(task)}")
    return lambda event: getattr(event, "task_id", None) == number


def _named(task: object) -> str:
    return repr(task) if isinstance(task, str) else f"#{getattr(task, 'id', task)}"


def _label(kind: type[Event] | str) -> str:
    return kind if isinstance(kind, str) else kind.__name__
