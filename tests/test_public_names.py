"""What `import supervisor` gives, what it leaves alone, and what it says beside supervisord."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

import supervisor
from supervisor import durable, flows
from tests.programs import ROOT, run_code

PACKAGE = ROOT / "supervisor"


def words(text: str) -> list[str]:
    return text.split()


TASKS = """
    Supervisor SupervisorConfig CancelToken TaskSpec TaskDefaults TaskContext TaskHandle TaskInfo TaskId
    TaskOutcome OutcomeKind RestartPolicy BackoffPolicy Jitter INHERIT Admission RejectionKind CancelReason
    Subscription StuckTask current_context
"""
RAISED_BY_BODIES = "TaskError Fail Timeout Fatal Canceled"
RAISED_BY_THE_LIBRARY = """
    SupervisorError ShuttingDown TaskAlreadyExists AlreadyRunning GraceExceeded CapacityExceeded ReentrantCall
    OutcomeUnavailable ForkedProcess
"""
EVENTS = """
    TaskAdded TaskRejected AttemptStarting AttemptSucceeded AttemptFailed AttemptTimedOut AttemptOverrunning
    AttemptReturnedLate AttemptCanceled BackoffScheduled TaskCancelRequested TaskFinished TaskRemoved SlotChanged
    ShutdownRequested ShutdownCompleted GraceExceededEvent SubscriberFailed EventsDropped
"""
NAMES = {*f"Event {TASKS} {RAISED_BY_BODIES} {RAISED_BY_THE_LIBRARY} {EVENTS}".split()}

FLOWS = """
    Workflow FlowRun Resources Resource Health MemoryStore JoinConfig JoinStrategy SplitResult BranchResult
    CircuitBreaker Scheduler RunningScheduler FlowInfo Idle Running Completed Backoff Tripped FLOW_BACKOFF
    FLOW_TASK_BACKOFF next_fire batch poll timer Ready Pending
"""
FLOW_ERRORS = """
    FlowError ConfigurationError FlowTimeout RetryExhausted JoinFailed CircuitOpen CompensationFailed
    ResourceNotFound ResourceTypeMismatch FlowNotFound FlowAlreadyRunning FlowTripped SchedulerStopped StopTimeout
"""
FLOW_EVENTS = """
    FlowScheduled FlowStarted FlowSkipped FlowSucceeded FlowFailed FlowBackoff FlowTrippedEvent FlowReset
    FlowCanceled StateEntered FlowTaskRetrying BranchFinished ResourceFailed
"""
FLOW_NAMES = {*f"{FLOWS} {FLOW_ERRORS} {FLOW_EVENTS}".split()}

DURABLE = """
    FlowEngine FlowRuntime WorkflowContext StepInvocation current_step RetryPolicy StepFailureAction RunSnapshot
    StepSnapshot WaitSnapshot RunStatus Envelope Wakeup FlowEventStore MemoryEventStore JsonlEventStore
    SqliteEventStore PostgresEventStore WorkQueue MemoryWorkQueue SqliteWorkQueue PostgresWorkQueue Lease
    FlowScheduler SchedulerTick FlowWorker open_store
"""
DURABLE_ERRORS = """
    FlowError RunNotFound RunConflict RunTerminal InvalidRunId InvalidTransition NonDeterministic EventConflict
    StoreError CorruptHistory SerializationError PayloadTooLarge ReplayLimitExceeded UnknownWorkflow UnknownStep
    LeaseLost QueueFull NonRetryable StepFailed RunFailed SignalConflict
"""
DURABLE_EVENTS = "StoreFailed RunUnserved"
DURABLE_NAMES = {*f"{DURABLE} {DURABLE_ERRORS} {DURABLE_EVENTS}".split()}

ELSEWHERE = {
    "supervisor.durable": sorted(DURABLE_NAMES),
    "supervisor.flows": sorted(FLOW_NAMES),
    "supervisor.subscribers": [
        "JsonlSubscriber",
        "LogSubscriber",
        "OpenTelemetrySubscriber",
        "PrometheusSubscriber",
    ],
    "supervisor.testing": ["EventRecorder", "FaultyStore", "VirtualClock", "no_leaked_threads"],
}

# The modules of supervisord, the process manager, whose import package is called `supervisor` too.
SUPERVISORD = words("""
    childutils compat confecho datatypes dispatchers events http http_client loggers medusa options pidproxy poller
    process rpcinterface scripts skel socket_manager states supervisorctl supervisord templating tests ui web xmlrpc
