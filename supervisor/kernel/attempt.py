"""One call of user code: how it ended, and who decided when a deadline was set.

`call` runs a body and says how it ended. `Watch` is what happens at a deadline:

- A body that has returned before its deadline, by the clock, has won, however late anybody looks.
- At the deadline, not before, the supervising thread finds the attempt undecided and decides it:
  the observer cancels the attempt and publishes the verdict. Both decide under one lock.
- A body that goes on is reported after 10 s, 30 s, 70 s, … and, where `overrun` is set, given up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from supervisor.kernel.deadlines import VERDICT, Deadline, Deadlines
from supervisor.kernel.errors import Canceled, Fatal, TaskError
from supervisor.kernel.text import type_name

__all__ = [
    "CANCELED",
    "FAILED",
    "FATAL",
    "PANICKED",
    "SUCCEEDED",
    "TIMED_OUT",
    "AttemptResult",
    "Ending",
    "Watch",
    "WatchObserver",
    "call",
    "code_of",
    "ended_by",
]

FIRST_REPORT = 10.0  # seconds after the deadline; the distance doubles from report to report


class Ending(StrEnum):
    """How one attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"  # retryable
    TIMED_OUT = "timed_out"  # retryable; the configured deadline
    FATAL = "fatal"
    CANCELED = "canceled"
    PANICKED = "panicked"


SUCCEEDED, FAILED, TIMED_OUT, FATAL, CANCELED, PANICKED = Ending  # read faster than members of the class


NO_KEYWORDS: Mapping[str, object] = {}


class AttemptResult:
    """What came out of one attempt."""

    __slots__ = ("ending", "error", "exit_code", "text", "value")

    def __init__(
        self,
        ending: Ending,
        value: object = None,
        error: BaseException | None = None,
        exit_code: int | None = None,
        text: str | None = None,
    ) -> None:
        self.ending: Ending = ending
        self.value: object = value  # what a body returned; of one that timed out: how it ended at last
        self.error: BaseException | None = error
        self.exit_code: int | None = exit_code
        self.text: str | None = text  # of the error, once somebody needed it


def call(
    body: Callable[..., object], args: Sequence[object] = (), kwargs: Mapping[str, object] = NO_KEYWORDS
) -> AttemptResult:
    """Run `body` on this thread; nothing it raises gets out."""
    try:
        return AttemptResult(SUCCEEDED, body(*args, **kwargs))
    except Exception as error:
        kind = type(error)  # an attribute of the object itself may be a property that raises
        if issubclass(kind, TaskError):
            ending = FATAL if issubclass(kind, Fatal) else FAILED
            return AttemptResult(ending, None, error, _stated_code(error))
        return AttemptResult(FAILED, None, error)
    except Canceled as error:
        return AttemptResult(CANCELED, None, error)
    except SystemExit as error:
        return AttemptResult(FATAL, None, error, _exit_code(code_of(error)))
    except BaseException as error:
        return AttemptResult(PANICKED, None, error)


def ended_by(result: AttemptResult) -> str:
    """Say how a late body ended: "returned", or the type of what it raised."""
    return "returned" if result.error is None else type_name(result.error)


code_of: Callable[[BaseException], Any] = SystemExit.__dict__["code"].__get__
"""The argument of a `SystemExit`, whatever its class made of the attribute."""


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    return int.__int__(code) if issubclass(type(code), int) else 1  # type: ignore[arg-type]


def _stated_code(error: Exception) -> int | None:
    try:
        code = getattr(error, "exit_code", None)
        return None if code is None else int(code)
    except BaseException:
        return None


class WatchObserver(Protocol):
    """Who is told about a deadline. Must not block and must not run user code."""

    def timed_out(self) -> Callable[[], None]:
        """The deadline won: cancel the attempt, publish the verdict, return what is left to do.

        What is left (callbacks of the user) runs after every lock is given back.
        """
        ...

    def overrunning(self, late_by: float) -> None:
        """The body still runs, `late_by` seconds after its deadline."""
        ...

    def given_up(self) -> None:
        """The body still runs `overrun` seconds after its deadline."""
        ...


class Watch:
    """The deadline of one attempt."""

    __slots__ = (
        "_deadlines",
        "_lock",
        "_observer",
        "_over",
        "_overrun",
        "_pending",
        "_returned",
        "_won",
        "deadline",
    )

    def __init__(
        self, deadlines: Deadlines, deadline: float, overrun: float | None, observer: WatchObserver
    ) -> None:
        self.deadline: float = deadline  # monotonic seconds
        self._deadlines = deadlines
        self._overrun = overrun
        self._observer = observer
        self._lock = deadlines.clock.lock()  # guards the fields below; held while the verdict is told
        self._won: bool | None = None  # True: the body; False: the deadline
        self._returned = False  # written once by the body's thread, without the lock
        self._over = False
        self._pending: list[Deadline] = []
        with self._lock:
            self._call_at(deadline, self._expire)

    def returned(self) -> bool:
        """The body has returned, or raised, on its own thread: True if that was in time.

        Nobody may have looked at the deadline yet: then the clock decides, not who looks first.
        """
        self._returned = True  # from here on the deadline leaves the decision to this thread
        late = self._deadlines.clock.monotonic() - self.deadline > 1e-9  # sums of floats are not exact
        after = None
        with self._lock:
            if self._won is None:
                if late:
                    after = self._lose()
                else:
                    self._won = True
                    self._drop()
        if after is not None:
            after()
        return self._won is True

    def ended(self) -> None:
        """The attempt is over, closers included: nothing more to watch."""
        with self._lock:
            self._drop()

    def _expire(self) -> None:
        with self._lock:
            if self._won is not None or self._returned:
                return
            after = self._lose()
            if self._overrun == 0.0:  # now, before the body has a chance to answer
                self._over = True
                self._observer.given_up()
        after()

    def _lose(self) -> Callable[[], None]:
        # holds _lock, so that the body's thread can't overtake the verdict it lost to
        self._won = False
        after = self._observer.timed_out()
        if self._overrun:
            self._call_at(self.deadline + self._overrun, self._give_up)
        self._report_at(FIRST_REPORT)
        return after

    def _report_at(self, late_by: float) -> None:
        def report() -> None:
            with self._lock:
                if not self._over:
                    self._observer.overrunning(late_by)
                    self._report_at(2 * late_by + FIRST_REPORT)

        self._call_at(self.deadline + late_by, report)

    def _give_up(self) -> None:
        with self._lock:
            over, self._over = self._over, True
        if not over:
            self._observer.given_up()

    def _call_at(self, when: float, callback: Callable[[], None]) -> None:
        self._pending.append(self._deadlines.call_at(when, callback, VERDICT))

    def _drop(self) -> None:
        # holds _lock
        self._over = True
        while self._pending:
            self._pending.pop().cancel()
