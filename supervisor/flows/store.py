"""A place in memory where the tasks of a workflow leave values for each other."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, final

from supervisor.kernel.clock import SYSTEM_CLOCK
from supervisor.kernel.text import shown, type_name

__all__ = ["MemoryStore"]


class _Entry:
    """One write of a key: another entry means that somebody wrote, whatever the value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@final
class MemoryStore:
    """A thread-safe dictionary. Keys: any hashable values, normally `str`.

    Values are handed out as they are, not copied. No caller's code runs under its lock: neither the
    function of `update` nor the finalizer of a value that is replaced.
    """

    __slots__ = ("_entries", "_lock")

    def __init__(self) -> None:
        self._lock = SYSTEM_CLOCK.lock()  # guards _entries and the lists that append extends
        self._entries: dict[Hashable, _Entry] = {}

    def __repr__(self) -> str:
        return f"<MemoryStore of {len(self)} keys>"

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        with self._lock:
            return key in self._entries

    def put(self, key: Hashable, value: Any) -> None:
        """Set the value of `key`."""
        entry = _Entry(value)
        with self._lock:
            old = self._entries.get(key)  # kept until the lock is free: its end may run code
            self._entries[key] = entry
        del old

    def get(self, key: Hashable, default: Any = None) -> Any:
        """Return the value of `key`, `default` if there is none."""
        with self._lock:
            entry = self._entries.get(key)
        return default if entry is None else entry.value

    def remove(self, key: Hashable) -> None:
        """Forget `key`; one that is not there is fine."""
        with self._lock:
            old = self._entries.pop(key, None)
        del old

    def append(self, key: Hashable, item: Any) -> None:
        """Add `item` to the list of `key`, a new one if there is none.

        Raises TypeError, and changes nothing, if the value is no list.
        """
        with self._lock:
            old = self._entries.get(key)
            if old is None:
                self._entries[key] = _Entry([item])
                return
            if issubclass(type(old.value), list):
                list[Any].append(old.value, item)  # not its own append, which might run a caller's code
                self._entries[key] = _Entry(old.value)
                return
        raise TypeError(
            f"append needs a list under {shown(key)}, found a value of type {type_name(old.value)}; "
            "use another key, or update"
        )

    def update(self, key: Hashable, fn: Callable[[Any], Any], default: Any = None) -> Any:
        """Set `key` to `fn(value)`, atomically, and return what was set.

        fn: gets the value, or `default` if there is none, and must return a new one without changing what
        it got: it is called again when another thread wrote the key meanwhile. What it raises gets
        out, and nothing is changed. It may use the store, other than by writing this key each time.
        """
        while True:
            with self._lock:
                old = self._entries.get(key)
            entry = _Entry(fn(default if old is None else old.value))
            with self._lock:
                if self._entries.get(key) is old:
                    self._entries[key] = entry
                    return entry.value

    def keys(self) -> list[Any]:
        """Return the keys as they are now, oldest first."""
        with self._lock:
            return list(self._entries)

    def clear(self) -> None:
        """Forget every key."""
        with self._lock:
            old, self._entries = self._entries, {}
        old.clear()
