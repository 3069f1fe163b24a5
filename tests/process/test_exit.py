"""Leaving a script without a shutdown: tasks are asked to stop, events are delivered, nothing hangs or complains."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.process.child import Child, run, run_clean

TIMES = int(os.environ.get("SUPERVISOR_LONG_TESTS", "1"))  # as many rounds as this times a quick run

BODIES = """
inside = threading.Event()
def told(ctx):
    inside.set()
    ctx.wait()
    say("stopped", ctx.name, ctx.cancel_reason.value)
"""


def test_a_script_that_ends_asks_its_tasks_to_stop() -> None:
    lines = run_clean(
        BODIES
        + """
sup = Supervisor()
sup.add(TaskSpec.once("a", told))
inside.wait()
inside.clear()
sup.add(TaskSpec.periodic("b", told, 1.0))
inside.wait()
"""
    )
    assert sorted(lines) == ["stopped a shutdown", "stopped b shutdown"]


def test_a_supervisor_that_nobody_holds_is_shut_down_as_well() -> None:
    lines = run_clean(
        BODIES
        + """
import gc
def use():
    Supervisor().add(TaskSpec.once("a", told))
use()
gc.collect()
inside.wait()
"""
    )
    assert lines == ["stopped a shutdown"]


@pytest.mark.parametrize("clean_up", ["ctx.callback(say, 'closed')", "ctx.on_cancel(lambda: say('closed'))"])
def test_what_a_body_registered_runs_at_the_exit(clean_up: str) -> None:
    lines = run_clean(f"""
        inside = threading.Event()
        def body(ctx):
            {clean_up}
            inside.set()
            ctx.wait()
        Supervisor().add(TaskSpec.once("a", body))
        inside.wait()
    """)
    assert lines == ["closed"]


STUBBORN = {
    "waiting": "threading.Event().wait()",
    "sleeping": "import time; time.sleep(3600)  # the thing to be seen: a body that looks at nothing",
    "spinning": "while True: pass",
    "catching": """while True:
                try: ctx.sleep(3600)
                except BaseException: threading.Event().wait(0.001)""",
    "writing": "while True: say('alive')",
}


@pytest.mark.parametrize("how", STUBBORN)
def test_a_body_that_ignores_the_stop_does_not_hold_up_the_exit(how: str) -> None:
    run_clean(f"""
        inside = threading.Event()
        def body(ctx):
            inside.set()
            {STUBBORN[how]}
        Supervisor(SupervisorConfig(exit_grace=0.1, grace=3600)).add(TaskSpec.once("deaf", body))
        inside.wait()
    """)


def test_many_supervisors_share_one_grace_at_the_exit() -> None:
    lines = run_clean("""
        import atexit, time
        start = [0.0]
        atexit.register(lambda: say("in time" if time.monotonic() - start[0] < 20 * 0.5 else "one after the other"))
        def blocks(event):
            threading.Event().wait()
        for n in range(20):
            sup = Supervisor(SupervisorConfig(name=f"s{n}", exit_grace=0.5), subscribers=[blocks])
            sup.add(TaskSpec.once("deaf", stubborn))
        start[0] = time.monotonic()
    """)
    assert lines == ["in time"]


def test_no_outcome_is_lost_at_the_exit() -> None:
    lines = run_clean("""
        sup = Supervisor()
        sup.subscribe(lambda event: say(event.task, event.outcome.value), kinds=[TaskFinished])
        for n in range(0, 600, 100):
            sup.add_all(TaskSpec.once(f"t{m}", waits if m % 2 else (lambda: None)) for m in range(n, n + 100))
    """)
    assert len(lines) == 600
    assert len({line.split()[0] for line in lines}) == 600
    assert {line.split()[1] for line in lines} <= {"completed", "canceled"}


def test_the_events_of_a_stuck_task_arrive_at_the_exit() -> None:
    lines = run_clean("""
        sup = Supervisor(SupervisorConfig(exit_grace=0.1))
        sup.subscribe(lambda event: say(event.kind), kinds=[TaskFinished, GraceExceededEvent, ShutdownCompleted])
        sup.add(TaskSpec.once("deaf", stubborn))
        deaf_runs.wait()
    """)
    assert lines == ["task_finished", "grace_exceeded", "shutdown_completed"]


PRINTING = """
seen = threading.Event()
count = 0
def show(event):
    global count
    print(event, flush=count % 3 == 0)
    count += 1
    if count == 50:
        seen.set()
