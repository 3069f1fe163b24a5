"""A proxy before a PostgreSQL that can swallow an answer: the statement is done, and nobody is told."""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import tempfile
import threading

import psycopg

_SIZE = 65536


class Proxy:
    """Hands bytes on between clients and a server, on a thread of its own."""

    def __init__(self, dsn: str) -> None:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        self._server = f"{parts['host']}/.s.PGSQL.5432"
        self._folder = tempfile.mkdtemp(prefix="pgp-")
        self.dsn = psycopg.conninfo.make_conninfo(dsn, host=self._folder)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(f"{self._folder}/.s.PGSQL.5432")
        self._door.listen()
        self._wake, self._woken = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._others: dict[socket.socket, socket.socket] = {}
        self._servers: set[socket.socket] = set()
        self._swallowing = False
        self.swallowed = 0  # answers
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def swallow_the_next_answer(self) -> None:
        """Cut the connection instead of handing on what a server says next."""
        self._swallowing = True

    def close(self) -> None:
        os.write(self._woken, b"x")
        self._thread.join()
        for each in [self._door, *self._others]:
            each.close()
        self._selector.close()
        os.close(self._wake)
        os.close(self._woken)
        shutil.rmtree(self._folder)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == self._wake:
                    return
                if key.fileobj is self._door:
                    self._accept()
                elif key.fileobj in self._others:
                    self._hand_on(key.fileobj)  # type: ignore[arg-type]

    def _accept(self) -> None:
        client, _ = self._door.accept()
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._server)
        self._servers.add(server)
        for one, other in ((client, server), (server, client)):
            self._others[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _hand_on(self, source: socket.socket) -> None:
        target = self._others[source]
        try:
            data = source.recv(_SIZE)
            if data and self._swallowing and source in self._servers:
                self._swallowing = False
                self.swallowed += 1
                data = b""
            if data:
                target.sendall(data)
        except OSError:
            data = b""
        if not data:
            for each in (source, target):
                self._selector.unregister(each)
                self._servers.discard(each)
                del self._others[each]
                each.close()
