"""The straight-line form: suspension that is swallowed, disagreements that are caught, how a function may end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from supervisor.durable import (
    FlowEngine,
    InvalidTransition,
    NonDeterministic,
    StepFailed,
    UnknownStep,
)
from supervisor.testing import VirtualClock
from tests.durable.flowing import Steps, events, plain, pump, types

MakeEngine = Callable[..., FlowEngine]


@pytest.fixture
def steps() -> Steps:
    return Steps()


# -- suspension that is swallowed ------------------------------------------------------------------


def bare_except(ctx: Any) -> Any:
    try:
        ctx.wait_signal("w", "go")
    except:  # noqa: E722
        pass
    return "went on"


def suppressed(ctx: Any) -> Any:
    with contextlib.suppress(BaseException):
        ctx.wait_signal("w", "go")
    return "went on"


def returned_from_finally(ctx: Any) -> Any:
    try:
        ctx.wait_signal("w", "go")
    finally:
        return "went on"  # noqa: B012


def left_a_loop_in_finally(ctx: Any) -> Any:
    while True:
        try:
            ctx.wait_signal("w", "go")
        finally:
            break  # noqa: B012
    return "went on"


def turned_into_another(ctx: Any) -> Any:
    try:
        ctx.wait_signal("w", "go")
    except BaseException as error:
        raise ValueError("something else") from error


def another_in_finally(ctx: Any) -> Any:
    try:
        ctx.wait_signal("w", "go")
    finally:
        raise ValueError("something else")


def swallowed_in_a_generator(ctx: Any) -> Any:
    def each() -> Iterator[Any]:
        try:
            yield ctx.wait_signal("w", "go")
        except BaseException:
            yield "went on"

    return list(each())


def swallowed_by_a_context_manager(ctx: Any) -> Any:
    @contextlib.contextmanager
    def manager() -> Iterator[None]:
        try:
            yield
        except BaseException:
            pass

    with manager():
        ctx.wait_signal("w", "go")
    return "went on"


def swallowed_by_exit(ctx: Any) -> Any:
    class Eater:
        def __enter__(self) -> None: ...

        def __exit__(self, *exc: object) -> bool:
            return True

    with Eater():
        ctx.wait_signal("w", "go")
    return "went on"


def swallowed_as_a_group(ctx: Any) -> Any:
    try:
        ctx.wait_signal("w", "go")
    except* BaseException:
        pass
    return "went on"


def raised_in_a_group(ctx: Any) -> Any:
    try:
        ctx.wait_signal("w", "go")
    except BaseException as error:
        raise BaseExceptionGroup("all", [error]) from None


def swallowed_twice(ctx: Any) -> Any:
    for _ in range(2):
        with contextlib.suppress(BaseException):
            ctx.step("s", "echo", 1)
    return "went on"


SWALLOWERS = [
    bare_except,
    suppressed,
    returned_from_finally,
    left_a_loop_in_finally,
    turned_into_another,
    another_in_finally,
    swallowed_in_a_generator,
    swallowed_by_a_context_manager,
    swallowed_by_exit,
    swallowed_as_a_group,
    raised_in_a_group,
    swallowed_twice,
]


@pytest.mark.parametrize("flow", SWALLOWERS, ids=lambda each: each.__name__)
def test_a_suspension_that_was_swallowed_is_found_out(
    make_engine: MakeEngine, steps: Steps, flow: Callable[..., Any]
) -> None:
    steps.runtime.workflow(flow)
    engine = make_engine(steps.runtime)
    with pytest.raises(
        InvalidTransition, match=r"swallowed the exception that suspends it at (wait 'w'|step)"
    ):
        engine.start(flow, run_id="r")
    assert types(engine) == ["run_created", "run_started"]
    assert [each.run_id for each in engine.failures()] == ["r"]
    assert steps.calls == []


def test_a_swallowed_suspension_is_raised_again_by_the_next_call(
    make_engine: MakeEngine, steps: Steps
) -> None:
    """What comes after is never asked for before what was asked first."""

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        with contextlib.suppress(BaseException):
            ctx.wait_signal("w", "go")
        return ctx.step("s", steps.echo, 1)

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert (engine.snapshot("r").status, steps.calls) == ("suspended", [])
    engine.signal("r", "go")
    assert engine.result("r", timeout=0) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda ctx: ctx.step("undo", "echo", 1),
        lambda ctx: ctx.gather([ctx.call("undo", "echo", 1)]),
        lambda ctx: ctx.gather([]),
        lambda ctx: ctx.sleep("undo", 1.0),
        lambda ctx: ctx.wait_signal("undo", "x"),
    ],
)
def test_a_finally_block_asks_for_nothing_while_the_run_waits(
    make_engine: MakeEngine, steps: Steps, call: Callable[[Any], Any]
) -> None:
    after: list[str] = []

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.wait_signal("w", "go")
        finally:
            call(ctx)
            after.append("went on")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert types(engine) == ["run_created", "run_started", "signal_wait_created"]
    assert (after, steps.calls) == ([], [])


def test_except_exception_lets_a_suspension_pass(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            return ctx.wait_signal("w", "go")
        except Exception:
            return "caught"

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    engine.signal("r", "go", "came")
    assert engine.result("r") == "came"


def test_a_generator_that_lets_a_suspension_pass_may_be_used(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        def outputs() -> Iterator[Any]:
            for each in range(3):
                yield ctx.step(f"s{each}", steps.echo, each)

        return sum(outputs())

    engine = make_engine(steps.runtime)
    assert engine.result(engine.start(flow)) == 3
    assert steps.ids == ["s0", "s1", "s2"]


def test_a_workflow_whose_code_is_mended_goes_on(make_engine: MakeEngine, steps: Steps) -> None:
    broken = [True]

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            return ctx.wait_signal("w", "go")
        except BaseException:
            if broken[0]:
                return "went on"
            raise

    engine = make_engine(steps.runtime)
    with pytest.raises(InvalidTransition, match="swallowed"):
        engine.start(flow, run_id="r")
    broken[0] = False
    assert engine.drive("r").status == "suspended"
    assert engine.failures() == []
    engine.signal("r", "go", 1)
    assert engine.result("r") == 1


# -- disagreements that are caught -----------------------------------------------------------------


@pytest.mark.parametrize("then", ["returns", "waits", "fails"])
def test_a_disagreement_that_is_caught_reaches_the_engine_whatever_comes_then(
    make_engine: MakeEngine, steps: Steps, then: str
) -> None:
    changed = [1]

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.step("s", steps.echo, changed[0])
        except Exception:
            if then == "returns":
                return "caught"
            if then == "fails":
                raise OSError from None
        return ctx.wait_signal("w", "go")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    before = engine.history("r")
    changed[0] = 2
    with pytest.raises(NonDeterministic, match="step s input differs: history=1; replay=2"):
        engine.drive("r")
    assert engine.history("r") == before
    assert len(engine.failures()) == 1


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda ctx: ctx.complete(1), "complete"),
        (lambda ctx: ctx.fail("no"), "fail"),
        (lambda ctx: ctx.cancel(), "cancel"),
        (lambda ctx: ctx.schedule_step("s", "echo", 1), "schedule_step"),
        (lambda ctx: ctx.schedule_steps([]), "schedule_steps"),
        (lambda ctx: ctx.wait_for_signal("w", "go"), "wait_for_signal"),
    ],
)
@pytest.mark.parametrize("caught", [False, True])
def test_what_belongs_to_deciders_is_refused(
    make_engine: MakeEngine, steps: Steps, call: Callable[[Any], Any], name: str, caught: bool
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        with contextlib.suppress(Exception if caught else StepFailed):
            return call(ctx)
        return "went on"

    engine = make_engine(steps.runtime)
    with pytest.raises(InvalidTransition, match=rf"ctx.{name} belongs to deciders"):
        engine.start(flow, run_id="r")
    assert types(engine) == ["run_created", "run_started"]


def test_a_command_that_is_returned_is_refused(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return ctx.call("s", steps.echo, 1)

    engine = make_engine(steps.runtime)
    with pytest.raises(InvalidTransition, match="returned a command; register it with decider"):
        engine.start(flow, run_id="r")


# -- how a function may end ------------------------------------------------------------------------


@pytest.mark.parametrize("output", [None, 0, "", [], {"a": (1, 2)}, 2**70])
def test_what_a_workflow_returns_is_the_output_of_the_run(
    make_engine: MakeEngine, steps: Steps, output: Any
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        return output

    engine = make_engine(steps.runtime)
    expected = {"a": [1, 2]} if isinstance(output, dict) else output
    assert engine.result(engine.start(flow)) == expected


@pytest.mark.parametrize(
    "output", [{1, 2}, float("nan"), {1: 2}, object()], ids=lambda each: type(each).__name__
)
def test_an_output_that_json_cannot_hold_fails_the_run(
    make_engine: MakeEngine, steps: Steps, output: Any
) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.step("s", steps.echo, 1)
        return {"a": [output]}

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert types(engine)[-1] == "run_failed"
    assert str(engine.snapshot("r").error).startswith("SerializationError: output.a[0]")


def test_an_exception_fails_the_run_with_its_text(make_engine: MakeEngine, steps: Steps) -> None:
    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        ctx.step("s", steps.echo, 1)
        raise LookupError("nothing there")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert plain(events(engine, "run_failed")) == [{"error": "LookupError: nothing there"}]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_the_end_of_a_process_in_a_workflow_leaves_the_run_as_it_was(
    make_engine: MakeEngine, steps: Steps, error: type[BaseException]
) -> None:
    ends = [True]

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        found = ctx.step("s", steps.echo, 1)
        if ends[0]:
            raise error
        return found

    engine = make_engine(steps.runtime)
    with pytest.raises(error):
        engine.start(flow, run_id="r")
    assert types(engine)[-1] == "step_completed"  # what was done is kept
    assert engine.failures() == []
    ends[0] = False
    assert engine.drive("r").output == 1
    assert steps.ids == ["s"]


def test_a_base_exception_of_its_own_fails_the_run(make_engine: MakeEngine, steps: Steps) -> None:
    class Odd(BaseException):
        pass

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        raise Odd("strange")

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert plain(engine.snapshot("r").error) == "Odd: strange"


def test_a_step_that_is_not_registered_can_not_be_caught_into_a_failure(
    make_engine: MakeEngine, steps: Steps
) -> None:
    """By name it may be known elsewhere: the run is left. A function that nobody registered is a mistake here."""

    def stranger() -> None: ...

    @steps.runtime.workflow
    def by_name(ctx: Any) -> Any:
        return ctx.step("s", "elsewhere")

    @steps.runtime.workflow
    def by_function(ctx: Any) -> Any:
        return ctx.step("s", stranger)

    engine = make_engine(steps.runtime)
    with pytest.raises(UnknownStep, match="elsewhere"):
        engine.start(by_name, run_id="a")
    assert engine.snapshot("a").status == "running"
    engine.start(by_function, run_id="b")
    assert "is not registered as a step" in str(engine.snapshot("b").error)


def test_a_gather_of_mixed_outcomes_and_delayed_retries_is_answered_once_all_have_ended(
    make_engine: MakeEngine, steps: Steps, clock: VirtualClock
) -> None:
    from supervisor.durable import RetryPolicy

    seen: list[tuple[str, str]] = []

    @steps.runtime.workflow
    def flow(ctx: Any) -> Any:
        try:
            ctx.gather(
                [
                    ctx.call("well", steps.echo, 1),
                    ctx.call("second", steps.flaky, 1, retry=RetryPolicy.fixed(2, 30.0)),
                    ctx.call("never", steps.broken, "no", retry=RetryPolicy.fixed(2, 50.0)),
                    ctx.call("refused", steps.refused, "at once"),
                ]
            )
        except StepFailed as failure:
            seen.append((failure.step_id, plain(failure.error)))
            return [ctx.step_output("well"), ctx.step_output("second"), plain(ctx.step_failed("refused"))]

    engine = make_engine(steps.runtime)
    engine.start(flow, run_id="r")
    assert (seen, engine.snapshot("r").status) == ([], "suspended")
    pump(engine, clock)
    assert seen == [("never", "OSError: no")]
    assert engine.result("r") == [1, 2, "NonRetryable: at once"]
    assert clock.monotonic() == 50.0
    assert sorted(steps.calls) == [
        ("never", 1),
        ("never", 2),
        ("refused", 1),
        ("second", 1),
        ("second", 2),
        ("well", 1),
    ]
