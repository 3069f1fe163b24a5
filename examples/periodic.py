"""A task that runs again and again, with a pause after each success.

The interval counts from the end of a run, so runs never overlap and never pile up. A run that fails
is retried by the task's backoff instead of the interval. A body may end its own task by raising
`Canceled`.

Run it: python examples/periodic.py

Prints::

    EUR/USD 1.0841
    no answer, will be asked again
    EUR/USD 1.0848
    EUR/USD 1.0839
    canceled after 5 attempts
"""

from supervisor import BackoffPolicy, Canceled, Supervisor, TaskSpec

answers = iter(["1.0841", None, "1.0848", "1.0839"])


def refresh_rate() -> None:
    answer = next(answers, "closed")
    if answer == "closed":
        raise Canceled("the market has closed")
    if answer is None:
        print("no answer, will be asked again")
        raise TimeoutError("the rates server did not answer")
    print("EUR/USD", answer)


def main() -> None:
    rate = TaskSpec.periodic("rate", refresh_rate, every=0.05, backoff=BackoffPolicy.constant(0.01))
    [outcome] = Supervisor().run([rate])  # blocks until every task has ended, or Ctrl-C
    print(outcome.kind, "after", outcome.attempts, "attempts")


if __name__ == "__main__":
    main()
