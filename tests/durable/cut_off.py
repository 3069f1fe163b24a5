"""A line to a PostgreSQL that can be cut, so that neither side hears of it, and mended again."""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Callable

import psycopg

_SIZE = 65536


class CutOffLine:
    """A TCP port of this machine that leads to the socket of a server, on a thread of its own."""

    def __init__(self, dsn: str) -> None:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        self._server = f"{parts['host']}/.s.PGSQL.{parts.get('port', 5432)}"
        self._door = socket.create_server(("127.0.0.1", 0))
        self.dsn = psycopg.conninfo.make_conninfo(dsn, host="127.0.0.1", port=self._door.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = os.pipe()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._selector.register(self._door, selectors.EVENT_READ)
        self._others: dict[socket.socket, socket.socket] = {}
        self._orders: list[tuple[Callable[[], None], threading.Event]] = []
        self._cut = self._closing = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def cut(self) -> None:
        """Hand on nothing any more, and say nothing about it."""
        self._do(self._cut_now)

    def mend(self, *, lost: bool) -> None:
        """Let new connections through; the old ones are lost, or hand on what has piled up meanwhile."""
        self._do(lambda: self._mend_now(lost))

    def close(self) -> None:
        self._do(self._close_now)
        self._thread.join()
        self._door.close()
        self._selector.close()
        os.close(self._wake)
        os.close(self._woken)

    def _do(self, order: Callable[[], None]) -> None:
        done = threading.Event()
        self._orders.append((order, done))
        os.write(self._woken, b"x")
        done.wait(10)

    # All of this runs on the thread of the line.

    def _run(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select():
                if key.fileobj == self._wake:
                    os.read(self._wake, 1)
                    order, done = self._orders.pop(0)
                    order()
                    done.set()
                    break  # what was found may be gone
                if key.fileobj is self._door:
                    self._accept()
                elif key.fileobj in self._others:
                    self._hand_on(key.fileobj)  # type: ignore[arg-type]

    def _cut_now(self) -> None:
        self._cut = True
        for each in [self._door, *self._others]:
            self._selector.unregister(each)

    def _mend_now(self, lost: bool) -> None:
        self._cut = False
        for each in [self._door, *self._others]:
            self._selector.register(each, selectors.EVENT_READ)
        if lost:
            while self._others:
                self._drop(next(iter(self._others)))

    def _close_now(self) -> None:
        self._closing = True
        if self._cut:
            self._mend_now(True)
        while self._others:
            self._drop(next(iter(self._others)))

    def _accept(self) -> None:
        client, _ = self._door.accept()
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._server)
        for one, other in ((client, server), (server, client)):
            self._others[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _hand_on(self, source: socket.socket) -> None:
        try:
            data = source.recv(_SIZE)
            if data:
                self._others[source].sendall(data)
                return
        except OSError:
            pass
        self._drop(source)

    def _drop(self, one: socket.socket) -> None:
        for each in (one, self._others[one]):
            self._selector.unregister(each)
            del self._others[each]
            each.close()
