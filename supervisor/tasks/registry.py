"""Who is a member: ids and names. No lock of its own: every call is made under the supervisor's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count

from supervisor.tasks.actor import Actor
from supervisor.tasks.outcome import RejectionKind
from supervisor.tasks.spec import TaskSpec

__all__ = ["Conflict", "Registry", "TaskId", "next_id"]


class TaskId(int):
    """Identity of a task: from 1, one sequence for all supervisors of the process, never reused."""

    __slots__ = ()


_ids = count(1)


def next_id() -> TaskId:
    """Draw an id."""
    return TaskId(next(_ids))


class Conflict:
    """Why a spec can't be registered."""

    __slots__ = ("kind", "reason", "spec")

    def __init__(self, spec: TaskSpec, kind: RejectionKind, reason: str) -> None:
        self.spec: TaskSpec = spec
        self.kind: RejectionKind = kind
        self.reason: str = reason


class Registry:
    """The members of one supervisor."""

    __slots__ = ("_by_name", "_limit", "live", "queued", "stuck")

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._by_name: dict[str, Actor] = {}
        self.live: dict[int, Actor] = {}  # registered, by id
        self.stuck: dict[int, Actor] = {}  # given up, but the thread has not ended
        self.queued: dict[int, Actor] = {}  # in the line of a slot: no name, no thread

    def find(self, target: str | int) -> Actor | None:
        """Return the member with a name or an id."""
        if isinstance(target, str):
            return self._by_name.get(target)
        for members in (self.live, self.stuck, self.queued):
            if (actor := members.get(target)) is not None:
                return actor
        return None

    def __iter__(self) -> Iterator[Actor]:
        return chain(self.live.values(), self.stuck.values(), self.queued.values())

    def conflicts(self, specs: Sequence[TaskSpec]) -> list[Conflict]:
        """Return why `specs` can't be registered together; empty if they can.

        In a batch everybody is refused: those at fault by name, the others with them.
        """
        reasons: dict[int, str] = {}
        names: set[str] = set()
        for index, spec in enumerate(specs):
            if (owner := self._by_name.get(spec.name)) is not None:
                state = "is stuck in its thread as" if owner.id in self.stuck else "is registered as"
                reasons[index] = (
                    f"a task named {spec.name!r} {state} #{owner.id}; cancel it or choose another name"
                )
            elif spec.name in names:
                reasons[index] = f"the name {spec.name!r} occurs twice in the batch; choose another name"
            names.add(spec.name)
        if reasons:
            rest = f"refused together with {specs[min(reasons)].name!r}"
            return [
                Conflict(spec, RejectionKind.ALREADY_EXISTS, reasons[index])
                if index in reasons
                else Conflict(spec, RejectionKind.BATCH_REJECTED, rest)
                for index, spec in enumerate(specs)
            ]
        members = len(self.live) + len(self.stuck)
        if self._limit is not None and members + len(specs) > self._limit:
            reason = (
                f"{members} of max_tasks {self._limit} are registered, {len(specs)} more do not fit; "
                "wait for tasks to end or raise max_tasks"
            )
            return [Conflict(spec, RejectionKind.CAPACITY, reason) for spec in specs]
        return []

    def insert(self, actor: Actor) -> None:
        """Take a member in; its name must be free."""
        self.queued.pop(actor.id, None)
        self.live[actor.id] = self._by_name[actor.name] = actor

    def remove(self, actor: Actor) -> None:
        """Let a member go; its name is free."""
        if self.live.pop(actor.id, None) or self.stuck.pop(actor.id, None):
            del self._by_name[actor.name]

    def give_up(self, actor: Actor) -> None:
        """Keep the name of a member whose thread has not ended, and nothing else."""
        del self.live[actor.id]
        self.stuck[actor.id] = actor
