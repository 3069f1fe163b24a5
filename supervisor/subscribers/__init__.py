"""Subscribers: what to do with events. Each is loaded, with the library it needs, when it is first named."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisor.subscribers.jsonl import JsonlSubscriber
    from supervisor.subscribers.log import LogSubscriber
    from supervisor.subscribers.otel import OpenTelemetrySubscriber
    from supervisor.subscribers.prometheus import PrometheusSubscriber

__all__ = ["JsonlSubscriber", "LogSubscriber", "OpenTelemetrySubscriber", "PrometheusSubscriber"]

_HOMES = {
    "JsonlSubscriber": "jsonl",
    "LogSubscriber": "log",
    "OpenTelemetrySubscriber": "otel",
    "PrometheusSubscriber": "prometheus",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        found: object = getattr(import_module(f"{__name__}.{home}"), name)
    except ImportError as error:
        from supervisor.kernel.extras import stand_in

        return stand_in(name, __name__, error)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
