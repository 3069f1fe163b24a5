"""The folder list is the architecture: layers, one clock, and few files that start threads or wait.

Each rule is a function from one parsed file to the lines that break it; each is also shown
a file that breaks it, so that a rule that sees nothing is found out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "supervisor"

# Which folders a folder may import from. "" is the top: __init__.py, __main__.py and their like.
LAYERS = {
    "kernel": {"kernel"},
    "tasks": {"kernel", "tasks"},
    "subscribers": {"kernel", "tasks", "flows", "subscribers"},
    "flows": {"kernel", "tasks", "flows"},
    "durable": {"kernel", "tasks", "durable"},
    "testing": {"kernel", "tasks", "subscribers", "flows", "durable", "testing"},
    "cli": {"", "kernel", "tasks", "subscribers", "flows", "durable", "cli"},
    "": {"", "kernel", "tasks", "subscribers", "flows", "durable", "cli"},
}

# Rule 2. An agent starts threads and waits in its loop.
AGENTS = {
    "actor",
    "supervisor",
    "running",
    "worker",
    "engine",
    "bus",
    "lane",
    "deadlines",
    "split",
    "dispatcher",
    "listener",
    "workers",
    "driver",
    "heart",
    "due_work",
    "serving",
    "stop",
}
# What agents and callers wait on; made of the clock's locks, conditions and latches.
PRIMITIVES = {
    "durable/bell",
    "durable/postgres",
    "durable/seats",
    "durable/stores/group",
    "durable/stores/sqlite_readers",
    "durable/stores/sqlite_registry",
    "kernel/cancellation",
    "kernel/clock",
    "kernel/inbox",
    "kernel/permits",
    "kernel/promise",
}
# No agent, but it may start a thread: a token's deadline runs callbacks, which must not hold up the shared timer.
SPAWNERS = {"kernel/cancellation"}
# No agent, but it may make what others wait on: the threads of a batch start together or not at all.
MAKERS = {"tasks/admission"}
# Where a caller's own thread waits: these hand on to a primitive, and start and make nothing.
FACES = {
    "cli/demo",
    "cli/demo_run",
    "cli/demo_tasks",
    "cli/run_flows",
    "durable/queues/memory",
    "durable/queues/postgres",
    "durable/queues/sqlite",
    "flows/task",
    "tasks/handle",
    "tasks/context",
    "tasks/shutdown",
    "durable/inspection",
}

# Rule 3. Time, threads and chance come from one place each.
TIME_AND_THREADS = {
    "time", "threading", "_thread", "queue", "sched", "select", "selectors", "asyncio", "concurrent",
    "multiprocessing",
}  # fmt: skip
CHANCE = {"random", "secrets"}

# What `import supervisor` must not pay for; imported where it is first used.
SLOW = {
    "argparse", "asyncio", "concurrent", "ctypes", "decimal", "email", "fractions", "hashlib", "http", "inspect",
    "json", "logging", "multiprocessing", "pickle", "pprint", "random", "secrets", "socket", "sqlite3", "ssl",
    "statistics", "subprocess", "tempfile", "tomllib", "traceback", "typing_extensions", "unittest", "urllib",
    "uuid", "zoneinfo",
}  # fmt: skip
OPTIONAL = {"croniter", "opentelemetry", "prometheus_client", "psycopg", "psycopg_pool", "rich"}
# Folders that `import supervisor` doesn't load: they may import what is slow, never what is optional.
LOADED_ON_DEMAND = {"cli", "durable", "flows", "subscribers", "testing"}
# A file that is loaded only by somebody who has the extra installed.
OWNERS = {
    "subscribers/prometheus": "prometheus_client",
    "subscribers/otel": "opentelemetry",
    "subscribers/otel_flows": "opentelemetry",
    "durable/postgres": "psycopg",
}

# Calls that may stand alone at the top of a module.
CALLS_AT_IMPORT = {"os.register_at_fork", "warnings.warn"}
MADE_AT_IMPORT_NEVER = {"spawn", "start", "run", "open", "signal", "Supervisor", "Thread", "getLogger"}

# What Python itself describes, under a private name.
PRIVATE_BUT_DOCUMENTED = {"sys._current_frames", "sys._getframe", "os._exit", "threading._DummyThread"}
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One parsed file of the package."""

    path: str  # inside the package, without suffix: "kernel/clock"
    tree: ast.Module

    @property
    def layer(self) -> str:
        return self.path.split("/")[0] if "/" in self.path else ""

    @property
    def package(self) -> list[str]:
        return ["supervisor", *self.path.split("/")[:-1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module, by its full name."""

    module: str
    line: int
    runs_at_import: bool  # stands at the top, and not under TYPE_CHECKING

    @property
    def root(self) -> str:
        return self.module.split(".")[0]


Rule = Callable[[Module], Iterator[str]]


def parse(path: str, source: str) -> Module:
    return Module(path=path, tree=ast.parse(source))


def modules() -> list[Module]:
    return [
        parse(file.relative_to(PACKAGE).with_suffix("").as_posix(), file.read_text("utf-8"))
        for file in sorted(PACKAGE.glob("**/*.py"))
    ]


def imports(module: Module) -> Iterator[Import]:
    """Every import of a file, those written as a string for importlib included."""
    for node, at_import in _walk(module.tree, True):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(module=alias.name, line=node.lineno, runs_at_import=at_import)
            case ast.ImportFrom(module=source, names=names, level=level):
                start = module.package[: len(module.package) - level + 1] if level else []
                base = ".".join([*start, *([source] if source else [])])
                for alias in names:  # `from supervisor import kernel` imports supervisor.kernel
                    full = f"{base}.{alias.name}" if base == "supervisor" else base
                    yield Import(module=full, line=node.lineno, runs_at_import=at_import)
            case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]):
                if _dotted(func).split(".")[-1] in {"import_module", "__import__"}:
                    yield Import(module=name, line=node.lineno, runs_at_import=at_import)
            case _:
                pass


def _walk(node: ast.AST, at_import: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Walk the tree; the flag tells what runs when the module is imported."""
    yield node, at_import
    if isinstance(node, ast.If) and _dotted(node.test).split(".")[-1] == "TYPE_CHECKING":
        for child in node.body:
            yield from _walk(child, False)
        for child in node.orelse:
            yield from _walk(child, at_import)
        return
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, at_import and not function)


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{_dotted(value)}.{attr}"
        case _:
            return "?"


def _method_calls(module: Module) -> Iterator[tuple[ast.Call, str, str]]:
    """Every call `receiver.method(...)`: the call, the receiver as written, the method."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, ast.unparse(node.func.value), node.func.attr


# -- the rules ---------------------------------------------------------------------------------


def layers(module: Module) -> Iterator[str]:
    """A layer imports only what stands below it; nobody but the tests' kit imports the kit."""
    if module.layer not in LAYERS:
        yield f"{module.path}: a new folder; say in LAYERS what it may import"
        return
    for found in imports(module):
        if found.root != "supervisor":
            continue
        parts = found.module.split(".")
        target = parts[1] if len(parts) > 1 else ""
        if target not in LAYERS:  # a name, or a file beside __init__.py
            target = ""
        if target not in LAYERS[module.layer]:
            what = f"supervisor.{target}" if target else "the top of the package"
            yield f"{module.path}:{found.line} imports {what}, which does not stand below it"


def one_clock(module: Module) -> Iterator[str]:
    """Only kernel/clock.py and the test kit know time and threads; only kernel/backoff.py knows chance."""
    if module.layer == "testing":
        return
    for found in imports(module):
        if found.root in TIME_AND_THREADS and module.path != "kernel/clock":
            yield f"{module.path}:{found.line} imports {found.root}; ask the Clock"
        if found.root in CHANCE and module.path != "kernel/backoff":
            yield f"{module.path}:{found.line} imports {found.root}; take the draw as an argument"
    if module.path == "kernel/clock":
        return
    for call, receiver, method in _method_calls(module):
        if method in {"now", "utcnow", "today"} and receiver.split(".")[-1] in {"datetime", "date"}:
            yield f"{module.path}:{call.lineno} reads the machine's clock; ask the Clock"


def few_wait(module: Module) -> Iterator[str]:
    """Agents start threads; agents and the kernel's primitives wait; faces hand on to a primitive."""
    if module.layer == "testing":
        return
    agent = module.path.split("/")[-1] in AGENTS and module.layer != ""
    primitive = module.path in PRIMITIVES
    face = module.path in FACES
    context_variables = _context_variables(module)
    for call, receiver, method in _method_calls(module):
        where = f"{module.path}:{call.lineno}"
        if method == "spawn" and not agent and module.path not in SPAWNERS:
            yield f"{where} starts a thread, and is no agent"
        elif method in {"latch", "queue", "condition"} and not (agent or primitive or module.path in MAKERS):
            yield f"{where} makes something to wait on (.{method}), and is neither agent nor primitive"
        elif method == "wait" and not (agent or primitive or face):
            yield f"{where} waits, and is neither agent nor primitive nor face"
        elif receiver in context_variables or agent or primitive:
            continue
        elif _blocks(call, method):
            yield f"{where} blocks in .{method}, and is neither agent nor primitive"


def _blocks(call: ast.Call, method: str) -> bool:
    """Whether a call with this name can only be the blocking one: `d.get(key)` and `", ".join(parts)` are not."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    first = call.args[0] if call.args else None
    match method:
        case "wait_for":
            return True
        case "get":
            nothing = not call.args and not keywords
            flag = isinstance(first, ast.Constant) and first.value is True
            return nothing or flag or not {"block", "timeout"}.isdisjoint(keywords)
        case "join":
            number = isinstance(first, ast.Constant) and isinstance(first.value, int | float)
            return first is None or number
        case "acquire":
            blocking = keywords.get("blocking", first)
            return not (isinstance(blocking, ast.Constant) and blocking.value is False)
        case _:
            return False


def _context_variables(module: Module) -> set[str]:
    """Names bound to a ContextVar in this file: their `get()` doesn't wait."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        match node:
            case ast.Assign(targets=[target], value=ast.Call(func=func)):
                called = func
            case ast.AnnAssign(target=target, value=ast.Call(func=func)):
                called = func
            case _:
                continue
        if isinstance(called, ast.Subscript):  # ContextVar[int]("name")
            called = called.value
        if _dotted(called).split(".")[-1] == "ContextVar":
            found.add(ast.unparse(target))
    return found


def locks_are_entered_not_conditions(module: Module) -> Iterator[str]:
    """A Ctrl-C inside `with condition:` can leave it held; inside `with lock:` never."""
    conditions = {
        ast.unparse(target)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in {"condition", "Condition"}
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.With):
            for item in node.items:
                entered = ast.unparse(item.context_expr)
                if entered in conditions:
                    yield f"{module.path}:{node.lineno} enters the condition {entered}; enter its lock"


def imports_are_cheap(module: Module) -> Iterator[str]:
    """What is slow or optional is imported where it is first used."""
    slow_here = module.layer not in LOADED_ON_DEMAND and module.path != "__main__"
    for found in imports(module):
        if not found.runs_at_import:
            continue
        if found.root in OPTIONAL and OWNERS.get(module.path) != found.root:
            yield f"{module.path}:{found.line} imports {found.root} at the top; import it where it is first used"
        if found.root in SLOW and slow_here:
            yield f"{module.path}:{found.line} imports {found.root} at the top; import it where it is first used"


def one_caller_of_croniter(module: Module) -> Iterator[str]:
    """The rule for daylight saving stands around croniter, so nobody may go past it."""
    for found in imports(module):
        if found.root == "croniter" and module.path != "kernel/cron":
            yield f"{module.path}:{found.line} imports croniter; call kernel/cron.py"


def importing_does_nothing(module: Module) -> Iterator[str]:
    """Importing defines names: it starts nothing, opens nothing and calls nobody."""
    for node, at_import in _walk(module.tree, True):
        if not at_import:
            continue
        match node:
            case ast.Call(func=func):
                name = _dotted(func)
                if name.split(".")[-1] in MADE_AT_IMPORT_NEVER:
                    yield f"{module.path}:{node.lineno} calls {name} at import"
            case _:
                pass
    for statement in _top_statements(module.tree.body):
        match statement:
            case ast.Expr(value=ast.Call(func=func)):
                name = _dotted(func)
                if name not in CALLS_AT_IMPORT and not (module.layer == "" and "warn" in name):
                    yield f"{module.path}:{statement.lineno} calls {name} at import"
            case ast.With() | ast.While():
                yield f"{module.path}:{statement.lineno} runs a block at import"
            case _:
                pass


def _top_statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those inside `if` and `try` included; a script's `if __name__` is not."""
    for statement in body:
        match statement:
            case ast.If(test=test, body=inner, orelse=other):
                if "__name__" not in ast.unparse(test):
                    yield from _top_statements([*inner, *other])
            case ast.Try(body=inner, handlers=handlers, orelse=other, finalbody=last):
                caught = [line for handler in handlers for line in handler.body]
                yield from _top_statements([*inner, *caught, *other, *last])
            case _:
                yield statement


def annotations_cost_nothing(module: Module) -> Iterator[str]:
    """Every file that holds code says `from __future__ import annotations`."""
    code = [node for node in module.tree.body if not isinstance(node, ast.Expr)]
    found = any(entry.module == "__future__" for entry in imports(module))
    if code and not found:
        yield f"{module.path}: write `from __future__ import annotations` below the docstring"


def what_is_private_stays_in_its_file(module: Module) -> Iterator[str]:
    """Classes of one file may be friends; nobody reaches for `_name` of another file."""
    own = {
        name
        for node in ast.walk(module.tree)
        for name in _defined(node)
        if name.startswith("_") and not name.startswith("__")
    }
    for node in ast.walk(module.tree):
        match node:
            case ast.Attribute(value=value, attr=attr):
                private = attr.startswith("_") and not attr.startswith("__")
                if (
                    private
                    and attr not in own | OF_NAMED_TUPLES
                    and _dotted(node) not in PRIVATE_BUT_DOCUMENTED
                ):
                    yield f"{module.path}:{node.lineno} reaches for {ast.unparse(value)}.{attr}"
            case ast.ImportFrom(module=source, names=names, level=level):
                ours = level or (source or "").split(".")[0] == "supervisor"
                for alias in names:
                    if ours and alias.name.startswith("_") and not alias.name.startswith("__"):
                        yield f"{module.path}:{node.lineno} imports {alias.name}"
            case _:
                pass


def _defined(node: ast.AST) -> list[str]:
    """The names that a node gives to something: an attribute of self included, one of another object not."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Name(id=name, ctx=ast.Store()):
            return [name]
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr, ctx=ast.Store()):
            return [attr]
        case ast.Constant(value=str(name)) if name.isidentifier():  # in __slots__
            return [name]
        case _:
            return []


RULES: list[Rule] = [
    layers,
    one_clock,
    few_wait,
    locks_are_entered_not_conditions,
    imports_are_cheap,
    one_caller_of_croniter,
    importing_does_nothing,
    annotations_cost_nothing,
    what_is_private_stays_in_its_file,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps_the_rule(rule: Rule) -> None:
    assert [broken for module in modules() for broken in rule(module)] == []


# -- the rules see what they are for -----------------------------------------------------------

BREACHES = [
    (layers, "kernel/bus", "from supervisor.tasks.spec import TaskSpec"),
    (layers, "kernel/bus", "from ..tasks import spec"),
    (layers, "kernel/bus", "from .. import tasks"),
    (layers, "kernel/bus", "from supervisor import testing"),
    (
        layers,
        "kernel/bus",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import supervisor.tasks.spec",
    ),
    (layers, "kernel/bus", "def late():\n    from supervisor.tasks import spec"),
    (layers, "kernel/bus", "import importlib\nimportlib.import_module('supervisor.flows')"),
    (layers, "tasks/actor", "import supervisor.flows.run"),
    (layers, "tasks/actor", "from supervisor import TaskSpec"),
    (layers, "tasks/actor", "from supervisor.subscribers import LogSubscriber"),
    (layers, "tasks/actor", "from supervisor.testing import VirtualClock"),
    (layers, "flows/run", "from supervisor.durable import engine"),
    (layers, "durable/stores/sqlite", "from ...flows import run"),
    (layers, "subscribers/log", "from supervisor.testing.recorder import EventRecorder"),
    (layers, "__init__", "from supervisor.testing import VirtualClock"),
    (layers, "tasks/actor", "from supervisor.cli.main import main"),
    (layers, "plugins/new", "x = 1"),
    (one_clock, "tasks/actor", "import time"),
    (one_clock, "tasks/actor", "from threading import Lock"),
    (one_clock, "tasks/actor", "def f():\n    import threading as t"),
    (one_clock, "kernel/bus", "from queue import SimpleQueue"),
    (one_clock, "tasks/restart", "import random"),
    (one_clock, "tasks/lifecycle", "from datetime import UTC, datetime\nat = datetime.now(UTC)"),
    (one_clock, "tasks/lifecycle", "import datetime\nat = datetime.datetime.utcnow()"),
    (few_wait, "tasks/registry", "def f(clock): clock.spawn(print, 'x')"),
    (few_wait, "kernel/promise", "def f(clock): clock.spawn(print, 'x')"),
    (few_wait, "tasks/registry", "def f(clock): clock.latch()"),
    (few_wait, "tasks/handle", "def f(clock): clock.queue()"),
    (few_wait, "tasks/registry", "def f(latch): latch.wait()"),
    (few_wait, "tasks/handle", "def f(condition): condition.wait_for(bool)"),
    (few_wait, "tasks/registry", "def f(inbox): inbox.get()"),
    (few_wait, "tasks/registry", "def f(inbox): inbox.get(timeout=3.0)"),
    (few_wait, "tasks/registry", "def f(inbox): inbox.get(True, 3.0)"),
    (few_wait, "tasks/registry", "def f(thread): thread.join()"),
    (few_wait, "tasks/registry", "def f(thread): thread.join(5)"),
    (few_wait, "tasks/registry", "def f(lock): lock.acquire(timeout=5)"),
    (few_wait, "supervisor", "def f(clock): clock.spawn(print, 'x')"),
    (
        locks_are_entered_not_conditions,
        "kernel/promise",
        "class P:\n"
        "    def __init__(self, clock):\n"
        "        self._set = clock.condition(clock.lock())\n"
        "    def get(self):\n"
        "        with self._set:\n"
        "            pass",
    ),
    (imports_are_cheap, "tasks/actor", "import logging.handlers"),
    (imports_are_cheap, "__init__", "from typing_extensions import override"),
    (imports_are_cheap, "kernel/cron", "import croniter"),
    (imports_are_cheap, "tasks/actor", "try:\n    import psycopg\nexcept ImportError:\n    pass"),
    (imports_are_cheap, "subscribers/log", "import prometheus_client"),
    (imports_are_cheap, "tasks/actor", "class C:\n    import json"),
    (one_caller_of_croniter, "flows/trigger", "def f():\n    from croniter import croniter"),
    (importing_does_nothing, "tasks/actor", "print('hello')"),
    (importing_does_nothing, "tasks/actor", "if True:\n    print('hello')"),
    (importing_does_nothing, "tasks/actor", "thread = clock.spawn(print, 'x')"),
    (importing_does_nothing, "tasks/actor", "class C:\n    log = logging.getLogger('x')"),
    (importing_does_nothing, "tasks/actor", "with open('x') as file:\n    text = file.read()"),
    (importing_does_nothing, "kernel/bus", "warn_somebody()"),
    (annotations_cost_nothing, "kernel/bus", "x = 1"),
    (what_is_private_stays_in_its_file, "tasks/actor", "def f(bus): bus._mailbox.clear()"),
    (what_is_private_stays_in_its_file, "tasks/actor", "def f(bus): bus._mailbox = []"),
    (what_is_private_stays_in_its_file, "tasks/actor", "from supervisor.kernel.event import _makers"),
]

ALLOWED = [
    (layers, "tasks/actor", "from supervisor.kernel.clock import Clock\nfrom . import spec\nimport typing"),
    (layers, "flows/run", "from supervisor.tasks.supervisor import Supervisor"),
    (layers, "testing/recorder", "from supervisor.kernel.bus import Event"),
    (layers, "__init__", "from supervisor.tasks.spec import TaskSpec"),
    (layers, "__main__", "from supervisor import Supervisor\nfrom supervisor.cli.main import main"),
    (layers, "cli/main", "def version():\n    from supervisor import __version__"),
    (one_clock, "kernel/clock", "import threading, time\nfrom datetime import datetime\nx = datetime.now()"),
    (one_clock, "kernel/backoff", "def f():\n    import random"),
    (one_clock, "testing/threads", "import threading"),
    (one_clock, "tasks/registry", "def f(clock): return clock.now()"),
    (few_wait, "tasks/actor", "def f(clock, latch): clock.spawn(latch.wait, 'x'); clock.queue().get()"),
    (few_wait, "tasks/supervisor", "def f(clock): clock.spawn(print, 'x')"),
    (few_wait, "kernel/promise", "def f(clock, done): clock.condition(done.lock).wait_for(bool)"),
    (few_wait, "tasks/handle", "def f(promise): promise.wait(1.0)"),
    (
        few_wait,
        "tasks/registry",
        "def f(names): return ', '.join(names) + names.get('a', 'b') + names.get('a')",
    ),
    (few_wait, "tasks/registry", "def f(lock): lock.acquire(blocking=False); lock.acquire(False)"),
    (
        few_wait,
        "tasks/registry",
        "from contextvars import ContextVar\nc: ContextVar[int] = ContextVar('c')\nc.get()",
    ),
    (locks_are_entered_not_conditions, "kernel/promise", "def f(self):\n    with self._lock:\n        pass"),
    (imports_are_cheap, "tasks/actor", "def f():\n    import logging"),
    (
        imports_are_cheap,
        "tasks/actor",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import logging",
    ),
    (imports_are_cheap, "subscribers/prometheus", "import logging, prometheus_client"),
    (one_caller_of_croniter, "kernel/cron", "def f():\n    from croniter import croniter"),
    (importing_does_nothing, "tasks/actor", "import os\nx = frozenset({1})\nos.register_at_fork(before=f)"),
    (importing_does_nothing, "__main__", "def f():\n    print(1)\nif __name__ == '__main__':\n    f()"),
    (importing_does_nothing, "__init__", "_warn_when_shadowed()"),
    (
        what_is_private_stays_in_its_file,
        "kernel/bus",
        "class A:\n    def __init__(self): self._box = []\ndef f(a): return a._box, sys._current_frames()",
    ),
    (annotations_cost_nothing, "kernel/__init__", "'only a docstring'"),
    (annotations_cost_nothing, "kernel/bus", "from __future__ import annotations\nx = 1"),
]


@pytest.mark.parametrize(("rule", "path", "source"), BREACHES)
def test_a_breach_is_found(rule: Rule, path: str, source: str) -> None:
    assert list(rule(parse(path, source))) != []


@pytest.mark.parametrize(("rule", "path", "source"), ALLOWED)
def test_what_the_rule_allows_is_not_reported(rule: Rule, path: str, source: str) -> None:
    assert list(rule(parse(path, source))) == []
