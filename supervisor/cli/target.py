"""`module:object`: what a command line names, found, checked, and ready to run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from supervisor.flows.running import RunningScheduler
from supervisor.flows.scheduler import Scheduler
from supervisor.flows.workflow import Workflow
from supervisor.kernel.text import error_text, shown, traceback_text
from supervisor.tasks.spec import TaskSpec
from supervisor.tasks.supervisor import Supervisor

if TYPE_CHECKING:
    from supervisor.durable.engine import FlowEngine
    from supervisor.durable.runtime import FlowRuntime

__all__ = ["TargetError", "load", "load_engine", "load_workflow"]


class _Wanted(NamedTuple):
    """What a command can do something with."""

    kinds: tuple[type, ...]
    items: bool  # a collection of TaskSpec will do as well
    what: str
    or_made: str  # the same, with the function that returns it
    example: str  # a name
    verb: str  # what is done to it
    returns: str  # what a function of it gives


_RUNNABLE = _Wanted(
    (Supervisor, TaskSpec, Scheduler),
    True,
    "a Supervisor, a Scheduler, a TaskSpec or a list of them",
    "a Supervisor, a Scheduler, a TaskSpec or a list of them, or a function that returns one of these",
    "tasks",
    "run",
    "the tasks",
)
_DRAWABLE = _Wanted(
    (Workflow,),
    False,
    "a Workflow",
    "a Workflow, or a function that returns one",
    "workflow",
    "draw",
    "the workflow",
)


class TargetError(Exception):
    """The target can't be run; the message is for the person who typed it."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback  # of the person's own code, when that raised


def load(target: str) -> Supervisor | Scheduler | list[TaskSpec]:
    """Return what `module:object` names and `run` can run, calling it when it is a function.

    Makes the current directory importable. Raises TargetError.
    """
    return _runnable(_found(target, _RUNNABLE), target)


def load_workflow(target: str) -> Workflow:
    """Return the workflow that `module:object` names or makes; as `load`."""
    found = _found(target, _DRAWABLE)
    if isinstance(found, Workflow):
        return found
    if isinstance(found, Scheduler | RunningScheduler):
        raise TargetError(f"{target} is a scheduler, which has no graph; name one of its workflows")
    raise TargetError(f"{target} is {_described(found)}; name {_DRAWABLE.or_made}")


def load_engine(target: str) -> FlowEngine | FlowRuntime:
    """Return the engine, or the runtime, that `module:object` names or makes; as `load`."""
    from supervisor.durable.engine import FlowEngine
    from supervisor.durable.runtime import FlowRuntime

    wanted = _Wanted(
        (FlowEngine, FlowRuntime),
        False,
        "a FlowEngine",
        "a FlowEngine, a FlowRuntime beside --store, or a function that returns one of these",
        "engine",
        "serve",
        "the engine",
    )
    found = _found(target, wanted)
    if isinstance(found, FlowEngine | FlowRuntime):
        return found
    if isinstance(found, Supervisor | Scheduler | TaskSpec):
        raise TargetError(f"{target} is {_described(found)}; use the command `run` for it")
    raise TargetError(f"{target} is {_described(found)}; name {wanted.or_made}")


def _found(target: str, wanted: _Wanted) -> object:
    module_name, names = _split(target, wanted.example)
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    found: object = _attribute(_module(module_name), names, wanted)
    return _called(found, target, wanted) if callable(found) else found


def _split(target: str, example: str) -> tuple[str, list[str]]:
    module, colon, attribute = target.partition(":")
    wanted = module.removesuffix(".py").strip("./\\").replace("/", ".").replace("\\", ".")
    if wanted and wanted != module:
        raise TargetError(
            f"{target!r} names a file; name the module, as in `import`: {wanted}:{attribute or example}"
        )
    names = attribute.split(".")
    if not colon and module.replace(".", "").isidentifier():
        raise TargetError(f"{target!r} names no object; write module:object, for example {module}:{example}")
    if not colon or not all(name.isidentifier() for name in [*module.split("."), *names]):
        raise TargetError(f"{target!r} is not of the form module:object; write for example jobs:{example}")
    return module, names


