"""Texts of errors are safe, bounded and say where; a stored error keeps no frame alive."""

from __future__ import annotations

import gc
import inspect
import json
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.kernel.errors import Canceled, Fail, Fatal, Timeout
from supervisor.kernel.text import (
    ErrorTexts,
    error_text,
    message_text,
    shown,
    stack_text,
    strip_frames,
    traceback_text,
)

HERE = "test_text.py"


def caught(body: Callable[[], object]) -> BaseException:
    """Return what the body raises, with its traceback."""
    try:
        body()
    except BaseException as error:
        return error
    raise AssertionError("nothing raised")


def raising(error: BaseException, cause: BaseException | None = None) -> BaseException:
    def load_rates() -> None:
        raise error from cause

    return caught(load_rates)


def line_of(function: Callable[..., object], offset: int) -> int:
    return inspect.getsourcelines(function)[1] + offset


# --- one line


def test_an_error_is_named_with_its_text_and_place() -> None:
    def load_rates() -> None:
        raise ValueError("boom")

    assert (
        error_text(caught(load_rates)) == f"ValueError: boom (in load_rates, {HERE}:{line_of(load_rates, 1)})"
    )


def test_the_place_is_the_users_own_innermost_frame() -> None:
    def load_rates() -> None:
        json.loads("{")  # the standard library raises three frames further down

    text = error_text(caught(load_rates))
    assert text.startswith("JSONDecodeError: Expecting property name")
    assert text.endswith(f"(in load_rates, {HERE}:{line_of(load_rates, 1)})")


def test_a_library_frame_is_named_before_a_standard_one_when_the_user_has_none() -> None:
    space: dict[str, Any] = {}
    exec(
        compile("import json\ndef fetch(): json.loads('{')", "/x/site-packages/web/client.py", "exec"), space
    )
    error = caught(space["fetch"])
    error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
    assert error_text(error).endswith("(in fetch, client.py:2)")


def test_our_own_frames_are_never_the_place() -> None:
    error = caught(lambda: Fail("x", exit_code="3"))  # type: ignore[arg-type, return-value]
    assert error_text(error).endswith(
        f"(in <lambda>, {HERE}:{line_of(test_our_own_frames_are_never_the_place, 1)})"
    )
    error.__traceback__ = error.__traceback__.tb_next.tb_next if error.__traceback__ else None  # type: ignore[union-attr]
    assert "errors.py" not in error_text(error)


def test_an_error_without_text_or_traceback_is_its_name() -> None:
    assert error_text(ValueError()) == "ValueError"
    assert error_text(KeyError("x")) == "KeyError: 'x'"


def test_explicit_causes_are_named_and_a_mere_context_is_not() -> None:
    deep = raising(ValueError("c"), raising(KeyError("x"), OSError("disk")))
    text = error_text(deep)
    assert text.startswith("ValueError: c (in load_rates, ")
    assert text.endswith(", caused by KeyError: 'x', caused by OSError: disk")

    def handles() -> None:
        try:
            raise KeyError("x")
        except KeyError:
            raise ValueError("boom")  # noqa: B904

    assert "caused by" not in error_text(caught(handles))


def test_a_cycle_of_causes_ends() -> None:
    one, other = ValueError("a"), KeyError("b")
    one.__cause__, other.__cause__ = other, one
    assert (
        error_text(one)
        == "ValueError: a, caused by KeyError: 'b', caused by ValueError: a, caused by KeyError: 'b'"
    )
    assert traceback_text(one).count("direct cause") == 2


def test_a_text_of_several_lines_becomes_one_printable_line() -> None:
    assert error_text(ValueError("a\n  b\tc\x00\ud800é")) == "ValueError: a b c\\x00\\ud800é"


@pytest.mark.parametrize("size", [10, 400, 500, 600, 10_000])
def test_a_line_has_at_most_five_hundred_characters(size: int) -> None:
    text = error_text(raising(ValueError("x" * size), KeyError("y" * size)))
    assert len(text) <= 500
    assert "(in load_rates" in text


@pytest.mark.parametrize("kind", [Fail, Fatal, Timeout])
def test_the_message_of_a_body_error_is_its_reason(kind: type[Fail]) -> None:
    assert message_text(raising(kind("no rows\ntoday", exit_code=3))) == "no rows\ntoday"
    assert len(message_text(kind("x" * 10**6))) == 2_000


def test_the_message_of_other_errors_is_type_and_text() -> None:
    assert message_text(raising(ValueError("boom"))) == "ValueError: boom"
    assert message_text(ValueError()) == "ValueError"
    assert message_text(Canceled("shutdown")) == "shutdown"
    assert len(message_text(ValueError("x" * 10**6))) == 500


# --- tracebacks


