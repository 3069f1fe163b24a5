"""Safe text of values and exceptions that may be hostile, and of running stacks.

Nothing here raises, whatever `__str__`, `__repr__` or an attribute does, and every text is bounded.
Names and links of an exception are read past the overrides of its class.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType, TracebackType
from typing import Any, cast

from supervisor.kernel.errors import Canceled, TaskError

ERROR_LIMIT = 500  # characters of a one-line error text
REASON_LIMIT = 2_000  # characters of a reason that a body stated itself
TRACEBACK_LIMIT = 16_000  # characters of a formatted traceback
_FRAMES = 30  # innermost frames of each exception in a traceback
_LINE_LIMIT = 600  # characters of one formatted frame
_CHAIN = 10  # exceptions of one chain in a traceback
_CAUSES = 3  # causes named in a one-line text
_MEMBERS = 10  # members of a group in a traceback
_DEPTH = 4  # nested groups in a traceback

_name_of = type.__dict__["__name__"].__get__
_module_of = type.__dict__["__module__"].__get__
_traceback_of = BaseException.__dict__["__traceback__"].__get__
_set_traceback = BaseException.with_traceback
_cause_of = BaseException.__dict__["__cause__"].__get__
_context_of = BaseException.__dict__["__context__"].__get__
_set_context = BaseException.__dict__["__context__"].__set__
_suppressed = BaseException.__dict__["__suppress_context__"].__get__
_members_of = BaseExceptionGroup.__dict__["exceptions"].__get__

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_LIBRARY, _STANDARD, _THIRD_PARTY, _USER = range(4)
_files: dict[str, tuple[int, str]] = {}  # file name -> its rank, and its last part; a bounded cache


def shown(value: object, limit: int = 200) -> str:
    """Return `repr(value)`, cut to `limit` characters; a stand-in when `__repr__` raises."""
    try:
        return _cut(_plain(repr(value)), limit)
    except BaseException:
        return f"<{type_name(value)} whose repr fails>"


def error_text(error: BaseException) -> str:
    """Return one line such as `ValueError: boom (in load_rates, jobs.py:12), caused by KeyError: 'x'`.

    The place is the innermost frame of the caller's own code. At most `ERROR_LIMIT` characters.
    """
    try:
        line = _summary(error, 320) + _place(_traceback_of(error))
        if (cause := _cause_of(error)) is not None:
            line += _causes(cause)
        return line if line.isprintable() and len(line) <= ERROR_LIMIT else _one_line(line)
    except BaseException:
        return _one_line(type_name(error))


class ErrorTexts:
    """`error_text` for one thread that meets the same error again and again: it keeps the last one.

    The text is the same when type, message and the instruction that raised are, and that stands in
    the caller's own code, so that no outer frame is the place.
    """

    __slots__ = ("_code", "_instruction", "_kind", "_message", "_text")

    def __init__(self) -> None:
        self._kind: type[BaseException] | None = None
        self._message = self._text = ""
        self._code: CodeType | None = None
        self._instruction = -1

    def of(self, error: BaseException) -> str:
        """Return what `error_text` returns."""
        kind, innermost = type(error), _traceback_of(error)
        if innermost is None or _cause_of(error) is not None:
            return error_text(error)
        while (deeper := innermost.tb_next) is not None:
            innermost = deeper
        code, instruction = innermost.tb_frame.f_code, innermost.tb_lasti
        try:
            message = str(error)
        except BaseException:
            return error_text(error)
        if type(message) is not str:  # its comparison might do anything
            return error_text(error)
        if (
            kind is self._kind
            and code is self._code
            and instruction == self._instruction
            and message == self._message
        ):
            return self._text
        text = error_text(error)
        if len(message) <= ERROR_LIMIT and _rank(code.co_filename) == _USER:
            self._kind, self._code, self._instruction = kind, code, instruction
            self._message, self._text = message, text
        return text


def message_text(error: BaseException) -> str:
    """Return the stated reason of a `TaskError` or `Canceled`, else `TypeName: text`."""
    try:
        if issubclass(type(error), TaskError | Canceled):
            stated = cast("TaskError | Canceled", error).reason
            return _encodable(_cut(_plain(str(stated)), REASON_LIMIT))
        return _one_line(_summary(error, ERROR_LIMIT))
    except BaseException:
        return _one_line(type_name(error))


def traceback_text(error: BaseException) -> str:
    """Return the formatted traceback with its chain and groups, innermost call last.

    At most 30 innermost frames for each exception and about 16 000 characters in all.
    """
    try:
        text = _chain_text(error, 0)
    except BaseException:
        text = error_text(error)
    if len(text) > TRACEBACK_LIMIT:
        text = "[... earlier lines left out ...]\n" + text[-TRACEBACK_LIMIT:].partition("\n")[2]
    return _encodable(text)


def strip_frames(error: BaseException) -> None:
    """Clear the traceback of the error and of all that it is linked to, so that no frame is kept alive."""
    linked = _context_of(error) is not None or _cause_of(error) is not None
    if not linked and not issubclass(type(error), BaseExceptionGroup):
        _set_traceback(error, None)
        return
    seen: set[int] = set()
    todo = [error]
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        try:
            _set_traceback(each, None)
            todo += [link for link in (_cause_of(each), _context_of(each)) if link is not None]
            if issubclass(type(each), BaseExceptionGroup):
                todo += _members_of(each)
        except BaseException:
            continue


def follows(error: BaseException, earlier: BaseException) -> None:
    """Record that `error` was raised after `earlier`, unless it says already what it came after."""
    if error is not earlier and _context_of(error) is None:
        _set_context(error, earlier)


def stack_text(ident: int, limit: int = 15) -> str:
    """Return the formatted stack of the running thread `ident`, innermost call last; "" when it is gone.

    limit: innermost frames kept. The frames that started the thread are left out. Keeps no frame alive.
    """
    from traceback import extract_stack

    frame: FrameType | None = None
    try:
        frame = sys._current_frames().get(ident)  # pyright: ignore[reportPrivateUsage]
        if frame is None:
            return ""
        if frame is sys._getframe():  # pyright: ignore[reportPrivateUsage]
            frame = frame.f_back  # a thread that asks about itself: where it asks
        entries = list(extract_stack(frame, limit))
    except BaseException:
        return ""
    finally:
        del frame
    first = next((n for n, entry in enumerate(entries) if _rank(entry.filename) > _STANDARD), 0)
    return _frames_text(entries[first:])


def type_name(value: object) -> str:
    """Return the name of the type of `value`, read past its metaclass; at most 80 characters."""
    name: str = _name_of(type(value))
    return name if len(name) <= 80 else _cut(name, 80)


def _plain(text: str) -> str:
    """Return an exact str: a subclass may override slicing and formatting."""
    return text if type(text) is str else str.__str__(text)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _encodable(text: str) -> str:
    """Return the text without lone surrogates: no file, terminal or socket would take them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def _one_line(text: str) -> str:
    if not text.isprintable():
        text = printable(text)
    return text if len(text) <= ERROR_LIMIT else _cut(text, ERROR_LIMIT)


