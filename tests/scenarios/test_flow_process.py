"""Whole programs with a scheduler: the end of the interpreter, Ctrl-C, signals, threads that are not the main one."""

from __future__ import annotations

import textwrap

import pytest

from tests.programs import Finished, run_code

HEAD = """
import os, signal, sys, threading
from supervisor.flows import *
def tell(*words):
    print(*words, flush=True)
"""


def program(code: str) -> Finished:
    return run_code(HEAD + textwrap.dedent(code))


def check(done: Finished, *lines: str) -> None:
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, list(lines), ""), done.report()


def test_a_program_that_ends_without_a_stop_does_not_hang() -> None:
    check(
        program("""
        ran = threading.Event()
        scheduler = Scheduler()
        scheduler.every("a", ran.set, interval=0.01)
        scheduler.cron("c", lambda: None, expression="* * * * * *")
        scheduler.every("stays", lambda: threading.Event().wait(), interval=60)
        running = scheduler.start()
        ran.wait()
        tell("end of main")
        """),
        "end of main",
    )


def test_a_program_whose_subscriber_prints_to_the_last_ends_cleanly() -> None:
    done = program("""
        ran = threading.Event()
        scheduler = Scheduler(subscribers=[lambda event: tell(event.kind)])
        for number in range(5):
            scheduler.every(f"{number}", ran.set, interval=0.0005)
        running = scheduler.start()
        ran.wait()
        """)
    assert (done.returncode, done.stderr) == (0, ""), done.report()
    assert "flow_started" in done.stdout


def test_ctrl_c_ends_a_wait_and_leaving_the_block_stops() -> None:
    check(
        program("""
        class Resource:
            def teardown(self):
                tell("torn down")
        class S:
            WORK, DONE = "work", "done"
        workflow = Workflow(Resources(r=Resource())).register(S.WORK, lambda: S.DONE).add_exit_state(S.DONE)
        scheduler = Scheduler()
        scheduler.manual("w", workflow, S.WORK)
        scheduler.manual("ctrl-c", lambda: os.kill(os.getpid(), signal.SIGINT))
        try:
            with scheduler.start() as running:
                running.trigger("ctrl-c")
                running.wait()
        except KeyboardInterrupt:
            tell("interrupted")
        tell(running.wait(0))
        """),
        "torn down",
        "interrupted",
        "True",
    )


def test_after_ctrl_c_in_a_wait_or_in_a_stop_another_stop_works() -> None:
    check(
        program("""
        def interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            go.wait()
        go = threading.Event()
        scheduler = Scheduler()
        scheduler.manual("a", interrupts)
        running = scheduler.start()
        for call in (running.wait, running.stop):
            try:
                running.trigger("a")
            except FlowAlreadyRunning:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                call()
            except KeyboardInterrupt:
                tell("interrupted")
        go.set()
        running.stop()
        tell(running.wait(0), type(running.status("a").status).__name__)
        """),
        "interrupted",
        "interrupted",
        "True Completed",
    )


def test_a_signal_handler_may_request_the_stop_whatever_it_interrupts() -> None:
    check(
        program("""
        handled = []
        def handler(number, frame):
            handled.append(number)
            running.request_stop()
        signal.signal(signal.SIGTERM, handler)
        scheduler = Scheduler()
        scheduler.every("a", lambda: None, interval=0.001)
        running = scheduler.start()
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        try:
            while True:          # holds the lock most of the time
                running.pause("a"); running.list(); running.resume("a")
        except SchedulerStopped:
            tell("stopped", handled == [signal.SIGTERM])
        running.stop()
        """),
        "stopped True",
    )


def test_a_scheduler_lives_in_a_thread_that_is_not_the_main_one_and_touches_no_signal() -> None:
    check(
        program("""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        def life():
            ran = threading.Event()
            scheduler = Scheduler()
            scheduler.every("a", ran.set, interval=0.01)
            with scheduler.start() as running:
                ran.wait()
                tell(running.wait(0))
            tell(running.wait())
        thread = threading.Thread(target=life)
        thread.start()
        thread.join()
        tell({number: signal.getsignal(number) for number in before} == before)
        """),
        "False",
        "True",
        "True",
    )


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit(3)"])
def test_a_run_that_raises_ctrl_c_or_exits_ends_no_program(error: str) -> None:
    check(
        program(f"""
        def fails():
            raise {error}
        scheduler = Scheduler()
        scheduler.manual("a", fails)
        with scheduler.start() as running:
            running.trigger("a")
        tell(type(running.status("a").status).__name__)
        """),
        "Backoff",
    )


def test_importing_flows_starts_no_thread_and_reads_no_zone() -> None:
    check(
        program("""
        tell(threading.active_count(), "croniter" in sys.modules, "zoneinfo" in sys.modules)
        """),
        "1 False False",
    )
