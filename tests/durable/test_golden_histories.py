"""Histories of format version 1, as they lie on disks: each must be read, mean the same, and be written the same.

The files are never changed. What they say is written down here by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from supervisor.durable.history import Envelope, FlowEvent
from supervisor.durable.payload import encode
from supervisor.durable.projection import Projection, Wakeup
from supervisor.durable.stores.jsonl import JsonlEventStore
from supervisor.durable.stores.lines import line_of, scan
from tests.durable.making import AT, later

FOLDER = Path(__file__).resolve().parents[1] / "histories"
ZERO = AT.replace(microsecond=0)  # the histories begin at 2026-01-31 12:00:00 UTC
NOTE = '日本 été \0 \u2028 "quoted" \\ \U0010ffff'

# What each history says: fields that are not named are None or empty. Steps: status, attempt, output, error.
EXPECTED: dict[str, dict[str, Any]] = {
    "pending": {"status": "pending", "input": [], "sequence": 1, "updated": 0},
    "completed": {
        "status": "completed",
        "input": {"id": 7, "note": NOTE, "items": [1, 1.0, -0.0, 0.1, 1e300, True, None, 2**70, {}, []]},
        "output": {"receipt": "r-1", "shipped": True},
        "steps": {
            "capture": ("completed", 1, {"receipt": "r-1"}, None),
            "ship": ("completed", 1, None, None),
        },
        "sequence": 9,
        "updated": 2.000001,
    },
    "retried": {
        "status": "completed",
        "input": "order",
        "output": "sent",
        "steps": {"capture": ("completed", 3, 3, None), "mail": ("completed", 2, "sent", None)},
        "sequence": 15,
        "updated": 11,
    },
    "retrying": {
        "status": "suspended",
        "steps": {"capture": ("pending", 1, None, "TimeoutError: no answer")},
        "wakeups": [("retry", "capture", 3.5)],
        "sequence": 5,
        "updated": 1,
    },
    "failed": {
        "status": "failed",
        "error": "ValueError: second",
        "steps": {"capture": ("failed", 2, None, "ValueError: second")},
        "sequence": 8,
        "updated": 2,
        "interrupted": "capture",
    },
    "failed-by-workflow": {
        "status": "failed",
        "error": "ZeroDivisionError: division by zero",
        "steps": {"capture": ("completed", 1, 0, None)},
        "sequence": 6,
        "updated": 1,
    },
    "non-retryable": {
        "status": "completed",
        "output": "case-1",
        "steps": {
            "capture": ("failed", 1, None, "NonRetryable: card stolen"),
            "case": ("completed", 1, "case-1", None),
        },
        "sequence": 9,
        "updated": 2,
    },
    "cancelled": {
        "status": "cancelled",
        "steps": {"capture": ("completed", 1, "r-1", None), "refund": ("completed", 1, "refunded", None)},
        "waits": {
            "cool-down": ("cancelled", 3600, None, None, None),
            "approval": ("cancelled", None, "approve", None, None),
        },
        "cancellation": ("customer called", 2),
        "sequence": 12,
        "updated": 3,
    },
    "cancelled-at-once": {
        "status": "cancelled",
        "steps": {"capture": ("running", 1, None, None)},
        "sequence": 5,
        "updated": 1,
    },
    "cancelling": {
        "status": "cancelling",
        "steps": {"capture": ("cancelled", 1, None, None)},
        "waits": {"cool-down": ("cancelled", 60, None, None, None)},
        "cancellation": (None, 1),
        "sequence": 6,
        "updated": 1,
    },
    "step-cancelled": {
        "workflow": "race",
        "status": "completed",
        "steps": {"slow": ("cancelled", 1, None, "not needed any more")},
        "sequence": 6,
        "updated": 1,
    },
    "waits": {
        "workflow": "reminder",
        "status": "suspended",
        "waits": {
            "tomorrow": ("completed", 86400, None, None, None),
            "first": ("waiting", 90000, None, None, None),
            "second": ("waiting", 86401.5, None, None, None),
        },
        "wakeups": [("wait", "second", 86401.5), ("wait", "first", 90000)],
        "sequence": 6,
        "updated": 86400,
    },
    "waits-completed": {
        "workflow": "reminder",
        "status": "completed",
        "waits": {"past": ("completed", -3600, None, None, None)},
        "sequence": 5,
        "updated": 0.5,
    },
    "signals": {
        "workflow": "approval",
        "status": "suspended",
        "waits": {
            "first": ("completed", None, "approve", "s-1", {"by": "Zoë"}),
            "second": ("completed", None, "approve", "s-2", None),
            "third": ("waiting", None, "approve", None, None),
        },
        "signals": {
            "s-1": ("approve", {"by": "Zoë"}, "first"),
            "s-2": ("approve", None, "second"),
            "s-3": ("other", [1], None),
        },
        "sequence": 10,
        "updated": 4,
    },
    "interrupted": {
        "status": "running",
        "steps": {"a": ("completed", 1, 1, None), "b": ("running", 1, None, None)},
        "sequence": 7,
        "updated": 1,
    },
    "interrupted-end": {
        "status": "running",
        "steps": {"capture": ("failed", 1, None, "ValueError: no")},
        "sequence": 5,
        "updated": 1,
        "interrupted": "capture",
    },
}
each_history = pytest.mark.parametrize("name", EXPECTED)


def data_of(name: str) -> bytes:
    return (FOLDER / f"{name}.jsonl").read_bytes()


def appends(name: str) -> Iterator[list[Envelope]]:
    """The appends of a history: one a line."""
    sequence = 0
    for line in data_of(name).split(b"\n")[:-1]:
        found = scan(line + b"\n", name, name, sequence=sequence).envelopes
        sequence += len(found)
        yield found


def seconds(instant: Any) -> float | None:
    return None if instant is None else (instant - ZERO).total_seconds()


def said(projection: Projection) -> dict[str, Any]:
    """What a projection says, in the words of `EXPECTED`."""
    run = projection.snapshot()
    request = run.cancellation_request
    found = {
        "workflow": run.workflow if run.workflow != "checkout" else None,
        "status": run.status.value,
        "input": run.input,
        "output": run.output,
        "error": run.error,
        "steps": {key: (it.status.value, it.attempt, it.output, it.error) for key, it in run.steps.items()},
        "waits": {
            key: (it.status.value, seconds(it.resume_at), it.signal_name, it.signal_id, it.payload)
            for key, it in run.waits.items()
        },
        "signals": {key: (it.name, it.payload, it.wait_id) for key, it in run.signals.items()},
        "cancellation": None if request is None else (request.reason, seconds(request.at)),
        "wakeups": [
            (it.kind, it.subject_id, seconds(it.due_at))
            for it in sorted(projection.wakeups(), key=lambda it: it.order)
        ],
        "sequence": run.sequence,
        "updated": seconds(run.updated_at),
        "interrupted": None if projection.interrupted is None else projection.interrupted.step_id,
    }
    assert (run.version, seconds(run.created_at)) == ("1", 0)
    return {key: value for key, value in found.items() if value is not None and value not in ({}, [])} | (
        {"input": run.input} if run.input is not None else {}
    )


def test_every_file_is_expected() -> None:
    assert sorted(EXPECTED) == sorted(file.stem for file in FOLDER.glob("*.jsonl"))


def test_every_event_there_is_stands_in_a_history() -> None:
    seen = {envelope.kind for name in EXPECTED for rows in appends(name) for envelope in rows}
    assert seen == {
        each.type for each in FlowEvent.__subclasses__() if each.type
    }  # other tests make odd ones


@each_history
def test_a_history_means_what_it_meant(name: str) -> None:
    history = [envelope for rows in appends(name) for envelope in rows]
    projection = Projection.of(name, history)
    assert said(projection) == EXPECTED[name]
    assert str(projection.snapshot().input) == str(EXPECTED[name].get("input"))  # 1, 1.0 and True differ


@each_history
def test_a_history_is_written_as_it_was(name: str) -> None:
    lines = [
        line_of([(envelope, encode(envelope.event.to_dict(), "it")) for envelope in rows])
        for rows in appends(name)
    ]
    assert b"".join(lines) == data_of(name)


@each_history
def test_the_json_form_of_an_envelope_is_what_is_stored(name: str) -> None:
    stored: list[Any] = []
    for line in data_of(name).decode().rstrip("\n").split("\n"):
        value = json.loads(line)
        stored += value if isinstance(value, list) else [value]
    envelopes = [Envelope.from_dict(each) for each in stored]
    assert [json.dumps(each.to_dict()) for each in envelopes] == [json.dumps(each) for each in stored]


@each_history
def test_a_store_on_the_file_knows_the_run(name: str, tmp_path: Path) -> None:
    copyfile(FOLDER / f"{name}.jsonl", tmp_path / f"{name}.jsonl")
    store = JsonlEventStore(tmp_path)
    expected = EXPECTED[name]
    assert store.list_run_ids() == [name]
    assert store.read(name) == [envelope for rows in appends(name) for envelope in rows]
    assert [str(it) for it in store.find_runs([expected["status"]])] == [name]
    assert store.list_due_wakeups(later(1e6)) == [
        Wakeup(kind, name, subject, ZERO + timedelta(seconds=due))
        for kind, subject, due in expected.get("wakeups", [])
    ]
    store.close()
    assert (tmp_path / f"{name}.jsonl").read_bytes() == data_of(name)


@each_history
def test_every_store_takes_the_history_and_gives_it_back(store: Any, name: str) -> None:
    history: list[Envelope] = []
    for rows in appends(name):
        store.append(name, rows[0].sequence - 1, [each.event for each in rows], rows[0].at)
        history += rows
    found = store.read(name)
    assert [(it.sequence, it.at, it.event) for it in found] == [
        (it.sequence, it.at, it.event) for it in history
    ]
    assert said(Projection.of(name, found)) == EXPECTED[name]
    wakeups = store.list_due_wakeups(later(1e6))
    assert [(it.kind, it.subject_id, seconds(it.due_at)) for it in wakeups] == EXPECTED[name].get(
        "wakeups", []
    )


def test_delays_in_a_history_are_those_that_the_policy_draws_today() -> None:
    projection = Projection("retried")
    drawn: list[float] = []
    for rows in appends("retried"):
        for envelope in rows:
            projection.fold(envelope)
            after = getattr(envelope.event, "retry_after", None)
            if after is not None:
                policy = projection.steps["capture"].retry
                attempt = projection.steps["capture"].attempt
                assert (after - envelope.at).total_seconds() == policy.delay("retried", "capture", attempt)
                drawn.append((after - envelope.at).total_seconds())
    assert drawn == [0.659, 0.488]
