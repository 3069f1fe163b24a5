"""Waiting for a person: a run that goes on when somebody has approved.

`ctx.wait_signal` suspends the run until a signal with that name comes, and returns its payload. Signals are
kept in the history, first in, first out: one that comes before anybody waits is not lost. With a `signal_id` of the
sender's, a signal that is sent twice counts once.

Run it: python examples/durable_signals.py

Prints::

    asking for 900.0 EUR, approval 1 of 2
    expense-7 is suspended, waits for 'approval'
    asking for 900.0 EUR, approval 2 of 2
    the same signal once more: still suspended
    expense-7: paid, approved by Ada and Ben
    too late: run 'expense-7' has ended (completed)
    sent before anybody waited: paid, approved by Cy
"""

from typing import Any

from supervisor.durable import FlowEngine, FlowRuntime, RunTerminal, WorkflowContext

flows = FlowRuntime()


@flows.step
def ask_for_approval(request: dict[str, Any]) -> None:
    print(f"asking for {request['amount']} EUR, approval {request['number']} of {request['needed']}")


@flows.workflow
def expense(ctx: WorkflowContext, amount: float) -> str:
    needed = 2 if amount > 500 else 1
    names: list[str] = []
    for number in range(1, needed + 1):
        if needed > 1:
            request = {"amount": amount, "number": number, "needed": needed}
            ctx.step(f"ask-{number}", ask_for_approval, request)
        answer = ctx.wait_signal(f"approval-{number}", "approval")
        if not answer["ok"]:
            return f"refused by {answer['by']}"
        names.append(answer["by"])
    return f"paid, approved by {' and '.join(names)}"


def main() -> None:
    with FlowEngine(flows) as engine:
        run_id = engine.start(expense, 900.0, run_id="expense-7")
        waits = engine.snapshot(run_id).waits["approval-1"]
        print(run_id, "is", engine.snapshot(run_id).status + f", waits for {waits.signal_name!r}")
        engine.signal(run_id, "approval", {"ok": True, "by": "Ada"}, signal_id="mail-1")
        engine.signal(run_id, "approval", {"ok": True, "by": "Ada"}, signal_id="mail-1")
        print("the same signal once more: still", engine.snapshot(run_id).status)
        engine.signal(run_id, "approval", {"ok": True, "by": "Ben"}, signal_id="mail-2")
        print(f"{run_id}:", engine.result(run_id))
        try:
            engine.signal(run_id, "approval", {"ok": False, "by": "Cy"})
        except RunTerminal as error:
            print("too late:", error)

        early = "expense-8"
        with engine.serve(workers=1):
            engine.submit(expense, 20.0, run_id=early)
            engine.signal(early, "approval", {"ok": True, "by": "Cy"})
            print("sent before anybody waited:", engine.result(early, timeout=10))


if __name__ == "__main__":
    main()
