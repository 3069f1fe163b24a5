"""Worker processes are killed again and again, and afterwards nothing is missing, doubled or stuck.

    python -m tests.durable.kill_loop --store sqlite:/tmp/flows.db --kills 200

Several processes serve one store. Each is killed (SIGKILL) at a random moment of its life, or dies by itself
before, in or after one of its own writes, and is started again. Meanwhile clients submit runs, send signals,
cancel, and wait for results. Steps and writes are noted in a log, one `os.write` a line, with the monotonic time
that all processes of a machine share. Then the log and the histories are compared, see `Verdict`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

from supervisor import Canceled
from supervisor.durable import (
    FlowEngine,
    FlowRuntime,
    RetryPolicy,
    RunTerminal,
    StepInvocation,
    StoreError,
    open_store,
)
from supervisor.durable.history import Envelope, RunCreated, StepCompleted, StepCreated, StepStarted
from supervisor.durable.projection import Projection

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("line", "fan", "stubborn", "nap", "letter", "stopped")
PATIENCE = 45.0  # seconds for one run to end
WRITES = ("enqueue", "lease", "heartbeat", "ack", "release", "reclaim_expired")  # of a queue

Note = Callable[..., None]


# -- the log -----------------------------------------------------------------------------------


class Log:
    """Lines of JSON in a file that any number of processes append to."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, what: str, **more: Any) -> None:
        line = {"what": what, "pid": os.getpid(), "at": time.monotonic_ns(), **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read_log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- what is run -------------------------------------------------------------------------------


def workflows(flows: FlowRuntime) -> None:
    """Register one workflow for each way in which a run can go on. Each adds up what its steps return."""

    @flows.workflow
    def line(ctx, n):
        for number in range(5):
            n = ctx.step(f"s{number}", "add", n)["value"]
        return n

    @flows.workflow
    def fan(ctx, n):
        found = ctx.gather([ctx.call(f"g{number}", "add", n + number) for number in range(3)])
        return sum(each["value"] for each in found)

    @flows.workflow
    def stubborn(ctx, n):
        return ctx.step("hard", "third_time", n, retry=RetryPolicy.fixed(4, 0.1))["value"]

    @flows.workflow
    def nap(ctx, n):
        n = ctx.step("before", "add", n)["value"]
        ctx.sleep("nap", 0.3)
        return ctx.step("after", "add", n)["value"]

    @flows.workflow
    def letter(ctx, n):
        n = ctx.step("before", "add", n)["value"]
        n += ctx.wait_signal("letter", "letter")
        return ctx.step("after", "add", n)["value"]

    @flows.workflow
    def stopped(ctx, n):
        try:
            for number in range(20):
                ctx.step(f"s{number}", "add", number)
            ctx.wait_signal("never", "never")
        except Canceled:
            ctx.gather([ctx.call("undo-1", "add", n), ctx.call("undo-2", "add", n)])
            raise


EXPECTED: dict[str, Callable[[int], int | None]] = {
    "line": lambda n: n + 5,
    "fan": lambda n: 3 * n + 6,
    "stubborn": lambda n: n + 1,
    "nap": lambda n: n + 2,
    "letter": lambda n: n + 12,
    "stopped": lambda n: None,  # it is cancelled
}


def steps(flows: FlowRuntime, log: Log, seed: int) -> None:
    """Register the steps: each notes when it begins and when its effect is done."""
    chance = random.Random(seed)

    def effect(n: int, invocation: StepInvocation) -> dict[str, Any]:
        who = {"run": invocation.run_id, "step": invocation.step_id, "attempt": invocation.attempt}
        log.note("start", **who)
        invocation.token.sleep(chance.choice((0.0, 0.005, 0.03, 0.1)))
        mark = uuid4().hex
        log.note("end", mark=mark, **who)
        return {"value": n + 1, "mark": mark}

    @flows.step
    def add(n: int, invocation: StepInvocation) -> dict[str, Any]:
        return effect(n, invocation)

    @flows.step
    def third_time(n: int, invocation: StepInvocation) -> dict[str, Any]:
        done = effect(n, invocation)
        if invocation.attempt < 3:
            raise ValueError(f"attempt {invocation.attempt} fails")
        return done


def open_place(place: str) -> Any:
    """Open the store of an address, or of a dsn in the other form that libpq knows."""
    if ":" in place.partition("=")[0]:
        return open_store(place)
    from supervisor.durable.stores.postgres import PostgresEventStore

    return PostgresEventStore(place)


def open_patiently(url: str) -> Any:
    """Open a store whose server may be down for a moment: a store that is opened fails at once without one."""
    end = time.monotonic() + 20.0
    while True:
        try:
            return open_place(url)
        except StoreError:
            if time.monotonic() > end:
                raise
            select.select([], [], [], 0.1)


def witness(store: Any, log: Log) -> None:
    """Note every append after it was acknowledged: from then on it must be there."""
    append = store.append

    def witnessed(*arguments: Any) -> list[Envelope]:
        stored: list[Envelope] = append(*arguments)
        log.note("stored", run=stored[0].run_id, events=[[each.sequence, each.event_id] for each in stored])
        return stored

    store.append = witnessed


# -- a worker process --------------------------------------------------------------------------


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def burn(owner: Any, names: tuple[str, ...], fuse: int, side: str, log: Log) -> None:
    """Die before, during or after call number `fuse` of the methods."""
    calls, lock = 0, threading.Lock()

    def tapped(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            with lock:
                calls += 1
                mine = calls == fuse
            if not mine:
                return inner(*arguments, **options)
            if side == "before":
                die()
            if side == "during":
                threading.Timer(random.uniform(0.0, 0.003), die).start()
            result = inner(*arguments, **options)
            if side == "after":
                die()
            return result

        return call

    for name in names:
        setattr(owner, name, tapped(getattr(owner, name)))


def work(options: argparse.Namespace) -> None:
    """Serve until stdin ends: so a worker that nobody kills ends with its parent."""
    log = Log(options.log)
    store = open_patiently(options.store)
    if options.fuse and options.where == "store":
        burn(store, ("append",), options.fuse, options.side, log)
    witness(store, log)
    flows = FlowRuntime()
    workflows(flows)
    steps(flows, log, options.seed)
    with FlowEngine(flows, store) as engine:
        if options.fuse and options.where == "queue":
            burn(engine.queue, WRITES, options.fuse, options.side, log)
        with engine.serve(workers=options.threads, poll=0.2, lease_seconds=options.lease, grace=10.0):
            sys.stdin.read()
    store.close()
    log.close()


# -- the parent --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do."""

    store: str  # address
    folder: Path  # for the log, and what workers say
    kills: int
    workers: int = 3  # processes
    threads: int = 4  # in each
    clients: int = 12  # runs that are under way at once
    lease: float = 1.0  # seconds
    seed: int = 0
    stalls: float = (
        0.0  # share of those killed by the clock that first stand still for longer than their leases
    )
    interlude: Callable[[], None] | None = None  # called once, in the middle, on the thread of the caller
    runs: int = 0  # at least so many


@dataclass(kw_only=True)
class Verdict:
    """What was found. `problems` is empty if all is well."""

    runs: Counter[str] = field(default_factory=Counter)  # by kind
    kills: Counter[str] = field(default_factory=Counter)  # by moment
    seconds: float = 0.0
    events: int = 0
    starts: int = 0  # of step bodies
    redelivered: int = 0  # attempts whose body began more than once
    overlapping: int = 0  # attempts that ran twice at once
    completed: int = 0  # steps with a recorded completion
    unwitnessed: int = 0  # of them, those whose writer died before it could say so
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{sum(self.kills.values())} kills in {self.seconds:.1f} s: {dict(sorted(self.kills.items()))}",
                f"{sum(self.runs.values())} runs: {dict(sorted(self.runs.items()))}",
                f"{self.events} events, {self.completed} completed steps ({self.unwitnessed} whose writer died before "
                f"it could say so), {self.starts} bodies begun, {self.redelivered} attempts begun more than once, "
                f"{self.overlapping} of them at once",
                f"{len(self.problems)} problems",
                *self.problems[:40],
            ]
        )


