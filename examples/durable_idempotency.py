"""At least once, and how to make it look like once: a process dies between an effect and its record.

The step charges a card, and the process is killed before it can write that down. So the step is called again by who
takes over, with the same attempt and the same keys, because nobody can know whether the charge went through. The bank
can: it has seen the key. `step_key` is the same for all attempts of a step, `idempotency_key` for all deliveries of one
attempt; give the bank the first one, if a retry after a failure must not charge twice either.

Run it: python examples/durable_idempotency.py

Prints::

    process 1: attempt 1, key order-7:charge: charged
    process 1 is killed, order-7 is running
    process 2: attempt 1, key order-7:charge: known, nothing charged
    order-7: receipt 1, charges at the bank: 1
"""

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from supervisor.durable import FlowEngine, FlowRuntime, FlowWorker, SqliteEventStore, StepInvocation

flows = FlowRuntime()


class Bank:
    """Somebody else's system: a file for each key that it has seen."""

    def __init__(self, folder: str) -> None:
        self.seen = Path(folder, "bank")
        self.seen.mkdir(exist_ok=True)

    def charge(self, key: str) -> str:
        try:
            with (self.seen / key.replace(":", "-")).open("x"):
                return "charged"
        except FileExistsError:
            return "known, nothing charged"


@flows.step
def charge(order: dict[str, Any], step: StepInvocation) -> str:
    answer = Bank(order["folder"]).charge(step.step_key)
    first = "--child" in sys.argv
    print(f"process {1 if first else 2}: attempt {step.attempt}, key {step.step_key}: {answer}", flush=True)
    if first:
        sys.stdin.read()  # until it is killed
    return "receipt 1"


@flows.workflow
def checkout(ctx: Any, order: dict[str, Any]) -> Any:
    return ctx.step("charge", charge, order)


def work(folder: str) -> None:
    with closing(SqliteEventStore(Path(folder, "flows.db"))) as store, FlowEngine(flows, store) as engine:
        engine.start(checkout, {"folder": folder}, run_id="order-7")


def main() -> None:
    with TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--child", folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            print(process.stdout.readline(), end="")
            process.kill()

        with closing(SqliteEventStore(Path(folder, "flows.db"))) as store, FlowEngine(flows, store) as engine:
            print("process 1 is killed, order-7 is", engine.snapshot("order-7").status)
            engine.recover()  # `serve` does this at its start
            FlowWorker(engine).run_until_idle()
            charges = len(list(Bank(folder).seen.iterdir()))
            print(f"order-7: {engine.result('order-7')}, charges at the bank: {charges}")


if __name__ == "__main__":
    if "--child" in sys.argv:
        work(sys.argv[-1])
    else:
        main()
