"""FailureFile: which runs wait for a person, in a small file beside their histories."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from supervisor.durable.errors import CorruptHistory
from supervisor.durable.instants import read_instant, written
from supervisor.durable.stores.disk import replace
from supervisor.durable.stores.protocol import Failure

__all__ = ["FailureFile"]

_NAME = "failures.json"


class FailureFile:
    """The marks of a directory, by run, oldest first. For one thread at a time: guarded by whoever owns it."""

    __slots__ = ("_known", "_path", "_signature")

    def __init__(self, directory: Path) -> None:
        self._path = directory / _NAME
        self._known: dict[str, Failure] = {}
        self._signature: tuple[int, int, int] | None = None  # of the file when it was read

    def load(self) -> dict[str, Failure]:
        """Return the marks, for the caller to keep. Raises OSError, or CorruptHistory for another content."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            self._known, self._signature = {}, None
            return {}
        signature = (found.st_ino, found.st_size, found.st_mtime_ns)
        if signature != self._signature:
            self._known = self._parsed(self._path.read_bytes())
            self._signature = signature
        return dict(self._known)

    def save(self, marks: dict[str, Failure]) -> None:
        """Replace the marks, durably. Raises OSError."""
        rows = [
            {"run_id": each.run_id, "reason": each.reason, "at": written(each.at)} for each in marks.values()
        ]
        replace(self._path, json.dumps({"failures": rows}, indent=1).encode() + b"\n")

    def _parsed(self, data: bytes) -> dict[str, Failure]:
        try:
            rows: list[Any] = json.loads(data)["failures"]
            return {
                each["run_id"]: Failure(str(each["run_id"]), str(each["reason"]), read_instant(each["at"]))
                for each in rows
            }
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CorruptHistory(
                f"{self._path} can't be read ({error!r}); it was left as it is, move it away to go on without the "
                "marks"
            ) from error
