"""What a workflow sees and says. Reading is looking at history; building a command does nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, NoReturn, cast
from uuid import NAMESPACE_OID, uuid5

from supervisor.durable.command import (
    Cancel,
    Command,
    Complete,
    Fail,
    ScheduleStep,
    ScheduleSteps,
    WaitForSignal,
    WaitUntil,
)
from supervisor.durable.errors import InvalidTransition
from supervisor.durable.history import Envelope
from supervisor.durable.payload import Json, copied, normal
from supervisor.durable.projection import Projection, Step
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.snapshot import CancellationRequest, StepStatus, WaitStatus
from supervisor.kernel.arguments import instant, text
from supervisor.kernel.text import shown

__all__ = ["StepReference", "WorkflowContext", "checked_id"]

StepReference = Callable[..., Any] | str
"""A registered step function, or the name of one."""

_ID_LIMIT = 500  # characters
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # and halves of characters


def checked_id(value: object, field: str) -> str:
    """Return an id or a name: one line of text that is not blank and not endless."""
    found = text(value, field)
    if (
        len(found) > _ID_LIMIT
        or found.isspace()
        or not (found.isprintable() or _CONTROL.search(found) is None)
    ):
        raise ValueError(
            f"{field} must be text of 1 to {_ID_LIMIT} characters, not blank and without control characters, got "
            f"{shown(value)}"
        )
    return found


class Sight:
    """A history, as long as the decision lasts that looks at it."""

    __slots__ = ("_projection",)

    def __init__(self, projection: Projection) -> None:
        self._projection: Projection | None = projection

    def look(self) -> Projection:
        """Return the history. Raises RuntimeError once the decision is over."""
        if self._projection is None:
            raise RuntimeError(
                "this context belongs to a decision that is over; steps get their data as input, and a workflow "
                "must not keep its context"
            )
        return self._projection

    @property
    def over(self) -> bool:
        """The decision is made."""
        return self._projection is None

    def end(self) -> None:
        """The decision is made."""
        self._projection = None


def scheduled(
    names: Callable[[object], str], step_id: str, step: object, input: object, retry: object
) -> ScheduleStep:
    """Return the command for a step, with everything checked."""
    checked = checked_id(step_id, "step_id")
    if not isinstance(retry, RetryPolicy):
        raise TypeError(f"retry of step {checked!r} must be a RetryPolicy, got {shown(retry)}")
    return ScheduleStep(checked, names(step), normal(input, f"input of step {checked!r}"), retry)


class WorkflowContext:
    """The history of one run as its workflow sees it, and what the workflow can ask for.

    Valid during one decision, on the thread that calls the workflow. Values it returns are copies.

    Straight-line workflows call `step`, `gather`, `sleep`, `wait_until` and `wait_signal`, which return results.
    Deciders return one command, made by `schedule_step`, `schedule_steps`, `wait_until`, `wait_for_signal`,
    `complete`, `fail` or `cancel`. The other readers serve both.
    """

    __slots__ = ("_names", "_sight")

    def __init__(self, sight: Sight, names: Callable[[object], str]) -> None:
        self._sight = sight
        self._names = names  # the name of a step, given as a function or a name

    def __repr__(self) -> str:
        of = "a decision that is over" if self._sight.over else repr(self.run_id)
        return f"<{type(self).__name__} of {of}>"

    # Readers

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._sight.look().run_id

    @property
    def input(self) -> Json:
        """What the run was started with."""
        return copied(self._sight.look().input)

    @property
    def history(self) -> list[Envelope]:
        """The events so far, in order. Those of the decision that is being made are not among them."""
        return list(self._sight.look().history or ())

    @property
    def logical_time(self) -> datetime:
        """The time of the latest event, UTC: the same whenever the decision is made again, later when more came.

        In straight-line code: when the latest result was recorded that was seen up to here, at every replay.
        """
        found = self._sight.look().updated_at
        assert found is not None
        return found

    @property
    def cancellation_request(self) -> CancellationRequest | None:
        """The request to end, with its `reason`; None when there is none."""
        return self._sight.look().cancellation

    def step_output(self, step_id: str) -> Json:
        """Return what a completed step returned; None if it has not completed."""
        step = self._sight.look().steps.get(step_id)
        return None if step is None else copied(step.output)

    def step_completed(self, step_id: str) -> bool:
        """Return whether a step has completed."""
        step = self._sight.look().steps.get(step_id)
        return step is not None and step.status is StepStatus.COMPLETED

    def step_failed(self, step_id: str) -> str | None:
        """Return the text of the final failure of a step; None if it has none (yet)."""
        step = self._sight.look().steps.get(step_id)
        return step.error if step is not None and step.status is StepStatus.FAILED else None

    def wait_completed(self, wait_id: str) -> bool:
        """Return whether a wait, for an instant or for a signal, is over."""
        wait = self._sight.look().waits.get(wait_id)
        return wait is not None and wait.status is WaitStatus.COMPLETED

    def signal(self, name: str) -> Json:
        """Return the payload of a signal; None if there is none.

        That is the one that the latest wait for this name took; before any wait took one, the oldest that came.
        """
        projection = self._sight.look()
        taken = [
            wait
            for wait in projection.waits.values()
            if wait.signal_name == name and wait.status is WaitStatus.COMPLETED
        ]
        if taken:
            return copied(max(taken, key=lambda wait: wait.ended_seq).payload)
        first = next((each for each in projection.signals.values() if each.name == name), None)
        return None if first is None else copied(first.payload)

    def deterministic_id(self, name: str) -> str:
        """Return a UUID that is the same for the same run and name, at any time and on any host.

        Source: RFC 9562, version 5, in the namespace of OIDs.
        """
        run_id, label = self._sight.look().run_id, text(name, "name")
        lengths = len(run_id.encode()), len(label.encode())
        return str(uuid5(NAMESPACE_OID, f"a3s.flow.workflow.v1/{lengths[0]}/{run_id}{lengths[1]}{label}"))

    # Builders of the one-command form

    def schedule_step(self, step_id: str, step: StepReference, input: Json = None) -> Command:
        """Ask for a step with the default retry policy: three attempts, no delay, then the run fails."""
        return self.schedule_step_with_retry(step_id, step, input, RetryPolicy.default())

    def schedule_step_with_retry(
        self, step_id: str, step: StepReference, input: Json, retry: RetryPolicy
    ) -> Command:
        """Ask for a step with a retry policy of its own."""
        self._sight.look()
        return scheduled(self._names, step_id, step, input, retry)

    def schedule_steps(self, steps: Iterable[Command]) -> Command:
        """Ask for several steps at once, each made by `schedule_step` or `schedule_step_with_retry`."""
        return batch(list_of_steps(steps, "schedule_steps", "schedule_step"))

    def wait_until(self, wait_id: str, when: datetime) -> Any:
        """Wait for an instant, an aware datetime; one in the past suspends, too.

        Decider: returns the command. Straight-line: returns None once the instant has come.
        """
        return WaitUntil(checked_id(wait_id, "wait_id"), instant(when, "when"))

    def wait_for_signal(self, wait_id: str, name: str) -> Command:
        """Wait for a signal: the oldest that came with this name and was not taken, or the next."""
        return WaitForSignal(checked_id(wait_id, "wait_id"), checked_id(name, "name"))

    def complete(self, output: Json = None) -> Command:
        """End the run well. Raises SerializationError for what JSON can't hold."""
        return Complete(normal(output, "output"))

    def fail(self, error: object) -> Command:
        """End the run as failed.  error: text, or an exception. Raises SerializationError for text that is none."""
        from supervisor.kernel.text import error_text

        said = error_text(error) if isinstance(error, BaseException) else str(error)
        return Fail(str(normal(said, "error")))

    def cancel(self) -> Command:
        """End a run that was asked to end, after its clean-up."""
        return Cancel()

    # The straight-line form; a decider can't wait

    def step(
        self, step_id: str, step: StepReference, input: Json = None, *, retry: RetryPolicy | None = None
    ) -> Any:
        """Return what a step returned, the first time it completed.

        retry: None is `RetryPolicy.default()`, after which the workflow continues. Raises StepFailed when
        the step has failed for good, SerializationError for an input that JSON can't hold, Canceled when
        the run was asked to end.
        """
        self._only_straight("step", "schedule_step")

    def call(
        self, step_id: str, step: StepReference, input: Json = None, *, retry: RetryPolicy | None = None
    ) -> Command:
        """Describe a step for `gather`; nothing is asked for yet."""
        self._only_straight("call", "schedule_step")

    def gather(self, calls: Iterable[Command]) -> list[Any]:
        """Run the described steps at once and return what they returned, in the order given.

        Raises the first StepFailed, in that order, once all have ended.
        """
        self._only_straight("gather", "schedule_steps")

    def sleep(self, wait_id: str, seconds: float | timedelta) -> None:
        """Wait `seconds` from now on: the clock of the engine, or the `now` of a drive that is later.

        The instant is taken when the sleep is first asked for, and remembered.
        """
        self._only_straight("sleep", "wait_until")

    def wait_signal(self, wait_id: str, name: str) -> Any:
        """Wait for a signal and return its payload."""
        self._only_straight("wait_signal", "wait_for_signal")

    def _only_straight(self, call: str, instead: str) -> NoReturn:
        raise InvalidTransition(
            f"ctx.{call} belongs to straight-line workflows; a decider returns ctx.{instead}(...)"
        )


