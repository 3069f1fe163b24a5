"""Polling as business: ask, wait an hour, ask again, and give up after some rounds.

A retry is for a failure that passes: the policy counts, and every attempt is the same step. Polling is a loop of the
workflow: each round is a step of its own, with an id of its own, whose result is looked at; between two rounds the run
waits in the store. Ids are counted, so that a replay comes to the same ones.

Run it: python examples/polling_loop.py

Prints::

    2000-01-01 00:00 the parcel is packed
    2000-01-01 01:00 the parcel is on a ship
    2000-01-01 02:00 the parcel is delivered
    parcel-7: delivered in round 3
    steps: ['ask-1', 'ask-2', 'ask-3']
    waits: ['pause-1', 'pause-2']
"""

from supervisor.durable import FlowEngine, FlowRuntime, WorkflowContext
from supervisor.testing import VirtualClock

flows = FlowRuntime()
clock = VirtualClock()
news = iter(["packed", "on a ship", "delivered"])


@flows.step
def ask_carrier(parcel: str) -> str:
    status = next(news)
    print(f"{clock.now():%Y-%m-%d %H:%M} the parcel is {status}")
    return status


@flows.workflow
def follow(ctx: WorkflowContext, parcel: str) -> str:
    for number in range(1, 25):
        status = ctx.step(f"ask-{number}", ask_carrier, parcel)
        if status == "delivered":
            return f"delivered in round {number}"
        ctx.sleep(f"pause-{number}", 3600)
    return "lost"


def main() -> None:
    with FlowEngine(flows, clock=clock) as engine, engine.serve(workers=2):
        run_id = engine.submit(follow, "7", run_id="parcel-7")
        print(f"{run_id}:", engine.result(run_id))  # moves the clock, over two pauses of an hour
        snapshot = engine.snapshot(run_id)
        print("steps:", list(snapshot.steps))
        print("waits:", list(snapshot.waits))


if __name__ == "__main__":
    main()
