"""LogSubscriber: events to the standard library's logging."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Final, NamedTuple

from supervisor.kernel.event import Event, labels
from supervisor.kernel.text import shown
from supervisor.tasks.lifecycle import GraceExceededEvent

__all__ = ["LogSubscriber"]


class _Line(NamedTuple):
    """What is said about one kind of event."""

    level: int
    message: str  # template
    names: tuple[str, ...]  # fields that fill it
    reason: str | None = None  # field that is added to the end when it says something


_LINES: Final = {
    "task_added": _Line(logging.INFO, "task %r added", ("task",)),
    "task_rejected": _Line(logging.WARNING, "task %r rejected (%s)", ("task", "rejection"), "reason"),
    "attempt_starting": _Line(logging.DEBUG, "task %r attempt %d starts", ("task", "attempt")),
    "attempt_succeeded": _Line(
        logging.INFO, "task %r attempt %d succeeded in %.3f s", ("task", "attempt", "duration")
    ),
    "attempt_failed": _Line(
        logging.ERROR, "task %r attempt %d failed after %.3f s", ("task", "attempt", "duration"), "error"
    ),
    "attempt_timed_out": _Line(
        logging.WARNING, "task %r attempt %d timed out after %g s", ("task", "attempt", "timeout")
    ),
    "attempt_overrunning": _Line(
        logging.WARNING,
        "task %r attempt %d still runs %.3f s after its deadline, here:\n%s",
        ("task", "attempt", "late_by", "stack"),
    ),
    "attempt_returned_late": _Line(
        logging.WARNING,
        "task %r attempt %d ended (%s) %.3f s after its deadline",
        ("task", "attempt", "ended", "late_by"),
    ),
    "attempt_canceled": _Line(
        logging.INFO, "task %r attempt %d canceled after %.3f s", ("task", "attempt", "duration")
    ),
    "backoff_scheduled": _Line(
        logging.DEBUG,
        "task %r waits %.3f s after attempt %d (%s)",
        ("task", "delay", "attempt", "cause"),
        "error",
    ),
    "task_cancel_requested": _Line(logging.DEBUG, "task %r asked to stop (%s)", ("task", "reason")),
    "task_finished": _Line(
        logging.INFO, "task %r finished: %s, attempts: %d", ("task", "outcome", "attempts"), "reason"
    ),
    "task_removed": _Line(logging.INFO, "task %r removed", ("task",)),
    "slot_changed": _Line(logging.DEBUG, "slot %r is %s", ("slot", "state")),
    "shutdown_requested": _Line(logging.INFO, "shutdown requested", ()),
    "shutdown_completed": _Line(logging.INFO, "shutdown completed", ()),
    "grace_exceeded": _Line(logging.WARNING, "grace exceeded, stuck tasks: %s", ("stuck",)),
    "subscriber_failed": _Line(logging.ERROR, "subscriber %r failed", ("subscriber",), "error"),
    "events_dropped": _Line(logging.WARNING, "subscriber %r lost %d events", ("subscriber", "dropped")),
    # Of flows. By label alone, so that they need not be loaded.
    "flow_scheduled": _Line(logging.DEBUG, "flow %r fires next at %s", ("flow_id", "next_fire")),
    "flow_started": _Line(logging.DEBUG, "flow %r run %d starts (%s)", ("flow_id", "run", "cause")),
    "flow_skipped": _Line(logging.DEBUG, "flow %r skipped a tick (%s)", ("flow_id", "reason")),
    "flow_succeeded": _Line(
        logging.INFO, "flow %r run %d succeeded in %.3f s", ("flow_id", "run", "duration"), "exit_state"
    ),
    "flow_failed": _Line(
        logging.WARNING,
        "flow %r run %d failed after %.3f s, failures in a row: %d",
        ("flow_id", "run", "duration", "streak"),
        "error",
    ),
    "flow_backoff": _Line(
        logging.DEBUG, "flow %r waits %.3f s, failures in a row: %d", ("flow_id", "delay", "streak")
    ),
    "flow_tripped": _Line(
        logging.ERROR,
        "flow %r tripped and waits for a reset, failures in a row: %d",
        ("flow_id", "streak"),
        "error",
    ),
    "flow_reset": _Line(logging.INFO, "flow %r reset", ("flow_id",)),
    "flow_canceled": _Line(
        logging.INFO, "flow %r run %d canceled after %.3f s", ("flow_id", "run", "duration")
    ),
    "state_entered": _Line(logging.DEBUG, "flow %r enters %s", ("flow_id", "state")),
    "flow_task_retrying": _Line(
        logging.WARNING,
        "flow %r state %s task %r attempt %d failed, again in %.3f s",
        ("flow_id", "state", "task", "attempt", "delay"),
        "error",
    ),
    "branch_finished": _Line(
        logging.DEBUG,
        "flow %r state %s branch %d %r finished in %.3f s",
        ("flow_id", "state", "index", "task", "duration"),
        "error",
    ),
    "resource_failed": _Line(
        logging.ERROR, "flow %r resource %r failed in its tear-down", ("flow_id", "resource"), "error"
    ),
    # Of durable runs: what they publish is an envelope with the event inside.
    "run_created": _Line(logging.INFO, "run %r created", ("run_id",)),
    "run_started": _Line(logging.DEBUG, "run %r started", ("run_id",)),
    "run_completed": _Line(logging.INFO, "run %r completed", ("run_id",)),
    "run_failed": _Line(logging.ERROR, "run %r failed", ("run_id",), "event.error"),
    "run_retry_exhausted": _Line(
        logging.ERROR,
        "run %r failed, step %r used its %d attempts",
        ("run_id", "event.step_id", "event.attempt"),
        "event.error",
    ),
    "run_cancellation_requested": _Line(logging.INFO, "run %r asked to end", ("run_id",), "event.reason"),
    "run_cancelled": _Line(logging.INFO, "run %r cancelled", ("run_id",), "event.reason"),
    "step_created": _Line(
        logging.DEBUG, "run %r asks for step %r (%s)", ("run_id", "event.step_id", "event.step_name")
    ),
    "step_started": _Line(
        logging.DEBUG, "run %r step %r attempt %d starts", ("run_id", "event.step_id", "event.attempt")
    ),
    "step_completed": _Line(logging.INFO, "run %r step %r completed", ("run_id", "event.step_id")),
    "step_retrying": _Line(
        logging.WARNING,
        "run %r step %r attempt %d failed and is tried again",
        ("run_id", "event.step_id", "event.attempt"),
        "event.error",
    ),
    "step_failed": _Line(
        logging.ERROR,
        "run %r step %r failed for good with attempt %d",
        ("run_id", "event.step_id", "event.attempt"),
        "event.error",
    ),
    "step_non_retryable": _Line(
        logging.ERROR,
        "run %r step %r attempt %d failed in a way that no retry mends",
        ("run_id", "event.step_id", "event.attempt"),
        "event.error",
    ),
    "step_cancelled": _Line(
        logging.WARNING, "run %r step %r given up", ("run_id", "event.step_id"), "event.reason"
    ),
    "wait_created": _Line(
        logging.DEBUG, "run %r waits %r until %s", ("run_id", "event.wait_id", "event.resume_at")
    ),
    "wait_completed": _Line(logging.DEBUG, "run %r wait %r is over", ("run_id", "event.wait_id")),
    "signal_received": _Line(logging.DEBUG, "run %r got signal %r", ("run_id", "event.name")),
    "signal_wait_created": _Line(
        logging.DEBUG, "run %r waits %r for signal %r", ("run_id", "event.wait_id", "event.signal_name")
    ),
    "signal_wait_completed": _Line(
        logging.DEBUG, "run %r wait %r got its signal", ("run_id", "event.wait_id")
    ),
    "store_failed": _Line(logging.ERROR, "%s failed, next try in %g s", ("during", "retry_in"), "error"),
    "run_unserved": _Line(logging.WARNING, "run %r is left to others", ("run_id",), "reason"),
}

# A task's end is as grave as its outcome.
_OUTCOMES: Final = {
    "failed": logging.WARNING,
    "force_aborted": logging.WARNING,
    "rejected": logging.WARNING,
    "fatal": logging.ERROR,
    "panicked": logging.ERROR,
}


class LogSubscriber:
    """A subscriber that logs events; each kind has its level, a task's end that of its outcome.

    ERROR: failed attempts and subscribers, tasks that end fatal or panicked, flows that trip, tear-downs
    that fail. WARNING: timeouts, overruns, rejected, failed and force-aborted tasks, exceeded grace,
    dropped events, failed runs of flows and retries in them. DEBUG: starts of attempts and runs,
    backoffs, requests to stop, slots, ticks, states, branches. INFO: the rest, events of other layers
    included.

    Records carry every field that is set as `supervisor_<field>`: `supervisor_task`,
    `supervisor_attempt`, `supervisor_kind` and so on. No handler and no level is configured.
    """

    def __init__(
        self,
        logger: logging.Logger | str = "supervisor.events",
        *,
        levels: Mapping[type[Event] | str, int] | None = None,
    ) -> None:
        """Choose where to log.

        logger: a logger, or its name.  levels: other levels for some events, by class (with all below
        it) or label. Raises ValueError for an unknown label, TypeError for a level that is no int.
        """
        if not isinstance(logger, logging.Logger | str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"logger must be a Logger or a name, got {shown(logger)}")
        self.logger: logging.Logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._levels: dict[str, int] = {}
        for kind, level in (levels or {}).items():
            if isinstance(level, bool) or not isinstance(level, int):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"a level must be an int such as logging.WARNING, got {shown(level)}")
            self._levels |= dict.fromkeys(labels((kind,)) or (), level)

    def __call__(self, event: Event) -> None:
        """Log an event. Runs on the delivery thread."""
        level = self.level(event)
        if self.logger.isEnabledFor(level):
            message, values = _said(event)
            # What Logger.log does, but for the search of the stack for a caller, who would be this file.
            record = self.logger.makeRecord(
                self.logger.name, level, __file__, 0, message, tuple(values), None, None, _extra(event)
            )
            self.logger.handle(record)

    def level(self, event: Event) -> int:
        """Return the level at which an event is logged."""
        kind = event.kind
        if kind in self._levels:
            return self._levels[kind]
        if kind == "task_finished":
            return _OUTCOMES.get(getattr(event, "outcome", ""), logging.INFO)
        line = _LINES.get(kind)
        return logging.INFO if line is None else line.level


def _said(event: Event) -> tuple[str, list[object]]:
    """Return a template and what fills it: formatted only by a handler that shows it."""
    line = _LINES.get(event.kind)
    values: list[object]
    if line is None:  # of another layer
        names = [each.name for each in fields(event)[2:]]  # without seq and at
        message = " ".join([event.kind, *(f"{name}=%r" for name in names)])
        values = [getattr(event, name) for name in names]
        return message, values
    message, values = line.message, [attrgetter(name)(event) for name in line.names]
    if isinstance(event, GraceExceededEvent):
        values = [", ".join(repr(task.name) for task in event.stuck)]
    if line.reason is not None and (reason := attrgetter(line.reason)(event)) is not None:
        message += ": %s"
        values.append(reason)
    return message, values


def _extra(event: Event) -> dict[str, object]:
    # Prefixed, for logging refuses names of its own: "name", "message", "args" and others.
    return {f"supervisor_{name}": value for name, value in event.to_dict().items() if value is not None}