def _module(name: str) -> ModuleType:
    try:
        __import__(name)  # unlike importlib.import_module it leaves its own frames out of tracebacks
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            near = [] if "." in name else get_close_matches(name, _modules_here())
            hint = f"; did you mean {_choice(near)}?" if near else ""
            raise TargetError(f"no module {missing!r} in {os.getcwd()} or on the path{hint}") from None
        raise TargetError(f"importing {name} failed: {error_text(error)}", traceback_text(error)) from None
    except SystemExit as error:
        raise TargetError(
            f"importing {name} ended with {shown(error)}; guard what runs in it by if __name__ == '__main__'"
        ) from None
    except SyntaxError as error:  # its traceback is that of the import
        from traceback import format_exception_only

        trace = "".join(format_exception_only(error))
        raise TargetError(f"importing {name} failed: it is not valid Python", trace) from None
    except Exception as error:
        raise TargetError(f"importing {name} failed: {error_text(error)}", traceback_text(error)) from None
    return sys.modules[name]


def _modules_here() -> list[str]:
    here = Path.cwd()
    return sorted(
        [path.stem for path in here.glob("*.py")] + [path.parent.name for path in here.glob("*/__init__.py")]
    )


def _attribute(module: ModuleType, names: list[str], wanted: _Wanted) -> Any:
    found: Any = module
    where = f"module {module.__name__}"
    for name in names:
        try:
            found = getattr(found, name)
        except AttributeError:
            public = [each for each in dir(found) if not each.startswith("_")]
            near = get_close_matches(name, public)
            if near:
                hint = f"; did you mean {_choice(near)}?"
            elif of_use := _of_use(found, public, module, wanted):
                hint = f"; it has {_choice(of_use[:8])}"
            else:
                hint = f"; there is nothing in it to {wanted.verb}: write {wanted.or_made}"
            raise TargetError(f"{where} has no {name!r}{hint}") from None
        where = f"{where.removeprefix('module ')}.{name}"
    return found


def _of_use(found: object, public: list[str], module: ModuleType, wanted: _Wanted) -> list[str]:
    """Return the names that are worth a hint: what is wanted; without any, functions that may make it."""
    made: list[str] = []
    makers: list[str] = []
    for name in public:
        value: object = getattr(found, name, None)
        listed = wanted.items and isinstance(value, list | tuple)
        items = cast("Iterable[object]", value) if listed else ()
        if isinstance(value, wanted.kinds) or any(isinstance(each, TaskSpec) for each in items):
            made.append(name)
        elif isinstance(value, FunctionType) and value.__module__ == module.__name__:
            makers.append(name)
    return made or makers


def _called(function: Any, target: str, wanted: _Wanted) -> object:
    from inspect import iscoroutinefunction, signature

    if iscoroutinefunction(function):
        raise TargetError(
            f"{target} is a coroutine function; make it a plain function that returns {wanted.returns}"
        )
    try:
        parameters = signature(function)
    except (ValueError, TypeError):  # a builtin that tells nothing
        parameters = None
    if parameters is not None:
        try:
            parameters.bind()
        except TypeError as error:
            raise TargetError(
                f"{target}{parameters} needs arguments ({error}); name a function that can be called without"
            ) from None
    try:
        made: object = function()
        items = _items(made) if wanted.items else None  # a generator runs here
    except SystemExit as error:
        raise TargetError(f"calling {target} ended with {shown(error)}") from None
    except Exception as error:
        raise TargetError(f"calling {target} failed: {error_text(error)}", traceback_text(error)) from None
    if made is None:
        raise TargetError(f"{target}() returned None; it must return {wanted.what}")
    return made if items is None else items


def _runnable(found: object, target: str) -> Supervisor | Scheduler | list[TaskSpec]:
    if isinstance(found, Supervisor | Scheduler):
        return found
    if isinstance(found, RunningScheduler):
        raise TargetError(f"{target} is a scheduler that was started; name the Scheduler, before its start()")
    if isinstance(found, Workflow):
        raise TargetError(
            f"{target} is a Workflow, which needs somebody to run it; give it to a Scheduler, and name that"
        )
    if isinstance(found, TaskSpec):
        return [found]
    specs = _items(found)
    if specs is None:
        raise TargetError(f"{target} is {_described(found)}; name {_RUNNABLE.or_made}")
    for number, each in enumerate(specs):
        if not isinstance(each, TaskSpec):
            raise TargetError(f"item {number} of {target} is {_described(each)}, not a TaskSpec")
    return cast("list[TaskSpec]", specs)


def _items(value: object) -> list[object] | None:
    """Return what is in a collection that might be one of specs; None for anything else."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        return None
    return list(cast("Iterable[object]", value))


def _described(value: object) -> str:
    if isinstance(value, ModuleType):
        return f"a module ({value.__name__})"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}: {shown(value, 60)}"


def _choice(names: list[str]) -> str:
    return " or ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} or {names[-1]}"
