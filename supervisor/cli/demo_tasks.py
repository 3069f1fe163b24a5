"""The tasks of the demo, the server that one of them asks, and the files the others work on."""

from __future__ import annotations

import csv
import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle, islice
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from supervisor.kernel.backoff import BackoffPolicy
from supervisor.kernel.cancellation import CancelToken
from supervisor.kernel.errors import Fail
from supervisor.tasks.context import TaskContext
from supervisor.tasks.spec import TaskSpec

__all__ = ["FILES", "RETRIES", "ROWS", "Place", "Server", "prepare", "specs"]

FILES = 96  # in the tree that `scan` hashes
ROWS = 20_000  # in the file that `import` reads
RETRIES = 4  # of `worker`
_FILE_SIZE = 32 * 1024  # bytes
_BATCH = 1_000  # rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the demo works."""

    tree: Path
    orders: Path  # CSV
    database: Path  # SQLite
    readings: Path  # one number a line, but for one line
    reports: Path  # where the flow writes; the folder is missing at first


def prepare(folder: Path) -> Place:
    """Make the files."""
    place = Place(
        tree=folder / "tree",
        orders=folder / "orders.csv",
        database=folder / "orders.db",
        readings=folder / "readings.txt",
        reports=folder / "reports",
    )
    for number in range(FILES):
        file = place.tree / f"shelf{number % 8}" / f"page{number:02}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(hashlib.sha256(str(number).encode()).digest() * (_FILE_SIZE // 32))
    with place.orders.open("w", newline="", encoding="utf-8") as orders:
        writer = csv.writer(orders)
        writer.writerow(["id", "customer", "cents"])
        writer.writerows((n, f"customer {n % 977}", n * 7919 % 100_000) for n in range(1, ROWS + 1))
    place.readings.write_text("20.5\n21.0\n21,5\n22.0\n", encoding="utf-8")
    return place


def specs(place: Place, server: Server, pace: float) -> list[TaskSpec]:
    """Return the tasks of the demo. pace: factor of every duration in it, 1.0 for ten seconds."""
    backoff = BackoffPolicy(initial=0.4 * pace, max_delay=1.6 * pace)
    return [
        TaskSpec.periodic("poll", poll, 0.5 * pace, timeout=pace, backoff=backoff, args=(server.port,)),
        TaskSpec.periodic("scan", scan, 2.0 * pace, args=(place.tree,)),
        TaskSpec.once("import", import_orders, args=(place.orders, place.database)),
        TaskSpec.restartable(
            "worker", average, backoff=backoff, max_retries=RETRIES, args=(place.readings, 0.2 * pace)
        ),
        TaskSpec.once("server", server.serve),
    ]


# The four tasks. A body raises what it likes: the supervisor decides what follows.


def poll(ctx: TaskContext, port: int) -> str:
    """Ask the server how it is. Nothing can interrupt a blocking read, so it gets the time that is left."""
    connection = HTTPConnection("127.0.0.1", port, timeout=ctx.remaining())
    ctx.callback(connection.close)
    connection.request("GET", "/status")
    answer = connection.getresponse()
    if answer.status != 200:
        raise Fail(f"HTTP {answer.status} {answer.reason}")
    return answer.read().decode()


def scan(ctx: TaskContext, tree: Path) -> str:
    """Return one digest of all files below `tree`."""
    digest = hashlib.sha256()
    for file in sorted(tree.rglob("*")):
        ctx.check()  # between two files is a good moment to stop
        if file.is_file():
            digest.update(file.relative_to(tree).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def import_orders(ctx: TaskContext, source: Path, target: Path) -> int:
    """Copy the rows of a CSV file into a new table, all or none; return how many there were."""
    database = ctx.enter_context(closing(sqlite3.connect(target)))
    file = ctx.enter_context(source.open(newline="", encoding="utf-8"))
    rows = 0
    with database:  # one transaction
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, cents INTEGER)")
        reader = csv.DictReader(file)
        while batch := list(islice(reader, _BATCH)):
            ctx.check()
            database.executemany("INSERT INTO orders VALUES (:id, :customer, :cents)", batch)
            rows += len(batch)
    return rows


def average(ctx: TaskContext, readings: Path, effort: float) -> float:
    """Work on numbers of which one has a comma: it crashes, whenever it is tried."""
    ctx.sleep(effort)
    numbers = [float(line) for line in readings.read_text("utf-8").splitlines()]
    return sum(numbers) / len(numbers)


# The server: a task as well. It ends when it is asked to, and takes the requests that hang with it.


class Server(ThreadingHTTPServer):
    """An HTTP server on loopback that answers, fails and hangs in turn."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.turns: Iterator[str] = cycle(("answer", "answer", "fail", "fail", "answer", "answer", "hang"))
        self.stopping: CancelToken = CancelToken()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # that of HTTPServer asks the DNS for the name of this machine
        self.server_name: str = "127.0.0.1"
        self.server_port: int = self.port

    def serve(self, ctx: TaskContext) -> None:
        """Answer requests until asked to stop."""
        ctx.on_cancel(self.stopping.cancel)
        ctx.on_cancel(self.shutdown)
        self.serve_forever(poll_interval=0.1)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about clients that went away."""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        match next(self.server.turns):
            case "answer":
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")
            case "fail":
                self.send_error(503)
            case _:
                self.server.stopping.wait()  # longer than any client has patience
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the account tells it."""
