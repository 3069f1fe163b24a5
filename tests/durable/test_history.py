"""Events and envelopes: their JSON form, which is stable, and what is refused as one."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.durable import history
from supervisor.durable.errors import CorruptHistory, PayloadTooLarge, SerializationError
from supervisor.durable.history import (
    LONGEST_NAME,
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
    check_event,
    check_form,
    event_from_dict,
)
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.stores.codec import decode_event, draft

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_TEXT = "2026-01-31T12:00:00.000000Z"
SPEC = {"name": "checkout", "version": "1"}
POLICY = RetryPolicy.exponential(8, 1.0, 30.0).continue_workflow_on_failure()

# Each event and its stored text. A line that changes breaks histories that exist.
FORMS: list[tuple[FlowEvent, str]] = [
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
IDS = [f"{n}-{event.type}" for n, (event, _) in enumerate(FORMS)]
CLASSES = [each for each in vars(history).values() if isinstance(each, type) and issubclass(each, FlowEvent)]
CLASSES.remove(FlowEvent)


def test_the_table_has_every_event_and_all_are_exported() -> None:
    assert {type(event) for event, _ in FORMS} == set(CLASSES)
    assert len(CLASSES) == 19
    assert {each.__name__ for each in CLASSES} <= set(history.__all__)


@pytest.mark.parametrize(("event", "text"), FORMS, ids=IDS)
def test_the_json_form_of_each_event_is_this(event: FlowEvent, text: str) -> None:
    assert json.dumps(event.to_dict(), ensure_ascii=False, separators=(",", ":")) == text
    [(envelope, stored)] = draft("r", 0, [event], NOON).rows
    assert stored == text
    assert envelope.event == event
    back = event_from_dict(json.loads(text))
    assert (back, type(back)) == (event, type(event))
    assert type(event).from_dict(json.loads(text)) == event
    assert FlowEvent.from_dict(json.loads(text)) == event
    assert decode_event(text.encode(), "r", 1) == event


@pytest.mark.parametrize(("event", "text"), FORMS, ids=IDS)
def test_each_event_is_a_value(event: FlowEvent, text: str) -> None:
    assert copy.deepcopy(event) == pickle.loads(pickle.dumps(event)) == event
    assert event.type == json.loads(text)["type"]
    for each in fields(event):
        with pytest.raises(FrozenInstanceError):
            setattr(event, each.name, None)


@pytest.mark.parametrize(("event", "text"), FORMS, ids=IDS)
def test_a_field_more_or_less_is_refused(event: FlowEvent, text: str) -> None:
    form = json.loads(text)
    with pytest.raises(SerializationError, match=f"is no {event.type}"):
        event_from_dict({**form, "more": 1})
    for name in form.keys() - {"type"}:
        less = {key: value for key, value in form.items() if key != name}
        if name in ("reason", "retry_after") and type(event) is not StepCancelled:
            assert getattr(event_from_dict(less), name) is None
        else:
            with pytest.raises(SerializationError, match=f"is no {event.type}: it lacks {name}"):
                event_from_dict(less)


TEXTS = {"error", "step_id", "step_name", "wait_id", "signal_name", "signal_id", "reason"}
WRONG: dict[str, list[object]] = {
    **{name: [1, True, ["x"], {"x": 1}] for name in TEXTS},
    "attempt": [-1, 2**32, 1.0, True, "1", None],
    "retry": [None, 3, "fixed", [], {}, {"max_attempts": 3}, {"max_attempts": True, "delay_ms": 0}],
    "retry_after": ["soon", 5, "2026-01-31T12:00:00", []],
    "resume_at": ["", 5, None, "2026-01-31T12:00:00", "0001-01-01T00:00:00+14:00"],
    "spec": [
        None,
        [],
        "checkout",
        {},
        {"name": "x"},
        {"name": "x", "version": 1},
        {"name": None, "version": "1"},
    ],
    "signal": [None, [], "paid", {}, {"signal_id": "g"}, {"signal_id": 1, "name": "paid"}],
    "request": [None, [], "reason", {"reason": 5}, {"reason": ["x"]}],
}


@pytest.mark.parametrize(("event", "text"), FORMS, ids=IDS)
def test_a_field_of_another_type_is_refused_by_name(event: FlowEvent, text: str) -> None:
    for name in json.loads(text).keys() & WRONG.keys():
        for value in WRONG[name]:
            with pytest.raises(SerializationError) as caught:
                event_from_dict({**json.loads(text), name: value})
            assert event.type in str(caught.value) or "retry" in str(caught.value)


@pytest.mark.parametrize("name", ["error", "step_id", "step_name", "wait_id", "signal_name", "signal_id"])
def test_a_text_that_is_none_is_refused(name: str) -> None:
    for event, text in FORMS:
        if name in json.loads(text):
            with pytest.raises(SerializationError, match=f"{event.type}.{name} must be text"):
                event_from_dict({**json.loads(text), name: None})
    with pytest.raises(SerializationError, match=r"step_cancelled.reason must be text, got None"):
        StepCancelled.from_dict({"type": "step_cancelled", "step_id": "s", "attempt": 0, "reason": None})


@pytest.mark.parametrize(
    "form",
    [{}, {"type": "run_paused"}, {"type": None}, {"type": ["run_started"]}, {"type": ""}, [], "x", None],
)
def test_an_unknown_type_is_refused(form: Any) -> None:
    with pytest.raises(
        SerializationError, match=r"^event (has the unknown type .*; known: run_created|must be an)"
    ):
        event_from_dict(form)


def test_a_class_refuses_the_forms_of_others() -> None:
    with pytest.raises(SerializationError, match=r"must be of type 'run_failed', got 'run_started'"):
        RunFailed.from_dict({"type": "run_started"})


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


# -- checking


def test_a_checked_event_shares_nothing_that_can_change() -> None:
    value: dict[str, Any] = {"items": [(1, 2)]}
    for event in (
        RunCreated(SPEC, value),
        StepCreated("s", "n", value),
        StepCompleted("s", value),
        RunCompleted(value),
    ):
        found = check_event(event)
        value["items"].append(3)
        assert found != event
        kept = found.to_dict()
        assert kept.get("input", kept.get("output")) == {"items": [[1, 2]]}
        value["items"].pop()


@pytest.mark.parametrize(("event", "text"), FORMS, ids=IDS)
def test_a_checked_event_comes_with_its_json_form(event: FlowEvent, text: str) -> None:
    found, form = check_form(event)
    assert found == event
    assert json.dumps(form, ensure_ascii=False, separators=(",", ":")) == text
    assert check_event(found) == found


def test_a_policy_of_another_class_keeps_its_settings() -> None:
    class Mine(RetryPolicy):
        pass

    found, form = check_form(StepCreated("s", "n", None, Mine.fixed(5, 1)))
    assert isinstance(found, StepCreated)
    assert (found.retry.max_attempts, form["retry"]) == (5, {"max_attempts": 5, "delay_ms": 1000})


@pytest.mark.parametrize(
    ("event", "path"),
    [
        (RunCreated(SPEC, {"a": {1}}), "run_created.input.a"),
        (RunCreated({"name": "x"}), "run_created.spec"),
        (RunCreated({"name": "x", "version": 1}), "run_created.spec"),
        (RunCompleted(float("nan")), "run_completed.output"),
        (RunFailed(ValueError("x")), "run_failed.error"),  # type: ignore[arg-type]
        (RunFailed("\ud800"), "run_failed.error"),
        (RunFailed(None), "run_failed.error"),  # type: ignore[arg-type]
        (RunCancelled(5), "run_cancelled.reason"),  # type: ignore[arg-type]
        (RunCancellationRequested({"reason": 5}), "run_cancellation_requested.request"),
        (RunCancellationRequested(None), "run_cancellation_requested.request"),
        (StepCreated("s\x00", "n"), "step_created.step_id"),
        (StepCreated("s" * 501, "n"), "step_created.step_id"),
        (StepCreated(7, "n"), "step_created.step_id"),  # type: ignore[arg-type]
        (StepCreated("s", "n", [NOON]), "step_created.input[0]"),
        (StepStarted("s", True), "step_started.attempt"),
        (StepStarted("s", 1.0), "step_started.attempt"),  # type: ignore[arg-type]
        (StepStarted("s", -1), "step_started.attempt"),
        (StepStarted("s", 2**32), "step_started.attempt"),
        (StepStarted("s", None), "step_started.attempt"),  # type: ignore[arg-type]
        (StepCompleted("s", {2: 1}), "step_completed.output"),
        (StepCancelled("s", 0, None), "step_cancelled.reason"),  # type: ignore[arg-type]
        (WaitCreated("w\x00", NOON), "wait_created.wait_id"),
        (SignalWaitCreated("w", "n" * 501), "signal_wait_created.signal_name"),
        (SignalReceived({"signal_id": "g", "name": "a\x00b"}), "signal_received.signal"),
        (SignalReceived({"signal_id": "g", "name": "n", "payload": {1}}), "signal_received.signal.payload"),
        (SignalReceived([]), "signal_received.signal"),
    ],
)
def test_values_that_cannot_be_stored_are_refused_by_place(event: FlowEvent, path: str) -> None:
    with pytest.raises(SerializationError) as caught:
        check_event(event)
    assert caught.value.path == path


def test_ids_of_500_characters_and_errors_with_nul_are_fine() -> None:
    assert check_event(StepCreated("é" * LONGEST_NAME, "n" * LONGEST_NAME)).to_dict()["step_id"] == "é" * 500
    assert check_event(RunFailed("a\x00b")) == RunFailed("a\x00b")


class _Mine(FlowEvent):
    """Not one of ours."""


@pytest.mark.parametrize(
    "event", [None, "run_started", {"type": "run_started"}, RunStarted, FlowEvent(), _Mine()]
)
def test_what_is_no_event_is_a_type_error(event: object) -> None:
    with pytest.raises(TypeError, match=r"events must be events of a history, such as RunStarted\(\), got"):
        check_event(event)


def test_an_event_above_one_mebibyte_is_refused_by_name() -> None:
    draft("r", 0, [RunCompleted("x" * (1024 * 1024 - 36))], NOON)
    with pytest.raises(
        PayloadTooLarge, match=r"^run_completed of run 'r' has 1048577 bytes of JSON, the limit is 1048576"
    ):
        draft("r", 0, [RunCompleted("x" * (1024 * 1024 - 35))], NOON)


def test_event_ids_are_random_uuids_of_version_4() -> None:
    from uuid import RFC_4122, UUID

    ids = [each.event_id for _ in range(20) for each in draft("r", 0, [RunStarted()] * 5, NOON).envelopes]
    assert len(set(ids)) == 100
    assert {(UUID(each).version, UUID(each).variant, UUID(each).hex == each) for each in ids} == {
        (4, RFC_4122, True)
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
KEYS = sorted({key for _, text in FORMS for key in json.loads(text)} | {"more"})
LABELS = sorted({event.type for event, _ in FORMS})


@given(
    st.fixed_dictionaries({"type": st.sampled_from(LABELS) | JSON}),
    st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6),
)
def test_any_object_is_an_event_or_refused(label: dict[str, Any], rest: dict[str, Any]) -> None:
    try:
        event = event_from_dict({**label, **rest})
    except SerializationError:
        return
    assert event.type == {**label, **rest}["type"]
    assert event_from_dict(event.to_dict()) == event or "nan" in repr(event)


@given(st.sampled_from(FORMS), st.sampled_from(KEYS), JSON)
def test_a_form_with_one_field_replaced_is_an_event_or_refused(
    form: tuple[FlowEvent, str], name: str, value: object
) -> None:
    data = {**json.loads(form[1]), name: value}
    try:
        event = event_from_dict(data)
    except SerializationError:
        return
    try:
        found, written = check_form(event)
    except SerializationError:
        return  # a value that no JSON text has, such as NaN
    assert event_from_dict(json.loads(json.dumps(written))) == found


# -- envelopes

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