def list_of_steps(steps: object, taker: str, maker: str) -> list[ScheduleStep]:
    """Return what was given to `taker` as a list of what `maker` returns. Raises TypeError for anything else."""
    if not isinstance(steps, Iterable):
        raise TypeError(f"{taker} takes a list of what {maker} returns, got {shown(steps)}")
    found: list[ScheduleStep] = []
    for each in cast("Iterable[object]", steps):
        if not isinstance(each, ScheduleStep):
            raise TypeError(f"{taker} takes a list of what {maker} returns, got {shown(each)} in it")
        found.append(each)
    return found


def batch(steps: list[ScheduleStep]) -> ScheduleSteps:
    """Return a command for several steps. Raises InvalidTransition for none, or an id that occurs twice."""
    if not steps:
        raise InvalidTransition("a batch of steps must not be empty")
    seen: set[str] = set()
    for each in steps:
        if each.step_id in seen:
            raise InvalidTransition(f"step {each.step_id!r} occurs twice in one batch; give each its own id")
        seen.add(each.step_id)
    return ScheduleSteps(tuple(steps))


def definition(step: Step) -> dict[str, Json]:
    """Return what must be the same whenever a step is asked for."""
    return {"step_name": step.name, "input": step.input, "retry": step.retry.to_dict()}
