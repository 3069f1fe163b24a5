"""Wait for somebody else: ask until a report is ready, then let it cool down.

`poll` calls a function until it answers `Ready(state)`, and pauses as long as `Pending(delay)` says. `timer` waits
for some seconds, or until an instant. Both end at once when the run is canceled, and at the task's timeout. A
virtual clock lives through the minutes.

Run it: python examples/flow_poll_and_timer.py

Prints::

    0 s: ordered
    60 s: asked, 33 % done
    120 s: asked, 66 % done
    180 s: asked, it is ready
    185 s: published
"""

from enum import Enum, auto

from supervisor.flows import MemoryStore, Pending, Ready, Resources, Workflow, poll, timer
from supervisor.testing import VirtualClock


class Report(Enum):
    ORDER = auto()
    READ = auto()
    COOL_DOWN = auto()
    PUBLISH = auto()
    DONE = auto()


def main() -> None:
    clock = VirtualClock()

    def tell(what: str) -> None:
        print(f"{clock.monotonic():g} s: {what}")

    def order() -> Report:
        tell("ordered")
        return Report.READ

    def ask(res: Resources) -> Ready | Pending:
        asked = res.get("store", MemoryStore).update("asked", lambda asked: asked + 1, default=-1)
        if asked == 0:
            return Pending(60)  # it has just been ordered
        if asked < 3:
            tell(f"asked, {33 * asked} % done")
            return Pending(60)
        tell("asked, it is ready")
        return Ready(Report.COOL_DOWN)

    def publish() -> Report:
        tell("published")
        return Report.DONE

    workflow = (
        Workflow(Resources(store=MemoryStore()))
        .register(Report.ORDER, order)
        .register(Report.READ, poll(ask), timeout=3600)
        .register(Report.COOL_DOWN, timer(5, Report.PUBLISH))
        .register(Report.PUBLISH, publish)
        .add_exit_state(Report.DONE)
    )
    workflow.run(Report.ORDER, clock=clock)


if __name__ == "__main__":
    main()
