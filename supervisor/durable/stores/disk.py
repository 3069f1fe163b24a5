"""Files that are to outlive a crash: whole writes, whole reads, and names that are durable."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from supervisor.durable.errors import StoreError

__all__ = ["BINARY", "fsync_directory", "made", "read_between", "replace", "storage", "write_all"]

BINARY: int = getattr(os, "O_BINARY", 0)  # a flag of Windows, which would write "\r\n" without


def fsync_directory(directory: str | os.PathLike[str]) -> None:
    """Make the names in a directory durable. Windows can't, and needs it not."""
    if sys.platform == "win32":
        return
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write in one call, and in more if the operating system takes only a part."""
    rest = memoryview(data)
    while rest:
        done = os.write(fd, rest)
        if done == 0:
            raise OSError("the operating system wrote nothing")
        rest = rest[done:]


def read_between(fd: int, start: int, end: int) -> bytes:
    """Return the bytes from `start` up to `end`, fewer if the file is shorter."""
    os.lseek(fd, start, os.SEEK_SET)
    parts: list[bytes] = []
    left = end - start
    while left > 0 and (part := os.read(fd, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def replace(path: Path, data: bytes) -> None:
    """Give a file another content: a reader, and who looks after a crash, sees the old one or the new one."""
    other = path.with_name(path.name + ".new")
    fd = os.open(other, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | BINARY, 0o666)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    other.replace(path)
    fsync_directory(path.parent)


@contextmanager
def storage(what: str) -> Generator[None]:
    """Turn what the operating system refuses into a StoreError.  what: was to be done."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"could not {what}: {error}") from error


def made(directory: Path) -> Path:
    """Make a directory, with its parents, durably. Raises StoreError."""
    with storage(f"make the directory {directory}"):
        missing = [each for each in (directory, *directory.parents) if not each.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        for each in missing:
            fsync_directory(each.parent)
    return directory
