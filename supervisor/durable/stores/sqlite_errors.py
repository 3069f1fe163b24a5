"""What an error of SQLite says about a file, and what helps."""

from __future__ import annotations

import sqlite3

from supervisor.durable.errors import StoreError

__all__ = ["busy", "failure"]

_CURES = {
    sqlite3.SQLITE_BUSY: "another program has held its lock too long; look for a transaction that it left open, "
    "or give a longer busy_timeout",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable for this user",
    sqlite3.SQLITE_IOERR: "look at the disk, and at the log of the system",
    sqlite3.SQLITE_CORRUPT: "the file is damaged and was left as it is; restore it from a backup",
    sqlite3.SQLITE_FULL: "nothing was written; free some space and try again",
    sqlite3.SQLITE_CANTOPEN: "look at the folder, and at the permissions of this user",
    sqlite3.SQLITE_NOTADB: "it was left as it is; give the path of another file",
}


def failure(path: str, error: sqlite3.Error) -> StoreError:
    """Return what to raise for an error: which file, what is wrong, what helps."""
    code = getattr(error, "sqlite_errorcode", None)
    cure = (
        _cure(str(error))
        if code is None or code & 0xFF == sqlite3.SQLITE_ERROR
        else _CURES.get(code & 0xFF, "")
    )
    return StoreError(f"the SQLite file {path!r}: {error}{cure and '; ' + cure}")


def busy(error: BaseException) -> bool:
    """Return whether it is only that somebody else holds the lock of the file."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _cure(text: str) -> str:
    """Return what helps where SQLite has one code for many things. Stores look at the tables when they are opened."""
    if text.startswith("no such "):  # table, column or index
        return "it was there and was taken away or changed by hand; restore the file from a backup"
    if text.endswith("already exists"):
        return (
            "it is not one that was made here, or the record of what was made is gone; give the path of another "
            "file, or restore this one from a backup"
        )
    return ""
