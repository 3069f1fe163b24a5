"""What a timeout can do to a thread, and what it can't.

At its deadline an attempt has failed, and its body is asked to stop. A body that listens stops there
and then. One that sits in a call which nothing wakes goes on: a thread can't be killed. `overrun` says
how long to put up with that; then the task is given up, its outcome arrives, and it shows as stuck
until its thread ends by itself.

Run it: python examples/timeout_and_overrun.py

Prints::

    listening: failed, timed out after 0.05 s
    deaf: force_aborted, still running 0.1 s after its deadline
    deaf is stuck
    at the end this was left behind: deaf
"""

from threading import Event

from supervisor import GraceExceeded, Supervisor, TaskContext, TaskSpec

fax_answers = Event()  # nobody will ever set it


def send_mails(ctx: TaskContext) -> None:
    while True:
        ctx.sleep(0.01)  # raises Canceled as soon as the deadline has passed


def send_fax() -> None:
    fax_answers.wait()


def main() -> None:
    supervisor = Supervisor().start()
    listening = supervisor.add(TaskSpec.once("listening", send_mails, timeout=0.05))
    outcome = listening.wait()
    print(f"listening: {outcome.kind}, {outcome.reason}")

    deaf = supervisor.add(TaskSpec.once("deaf", send_fax, timeout=0.05, overrun=0.1))
    outcome = deaf.wait()
    reason, _, _where_it_is_stuck = str(outcome.reason).partition("; ")
    print(f"deaf: {outcome.kind}, {reason}")

    for task in supervisor.tasks():
        print(task.name, "is", task.state)
    try:
        supervisor.shutdown()
    except GraceExceeded as error:
        print("at the end this was left behind:", *[task.name for task in error.stuck])


if __name__ == "__main__":
    main()