def printable(text: str) -> str:
    """Return the text on one line, without control characters and lone surrogates."""
    shown_as = ((c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1]) for c in text)
    return " ".join("".join(shown_as).split())


def _message(error: BaseException, limit: int) -> str:
    try:
        text = _plain(str(error))
    except BaseException as broken:
        return f"<no text, __str__ raised {type_name(broken)}>"
    return text if len(text) <= limit else _cut(text, limit)


def _summary(error: BaseException, limit: int) -> str:
    name: str = _name_of(type(error))
    if len(name) > 80:
        name = _cut(name, 80)
    try:
        text = str(error)
        if type(text) is not str:
            text = _plain(text)
    except BaseException as broken:
        text = f"<no text, __str__ raised {type_name(broken)}>"
    if len(text) > limit:
        text = _cut(text, limit)
    return f"{name}: {text}" if text else name


def _causes(cause: BaseException | None) -> str:
    text = ""
    for _ in range(_CAUSES):
        if cause is None:
            break
        text += f", caused by {_summary(cause, 100)}"
        cause = _cause_of(cause)
    return text


def _place(traceback: TracebackType | None) -> str:
    """Return ` (in FUNCTION, FILE:LINE)` for the innermost frame of the most personal code, or ""."""
    best: TracebackType | None = None
    best_rank = _STANDARD  # a frame of this rank or better, the innermost one
    last = ""
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        rank, short = _files.get(filename) or _file(filename)
        if rank >= best_rank:
            best, best_rank, last = traceback, rank, short
        traceback = traceback.tb_next
    return "" if best is None else f" (in {best.tb_frame.f_code.co_name}, {last}:{best.tb_lineno})"


