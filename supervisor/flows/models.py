"""Ready-made flow tasks: process a batch, poll until something is there, wait."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, final

from supervisor.flows.errors import ConfigurationError
from supervisor.flows.join import BranchResult, JoinConfig, JoinStrategy
from supervisor.flows.split import run_split
from supervisor.flows.task import FlowRun, FlowTask, body_of, check_call
from supervisor.kernel.arguments import callable_name, count, instant, seconds
from supervisor.kernel.text import shown

if TYPE_CHECKING:
    from supervisor.flows.resources import Resources

__all__ = ["Pending", "Ready", "batch", "poll", "timer"]


@final
@dataclass(frozen=True, slots=True)
class Ready:
    """What was polled for is there: go on."""

    state: Hashable


@final
@dataclass(frozen=True, slots=True)
class Pending:
    """Not yet: ask again after a while."""

    delay: float | timedelta  # seconds


def poll(fn: Callable[..., Ready | Pending]) -> Callable[[Resources, FlowRun], Hashable]:
    """Return a task that calls `fn(res)` until it gives `Ready(state)`, pausing as `Pending` says.

    The pauses end with the run's cancellation and with the timeout of the task.
    """
    try:
        body, takes = body_of(fn, "poll")
    except TypeError as error:
        raise ConfigurationError(str(error)) from None

    def polling(res: Resources, run: FlowRun) -> Hashable:
        while True:
            answer = body(*(res, run)[:takes])
            if isinstance(answer, Ready):
                return answer.state
            if not isinstance(answer, Pending):
                raise TypeError(f"a poll gives Ready(state) or Pending(delay), got {shown(answer)}")
            run.token.sleep(seconds(answer.delay, "delay"))

    return _named(polling, fn)


def timer(
    delay_or_instant: float | timedelta | datetime, next_state: Hashable
) -> Callable[[Resources, FlowRun], Hashable]:
    """Return a task that waits, for seconds or until an aware instant, and goes on to `next_state`."""
    try:
        until = instant(delay_or_instant, "instant") if isinstance(delay_or_instant, datetime) else None
        delay = 0.0 if until is not None else seconds(delay_or_instant, "delay")
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"timer: {error}") from None

    def waiting(res: Resources, run: FlowRun) -> Hashable:
        if until is None:
            run.token.sleep(delay)
        else:
            run.wait_until(until)
        return next_state

    return waiting


def batch(
    load: Callable[..., Iterable[Any]],
    process: Callable[[Any], Any],
    finish: Callable[..., Hashable],
    *,
    concurrency: int = 1,
    max_retries: int = 0,
) -> Callable[[Resources, FlowRun], Hashable]:
    """Return a task that loads items, processes each, and decides with all results what comes next.

    load: `load(res)` gives the items.  process: `process(item)`, on at most `concurrency` threads
    at once, with `max_retries` for each item.  finish: `finish(res, results)` gets a `BranchResult`
    for each item, in the order of the items, and returns the next state.
    """
    for fn, name, given in ((load, "load", 1), (process, "process", 1), (finish, "finish", 2)):
        check_call(fn, f"batch: {name}", given)
    try:
        threads = count(concurrency, "batch: concurrency")
        count(max_retries, "batch: max_retries", 0)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(str(error)) from None

    def processing(res: Resources, run: FlowRun) -> Hashable:
        items = list(load(res))
        results: Sequence[BranchResult] = ()
        if items:
            tasks = [
                FlowTask(_bound(process, item), what="batch", max_retries=max_retries, name=f"item {index}")
                for index, item in enumerate(items)
            ]
            everything = JoinConfig(JoinStrategy.partial(len(items)), None, bulkhead=threads)
            results = run_split(tasks, everything, res, run, run.token).branches
        return finish(res, results)

    return _named(processing, process)


def _bound(process: Callable[[Any], Any], item: Any) -> Callable[[], Any]:
    return lambda: process(item)


def _named(
    task: Callable[[Resources, FlowRun], Hashable], fn: object
) -> Callable[[Resources, FlowRun], Hashable]:
    task.__name__ = task.__qualname__ = callable_name(fn)
    return task
