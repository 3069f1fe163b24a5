"""Events and envelopes: values of their own, and what is refused as one."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from supervisor.durable import history
from supervisor.durable.errors import CorruptHistory, SerializationError
from supervisor.durable.history import (
    Envelope,
    FlowEvent,
    RunCancellationRequested,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunRetryExhausted,
    RunStarted,
    SignalReceived,
    SignalWaitCompleted,
    SignalWaitCreated,
    StepCancelled,
    StepCompleted,
    StepCreated,
    StepFailed,
    StepNonRetryable,
    StepRetrying,
    StepStarted,
    WaitCompleted,
    WaitCreated,
)
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.stores.codec import decode_event, draft

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_TEXT = "2026-01-31T12:00:00.000000Z"
SPEC = {"name": "checkout", "version": "1"}
POLICY = RetryPolicy.exponential(8, 1.0, 30.0).continue_workflow_on_failure()

# Each event and its stored text. A line that changes breaks histories that exist.
WRITTEN: list[tuple[FlowEvent, str]] = [
    (
        RunCreated(SPEC, {"id": 7}),
        '{"type":"run_created","spec":{"name":"checkout","version":"1"},"input":{"id":7}}',
    ),
    (
        RunCreated(SPEC),
        '{"type":"run_created","spec":{"name":"checkout","version":"1"},"input":null}',
    ),
    (RunStarted(), '{"type":"run_started"}'),
    (RunCompleted([1, 1.0, True]), '{"type":"run_completed","output":[1,1.0,true]}'),
    (RunCompleted(), '{"type":"run_completed","output":null}'),
    (RunFailed("ValueError: x"), '{"type":"run_failed","error":"ValueError: x"}'),
    (
        RunRetryExhausted("s", 3, "boom"),
        '{"type":"run_retry_exhausted","step_id":"s","attempt":3,"error":"boom"}',
    ),
    (RunCancellationRequested(), '{"type":"run_cancellation_requested","request":{}}'),
    (
        RunCancellationRequested({"reason": "no stock"}),
        '{"type":"run_cancellation_requested","request":{"reason":"no stock"}}',
    ),
    (RunCancelled(), '{"type":"run_cancelled"}'),
    (RunCancelled("no stock"), '{"type":"run_cancelled","reason":"no stock"}'),
    (
        StepCreated("s", "charge", {"été": "日本"}),
        '{"type":"step_created","step_id":"s","step_name":"charge","input":{"été":"日本"},'
        '"retry":{"max_attempts":3,"delay_ms":0}}',
    ),
    (
        StepCreated("s", "charge", None, POLICY),
        '{"type":"step_created","step_id":"s","step_name":"charge","input":null,"retry":{"max_attempts":8,'
        '"delay_ms":1000,"backoff":"exponential","max_delay_ms":30000,"on_exhausted":"continue_workflow"}}',
    ),
    (StepStarted("s", 1), '{"type":"step_started","step_id":"s","attempt":1}'),
    (StepCompleted("s", {"a": [None]}), '{"type":"step_completed","step_id":"s","output":{"a":[null]}}'),
    (StepCompleted("s"), '{"type":"step_completed","step_id":"s","output":null}'),
    (
        StepRetrying("s", 1, "boom"),
        '{"type":"step_retrying","step_id":"s","attempt":1,"error":"boom"}',
    ),
    (
        StepRetrying("s", 1, "boom", NOON),
        f'{{"type":"step_retrying","step_id":"s","attempt":1,"error":"boom","retry_after":"{NOON_TEXT}"}}',
    ),
    (StepFailed("s", 3, "boom"), '{"type":"step_failed","step_id":"s","attempt":3,"error":"boom"}'),
    (
        StepNonRetryable("s", 1, "boom"),
        '{"type":"step_non_retryable","step_id":"s","attempt":1,"error":"boom"}',
    ),
    (
        StepCancelled("s", 0, "its run was canceled"),
        '{"type":"step_cancelled","step_id":"s","attempt":0,"reason":"its run was canceled"}',
    ),
    (WaitCreated("w", NOON), f'{{"type":"wait_created","wait_id":"w","resume_at":"{NOON_TEXT}"}}'),
    (WaitCompleted("w"), '{"type":"wait_completed","wait_id":"w"}'),
    (
        SignalReceived({"signal_id": "g", "name": "paid", "payload": {"by": 1}}),
        '{"type":"signal_received","signal":{"signal_id":"g","name":"paid","payload":{"by":1}}}',
    ),
    (
        SignalWaitCreated("w", "paid"),
        '{"type":"signal_wait_created","wait_id":"w","signal_name":"paid"}',
    ),
    (
        SignalWaitCompleted("w", "g"),
        '{"type":"signal_wait_completed","wait_id":"w","signal_id":"g"}',
    ),
]
IDS = [f"{n}-{event.type}" for n, (event, _) in enumerate(WRITTEN)]
CLASSES = [each for each in vars(history).values() if isinstance(each, type) and issubclass(each, FlowEvent)]
CLASSES.remove(FlowEvent)


def test_the_table_has_every_event_and_all_are_exported() -> None:
    assert {type(event) for event, _ in WRITTEN} == set(CLASSES)
    assert len(CLASSES) == 19
    assert {each.__name__ for each in CLASSES} <= set(history.__all__)


@pytest.mark.parametrize(("event", "text"), WRITTEN, ids=IDS)
def test_each_event_is_a_value(event: FlowEvent, text: str) -> None:
    assert copy.deepcopy(event) == pickle.loads(pickle.dumps(event)) == event
    assert event.type == json.loads(text)["type"]
    for each in fields(event):
        with pytest.raises(FrozenInstanceError):
            setattr(event, each.name, None)


# -- constructors


def test_instants_are_kept_in_utc_and_must_be_aware() -> None:
    berlin = NOON.astimezone(timezone(timedelta(hours=1)))
    assert WaitCreated("w", berlin).resume_at.tzinfo is UTC
    assert WaitCreated("w", berlin) == WaitCreated("w", NOON)
    assert StepRetrying("s", 1, "x", berlin).to_dict()["retry_after"] == NOON_TEXT
    with pytest.raises(ValueError, match=r"resume_at must be an aware datetime"):
        WaitCreated("w", datetime(2026, 1, 31))
    with pytest.raises(TypeError, match=r"retry_after must be a datetime, got 5"):
        StepRetrying("s", 1, "x", 5)  # type: ignore[arg-type]


def test_a_policy_may_be_given_as_its_json_form_and_as_nothing_else() -> None:
    assert StepCreated("s", "n", None, POLICY.to_dict()).retry == POLICY  # type: ignore[arg-type]
    for other in (None, 3, "fixed", []):
        with pytest.raises(TypeError, match=r"retry must be a RetryPolicy"):
            StepCreated("s", "n", None, other)  # type: ignore[arg-type]
    with pytest.raises(SerializationError, match=r"is no retry policy"):
        StepCreated("s", "n", None, {"max_attempts": 1})  # type: ignore[arg-type]


def test_an_event_tells_what_stands_in_its_object() -> None:
    signal = SignalReceived({"signal_id": "g", "name": "paid"})
    assert (signal.signal_id, signal.name, signal.payload) == ("g", "paid", None)
    assert RunCancellationRequested({"reason": "x"}).reason == "x"
    assert RunCancellationRequested().reason is None


# -- envelopes


def test_event_ids_are_random_uuids_of_version_4() -> None:
    from uuid import RFC_4122, UUID

    ids = [each.event_id for _ in range(20) for each in draft("r", 0, [RunStarted()] * 5, NOON).envelopes]
    assert len(set(ids)) == 100
    assert {(UUID(each).version, UUID(each).variant, UUID(each).hex == each) for each in ids} == {
        (4, RFC_4122, True)
    }


ENVELOPE = Envelope("run-1", 3, "e3", NOON, StepStarted("s", 1))
FORM = {
    "schema_version": 1,
    "run_id": "run-1",
    "sequence": 3,
    "event_id": "e3",
    "at": NOON_TEXT,
    "event": {"type": "step_started", "step_id": "s", "attempt": 1},
}


def test_the_json_form_of_an_envelope_is_this() -> None:
    assert json.dumps(ENVELOPE.to_dict()) == json.dumps(FORM)
    assert Envelope.from_dict(FORM) == ENVELOPE
    assert ENVELOPE.kind == "step_started"
    assert copy.deepcopy(ENVELOPE) == pickle.loads(pickle.dumps(ENVELOPE)) == ENVELOPE
    assert replace(ENVELOPE, sequence=4).sequence == 4


def test_an_envelope_without_a_version_is_of_version_1() -> None:
    assert (
        Envelope.from_dict({key: value for key, value in FORM.items() if key != "schema_version"}) == ENVELOPE
    )


@pytest.mark.parametrize("version", [0, 2, -1, True, 1.0, "1", None])
def test_another_format_version_is_refused(version: object) -> None:
    with pytest.raises(
        CorruptHistory, match=r"of format version .*; this library reads version 1, update it"
    ):
        Envelope.from_dict({**FORM, "schema_version": version})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run_id", 7),
        ("run_id", None),
        ("sequence", 0),
        ("sequence", -1),
        ("sequence", True),
        ("sequence", 3.0),
        ("sequence", "3"),
        ("event_id", None),
        ("at", "2026-01-31T12:00:00"),
        ("at", 0),
        ("at", "9999-12-31T23:59:59-14:00"),
        ("event", None),
        ("event", []),
        ("event", {"type": "run_paused"}),
        ("event", {"type": "step_started", "step_id": "s"}),
    ],
)
def test_a_damaged_envelope_is_corrupt_history(name: str, value: object) -> None:
    with pytest.raises(CorruptHistory, match=r"^no event of a history"):
        Envelope.from_dict({**FORM, name: value})


@pytest.mark.parametrize("name", ["run_id", "sequence", "event_id", "at", "event"])
def test_an_envelope_that_lacks_a_field_is_corrupt_history(name: str) -> None:
    with pytest.raises(CorruptHistory, match=r"^no event of a history"):
        Envelope.from_dict({key: value for key, value in FORM.items() if key != name})


@pytest.mark.parametrize("data", [[], "x", None, 5])
def test_what_is_no_object_is_corrupt_history(data: Any) -> None:
    with pytest.raises(CorruptHistory, match=r"^no event of a history, but"):
        Envelope.from_dict(data)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"type":"x"}', b"\xff", "[" * 100_000, '{"type":NaN}']
)
def test_a_stored_text_that_is_no_event_is_corrupt_history(text: str | bytes) -> None:
    with pytest.raises(CorruptHistory, match=r"^event 3 of run 'r' can't be read .*; it was left as it is$"):
        decode_event(text, "r", 3)
