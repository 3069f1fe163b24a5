"""The drive: one thread brings one run as far as it can.

It folds history, asks the workflow, checks the answer, appends what it implies, calls the attempts that
are due, and so on, until the run has ended or waits for something outside. The workflow is pure, so it may
be asked about a result that is not durable yet: the end of one step and the start of the next are one append.
The body of a step is called only after its start is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Protocol

from supervisor.durable.attempts import Interrupted, attempt
from supervisor.durable.command import Command, ScheduleStep, ScheduleSteps
from supervisor.durable.decision import Outcome, Plan, decide, ending, outcome_event, pairing
from supervisor.durable.errors import (
    EventConflict,
    LeaseLost,
    PayloadTooLarge,
    ReplayLimitExceeded,
    SerializationError,
    UnknownStep,
    UnknownWorkflow,
)
from supervisor.durable.history import Envelope, FlowEvent, RunStarted
from supervisor.durable.projection import Projection
from supervisor.durable.runtime import (
    FlowRuntime,
    RegisteredStep,
    RegisteredWorkflow,
    StepInvocation,
    deciding,
    idempotency_key,
)
from supervisor.durable.seats import Seat, Seats
from supervisor.durable.snapshot import RunStatus
from supervisor.kernel.cancellation import CancelReason, CancelToken
from supervisor.kernel.clock import Clock, Queue
from supervisor.kernel.deadlines import Deadlines
from supervisor.kernel.workers import Workers

__all__ = ["Drive", "DriveHost"]

_TOGETHER = (
    128  # attempts of one batch that run at once. Of each batch: one that waits for another never blocks it
)


class DriveHost(Protocol):
    """What a drive needs of its engine."""

    clock: Clock
    runtime: FlowRuntime
    seats: Seats
    workers: Workers
    max_replays: int

    @property
    def timers(self) -> Deadlines:
        """Where the deadlines of steps lie."""
        ...

    def load(self, run_id: str) -> Projection:
        """Return the history as it is stored."""
        ...

    def append(self, run_id: str, expected: int, events: list[FlowEvent], at: datetime) -> list[Envelope]:
        """Append, and publish what was appended. Raises EventConflict or StoreError."""
        ...


@dataclass(frozen=True, slots=True)
class _Ended:
    """How one attempt ended, until it is durable."""

    step_id: str
    attempt: int
    outcome: Outcome
    anchor: datetime


class Drive:
    """One drive of one run. For one thread."""

    def __init__(
        self,
        host: DriveHost,
        seat: Seat,
        projection: Projection,
        *,
        now: datetime | None,
        halted: Callable[[], bool],
        lease: CancelToken | None,
        confirm: Callable[[bool], None] | None = None,
        opening: Callable[[Projection], list[FlowEvent]] | None = None,
    ) -> None:
        """Prepare.

        now: what counts as due; None for the clock.  halted: asked before an attempt is started.  lease: canceled
        when somebody else has the run.  confirm: makes sure
        of that before attempts are started; True if there is reason to doubt.  opening: what comes from outside: the events that are to be appended to a
        history, asked for again whenever somebody else has appended; what it raises is raised.
        """
        self.projection: Projection = projection
        self._host = host
        self._seat = seat
        self._now = now
        self._halted = halted
        self._lease = lease
        self._confirm = confirm
        self._opening = opening
        self._durable = projection.sequence  # up to here the history is stored
        self._pending: list[FlowEvent] = []
        self._outcomes: list[_Ended] = []  # those among the pending
        self._firm = 0  # so many of the pending, the first ones, have happened; the rest was decided on them
        self._at: datetime | None = None  # of the pending events
        self._token = self._new_token()
        self._open()

    def _open(self) -> None:
        if self._opening is not None and (events := self._opening(self.projection)):
            self.add(events)
            self._firm = len(self._pending)

    def _new_token(self) -> CancelToken:
        token = (
            CancelToken(clock=self._host.clock, timers=None) if self._lease is None else self._lease.child()
        )
        self._host.seats.begin(self._seat, self.projection.sequence, token)
        return token

    # The loop

    def run(self) -> Projection:
        """Drive, and return what the history says then.

        Raises what a decider raises, NonDeterministic, InvalidTransition, UnknownWorkflow, UnknownStep,
        ReplayLimitExceeded, LeaseLost, StoreError, or KeyboardInterrupt and SystemExit of a step. What was done
        until then is durable, unless the store failed.
        """
        replays = 0
        while True:
            projection = self.projection
            if projection.terminal:
                if self._flush():
                    return self.projection
                continue
            if projection.status is RunStatus.PENDING:
                self._workflow()  # before anything is written
                self.add([RunStarted()])
            if ends := self._ending():
                self.add(ends)
                continue
            if pairs := pairing(projection):
                self.add(pairs)
                continue
            if replays >= self._host.max_replays:
                self._flush()
                raise ReplayLimitExceeded(projection.run_id, self._host.max_replays)
            replays += 1
            plan = self._ask(projection)
            if plan.run and self._halted():
                self._flush()
                return self.projection
            self.add(plan.events)
            if plan.run:
                if self._flush() and not self._call(plan.run):
                    return self.projection
            elif plan.waits and not pairing(projection) and self._flush():
                return self.projection

    def _ending(self) -> list[FlowEvent]:
        """Return how the run ends because of a step. That the step has failed is durable before."""
        if self.projection.interrupted is None:
            return []
        self._flush()
        return ending(self.projection)

    def _ask(self, projection: Projection) -> Plan:
        """Ask the workflow what follows; on any error, what was done is kept."""
        try:
            workflow, at = self._workflow(), self._time()
            mark = deciding.set(projection.run_id)
            try:
                anchor = at if self._now is None else max(at, self._now)
                command = workflow.decide(projection, self._host.runtime.step_name, anchor)
            finally:
                deciding.reset(mark)
            plan = decide(projection, command, self._now or at, at)
            for step_id, _ in plan.run:
                self._registered(step_id, command)
            return plan
        except BaseException:
            self._flush()
            raise

    def _workflow(self) -> RegisteredWorkflow:
        """Return the workflow of the run. Raises UnknownWorkflow; what was done is kept."""
        try:
            return self._host.runtime.find_workflow(self.projection.workflow, self.projection.version)
        except UnknownWorkflow:
            self._flush()
            raise

    def _registered(self, step_id: str, command: Command | None = None) -> RegisteredStep:
        """Return the step with this id. Raises UnknownStep."""
        step = self.projection.steps.get(step_id)
        if step is not None:
            return self._host.runtime.find_step(step.name)
        asked = command.steps if isinstance(command, ScheduleSteps) else (command,)
        for each in asked:
            if isinstance(each, ScheduleStep) and each.step_id == step_id:
                return self._host.runtime.find_step(each.step_name)
        raise UnknownStep(f"no step {step_id!r}")

    # Appending

    def _time(self) -> datetime:
        """Return the time of the pending events: one append has one."""
        if self._at is None:
            self._at = self._host.clock.now()
        return self._at

    def add(self, events: list[FlowEvent]) -> None:
        """Fold events that are to be appended with the next flush."""
        projection, at = self.projection, self._time()
        for event in events:
            projection.fold(Envelope(projection.run_id, projection.sequence + 1, "", at, event))
            self._pending.append(event)

    def _flush(self) -> bool:
        """Append what is pending.

        False if somebody else had appended: then history was read anew, the outcomes of attempts were recorded
        on top if it still wants them, and the rest has to be decided anew.
        """
        if not self._pending:
            self._at = None
            return True
        undisturbed = True
        while self._pending:
            self._check_lease()
            events, at = self._pending, self._time()
            try:
                stored = self._host.append(self.projection.run_id, self._durable, events, at)
            except EventConflict:
                undisturbed = False
                self._start_over()
                continue
            except (PayloadTooLarge, SerializationError):
                self._keep_what_happened(at)
                raise
            self.projection.confirm(stored)
            self._durable = self.projection.sequence
            self._pending, self._outcomes, self._opening, self._firm = [], [], None, 0
        self._at = None
        return undisturbed

    def _keep_what_happened(self, at: datetime) -> None:
        """Append outcomes and what came from outside without what was decided then, which can't be written."""
        if 0 < self._firm < len(self._pending):
            events, self._pending = self._pending[: self._firm], []
            self._host.append(self.projection.run_id, self._durable, events, at)

    def _make_sure(self, *, doubt: bool) -> None:
        if self._confirm is not None:
            self._confirm(doubt)
            self._check_lease()

    def _check_lease(self) -> None:
        if self._lease is not None and self._lease.canceled:
            raise LeaseLost(
                f"run {self.projection.run_id!r} is driven by somebody else; what was done is dropped"
            )

    def _start_over(self) -> None:
        """Read history anew, and fold on it the outcomes that are not recorded."""
        self._make_sure(doubt=True)  # somebody else appended: perhaps because the run is theirs now
        outcomes, self._outcomes, self._pending, self._firm = self._outcomes, [], [], 0
        self.projection = self._host.load(self.projection.run_id)
        self._durable = self.projection.sequence
        if self._token.canceled or self._ended_by_others():
            self._token.cancel(CancelReason.REQUESTED)  # members of a batch may still run under it
            self._token = self._new_token()
        for each in outcomes:
            self._record(each)
        self._open()

    def _ended_by_others(self) -> bool:
        """History says that the attempts under the token of now are not wanted any more."""
        projection = self.projection
        return projection.terminal or projection.cancel_requested_seq > self._seat.seen

    def _record(self, ended: _Ended) -> None:
        event = outcome_event(self.projection, ended.step_id, ended.attempt, ended.outcome, ended.anchor)
        if event is not None:
            self.add([event])
            self._outcomes.append(ended)
            self._firm = len(self._pending)

    # Calling steps

    def _call(self, attempts: list[tuple[str, int]]) -> bool:
        """Call attempts whose start is durable, and take down how they ended; False if one has no outcome."""
        self._at = None
        self._make_sure(doubt=False)
        if len(attempts) == 1:
            try:
                ended = self._prepared(*attempts[0], self._token)()
            except Interrupted as stop:
                return self._interrupted(stop)
            self._at = None
            self._record(ended)
            return True
        return self._call_together(attempts)

    def _interrupted(self, stop: Interrupted) -> bool:
        """An attempt has no outcome: look what history says; False if this drive should end."""
        if stop.error is not None:
            raise stop.error
        if self._token.reason is CancelReason.SHUTDOWN:
            return False
        self._check_lease()
        self._start_over()
        if self._token.canceled:
            self._token = self._new_token()
        return True

    def _prepared(self, step_id: str, number: int, token: CancelToken) -> Callable[[], _Ended]:
        """Return the call of one attempt, for any thread. It raises Interrupted if the attempt has no outcome."""
        projection, host, now = self.projection, self._host, self._now
        step = projection.steps[step_id]
        registered = self._registered(step_id)
        invocation = StepInvocation(
            run_id=projection.run_id,
            step_id=step_id,
            step_name=step.name,
            attempt=number,
            input=step.input,
            idempotency_key=idempotency_key(projection.run_id, step_id, number),
            step_key=f"{projection.run_id}:{step_id}",
            token=token.child(),
        )

        def run() -> _Ended:
            outcome = attempt(registered, invocation, host.timers)
            at = host.clock.now()
            return _Ended(step_id, number, outcome, at if now is None else max(at, now))

        return run

    def _call_together(self, attempts: list[tuple[str, int]]) -> bool:
        """Call several attempts at once, each on a thread; record each as it ends.

        One that fails the run ends the wait: the others are asked to stop, and what becomes of them is not known.
        """
        token, results = self._token, self._host.clock.queue()

        def one(run: Callable[[], _Ended]) -> None:
            try:
                if token.canceled:
                    raise Interrupted  # before it has begun
                results.put(run())
            except BaseException as error:
                results.put(error)

        prepared = [partial(one, self._prepared(step_id, number, token)) for step_id, number in attempts]
        try:
            return self._take_down(results, prepared)
        except BaseException:
            token.cancel(CancelReason.SHUTDOWN)  # nobody will record what they do
            raise

    def _take_down(self, results: Queue, prepared: Sequence[Callable[[], None]]) -> bool:
        """Run what is prepared, so many at once as one batch may, and record the outcomes as they come."""
        stop: Interrupted | None = None
        waiting = iter(prepared)
        for job in islice(waiting, _TOGETHER):
            self._host.workers.submit(job)
        for left in reversed(range(len(prepared))):
            result = results.get()
            if isinstance(result, _Ended):
                self._at = None
                self._record(result)
                if left or stop is not None:  # the last one shares its append with what follows from it
                    self._flush()
                if self.projection.interrupted is not None or self.projection.terminal:
                    self._token.cancel(CancelReason.REQUESTED)
                    self._token = self._new_token()
                    return True
            elif not isinstance(result, Interrupted):
                raise result
            elif stop is None or stop.error is None:
                stop = result
            for job in islice(waiting, 1):
                self._host.workers.submit(job)
        return True if stop is None else self._interrupted(stop)
