"""The command `run` for a scheduler: its flows in the foreground, until it stops or a signal asks it to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from supervisor.cli.main import TASK_FAILED
from supervisor.cli.terminal import Terminal
from supervisor.cli.words import Line, Tone
from supervisor.flows.errors import StopTimeout
from supervisor.flows.running import RunningScheduler
from supervisor.flows.status import Backoff, Completed, FlowInfo, Idle, Running, Tripped
from supervisor.tasks.config import SupervisorConfig
from supervisor.tasks.spec import TaskSpec
from supervisor.tasks.supervisor import Supervisor

__all__ = ["flow_lines", "run_scheduler"]

_GRACE = 30.0  # seconds that runs have to end, as `RunningScheduler.stop` has it
_LOOK = 0.25  # seconds between two looks for a signal: its handler can do no more than note it
_SHOWN = 100  # flows of each sort that are told one by one


def run_scheduler(
    running: RunningScheduler, terminal: Terminal, grace: float | None, signals: Sequence[int]
) -> int:
    """Wait for a scheduler that was started; return the exit code. In the main thread.

    signals: the numbers of those that came, which grows.
    """
    failure: StopTimeout | None = None
    with Supervisor(SupervisorConfig(name="stop")) as stopper:
        flows, asked = running.list(), 0
        if all(info.next_fire is None and not info.run_count for info in flows):
            terminal.say([[("note: ", Tone.WARN), (_only_manual(flows), Tone.PLAIN)]])
        while not running.wait(_LOOK):
            while asked < len(signals):  # the first gives runs the grace, any other ends it at once
                limit = (_GRACE if grace is None else grace) if asked == 0 else 0.0
                asked += 1
                stopper.add(TaskSpec.once(f"stop {asked}", partial(_stop, running, limit)))
                if asked == 1:
                    _say_what_it_waits_for(running, terminal, limit)
        try:
            running.stop()
        except StopTimeout as error:
            failure = error
    terminal.say(flow_lines(running.list()))
    if failure is not None:
        terminal.say([[("error: ", Tone.BAD), (str(failure), Tone.PLAIN)]])
        return TASK_FAILED
    if signals:
        return 128 + signals[0]
    return TASK_FAILED if any(isinstance(info.status, Tripped) for info in running.list()) else 0


def flow_lines(flows: Sequence[FlowInfo]) -> list[Line]:
    """Return a line for each flow, in order of registration, and one for those that are too many."""
    lines: list[Line] = []
    told: Counter[bool] = Counter()
    counts: Counter[str] = Counter()
    for info in flows:
        tripped = isinstance(info.status, Tripped)
        told[tripped] += 1
        counts[_status(info)[0]] += 1
        if told[tripped] <= _SHOWN:
            lines.append(_line(info))
    if len(flows) > len(lines):
        all_of_them = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
        lines.append([(f"... and more, in all {all_of_them}", Tone.PLAIN)])
    return lines


def _stop(running: RunningScheduler, timeout: float) -> None:
    try:
        running.stop(timeout)
    except StopTimeout:
        pass  # the main thread gets it as well


def _only_manual(flows: Sequence[FlowInfo]) -> str:
    names = ", ".join(info.id for info in flows[:5]) + (", ..." if len(flows) > 5 else "")
    return f"nothing will trigger {names} (manual), unless the module does it on a thread of its own"


def _say_what_it_waits_for(running: RunningScheduler, terminal: Terminal, limit: float) -> None:
    busy = [info.id for info in running.list() if isinstance(info.status, Running)]
    if busy and limit:
        names = ", ".join(busy[:5]) + (", ..." if len(busy) > 5 else "")
        text = f"waiting up to {limit:g} s for {names}; another signal asks for an end at once"
        terminal.say([[(text, Tone.QUIET)]])


def _line(info: FlowInfo) -> Line:
    status, tone, reason = _status(info)
    runs = "" if info.run_count == 1 else f" after {info.run_count} runs" if info.run_count else ", never run"
    return [
        (f"{info.id}: ", Tone.PLAIN),
        (status, tone),
        (runs + (f": {reason}" if reason else ""), Tone.PLAIN),
    ]


def _status(info: FlowInfo) -> tuple[str, Tone, str]:
    """Return what a flow is, how that is meant, and why."""
    match info.status:
        case Completed():
            return "completed", Tone.GOOD, ""
        case Tripped(streak=streak, last_error=error):
            return "tripped", Tone.BAD, f"{_failures(streak)}: {_one_line(error)}"
        case Backoff(streak=streak, last_error=error):
            return "backoff", Tone.WARN, f"{_failures(streak)}: {_one_line(error)}"
        case Running():
            return "still running", Tone.BAD, ""
        case Idle():
            return "idle", Tone.PLAIN, ""


def _failures(streak: int) -> str:
    return "1 failure" if streak == 1 else f"{streak} failures in a row"


def _one_line(text: str) -> str:
    return text.rstrip().replace("\n", "\n    ")
