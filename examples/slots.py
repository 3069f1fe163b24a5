"""One synchronization per customer at a time.

`submit` puts a task into a slot, which has one owner. `Admission` says what happens to who comes
later: `QUEUE` waits for its turn, `REPLACE` stops the owner and is the next, `DROP_IF_RUNNING` gives
up. Different slots run side by side.

Run it: python examples/slots.py

Prints::

    first sync for ada: started
    sync for ben: started
    a third one for ada: rejected, slot_busy
    first sync for ada: stopped, replaced
    newer sync for ada: started
    first canceled, newer completed, ben completed
"""

from threading import Event

from supervisor import Admission, Supervisor, TaskContext, TaskSpec

started = Event()


def long_sync(ctx: TaskContext) -> None:
    print(f"{ctx.name}: started")
    started.set()
    ctx.wait()  # a sync that would take all day
    print(f"{ctx.name}: stopped, {ctx.cancel_reason}")


def short_sync(ctx: TaskContext) -> None:
    print(f"{ctx.name}: started")


def main() -> None:
    with Supervisor() as supervisor:
        first = supervisor.submit(TaskSpec.once("first sync for ada", long_sync), slot="ada")
        started.wait()
        ben = supervisor.submit(TaskSpec.once("sync for ben", short_sync), slot="ben").wait()

        again = TaskSpec.once("third sync for ada", short_sync)
        refused = supervisor.submit(again, slot="ada", admission=Admission.DROP_IF_RUNNING).wait()
        print(f"a third one for ada: {refused.kind}, {refused.rejection}")

        newer = TaskSpec.once("newer sync for ada", short_sync)
        done = supervisor.submit(newer, slot="ada", admission=Admission.REPLACE).wait()
        print(f"first {first.wait().kind}, newer {done.kind}, ben {ben.kind}")


if __name__ == "__main__":
    main()
