"""Group commit: what several threads want to write goes into one transaction, and each is told afterwards.

There is no thread of its own. The first thread that comes leads: it takes whatever has piled up, writes it,
and hands the lead on to the first that came meanwhile. So a leader writes once, for others too, and goes home.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from supervisor.durable.errors import StoreError
from supervisor.kernel.clock import SYSTEM_CLOCK, Latch, current_ident

__all__ = ["MOST", "GroupCommit", "Job", "Together"]

MOST = 256  # jobs in one transaction
PATIENCE = 0.001  # seconds that a leader waits for those who were in the transaction before its own
_DISTRUST = 16  # transactions without such a wait after one that was in vain

Connection = TypeVar("Connection")


@dataclass(frozen=True, slots=True)
class Together(Generic[Connection]):
    """A work that does neighbors in the line at once.

    work: called with the connection and the arguments of the jobs; returns a result or an error for each, those
    that have an error not written.
    """

    work: Callable[[Connection, Sequence[Any]], Sequence[Any]]


class Job(Generic[Connection]):
    """One thing to write, for the thread that waits for it.

    work: called with the connection, inside the transaction, on any thread. Either it raises before its first
    write, which fails this job only, or it writes. It may be called twice: what failed is rolled back first.
    done: called with its result once that is durable; by the leader, so one at a time.
    argument: for a work that takes those of several jobs at once, see `Together`.
    """

    __slots__ = ("argument", "batch", "done", "error", "latch", "result", "settled", "work")

    def __init__(
        self,
        work: Callable[[Connection], Any] | Together[Connection],
        done: Callable[[Any], object] | None,
        argument: object = None,
    ) -> None:
        self.work: Callable[[Connection], Any] | Together[Connection] = work
        self.argument: object = argument
        self.done: Callable[[Any], object] | None = done
        self.result: Any = None
        self.error: Exception | None = None
        self.settled: bool = False  # durable, or failed
        self.latch: Latch | None = None  # of a thread that waits
        self.batch: list[Job[Connection]] = []  # what its thread writes, if it leads

    def settle(self) -> None:
        """It is durable, or has failed by itself. Twice is the same as once."""
        if not self.settled:
            if self.error is None and self.done is not None:
                self.done(self.result)
            self.settled = True

    def fail(self, error: Exception) -> None:
        """It was not written."""
        self.error = error
        self.settled = True


class GroupCommit(Generic[Connection]):
    """The line of jobs, and whose thread writes them.

    write: settles every job it is given; may be interrupted, then it has rolled back what it did not settle.
    Only one thread at a time is inside of it.
    """

    def __init__(self, write: Callable[[list[Job[Connection]]], None]) -> None:
        self._write = write
        self.reset()

    def reset(self) -> None:
        """Be as new. For the child of a fork, in which no other thread exists."""
        self._lock = SYSTEM_CLOCK.lock()  # guards the fields below
        self._resting = SYSTEM_CLOCK.condition(self._lock)
        self._jobs: list[Job[Connection]] = []
        self._leader: Job[Connection] | None = None
        self._told = 0  # jobs in the last transaction
        self._wanted: tuple[int, Latch] | None = None  # so many jobs would be enough for the leader
        self._distrust = 0
        self._ident = 0  # of the leader's thread, once it writes
        self._paused = False
        self._closed: str | None = None  # what to tell who comes late

    def submit(
        self,
        work: Callable[[Connection], Any] | Together[Connection],
        done: Callable[[Any], object] | None = None,
        argument: object = None,
    ) -> Any:
        """Block until a job is durable and return its result, or raise what went wrong with it.

        A Ctrl-C ends the wait; whether the job was, or will be, written is not known then.
        """
        job = Job(work, done, argument)
        try:
            with self._lock:
                if self._closed is not None:
                    raise StoreError(self._closed)
                self._jobs.append(job)
                if self._wanted is not None and len(self._jobs) >= self._wanted[0]:
                    self._wanted[1].open()
                if self._leader is None and not self._paused:
                    self._leader = job
                else:
                    job.latch = SYSTEM_CLOCK.latch()
            if job.latch is not None:
                job.latch.wait()
            if self._leader is job:  # nobody else takes the lead away
                self._lead(job)
        except BaseException:
            self._withdraw(job)
            raise
        error, job.error = job.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        return job.result

    def _gather(self) -> None:
        """Give those who were just told of their last write the time to come with their next.

        Without it every other transaction would hold one job: that of the leader, who was told first. If they
        don't come, they have something else to do, and are not waited for again for a while.
        """
        with self._lock:
            if self._distrust or self._told <= len(self._jobs):
                self._distrust = max(0, self._distrust - 1)
                return
            latch = SYSTEM_CLOCK.latch()
            self._wanted = self._told, latch
        came = latch.wait(PATIENCE)
        with self._lock:
            self._wanted = None
            if not came and len(self._jobs) * 2 <= self._told:
                self._distrust = _DISTRUST

    def _lead(self, job: Job[Connection]) -> None:
        self._gather()
        with self._lock:
            job.batch = self._jobs[:MOST]  # its own job is the first
            del self._jobs[:MOST]
            self._ident = current_ident()
        self._write(job.batch)
        self._hand_on(job)
        job.batch = []  # it holds the job itself: a cycle, with all that was written

    def _hand_on(self, job: Job[Connection]) -> None:
        with self._lock:
            self._told = len(job.batch)
            if self._leader is job:
                self._next()
            leader = self._leader
        self._wake(job.batch, leader)

    def _next(self) -> None:
        # holds _lock
        self._ident = 0
        self._leader = self._jobs[0] if self._jobs and not self._paused else None
        if self._leader is None and (self._paused or self._closed is not None):
            self._resting.notify_all()

    @staticmethod
    def _wake(batch: list[Job[Connection]], leader: Job[Connection] | None) -> None:
        for each in batch:
            if each.settled and each.latch is not None:
                each.latch.open()
        # Last, so that those who were told may join its batch with what they do next.
        if leader is not None and leader.latch is not None:
            leader.latch.open()

    def _withdraw(self, job: Job[Connection]) -> None:
        """The thread of a job leaves early, by a Ctrl-C: nobody may wait for it."""
        with self._lock:
            if self._leader is job:
                if job.batch:
                    self._jobs[:0] = [each for each in job.batch if not each.settled and each is not job]
                elif job in self._jobs:
                    self._jobs.remove(job)
                self._next()
            elif job in self._jobs:
                self._jobs.remove(job)
            leader = self._leader
        self._wake(job.batch, leader)

    # for who owns the connection

    def pause(self, patience: float) -> bool:
        """Let the leader end, and nobody lead until `resume`; False if it did not end in so many seconds."""
        with self._lock:
            self._paused = True
            if self._ident == current_ident():
                return False  # called by a signal handler in the midst of writing
            return self._resting.wait_for(lambda: self._leader is None, patience)

    def resume(self) -> None:
        """Go on after `pause`."""
        with self._lock:
            self._paused = False
            if self._leader is None:
                self._next()
            leader = self._leader
        self._wake([], leader)

    def close(self, why: str) -> None:
        """Refuse new jobs with a StoreError of this text, and wait until those that came before are written."""
        with self._lock:
            self._closed = why
            self._resting.wait_for(lambda: self._leader is None and not self._jobs)
