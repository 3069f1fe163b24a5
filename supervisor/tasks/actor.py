"""The actor: one thread, one task, its attempts in order.

It runs an attempt, asks `restart.decide` what follows, waits, and runs the next. It parks without
a timeout; the supervising thread's heap of deadlines wakes it. Its last act is to post that it has
ended, whatever happened.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Protocol

from supervisor.kernel.attempt import (
    CANCELED,
    FAILED,
    PANICKED,
    SUCCEEDED,
    TIMED_OUT,
    AttemptResult,
    Watch,
    call,
    code_of,
    ended_by,
)
from supervisor.kernel.backoff import Draws, draw_from
from supervisor.kernel.bus import EventBus
from supervisor.kernel.cancellation import CancelReason, CancelToken
from supervisor.kernel.clock import Clock, Latch, ThreadHandle, current_ident
from supervisor.kernel.deadlines import Deadline, Deadlines
from supervisor.kernel.errors import Timeout
from supervisor.kernel.permits import Permits, Place
from supervisor.kernel.promise import Promise
from supervisor.kernel.text import (
    REASON_LIMIT,
    ErrorTexts,
    error_text,
    follows,
    message_text,
    stack_text,
    strip_frames,
    traceback_text,
)
from supervisor.tasks.context import TaskContext, enter
from supervisor.tasks.lifecycle import (
    AttemptCanceled,
    AttemptFailed,
    AttemptOverrunning,
    AttemptReturnedLate,
    AttemptStarting,
    AttemptSucceeded,
    AttemptTimedOut,
    BackoffScheduled,
)
from supervisor.tasks.outcome import OutcomeKind, TaskOutcome
from supervisor.tasks.process import leave_child
from supervisor.tasks.restart import Stop, decide
from supervisor.tasks.spec import Policy, TaskSpec

__all__ = ["LATE", "Actor", "Host", "Progress", "State"]

LATE = 0.05  # seconds; a body that answers its deadline faster did not return late


class State:
    """What an actor does, as `TaskInfo.state` says it."""

    WAITING = "waiting"  # for a permit, or in the line of its slot
    RUNNING = "running"
    BACKOFF = "backoff"
    IDLE = "idle"  # between two runs of a periodic task
    STOPPING = "stopping"
    STUCK = "stuck"
    FINISHED = "finished"


# A snapshot: state, attempt, streak, start of the attempt and of the next (monotonic seconds, None
# when there is none), last error. Replaced as a whole, so that readers need no lock; a bare tuple, as
# the loop makes one for each attempt.
Progress = tuple[str, int, int, float | None, float | None, str | None]


class Host(Protocol):
    """What an actor needs of its supervisor."""

    clock: Clock
    bus: EventBus
    deadlines: Deadlines
    permits: Permits | None
    rng: Draws
    closing: bool  # a shutdown was asked for
    forked: bool  # this process is a child of the one where the threads run

    def let_in(self, actor: Actor) -> bool:
        """The thread exists: register the task, if its launcher has not; False if it must not run."""
        ...

    def actor_started(self, actor: Actor) -> None:
        """The thread runs. Called on it, first."""
        ...

    def actor_ended(self, actor: Actor, outcome: TaskOutcome) -> None:
        """The thread is about to end. Called on it, last."""
        ...

    def give_up(self, actor: Actor, reason: str) -> None:
        """End the task although its body runs. On the supervising thread."""
        ...

    def call_back(self, callbacks: list[Callable[[], object]]) -> None:
        """Run callbacks of the user somewhere they can't hold anybody up."""
        ...


