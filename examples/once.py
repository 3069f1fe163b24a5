"""Work that runs once on another thread, and the outcome it leaves.

`add` returns at once with a handle; `wait` blocks for the outcome, from any thread, as often as you
like. An outcome never raises what the body raised: it says what happened, keeps the exception, and
keeps its traceback as text.

Run it: python examples/once.py

Prints::

    rates: completed, {'EUR': 1.0, 'USD': 1.0841}
    invoice: failed, FileNotFoundError: [Errno 2] No such file or directory: 'invoice-2041.txt'
    the file was missing: True
"""

from pathlib import Path

from supervisor import Supervisor, TaskSpec


def load_rates() -> dict[str, float]:
    return {"EUR": 1.0, "USD": 1.0841}


def read_invoice(number: int) -> str:
    return Path(f"invoice-{number}.txt").read_text()


def main() -> None:
    with Supervisor() as supervisor:
        rates = supervisor.add(TaskSpec.once("rates", load_rates))
        invoice = supervisor.add(TaskSpec.once("invoice", read_invoice, args=(2041,)))

        loaded = rates.wait(timeout=10)
        print(f"rates: {loaded.kind}, {loaded.value}")

        read = invoice.wait(timeout=10)
        print(f"invoice: {read.kind}, {read.reason}")
        print("the file was missing:", isinstance(read.error, FileNotFoundError))


if __name__ == "__main__":
    main()
