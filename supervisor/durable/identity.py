"""Whether what a workflow asks for is what its history says it asked for before.

Identity is the id, never the order of arrival: skipping an id or adding one is legal, changing what an id
stands for is not.
"""

from __future__ import annotations

from supervisor.durable.command import ScheduleStep, WaitForSignal, WaitUntil
from supervisor.durable.errors import NonDeterministic
from supervisor.durable.instants import written
from supervisor.durable.payload import Json, brief, same
from supervisor.durable.projection import Projection, Step, Wait

__all__ = ["check_same_step", "check_same_wait"]


def check_same_step(projection: Projection, step: Step, command: ScheduleStep) -> None:
    """Raise NonDeterministic if the step in history has another name, input or retry policy."""
    if step.name != command.step_name:
        raise _drift(projection, f"step {step.step_id} name", step.name, command.step_name)
    if not same(step.input, command.input):
        raise _drift(projection, f"step {step.step_id} input", step.input, command.input)
    if step.retry != command.retry:
        raise _drift(projection, f"step {step.step_id} retry", step.retry.to_dict(), command.retry.to_dict())


def check_same_wait(projection: Projection, wait: Wait, command: WaitUntil | WaitForSignal) -> None:
    """Raise NonDeterministic if the wait in history is for another instant or signal."""
    if isinstance(command, WaitUntil):
        if wait.resume_at != command.resume_at:
            before: Json = (
                {"signal_name": wait.signal_name} if wait.resume_at is None else written(wait.resume_at)
            )
            raise _drift(projection, f"wait {wait.wait_id} resume_at", before, written(command.resume_at))
    elif wait.signal_name != command.signal_name:
        before = wait.signal_name if wait.resume_at is None else {"resume_at": written(wait.resume_at)}
        raise _drift(projection, f"wait {wait.wait_id} signal_name", before, command.signal_name)


def _drift(projection: Projection, what: str, before: Json, now: Json) -> NonDeterministic:
    return NonDeterministic(
        projection.run_id,
        f"{what} differs: history={brief(before)}; replay={brief(now)}; an id stands for the same thing for "
        "ever, take a new id for a new thing",
    )
