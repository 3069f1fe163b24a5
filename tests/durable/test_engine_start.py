"""Starting runs: what is written, in which commits, and what a known id means."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import RFC_4122, UUID

import pytest

from supervisor.durable import (
    FlowEngine,
    FlowRuntime,
    FlowWorker,
    InvalidRunId,
    MemoryEventStore,
    PayloadTooLarge,
    RunConflict,
    RunNotFound,
    SerializationError,
    StoreError,
    UnknownStep,
    UnknownWorkflow,
)
from supervisor.durable.history import FlowEvent, RunCreated, RunStarted
from supervisor.durable.stores.protocol import Failure
from supervisor.testing import VirtualClock
from tests.durable.flowing import START, Steps, Tape, at, events, on_threads, types

MakeEngine = Callable[..., FlowEngine]


@pytest.fixture
def steps() -> Steps:
    made = Steps()

    @made.runtime.workflow
    def two(ctx: Any, data: Any) -> Any:
        return ctx.step("second", made.echo, ctx.step("first", made.echo, data) * 2)

    @made.runtime.workflow
    def five(ctx: Any) -> Any:
        return [ctx.step(f"s{number}", made.echo, number) for number in range(5)]

    @made.runtime.workflow
    def nothing(ctx: Any) -> None:
        pass

    @made.runtime.decider
    def two_decided(ctx: Any) -> Any:
        for step_id in ("first", "second"):
            if not ctx.step_completed(step_id):
                return ctx.schedule_step(step_id, "echo", 1)
        return ctx.complete("done")

    return made


# -- what a run writes -----------------------------------------------------------------------------

NINE = [
    "run_created",
    "run_started",
    "step_created",
    "step_started",
    "step_completed",
    "step_created",
    "step_started",
    "step_completed",
    "run_completed",
]


@pytest.mark.parametrize("workflow", ["two", "two_decided"])
def test_two_steps_are_nine_events(make_engine: MakeEngine, steps: Steps, workflow: str) -> None:
    engine = make_engine(steps.runtime)
    engine.start(workflow, 1, run_id="r")
    assert types(engine) == NINE


def test_a_run_of_two_steps_says_what_went_in_and_out(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    assert engine.start("two", 4, run_id="r") == "r"
    assert engine.result("r", timeout=0) == 8
    assert steps.calls == [("first", 1), ("second", 1)]
    assert [each.event.to_dict() for each in engine.history("r")] == [
        {"type": "run_created", "spec": {"name": "two", "version": "1"}, "input": 4},
        {"type": "run_started"},
        {
            "type": "step_created",
            "step_id": "first",
            "step_name": "echo",
            "input": 4,
            "retry": {"max_attempts": 3, "delay_ms": 0, "on_exhausted": "continue_workflow"},
        },
        {"type": "step_started", "step_id": "first", "attempt": 1},
        {"type": "step_completed", "step_id": "first", "output": 4},
        {
            "type": "step_created",
            "step_id": "second",
            "step_name": "echo",
            "input": 8,
            "retry": {"max_attempts": 3, "delay_ms": 0, "on_exhausted": "continue_workflow"},
        },
        {"type": "step_started", "step_id": "second", "attempt": 1},
        {"type": "step_completed", "step_id": "second", "output": 8},
        {"type": "run_completed", "output": 8},
    ]


def test_a_run_of_five_steps_is_six_commits(make_engine: MakeEngine, steps: Steps) -> None:
    store = Tape(MemoryEventStore())
    make_engine(steps.runtime, store).start("five", run_id="r")
    between = ["step_completed", "step_created", "step_started"]
    assert store.appends == [
        ["run_created", "run_started", "step_created", "step_started"],
        between,
        between,
        between,
        between,
        ["step_completed", "run_completed"],
    ]


def test_a_run_without_steps_is_one_commit(make_engine: MakeEngine, steps: Steps) -> None:
    store = Tape(MemoryEventStore())
    make_engine(steps.runtime, store).start("nothing", run_id="r")
    assert store.appends == [["run_created", "run_started", "run_completed"]]


def test_the_body_of_a_step_is_called_only_after_its_start_is_durable(
    make_engine: MakeEngine, steps: Steps
) -> None:
    seen: list[list[str]] = []

    @steps.runtime.step
    def look() -> None:
        seen.append(types(engine))

    @steps.runtime.workflow
    def looks(ctx: Any) -> None:
        ctx.step("a", look)
        ctx.step("b", look)

    engine = make_engine(steps.runtime)
    engine.start("looks", run_id="r")
    assert seen == [NINE[:4], NINE[:7]]


def test_no_append_is_under_way_while_a_step_runs(make_engine: MakeEngine, steps: Steps) -> None:
    """A store that refuses to be used twice at once is used from within a step."""
    under_way = False

    class Strict(Tape):
        def append(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal under_way
            assert not under_way
            under_way = True
            try:
                return super().append(*args, **kwargs)
            finally:
                under_way = False

    @steps.runtime.step
    def inner() -> str:
        assert not under_way
        return engine.start("nothing")

    @steps.runtime.workflow
    def outer(ctx: Any) -> Any:
        return ctx.step("a", inner)

    engine = make_engine(steps.runtime, Strict(MemoryEventStore()))
    engine.start("outer", run_id="r")
    assert engine.snapshot(engine.result("r")).status == "completed"


def test_events_have_the_time_of_the_engines_clock(make_engine: MakeEngine, clock: VirtualClock) -> None:
    steps = Steps()

    @steps.runtime.step
    def slow(seconds: float) -> None:
        clock.sleep(seconds)

    @steps.runtime.workflow
    def timed(ctx: Any) -> None:
        ctx.step("a", slow, 2.5)
        ctx.step("b", slow, 4)

    engine = make_engine(steps.runtime)
    engine.start("timed", run_id="r")
    assert [each.at for each in engine.history("r")] == [
        *[START] * 4,
        *[at(2.5)] * 3,
        *[at(6.5)] * 2,
    ]
    found = engine.snapshot("r")
    assert (found.created_at, found.updated_at, found.sequence) == (START, at(6.5), 9)
    assert (found.steps["b"].started_at, found.steps["b"].ended_at) == (at(2.5), at(6.5))


def test_history_is_numbered_from_one_and_each_event_has_an_id_of_its_own(
    make_engine: MakeEngine, steps: Steps
) -> None:
    engine = make_engine(steps.runtime)
    engine.start("two", 1, run_id="r")
    history = engine.history("r")
    assert [each.sequence for each in history] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert len({each.event_id for each in history}) == 9
    assert {each.run_id for each in history} == {"r"}


def test_without_an_id_every_start_is_a_run_of_its_own(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    one, other = engine.start("nothing"), engine.start("nothing")
    assert one != other
    assert engine.store.list_run_ids() == sorted([one, other])


def test_new_ids_are_uuids_in_order_of_time(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    made: list[str] = []
    for _ in range(20):
        made.append(engine.submit("nothing"))
        clock.advance(0.001)
    assert made == sorted(made)
    for run_id in made:
        assert (UUID(run_id).version, UUID(run_id).variant) == (7, RFC_4122)
    milliseconds = int(made[0][:12], 16)
    assert datetime.fromtimestamp(milliseconds / 1000, UTC) == engine.snapshot(made[0]).created_at


def test_a_workflow_may_be_given_as_the_function_itself(make_engine: MakeEngine) -> None:
    flows = FlowRuntime()

    @flows.workflow(name="named", version="7")
    def local(ctx: Any) -> str:
        return ctx.run_id

    engine = make_engine(flows)
    assert engine.result(engine.start(local, run_id="r")) == "r"
    assert (engine.snapshot("r").workflow, engine.snapshot("r").version) == ("named", "7")


# -- the same id again -----------------------------------------------------------------------------


def test_a_known_id_with_the_same_input_is_no_second_run(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("two", 4, run_id="r")
    assert engine.start("two", 4, run_id="r") == "r"
    assert types(engine) == NINE
    assert steps.calls == [("first", 1), ("second", 1)]


def test_inputs_are_compared_as_json(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("nothing", {"a": (1, 2), "b": None}, run_id="r")
    engine.start("nothing", {"b": None, "a": [1, 2]}, run_id="r")
    assert len(engine.history("r")) == 3


@pytest.mark.parametrize("other", [2, True, 1.0, "1", None, [1]])
def test_a_known_id_with_another_input_is_a_conflict(
    make_engine: MakeEngine, steps: Steps, other: Any
) -> None:
    engine = make_engine(steps.runtime)
    engine.start("nothing", 1, run_id="r")
    for begin in (engine.start, engine.submit):
        with pytest.raises(RunConflict, match="workflow input differs: history=1; given="):
            begin("nothing", other, run_id="r")
    assert len(engine.history("r")) == 3


def test_a_known_id_with_another_workflow_is_a_conflict(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("nothing", 1, run_id="r")
    for begin in (engine.start, engine.submit):
        with pytest.raises(RunConflict, match="workflow spec differs") as raised:
            begin("two", 2, run_id="r")
    assert raised.value.run_id == "r"
    assert len(engine.history("r")) == 3


def test_a_known_id_with_another_version_is_a_conflict(make_engine: MakeEngine) -> None:
    store = MemoryEventStore()
    for version in ("1", "2"):
        flows = FlowRuntime()
        flows.workflow(name="w", version=version)(lambda ctx: None)
        engine = make_engine(flows, store)
        if version == "1":
            engine.start("w", run_id="r")
        else:
            with pytest.raises(RunConflict, match=r"'w' version '1', and 'w' version '2' was asked for"):
                engine.start("w", run_id="r")


def test_a_started_run_is_driven_on_by_a_second_start(make_engine: MakeEngine, clock: VirtualClock) -> None:
    steps = Steps()

    @steps.runtime.workflow
    def retrying(ctx: Any) -> Any:
        from supervisor.durable import RetryPolicy

        return ctx.step("a", steps.flaky, 1, retry=RetryPolicy.fixed(2, 5.0))

    engine = make_engine(steps.runtime)
    engine.start("retrying", run_id="r")
    assert engine.snapshot("r").status == "suspended"
    clock.advance(5.0)
    engine.start("retrying", run_id="r")
    assert engine.result("r", timeout=0) == 2


def test_starting_again_in_a_new_process_appends_nothing(
    make_engine: MakeEngine, steps: Steps, store: Any, reopen: Callable[[], Any]
) -> None:
    engine = make_engine(steps.runtime, store)
    engine.start("two", 1, run_id="r")
    before = engine.history("r")
    engine.close()
    again = make_engine(steps.runtime, reopen())
    again.start("two", 1, run_id="r")
    assert again.history("r") == before
    assert len(steps.calls) == 2


def test_a_run_that_another_writer_creates_first_is_taken_over(make_engine: MakeEngine, steps: Steps) -> None:
    class Raced(Tape):
        def append(self, run_id: str, expected_sequence: int, events: Any, at: datetime) -> Any:
            if expected_sequence == 0 and not self.appends:
                self.appends.append([])
                super().append(run_id, 0, [RunCreated({"name": "two", "version": "1"}, 1)], at)
            return super().append(run_id, expected_sequence, events, at)

    engine = make_engine(steps.runtime, Raced(MemoryEventStore()))
    engine.start("two", 1, run_id="r")
    assert types(engine) == NINE


def test_a_run_that_another_writer_creates_first_with_another_input_is_a_conflict(
    make_engine: MakeEngine, steps: Steps
) -> None:
    class Raced(Tape):
        def append(self, run_id: str, expected_sequence: int, events: Any, at: datetime) -> Any:
            if expected_sequence == 0 and not self.appends:
                self.appends.append([])
                super().append(run_id, 0, [RunCreated({"name": "two", "version": "1"}, "other")], at)
            return super().append(run_id, expected_sequence, events, at)

    for name in ("start", "submit"):
        engine = make_engine(steps.runtime, Raced(MemoryEventStore()))
        with pytest.raises(RunConflict):
            getattr(engine, name)("two", 1, run_id="r")
        assert types(engine) == ["run_created"]


@pytest.mark.parametrize("seed", range(5))
def test_many_threads_that_start_the_same_run_make_one(seed: int) -> None:
    clock, steps = VirtualClock(seed), Steps()

    @steps.runtime.workflow
    def slow(ctx: Any) -> Any:
        return ctx.step("a", nap)

    @steps.runtime.step
    def nap() -> str:
        steps.calls.append(("a", 1))
        clock.sleep(3.0)
        return "rested"

    with FlowEngine(steps.runtime, clock=clock) as engine:
        assert on_threads(clock, [lambda: engine.start("slow", run_id="r")] * 8) == ["r"] * 8
        assert clock.monotonic() == 3.0
        assert steps.calls == [("a", 1)]
        assert len(engine.history("r")) == 6


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("run_id", ["../x", "", "a b", "é", "a/b", "a.b", "a\n"])
def test_an_id_with_other_characters_is_refused(make_engine: MakeEngine, steps: Steps, run_id: str) -> None:
    engine = make_engine(steps.runtime)
    calls: list[Callable[[], Any]] = [
        lambda: engine.start("nothing", run_id=run_id),
        lambda: engine.submit("nothing", run_id=run_id),
        lambda: engine.drive(run_id),
        lambda: engine.signal(run_id, "go"),
        lambda: engine.cancel(run_id),
        lambda: engine.force_cancel(run_id),
        lambda: engine.resume_wait(run_id, "w"),
        lambda: engine.resume_scheduled_run(run_id, START),
        lambda: engine.snapshot(run_id),
        lambda: engine.history(run_id),
        lambda: engine.result(run_id, timeout=0),
    ]
    for call in calls:
        with pytest.raises(InvalidRunId):
            call()
    assert engine.store.list_run_ids() == []


def test_an_unknown_run_is_not_found_by_any_call(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    calls: list[Callable[[], Any]] = [
        lambda: engine.drive("r"),
        lambda: engine.signal("r", "go"),
        lambda: engine.cancel("r"),
        lambda: engine.force_cancel("r"),
        lambda: engine.resume_wait("r", "w"),
        lambda: engine.resume_scheduled_run("r", START),
        lambda: engine.snapshot("r"),
        lambda: engine.history("r"),
        lambda: engine.result("r", timeout=0),
    ]
    for call in calls:
        with pytest.raises(RunNotFound, match="no run 'r'"):
            call()
    assert engine.store.list_run_ids() == []


def test_an_unknown_workflow_is_refused_and_nothing_written(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    for begin in (engine.start, engine.submit):
        with pytest.raises(UnknownWorkflow, match=r"'gone'.*known: five, nothing, two, two_decided"):
            begin("gone", run_id="r")
        with pytest.raises(UnknownWorkflow):
            begin(steps.echo, run_id="r")
    assert engine.store.list_run_ids() == []
    assert engine.queue.pending() == 0


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": {1, 2}}, "input.a"),
        ([float("nan")], "input[0]"),
        ({"when": datetime(2026, 1, 1, tzinfo=UTC)}, "input.when"),
        ({1: "a"}, "input"),
        (object(), "input"),
    ],
)
def test_an_input_that_json_cannot_hold_is_refused_with_its_path(
    make_engine: MakeEngine, steps: Steps, value: Any, path: str
) -> None:
    engine = make_engine(steps.runtime)
    for begin in (engine.start, engine.submit):
        with pytest.raises(SerializationError) as raised:
            begin("nothing", value, run_id="r")
        assert raised.value.path.startswith(path)
    assert engine.store.list_run_ids() == []


def test_an_input_above_a_mebibyte_is_refused(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    for begin in (engine.start, engine.submit):
        with pytest.raises(PayloadTooLarge):
            begin("nothing", "x" * 1_048_576, run_id="r")
    assert engine.store.list_run_ids() == []


def test_an_input_that_is_changed_afterwards_does_not_change_the_run(
    make_engine: MakeEngine, steps: Steps
) -> None:
    engine = make_engine(steps.runtime)
    data = {"n": [1]}
    engine.submit("two_decided", data, run_id="r")
    data["n"].append(2)
    assert engine.snapshot("r").input == {"n": [1]}


def test_a_step_that_is_unknown_leaves_the_run_for_others(make_engine: MakeEngine) -> None:
    flows, store = FlowRuntime(), MemoryEventStore()

    @flows.decider
    def asks(ctx: Any) -> Any:
        if ctx.step_completed("a"):
            return ctx.complete(ctx.step_output("a"))
        return ctx.schedule_step("a", "elsewhere")

    with pytest.raises(UnknownStep, match="'elsewhere'"):
        make_engine(flows, store).start("asks", run_id="r")
    knowing = make_engine(flows, store)
    assert types(knowing) == ["run_created", "run_started"]
    assert knowing.failures() == []
    flows.step(name="elsewhere")(_answer)
    assert knowing.drive("r").output == 42


def _answer() -> int:
    return 42


def test_a_workflow_that_is_unknown_is_left_for_others(make_engine: MakeEngine, steps: Steps) -> None:
    store = MemoryEventStore()
    store.append("r", 0, [RunCreated({"name": "two", "version": "0"}, 1)], START)
    engine = make_engine(steps.runtime, store)
    with pytest.raises(UnknownWorkflow, match=r"'two' of version '0'.*known versions: 1"):
        engine.drive("r")
    assert engine.failures() == []


# -- submit ----------------------------------------------------------------------------------------


def test_submit_creates_and_queues_and_drives_nothing(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    assert engine.submit("two", 1, run_id="r") == "r"
    assert (types(engine), engine.snapshot("r").status) == (["run_created"], "pending")
    assert (engine.queue.pending(), steps.calls) == (1, [])


def test_submitting_twice_queues_once(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.submit("two", 1, run_id="r")
    engine.submit("two", 1, run_id="r")
    assert (len(engine.history("r")), engine.queue.pending()) == (1, 1)


def test_submitting_a_run_that_has_ended_queues_nothing(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.start("two", 1, run_id="r")
    engine.submit("two", 1, run_id="r")
    assert engine.queue.pending() == 0


def test_a_submitted_run_is_started_once_whoever_drives_it(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    engine = make_engine(steps.runtime)
    engine.submit("two", 1, run_id="r")
    engine.start("two", 1, run_id="r")
    FlowWorker(engine).run_until_idle()
    clock.settle()
    assert types(engine) == NINE


@pytest.mark.parametrize("how", ["drive", "start", "signal", "worker"])
def test_a_run_that_was_only_created_is_started_by(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock, how: str
) -> None:
    engine = make_engine(steps.runtime, max_replays=3)
    engine.store.append("r", 0, [RunCreated({"name": "two", "version": "1"}, 1)], START)
    if how == "drive":
        engine.drive("r")
    elif how == "start":
        engine.start("two", 1, run_id="r")
    elif how == "signal":
        engine.signal("r", "go")
    else:
        assert engine.recover() == ["r"]
        FlowWorker(engine).run_until_idle()
        clock.settle()
    assert [each for each in types(engine) if each != "signal_received"] == NINE


@pytest.mark.parametrize("how", ["force_cancel", "cancel"])
def test_a_run_that_was_canceled_before_it_was_started_runs_no_step(
    make_engine: MakeEngine, steps: Steps, how: str
) -> None:
    engine = make_engine(steps.runtime)
    engine.submit("two", 1, run_id="r")
    getattr(engine, how)("r", "not wanted")
    engine.start("two", 1, run_id="r")
    assert steps.calls == []
    assert "run_started" not in types(engine)
    assert events(engine, "run_cancelled") == [{"reason": "not wanted"}]


# -- what can be seen ------------------------------------------------------------------------------


def test_runs_are_listed_by_id(make_engine: MakeEngine, steps: Steps, store: Any) -> None:
    engine = make_engine(steps.runtime, store)
    for run_id in ("c", "a", "b"):
        engine.start("two" if run_id == "b" else "nothing", 1, run_id=run_id)
    engine.submit("nothing", run_id="d")
    assert engine.store.list_run_ids() == ["a", "b", "c", "d"]
    assert [each.run_id for each in engine.list_runs()] == ["a", "b", "c", "d"]
    assert engine.list_runs()[1] == engine.snapshot("b")
    assert [each.run_id for each in engine.list_runs(workflow="nothing")] == ["a", "c", "d"]
    assert [each.run_id for each in engine.list_runs(status="pending")] == ["d"]
    assert [each.run_id for each in engine.list_runs(status="completed", workflow="two")] == ["b"]
    assert [each.run_id for each in engine.list_runs(limit=2)] == ["a", "b"]
    assert [each.run_id for each in engine.list_runs(newest_first=True)] == ["d", "b", "a", "c"]


def test_a_hundred_runs_are_listed_unless_told_otherwise(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    for number in range(103):
        engine.submit("nothing", run_id=f"r{number:03}")
    assert len(engine.list_runs()) == 100
    assert len(engine.list_runs(limit=None)) == 103


def test_a_closed_engine_drives_nothing(make_engine: MakeEngine, steps: Steps) -> None:
    engine = make_engine(steps.runtime)
    engine.submit("two", 1, run_id="r")
    engine.close()
    engine.close()
    for call in (lambda: engine.start("two", 1, run_id="r"), lambda: engine.drive("r"), engine.serve):
        with pytest.raises(StoreError, match="closed"):
            call()
    assert engine.snapshot("r").status == "pending"
    assert steps.calls == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"store": "flows.db"}, "store must be a FlowEventStore"),
        ({"queue": 3}, "queue must be a WorkQueue"),
        ({"max_replays": 0}, "max_replays"),
        ({"subscribers": [3]}, "subscriber must be callable"),
    ],
)
def test_wrong_parts_are_refused(steps: Steps, options: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        FlowEngine(steps.runtime, **options)
    with pytest.raises(TypeError, match="runtime must be a FlowRuntime"):
        FlowEngine("flows")  # type: ignore[arg-type]


# -- replays ---------------------------------------------------------------------------------------


def test_a_drive_asks_at_most_so_often_and_keeps_what_it_got_done(
    make_engine: MakeEngine, steps: Steps
) -> None:
    from supervisor.durable import ReplayLimitExceeded

    engine = make_engine(steps.runtime, max_replays=3)
    with pytest.raises(ReplayLimitExceeded) as raised:
        engine.start("five", run_id="r")
    assert (raised.value.run_id, raised.value.limit) == ("r", 3)
    assert steps.ids == ["s0", "s1", "s2"]
    assert engine.snapshot("r").steps["s2"].status == "completed"
    assert engine.drive("r").output == [0, 1, 2, 3, 4]
    assert steps.ids == ["s0", "s1", "s2", "s3", "s4"]
    assert engine.failures() == []


# -- subscribers -----------------------------------------------------------------------------------


def test_subscribers_get_the_envelopes_of_history_in_order(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    heard: list[Any] = []
    engine = make_engine(steps.runtime, subscribers=[heard.append])
    engine.start("two", 1, run_id="r")
    clock.settle()
    assert heard == engine.history("r")
    engine.start("two", 1, run_id="r")
    clock.settle()
    assert len(heard) == 9


def test_an_event_is_told_only_after_its_commit(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    from supervisor.testing import FaultyStore

    heard: list[Any] = []

    def fails(event: FlowEvent) -> bool:
        return event.type == "step_completed"

    engine = make_engine(steps.runtime, FaultyStore(MemoryEventStore(), fails), subscribers=[heard.append])
    with pytest.raises(StoreError):
        engine.start("two", 1, run_id="r")
    clock.settle()
    assert [each.event.type for each in heard] == NINE[:4]


def test_a_subscriber_that_raises_or_changes_what_it_gets_does_no_harm(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    def bad(envelope: Any) -> None:
        if envelope.event.type == "run_created":
            envelope.event.spec["name"] = "changed"
        raise RuntimeError("subscriber broke")

    engine = make_engine(steps.runtime, subscribers=[bad])
    engine.start("two", 1, run_id="r")
    clock.settle()
    assert engine.result("r") == 2
    assert engine.history("r")[0].event == RunCreated({"name": "two", "version": "1"}, 1)


# -- runs that are marked --------------------------------------------------------------------------


def test_a_mark_is_cleared_when_the_run_is_driven_well(make_engine: MakeEngine, clock: VirtualClock) -> None:
    from supervisor.durable import InvalidTransition

    steps = Steps()
    store = MemoryEventStore()
    wrong = True

    @steps.runtime.decider
    def mended(ctx: Any) -> Any:
        if wrong or not ctx.step_completed("a"):
            return ctx.schedule_step("a", "echo", 1)
        return ctx.complete("well")

    engine = make_engine(steps.runtime, store)
    clock.advance(3.0)
    with pytest.raises(InvalidTransition, match="rescheduled terminal step a"):
        engine.start("mended", run_id="r")
    (failure,) = engine.failures()
    assert isinstance(failure, Failure)
    assert (failure.run_id, failure.at) == ("r", at(3.0))
    assert "rescheduled terminal step a" in failure.reason
    assert make_engine(steps.runtime, store).failures() == [failure]
    wrong = False
    assert engine.drive("r").output == "well"
    assert engine.failures() == []


def test_started_is_written_only_once_when_a_start_event_was_lost(
    make_engine: MakeEngine, steps: Steps
) -> None:
    engine = make_engine(steps.runtime)
    engine.store.append("r", 0, [RunCreated({"name": "two", "version": "1"}, 1), RunStarted()], START)
    engine.drive("r")
    assert types(engine) == NINE
