"""The table of events in the documentation and the event classes say the same."""

from __future__ import annotations

import re
from dataclasses import fields

import supervisor
from supervisor import Event, TaskAdded
from tests.programs import ROOT

PAGE = (ROOT / "docs" / "reference" / "events.md").read_text("utf-8")
ROWS: dict[str, list[str]] = {
    name: re.findall(r"`(\w+)`", own)
    for name, own in re.findall(r"(?m)^\| `(\w+)` \|([^|]*)\|[^|]+\|$", PAGE)
}
BASE = {each.name for each in fields(Event)}
EVENTS = [
    found
    for name in supervisor.__all__
    if isinstance(found := getattr(supervisor, name), type)
    and issubclass(found, Event)
    and found is not Event
]


def test_every_event_has_its_row_with_exactly_its_fields() -> None:
    of_tasks = {each.name for each in fields(TaskAdded)}
    wanted = {
        cls.__name__: [
            each.name
            for each in fields(cls)
            if each.name not in (of_tasks if hasattr(cls, "task_id") else BASE)
        ]
        for cls in EVENTS
    }
    assert wanted == ROWS


def test_every_event_is_in_the_reference_in_detail() -> None:
    assert [cls.__name__ for cls in EVENTS if f"::: supervisor.{cls.__name__}\n" not in PAGE] == []
