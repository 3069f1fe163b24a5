"""An engine in a forked child: the threads and drives of the parent are forgotten there."""

from __future__ import annotations

from tests.programs import run_program

PROGRAM = """
import os, sys, threading, time
from supervisor.durable import FlowEngine, FlowRuntime

flows = FlowRuntime()
began, go = threading.Event(), threading.Event()

@flows.step(timeout=30)
def one(number):
    return number

@flows.step
def held():
    began.set()
    go.wait()
    return "held"

@flows.workflow
def both(ctx):
    return ctx.gather([ctx.call(f"s{n}", one, n) for n in range(2)])

@flows.workflow
def holds(ctx):
    return ctx.step("held", held)

told = []
engine = FlowEngine(flows, subscribers=[lambda event: told.append((event.run_id, os.getpid()))])
print("parent", engine.result(engine.start(both), timeout=10))
driver = threading.Thread(target=engine.start, args=("holds",), kwargs={"run_id": "h"})
driver.start()
began.wait()
sys.stdout.flush()
child = os.fork()
if child == 0:
    print("child", engine.result(engine.start(both), timeout=10))
    go.set()
    with engine.serve(workers=1):
        print("served", engine.result(engine.submit(both), timeout=10))
    print("not driven by the thread of the parent:", engine.drive("h").status)
    began = time.monotonic()
    engine.close()
    print("closed at once:", time.monotonic() - began < 3)
    print("told here of", len({run for run, pid in told if pid == os.getpid()}), "runs")
    sys.stdout.flush()
    os._exit(0)
print("child ended with", os.waitpid(child, 0)[1])
go.set()
driver.join()
print("parent", engine.result("h", timeout=10))
engine.close()
"""


def test_an_engine_works_on_in_a_forked_child_and_in_its_parent() -> None:
    finished = run_program("-W", "ignore::DeprecationWarning", "-c", PROGRAM)
    assert (finished.stderr, finished.returncode) == ("", 0)
    assert finished.stdout.splitlines() == [
        "parent [0, 1]",
        "child [0, 1]",
        "served [0, 1]",
        "not driven by the thread of the parent: completed",
        "closed at once: True",
        "told here of 3 runs",
        "child ended with 0",
        "parent held",
    ]