def test_a_traceback_shows_what_led_to_the_error_oldest_first() -> None:
    error = raising(ValueError("boom"), raising(KeyError("x")))
    assert traceback_text(error).splitlines() == "".join(traceback.format_exception(error)).splitlines()


def test_a_context_is_shown_unless_it_was_suppressed() -> None:
    def handles(mute: bool) -> None:
        try:
            raise KeyError("x")
        except KeyError:
            if mute:
                raise ValueError("boom") from None
            raise ValueError("boom")  # noqa: B904

    assert "During handling of the above exception" in traceback_text(caught(lambda: handles(False)))
    muted = traceback_text(caught(lambda: handles(True)))
    assert "KeyError" not in muted


def test_a_traceback_keeps_the_thirty_innermost_frames() -> None:
    space: dict[str, Any] = {}
    exec("def dive(n):\n  if n: other(n)\n  raise ValueError(n)\ndef other(n): dive(n - 1)", space)
    lines = traceback_text(caught(lambda: space["dive"](150))).splitlines()
    assert (
        sum(line.startswith("  File ") for line in lines) + sum("Previous line" in line for line in lines)
        <= 31
    )
    assert lines[-1] == "ValueError: 0"
    assert "in dive" in lines[-2]


def test_notes_and_the_members_of_a_group_are_shown() -> None:
    first = raising(ValueError("a"))
    first.add_note("while loading")
    text = traceback_text(raising(ExceptionGroup("batch", [first, ExceptionGroup("inner", [KeyError("b")])])))
    for part in (
        "ExceptionGroup: batch (2 sub-exceptions)",
        "1 of 2",
        "ValueError: a",
        "while loading",
        "KeyError: 'b'",
    ):
        assert part in text
    assert "  |   | KeyError: 'b'" in text


def test_a_chain_of_thousands_stays_small() -> None:
    error: BaseException = ValueError(0)
    for number in range(1, 3000):
        newer = ValueError(number)
        newer.__context__ = error
        error = newer
    text = traceback_text(error)
    assert text.startswith("[... earlier exceptions left out ...]")
    assert text.endswith("ValueError: 2999\n")
    assert len(text.splitlines()) < 60


def test_a_traceback_is_cut_at_its_start() -> None:
    group = ExceptionGroup("many", [raising(ValueError("x" * 3000)) for _ in range(40)])
    text = traceback_text(group)
    assert 10_000 < len(text) <= 16_100
    assert text.startswith("[... earlier lines left out ...]\n")


def test_deeply_nested_groups_stay_small() -> None:
    error: Exception = ValueError("core")
    for _ in range(200):
        error = ExceptionGroup("g", [error])
    assert "nested exceptions left out" in traceback_text(error)
    strip_frames(error)
    assert len(error_text(error)) < 100


# --- hostile exceptions


def with_method(name: str, result: Callable[..., object]) -> BaseException:
    return type("Bad", (Exception,), {name: result})("x")  # type: ignore[no-any-return]


def throws(kind: type[BaseException]) -> Callable[..., object]:
    def method(*args: object) -> object:
        raise kind("from inside")

    return method


class HugeError(Exception):
    def __str__(self) -> str:
        return "é" * 50_000_000


class LoudText(str):
    def __getitem__(self, key: object) -> str:
        raise KeyboardInterrupt

    def __len__(self) -> int:
        raise KeyboardInterrupt

    def __format__(self, spec: str) -> str:
        raise KeyboardInterrupt

    isprintable = __str__ = __len__  # type: ignore[assignment]


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__"):
            raise KeyboardInterrupt
        return super().__getattribute__(name)

    __instancecheck__ = __subclasscheck__ = throws(KeyboardInterrupt)


class BadMetaError(Exception, metaclass=Meta):
    pass


class ReadsBadlyError(Exception):
    """Each attribute that a formatter may read raises."""

    def __getattribute__(self, name: str) -> Any:
        raise KeyboardInterrupt


def bad_notes(notes: object) -> BaseException:
    error = ValueError("x")
    error.__notes__ = notes  # type: ignore[assignment]
    return error


def self_caused() -> BaseException:
    error = ValueError("x")
    error.__cause__ = error.__context__ = error
    return error


def sourceless() -> BaseException:
    return caught(lambda: exec(compile("x = 1 / 0", "no\nsuch\x00file", "exec"), {}))


class Quiet(Fail):
    def __init__(self) -> None:
        self.reason = throws  # type: ignore[assignment]


