"""Listener: the thread that hears, over a connection of its own, that tasks were queued elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from supervisor.durable.errors import StoreError
from supervisor.durable.postgres import ConnectionFailure, PostgresDatabase, Session
from supervisor.kernel.clock import SYSTEM_CLOCK, ThreadHandle

__all__ = ["CHANNEL", "Listener"]

CHANNEL: Final = "SELECT 'flow_tasks_' || 'flow_tasks'::regclass::oid"
"""Gives the name of the channel: each table of tasks has its own."""

_ANY: Final = "SELECT EXISTS (SELECT FROM flow_tasks)"

_PIECE = 0.2  # seconds for which it listens before it looks whether it should end
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 2.0  # seconds between two tries to connect
_GOODBYE = 1.0  # seconds that `close` waits for the thread: it may be in the middle of connecting


class Listener:
    """Calls `heard` on its own thread for each notification that is not our own.

    own: what our own notifications say.
    Whenever listening begins, after a lost connection too, `heard` is called if the queue is not empty: what was
    sent before is lost.
    """

    def __init__(self, database: PostgresDatabase, own: str, heard: Callable[[], object]) -> None:
        self._database = database
        self._own = own
        self._heard = heard
        self._ended = SYSTEM_CLOCK.latch()  # only the thread waits for it
        self._lock = SYSTEM_CLOCK.lock()  # guards the fields below
        self._thread: ThreadHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Start the thread, if there is none. Where the system refuses one, the next call tries again."""
        with self._lock:
            if self._thread is None and not self._closed:
                try:
                    self._thread = SYSTEM_CLOCK.spawn(self._run, "supervisor-listener")
                except RuntimeError:
                    pass

    def close(self) -> None:
        """End the thread and its connection, within about 0.3 s."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._ended.open()
        if thread is not None:
            thread.join(_GOODBYE)

    def _run(self) -> None:
        delay = _FIRST_DELAY
        while not self._closed:
            try:
                session = self._database.open()
                try:
                    session.execute(f'LISTEN "{_value(session, CHANNEL)}"'.encode())
                    delay = _FIRST_DELAY
                    self._listen(session)
                finally:
                    session.close()
            except (ConnectionFailure, StoreError):
                pass  # the workers look for themselves meanwhile, only later
            self._ended.wait(delay)
            delay = min(delay * 2.0, _LONGEST_DELAY)

    def _listen(self, session: Session) -> None:
        if _value(session, _ANY):
            self._heard()
        while not self._closed:
            for notification in session.notifies(timeout=_PIECE, stop_after=1):
                if notification.payload != self._own:
                    self._heard()


def _value(session: Session, query: str) -> Any:
    ((found,),) = session.execute(query.encode()).fetchall()
    return found
