"""Signals: first in, first out, once, whoever waits and whenever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from supervisor.durable import (
    FlowEngine,
    InvalidTransition,
    MemoryEventStore,
    NonDeterministic,
    PayloadTooLarge,
    RunTerminal,
    SerializationError,
    SignalConflict,
    StoreError,
)
from supervisor.durable.history import RunCreated, RunStarted, SignalReceived
from supervisor.testing import FaultyStore, VirtualClock
from tests.durable.flowing import START, Steps, Tape, at, events, on_threads, pump, types

MakeEngine = Callable[..., FlowEngine]


@pytest.fixture
def steps() -> Steps:
    made = Steps()

    @made.runtime.workflow
    def straight(ctx: Any, many: Any) -> Any:
        return [ctx.wait_signal(f"w{number}", "go") for number in range(many or 1)]

    @made.runtime.decider
    def decided(ctx: Any) -> Any:
        found = []
        for number in range(ctx.input or 1):
            if not ctx.wait_completed(f"w{number}"):
                return ctx.wait_for_signal(f"w{number}", "go")
            found.append(None)
        return ctx.complete(ctx.signal("go"))

    return made


@pytest.mark.parametrize(("workflow", "output"), [("straight", [{"n": 1}]), ("decided", {"n": 1})])
def test_a_signal_resumes_the_wait_for_it(
    make_engine: MakeEngine, steps: Steps, workflow: str, output: Any
) -> None:
    store = Tape(MemoryEventStore())
    engine = make_engine(steps.runtime, store)
    engine.start(workflow, run_id="r")
    assert engine.snapshot("r").status == "suspended"
    assert engine.snapshot("r").waits["w0"].signal_name == "go"
    engine.signal("r", "go", {"n": 1}, signal_id="s1")
    assert engine.result("r", timeout=0) == output
    assert types(engine) == [
        "run_created",
        "run_started",
        "signal_wait_created",
        "signal_received",
        "signal_wait_completed",
        "run_completed",
    ]
    assert len(store.appends) == 2
    assert events(engine, "signal_wait_completed") == [{"wait_id": "w0", "signal_id": "s1"}]
    found = engine.snapshot("r")
    assert (found.waits["w0"].payload, found.signals["s1"].wait_id) == ({"n": 1}, "w0")


def test_signals_that_come_early_are_kept_in_order(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.submit("straight", 3, run_id="r")
    engine.store.append("r", 1, [RunStarted()], START)
    for number in (1, 2):
        engine.store.append(
            "r",
            1 + number,
            [SignalReceived({"signal_id": f"s{number}", "name": "go", "payload": number})],
            START,
        )
    engine.drive("r")
    assert engine.snapshot("r").status == "suspended"
    engine.signal("r", "go", 3)
    assert engine.result("r", timeout=0) == [1, 2, 3]


def test_names_have_queues_of_their_own(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def two(ctx: Any) -> Any:
        return [
            ctx.wait_signal("b", "blue"),
            ctx.wait_signal("r", "red ♥ anything"),
            ctx.wait_signal("b2", "blue"),
        ]

    engine = make_engine(steps.runtime)
    engine.start(two, run_id="r")
    engine.signal("r", "red ♥ anything", "R")
    assert engine.snapshot("r").status == "suspended"
    engine.signal("r", "nobody waits", "?")
    engine.signal("r", "blue", "B")
    engine.signal("r", "blue", "B2")
    assert engine.result("r", timeout=0) == ["B", "R", "B2"]


def test_the_same_signal_id_twice_is_once(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("straight", 2, run_id="r")
    for _ in range(3):
        engine.signal("r", "go", {"a": 1, "b": (2,)}, signal_id="s1")
    engine.signal("r", "go", {"b": [2], "a": 1}, signal_id="s1")
    assert engine.snapshot("r").status == "suspended"
    assert types(engine).count("signal_received") == 1
    engine.signal("r", "go", 2, signal_id="s2")
    before = engine.history("r")
    engine.signal("r", "go", 2, signal_id="s2")  # the run has ended meanwhile
    assert engine.history("r") == before


@pytest.mark.parametrize(
    ("name", "payload"), [("go", 2), ("go", True), ("go", 1.0), ("stop", 1), ("go", None)]
)
def test_the_same_signal_id_with_something_else_is_a_conflict(
    make_engine: MakeEngine, steps: Steps, name: str, payload: Any
) -> None:
    engine = make_engine(steps.runtime)
    engine.start("straight", 3, run_id="r")
    engine.signal("r", "go", 1, signal_id="s1")
    before = engine.history("r")
    with pytest.raises(SignalConflict) as raised:
        engine.signal("r", name, payload, signal_id="s1")
    assert (raised.value.run_id, raised.value.signal_id) == ("r", "s1")
    assert engine.history("r") == before


def test_without_an_id_every_signal_is_a_new_one(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("straight", 2, run_id="r")
    engine.signal("r", "go", 1)
    engine.signal("r", "go", 1)
    assert engine.result("r", timeout=0) == [1, 1]


@pytest.mark.parametrize("how", ["complete", "force_cancel", "cancel"])
def test_a_run_that_has_ended_takes_no_signals(make_engine: MakeEngine, steps: Steps, how: str) -> None:
    engine = make_engine(steps.runtime)
    engine.start("straight", run_id="r")
    if how == "complete":
        engine.signal("r", "go")
    else:
        getattr(engine, how)("r")
    before = engine.history("r")
    with pytest.raises(RunTerminal):
        engine.signal("r", "go", signal_id="late")
    assert engine.history("r") == before


def test_a_signal_starts_a_run_that_was_only_created(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.store.append("r", 0, [RunCreated({"name": "straight", "version": "1"}, 1)], START)
    engine.signal("r", "go", "now")
    assert engine.result("r", timeout=0) == ["now"]


@pytest.mark.parametrize("name", ["", "  ", "a\nb", 7, "x" * 501])
def test_a_name_that_is_none_is_refused(make_engine: MakeEngine, steps: Steps, name: Any) -> None:
    engine = make_engine(steps.runtime)
    engine.start("straight", run_id="r")
    with pytest.raises((ValueError, TypeError), match="name"):
        engine.signal("r", name)
    with pytest.raises((ValueError, TypeError), match="signal_id"):
        engine.signal("r", "go", signal_id=name)
    assert len(engine.history("r")) == 3


def test_a_payload_that_json_cannot_hold_is_refused(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("straight", run_id="r")
    with pytest.raises(SerializationError, match=r"payload\.a"):
        engine.signal("r", "go", {"a": object()})
    with pytest.raises(PayloadTooLarge):
        engine.signal("r", "go", "x" * 1_048_576)
    assert len(engine.history("r")) == 3
    engine.signal("r", "go", "small")
    assert engine.result("r", timeout=0) == ["small"]


def test_a_payload_is_a_copy_for_everybody(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        found = ctx.wait_signal("w", "go")
        found["n"].append(2)
        ctx.step("a", steps.echo, found)
        return ctx.wait_signal("w", "go")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    payload = {"n": [1]}
    engine.signal("r", "go", payload)
    payload["n"].append(3)
    assert engine.result("r", timeout=0) == {"n": [1]}


def test_another_name_for_the_same_wait_is_not_deterministic(make_engine: MakeEngine, steps: Steps) -> None:
    names = ["go", "stop"]

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.wait_signal("w", names[0])

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    names.pop(0)
    with pytest.raises(NonDeterministic, match='signal_name differs: history="go"; replay="stop"'):
        engine.drive("r")


def test_a_wait_that_was_for_an_instant_is_for_no_signal(make_engine: MakeEngine, steps: Steps) -> None:
    kinds = ["until", "signal", "until"]

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.wait_until("w", at(60)) if kinds[0] == "until" else ctx.wait_signal("w", "go")

    engine = make_engine(steps.runtime)
    for run_id in ("r1", "r2"):
        engine.start(flow, run_id=run_id)
        kinds.pop(0)
        with pytest.raises(NonDeterministic):
            engine.drive(run_id)


def test_a_completed_wait_that_a_decider_asks_for_again_is_refused(
    make_engine: MakeEngine, steps: Steps
) -> None:
    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        return ctx.wait_for_signal("w", "go")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    with pytest.raises(InvalidTransition, match="'w' of run 'r' is completed, and was asked for again"):
        engine.signal("r", "go")
    assert types(engine)[-2:] == ["signal_received", "signal_wait_completed"]  # it has come all the same
    assert [each.run_id for each in engine.failures()] == ["r"]


# -- what a decider sees ---------------------------------------------------------------------------


def test_a_decider_sees_the_oldest_signal_before_it_waits_and_the_latest_it_took_afterwards(
    make_engine: MakeEngine, steps: Steps
) -> None:
    seen: list[Any] = []

    @steps.runtime.decider
    def flow(ctx: Any) -> Any:
        seen.append(ctx.signal("go"))
        for wait_id in ("w1", "w2"):
            if not ctx.wait_completed(wait_id):
                return ctx.wait_for_signal(wait_id, "go")
        return ctx.complete([ctx.signal("go"), ctx.signal("other")])

    engine = make_engine(steps.runtime)
    engine.submit(flow, run_id="r")
    engine.store.append("r", 1, [SignalReceived({"signal_id": "s1", "name": "go", "payload": 1})], START)
    engine.drive("r")
    assert seen[:2] == [1, 1]
    engine.signal("r", "go", 2)
    assert engine.result("r", timeout=0) == [2, None]


def test_a_signal_or_a_timeout_whichever_comes_first(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    @steps.runtime.decider
    def approval(ctx: Any) -> Any:
        answer = ctx.signal("answer")
        if answer is not None:
            return ctx.complete(answer)
        if ctx.wait_completed("deadline"):
            return ctx.complete("too late")
        return ctx.wait_until("deadline", at(60))

    engine = make_engine(steps.runtime)
    for run_id in ("quick", "slow"):
        engine.start(approval, run_id=run_id)
    engine.signal("quick", "answer", "yes")
    assert engine.result("quick", timeout=0) == "yes"
    pump(engine, clock)
    assert engine.result("slow", timeout=0) == "too late"
    assert engine.next_wakeup() is None


# -- crashes and crowds ----------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
def test_a_signal_whose_sender_crashed_is_sent_again_and_counts_once(
    make_engine: MakeEngine, steps: Steps, after: bool
) -> None:
    inner = MemoryEventStore()
    broken = FaultyStore(inner, lambda event: event.type == "signal_received", after)
    engine = make_engine(steps.runtime, broken)
    engine.start("straight", 2, run_id="r")
    with pytest.raises(StoreError):
        engine.signal("r", "go", 1, signal_id="s1")
    second = make_engine(steps.runtime, inner)
    second.signal("r", "go", 1, signal_id="s1")
    second.signal("r", "go", 2, signal_id="s2")
    assert second.result("r", timeout=0) == [1, 2]
    assert types(second).count("signal_received") == types(second).count("signal_wait_completed") == 2


def test_a_signal_that_was_stored_and_not_paired_is_found_by_recovery(
    make_engine: MakeEngine, steps: Steps
) -> None:
    engine = make_engine(steps.runtime)
    engine.start("straight", run_id="r")
    engine.store.append("r", 3, [SignalReceived({"signal_id": "s", "name": "go", "payload": 1})], START)
    assert engine.recover() == ["r"]
    assert engine.drive("r").output == [1]


@pytest.mark.parametrize("seed", range(8))
def test_signals_from_eight_threads_while_a_run_is_driven_are_all_taken_once(seed: int) -> None:
    clock, steps, store = VirtualClock(seed), Steps(), MemoryEventStore()

    @steps.runtime.step
    def nap(data: Any) -> Any:
        clock.sleep(0.5)
        return data

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return [ctx.step(f"s{n}", nap, ctx.wait_signal(f"w{n}", "go")) for n in range(24)]

    with FlowEngine(steps.runtime, store, clock=clock) as engine:

        def send(sender: int) -> None:
            for number in range(3):
                engine.signal("r", "go", [sender, number], signal_id=f"{sender}-{number}")
                clock.sleep(sender / 7)

        engine.start(flow, run_id="r")
        found = on_threads(clock, [lambda sender=sender: send(sender) for sender in range(8)])  # type: ignore[misc]
        assert found == [None] * 8
        output = engine.result("r", timeout=60.0)
        assert sorted(output) == [[sender, number] for sender in range(8) for number in range(3)]
        for sender in range(8):  # what one thread sent is taken in its order
            assert [n for s, n in output if s == sender] == [0, 1, 2]
        history = store.read("r")
        assert [each.sequence for each in history] == list(range(1, len(history) + 1))
        received = [
            each.event.signal["signal_id"] for each in history if isinstance(each.event, SignalReceived)
        ]
        assert [engine.snapshot("r").waits[f"w{n}"].signal_id for n in range(24)] == received
