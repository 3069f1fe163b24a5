"""Any sequence of events folds or is refused; folding in parts is folding at once; what is legal is never refused."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.durable.errors import InvalidTransition
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
from supervisor.durable.projection import Projection
from supervisor.durable.retry import RetryPolicy
from supervisor.durable.snapshot import RunStatus
from supervisor.durable.stores.codec import decode_event, draft
from tests.durable.histories import BEGUN, CREATED, START, at, dump, envelopes

QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

IDS = st.sampled_from(["a", "b", "c", ""])
NAMES = st.sampled_from(["x", "y", " "])
ATTEMPTS = st.integers(0, 3)
TEXTS = st.sampled_from(["boom", "late"])
TIMES = st.integers(0, 9).map(at)
VALUES = st.sampled_from([None, 1, {"k": [1]}])
POLICIES = st.sampled_from(
    [
        RetryPolicy.none(),
        RetryPolicy.fixed(2, 0),
        RetryPolicy.fixed(3, 5),
        RetryPolicy.exponential(2, 1, 4).continue_workflow_on_failure(),
        RetryPolicy.none().continue_workflow_on_failure(),
        RetryPolicy(2, 2**64 - 1),
    ]
)
EVENTS: st.SearchStrategy[FlowEvent] = st.one_of(
    st.just(CREATED),
    st.just(RunStarted()),
    st.builds(RunCompleted, VALUES),
    st.builds(RunFailed, TEXTS),
    st.builds(RunRetryExhausted, IDS, ATTEMPTS, TEXTS),
    st.builds(RunCancellationRequested, st.sampled_from([{}, {"reason": "r"}])),
    st.builds(RunCancelled, st.none() | TEXTS),
    st.builds(StepCreated, IDS, NAMES, VALUES, POLICIES),
    st.builds(StepStarted, IDS, ATTEMPTS),
    st.builds(StepCompleted, IDS, VALUES),
    st.builds(StepRetrying, IDS, ATTEMPTS, TEXTS, st.none() | TIMES),
    st.builds(StepFailed, IDS, ATTEMPTS, TEXTS),
    st.builds(StepNonRetryable, IDS, ATTEMPTS, TEXTS),
    st.builds(StepCancelled, IDS, ATTEMPTS, TEXTS),
    st.builds(WaitCreated, IDS, TIMES),
    st.builds(WaitCompleted, IDS),
    st.builds(SignalReceived, st.fixed_dictionaries({"signal_id": IDS, "name": NAMES, "payload": VALUES})),
    st.builds(SignalWaitCreated, IDS, NAMES),
    st.builds(SignalWaitCompleted, IDS, IDS),
)


def folds(projection: Projection, event: FlowEvent) -> bool:
    """Fold it, or be refused and change nothing; anything else is an error."""
    before = dump(projection)
    envelope = Envelope(
        projection.run_id,
        projection.sequence + 1,
        f"event-{projection.sequence + 1}",
        at(projection.sequence),
        event,
    )
    refusal = ""
    try:
        projection.fold(envelope)
    except InvalidTransition as error:
        refusal = str(error)
    if refusal:
        assert dump(projection) == before
        assert event.type in refusal or "can't be represented as a UTC instant" in refusal
        return False
    assert projection.sequence == envelope.sequence
    assert_sane(projection)
    return True


def assert_sane(made: Projection) -> None:
    """What must hold after every event, told from the public fields alone."""
    open_steps = [each for each in made.steps.values() if each.status in ("pending", "running")]
    open_waits = [each for each in made.waits.values() if each.status == "waiting"]
    delayed = [each for each in open_steps if each.retry_after is not None]
    assert made.open_steps == open_steps
    due = {("wait", each.wait_id, each.resume_at) for each in open_waits if each.resume_at is not None}
    due |= {("retry", each.step_id, each.retry_after) for each in delayed}
    found = [(kind, subject, when) for kind, _, subject, when in made.wakeups()]
    assert len(found) == len(set(found))
    assert set(found) == (set() if made.terminal else due)
    buffered = [each for each in made.signals.values() if each.wait_id is None]
    for_signals = [each for each in open_waits if each.signal_name is not None]
    names = {each.name for each in buffered} & {each.signal_name for each in for_signals}
    pair = made.pair()
    if made.terminal or not names:
        assert pair is None
    else:
        assert pair is not None
        wait, signal = pair
        assert wait is next(each for each in for_signals if each.signal_name == signal.name)
        assert signal is next(each for each in buffered if each.name == wait.signal_name)
    suspended = (
        bool(open_waits or delayed)
        and len(delayed) == len(open_steps)
        and not names
        and made.interrupted is None
    )
    if made.status in (RunStatus.RUNNING, RunStatus.SUSPENDED):
        assert made.status is (RunStatus.SUSPENDED if suspended else RunStatus.RUNNING)
    for each in made.steps.values():
        assert 0 <= each.attempt <= each.retry.max_attempts
        assert (each.ended_at is None) == (each.ended_seq == 0) == each.open == (each in open_steps)
    snapshot = made.snapshot()
    assert (snapshot.status, snapshot.sequence) == (made.status, made.sequence)
    assert (list(snapshot.steps), list(snapshot.waits), list(snapshot.signals)) == (
        list(made.steps),
        list(made.waits),
        list(made.signals),
    )


@QUICK
@given(st.lists(EVENTS, max_size=25), st.booleans())
def test_any_sequence_folds_or_is_refused_and_a_refusal_changes_nothing(
    events: list[FlowEvent], begin: bool
) -> None:
    made = Projection("run-1")
    for event in [*(BEGUN if begin else ()), *events]:
        folds(made, event)


# -- a writer that knows the rules, and a model of what it has done


@st.composite
def legal_histories(draw: st.DrawFn, most: int = 30) -> list[FlowEvent]:
    """Events that an engine could have written, from what it knows itself: no projection is asked."""
    events: list[FlowEvent] = [CREATED]
    number = 0
    signals: list[tuple[str, str]] = []  # id, name; not taken yet
    while len(events) < 4 and draw(st.booleans()):
        number += 1
        signals.append((f"g{number}", draw(st.sampled_from("xy"))))
        events.append(_signal(*signals[-1]))
    if not draw(st.integers(0, 9)):
        events.append(RunCancellationRequested())
        canceling = True
    else:
        events.append(RunStarted())
        canceling = False
    pending: dict[str, tuple[int, RetryPolicy]] = {}  # step -> attempts so far, policy
    running: dict[str, tuple[int, RetryPolicy]] = {}
    timers: list[str] = []
    mail: list[tuple[str, str]] = []  # wait, name; in order of creation
    fatal: tuple[str, int, str, bool] | None = None  # the first step that has failed and fails the run
    for _ in range(draw(st.integers(0, most))):
        number += 1
        choices = ["signal"]
        if fatal is None:
            choices += ["step", "step", "timer", "mail"]
            choices += ["start", "start"] * bool(pending)
        choices += ["complete", "fail", "fatal"] * bool(running)
        choices += ["give up"] * bool(pending or running)
        choices += ["ring"] * bool(timers)
        pairs = [(w, g) for name in "xy" for (w, g) in _oldest(mail, signals, name)]
        choices += ["pair", "pair"] * bool(pairs)
        choices += ["cancel"] * (not canceling)
        match draw(st.sampled_from(choices)):
            case "signal":
                signals.append((f"g{number}", draw(st.sampled_from("xy"))))
                events.append(_signal(*signals[-1]))
            case "step":
                policy = draw(POLICIES.filter(lambda each: each.longest_ms < 2**40))
                pending[f"s{number}"] = 0, policy
                events.append(StepCreated(f"s{number}", "n", draw(VALUES), policy))
            case "start":
                step_id = draw(st.sampled_from(sorted(pending)))
                attempt, policy = pending.pop(step_id)
                running[step_id] = attempt + 1, policy
                events.append(StepStarted(step_id, attempt + 1))
            case "complete":
                step_id = draw(st.sampled_from(sorted(running)))
                del running[step_id]
                events.append(StepCompleted(step_id, draw(VALUES)))
            case "fail":
                step_id = draw(st.sampled_from(sorted(running)))
                attempt, policy = running.pop(step_id)
                if attempt < policy.max_attempts:
                    pending[step_id] = attempt, policy
                    events.append(
                        StepRetrying(step_id, attempt, "boom", draw(TIMES) if policy.longest_ms else None)
                    )
                else:
                    if not policy.continues:
                        fatal = fatal or (step_id, attempt, "boom", True)
                    events.append(StepFailed(step_id, attempt, "boom"))
            case "fatal":
                step_id = draw(st.sampled_from(sorted(running)))
                attempt, policy = running.pop(step_id)
                if not policy.continues:
                    fatal = fatal or (step_id, attempt, "never", False)
                events.append(StepNonRetryable(step_id, attempt, "never"))
            case "give up":
                step_id = draw(st.sampled_from(sorted(pending | running)))
                attempt, _policy = (pending if step_id in pending else running).pop(step_id)
                events.append(StepCancelled(step_id, attempt, "its outcome is unknown"))
            case "timer":
                timers.append(f"w{number}")
                events.append(WaitCreated(f"w{number}", draw(TIMES)))
            case "mail":
                mail.append((f"w{number}", draw(st.sampled_from("xy"))))
                events.append(SignalWaitCreated(*mail[-1]))
            case "ring":
                events.append(WaitCompleted(timers.pop(draw(st.integers(0, len(timers) - 1)))))
            case "pair":
                wait, signal = draw(st.sampled_from(pairs))
                mail.remove(wait)
                signals.remove(signal)
                events.append(SignalWaitCompleted(wait[0], signal[0]))
            case _:
                canceling = True
                for each in (pending, running, timers, mail):
                    each.clear()
                events.append(RunCancellationRequested({"reason": "r"}))
    if fatal is not None:
        step_id, attempt, error, exhausted = fatal
        events.append(RunRetryExhausted(step_id, attempt, error) if exhausted else RunFailed(error))
    elif draw(st.booleans()):
        ends: list[FlowEvent] = [RunFailed("x"), RunCancelled("r")]
        events.append(draw(st.sampled_from(ends if canceling else [*ends, RunCompleted({"ok": True})])))
    return events


def _signal(signal_id: str, name: str) -> SignalReceived:
    return SignalReceived({"signal_id": signal_id, "name": name, "payload": {"of": [signal_id]}})


def _oldest(mail: list[tuple[str, str]], signals: list[tuple[str, str]], name: str) -> list[Any]:
    waits = [each for each in mail if each[1] == name]
    found = [each for each in signals if each[1] == name]
    return [(waits[0], found[0])] if waits and found else []


@QUICK
@given(legal_histories())
def test_what_an_engine_may_write_is_never_refused(events: list[FlowEvent]) -> None:
    made = Projection("run-1")
    for event in events:
        assert folds(made, event)


@QUICK
@given(legal_histories(), st.data())
def test_a_legal_history_that_was_tampered_with_folds_or_is_refused(
    events: list[FlowEvent], data: st.DataObject
) -> None:
    for _ in range(data.draw(st.integers(1, 3), label="changes")):
        place = data.draw(st.integers(0, len(events) - 1), label="place")
        match data.draw(st.sampled_from(["drop", "double", "swap", "replace", "insert"]), label="change"):
            case "drop" if len(events) > 1:
                del events[place]
            case "double":
                events.insert(place, events[place])
            case "swap":
                other = data.draw(st.integers(0, len(events) - 1))
                events[place], events[other] = events[other], events[place]
            case "replace":
                events[place] = data.draw(EVENTS)
            case _:
                events.insert(place, data.draw(EVENTS))
    made = Projection("run-1")
    for event in events:
        folds(made, event)


@QUICK
@given(legal_histories())
def test_folding_in_parts_is_folding_at_once(events: list[FlowEvent]) -> None:
    history = envelopes(events)
    whole = Projection.of("run-1", history)
    grown = Projection("run-1")
    for n, envelope in enumerate(history, 1):
        grown.fold(envelope)
        prefix = Projection.of("run-1", history[:n])
        assert dump(grown) == dump(prefix)
        assert grown.snapshot() == prefix.snapshot()
    assert dump(grown) == dump(whole)


@QUICK
@given(legal_histories())
def test_looking_on_the_way_changes_nothing_and_snapshots_share_nothing(events: list[FlowEvent]) -> None:
    wanted = dump(Projection.of("run-1", envelopes(events)))
    made = Projection("run-1")
    for envelope in envelopes(events):
        made.fold(envelope)
        seen = made.snapshot()
        made.wakeups(), made.pair(), made.open_steps, seen.to_dict()
        spoil(seen.input), spoil(seen.output)
        for part in (seen.steps, seen.waits, seen.signals):
            for each in part.values():
                for name in ("input", "output", "payload"):
                    spoil(getattr(each, name, None))
            part.clear()
    assert dump(made) == wanted


def spoil(value: Any) -> None:
    if isinstance(value, dict):
        for each in value.values():
            spoil(each)
        value["spoiled"] = True
    elif isinstance(value, list):
        value.append("spoiled")


@QUICK
@given(legal_histories())
def test_a_history_that_was_stored_and_read_says_the_same(events: list[FlowEvent]) -> None:
    rows = draft("run-1", 0, events, START).rows
    read = [
        Envelope("run-1", n, envelope.event_id, START, decode_event(text, "run-1", n))
        for n, (envelope, text) in enumerate(rows, 1)
    ]
    assert read == [envelope for envelope, _ in rows]
    assert [each.event for each in read] == events
    assert [Envelope.from_dict(each.to_dict()) for each in read] == read
    assert dump(Projection.of("run-1", read)) == dump(
        Projection.of("run-1", [envelope for envelope, _ in rows])
    )


def test_a_fold_costs_the_same_at_the_end_of_a_long_history() -> None:
    """Nothing that is kept for later grows with what is over: told by counting, not by time."""
    made = Projection("run-1")
    history: list[FlowEvent] = [*BEGUN]
    for n in range(200):
        history += [
            StepCreated(f"s{n}", "n"), StepStarted(f"s{n}", 1), StepCompleted(f"s{n}", n),
            WaitCreated(f"w{n}", at(n)), WaitCompleted(f"w{n}"),
            SignalWaitCreated(f"m{n}", f"name-{n}"), _signal(f"g{n}", f"name-{n}"), SignalWaitCompleted(f"m{n}", f"g{n}"),
        ]  # fmt: skip
    for envelope in envelopes(history):
        made.fold(envelope)
        kept = (
            made.startable,
            made.delayed,
            made.waiting,
            made.waiting_for,
            made.buffered,
            made.matched,
        )
        assert sum(map(len, kept)) <= 4
    assert (len(made.steps), len(made.waits), len(made.signals)) == (200, 400, 200)


def test_the_events_of_these_tests_are_all_there_are() -> None:
    from supervisor.durable import history

    known = {
        each for each in vars(history).values() if isinstance(each, type) and issubclass(each, FlowEvent)
    }
    assert len(known) == 20
    assert {RunCreated, RunCancelled, StepCancelled} < known
