"""Retries of one task: what is worth another attempt, and what is not.

`max_retries=3` allows four attempts of a state's task, with a backoff between them; the other states are not
repeated. When all have failed the run ends with `RetryExhausted`, whose cause is the last error. `Fatal` ends
it at once, and `timeout` limits each attempt. Errors say where they happened.

Run it: python examples/flow_retries.py

Prints::

    rates: attempt 1 failed, attempt 2 failed, attempt 3 succeeded
    mail: gave up after 4 attempts: ConnectionError('no route to the mail server')
    bank: fatal: the account is closed
    fax: attempt 1 of fax timed out: 0.05 s, the limit is 0.05 s
"""

from enum import Enum, auto

from supervisor import BackoffPolicy, Fatal
from supervisor.flows import FlowRun, FlowTimeout, Resources, RetryExhausted, Workflow
from supervisor.testing import VirtualClock


class Step(Enum):
    WORK = auto()
    DONE = auto()


said: list[str] = []


def rates(res: Resources, run: FlowRun) -> Step:
    if run.attempt < 3:
        said.append(f"attempt {run.attempt} failed")
        raise ConnectionError("the bank did not answer")
    said.append(f"attempt {run.attempt} succeeded")
    return Step.DONE


def mail() -> Step:
    raise ConnectionError("no route to the mail server")


def bank() -> Step:
    raise Fatal("the account is closed")


def fax(res: Resources, run: FlowRun) -> Step:
    run.token.wait(60)  # True, and back at once, when the attempt's time is over
    return Step.DONE


def main() -> None:
    quick = BackoffPolicy(initial=0.01, max_delay=0.1)

    Workflow().register(Step.WORK, rates, max_retries=3, backoff=quick).add_exit_state(Step.DONE).run(
        Step.WORK
    )
    print("rates:", ", ".join(said))

    try:
        Workflow().register(Step.WORK, mail, max_retries=3, backoff=quick).add_exit_state(Step.DONE).run(
            Step.WORK
        )
    except RetryExhausted as error:
        print(f"mail: gave up after {error.attempts} attempts: {error.__cause__!r}")

    try:
        Workflow().register(Step.WORK, bank, max_retries=3).add_exit_state(Step.DONE).run(Step.WORK)
    except Fatal as error:
        print("bank: fatal:", error)

    try:
        slow = Workflow().register(Step.WORK, fax, timeout=0.05).add_exit_state(Step.DONE)
        slow.run(Step.WORK, clock=VirtualClock())  # for exact seconds
    except FlowTimeout as error:
        print("fax:", error.reason)


if __name__ == "__main__":
    main()
