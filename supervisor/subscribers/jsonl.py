"""JsonlSubscriber: events to a file, one JSON object a line."""

from __future__ import annotations

import json
import os
from io import FileIO
from typing import Final, Self

from supervisor.kernel.event import Event
from supervisor.kernel.text import shown

__all__ = ["JsonlSubscriber"]

# Made once: json.dumps with arguments makes an encoder for each call. Only ASCII, so that any text can be
# written, lone surrogates included, and reads back equal.
_ENCODE: Final = json.JSONEncoder(separators=(",", ":"), default=shown).encode


class JsonlSubscriber:
    """A subscriber that appends `event.to_dict()` to a file, one JSON object a line, each at once.

    Several supervisors, and several processes, may append to one file: a line is one write to a file
    opened with O_APPEND, which local file systems keep in one piece. Nothing is synced to the disk.
    Close it after the supervisor has shut down, or leave its `with` block.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open or create the file.

        Raises FileNotFoundError when its folder is missing, other OSError when it can't be opened.
        """
        self.path: str = os.fspath(path)
        folder = os.path.dirname(self.path)
        if folder and not os.path.isdir(folder):
            raise FileNotFoundError(
                f"no folder {folder!r} for the events of JsonlSubscriber({self.path!r}); make it first"
            )
        self._torn = False  # the last line was cut short, by a full disk for example
        self._file = FileIO(self.path, "a")

    def __call__(self, event: Event) -> None:
        """Write an event. Runs on the delivery thread.

        Raises OSError when the file can't be written, and goes on with the next event; ValueError once closed.
        """
        if self._file.closed:
            raise ValueError(f"{self!r} gets events; close its subscription, or the supervisor, first")
        line = (_ENCODE(event.to_dict()) + "\n").encode("ascii")
        if self._torn:
            line = b"\n" + line
        rest = line
        while rest:
            try:
                written = self._file.write(rest)
            except OSError:
                self._torn = self._torn or rest is not line
                raise
            rest = rest[written or 0 :]
        self._torn = False

    def __repr__(self) -> str:
        return f"<JsonlSubscriber {self.path!r}{' closed' if self._file.closed else ''}>"

    def close(self) -> None:
        """Close the file. Closing twice is the same as once."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Every line is out already: a file that nobody closed is no reason for a ResourceWarning.
        file: FileIO | None = getattr(self, "_file", None)
        if file is not None:
            file.close()
