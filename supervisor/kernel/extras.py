"""What stands for a public class whose library is not installed."""

from __future__ import annotations

__all__ = ["stand_in"]


def stand_in(name: str, module: str, missing: ImportError) -> type[object]:
    """Return a class of this name that raises `missing` when an instance is made.

    So a package can be looked through, and `import *` and `help` work, whatever is installed.
    """
    text = str(missing)

    class StandIn:
        __doc__ = text

        def __init__(self, *_: object, **__: object) -> None:
            raise ImportError(text)

    StandIn.__name__ = StandIn.__qualname__ = name
    StandIn.__module__ = module
    return StandIn