class KillLoop:
    """The parent: keeps workers alive by starting them anew, kills them, and is the client of all runs."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._log = Log(plan.folder / "log")
        self._lock = threading.Lock()  # guards the fields below
        self._left = plan.kills
        self._verdict = Verdict()
        self._submitted: dict[str, str] = {}  # kind by run
        self._stalled: set[int] = set()  # ids of processes
        self._killed_enough = threading.Event()
        self._half = threading.Event()
        if plan.kills == 0:
            self._killed_enough.set()

    def run(self) -> Verdict:
        """Do it all, and judge."""
        plan, began = self.plan, time.monotonic()
        store = open_place(plan.store)
        witness(store, self._log)
        flows = FlowRuntime()
        workflows(flows)  # but no steps: the parent never runs one
        with FlowEngine(flows, store) as engine, ThreadPoolExecutor(plan.workers + plan.clients) as pool:
            stop = threading.Event()
            slots = [pool.submit(self._keep_alive, number, stop) for number in range(plan.workers)]
            clients = [pool.submit(self._client, number, engine) for number in range(plan.clients)]
            try:
                if plan.interlude is not None:
                    self._half.wait(PATIENCE)
                    plan.interlude()
                for each in clients:
                    each.result()
            finally:
                self._killed_enough.set()
                stop.set()
                for each in slots:
                    each.result()
            self._verdict.seconds = time.monotonic() - began
            self._judge(engine)
        store.close()
        self._log.close()
        return self._verdict

    # Killing

    def _keep_alive(self, number: int, stop: threading.Event) -> None:
        chance = random.Random(f"{self.plan.seed} worker {number}")
        life = 0
        while True:
            life += 1
            with self._lock:
                to_be_killed, self._left = self._left > 0, max(0, self._left - 1)
            said = self.plan.folder / f"worker-{number}-{life}"
            how = self._how(chance) if to_be_killed else {}
            with said.open("wb") as errors:
                process = self._start(chance, errors, how)
                assert process.stdin is not None
                if not to_be_killed:
                    stop.wait()
                    process.stdin.close()
                    if code := process.wait(PATIENCE):
                        self._problem(
                            f"a worker that was stopped ended with {code}: {said.read_text()[-2000:]}"
                        )
                    self._read(said)
                    return
                self._kill(process, chance, how)
                process.stdin.close()
            self._read(said)

    def _how(self, chance: random.Random) -> dict[str, Any]:
        """Draw the moment of death: by the clock, or at a write."""
        if chance.random() < 0.4:
            return {}
        where = chance.choice(("store", "store", "queue"))
        return {
            "where": where,
            "side": chance.choice(("before", "during", "after")),
            "fuse": chance.randint(1, 25 if where == "store" else 40),
        }

    def _start(self, chance: random.Random, errors: Any, how: dict[str, Any]) -> subprocess.Popen[bytes]:
        plan = self.plan
        options = {
            "store": plan.store,
            "log": plan.folder / "log",
            "threads": plan.threads,
            "lease": plan.lease,
            "seed": chance.getrandbits(32),
            **how,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "tests.durable.kill_loop", "work"]
            + [part for name, value in options.items() for part in (f"--{name}", str(value))],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stderr=errors,
        )

    def _kill(self, process: subprocess.Popen[bytes], chance: random.Random, how: dict[str, Any]) -> None:
        moment = "by the clock"
        if how:
            try:
                process.wait(4.0)
                moment = f"{how['side']} a write of the {how['where']}"
            except subprocess.TimeoutExpired:
                moment = "by the clock, late"
        else:
            # Real time: the moment is what is drawn. From the start of the interpreter on, so that some die in
            # the middle of opening the store, or of recovering.
            try:
                process.wait(chance.choice((0.3, 0.8, 1.6)) * chance.uniform(0.3, 1.2))
            except subprocess.TimeoutExpired:
                pass
            if chance.random() < self.plan.stalls and process.poll() is None:
                moment = "by the clock, after a stall"
                self._stall(process)
        process.kill()
        if (code := process.wait()) != -signal.SIGKILL:
            self._problem(f"a worker ended by itself with {code}")
        with self._lock:
            self._verdict.kills[moment] += 1
            done = sum(self._verdict.kills.values())
        if done >= self.plan.kills // 2:
            self._half.set()
        if done >= self.plan.kills:
            self._killed_enough.set()

    def _stall(self, process: subprocess.Popen[bytes]) -> None:
        """Let it stand still until others have its runs, then go on with what it believes for a while."""
        with self._lock:
            self._stalled.add(process.pid)
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5 * self.plan.lease)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            pass

    def _read(self, said: Path) -> None:
        text = said.read_text()
        if "Traceback" in text or "fault" in text:
            self._problem(f"a worker said: {text[-3000:]}")

    # Asking

    def _client(self, number: int, engine: FlowEngine) -> None:
        chance = random.Random(f"{self.plan.seed} client {number}")
        done = 0
        while not self._killed_enough.is_set() or done * self.plan.clients < self.plan.runs:
            done += 1
            kind, n = KINDS[(number + done) % len(KINDS)], chance.randint(0, 1000)
            run_id = f"{kind}-{number}-{done}"
            with self._lock:
                self._submitted[run_id] = kind
                self._verdict.runs[kind] += 1
            try:
                found = self._one(engine, chance, kind, run_id, n)
            except Exception as error:
                self._problem(f"run {run_id}: {type(error).__name__}: {error}")
                return
            if found != EXPECTED[kind](n):
                self._problem(f"run {run_id} of {n} ended with {found!r}")

    def _one(self, engine: FlowEngine, chance: random.Random, kind: str, run_id: str, n: int) -> Any:
        if chance.random() < 0.1:  # as if the client had died in `submit`: who recovers next finds it
            created = RunCreated({"name": kind, "version": "1"}, n)
            self._insist(lambda: engine.append(run_id, 0, [created], engine.clock.now()))
            if self._killed_enough.is_set():
                engine.recover()
        else:
            self._insist(lambda: engine.submit(kind, n, run_id=run_id))
        if kind in ("letter", "stopped"):
            time.sleep(chance.choice((0.0, 0.1, 0.5)))  # so that it comes at any point of the run
        if kind == "letter":
            for _ in range(chance.choice((1, 2))):  # the same signal twice is one
                self._insist(lambda: engine.signal(run_id, "letter", 10, signal_id=f"signal-of-{run_id}"))
        if kind == "stopped":
            self._insist(lambda: engine.cancel(run_id, "enough"))
        try:
            return self._insist(lambda: engine.result(run_id, timeout=PATIENCE))
        except Canceled:
            return None

    def _insist(self, call: Callable[[], Any]) -> Any:
        """A server that is away comes back."""
        for _ in range(20):
            try:
                return call()
            except RunTerminal:  # it was done, and the answer was lost
                return None
            except StoreError:
                time.sleep(0.5)
        return call()

    def _problem(self, text: str) -> None:
        with self._lock:
            self._verdict.problems.append(text)

    # Judging

    def _judge(self, engine: FlowEngine) -> None:
        verdict, lines = self._verdict, read_log(self.plan.folder / "log")
        histories = {run_id: engine.history(run_id) for run_id in engine.store.list_run_ids()}
        if set(histories) != set(self._submitted):
            self._problem(f"runs differ from those submitted: {set(histories) ^ set(self._submitted)}")
        ids = Counter(each.event_id for history in histories.values() for each in history)
        for event_id, times in ids.items():
            if times > 1:
                self._problem(f"event id {event_id} occurs {times} times")
        by_run: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for line in lines:
            by_run[line["run"]].append(line)
        for run_id, history in histories.items():
            for text in judge_run(history, by_run[run_id], verdict, self._stalled):
                self._problem(f"run {run_id}: {text}")
            verdict.events += len(history)
        queue = engine.queue
        if queue.pending() or queue.seconds_to_next() is not None:
            self._problem(
                f"the queue is not empty: {queue.pending()} in line, next {queue.seconds_to_next()}"
            )
        for letter in queue.dead_letters():
            self._problem(f"dead letter: {letter}")
        for failure in engine.failures():
            self._problem(f"marked: {failure}")
        if wakeup := engine.next_wakeup():
            self._problem(f"a wakeup is left: {wakeup}")


def judge_run(
    history: list[Envelope],
    lines: list[dict[str, Any]],
    verdict: Verdict,
    stalled: Collection[int] = (),
) -> list[str]:
    """Compare one history with what its steps and its writers noted.

    stalled: processes that stood still for longer than their leases. Such a one may have been stopped between
    its last look and the body of a step, which it then begins although others have completed it: no library
    can prevent that, only see to it that the result does not count.
    """
    problems: list[str] = []
    if [each.sequence for each in history] != list(range(1, len(history) + 1)):
        problems.append(f"sequences {[each.sequence for each in history]}")
    run = Projection.of(history[0].run_id, history)  # raises if the history is not legal
    if not run.terminal:
        problems.append(f"it is {run.status}")
    if any(step.status not in ("completed", "failed", "cancelled") for step in run.steps.values()):
        problems.append("it has ended with open steps")

    # What was acknowledged is there, unchanged.
    place = {each.event_id: each.sequence for each in history}
    stored = [line for line in lines if line["what"] == "stored"]
    for line in stored:
        for sequence, event_id in line["events"]:
            if place.get(event_id) != sequence:
                problems.append(f"event {sequence} was acknowledged and is not there")

    # Each step is created once, each attempt started once, completed once at most.
    for kind in (StepCreated, StepStarted, StepCompleted):
        many = Counter(
            (each.event.step_id, getattr(each.event, "attempt", 0))
            for each in history
            if isinstance(each.event, kind)
        )
        problems += [f"{kind.__name__} of {key} {times} times" for key, times in many.items() if times > 1]
    begun = {
        (each.event.step_id, each.event.attempt): each.sequence
        for each in history
        if isinstance(each.event, StepStarted)
    }
    bodies: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        if line["what"] in ("start", "end"):
            bodies[line["step"], line["attempt"]].append(line)
    for key, found in bodies.items():
        starts = [line["at"] for line in found if line["what"] == "start"]
        verdict.starts += len(starts)
        verdict.redelivered += len(starts) > 1
        verdict.overlapping += _overlap(found)
        if key not in begun:
            problems.append(f"the body of {key} ran, and its start is not recorded")

    # What is completed was done, and is not begun again once its completion is durable. A write that was
    # noted has been durable before; and so has everything in front of it.
    for each in history:
        if not isinstance(each.event, StepCompleted):
            continue
        step_id = each.event.step_id
        attempt = run.steps[step_id].attempt
        verdict.completed += 1
        verdict.unwitnessed += not any(each.event_id == id for line in stored for _, id in line["events"])
        found = bodies[step_id, attempt]
        if each.event.output["mark"] not in [line.get("mark") for line in found]:
            problems.append(f"step {step_id} is completed with what none of its bodies returned")
        durable = min((line["at"] for line in stored if line["events"][-1][0] >= each.sequence), default=None)
        late = [
            line
            for (other, _), more in bodies.items()
            for line in more
            if other == step_id
            and line["what"] == "start"
            and durable is not None
            and line["at"] > durable
            and line["pid"] not in stalled
        ]
        if late:
            problems.append(
                f"step {step_id} began again after it was completed: {late}, durable at {durable}"
            )
    return problems


def _overlap(lines: list[dict[str, Any]]) -> bool:
    """Whether two processes were in one body at once, as far as both came to its end."""
    spans: list[tuple[int, int]] = []
    for start in (line for line in lines if line["what"] == "start"):
        ends = [
            line["at"]
            for line in lines
            if line["what"] == "end" and line["pid"] == start["pid"] and line["at"] > start["at"]
        ]
        if ends:
            spans.append((start["at"], min(ends)))
    return any(later[0] < earlier[1] for earlier, later in pairwise(sorted(spans)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", default="kill", choices=("kill", "work"))
    parser.add_argument("--store", required=True)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--lease", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stalls", type=float, default=0.0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--fuse", type=int, default=0)
    parser.add_argument("--where", default="store")
    parser.add_argument("--side", default="before")
    options = parser.parse_args()
    if options.what == "work":
        work(options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(
            store=options.store,
            folder=Path(folder),
            kills=options.kills,
            workers=options.workers,
            threads=options.threads,
            clients=options.clients,
            lease=options.lease,
            seed=options.seed,
            stalls=options.stalls,
        )
        verdict = KillLoop(plan).run()
    print(verdict)
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
