"""Looking at flows: what each of them is doing, with `match`.

`list()` and `status(id)` give snapshots at any time, from anywhere, after the stop too. A status is one of
five values. More may come, so a `match` on it has a wildcard.

Run it: python examples/scheduler_status.py

Prints::

    audit: never ran
    import: running since it was triggered
    rates: completed, runs: 1
    mail: rests after failure 1: ConnectionError: no route to the mail server
    fax: tripped after failure 1, call reset_flow: OSError: no dial tone
"""

from queue import Queue
from threading import Event as Flag

from supervisor import Event
from supervisor.flows import (
    Backoff,
    Completed,
    FlowBackoff,
    FlowInfo,
    FlowSucceeded,
    FlowTrippedEvent,
    Idle,
    Running,
    Scheduler,
    Tripped,
)


def say(info: FlowInfo) -> str:
    match info.status:
        case Idle():
            return "never ran"
        case Running():
            return "running since it was triggered"
        case Completed():
            return f"completed, runs: {info.run_count}"
        case Backoff(streak=streak, last_error=error):
            return f"rests after failure {streak}: {error.split(' (')[0]}"
        case Tripped(streak=streak, last_error=error):
            return f"tripped after failure {streak}, call reset_flow: {error.split(' (')[0]}"
        case _:
            return "something newer than this program"


def send_mail() -> None:
    raise ConnectionError("no route to the mail server")


def send_fax() -> None:
    raise OSError("no dial tone")


def main() -> None:
    ended, delivered = Queue[Event](), Flag()
    told = FlowSucceeded, FlowBackoff, FlowTrippedEvent
    scheduler = Scheduler(subscribers=[lambda event: ended.put(event) if isinstance(event, told) else None])
    scheduler.manual("audit", lambda: None)
    scheduler.manual("import", delivered.wait)
    scheduler.manual("rates", lambda: None)
    scheduler.manual("mail", send_mail)
    scheduler.manual("fax", send_fax)
    scheduler.set_backoff("fax", streak_limit=1)
    with scheduler.start() as running:
        for name in ("import", "rates", "mail", "fax"):
            running.trigger(name)
        for _ in range(3):
            ended.get()
        for info in running.list():  # in the order of registration
            print(f"{info.id}: {say(info)}")
        delivered.set()


if __name__ == "__main__":
    main()
