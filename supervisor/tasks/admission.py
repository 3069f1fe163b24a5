"""Who comes in: launches threads for registered tasks, and applies the effects of slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, assert_never

from supervisor.kernel.cancellation import CancelReason
from supervisor.kernel.errors import CapacityExceeded, ShuttingDown, TaskAlreadyExists
from supervisor.kernel.text import error_text
from supervisor.tasks import slot as slots
from supervisor.tasks.actor import Actor
from supervisor.tasks.lifecycle import (
    SlotChanged,
    TaskAdded,
    TaskCancelRequested,
    TaskFinished,
    TaskRejected,
    TaskRemoved,
)
from supervisor.tasks.outcome import OutcomeKind, RejectionKind, TaskOutcome
from supervisor.tasks.registry import Conflict, next_id
from supervisor.tasks.spec import Policy, TaskSpec

if TYPE_CHECKING:
    from supervisor.tasks.running import Running

__all__ = ["Admissions"]


class Admissions:
    """The way of a task into the registry, directly or through a slot."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._slots: dict[str, slots.Slot] = {}  # guarded by running.lock; idle ones are left out

    def admit(self, pairs: Sequence[tuple[TaskSpec, Policy]]) -> list[Actor]:
        """Register and start all or none. Raises TaskAlreadyExists, CapacityExceeded, ShuttingDown."""
        running = self._running
        actors = [Actor(running, next_id(), spec, policy) for spec, policy in pairs]
        try:
            with running.lock:
                running.refuse_when_closing()
                conflicts = running.registry.conflicts([spec for spec, _ in pairs])
                for each in conflicts:
                    running.bus.publish(None, TaskRejected, None, each.spec.name, each.kind, each.reason)
                if not conflicts:
                    for actor in actors:
                        running.registry.insert(actor)
                        self._line_up(actor)
            if conflicts:
                raise _error(conflicts)
            self._launch(actors)
        except BaseException:  # a Ctrl-C may come anywhere: who is not in by now does not get in
            self._take_back(actors)
            raise
        return actors

    def submit(self, spec: TaskSpec, policy: Policy, key: str, admission: slots.Admission) -> Actor:
        """Put a task into a slot. Its outcome says whether it was admitted."""
        running = self._running
        actor = Actor(running, next_id(), spec, policy)
        try:
            with running.lock:
                running.refuse_when_closing()
                running.registry.queued[actor.id] = actor
                running.unfinished += 1
                actor.slot = key
                old = self._slots.get(key, slots.Idle())
                new, effects = slots.submit(old, actor.id, admission, running.config.slot_capacity)
                self._enter(key, old, new)
            self._apply(key, effects)
        except BaseException:  # a Ctrl-C may come anywhere: nobody must own a slot who never runs
            self._forget(key, actor)
            raise
        return actor

    def withdraw(self, actor: Actor) -> bool:
        """Take a task out of the line of its slot; False if it waits no longer."""
        running, key = self._running, actor.slot
        with running.lock:
            old = slots.Idle() if key is None else self._slots.get(key, slots.Idle())
            if key is None or isinstance(old, slots.Idle) or actor.id not in old.line:
                return False
            self._enter(key, old, slots.withdraw(old, actor.id))
        self._cancel_queued(actor, CancelReason.REQUESTED)
        return True

    def stop_launch(self, actor: Actor) -> bool:
        """Ask a task to stop that has left its line but is not running yet; False if it is neither."""
        running = self._running
        with running.lock:
            if actor.slot is None or actor.admitted or running.registry.find(actor.id) is not actor:
                return False
            return actor.token.seal(CancelReason.REQUESTED) is not None  # its launch claims it

    def cancel_queued(self) -> None:
        """End every task that waits in a line: the supervisor shuts down."""
        running = self._running
        with running.lock:
            waiting = [
                running.registry.queued[id]
                for slot in self._slots.values()
                if not isinstance(slot, slots.Idle)
                for id in slot.line
            ]
            for key, slot in list(self._slots.items()):
                if not isinstance(slot, slots.Idle):
                    self._enter(key, slot, slot._replace(line=()))
        for actor in waiting:
            self._cancel_queued(actor, CancelReason.SHUTDOWN)

    def slot_is_free(self, actor: Actor) -> None:
        """The thread of an owner has ended: the next in line starts."""
        if (key := actor.slot) is None:
            return
        with self._running.lock:
            effects = self._owner_gone(key, actor.id)
        self._apply(key, effects)

    # Threads

    def _line_up(self, actor: Actor) -> None:
        """Keep its place in the line for a permit: first registered, first served."""
        if self._running.permits is not None:
            actor.place = self._running.permits.reserve()

    def _launch(self, actors: Sequence[Actor]) -> None:
        """Start the threads of registered actors, then let all of them go; or none."""
        running = self._running
        try:
            if len(actors) > 1:  # each that passes its gate opens the next: thousands at once collapse
                for actor in actors:
                    actor.gate = running.clock.latch()
                for actor, after in pairwise(actors):
                    actor.next_gate = after.gate
            for actor in actors:
                running.start_thread(actor)
        except BaseException as error:
            self._take_back(actors)
            if not isinstance(error, RuntimeError):
                raise
            reason = f"the operating system refused a thread: {error_text(error)}"
            for actor in actors:
                if actor.slot is None:
                    running.bus.publish(
                        None, TaskRejected, actor.id, actor.name, RejectionKind.CAPACITY, reason
                    )
            raise CapacityExceeded(f"{reason}; nothing was registered, stop some tasks first") from error
        if not self.let_in(actors):
            self._take_back(actors)
            running.refuse_when_closing()
        if actors[0].gate is not None:
            actors[0].gate.open()

    def let_in(self, actors: Sequence[Actor]) -> bool:
        """Take actors in whose threads exist; False when it is too late for that.

        One that was launched alone does it itself, unless its launcher is faster: neither waits for
        the other.
        """
        running = self._running
        with running.lock:
            if actors[0].admitted or running.closing or actors[0].closed:
                return actors[0].admitted
            for actor in actors:
                running.bus.publish(None, TaskAdded, actor.id, actor.name)
            for actor in actors:  # all are told of before the first may run
                if actor.slot is None:  # the others count since they were submitted
                    running.unfinished += 1
                actor.admitted = True
            for actor in actors:
                if actor.token.canceled:  # replaced or removed before it was in
                    running.claim(actor, actor.token.reason or CancelReason.REPLACED)
            return True

    def _take_back(self, actors: Iterable[Actor]) -> None:
        with self._running.lock:
            for actor in actors:
                if not actor.admitted:
                    self._running.registry.remove(actor)
                    actor.closed = actor.ended = True
                    actor.leave_line()
        for actor in actors:
            if (gate := actor.gate) is not None:
                gate.open()
        self._running.inbox.ring()  # a shutdown may wait for them to be gone

    # Slots

    def _apply(self, key: str, effects: Iterable[slots.Effect]) -> None:
        running, todo = self._running, deque(effects)
        while todo:
            effect = todo.popleft()
            with running.lock:
                actor = running.registry.find(effect.id)
            if actor is None:
                continue
            match effect:
                case slots.Start():
                    if not self._start(actor):
                        with running.lock:
                            todo.extend(self._owner_gone(key, actor.id))
                case slots.StopOwner():
                    with running.lock:  # both, or an owner that is being launched might miss it
                        running.claim(actor, CancelReason.REPLACED)
                        callbacks = actor.token.seal(CancelReason.REPLACED)
                    running.call_back(callbacks or [])
                case slots.Reject():
                    self._refuse(actor, effect.kind, effect.reason)
                case _:
                    assert_never(effect)

    def _start(self, actor: Actor) -> bool:
        """Register and launch the new owner of a slot; False if it is refused."""
        running = self._running
        with running.lock:
            conflicts = running.registry.conflicts([actor.spec])
            if not conflicts and not running.closing:
                running.registry.insert(actor)
                self._line_up(actor)
        if conflicts:
            self._refuse(actor, conflicts[0].kind, conflicts[0].reason)
            return False
        try:
            running.refuse_when_closing()
            self._launch([actor])
        except ShuttingDown:
            self._cancel_queued(actor, CancelReason.SHUTDOWN)
            return False
        except CapacityExceeded as error:
            self._refuse(actor, RejectionKind.CAPACITY, str(error))
            return False
        return True

    def _forget(self, key: str, actor: Actor) -> None:
        """Undo a submission that was interrupted, unless the task is in already."""
        running = self._running
        with running.lock:
            old = self._slots.get(key, slots.Idle())
            if actor.admitted or actor.slot is None or actor.outcome.done:
                return
            effects: list[slots.Effect] = []
            if not isinstance(old, slots.Idle) and old.owner == actor.id:
                effects = self._owner_gone(key, actor.id)
            else:
                self._enter(key, old, slots.withdraw(old, actor.id))
            running.registry.remove(actor)
            actor.closed = actor.ended = True
        self._cancel_queued(actor, CancelReason.REQUESTED)
        self._apply(key, effects)

    def _owner_gone(self, key: str, id: int) -> list[slots.Effect]:
        # holds running.lock
        old = self._slots.get(key, slots.Idle())
        new, effects = slots.owner_gone(old, id)
        self._enter(key, old, new)
        return effects

    def _enter(self, key: str, old: slots.Slot, new: slots.Slot) -> None:
        # holds running.lock
        if isinstance(new, slots.Idle):
            self._slots.pop(key, None)
        else:
            self._slots[key] = new
        if old[0:1] != new[0:1] or old.label != new.label:
            self._running.bus.publish(None, SlotChanged, key, new.label)

    def _refuse(self, actor: Actor, kind: RejectionKind, reason: str) -> None:
        running = self._running
        with running.lock:
            running.registry.queued.pop(actor.id, None)
            stopped = actor.token.reason
        if stopped is not None:  # before it could be refused: who asked for it was told so
            self._cancel_queued(actor, stopped)
            return
        running.bus.publish(None, TaskRejected, actor.id, actor.name, kind, reason)
        if actor.outcome.set(TaskOutcome(kind=OutcomeKind.REJECTED, reason=reason, rejection=kind)):
            running.one_less()

    def _cancel_queued(self, actor: Actor, reason: CancelReason) -> None:
        running = self._running
        with running.lock:
            running.registry.queued.pop(actor.id, None)
        actor.token.seal(reason)
        publish, id, name = running.bus.publish, actor.id, actor.name
        publish(None, TaskCancelRequested, id, name, reason)
        publish(None, TaskFinished, id, name, OutcomeKind.CANCELED, 0, None)
        first = actor.outcome.set(TaskOutcome(kind=OutcomeKind.CANCELED))
        publish(None, TaskRemoved, id, name)
        if first:
            running.one_less()


def _error(conflicts: list[Conflict]) -> TaskAlreadyExists | CapacityExceeded:
    for each in conflicts:
        if each.kind is RejectionKind.ALREADY_EXISTS:
            return TaskAlreadyExists(each.reason)
    return CapacityExceeded(conflicts[0].reason)