""")

NOT_LOADED = words("""
    asyncio croniter logging.handlers opentelemetry prometheus_client psycopg rich sqlite3 supervisor.cli
    supervisor.durable supervisor.flows supervisor.subscribers supervisor.testing unittest zoneinfo
""")


def natural(name: str) -> tuple[int, list[int | str]]:
    """The order that ruff keeps in `__all__`: constants, classes, the rest; numbers by value."""
    group = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return group, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def test_exactly_the_promised_names_are_exported() -> None:
    assert set(supervisor.__all__) == NAMES


def test_the_exported_names_are_sorted_and_listed_once() -> None:
    assert list(supervisor.__all__) == sorted(set(supervisor.__all__), key=natural)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_an_exported_name_can_be_imported(name: str) -> None:
    assert hasattr(supervisor, name)


@pytest.mark.parametrize(("module", "names"), ELSEWHERE.items(), ids=ELSEWHERE)
def test_the_other_public_modules_have_their_names(module: str, names: list[str]) -> None:
    found = importlib.import_module(module)
    assert [name for name in names if not hasattr(found, name)] == []
    assert [name for name in names if name not in found.__all__] == []


def test_exactly_the_promised_names_of_flows_are_exported() -> None:
    assert set(flows.__all__) == FLOW_NAMES
    assert list(flows.__all__) == sorted(FLOW_NAMES, key=natural)


def test_exactly_the_promised_names_of_durable_are_exported() -> None:
    assert set(durable.__all__) == DURABLE_NAMES
    assert list(durable.__all__) == sorted(DURABLE_NAMES, key=natural)


@pytest.mark.parametrize("name", sorted(DURABLE_NAMES))
def test_an_exported_name_of_durable_can_be_imported(name: str) -> None:
    assert hasattr(durable, name)


@pytest.mark.parametrize("name", [*EVENTS.split(), *FLOW_EVENTS.split(), *DURABLE_EVENTS.split()])
def test_every_event_is_an_event_with_its_own_label(name: str) -> None:
    event = next(getattr(each, name) for each in (supervisor, flows, durable) if hasattr(each, name))
    label = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Event")).lower()
    assert issubclass(event, supervisor.Event)
    assert event.kind == label


def test_the_exceptions_hang_where_users_catch_them() -> None:
    bodies = [getattr(supervisor, name) for name in RAISED_BY_BODIES.split()]
    library = [getattr(supervisor, name) for name in RAISED_BY_THE_LIBRARY.split()]
    assert [e.__name__ for e in bodies if not issubclass(e, supervisor.TaskError)] == ["Canceled"]
    assert not issubclass(supervisor.Canceled, Exception)
    assert issubclass(supervisor.Canceled, BaseException)
    assert [e for e in library if not issubclass(e, supervisor.SupervisorError)] == []
    of_flows = [getattr(flows, name) for name in FLOW_ERRORS.split()]
    assert issubclass(flows.FlowError, supervisor.SupervisorError)
    assert [e for e in of_flows if not issubclass(e, flows.FlowError)] == []
    of_durable = [getattr(durable, name) for name in DURABLE_ERRORS.split()]
    assert issubclass(durable.FlowError, supervisor.SupervisorError)
    assert [e for e in of_durable if not issubclass(e, durable.FlowError)] == []


def test_every_public_name_has_a_docstring_of_its_own() -> None:
    found = {name: getattr(supervisor, name) for name in NAMES - {"INHERIT"}}
    found |= {name: getattr(flows, name) for name in FLOW_NAMES if not name.isupper()}
    found |= {f"durable.{name}": getattr(durable, name) for name in DURABLE_NAMES}
    texts = {name: (each.__doc__ or "").strip() for name, each in found.items()}
    made_up = {
        name for name, text in texts.items() if not text or text.startswith(f"{name.split('.')[-1]}(")
    }  # by dataclass
    assert sorted(made_up) == []


def test_every_public_name_is_in_the_reference() -> None:
    pages = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    directives = set(re.findall(r"^::: ([\w.]+)\s*$", pages, re.MULTILINE))
    wanted = {f"supervisor.{name}" for name in NAMES}
    wanted |= {f"{module}.{name}" for module in ELSEWHERE for name in importlib.import_module(module).__all__}
    assert sorted(wanted ^ directives) == []


def test_no_module_of_ours_has_a_name_of_supervisord_or_of_the_standard_library() -> None:
    ours = {entry.name.removesuffix(".py") for entry in PACKAGE.iterdir()}
    ours = {name for name in ours if not name.startswith("__") and (PACKAGE / name).suffix != ".typed"}
    assert ours & set(SUPERVISORD) == set()
    assert ours & sys.stdlib_module_names == set()


def test_no_console_script_has_a_name_of_supervisord() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    section = text.split("[project.scripts]")[1].split("\n[")[0]
    scripts = set(re.findall(r"^([\w-]+) *=", section, re.MULTILINE))
    assert scripts == {"threadvisor"}


SIDE_EFFECTS = """
import json, signal, sys, threading
def signals():
    return {int(number): repr(signal.getsignal(number)) for number in signal.valid_signals()}
