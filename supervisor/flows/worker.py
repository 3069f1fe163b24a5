"""Reusable threads for runs: as many as there are runs in flight, kept warm for a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from supervisor.kernel.clock import Clock, Latch
from supervisor.kernel.errors import CapacityExceeded
from supervisor.kernel.log import library_logger
from supervisor.kernel.text import error_text, traceback_text

__all__ = ["WARM", "Workers"]

WARM = 10.0  # seconds an idle thread waits for the next job

Job = Callable[[], None]


class _Worker:
    __slots__ = ("job", "latch")

    def __init__(self, latch: Latch) -> None:
        self.latch = latch
        self.job: Job | None = None


class Workers:
    """Runs jobs, each on some thread, at most `limit` at once; the rest wait in order."""

    def __init__(self, clock: Clock, name: str, limit: int | None) -> None:
        self._clock = clock
        self._name = name
        self._limit = limit
        self._lock = clock.lock()  # guards the fields below
        self._idle: list[_Worker] = []  # the last one to go idle is the first to work again
        self._line: deque[Job] = deque()
        self._threads = 0
        self._number = 0
        self._closing = False
        self._gone = clock.condition(self._lock)  # _threads == 0

    def submit(self, job: Job) -> None:
        """Run `job` as soon as a thread is free; never blocks. What it raises is logged.

        If the operating system refuses a thread, the job waits for one that works; without any:
        CapacityExceeded.
        """
        with self._lock:
            if self._idle:
                worker = self._idle.pop()
                worker.job = job
                worker.latch.open()
                return
            if self._limit is not None and self._threads >= self._limit:
                self._line.append(job)
                return
            self._threads += 1
            self._number += 1
            number = self._number
        try:
            self._clock.spawn(lambda: self._work(job), f"{self._name}:{number}")
        except RuntimeError as error:
            with self._lock:
                self._threads -= 1
                if self._threads == 0:
                    raise CapacityExceeded(f"no thread for a run: {error_text(error)}") from error
                self._line.append(job)

    def _work(self, job: Job | None) -> None:
        """One thread: jobs, until none comes for a while."""
        while job is not None:
            self._run(job)
            job = self._next()

    def _next(self) -> Job | None:
        with self._lock:
            if self._line:
                return self._line.popleft()
            if self._closing:
                self._leave()
                return None
            me = _Worker(self._clock.latch())
            self._idle.append(me)
        me.latch.wait(WARM)
        with self._lock:
            if me.job is None:
                if me in self._idle:
                    self._idle.remove(me)
                self._leave()
            return me.job

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
            for worker in idle:
                worker.latch.open()
            return self._gone.wait_for(lambda: self._threads == 0, timeout)
