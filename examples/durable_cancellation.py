"""Calling a run off, with clean-up.

`engine.cancel` writes the request into the history: what is open is given up, and `Canceled` is raised in the
workflow at its next waiting point. It may run further steps then, with ids of their own; when the function ends, the
run is cancelled. Should the process die in between, the clean-up goes on elsewhere. `force_cancel` ends a run at once.

Run it: python examples/durable_cancellation.py

Prints::

    room reserved for Ada
    booking-7 is suspended
    room given back: the customer changed her mind
    booking-7 is cancelled
    result: Canceled('the customer changed her mind')
    booking-8 was ended by force: cancelled, steps ['reserve']
"""

from supervisor import Canceled
from supervisor.durable import FlowEngine, FlowRuntime, WorkflowContext

flows = FlowRuntime()


@flows.step
def reserve_room(customer: str) -> int:
    if customer == "Ada":
        print("room reserved for", customer)
    return 12


@flows.step
def give_back(why: str | None) -> None:
    print("room given back:", why)


@flows.workflow
def booking(ctx: WorkflowContext, customer: str) -> str:
    ctx.step("reserve", reserve_room, customer)
    try:
        return str(ctx.wait_signal("payment", "paid"))
    except Canceled:
        request = ctx.cancellation_request
        ctx.step("give-back", give_back, request.reason if request else None)
        raise


def main() -> None:
    with FlowEngine(flows) as engine:
        run_id = engine.start(booking, "Ada", run_id="booking-7")
        print(run_id, "is", engine.snapshot(run_id).status)
        engine.cancel(run_id, "the customer changed her mind")
        print(run_id, "is", engine.snapshot(run_id).status)
        try:
            engine.result(run_id)
        except Canceled as canceled:
            print("result:", repr(canceled))

        run_id = engine.start(booking, "Ben", run_id="booking-8")
        engine.force_cancel(run_id)
        snapshot = engine.snapshot(run_id)
        print(f"{run_id} was ended by force: {snapshot.status}, steps {list(snapshot.steps)}")


if __name__ == "__main__":
    main()
