"""A graceful shutdown: what runs may finish, then everything is torn down in reverse.

`stop` fires nothing more, waits for the runs in progress, at most `timeout` seconds, asks what is left to
cancel, and tears down the resources of the flow that was registered last first. Every caller of `stop`
gets the same result. `request_stop` only asks, so a run or a signal handler may call it.

Run it: python examples/scheduler_shutdown.py

Prints::

    printer connected
    archive connected
    printing invoices
    a stop is asked for
    refused: trigger: the scheduler is stopping or has stopped
    invoices printed
    archive disconnected
    printer disconnected
    stopped, and so it is when asked again
"""

from enum import Enum, auto
from threading import Event

from supervisor.flows import Resource, Resources, Scheduler, SchedulerStopped, Workflow


class Job(Enum):
    START = auto()
    DONE = auto()


class Device(Resource):
    def __init__(self, name: str) -> None:
        self.name = name

    def setup(self) -> None:
        print(self.name, "connected")

    def teardown(self) -> None:
        print(self.name, "disconnected")


def main() -> None:
    printing, paper = Event(), Event()

    def print_invoices() -> Job:
        print("printing invoices")
        printing.set()
        paper.wait()  # a long job, and nobody may interrupt it
        print("invoices printed")
        return Job.DONE

    invoices = Workflow(Resources(printer=Device("printer"))).register(Job.START, print_invoices)
    archive = Workflow(Resources(archive=Device("archive"))).register(Job.START, lambda: Job.DONE)
    scheduler = Scheduler()
    scheduler.manual("invoices", invoices.add_exit_state(Job.DONE), Job.START)
    scheduler.manual("archive", archive.add_exit_state(Job.DONE), Job.START)
    running = scheduler.start()
    running.trigger("invoices")
    printing.wait()

    running.request_stop()
    print("a stop is asked for")
    try:
        running.trigger("archive")
    except SchedulerStopped as error:
        print("refused:", error)
    paper.set()
    running.stop(timeout=30)
    running.stop()
    print("stopped, and so it is when asked again")


if __name__ == "__main__":
    main()
