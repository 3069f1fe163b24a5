"""The four subscribers are loaded when they are named, and say which extra is missing."""

from __future__ import annotations

import pytest

import supervisor.subscribers
from tests.programs import run_code

NAMES = ["JsonlSubscriber", "LogSubscriber", "OpenTelemetrySubscriber", "PrometheusSubscriber"]


def test_the_names_are_listed_before_they_are_loaded() -> None:
    finished = run_code("import supervisor.subscribers as s\nprint(*s.__all__)\nprint(*dir(s))")
    first, second = finished.stdout.splitlines()
    assert first.split() == NAMES
    assert set(NAMES) < set(second.split())


@pytest.mark.parametrize("name", NAMES)
def test_a_name_gives_the_class_of_that_name(name: str) -> None:
    found = getattr(supervisor.subscribers, name)
    assert found.__name__ == name
    assert getattr(supervisor.subscribers, name) is found


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'supervisor\.subscribers' has no attribute 'Nobody'"):
        _ = supervisor.subscribers.Nobody


@pytest.mark.parametrize(
    ("library", "name", "extra"),
    [
        ("prometheus_client", "PrometheusSubscriber", "prometheus"),
        ("opentelemetry", "OpenTelemetrySubscriber", "otel"),
    ],
)
def test_a_missing_library_is_an_error_that_names_the_extra(library: str, name: str, extra: str) -> None:
    finished = run_code(
        f"""
import sys
sys.modules[{library!r}] = None
from supervisor.subscribers import *
help({name})
try:
    {name}()
except ImportError as error:
    print(error)
"""
    )
    assert (finished.stderr, finished.returncode) == ("", 0)
    assert finished.stdout.splitlines()[0] == f"Help on class {name} in module supervisor.subscribers:"
    assert finished.stdout.splitlines()[-1].startswith(name)
    assert finished.stdout.splitlines()[-1].endswith(f"pip install 'threadvisor[{extra}]'")
