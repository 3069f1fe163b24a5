"""Reusable threads for runs: as many as there are runs in flight, kept warm for a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from supervisor.kernel.clock import Clock, Latch
from supervisor.kernel.errors import CapacityExceeded
from supervisor.kernel.forks import forgets_after_fork
from supervisor.kernel.log import library_logger
from supervisor.kernel.text import error_text, traceback_text

__all__ = ["WARM", "Workers"]

WARM = 10.0  # seconds an idle thread waits for the next job

Job = Callable[[], None]


class Workers:
    """Runs jobs, each on some thread, at most `limit` at once; the rest wait in order.

    Threads are woken or started one after the other: each takes a job, calls the next thread if there are
    more, and then runs its own. So a job never waits for another to end, and many short ones that are due
    at once are worked off by the few threads that are awake, not by as many as there are jobs.
    """

    def __init__(self, clock: Clock, name: str, limit: int | None) -> None:
        self._clock = clock
        self._name = name
        self._limit = limit
        self.forget()
        forgets_after_fork(self)

    def forget(self) -> None:
        """Be without threads and jobs, as in the beginning. For the child of a fork, where there are none."""
        self._lock = self._clock.lock()  # guards the fields below
        self._idle: list[Latch] = []  # the last one to go idle is the first to work again
        self._line: deque[Job] = deque()
        self._coming = False  # a thread was woken or started and has not looked at the line yet
        self._threads = 0
        self._number = 0
        self._closing = False
        self._gone = self._clock.condition(self._lock)  # _threads == 0

    def submit(self, job: Job) -> None:
        """Run `job` as soon as a thread is free; never blocks. What it raises is logged.

        If the operating system refuses a thread, the job waits for one that works; without any:
        CapacityExceeded.
        """
        with self._lock:
            self._line.append(job)
            number = self._call_one()
        if number and (error := self._start(number)) is not None:
            with self._lock:
                if self._threads == 0 and job in self._line:
                    self._line.remove(job)
                    raise CapacityExceeded(f"no thread for a run: {error_text(error)}") from error

    def _call_one(self) -> int:
        """Wake a thread for the line unless one comes; return the number of one to be started, or 0."""
        # holds _lock
        if self._coming or not self._line:
            return 0
        if self._idle:
            self._coming = True
            self._idle.pop().open()
            return 0
        if self._limit is not None and self._threads >= self._limit:
            return 0
        self._coming = True
        self._threads += 1
        self._number += 1
        return self._number

    def _start(self, number: int) -> RuntimeError | None:
        try:
            self._clock.spawn(self._work, f"{self._name}:{number}")
        except RuntimeError as error:
            with self._lock:
                self._coming = False
                self._threads -= 1
            return error
        return None

    def _work(self) -> None:
        """One thread: jobs, until none comes for a while."""
        came = True
        while (job := self._next(came)) is not None:
            self._run(job)
            came = False

    def _next(self, came: bool) -> Job | None:
        """Return the next job, waiting for it; None when there is none any more.

        came: this thread was called and has not worked since.
        """
        while True:
            with self._lock:
                if came:
                    self._coming = False
                if self._line:
                    job, number = self._line.popleft(), self._call_one()
                    break
                if self._closing:
                    self._leave()
                    return None
                me = self._clock.latch()
                self._idle.append(me)
            me.wait(WARM)
            with self._lock:
                if me in self._idle:  # nobody called
                    self._idle.remove(me)
                    self._leave()
                    return None
            came = True
        if number:
            self._start(number)
        return job

    def _leave(self) -> None:
        # holds _lock
        self._threads -= 1
        if self._threads == 0:
            self._gone.notify_all()

    def _run(self, job: Job) -> None:
        try:
            job()
        except BaseException as error:
            library_logger().error("fault in a run\n%s", traceback_text(error))

    def close(self, timeout: float) -> bool:
        """Let idle threads end, wait for the others; True if all are gone within `timeout` seconds."""
        with self._lock:
            self._closing = True
            idle, self._idle = self._idle, []
            for latch in idle:
                latch.open()
            return self._gone.wait_for(lambda: self._threads == 0, timeout)