sup = Supervisor(subscribers=[show])
sup.add_all(TaskSpec.periodic(f"p{n}", lambda: print("tick"), 0) for n in range(4))
seen.wait()
"""


def test_a_subscriber_that_prints_in_a_tight_loop_never_aborts_the_exit() -> None:
    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(lambda _: run(PRINTING), range(5 * TIMES)):
            assert (done.returncode, done.stderr) == (0, ""), done.report()
            assert "ShutdownCompleted" in done.stdout


@pytest.mark.parametrize("dedicated", [True, False])
def test_a_subscriber_that_blocks_does_not_hold_up_the_exit(dedicated: bool) -> None:
    lines = run_clean(f"""
        inside = threading.Event()
        def blocks(event):
            inside.set()
            threading.Event().wait()
        sup = Supervisor(SupervisorConfig(exit_grace=0.1))
        sup.subscribe(blocks, dedicated={dedicated})
        sup.subscribe(lambda event: say(event.kind), kinds=[ShutdownCompleted], dedicated=True)
        sup.add(TaskSpec.once("a", waits))
        inside.wait()
    """)
    assert lines == ["shutdown_completed"]


def test_a_reader_of_events_in_another_thread_ends_with_the_script() -> None:
    lines = run_clean("""
        sup = Supervisor().start()
        events = sup.events(TaskFinished)
        thread = threading.Thread(target=lambda: say(*[event.task for event in events]), daemon=True)
        thread.start()
        sup.add(TaskSpec.once("a", lambda: None)).wait()
        sup.shutdown()
        thread.join()
    """)
    assert lines == ["a"]


@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(3)", 3), ("sys.exit()", 0), ("raise SystemExit(4)", 4), ("raise ValueError('mine')", 1)],
)
@pytest.mark.parametrize("where", ["plain", "with"])
def test_the_exit_code_and_the_error_of_the_script_are_its_own(end: str, code: int, where: str) -> None:
    block = "with sup:\n            " if where == "with" else ""
    done = run(f"""
        sup = Supervisor()
        inside = threading.Event()
        def body(ctx):
            inside.set()
            ctx.wait()
            say("stopped")
        sup.add(TaskSpec.once("a", body))
        inside.wait()
        {block}{end}
    """)
    assert (done.returncode, done.stdout) == (code, "stopped\n"), done.report()
    assert done.stderr.count("Traceback") == (1 if "mine" in end else 0)
    assert "supervisor" not in done.stderr


def test_exit_handlers_of_the_user_meet_a_working_api() -> None:
    lines = run_clean("""
        import atexit
        sup = Supervisor()
        def after():
            say("after", sup.tasks(), handle.wait(1).kind.value)
            try:
                sup.add(TaskSpec.once("late", waits))
            except ShuttingDown:
                say("closed")
            sup.request_shutdown()
            sup.shutdown()
        atexit.register(after)
        handle = sup.add(TaskSpec.once("a", waits))
        def before():
            try:
                say("before", sup.add(TaskSpec.once("b", lambda: 5)).wait(20).value)
            except CapacityExceeded:  # Python 3.12 lets no thread start in an exit handler
                say("before", 5)
        atexit.register(before)
    """)
    assert lines == ["before 5", "after [] canceled", "closed"]


def test_a_supervisor_that_was_shut_down_leaves_nothing_to_the_exit() -> None:
    lines = run_clean("""
        with Supervisor(subscribers=[lambda event: say(event.kind)]) as sup:
            sup.wait()
        say("end")
    """)
    assert lines == ["shutdown_requested", "shutdown_completed", "end"]


def test_ctrl_c_ends_the_grace_of_the_exit() -> None:
    with Child("""
        sup = Supervisor(SupervisorConfig(exit_grace=3600))
        sup.subscribe(lambda event: say(event.kind), kinds=[ShutdownRequested])
        sup.add(TaskSpec.once("deaf", stubborn))
        deaf_runs.wait()
        announce_blocked()
    """) as child:
        assert {child.line(), child.line()} == {"shutdown_requested", "blocked"}
        child.send(signal.SIGINT)
        done = child.finish()
    assert "Traceback" not in done.stderr


def test_a_run_in_a_daemon_thread_ends_with_the_script() -> None:
    lines = run_clean(
        BODIES
        + """
thread = threading.Thread(target=lambda: Supervisor().run([TaskSpec.once("a", told)]), daemon=True)
thread.start()
inside.wait()
"""
    )
    assert lines == ["stopped a shutdown"]


def test_a_token_that_waits_for_its_time_does_not_hold_up_the_exit() -> None:
    run_clean("""
        token = CancelToken().child(3600)
        token.on_cancel(lambda: say("never"))
        threading.Thread(target=token.wait, daemon=True).start()
    """)
