"""WriterLock: one process at a time may write to a directory. It ends with the process that holds it."""

from __future__ import annotations

import os
import sys
from io import FileIO
from pathlib import Path

from supervisor.durable.errors import StoreError

__all__ = ["WriterLock"]

_NAME = "writer.lock"
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)

if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> None:
        # Windows locks bytes, and what is locked can't be read: one far behind the process id.
        os.lseek(fd, 1 << 20, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _unlock(fd: int) -> None:
        os.lseek(fd, 1 << 20, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


class WriterLock:
    """The right to write to a directory: a lock of the operating system on a file in it.

    For one thread at a time: guarded by whoever owns it. The file stays; it holds the process id of the holder.
    """

    __slots__ = ("_directory", "_fd")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """This process may write."""
        return self._fd is not None

    def take(self) -> None:
        """Take it. Raises StoreError, which names the holder, if another process has it."""
        path = self._directory / _NAME
        try:
            self._fd = os.open(path, _FLAGS, 0o666)
        except OSError as error:
            raise StoreError(f"can't write to {self._directory}: {error}") from error
        try:
            try:
                _lock(self._fd)
            except OSError as error:
                if not isinstance(error, BlockingIOError | PermissionError):
                    raise StoreError(f"can't lock {path}: {error}") from error
                raise StoreError(
                    f"process {self._holder()} writes to {self._directory}, and only one may; end that one, or "
                    "use a SqliteEventStore where several processes write"
                ) from error
            self._write(str(os.getpid()))
        except BaseException:
            self.abandon()
            raise

    def release(self) -> None:
        """Let others write. Does nothing if it is not held."""
        if self._fd is not None:
            self._write("")  # nobody's; who dies leaves its id behind, which says nothing without the lock
            # Said, not only closed: a child that was forked a moment ago may not have closed its copy yet.
            _unlock(self._fd)
            self.abandon()

    def abandon(self) -> None:
        """Close the file and leave it as it is: in a forked child, so that the parent alone holds the lock."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _write(self, text: str) -> None:
        try:
            with self._file() as file:
                file.truncate(0)
                file.write(text.encode())
        except OSError:
            pass  # it is there for people; the lock does without

    def _holder(self) -> str:
        try:
            with self._file() as file:
                text = file.read(20).decode(errors="replace").strip()
        except OSError:
            text = ""
        return text if text.isdigit() else "(unknown)"

    def _file(self) -> FileIO:
        assert self._fd is not None
        os.lseek(self._fd, 0, os.SEEK_SET)
        return FileIO(self._fd, "r+", closefd=False)
