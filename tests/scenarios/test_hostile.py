"""Exceptions that fight back: each ends as one outcome, and hurts neither its thread nor the supervisor."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from supervisor import (
    BackoffPolicy,
    Canceled,
    Fail,
    Fatal,
    OutcomeKind,
    Supervisor,
    TaskContext,
    TaskFinished,
    TaskSpec,
    Timeout,
)
from supervisor.testing import EventRecorder, VirtualClock

HUGE = 10_000_000


@pytest.fixture(autouse=True)
def nothing_reaches_the_hooks_of_the_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    seen: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: seen.append(args.exc_value))
    monkeypatch.setattr(sys, "excepthook", lambda *args: seen.append(args))
    monkeypatch.setattr(sys, "unraisablehook", lambda args: seen.append(args.exc_value))
    yield
    assert seen == []


def hostile(base: type[BaseException] = Exception, **members: Any) -> BaseException:
    """Make an exception whose special methods and attributes are `members`."""
    return type("Hostile", (base,), {"__init__": lambda self: None} | members)()


def raises(error: BaseException) -> Callable[..., NoReturn]:
    def method(*args: object, **kwargs: object) -> NoReturn:
        raise error

    return method


def bad_property(error: BaseException) -> property:
    return property(raises(error))


class BadMeta(type):
    __name__ = bad_property(SystemExit(9))  # type: ignore[assignment]
    __module__ = bad_property(SystemExit(9))  # type: ignore[assignment]

    def __repr__(cls) -> str:
        raise SystemExit(9)

    def __instancecheck__(cls, instance: object) -> bool:
        raise SystemExit(9)


class MetaError(Exception, metaclass=BadMeta): ...


def deep() -> BaseException:
    """A chain of two thousand errors."""
    first = error = ValueError("0")
    for number in range(1, 2000):
        error.__context__ = ValueError(str(number))
        error = error.__context__
    return first


def ring() -> BaseException:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def nested() -> BaseException:
    group: Exception = ValueError("leaf")
    for level in range(200):
        group = ExceptionGroup(f"level {level}", [group])
    return group


ERRORS: dict[str, Callable[[], BaseException]] = {
    "str raises": lambda: hostile(__str__=raises(ValueError("no text"))),
    "str raises KeyboardInterrupt": lambda: hostile(__str__=raises(KeyboardInterrupt())),
    "str exits": lambda: hostile(__str__=raises(SystemExit(3))),
    "str is a number": lambda: hostile(__str__=lambda self: 42),
    "repr raises": lambda: hostile(__repr__=raises(SystemExit(3))),
    "str and repr raise": lambda: hostile(__str__=raises(OSError()), __repr__=raises(OSError())),
    "bool raises": lambda: hostile(__bool__=raises(SystemExit(3))),
    "len and eq raise": lambda: hostile(
        __len__=raises(OSError()), __eq__=raises(OSError()), __hash__=raises(OSError())
    ),
    "notes raise": lambda: hostile(__notes__=bad_property(SystemExit(3))),
    "notes are a number": lambda: hostile(__notes__=5),
    "traceback raises": lambda: hostile(__traceback__=bad_property(SystemExit(3))),
    "cause raises": lambda: hostile(__cause__=bad_property(SystemExit(3))),
    "context raises": lambda: hostile(__context__=bad_property(SystemExit(3))),
    "with_traceback raises": lambda: hostile(with_traceback=raises(SystemExit(3))),
    "every attribute raises": lambda: hostile(__getattribute__=raises(SystemExit(3))),
    "class raises": lambda: hostile(__class__=bad_property(SystemExit(3))),
    "class lies": lambda: hostile(__class__=Fatal),
    "name of the type raises": MetaError,
    "setting anything raises": lambda: hostile(__setattr__=raises(OSError())),
    "huge text": lambda: ValueError("x" * HUGE),
    "huge repr of the arguments": lambda: KeyError("k" * HUGE),
    "control characters": lambda: ValueError("\x1b[2J\x00\ud800\n" * 100),
    "surrogates": lambda: ValueError("\ud800\udfff"),
    "reason raises": lambda: hostile(Fail, reason=bad_property(SystemExit(3))),
    "exit code raises": lambda: hostile(Fail, exit_code=bad_property(SystemExit(3))),
    "text of the reason raises": lambda: Fail(hostile(__str__=raises(SystemExit(3)))),  # type: ignore[arg-type]
    "deep chain": deep,
    "ring of causes": ring,
    "nested groups": nested,
    "wide group": lambda: ExceptionGroup("many", [ValueError(str(n)) for n in range(5000)]),
    "syntax error without a place": lambda: SyntaxError("bad", (None, None, None, None)),
    "unicode error half made": lambda: UnicodeDecodeError.__new__(UnicodeDecodeError),
    "OSError of nothing": lambda: OSError(None, None),
    "recursion": lambda: RecursionError("deep"),
    "memory": MemoryError,
    "stop iteration": StopIteration,
    "stop async iteration": StopAsyncIteration,
    "canceled future": concurrent.futures.CancelledError,
}

FINAL: dict[str, tuple[Callable[[], BaseException], OutcomeKind]] = {
    "KeyboardInterrupt": (KeyboardInterrupt, OutcomeKind.PANICKED),
    "GeneratorExit": (GeneratorExit, OutcomeKind.PANICKED),
    "asyncio cancel": (asyncio.CancelledError, OutcomeKind.PANICKED),
    "base group": (lambda: BaseExceptionGroup("b", [KeyboardInterrupt()]), OutcomeKind.PANICKED),
    "base that does not show": (
        lambda: hostile(BaseException, __str__=raises(OSError())),
        OutcomeKind.PANICKED,
    ),
    "base of bad attributes": (
        lambda: hostile(BaseException, __getattribute__=raises(SystemExit(3))),
        OutcomeKind.PANICKED,
    ),
    "exit with a number of its own mind": (
        lambda: SystemExit(
            type("Code", (int,), {"__int__": raises(OSError()), "__bool__": raises(OSError())})(3)
        ),
        OutcomeKind.FATAL,
    ),
    "exit of a liar": (lambda: SystemExit(hostile(__class__=int)), OutcomeKind.FATAL),
    "exit with text": (lambda: SystemExit("bye"), OutcomeKind.FATAL),
    "exit with an object": (
        lambda: SystemExit(hostile(__str__=raises(OSError()), __bool__=raises(OSError()))),
        OutcomeKind.FATAL,
    ),
    "exit whose code raises": (lambda: hostile(SystemExit, code=bad_property(OSError())), OutcomeKind.FATAL),
    "exit of bad attributes": (
        lambda: hostile(SystemExit, __getattribute__=raises(OSError())),
        OutcomeKind.FATAL,
    ),
    "fatal whose code raises": (lambda: hostile(Fatal, exit_code=bad_property(OSError())), OutcomeKind.FATAL),
    "fatal of bad attributes": (
        lambda: hostile(Fatal, __getattribute__=raises(OSError())),
        OutcomeKind.FATAL,
    ),
    "canceled that does not show": (
        lambda: hostile(Canceled, __str__=raises(OSError())),
        OutcomeKind.CANCELED,
    ),
    "canceled of bad attributes": (
        lambda: hostile(Canceled, __getattribute__=raises(OSError())),
        OutcomeKind.CANCELED,
    ),
}
EVERY = {name: (make, OutcomeKind.FAILED) for name, make in ERRORS.items()} | FINAL


def check_texts(*texts: str | None) -> None:
    for text in texts:
        assert text is None or (type(text) is str and len(text) <= 20_000)
        if text is not None:
            text.encode()


@pytest.mark.parametrize("name", EVERY)
def test_a_hostile_exception_ends_as_one_outcome_of_its_kind(
    supervisor: Supervisor, recorder: EventRecorder, name: str
) -> None:
    make, kind = EVERY[name]

    def body() -> None:
        raise make()

    outcome = supervisor.add(TaskSpec.once("t", body)).wait()
    again = supervisor.add(TaskSpec.once("t", lambda: "fine")).wait()
    supervisor.shutdown()
    assert again.value == "fine"
    assert outcome.kind is kind
    assert "fault in the supervisor library" not in (outcome.reason or "")
    check_texts(outcome.reason, outcome.traceback)
    finished = recorder.of(TaskFinished)
    assert [event.outcome for event in finished] == [kind, OutcomeKind.COMPLETED]
    for event in recorder.events:
        check_texts(repr(event), str(event.to_dict()))


@pytest.mark.parametrize("name", ERRORS)
def test_a_hostile_failure_is_retried_like_any_other(
    supervisor: Supervisor, recorder: EventRecorder, name: str
) -> None:
    def body(ctx: TaskContext) -> str:
        if ctx.attempt < 3:
            raise ERRORS[name]()
        return "at last"

    spec = TaskSpec.restartable("t", body, backoff=BackoffPolicy.constant(1.0))
    handle = supervisor.add(spec)
    outcome = handle.wait()
    assert (outcome.kind, outcome.value, outcome.attempts) == (OutcomeKind.COMPLETED, "at last", 3)
    supervisor.shutdown()
    for event in recorder.events:
        check_texts(repr(event))


@pytest.mark.parametrize("name", EVERY)
def test_a_hostile_exception_of_a_closer_ends_panicked(supervisor: Supervisor, name: str) -> None:
    closed: list[str] = []

    def body(ctx: TaskContext) -> None:
        def close() -> None:
            raise EVERY[name][0]()

        ctx.callback(closed.append, "first")
        ctx.callback(close)

    outcome = supervisor.add(TaskSpec.once("t", body)).wait()
    assert outcome.kind is OutcomeKind.PANICKED
    assert "fault in the supervisor library" not in (outcome.reason or "")
    assert closed == ["first"]


@pytest.mark.parametrize("name", ERRORS)
def test_a_hostile_exception_of_body_and_closer_together_ends_panicked(
    supervisor: Supervisor, name: str
) -> None:
    def body(ctx: TaskContext) -> None:
        def close() -> None:
            raise ERRORS[name]()

        ctx.callback(close)
        raise ERRORS[name]()

    outcome = supervisor.add(TaskSpec.once("t", body)).wait()
    assert outcome.kind is OutcomeKind.PANICKED
    assert "fault in the supervisor library" not in (outcome.reason or "")


@pytest.mark.parametrize("name", EVERY)
def test_a_hostile_exception_after_the_deadline_changes_nothing(
    supervisor: Supervisor, clock: VirtualClock, name: str
) -> None:
    def body() -> None:
        clock.sleep(2.0)
        raise EVERY[name][0]()

    outcome = supervisor.add(TaskSpec.once("t", body, timeout=1.0)).wait()
    assert (outcome.kind, outcome.reason) == (OutcomeKind.FAILED, "timed out after 1 s")
    assert isinstance(outcome.error, Timeout)


@pytest.mark.parametrize("name", EVERY)
def test_a_hostile_exception_of_a_subscriber_hurts_nobody(clock: VirtualClock, name: str) -> None:
    recorder = EventRecorder()

    def callback(event: object) -> None:
        raise EVERY[name][0]()

    with Supervisor(clock=clock) as sup:
        sup.subscribe(callback, name="bad", kinds=["task_finished"])
        sup.subscribe(recorder, name="good")
        assert sup.add(TaskSpec.once("t", lambda: None)).wait().ok
    (failed,) = recorder.of("subscriber_failed")
    assert failed.subscriber == "bad"
    check_texts(failed.error)
    assert recorder.kinds()[-1] == "shutdown_completed"


@pytest.mark.parametrize("name", EVERY)
def test_a_hostile_exception_of_an_on_cancel_callback_hurts_nobody(clock: VirtualClock, name: str) -> None:
    called: list[str] = []

    def callback() -> None:
        raise EVERY[name][0]()

    def body(ctx: TaskContext) -> None:
        ctx.on_cancel(callback)
        ctx.on_cancel(lambda: called.append("second"))
        ctx.wait()

    with Supervisor(clock=clock) as sup:
        for stop in ("cancel", "timeout", "shutdown"):
            sup.add(TaskSpec.once(stop, body, timeout=1.0 if stop == "timeout" else None))
            clock.settle()
        sup.cancel("cancel")
        clock.advance(1.0)
    assert called == ["second"] * 3


def test_one_exception_object_raised_again_and_again_does_not_grow(supervisor: Supervisor) -> None:
    same = ValueError("the same")

    def body(ctx: TaskContext) -> None:
        try:
            raise KeyError(ctx.attempt)
        except KeyError:
            raise same  # noqa: B904

    outcome = supervisor.add(TaskSpec.restartable("t", body, max_retries=500, backoff=None)).wait()
    assert outcome.attempts == 501
    assert outcome.traceback is not None
    assert len(outcome.traceback) < 2000
