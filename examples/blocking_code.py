"""Existing blocking code that can be stopped after all.

Nothing can interrupt `recv` from outside, but whoever holds its socket can end the connection under
it. `ctx.on_cancel` registers that; it runs when the task is asked to stop, and at the deadline of an
attempt. What should not wait longer than the attempt takes `ctx.remaining()` as its own timeout.
(`shutdown` and not `close`: closing a socket does not wake a thread that reads from it.)

Run it: python examples/blocking_code.py

Prints::

    request 1: asked, now blocked in recv
    request 1: failed, timed out after 0.1 s
    request 2: asked, now blocked in recv
    request 2: canceled
"""

import socket
from threading import Event

from supervisor import Fail, Supervisor, TaskContext, TaskSpec


def ask_legacy_server(ctx: TaskContext, address: tuple[str, int], asked: Event) -> bytes:
    connection = ctx.enter_context(socket.create_connection(address, timeout=ctx.remaining()))
    connection.settimeout(None)
    ctx.on_cancel(lambda: connection.shutdown(socket.SHUT_RDWR))
    connection.sendall(b"STOCK 17\n")
    print(f"{ctx.name}: asked, now blocked in recv")
    asked.set()
    answer = connection.recv(1024)
    ctx.check()  # raises Canceled when it was us who ended the connection
    if not answer:
        raise Fail("the server hung up")
    return answer


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, Supervisor() as supervisor:  # it never answers
        address: tuple[str, int] = server.getsockname()

        def request(name: str, asked: Event, timeout: float | None) -> TaskSpec:
            return TaskSpec.once(name, ask_legacy_server, args=(address, asked), timeout=timeout)

        outcome = supervisor.add(request("request 1", Event(), timeout=0.1)).wait()
        print(f"request 1: {outcome.kind}, {outcome.reason}")

        asked = Event()
        second = supervisor.add(request("request 2", asked, timeout=None))
        asked.wait()
        second.cancel(timeout=10)
        print(f"request 2: {second.wait().kind}")


if __name__ == "__main__":
    main()
