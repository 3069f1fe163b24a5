"""Names of parametrized tests: the same in every process, so that one can be asked for again."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def without_address(value: object) -> str:
    """Return the repr of a value, without the places in memory it names."""
    return _ADDRESS.sub("", repr(value))