HOSTILE: list[Callable[[], BaseException]] = [
    lambda: with_method("__str__", throws(ValueError)),
    lambda: with_method("__str__", throws(KeyboardInterrupt)),
    lambda: with_method("__str__", throws(SystemExit)),
    lambda: with_method("__str__", throws(GeneratorExit)),
    lambda: with_method("__str__", lambda self: 42),
    lambda: with_method("__str__", lambda self: None),
    lambda: with_method("__str__", lambda self: LoudText("loud")),
    lambda: with_method("__str__", lambda self: str(self)),  # recurses
    lambda: with_method("__repr__", throws(KeyboardInterrupt)),
    lambda: with_method("__bool__", throws(KeyboardInterrupt)),
    lambda: with_method("__eq__", throws(KeyboardInterrupt)),
    lambda: with_method("__hash__", throws(KeyboardInterrupt)),
    lambda: with_method("__len__", lambda self: 0),
    lambda: with_method("__class__", property(throws(KeyboardInterrupt))),
    lambda: with_method("__class__", int),
    lambda: with_method("__notes__", property(throws(SystemExit))),
    lambda: with_method("__traceback__", property(throws(SystemExit))),
    lambda: with_method("__cause__", property(throws(SystemExit))),
    lambda: with_method("__context__", property(lambda self: 7)),
    lambda: with_method("__suppress_context__", property(throws(SystemExit))),
    lambda: with_method("with_traceback", throws(SystemExit)),
    lambda: type("Named\n" + "N" * 10_000, (Exception,), {"__module__": 7})("x"),
    lambda: bad_notes(7),
    lambda: bad_notes([7, LoudText("note"), "n" * 10**6]),
    lambda: bad_notes(with_method("__bool__", throws(SystemExit))),
    lambda: ValueError(*[object()] * 1000),
    lambda: KeyError(with_method("__repr__", throws(KeyboardInterrupt))),
    lambda: OSError(object(), object()),
    lambda: UnicodeDecodeError("utf-8", b"\xff" * 10**6, 0, 10**6, "x" * 10**6),
    lambda: SyntaxError("bad", ("f" * 10**5, -1, -1, "t" * 10**6)),
    lambda: caught(lambda: "".join(7)),  # type: ignore[arg-type]
    lambda: ExceptionGroup("g", [with_method("__str__", throws(SystemExit))] * 1000),
    lambda: BaseExceptionGroup("g", [KeyboardInterrupt(), self_caused()]),
    lambda: Canceled(with_method("__str__", throws(KeyboardInterrupt))),
    lambda: Fail(LoudText("loud")),
    HugeError,
    lambda: BadMetaError(),  # the class itself would hurt pytest
    ReadsBadlyError,
    self_caused,
    sourceless,
    Quiet,
    StopIteration,
    GeneratorExit,
    lambda: SystemExit(object()),
]


def faults(error: BaseException) -> list[str]:
    """Return what is wrong with the texts of an error, never the error: a failing test would print it."""
    found: list[str] = []
    for function, most in ((error_text, 500), (message_text, 2_000), (traceback_text, 16_100)):
        try:
            text = function(error)
            if type(text) is not str or not 0 < len(text) <= most:
                found.append(f"{function.__name__} gave {type(text)} of {len(text)} characters")
            if function is error_text and not text.isprintable():
                found.append("error_text is not printable")
        except BaseException:
            found.append(f"{function.__name__} raised")
    try:
        if not error_text(RuntimeError(error)).startswith("RuntimeError"):
            found.append("not safe as an argument")
        strip_frames(error)
    except BaseException:
        found.append("raised")
    if BaseException.__dict__["__traceback__"].__get__(error) is not None:
        found.append("keeps its traceback")
    return found


@pytest.mark.parametrize("make", HOSTILE, ids=[str(number) for number in range(len(HOSTILE))])
def test_a_hostile_exception_hurts_no_formatter(make: Callable[[], BaseException]) -> None:
    never_raised = faults(make())
    assert never_raised == []
    try:
        raise make()
    except BaseException as error:
        raised = faults(error)
    assert raised == []


def test_a_failing_str_is_reported_in_its_place() -> None:
    assert error_text(HOSTILE[1]()) == "Bad: <no text, __str__ raised KeyboardInterrupt>"
    assert error_text(HOSTILE[4]()) == "Bad: <no text, __str__ raised TypeError>"
    assert error_text(HOSTILE[6]()) == "Bad: loud"


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_gives_one_printable_line(text: str, note: str) -> None:
    error = ValueError(text)
    error.add_note(note)
    line = error_text(error)
    assert line.isprintable()
    assert len(line) <= 500
    assert note[:400] in traceback_text(error)


def test_a_value_is_shown_whatever_its_repr_does() -> None:
    class Bad:
        __repr__ = throws(SystemExit)  # type: ignore[assignment]

    assert shown("x") == "'x'"
    assert shown(Bad()) == "<Bad whose repr fails>"
    assert len(shown("x" * 10**6)) == 200


