"""A task that is stopped half-way and leaves nothing behind.

`ctx.enter_context` and `ctx.callback` register what has to be closed when the attempt ends, however
it ends: last registered, first closed. A stop arrives as `Canceled` out of `ctx.sleep` or `ctx.check`.
It is a `BaseException`, so a careless `except Exception` lets it pass.

Run it: python examples/cancellation_and_cleanup.py

Prints::

    connected to the archive
    exported 2040, 2041
    the pause ended early, because of: requested
    half-written file removed: True
    disconnected
    canceled after 1 attempt
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from supervisor import Canceled, Supervisor, TaskContext, TaskSpec

half_way = Event()


def export_invoices(ctx: TaskContext) -> None:
    print("connected to the archive")
    ctx.callback(print, "disconnected")
    folder = Path(ctx.enter_context(TemporaryDirectory()))
    ctx.callback(lambda: remove(folder / "export.csv"))

    (folder / "export.csv").write_text("2040\n2041\n")
    print("exported 2040, 2041")
    half_way.set()
    try:
        ctx.sleep(3600)  # the archive takes one batch an hour
    except Exception:
        print("never printed: a stop is no Exception")
    except Canceled as stop:
        print("the pause ended early, because of:", stop.reason)
        raise


def remove(file: Path) -> None:
    file.unlink()
    print("half-written file removed:", not file.exists())


def main() -> None:
    with Supervisor() as supervisor:
        export = supervisor.add(TaskSpec.restartable("export", export_invoices))
        half_way.wait()
        export.cancel(timeout=10)  # asks, and waits until the task is gone
        outcome = export.wait()
    print(outcome.kind, "after", outcome.attempts, "attempt")


if __name__ == "__main__":
    main()
