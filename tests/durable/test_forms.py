"""The JSON form of events, which is stable, and what is refused as one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.durable.errors import PayloadTooLarge, SerializationError
from supervisor.durable.forms import LONGEST_NAME
from supervisor.durable.history import (
    FORMS,
    FlowEvent,
    RunCancellationRequested,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunStarted,
    SignalReceived,
    SignalWaitCreated,
    StepCancelled,
    StepCompleted,
    StepCreated,
    StepStarted,
    WaitCreated,
)
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.stores.codec import decode_event, draft
from tests.durable.test_history import IDS, NOON, SPEC, WRITTEN


@pytest.mark.parametrize(("event", "text"), WRITTEN, ids=IDS)
def test_the_json_form_of_each_event_is_this(event: FlowEvent, text: str) -> None:
    assert json.dumps(event.to_dict(), ensure_ascii=False, separators=(",", ":")) == text
    [(envelope, stored)] = draft("r", 0, [event], NOON).rows
    assert stored == text
    assert envelope.event == event
    back = FORMS.read(json.loads(text))
    assert (back, type(back)) == (event, type(event))
    assert type(event).from_dict(json.loads(text)) == event
    assert FlowEvent.from_dict(json.loads(text)) == event
    assert decode_event(text.encode(), "r", 1) == event


@pytest.mark.parametrize(("event", "text"), WRITTEN, ids=IDS)
def test_a_field_more_or_less_is_refused(event: FlowEvent, text: str) -> None:
    form = json.loads(text)
    with pytest.raises(SerializationError, match=f"is no {event.type}"):
        FORMS.read({**form, "more": 1})
    for name in form.keys() - {"type"}:
        less = {key: value for key, value in form.items() if key != name}
        if name in ("reason", "retry_after") and type(event) is not StepCancelled:
            assert getattr(FORMS.read(less), name) is None
        else:
            with pytest.raises(SerializationError, match=f"is no {event.type}: it lacks {name}"):
                FORMS.read(less)


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


@pytest.mark.parametrize(("event", "text"), WRITTEN, ids=IDS)
def test_a_field_of_another_type_is_refused_by_name(event: FlowEvent, text: str) -> None:
    for name in json.loads(text).keys() & WRONG.keys():
        for value in WRONG[name]:
            with pytest.raises(SerializationError) as caught:
                FORMS.read({**json.loads(text), name: value})
            assert event.type in str(caught.value) or "retry" in str(caught.value)


@pytest.mark.parametrize("name", ["error", "step_id", "step_name", "wait_id", "signal_name", "signal_id"])
def test_a_text_that_is_none_is_refused(name: str) -> None:
    for event, text in WRITTEN:
        if name in json.loads(text):
            with pytest.raises(SerializationError, match=f"{event.type}.{name} must be text"):
                FORMS.read({**json.loads(text), name: None})
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
        FORMS.read(form)


def test_a_class_refuses_the_forms_of_others() -> None:
    with pytest.raises(SerializationError, match=r"must be of type 'run_failed', got 'run_started'"):
        RunFailed.from_dict({"type": "run_started"})


# -- checking


def test_a_checked_event_shares_nothing_that_can_change() -> None:
    value: dict[str, Any] = {"items": [(1, 2)]}
    for event in (
        RunCreated(SPEC, value),
        StepCreated("s", "n", value),
        StepCompleted("s", value),
        RunCompleted(value),
    ):
        found = FORMS.check(event)[0]
        value["items"].append(3)
        assert found != event
        kept = found.to_dict()
        assert kept.get("input", kept.get("output")) == {"items": [[1, 2]]}
        value["items"].pop()


@pytest.mark.parametrize(("event", "text"), WRITTEN, ids=IDS)
def test_a_checked_event_comes_with_its_json_form(event: FlowEvent, text: str) -> None:
    found, form = FORMS.check(event)
    assert found == event
    assert json.dumps(form, ensure_ascii=False, separators=(",", ":")) == text
    assert FORMS.check(found)[0] == found


def test_a_policy_of_another_class_keeps_its_settings() -> None:
    class Mine(RetryPolicy):
        pass

    found, form = FORMS.check(StepCreated("s", "n", None, Mine.fixed(5, 1)))
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
        FORMS.check(event)[0]
    assert caught.value.path == path


def test_ids_of_500_characters_and_errors_with_nul_are_fine() -> None:
    assert (
        FORMS.check(StepCreated("é" * LONGEST_NAME, "n" * LONGEST_NAME))[0].to_dict()["step_id"] == "é" * 500
    )
    assert FORMS.check(RunFailed("a\x00b"))[0] == RunFailed("a\x00b")


class _Mine(FlowEvent):
    """Not one of ours."""


@pytest.mark.parametrize(
    "event", [None, "run_started", {"type": "run_started"}, RunStarted, FlowEvent(), _Mine()]
)
def test_what_is_no_event_is_a_type_error(event: object) -> None:
    with pytest.raises(TypeError, match=r"events must be events of a history, such as RunStarted\(\), got"):
        FORMS.check(event)[0]


def test_an_event_above_one_mebibyte_is_refused_by_name() -> None:
    draft("r", 0, [RunCompleted("x" * (1024 * 1024 - 36))], NOON)
    with pytest.raises(
        PayloadTooLarge, match=r"^run_completed of run 'r' has 1048577 bytes of JSON, the limit is 1048576"
    ):
        draft("r", 0, [RunCompleted("x" * (1024 * 1024 - 35))], NOON)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
KEYS = sorted({key for _, text in WRITTEN for key in json.loads(text)} | {"more"})
LABELS = sorted({event.type for event, _ in WRITTEN})


@given(
    st.fixed_dictionaries({"type": st.sampled_from(LABELS) | JSON}),
    st.dictionaries(st.sampled_from(KEYS), JSON, max_size=6),
)
def test_any_object_is_an_event_or_refused(label: dict[str, Any], rest: dict[str, Any]) -> None:
    try:
        event = FORMS.read({**label, **rest})
    except SerializationError:
        return
    assert event.type == {**label, **rest}["type"]
    assert FORMS.read(event.to_dict()) == event or "nan" in repr(event)


@given(st.sampled_from(WRITTEN), st.sampled_from(KEYS), JSON)
def test_a_form_with_one_field_replaced_is_an_event_or_refused(
    form: tuple[FlowEvent, str], name: str, value: object
) -> None:
    data = {**json.loads(form[1]), name: value}
    try:
        event = FORMS.read(data)
    except SerializationError:
        return
    try:
        found, written = FORMS.check(event)
    except SerializationError:
        return  # a value that no JSON text has, such as NaN
    assert FORMS.read(json.loads(json.dumps(written))) == found