# --- no frame is kept


class Payload:
    """Something large in a frame."""


def failing_with(payloads: list[weakref.ref[Payload]], depth: int = 3) -> BaseException:
    def body(level: int) -> None:
        payload = Payload()
        payloads.append(weakref.ref(payload))
        if level == 0:
            raise ValueError("root")
        try:
            body(level - 1)
        except ValueError as error:
            if level % 2:
                raise ValueError(f"level {level}") from error
            raise ValueError(f"level {level}") from None

    return caught(lambda: body(depth))


def test_stripping_frees_every_frame_of_the_chain() -> None:
    payloads: list[weakref.ref[Payload]] = []
    gc.disable()
    try:
        error = failing_with(payloads)
        assert all(each() is not None for each in payloads)
        strip_frames(error)
        assert [each() for each in payloads] == [None] * 4
    finally:
        gc.enable()
    assert error.__traceback__ is None
    assert error.__cause__ is not None
    assert str(error.__cause__) == "level 2"


def test_stripping_reaches_the_members_of_groups() -> None:
    payloads: list[weakref.ref[Payload]] = []
    inner = ExceptionGroup("inner", [failing_with(payloads)])  # type: ignore[list-item]
    outer = raising(ValueError("outer"), ExceptionGroup("outer", [inner, failing_with(payloads)]))  # type: ignore[list-item]
    strip_frames(outer)
    gc.collect()
    assert [each() for each in payloads] == [None] * 8


def test_stripping_ends_on_cycles_and_long_chains() -> None:
    one, other = raising(ValueError("a")), raising(KeyError("b"))
    one.__cause__, other.__context__ = other, one
    strip_frames(one)
    assert (one.__traceback__, other.__traceback__) == (None, None)
    last = first = ValueError(0)
    for number in range(20_000):
        last.__context__ = ValueError(number)
        last = last.__context__
    strip_frames(first)


def test_formatting_keeps_no_frame() -> None:
    payloads: list[weakref.ref[Payload]] = []
    gc.disable()
    try:
        error = failing_with(payloads)
        texts = (error_text(error), traceback_text(error), message_text(error))
        strip_frames(error)
        assert [each() for each in payloads] == [None] * 4
    finally:
        gc.enable()
    assert all(texts)


# --- stacks of running threads


def test_the_stack_of_a_thread_shows_where_it_is_innermost_last() -> None:
    entered, leave = threading.Event(), threading.Event()
    payloads: list[weakref.ref[Payload]] = []

    def blind_wait() -> None:
        payload = Payload()
        payloads.append(weakref.ref(payload))
        entered.set()
        leave.wait()

    thread = threading.Thread(target=lambda: blind_wait())
    thread.start()
    entered.wait()
    try:
        text = stack_text(thread.ident or 0)
    finally:
        leave.set()
        thread.join()
    lines = text.splitlines()
    assert lines[0].startswith(f'  File "{__file__}"')  # not how the thread was started
    assert any("in blind_wait" in line for line in lines)
    assert text.index("<lambda>") < text.index("blind_wait")
    assert payloads[0]() is None
    assert stack_text(thread.ident or 0) == ""


def test_a_stack_keeps_its_innermost_frames() -> None:
    def ask() -> str:
        return stack_text(threading.get_ident(), limit=5)

    def dive(depth: int) -> str:
        return dive(depth - 1) if depth else ask()

    text = dive(40)
    assert "repeated 1 more time" in text  # dive four times, the first three shown, and ask
    assert "return stack_text(" in text.splitlines()[-1]  # where a thread asks about itself


def test_a_thread_that_is_gone_has_no_stack() -> None:
    assert stack_text(0) == ""
    assert stack_text(-1) == ""


def test_the_kept_text_is_that_of_the_error_whatever_came_before() -> None:
    def here(error: BaseException) -> Callable[[], object]:
        def body() -> None:
            raise error

        return body

    def there() -> None:
        raise ValueError("a")

    def elsewhere() -> None:
        int("x")

    class LoudError(ValueError):
        def __str__(self) -> str:
            return "a"

    class BrokenError(ValueError):
        def __str__(self) -> str:
            raise KeyError("no text")

    bodies = [
        there,
        here(ValueError("a")),
        here(ValueError("b")),
        here(LoudError()),
        here(BrokenError()),
        elsewhere,
    ]
    bodies += [
        here(raising(ValueError("a"), KeyError("cause"))),
        lambda: json.loads("{"),
        lambda: json.loads("["),
    ]
    texts = ErrorTexts()
    for body in [*bodies, *bodies, *reversed(bodies), there, there]:
        error = caught(body)
        assert texts.of(error) == error_text(error)
        error.__traceback__ = None
        assert texts.of(error) == error_text(error)
