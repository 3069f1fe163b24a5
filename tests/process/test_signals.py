"""Signals: a graceful stop, a hasty one, and an API that is whole after a Ctrl-C in any wait."""

from __future__ import annotations

import signal

import pytest

from tests.process.child import Child, run_clean
from tests.programs import run_code

BOTH = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_stops_a_run_with_grace_and_puts_the_handlers_back(number: signal.Signals) -> None:
    with Child("""
        def mine(number, frame): say("mine")
        signal.signal(signal.SIGTERM, mine)
        def body(ctx):
            say("running")
            ctx.wait()
            say("asked to stop:", ctx.cancel_reason.value)
            return "cleaned up"
        sup = Supervisor()
        (outcome,) = sup.run([TaskSpec.once("t", body)])
        say(outcome.kind.value, outcome.value, sup.received_signal)
        say(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM) is mine)
        os.kill(os.getpid(), signal.SIGTERM)
    """) as child:
        child.expect("running")
        child.send(number)
        child.expect("asked to stop: shutdown")
        child.expect(f"canceled cleaned up {number:d}")
        child.expect("True True")
        child.expect("mine")
        done = child.finish()
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("first", BOTH)
@pytest.mark.parametrize("second", BOTH)
def test_a_second_signal_ends_the_grace_at_once(first: signal.Signals, second: signal.Signals) -> None:
    with Child("""
        sup = Supervisor(SupervisorConfig(grace=3600, exit_grace=0.1))
        sup.subscribe(lambda event: say(event.kind), kinds=[AttemptStarting, ShutdownRequested])
        try:
            sup.run([TaskSpec.once("deaf", stubborn)])
        except GraceExceeded as error:
            say("given up:", *[each.name for each in error.stuck])
        say(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM).name)
    """) as child:
        child.expect("attempt_starting")
        child.send(first)
        child.expect("shutdown_requested")
        child.send(second)
        child.expect("given up: deaf")
        child.expect("True SIG_DFL")
        done = child.finish()
    assert (done.returncode, done.stderr) == (0, "")


def test_a_storm_of_signals_stops_a_run_in_order() -> None:
    lines = run_clean("""
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)  # for what comes after the run
        def body(ctx):
            for _ in range(300):
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGINT)
            ctx.wait()
        sup = Supervisor(SupervisorConfig(exit_grace=0.1))
        specs = [TaskSpec.once("storm", body), *[TaskSpec.periodic(f"p{n}", lambda: None, 0.001) for n in range(5)]]
        try:
            outcomes = sup.run(specs)
        except GraceExceeded as error:  # a second signal ends the grace, and none has to be left by then
            assert error.stuck
        assert sup.received_signal in (signal.SIGTERM, signal.SIGINT)
        say("ended")
    """)
    assert lines == ["ended"]


def test_run_in_another_thread_leaves_the_handlers_alone() -> None:
    with Child("""
        sup, inside = Supervisor(), threading.Event()
        before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
        def body(ctx):
            inside.set()
            ctx.wait()
        ends = []
        thread = threading.Thread(target=lambda: ends.extend(sup.run([TaskSpec.once("t", body)])))
        thread.start()
        inside.wait()
        after = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
        try:
            say("same" if before == after else "changed")
            threading.Event().wait()
        except KeyboardInterrupt:
            sup.request_shutdown()
        thread.join()
        say(ends[0].kind.value, sup.received_signal)
    """) as child:
        child.expect("same")
        child.send(signal.SIGINT)
        child.expect("canceled None")
        done = child.finish()
    assert (done.returncode, done.stderr) == (0, "")


def test_run_without_signals_lets_ctrl_c_through_and_stops_its_tasks() -> None:
    with Child("""
        def body(ctx):
            ctx.wait()
            say("stopped")
        sup = Supervisor()
        announce_blocked()
        try:
            sup.run([TaskSpec.once("t", body)], signals=False)
        except KeyboardInterrupt:
            say("interrupted", sup.tasks())
    """) as child:
        child.expect("blocked")
        child.send(signal.SIGINT)
        child.expect("stopped")
        child.expect("interrupted []")
        done = child.finish()
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "failure",
    [
        "[TaskSpec.once('t', waits), TaskSpec.once('t', waits)]",
        "[5]",
        "[TaskSpec.once('t', stubborn)], stop=stop",
    ],
    ids=["refused batch", "no spec", "stuck"],
)
def test_a_run_that_raises_puts_the_handlers_back(failure: str) -> None:
    lines = run_clean(f"""
        sup = Supervisor(SupervisorConfig(grace=0, exit_grace=0))
        stop = threading.Event()
        stop.set()
        try:
            sup.run({failure})
        except (SupervisorError, TypeError) as error:
            say("raised")
        say(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM).name)
    """)
    assert lines == ["raised", "True SIG_DFL"]


BLOCKING = {
    "handle.wait": "parked.wait()",
    "handle.wait with a timeout": "parked.wait(3600)",
    "handle.cancel": "deaf.cancel()",
    "cancel": "sup.cancel('deaf')",
    "cancel with a timeout": "sup.cancel('deaf', timeout=3600)",
    "wait": "sup.wait()",
    "wait with a timeout": "sup.wait(3600)",
    "events": "next(sup.events(TaskRejected))",
    "token.wait": "CancelToken().wait()",
    "token.wait with a timeout": "CancelToken().wait(3600)",
    "child token": "CancelToken().child(3600).wait()",
}


