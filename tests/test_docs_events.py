"""The table of events in the documentation and the event classes say the same."""

from __future__ import annotations

import re
from dataclasses import fields
from types import ModuleType

import supervisor
from supervisor import Event, TaskAdded, flows
from tests.programs import ROOT

PAGE = (ROOT / "docs" / "reference" / "events.md").read_text("utf-8")
ROWS: dict[str, list[str]] = {
    name: re.findall(r"`(\w+)`", own)
    for name, own in re.findall(r"(?m)^\| `(\w+)` \|([^|]*)\|[^|]+\|$", PAGE)
}
BASE = {each.name for each in fields(Event)}


def events_of(module: ModuleType) -> list[type[Event]]:
    found = [getattr(module, name) for name in module.__all__]
    return [
        each for each in found if isinstance(each, type) and issubclass(each, Event) and each is not Event
    ]


EVENTS = [*events_of(supervisor), *events_of(flows)]


def shared_by_its_kind(cls: type[Event]) -> set[str]:
    """The fields that the text above the table tells once for all."""
    if hasattr(cls, "task_id"):
        return {each.name for each in fields(TaskAdded)}
    return {*BASE, "flow_id"} if cls in events_of(flows) else BASE


def test_every_event_has_its_row_with_exactly_its_fields() -> None:
    wanted = {
        cls.__name__: [each.name for each in fields(cls) if each.name not in shared_by_its_kind(cls)]
        for cls in EVENTS
    }
    assert wanted == ROWS


def test_every_event_is_in_the_reference_in_detail() -> None:
    lines = PAGE.splitlines()
    missing = [cls for cls in EVENTS if f"::: {_home(cls)}.{cls.__name__}" not in lines]
    assert missing == []


def _home(cls: type[Event]) -> str:
    return "supervisor.flows" if cls in events_of(flows) else "supervisor"
