"""The account: every number in it comes from events, and each event changes what it should."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from supervisor import (
    BackoffPolicy,
    EventsDropped,
    Fatal,
    GraceExceeded,
    Jitter,
    OutcomeKind,
    Supervisor,
    SupervisorConfig,
    TaskContext,
    TaskSpec,
)
from supervisor.cli.account import Account, Row, State, fold
from supervisor.flows import RunningScheduler, Scheduler
from supervisor.kernel.event import Event
from supervisor.testing import VirtualClock

EXACT = BackoffPolicy(initial=1.0, jitter=Jitter.NONE)


class Watcher:
    """Keeps every state of the account."""

    def __init__(self) -> None:
        self.states = [Account()]

    def __call__(self, event: Event) -> None:
        self.states.append(fold(self.states[-1], event))

    @property
    def last(self) -> Account:
        return self.states[-1]

    def lines(self, task: str) -> list[str]:
        return [f"{entry.after:g} {entry.text}" for entry in self.last.entries if entry.task == task]


def watched(clock: VirtualClock, *specs: TaskSpec, seconds: float, grace: float = 60.0) -> Watcher:
    watcher = Watcher()
    supervisor = Supervisor(SupervisorConfig(grace=grace), subscribers=[watcher], clock=clock)
    supervisor.add_all(specs)
    clock.advance(seconds)
    try:
        supervisor.shutdown()
    except GraceExceeded:
        clock.advance(100.0)
    return watcher


def crash() -> None:
    raise RuntimeError("no luck")


def test_a_retried_task_is_told_attempt_by_attempt(clock: VirtualClock) -> None:
    spec = TaskSpec.restartable("worker", crash, backoff=EXACT, max_retries=2)
    watcher = watched(clock, spec, seconds=10.0)
    error = "RuntimeError: no luck (in crash, test_account.py:"
    assert [line.partition(error)[0] for line in watcher.lines("worker")] == [
        "0 added",
        "0 attempt 1 starts",
        "0 attempt 1 failed: ",
        "0 backoff of 1 s before attempt 2",
        "1 attempt 2 starts",
        "1 attempt 2 failed: ",
        "1 backoff of 2 s before attempt 3",
        "3 attempt 3 starts",
        "3 attempt 3 failed: ",
        "3 ended failed: retry limit reached after 2 of 2 retries: RuntimeError: no luck",
    ]
    row = watcher.last.rows["worker"]
    assert (row.attempt, row.retries, row.failures, row.timeouts, row.successes) == (3, 2, 3, 0, 0)
    assert (row.state, row.outcome) == (State.ENDED, OutcomeKind.FAILED)
    assert row.why == "retry limit reached after 2 of 2 retries: RuntimeError: no luck"


def test_a_calm_periodic_task_is_told_once_a_run(clock: VirtualClock) -> None:
    watcher = watched(clock, TaskSpec.periodic("scan", lambda: None, 2.0), seconds=5.0)
    assert watcher.lines("scan") == [
        "0 added",
        "0 attempt 1 starts",
        "0 attempt 1 succeeded in 0 ms",
        "2 attempt 2 succeeded in 0 ms",
        "4 attempt 3 succeeded in 0 ms",
        "5 ended canceled",
    ]
    row = watcher.last.rows["scan"]
    assert (row.attempt, row.retries, row.successes, row.why) == (3, 0, 3, "stopped by shutdown")


def test_a_timeout_is_no_failure_and_the_attempt_after_it_is_a_retry(clock: VirtualClock) -> None:
    def hang(ctx: TaskContext) -> None:
        ctx.wait()

    spec = TaskSpec.restartable("poll", hang, timeout=2.0, backoff=EXACT)
    watcher = watched(clock, spec, seconds=4.0)
    assert watcher.lines("poll") == [
        "0 added",
        "0 attempt 1 starts",
        "2 attempt 1 timed out after 2 s",
        "2 backoff of 1 s before attempt 2",
        "3 attempt 2 starts",
        "4 attempt 2 succeeded in 1 s",
        "4 ended canceled",
    ]
    row = watcher.last.rows["poll"]
    assert (row.attempt, row.retries, row.failures, row.timeouts) == (2, 1, 0, 1)


def test_a_body_that_ignores_its_deadline_is_told_as_late(clock: VirtualClock) -> None:
    def ignore() -> None:
        clock.latch().wait(15.0)

    spec = TaskSpec.restartable("late", ignore, timeout=1.0, backoff=EXACT)
    watcher = watched(clock, spec, seconds=15.5)
    assert [state.rows["late"].state for state in watcher.states if "late" in state.rows][:6] == [
        State.WAITING,
        State.RUNNING,
        State.LATE,
        State.LATE,
        State.LATE,
        State.BACKOFF,
    ]
    assert watcher.lines("late")[2:6] == [
        "1 attempt 1 timed out after 1 s",
        "11 attempt 1 still runs 10 s after its deadline",
        "15 attempt 1 ended 14 s after its deadline (returned)",
        "15 backoff of 1 s before attempt 2",
    ]


def test_rows_tell_when_a_wait_ends(clock: VirtualClock) -> None:
    began = clock.now()
    spec = TaskSpec.restartable("worker", crash, backoff=EXACT)
    watcher = watched(clock, spec, TaskSpec.periodic("scan", lambda: None, 7.0), seconds=2.0)
    waits = {
        (row.task, row.state, row.until)
        for state in watcher.states
        for row in state.rows.values()
        if row.until is not None
    }
    assert waits == {
        ("worker", State.BACKOFF, began + timedelta(seconds=1)),
        ("worker", State.BACKOFF, began + timedelta(seconds=3)),
        ("scan", State.IDLE, began + timedelta(seconds=7)),
    }


def test_the_end_of_the_whole_is_told_once(clock: VirtualClock) -> None:
    watcher = watched(clock, TaskSpec.once("a", lambda ctx: ctx.wait()), seconds=3.0)
    assert watcher.lines("") == ["3 every task is asked to stop", "3 every task has ended"]
    assert (watcher.last.stopping, watcher.last.ended) == (True, True)


def test_what_is_stuck_is_named(clock: VirtualClock) -> None:
    def ignore() -> None:
        clock.latch().wait(50.0)

    watcher = watched(clock, TaskSpec.once("deaf", ignore), seconds=1.0, grace=5.0)
    assert watcher.lines("")[1] == "6 the grace is over and these still run: deaf"
    row = watcher.last.rows["deaf"]
    assert row.outcome is OutcomeKind.FORCE_ABORTED
    assert "it is stuck at" in row.why


def test_news_are_the_entries_that_an_earlier_state_has_not(clock: VirtualClock) -> None:
    watcher = watched(clock, TaskSpec.restartable("worker", crash, backoff=EXACT), seconds=9.0)
    told = [entry for before, after in pairwise(watcher.states) for entry in after.news(before)]
    assert tuple(told) == watcher.last.entries
    assert watcher.last.news(watcher.last) == ()


def test_an_account_of_a_million_events_stays_small(clock: VirtualClock) -> None:
    account = Account()
    for seq in range(1, 1001):
        account = fold(account, EventsDropped(seq=seq, at=clock.now(), subscriber="slow", dropped=seq))
    assert (account.told, len(account.entries)) == (1000, 100)
    assert account.entries[-1].text == "1000 events were lost on the way to slow"


def test_an_outcome_that_says_it_all_needs_no_reason(clock: VirtualClock) -> None:
    def give_up() -> None:
        raise Fatal("the disk is gone")

    watcher = watched(clock, TaskSpec.once("good", lambda: 1), TaskSpec.once("bad", give_up), seconds=1.0)
    rows: list[Row] = list(watcher.last.rows.values())
    assert [(row.task, row.outcome, row.why) for row in rows] == [
        ("good", OutcomeKind.COMPLETED, ""),
        ("bad", OutcomeKind.FATAL, "the disk is gone"),
    ]


class Flow:
    """A plain function as a flow, that fails as long as it is broken."""

    def __init__(self, clock: VirtualClock, *, streak_limit: int | None = None, every: float = 2.0) -> None:
        self.clock = clock
        self.broken = True
        self.watcher = Watcher()
        self.supervisor = Supervisor(subscribers=[self.watcher], clock=clock)
        scheduler = Scheduler(supervisor=self.supervisor)
        scheduler.every("report", self.run, interval=every)
        scheduler.set_backoff("report", EXACT, streak_limit=streak_limit)
        self.running: RunningScheduler = scheduler.start()

    def run(self) -> None:
        self.clock.sleep(0.5)
        if self.broken:
            raise RuntimeError("no luck")

    @property
    def row(self) -> Row:
        return self.watcher.last.rows["report"]


def test_a_flow_that_trips_and_is_reset_is_told_run_by_run(clock: VirtualClock) -> None:
    flow = Flow(clock, streak_limit=2)
    clock.advance(5.0)
    assert (flow.row.state, flow.row.flow, flow.row.until) == (State.TRIPPED, True, None)
    flow.broken = False
    flow.running.reset_flow("report")
    clock.advance(3.0)
    began = flow.watcher.last.began
    assert began is not None
    assert (flow.row.state, flow.row.until) == (State.IDLE, began + timedelta(seconds=10))
    flow.supervisor.shutdown()
    error = "RuntimeError: no luck"
    assert [line.partition(error)[0] for line in flow.watcher.lines("report")] == [
        "0 scheduled",
        "0 run 1 starts",
        "0.5 run 1 failed: ",
        "0.5 backoff of 1 s before run 2",
        "2.5 run 2 starts",
        "3 run 2 failed: ",
        "3 tripped after 2 failures in a row: it waits for a reset",
        "5 reset: it may run again",
        "5 run 3 starts",
        "5.5 run 3 succeeded in 0.50 s",
        "8 run 4 succeeded in 0.50 s",
    ]
    row = flow.row
    assert (row.attempt, row.retries, row.successes, row.failures) == (4, 2, 2, 2)
    assert (row.state, row.outcome, row.why) == (
        State.ENDED,
        OutcomeKind.COMPLETED,
        "tripped once, reset once",
    )


def test_a_flow_ends_as_its_last_run_did(clock: VirtualClock) -> None:
    flow = Flow(clock, every=30.0)
    clock.advance(1.0)
    assert flow.row.state is State.BACKOFF
    flow.supervisor.shutdown()
    assert (flow.row.outcome, flow.row.why) == (OutcomeKind.FAILED, "")


def test_a_flow_that_never_ran_ends_canceled(clock: VirtualClock) -> None:
    watcher = Watcher()
    supervisor = Supervisor(subscribers=[watcher], clock=clock)
    scheduler = Scheduler(supervisor=supervisor)
    scheduler.cron("nightly", print, "0 3 * * *")
    scheduler.start()
    clock.advance(1.0)
    row = watcher.last.rows["nightly"]
    assert (row.state, row.until) == (State.IDLE, clock.now().replace(hour=3, minute=0, second=0))
    supervisor.shutdown()
    assert watcher.last.rows["nightly"].outcome is OutcomeKind.CANCELED
