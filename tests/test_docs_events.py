"""The table of events in the documentation and the event classes say the same."""

from __future__ import annotations

import re
from dataclasses import fields
from types import ModuleType

import supervisor
from supervisor import Event, TaskAdded, durable, flows
from supervisor.durable import history
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


EVENTS = [*events_of(supervisor), *events_of(flows), *events_of(durable)]


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
    return next(each.__name__ for each in (flows, durable, supervisor) if cls in events_of(each))


def test_every_event_of_a_history_is_in_the_table_of_durable_runs_with_its_fields() -> None:
    page = (ROOT / "docs" / "reference" / "durable.md").read_text("utf-8")
    rows = re.findall(r"(?m)^\| `([a-z_]+)` \|([^|]*)\|[^|]+\|$", page)
    told = {label: re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", own)) for label, own in rows}
    found = [each for name in history.__all__ if isinstance(each := getattr(history, name), type)]
    wanted = {
        each.type: [field.name for field in fields(each)]
        for each in found
        if issubclass(each, history.FlowEvent) and each is not history.FlowEvent
    }
    assert told == wanted
