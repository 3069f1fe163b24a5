"""A day of virtual time with two hundred mixed flows: every fire time as another calculation says.

That calculation is `Model`, a plain walk through the instants of one flow. It shares nothing with the
scheduler; ticks of cron come from the minute-by-minute oracle of the cron tests.
`SUPERVISOR_DAYS=50` lives through other days than the first.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from supervisor import BackoffPolicy
from supervisor.flows import (
    FlowAlreadyRunning,
    FlowRun,
    FlowTripped,
    Resources,
    Scheduler,
    Workflow,
)
from supervisor.testing import VirtualClock
from tests.flows.scheduling import S
from tests.kernel.cron_oracle import Schedule, Walk

DAY = 86400.0
NEAR = 1e-6  # seconds: the same instant
BEGINS = [  # each day has a night on which clocks change somewhere
    datetime(2026, 10, 24, 14, 0, 0, tzinfo=UTC),  # Berlin, London: back
    datetime(2026, 3, 28, 12, 0, 0, 250000, tzinfo=UTC),  # forward
    datetime(2026, 3, 8, 0, 0, 0, tzinfo=UTC),  # New York: forward
    datetime(2026, 10, 3, 6, 30, 0, tzinfo=UTC),  # Lord Howe: forward by half an hour
]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Europe/London"]
EXPRESSIONS = [
    "0 */20 * * * *",
    "0 0 * * * *",
    "0 30 2 * * *",
    "15 45 1-3 * * *",
    "30 */20 0-6 * * *",
    "0 0,30 2 * * *",
    "5 0 0 * * *",
    "0 */15 9-17 * * MON-FRI",
    "59 59 23 * * *",
    "0 15 2 * * SUN",
]


@dataclass(slots=True)
class Plan:
    """One flow: what it is, how each run goes, and what a driver does to it."""

    id: str
    kind: str  # every, cron, manual
    seed: int
    interval: float = 0.0
    expression: str = ""
    zone: str = "UTC"
    failing: float = 0.0  # part of the runs
    delay: tuple[float, float] = (1.0, 60.0)  # initial, max
    limit: int | None = None
    actions: list[tuple[float, str]] = field(default_factory=list)

    def run(self, number: int) -> tuple[float, bool]:
        """How long run `number` takes, from 1, and whether it fails."""
        draw = random.Random(self.seed * 100_003 + number)
        return draw.choice([0.0, 0.5, 2.5, 40.5, 700.5]), draw.random() < self.failing

    @property
    def policy(self) -> BackoffPolicy:
        return BackoffPolicy(initial=self.delay[0], multiplier=3.0, max_delay=self.delay[1], jitter=0.0)


class Model:
    """What one flow should do in a day, by a plain walk from instant to instant."""

    def __init__(self, plan: Plan, ticks: list[float]) -> None:
        self.plan = plan
        self.ticks = deque(ticks)  # of cron
        self.due: float | None = 0.0 if plan.kind == "every" else None  # of an interval
        self.ends: float | None = None  # of the run in progress
        self.fails = False
        self.last_end: float | None = None
        self.streak = self.skipped = 0
        self.window: float | None = None
        self.tripped = self.paused = False
        self.last = "Idle"
        self.starts: list[float] = []
        self.answers: list[str] = []

    def live(self) -> None:
        actions = deque(self.plan.actions)
        while True:
            tick = self.due if self.plan.kind == "every" else self.ticks[0] if self.ticks else None
            choices = [(self.ends, 0), (actions[0][0] if actions else None, 1), (tick, 2)]
            known = [(when, what) for when, what in choices if when is not None]
            if not known or min(known)[0] > DAY:
                return
            now, what = min(known)
            if what == 0:
                self.end(now)
            elif what == 1:
                self.act(actions.popleft()[1], now)
            else:
                self.tick(now)

    def end(self, now: float, *, canceled: bool = False) -> None:
        self.ends, self.last_end = None, now
        if canceled:
            self.last = "Idle"
        elif self.fails:
            self.streak += 1
            if self.plan.limit is not None and self.streak >= self.plan.limit:
                self.tripped, self.window, self.last = True, None, "Tripped"
            else:
                first, longest = self.plan.delay
                self.window = now + min(first * 3.0 ** (self.streak - 1), longest)
                self.last = "Backoff"
        else:
            self.streak, self.window, self.last = 0, None, "Completed"
        self.plan_next(now)

    def plan_next(self, now: float) -> None:
        if self.plan.kind == "every" and self.ends is None:
            due = 0.0 if self.last_end is None else self.last_end + self.plan.interval
            self.due = max(due, self.window or 0.0, now)

    def tick(self, now: float) -> None:
        if self.plan.kind == "cron":
            self.ticks.popleft()
        in_window = self.window is not None and self.window > now + NEAR
        if self.ends is not None or self.paused or self.tripped or in_window:
            self.skipped += 1
            if self.plan.kind == "every":
                self.due = now + self.plan.interval
        else:
            self.begin(now)

    def begin(self, now: float) -> None:
        self.starts.append(now)
        takes, self.fails = self.plan.run(len(self.starts))
        self.ends, self.due = now + takes, None

    def act(self, action: str, now: float) -> None:
        if action == "trigger":
            if self.ends is not None:
                self.answers.append("running")
            elif self.tripped:
                self.answers.append("tripped")
            else:
                self.answers.append("accepted")
                self.begin(now)
        elif action == "reset":
            self.streak, self.window, self.tripped, self.last = 0, None, False, "Idle"
            self.plan_next(now)
        elif action == "pause":
            self.paused = True
        elif action == "resume":
            if self.paused:
                self.paused = False
                self.plan_next(now)
        elif self.ends is not None:
            self.end(now, canceled=True)


def plans_of(draw: random.Random) -> list[Plan]:
    """Two hundred flows, and a driver that acts at instants of its own."""
    plans: list[Plan] = []
    for number in range(200):
        kind = ("every", "cron", "manual", "every", "cron")[number % 5]
        plan = Plan(f"{kind}-{number}", kind, draw.randrange(10**9))
        plan.interval = draw.choice([900.0, 1333.25, 3600.0, 7200.0])
        plan.expression, plan.zone = draw.choice(EXPRESSIONS), draw.choice(ZONES)
        plan.failing = draw.choice([0.0, 0.0, 0.2, 0.7, 1.0])
        plan.delay = draw.choice([(1.0, 60.0), (599.5, 5000.0), (20.0, 20.0)])
        plan.limit = draw.choice([None, None, 1, 3])
        weights = [8, 2, 1, 1, 1] if kind == "manual" else [2, 2, 1, 1, 1]
        count = draw.randrange(30) if kind == "manual" else draw.randrange(12)
        names = draw.choices(["trigger", "reset", "pause", "resume", "cancel"], weights, k=count)
        when = sorted(draw.sample(range(int(DAY)), count))  # no instant of a tick or of the end of a run
        plan.actions = [(second + 0.137, name) for second, name in zip(when, names, strict=True)]
        plans.append(plan)
    return plans


@pytest.mark.parametrize("day", range(int(os.environ.get("SUPERVISOR_DAYS", "1"))))
def test_every_fire_time_of_a_day_is_as_calculated(day: int) -> None:
    begin = BEGINS[day % len(BEGINS)]
    plans = plans_of(random.Random(day))
    clock = VirtualClock(start=begin)
    starts: dict[str, list[float]] = {plan.id: [] for plan in plans}
    answers: dict[str, list[str]] = {plan.id: [] for plan in plans}
    scheduler = Scheduler(clock=clock)

    def body(plan: Plan) -> Callable[[Resources, FlowRun], S]:
        def run(res: Resources, run: FlowRun) -> S:
            starts[plan.id].append(clock.monotonic())
            takes, fails = plan.run(len(starts[plan.id]))
            if takes:
                run.token.wait(takes)
            run.token.check()
            if fails:
                raise ValueError("as planned")
            return S.DONE

        return run

    for plan in plans:
        flow = body(plan)
        workflow = Workflow().register(S.WORK, flow).add_exit_state(S.DONE)
        target, initial = (flow, None) if plan.seed % 2 else (workflow, S.WORK)
        if plan.kind == "every":
            scheduler.every(plan.id, target, initial, plan.interval)
        elif plan.kind == "cron":
            scheduler.cron(plan.id, target, initial, plan.expression, tz=plan.zone)
        else:
            scheduler.manual(plan.id, target, initial)
        scheduler.set_backoff(plan.id, plan.policy, streak_limit=plan.limit)
    running = scheduler.start()

    calls = {
        "reset": running.reset_flow,
        "pause": running.pause,
        "resume": running.resume,
        "cancel": running.cancel_flow,
    }

    def act(plan: Plan, action: str) -> None:
        if action != "trigger":
            calls[action](plan.id)
            return
        try:
            running.trigger(plan.id)
            answers[plan.id].append("accepted")
        except FlowAlreadyRunning:
            answers[plan.id].append("running")
        except FlowTripped:
            answers[plan.id].append("tripped")

    def drive() -> None:
        everything = sorted(
            (when, number, action) for number, plan in enumerate(plans) for when, action in plan.actions
        )
        for when, number, action in everything:
            clock.sleep(max(0.0, when - clock.monotonic()))
            act(plans[number], action)

    driver = clock.spawn(drive, "driver")
    clock.advance(DAY)
    driver.join(0)
    infos = {info.id: info for info in running.list()}
    running.stop(timeout=1000.0)

    walks = {
        zone: Walk(ZoneInfo(zone), _minute(begin), begin + timedelta(days=1, minutes=1)) for zone in ZONES
    }
    fires = 0
    for plan in plans:
        ticks: list[float] = []
        if plan.kind == "cron":
            found = walks[plan.zone].fires(Schedule(plan.expression))
            ticks = [(tick - begin).total_seconds() for tick in found if tick > begin]
        model = Model(plan, ticks)
        model.live()
        info = infos[plan.id]
        words = f"{plan}\n{info}"
        happened = [round(each, 6) for each in starts[plan.id] if each <= DAY]
        assert happened == [round(each, 6) for each in model.starts], words
        assert answers[plan.id] == model.answers, words
        assert (info.run_count, info.skipped) == (len(model.starts), model.skipped), words
        assert (info.failure_streak, info.paused) == (model.streak, model.paused), words
        assert type(info.status).__name__ == ("Running" if model.ends is not None else model.last), words
        fires += len(happened)
    assert fires > 2000
    assert {type(info.status).__name__ for info in infos.values()} >= {
        "Completed",
        "Backoff",
        "Tripped",
        "Idle",
    }


def _minute(instant: datetime) -> datetime:
    return instant.replace(second=0, microsecond=0)
