"""The library's own logger; `logging` is imported when there is something to say."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

__all__ = ["library_logger"]


def library_logger() -> Logger:
    """Return the logger `supervisor`."""
    from logging import getLogger

    return getLogger("supervisor")