def _rank(filename: str) -> int:
    """Return how near a file is to the user's own code: the higher the nearer."""
    return _file(filename)[0]


def _file(filename: str) -> tuple[int, str]:
    """Return the rank of a file and the last part of its name."""
    found = _files.get(filename)
    if found is None:
        if filename.startswith(_OURS):
            rank = _LIBRARY
        elif "site-packages" in filename or "dist-packages" in filename:
            rank = _THIRD_PARTY
        elif filename.startswith((_STDLIB, "<frozen ")):
            rank = _STANDARD
        else:
            rank = _USER
        if len(_files) > 2_000:
            _files.clear()
        found = _files[filename] = (rank, filename[filename.rfind(os.sep) + 1 :])
    return found


def _chain_text(error: BaseException, depth: int) -> str:
    """Return the traceback of an error after those of what led to it, oldest first."""
    parts: list[str] = []
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None:
        if id(each) in seen or len(seen) == _CHAIN:
            parts.append("[... earlier exceptions left out ...]\n")
            break
        seen.add(id(each))
        parts.append(_one_text(each, depth))
        cause = _cause_of(each)
        if cause is not None:
            each = cause
            parts.append("\nThe above exception was the direct cause of the following exception:\n\n")
        elif not _suppressed(each) and _context_of(each) is not None:
            each = _context_of(each)
            parts.append("\nDuring handling of the above exception, another exception occurred:\n\n")
        else:
            each = None
    return "".join(reversed(parts))


def _one_text(error: BaseException, depth: int) -> str:
    frames = _traceback_frames(_traceback_of(error))
    head = f"Traceback (most recent call last):\n{frames}" if frames else ""
    name = type_name(error)
    module: Any = _module_of(type(error))
    if isinstance(module, str) and module not in ("builtins", "__main__"):
        name = f"{module[:100]}.{name}"
    text = _message(error, REASON_LIMIT)
    lines = [f"{head}{name}: {text}\n" if text else f"{head}{name}\n", _notes(error)]
    if issubclass(type(error), BaseExceptionGroup):
        lines.append(_group_text(_members_of(error), depth + 1))
    return "".join(lines)


def _notes(error: BaseException) -> str:
    try:
        notes: Any = getattr(error, "__notes__", None)
        if type(notes) is not list:
            return ""
        kept = cast("list[object]", notes)[:10]
        return "".join(f"{_cut(_plain(note), 500)}\n" for note in kept if isinstance(note, str))
    except BaseException:
        return ""


def _group_text(members: tuple[BaseException, ...], depth: int) -> str:
    if depth > _DEPTH:
        return f"  | [... {len(members)} nested exceptions left out ...]\n"
    lines: list[str] = []
    for number, member in enumerate(members[:_MEMBERS], start=1):
        lines.append(f"---------------- {number} of {len(members)} ----------------")
        lines += _chain_text(member, depth).splitlines()
    if len(members) > _MEMBERS:
        lines.append(f"[... {len(members) - _MEMBERS} more exceptions left out ...]")
    return "".join(f"  | {line}\n" for line in lines)


def _traceback_frames(traceback: TracebackType | None) -> str:
    from traceback import extract_tb

    try:
        entries = list(extract_tb(traceback, limit=-_FRAMES))
        first = next((n for n, entry in enumerate(entries) if _rank(entry.filename) > _LIBRARY), 0)
        return _frames_text(entries[first:])  # how the library came to call the body helps nobody
    except BaseException:
        return ""


def _frames_text(entries: list[Any]) -> str:
    """Return the lines of `traceback.FrameSummary` entries; without source where that can't be read."""
    from traceback import StackSummary

    try:
        return "".join(_cut(line, _LINE_LIMIT) for line in StackSummary.from_list(entries).format())
    except BaseException:
        return "".join(f'  File "{each.filename}", line {each.lineno}, in {each.name}\n' for each in entries)