@pytest.mark.parametrize("call", BLOCKING)
def test_ctrl_c_in_a_blocking_call_leaves_everything_usable(call: str) -> None:
    with Child(f"""
        sup = Supervisor(SupervisorConfig(grace=3600, exit_grace=0)).start()
        parked, deaf = sup.add_all([TaskSpec.once("parked", waits), TaskSpec.once("deaf", stubborn)])
        deaf_runs.wait()
        announce_blocked()
        try:
            {BLOCKING[call]}
        except KeyboardInterrupt:
            say("interrupted")
        say(sup.add(TaskSpec.once("new", lambda: "works")).wait(20).value)
        say(*[task.name for task in sup.tasks()], sup.wait(0))
        with sup.subscribe(print), sup.events() as events:
            say(sup.cancel("parked", timeout=20) or parked.done())
            say(next(events).kind)
        try:
            sup.shutdown(0)
        except GraceExceeded as error:
            say(*[each.name for each in error.stuck])
    """) as child:
        child.expect("blocked")
        child.send(signal.SIGINT)
        for line in ("interrupted", "works", "parked deaf False", "True", "task_cancel_requested", "deaf"):
            child.expect(line)
        done = child.finish()
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("way", ["with", "shutdown"])
def test_ctrl_c_while_a_shutdown_waits_leaves_it_going_on(way: str) -> None:
    with Child(
        f"""
        sup = Supervisor(SupervisorConfig(grace=3600, exit_grace=0)).start()
        deaf = sup.add(TaskSpec.once("deaf", stubborn))
        deaf_runs.wait()
        announce_blocked()
        try:
            if {way!r} == "with":
                with sup:
                    pass
            else:
                sup.shutdown()
        except KeyboardInterrupt:
            say("interrupted")
        say(*[(task.name, task.state) for task in sup.tasks()])
        try:
            sup.add(TaskSpec.once("late", waits))
        except ShuttingDown:
            say("closed")
        try:
            sup.shutdown(0)
        except GraceExceeded as error:
            say(*[each.name for each in error.stuck])
        say(deaf.wait().kind.value)
    """
    ) as child:
        child.expect("blocked")
        child.send(signal.SIGINT)
        for line in ("interrupted", "('deaf', 'stopping')", "closed", "deaf", "force_aborted"):
            child.expect(line)
        done = child.finish()
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_inside_with_stops_everything_within_the_grace() -> None:
    with Child("""
        def body(ctx):
            ctx.wait()
            say("stopped", ctx.name)
        try:
            with Supervisor(SupervisorConfig(grace=0.2, exit_grace=0)) as sup:
                sup.add(TaskSpec.once("kind", body))
                sup.add(TaskSpec.once("deaf", stubborn))
                deaf_runs.wait()
                announce_blocked()
                sup.wait()
        except KeyboardInterrupt:
            say("interrupted", [(task.name, task.state) for task in sup.tasks()])
    """) as child:
        child.expect("blocked")
        child.send(signal.SIGINT)
        child.expect("stopped kind")
        child.expect("interrupted [('deaf', 'stuck')]")
        done = child.finish()
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_a_handler_of_the_user_may_ask_for_the_shutdown() -> None:
    """It may run between any two instructions of the main thread, which is inside the library all the time."""
    lines = run_clean("""
        sup = Supervisor().start()
        signal.signal(signal.SIGALRM, lambda number, frame: sup.request_shutdown())
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        number = 0
        try:
            while True:
                number += 1
                sup.add(TaskSpec.once(f"t{number}", lambda: None)).wait()
                sup.tasks()
        except ShuttingDown:
            say("closed")
        sup.shutdown()
        say(sup.tasks())
    """)
    assert lines == ["closed", "[]"]


def test_import_and_use_off_the_main_thread_start_nothing_and_change_no_handler() -> None:
    done = run_code("""
import importlib, signal, sys, threading
numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGALRM]
def state():
    return [*map(signal.getsignal, numbers), threading.excepthook, sys.excepthook, sys.unraisablehook]
before, threads = state(), threading.active_count()
seen = []
def use():
    supervisor = importlib.import_module("supervisor")
    seen.append(threading.active_count() - threads)
    with supervisor.Supervisor() as sup:
        seen.append(sup.add(supervisor.TaskSpec.once("t", lambda: 5)).wait(20).value)
    seen.append(supervisor.Supervisor().run([supervisor.TaskSpec.once("t", lambda: 6)])[0].value)
thread = threading.Thread(target=use)
thread.start()
thread.join()
import supervisor
with supervisor.Supervisor() as sup:
    sup.add(supervisor.TaskSpec.once("t", lambda: None)).wait()
    assert before == state()
assert supervisor.Supervisor().run([supervisor.TaskSpec.once("t", lambda: None)])[0].ok
assert before == state()
print(*seen, threading.active_count() - threads)
""")
    assert (done.stdout, done.stderr, done.returncode) == ("1 5 6 0\n", "", 0)


def test_signals_never_make_a_timed_wait_endless() -> None:
    """The timed `get` of the standard SimpleQueue waits for ever when a signal meets the end of its time."""
    lines = run_clean("""
        from supervisor.kernel.clock import SYSTEM_CLOCK, Empty
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
        queue, over = SYSTEM_CLOCK.queue(), threading.Event()
        def waits_often():
            for _ in range(300):
                try:
                    queue.get(True, 0.0005)
                except Empty:
                    pass
            over.set()
        thread = threading.Thread(target=waits_often, daemon=True)
        thread.start()
        while not over.is_set():
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
        thread.join()
        say("ended")
    """)
    assert lines == ["ended"]
