"""Two hosts on one PostgreSQL, one of them cut off in the middle of a step. Real processes, real time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.durable import FlowEngine, FlowRuntime
from supervisor.durable.stores.postgres import PostgresEventStore
from tests.durable.cut_off import CutOffLine
from tests.programs import ROOT

LIMIT = 30.0  # seconds, for each thing that is waited for

# Arguments: its name, a dsn. Prints a line when a body begins; each waits for a line on stdin. Ends with stdin.
HOST = """
import sys, threading
from supervisor.durable import FlowEngine, FlowRuntime
from supervisor.durable.stores.postgres import PostgresEventStore

name, dsn = sys.argv[1:]
flows, lines = FlowRuntime(), threading.Semaphore(0)

@flows.step
def work(input, invocation):
    print("began", invocation.run_id, invocation.attempt, flush=True)
    lines.acquire(timeout=60)
    return name

@flows.workflow
def one(ctx):
    return ctx.step("s", work)

store = PostgresEventStore(dsn)
with FlowEngine(flows, store) as engine, engine.serve(workers=2, poll=0.1, lease_seconds=1.0):
    for _ in sys.stdin:
        lines.release()
store.close()
print("ended", flush=True)
"""


class Host:
    """A process that serves."""

    def __init__(self, name: str, dsn: str, errors: Path) -> None:
        self._errors = errors
        with errors.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", HOST, name, dsn],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                bufsize=1,
            )

    def says(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def lets_a_body_end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")

    def stops(self) -> str:
        """Stop it in order; what it wrote to stderr."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self.says() == "ended"
        assert self._process.wait(LIMIT) == 0
        return self._errors.read_text()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for each in (self._process.stdin, self._process.stdout):
            assert each is not None
            each.close()


@pytest.fixture
def line(pg_of_our_own: str) -> Iterator[CutOffLine]:
    made = CutOffLine(pg_of_our_own)
    yield made
    made.close()


@pytest.fixture
def outside(pg_of_our_own: str) -> Iterator[FlowEngine]:
    """A client that runs nothing itself."""
    flows = FlowRuntime()
    flows.workflow(lambda ctx: ctx.step("s", "work"), name="one")
    store = PostgresEventStore(pg_of_our_own)
    with FlowEngine(flows, store) as engine:
        yield engine
    store.close()


@pytest.fixture
def far(line: CutOffLine, outside: FlowEngine, tmp_path: Path) -> Iterator[Host]:
    """The host that is going to be cut off; it has begun the step of run r1."""
    host = Host("far", line.dsn, tmp_path / "far")
    outside.submit("one", run_id="r1")
    assert host.says() == "began r1 1"
    yield host
    host.kill()


@pytest.fixture
def near(pg_of_our_own: str, tmp_path: Path) -> Iterator[Host]:
    host = Host("near", pg_of_our_own, tmp_path / "near")
    yield host
    host.kill()


def check(engine: FlowEngine) -> None:
    """The step of r1 was started once, completed once, and nothing is left."""
    history = engine.history("r1")
    assert [each.sequence for each in history] == [1, 2, 3, 4, 5, 6]
    assert [each.event.type for each in history] == [
        "run_created",
        "run_started",
        "step_created",
        "step_started",
        "step_completed",
        "run_completed",
    ]
    queue = engine.queue
    assert (queue.seconds_to_next(), queue.dead_letters(), engine.failures()) == (None, [], [])


@pytest.mark.slow
@pytest.mark.parametrize("lost", [True, False], ids=["its-connections-are-lost", "what-it-wrote-comes-late"])
def test_the_other_host_takes_over_after_the_lease_and_the_stale_result_is_refused(
    line: CutOffLine, outside: FlowEngine, far: Host, near: Host, lost: bool
) -> None:
    line.cut()
    assert near.says() == "began r1 1"  # the same attempt
    far.lets_a_body_end()  # what it has done can't be recorded
    near.lets_a_body_end()
    assert outside.result("r1", timeout=LIMIT) == "near"
    line.mend(lost=lost)
    near.stops()
    outside.submit("one", run_id="r2")
    assert far.says() == "began r2 1"  # it serves again
    far.lets_a_body_end()
    assert outside.result("r2", timeout=LIMIT) == "far"
    assert "Traceback" not in far.stops()
    check(outside)
    assert outside.result("r1") == "near"


@pytest.mark.slow
def test_a_step_is_completed_once_when_the_line_is_mended_while_both_hosts_run_it(
    line: CutOffLine, outside: FlowEngine, far: Host, near: Host
) -> None:
    line.cut()
    assert near.says() == "began r1 1"
    far.lets_a_body_end()
    line.mend(lost=False)
    near.lets_a_body_end()
    assert outside.result("r1", timeout=LIMIT) in ("far", "near")
    assert "Traceback" not in near.stops() + far.stops()
    check(outside)


@pytest.mark.slow
def test_a_host_that_is_cut_off_and_mended_before_its_lease_ends_keeps_its_run(
    line: CutOffLine, outside: FlowEngine, far: Host
) -> None:
    line.cut()
    line.mend(lost=True)
    far.lets_a_body_end()
    far.lets_a_body_end()  # were this machine so slow that the lease ends, it would run once more
    assert outside.result("r1", timeout=LIMIT) == "far"
    assert "Traceback" not in far.stops()
    check(outside)
