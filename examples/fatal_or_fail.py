"""Which failures are worth another attempt.

The body says so by what it raises. `Fail`, and every ordinary exception, means: try again. `Fatal`
means: never again, whatever the retry settings are. Both carry a reason for people, and `raise ...
from` keeps what was behind it.

Run it: python examples/fatal_or_fail.py

Prints::

    invoice 2041: completed, attempts: 3, paid
    invoice 2042: fatal, attempts: 1, the card was reported stolen
    invoice 2043: failed, attempts: 3, retry limit reached after 2 of 2 retries: the network is down
    behind it was: ConnectionResetError
"""

from supervisor import BackoffPolicy, Fail, Fatal, Supervisor, TaskContext, TaskSpec


def charge(ctx: TaskContext, invoice: int) -> None:
    match invoice:
        case 2041 if ctx.attempt < 3:
            raise ConnectionResetError  # an ordinary exception is tried again
        case 2042:
            raise Fatal("the card was reported stolen")
        case 2043:
            try:
                raise ConnectionResetError
            except OSError as error:
                raise Fail("the network is down") from error


def main() -> None:
    invoices = [2041, 2042, 2043]
    outcomes = Supervisor().run(
        TaskSpec.restartable(
            f"invoice {number}",
            charge,
            args=(number,),
            max_retries=2,
            backoff=BackoffPolicy.constant(0.01),
        )
        for number in invoices
    )
    for number, outcome in zip(invoices, outcomes, strict=True):
        print(f"invoice {number}: {outcome.kind}, attempts: {outcome.attempts}, {outcome.reason or 'paid'}")
    if (error := outcomes[-1].error) is not None:
        print("behind it was:", type(error.__cause__).__name__)


if __name__ == "__main__":
    main()
