"""A hook that sees what happens, and tells somebody.

A subscriber is any callable that takes an event. It is called on a thread of the supervisor's own,
one event at a time and in order, so it may take its time; a slow or failing one hurts no task. Events
are for people and other systems: to act on how a task ended, use its outcome.

Run it: python examples/events_hook.py

Prints (... stands for any text)::

    orders: attempt 1 failed: ConnectionResetError: the warehouse hung up (in pull_orders, events_hook.py:...)
    orders: trying again in 0.01 s
    orders: completed after 2 attempts
"""

from supervisor import (
    AttemptFailed,
    BackoffPolicy,
    BackoffScheduled,
    Event,
    Supervisor,
    TaskContext,
    TaskFinished,
    TaskSpec,
)


def pull_orders(ctx: TaskContext) -> None:
    if ctx.attempt == 1:
        raise ConnectionResetError("the warehouse hung up")


def tell_the_team(event: Event) -> None:
    match event:
        case AttemptFailed():
            print(f"{event.task}: attempt {event.attempt} failed: {event.error}")
        case BackoffScheduled():
            print(f"{event.task}: trying again in {event.delay} s")
        case TaskFinished():
            print(f"{event.task}: {event.outcome} after {event.attempts} attempts")


def main() -> None:
    supervisor = Supervisor(subscribers=[tell_the_team])
    supervisor.run([TaskSpec.restartable("orders", pull_orders, backoff=BackoffPolicy.constant(0.01))])


if __name__ == "__main__":
    main()
