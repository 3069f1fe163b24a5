"""The straight-line form: an adapter over the one-command form.

The function runs from the top at every decision. A call whose result is in history returns it; the first
one whose result is not raises `Suspended`, which carries the command. It is a `BaseException`, so that
`except Exception` lets it pass; every further call raises it again, so that `finally` blocks do nothing;
and a function that swallowed it and returned all the same is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, NoReturn

from supervisor.durable.command import (
    Cancel,
    Command,
    Complete,
    Fail,
    ScheduleStep,
    WaitForSignal,
    WaitUntil,
)
from supervisor.durable.context import (
    Sight,
    StepReference,
    WorkflowContext,
    batch,
    checked_id,
    list_of_steps,
    scheduled,
)
from supervisor.durable.errors import InvalidTransition, NonDeterministic, StepFailed
from supervisor.durable.forms import check_size
from supervisor.durable.history import RunCompleted, StepCreated
from supervisor.durable.identity import check_same_step, check_same_wait
from supervisor.durable.instants import written
from supervisor.durable.payload import Json, copied, normal, same
from supervisor.durable.projection import Projection, Step, Wait
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.snapshot import StepStatus, WaitStatus
from supervisor.kernel.arguments import instant
from supervisor.kernel.arguments import seconds as read_seconds
from supervisor.kernel.errors import Canceled
from supervisor.kernel.text import error_text

__all__ = ["StraightContext", "Suspended", "decide_straight"]

_AS_THEY_ARE = frozenset({str, int, bool, type(None)})  # JSON values that `normal` would not change
_DEFAULT = RetryPolicy.default().continue_workflow_on_failure()


def _catchable(retry: object) -> object:
    """In this form the last failure is raised, whatever the policy says: who lets it pass fails the run."""
    if retry is None:
        return _DEFAULT
    return retry.continue_workflow_on_failure() if isinstance(retry, RetryPolicy) else retry


class Suspended(BaseException):
    """Unwinds a workflow up to the engine: it has asked for something that is not in history."""

    def __init__(self, command: Command) -> None:
        super().__init__("this workflow waits; let this exception pass")
        self.command = command


class StraightContext(WorkflowContext):
    """The context of a straight-line workflow."""

    __slots__ = ("_anchor", "_canceled", "_look", "_naming", "_now", "_slept", "fault", "pending")

    def __init__(self, sight: Sight, names: Callable[[object], str], anchor: datetime) -> None:
        super().__init__(sight, names)
        projection = sight.look()
        self._look = sight.look
        self._naming = names
        self.pending: Suspended | None = None  # raised, and so to be raised again
        self.fault: NonDeterministic | InvalidTransition | None = None  # history and code disagree
        self._canceled = False  # the cancellation was raised
        self._anchor = anchor
        self._slept: set[str] = set()  # ids of sleeps that are over
        self._now = projection.started_at or projection.created_at

    @property
    def logical_time(self) -> datetime:
        """When the latest result that the workflow has seen was recorded, UTC."""
        self._look()
        assert self._now is not None
        return self._now

    def step(
        self, step_id: str, step: StepReference, input: Json = None, *, retry: RetryPolicy | None = None
    ) -> Any:
        self._go_on()
        replayed = self._replayed(step_id, step, input, retry)
        if replayed is not None:
            return self._result(replayed)
        command = scheduled(self._naming, step_id, step, input, _catchable(retry))
        self._cancel_before([command.step_id])
        found = self._ended(command)
        return self._ask_for(command, [command]) if found is None else self._result(found)

    def call(
        self, step_id: str, step: StepReference, input: Json = None, *, retry: RetryPolicy | None = None
    ) -> Command:
        self._look()
        return scheduled(self._naming, step_id, step, input, _catchable(retry))

    def gather(self, calls: Iterable[Command]) -> list[Any]:
        self._go_on()
        steps = list_of_steps(calls, "gather", "ctx.call")
        if not steps:
            return []
        try:
            command = batch(steps)
        except InvalidTransition as error:
            raise self._fault(error) from None
        self._cancel_before([each.step_id for each in steps])
        found = [self._ended(each) for each in steps]
        ended = [step for step in found if step is not None]
        if len(ended) < len(found):
            self._ask_for(command, steps)
        for step in ended:
            self._seen(step)
        return [self._result(step) for step in ended]

    def sleep(self, wait_id: str, seconds: float | timedelta) -> None:
        self._go_on()
        span = read_seconds(seconds, "seconds")
        wait = self._look().waits.get(checked_id(wait_id, "wait_id"))
        if wait is not None and wait.resume_at is not None:
            self._wait(WaitUntil(wait_id, wait.resume_at))
            if wait_id in self._slept:
                raise self._fault(
                    InvalidTransition(
                        f"run {self.run_id!r} sleeps under the id {wait_id!r} for the second time, which is no sleep at "
                        "all; give each an id of its own, in a loop one with a number"
                    )
                )
            self._slept.add(wait_id)
            return
        try:
            when = self._anchor + timedelta(seconds=span)
        except OverflowError:
            raise ValueError(f"seconds must lead to an instant before the year 10000, got {span!r}") from None
        self._wait(WaitUntil(wait_id, when))

    def wait_until(self, wait_id: str, when: datetime) -> None:
        self._go_on()
        self._wait(WaitUntil(checked_id(wait_id, "wait_id"), instant(when, "when")))

    def wait_signal(self, wait_id: str, name: str) -> Any:
        self._go_on()
        return copied(
            self._wait(WaitForSignal(checked_id(wait_id, "wait_id"), checked_id(name, "name"))).payload
        )

    def complete(self, output: Json = None) -> NoReturn:
        self._only_decider("complete", "returns its output")

    def fail(self, error: object) -> NoReturn:
        self._only_decider("fail", "raises an exception")

    def cancel(self) -> NoReturn:
        self._only_decider("cancel", "raises Canceled, or returns, after it was asked to end")

    def schedule_step_with_retry(
        self, step_id: str, step: StepReference, input: Json, retry: RetryPolicy
    ) -> NoReturn:
        self._only_decider("schedule_step", "calls ctx.step(...)")

    def schedule_steps(self, steps: Iterable[Command]) -> NoReturn:
        self._only_decider("schedule_steps", "calls ctx.gather([...])")

    def wait_for_signal(self, wait_id: str, name: str) -> NoReturn:
        self._only_decider("wait_for_signal", "calls ctx.wait_signal(...)")

    def _only_decider(self, call: str, instead: str) -> NoReturn:
        raise self._fault(
            InvalidTransition(f"ctx.{call} belongs to deciders; a straight-line workflow {instead}")
        )

    # How a call is answered

    def _go_on(self) -> None:
        self._look()
        if self.pending is not None:
            raise self.pending

    def _fault(self, error: NonDeterministic | InvalidTransition) -> Exception:
        """Keep what history and code disagree about: it reaches the engine, whoever catches it on the way."""
        self.fault = error
        return error

    def _ask_for(self, command: Command, steps: list[ScheduleStep]) -> NoReturn:
        """Suspend for steps that have not ended. Raises PayloadTooLarge for a new one whose input is too large."""
        known = self._look().steps
        for each in steps:
            if each.step_id not in known:
                created = StepCreated(each.step_id, each.step_name, each.input, each.retry)
                check_size(created, each.input, f"the input of step {each.step_id!r}")
        self._suspend(command)

    def _suspend(self, command: Command) -> NoReturn:
        self.pending = Suspended(command)
        raise self.pending

    def _cancel_before(self, step_ids: list[str], wait_id: str | None = None) -> None:
        """Raise Canceled at the first call whose result was not there when the request came."""
        projection = self._look()
        request = projection.cancellation
        if request is None or self._canceled:
            return
        waited = projection.waits.get(wait_id) if wait_id is not None else None
        ended = [waited] if wait_id is not None else [projection.steps.get(each) for each in step_ids]
        limit = projection.cancel_requested_seq
        if all(each is not None and 0 < each.ended_seq < limit for each in ended):
            return
        self._canceled = True
        self._now = max(self.logical_time, request.at)
        raise Canceled(request.reason if request.reason is not None else "canceled")

    def _replayed(self, step_id: object, step: object, input: object, retry: object) -> Step | None:
        """Return a step that has ended and is asked for as it was before: most calls of a long workflow.

        None for all others. What is wrong with them is found out, and told, where commands are made.
        """
        projection = self._look()
        found = projection.steps.get(step_id) if type(step_id) is str else None
        if found is None or found.open or projection.cancellation is not None:
            return None
        if found.retry is not (asked := _catchable(retry)) and found.retry != asked:
            return None
        if found.name != self._naming(step):
            return None
        data = input if type(input) in _AS_THEY_ARE else normal(input, f"input of step {step_id!r}")
        return found if same(found.input, data) else None

    def _ended(self, command: ScheduleStep) -> Step | None:
        """Return a step that has ended. Raises NonDeterministic if it is another one."""
        projection = self._look()
        step = projection.steps.get(command.step_id)
        if step is None:
            return None
        try:
            check_same_step(projection, step, command)
        except NonDeterministic as error:
            raise self._fault(error) from None
        if step.status is StepStatus.CANCELLED:
            raise self._fault(
                InvalidTransition(
                    f"step {step.step_id!r} of run {projection.run_id!r} was cancelled; clean-up steps need ids "
                    "of their own"
                )
            )
        return None if step.open else step

    def _result(self, step: Step) -> Any:
        self._seen(step)
        if step.status is StepStatus.FAILED:
            raise StepFailed(step.step_id, step.error or "", step.attempt)
        return copied(step.output)

    def _wait(self, command: WaitUntil | WaitForSignal) -> Wait:
        projection = self._look()
        self._cancel_before([], command.wait_id)
        wait = projection.waits.get(command.wait_id)
        if wait is None or wait.status is WaitStatus.WAITING:
            self._suspend(command)
        try:
            check_same_wait(projection, wait, command)
        except NonDeterministic as error:
            raise self._fault(error) from None
        if wait.status is WaitStatus.CANCELLED:
            raise self._fault(
                InvalidTransition(
                    f"wait {wait.wait_id!r} of run {projection.run_id!r} was cancelled; a wait in clean-up needs "
                    "an id of its own"
                )
            )
        self._seen(wait)
        return wait

    def _seen(self, each: Step | Wait) -> None:
        if each.ended_at is not None and self._now is not None:
            self._now = max(self._now, each.ended_at)


def decide_straight(
    function: Callable[..., object],
    arguments: int,
    projection: Projection,
    names: Callable[[object], str],
    anchor: datetime,
) -> Command:
    """Run a straight-line workflow from the top and return what it asks for.

    arguments: 1 for (ctx), 2 for (ctx, input).  anchor: the instant that new sleeps are counted from. What the
    function raises fails the run; KeyboardInterrupt and SystemExit pass. Raises InvalidTransition or NonDeterministic when history and code disagree.
    """
    sight = Sight(projection)
    ctx = StraightContext(sight, names, anchor)
    failure: BaseException | None = None
    output: object = None
    try:
        output = function(ctx, ctx.input) if arguments == 2 else function(ctx)
    except Suspended as suspended:
        if suspended is ctx.pending and ctx.fault is None:
            ctx.pending = None  # the frames it came through hold the context: a cycle, with all they know
            return suspended.command
        failure = suspended
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # also one of the user's own, and a group that holds the suspension
        failure = error
    finally:
        sight.end()
    try:
        if ctx.fault is not None:
            raise ctx.fault
        if ctx.pending is not None:
            raise InvalidTransition(
                f"workflow {projection.workflow!r} of run {projection.run_id!r} swallowed the exception that "
                f"suspends it at {_place(ctx.pending.command)} and went on; catch Exception, not BaseException, "
                "and don't return from a finally block"
            ) from failure
        if projection.cancelling and (failure is None or isinstance(failure, Canceled)):
            return Cancel()
        if failure is not None:
            return Fail(error_text(failure))
        if isinstance(output, Complete | Fail | Cancel | ScheduleStep | WaitUntil | WaitForSignal):
            raise InvalidTransition(
                f"workflow {projection.workflow!r} returned a command; register it with decider instead"
            )
        try:
            data = normal(output, "output")
            check_size(RunCompleted(data), data, "output")
            return Complete(data)
        except ValueError as error:
            return Fail(error_text(error))
    finally:
        del failure  # a frame that holds its own error is a cycle


def _place(command: Command) -> str:
    match command:
        case ScheduleStep(step_id=step_id):
            return f"step {step_id!r}"
        case WaitUntil(wait_id=wait_id, resume_at=when):
            return f"wait {wait_id!r} until {written(when)}"
        case WaitForSignal(wait_id=wait_id):
            return f"wait {wait_id!r} for a signal"
        case _:
            return "a batch of steps"