class Actor:
    """One task from its admission to the end of its thread."""

    __slots__ = (
        "_context",
        "_contextvars",
        "_host",
        "_started",
        "_texts",
        "admitted",
        "claimed",
        "closed",
        "ended",
        "gate",
        "grace",
        "id",
        "ident",
        "name",
        "next_gate",
        "outcome",
        "place",
        "policy",
        "progress",
        "slot",
        "spec",
        "thread",
        "token",
        "value",
    )

    def __init__(self, host: Host, id: int, spec: TaskSpec, policy: Policy) -> None:
        self._host = host
        self.id: int = id
        self.name: str = spec.name
        self.spec: TaskSpec = spec
        self.policy: Policy = policy
        clock = host.clock
        self.token: CancelToken = CancelToken(clock=clock, timers=host.deadlines)
        self.outcome: Promise[TaskOutcome | None] = Promise(clock)  # None: none can come any more
        self.progress: Progress = (State.WAITING, 0, 0, None, None, None)
        self.slot: str | None = None
        self.thread: ThreadHandle | None = None
        self.ident: int | None = None
        self.gate: Latch | None = None  # of a batch: all its threads exist before one goes on
        self.next_gate: Latch | None = None  # of the next one in the batch
        self.place: Place | None = None  # in the line for a permit, kept since the task was registered
        self.admitted: bool = False  # the task is registered for good; guarded by the supervisor's lock
        self.grace: Deadline | None = None
        self.claimed: bool = False  # asked to stop; guarded by the supervisor's lock
        self.closed: bool = False  # given up: what its thread still says is stale
        self.ended: bool = False  # the thread has nothing more to do
        self._contextvars: Context = copy_context()
        self._texts = ErrorTexts()
        self._context: TaskContext | None = None
        self._started = 0.0  # monotonic; of the attempt
        self.value: object = None  # of the last success

    def __repr__(self) -> str:
        return f"<Actor {self.name!r} #{self.id}>"

    def stack(self) -> str:
        """Return where the thread is; "" when it has none."""
        return "" if self.ident is None or self.ended else stack_text(self.ident)

    def leave_line(self) -> None:
        """Give up the place in the line for a permit, if the thread has not taken it."""
        place, self.place = self.place, None
        if place is not None and self._host.permits is not None:
            self._host.permits.leave(place)

    @property
    def attempts(self) -> int:
        """How many attempts were started."""
        return self.progress[1]

    @property
    def current_token(self) -> CancelToken:
        """What cancels the body that runs now."""
        return self.token if self._context is None else self._context.token

    @property
    def clock(self) -> Clock:
        return self._host.clock

    # The thread

    def main(self) -> None:
        """The whole life of the thread."""
        if (gate := self.gate) is not None:
            gate.wait()
            if self.next_gate is not None:
                self.next_gate.open()
            self.gate = self.next_gate = None
        if not (self.admitted or self._host.let_in(self)):  # the admission was taken back
            return
        self.ident = current_ident()
        self._host.actor_started(self)
        try:
            outcome = self._outcome(*self._run())
        except BaseException as error:  # a fault of the library: told, never hidden
            reason = f"fault in the supervisor library: {error_text(error)}"
            outcome = TaskOutcome(
                kind=OutcomeKind.PANICKED,
                reason=reason,
                traceback=traceback_text(error),
                attempts=self.attempts,
            )
        self.value = self._context = None
        self.leave_line()
        self.token.seal(CancelReason.REQUESTED)  # threads that a body left behind may wait on it
        self.ended = True
        self._host.actor_ended(self, outcome)

    def _run(self) -> tuple[Stop, AttemptResult | None]:
        """Attempts, one after another, until `decide` says stop."""
        host, token, policy = self._host, self.token, self.policy
        permits, monotonic = host.permits, host.clock.monotonic
        attempt = streak = 0
        last_error: str | None = None
        while not token.canceled:
            if permits is not None:
                place, self.place = self.place, None
                at_once = place is not None and place.granted
                if not permits.acquire(token, place):
                    break
                if host.closing and not at_once:  # its turn comes in the middle of a shutdown
                    permits.release()
                    break
            try:
                attempt += 1
                started = self._started = monotonic()
                self.progress = (State.RUNNING, attempt, streak, started, None, last_error)
                result = self._attempt(attempt)
            finally:
                if permits is not None:
                    permits.release()
            ending = result.ending
            streak = streak + 1 if ending is FAILED or ending is TIMED_OUT else 0
            if ending is SUCCEEDED:
                self.value = result.value
            elif ending is not CANCELED:
                last_error = result.text
            now = monotonic()
            draw = draw_from(host.rng) if streak and policy.backoff is not None else 0.0
            step = decide(policy, ending, streak, token.canceled, now - started, draw)
            if isinstance(step, Stop):
                self.progress = (State.STOPPING, attempt, streak, started, None, last_error)
                return step, result
            if result.error is not None:
                # It holds the frames of its body, often in a circle with them: not through a long wait.
                # And one object that is raised again and again would pile them up.
                strip_frames(result.error)
            del result
            delay = step.delay
            if delay > 0.0:
                state = State.BACKOFF if streak else State.IDLE
                self.progress = (state, attempt, streak, started, now + delay, last_error)
                if step.cause is not None:
                    error = last_error if streak else None
                    host.bus.publish(
                        self, BackoffScheduled, self.id, self.name, attempt, delay, step.cause, error
                    )
                token.wait(delay)
        self.progress = (State.STOPPING, attempt, streak, None, None, last_error)
        return Stop(OutcomeKind.CANCELED), None

    def _attempt(self, attempt: int) -> AttemptResult:
        """Run one attempt and publish how it went."""
        host, policy, started = self._host, self.policy, self._started
        deadline = None if policy.timeout is None else started + policy.timeout
        context = self._context = TaskContext(self, attempt, deadline)
        bus = host.bus
        if bus.active:
            bus.publish(self, AttemptStarting, self.id, self.name, attempt)
        watch = None if deadline is None else Watch(host.deadlines, deadline, policy.overrun, self)
        result = self._contextvars.copy().run(self._invoke, context, watch)
        late_by = 0.0
        if watch is not None:
            watch.ended()
            late_by = host.clock.monotonic() - watch.deadline
        if (error := result.error) is not None and result.text is None and result.ending is not CANCELED:
            result.text = self._texts.of(error)
        if bus.active:
            self._tell(result, attempt, host.clock.monotonic() - started, late_by)
        return result

    def _tell(self, result: AttemptResult, attempt: int, duration: float, late_by: float) -> None:
        """Publish how an attempt ended."""
        publish, id, name, ending = self._host.bus.publish, self.id, self.name, result.ending
        if ending is SUCCEEDED:
            publish(self, AttemptSucceeded, id, name, attempt, duration)
        elif ending is CANCELED:
            publish(self, AttemptCanceled, id, name, attempt, duration)
        else:
            if result.value is not None and late_by > LATE:
                publish(self, AttemptReturnedLate, id, name, attempt, late_by, str(result.value))
            if ending is not TIMED_OUT:
                publish(self, AttemptFailed, id, name, attempt, duration, result.text, result.exit_code)

    def _invoke(self, context: TaskContext, watch: Watch | None) -> AttemptResult:
        """Call the body and close what it left, in the contextvars of this attempt."""
        enter(context)
        spec = self.spec
        args = (context, *spec.args) if spec.takes_context else spec.args
        result = call(spec.task, args, spec.kwargs)
        if self._host.forked:  # a body that forked, and its child came back
            leave_child(self.name, result.error, result.exit_code)
        if watch is not None and not watch.returned():
            message = f"timed out after {self.policy.timeout:g} s"
            result = AttemptResult(TIMED_OUT, ended_by(result), Timeout(message), text=message)
        error = context.close(result.error)
        if error is None:
            return result
        if result.error is not None:
            follows(error, result.error)  # what the body raised is not to be lost
        late = result.value if result.ending is TIMED_OUT else None
        return AttemptResult(PANICKED, late, error)

    def _outcome(self, stop: Stop, result: AttemptResult | None) -> TaskOutcome:
        reason = trace = error = exit_code = None
        if result is not None and stop.kind not in (OutcomeKind.COMPLETED, OutcomeKind.CANCELED):
            error, exit_code = result.error, result.exit_code
            assert error is not None
            reason = _reason(error, exit_code)
            if stop.limit_reached:
                limit = self.policy.max_retries
                reason = f"retry limit reached after {limit} of {limit} retries: {reason}"
            if result.ending is not TIMED_OUT:
                trace = traceback_text(error)
            strip_frames(error)
        return TaskOutcome(
            kind=stop.kind,
            reason=reason,
            error=error,
            traceback=trace,
            exit_code=exit_code,
            value=self.value,
            attempts=self.attempts,
        )

    # What happens at a deadline: a `WatchObserver`

    def timed_out(self) -> Callable[[], None]:
        context, host = self._context, self._host
        assert context is not None
        assert self.policy.timeout is not None
        duration = host.clock.monotonic() - self._started
        host.bus.publish(
            self, AttemptTimedOut, self.id, self.name, context.attempt, duration, self.policy.timeout
        )
        callbacks = context.token.seal(CancelReason.TIMEOUT)
        return lambda: host.call_back(callbacks or [])

    def overrunning(self, late_by: float) -> None:
        attempt = self.attempts
        self._host.bus.publish(self, AttemptOverrunning, self.id, self.name, attempt, late_by, self.stack())

    def given_up(self) -> None:
        overrun = self.policy.overrun
        self._host.give_up(self, f"still running {overrun:g} s after its deadline")


def _reason(error: BaseException, exit_code: int | None) -> str:
    if issubclass(type(error), SystemExit):
        code = code_of(error)
        return code[:REASON_LIMIT] if isinstance(code, str) else f"exit code {exit_code}"
    return message_text(error)