before = signals(), threading.excepthook, sys.excepthook, sys.unraisablehook, sys.getswitchinterval()
threads = threading.enumerate()
loaded = set(sys.modules)
import supervisor
after = signals(), threading.excepthook, sys.excepthook, sys.unraisablehook, sys.getswitchinterval()
print(json.dumps({
    "same": before == after,
    "started": [thread.name for thread in threading.enumerate() if thread not in threads],
    "loaded": sorted(set(sys.modules) - loaded),
}))
"""


def test_importing_starts_no_thread_installs_no_handler_and_loads_nothing_slow() -> None:
    finished = run_code(SIDE_EFFECTS)
    assert finished.returncode == 0, finished.report()
    found = json.loads(finished.stdout)
    assert found["same"] is True
    assert found["started"] == []
    slow = [name for name in found["loaded"] if any(f"{name}.".startswith(f"{bad}.") for bad in NOT_LOADED)]
    assert slow == []


def test_the_flows_load_no_calendar_until_a_schedule_needs_it() -> None:
    finished = run_code("import sys, supervisor.flows\nprint(*sys.modules)")
    assert finished.returncode == 0, finished.report()
    assert {"croniter", "asyncio", "supervisor.testing"} & set(finished.stdout.split()) == set()


def test_the_durable_layer_loads_no_database_until_a_store_needs_it() -> None:
    code = "import sys, supervisor.durable as d\nd.FlowEngine(d.FlowRuntime())\nprint(*sys.modules)"
    finished = run_code(code)
    assert finished.returncode == 0, finished.report()
    unwanted = {"sqlite3", "psycopg", "asyncio", "croniter", "supervisor.flows", "supervisor.testing"}
    assert unwanted & set(finished.stdout.split()) == set()


def test_the_subscribers_load_no_optional_library_until_they_are_made() -> None:
    finished = run_code("import sys, supervisor.subscribers\nprint(*sys.modules)")
    assert finished.returncode == 0, finished.report()
    loaded = {name.split(".")[0] for name in finished.stdout.split()}
    assert loaded & {"prometheus_client", "opentelemetry"} == set()


@pytest.fixture
def shared_folder(tmp_path: Path) -> Path:
    """A copy of the package, as it lies in a site-packages folder."""
    shutil.copytree(PACKAGE, tmp_path / "supervisor", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_importing_beside_supervisord_warns_with_the_cure(shared_folder: Path) -> None:
    (shared_folder / "supervisor" / "supervisord.py").write_text("# supervisord\n", encoding="utf-8")
    finished = run_code("import supervisor\nsupervisor.Supervisor", path=shared_folder)
    assert finished.returncode == 0, finished.report()
    assert "RuntimeWarning" in finished.stderr
    assert "supervisord" in finished.stderr
    assert "pip install --force-reinstall --no-deps threadvisor" in finished.stderr


def test_importing_alone_warns_of_nothing(shared_folder: Path) -> None:
    finished = run_code("import supervisor\nsupervisor.Supervisor", path=shared_folder)
    assert (finished.returncode, finished.stderr) == (0, ""), finished.report()


def test_every_module_still_imports_when_supervisord_has_overwritten_init(shared_folder: Path) -> None:
    (shared_folder / "supervisor" / "__init__.py").write_text("#\n", encoding="utf-8")
    files = [
        file.relative_to(shared_folder).with_suffix("") for file in shared_folder.glob("supervisor/*/**/*.py")
    ]
    names = sorted(".".join(file.parts).removesuffix(".__init__") for file in files)
    finished = run_code("\n".join(f"import {name}" for name in names), path=shared_folder)
    assert finished.returncode == 0, finished.report()
