"""How long a task waits before its next attempt, and how often it tries.

A `BackoffPolicy` is a value that says how long; `max_retries` says how often. Four tasks call the
same bank, which answers the fourth call. In real life keep the jitter, which is on by default: it
spreads the retries of many clients. Here it is off, so that the waits are exact.

Run it: python examples/retry_policies.py

Prints::

    doubling: waited 0.01 s, 0.02 s, 0.04 s, then completed
    capped: waited 0.01 s, 0.02 s, 0.02 s, then completed
    steady: waited 0.01 s, 0.01 s, 0.01 s, then completed
    at once: waited not at all, then completed
    limited: waited 0.01 s, then failed
    retry limit reached after 1 of 1 retries: the bank is closed
"""

from supervisor import BackoffPolicy, BackoffScheduled, Fail, Jitter, Supervisor, TaskContext, TaskSpec


def ask_bank(ctx: TaskContext) -> str:
    if ctx.attempt < 4:
        raise Fail("the bank is closed")
    return "balance: 120.00 EUR"


doubling = BackoffPolicy(initial=0.01, jitter=Jitter.NONE)
specs = [
    TaskSpec.restartable("doubling", ask_bank, backoff=doubling),
    TaskSpec.restartable(
        "capped", ask_bank, backoff=BackoffPolicy(initial=0.01, max_delay=0.02, jitter=Jitter.NONE)
    ),
    TaskSpec.restartable("steady", ask_bank, backoff=BackoffPolicy.constant(0.01)),
    TaskSpec.restartable("at once", ask_bank, backoff=None),
    TaskSpec.restartable("limited", ask_bank, backoff=doubling, max_retries=1),
]


def main() -> None:
    waited: dict[str, list[str]] = {spec.name: [] for spec in specs}

    def note(event: BackoffScheduled) -> None:
        waited[event.task].append(f"{event.delay} s")

    supervisor = Supervisor()
    supervisor.subscribe(note, kinds=[BackoffScheduled])
    outcomes = supervisor.run(specs)
    for spec, outcome in zip(specs, outcomes, strict=True):
        print(f"{spec.name}: waited {', '.join(waited[spec.name]) or 'not at all'}, then {outcome.kind}")
    print(outcomes[-1].reason)


if __name__ == "__main__":
    main()
