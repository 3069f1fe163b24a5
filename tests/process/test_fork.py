"""Fork: in the child every call is a clear error at once, its own supervisor works, and the parent goes on."""

from __future__ import annotations

import signal

import pytest

from tests.process.child import Child, run, run_clean

PARENT = """
sup = Supervisor(subscribers=[lambda event: None])
contexts = []
ready = threading.Event()

def body(ctx):
    contexts.append(ctx)
    ctx.on_cancel(lambda: say("canceled in", "parent" if os.getpid() == home else "child"))
    ready.set()
    ctx.wait()

home = os.getpid()
handle = sup.add(TaskSpec.once("a", body))
busy = sup.add(TaskSpec.periodic("busy", lambda: None, 0))
done = sup.add(TaskSpec.once("done", lambda: 5))
done.wait()
ready.wait()
ctx = contexts[0]
token = ctx.child()
subscription = sup.subscribe(lambda event: None)
events = sup.events()

def in_child(run):
    # Run it in a forked child that leaves as any program leaves; return the child's exit code.
    pid = os.fork()
    if pid == 0:
        try:
            run()
        except SystemExit:
            raise
        except BaseException as error:
            say("child:", type(error).__name__, error)
            os._exit(9)
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
AFTER = """
say("parent:", sup.add(TaskSpec.once("more", lambda: 6)).wait(20).value, handle.info().state)
busy.cancel()
sup.shutdown()
say(handle.wait().kind.value)
"""

CALLS = {
    "start": "sup.start()",
    "add": "sup.add(TaskSpec.once('b', waits))",
    "add_all": "sup.add_all([])",
    "submit": "sup.submit(TaskSpec.once('b', waits))",
    "get": "sup.get('a')",
    "tasks": "sup.tasks()",
    "remove": "sup.remove('a')",
    "cancel": "sup.cancel('a', timeout=5)",
    "subscribe": "sup.subscribe(print)",
    "events": "sup.events()",
    "next event": "next(events)",
    "wait": "sup.wait(5)",
    "run": "sup.run()",
    "request_shutdown": "sup.request_shutdown()",
    "shutdown": "sup.shutdown()",
    "enter": "sup.__enter__()",
    "leave": "sup.__exit__(None, None, None)",
    "decorator": "sup.once(lambda: None)",
    "handle.done": "handle.done()",
    "handle.outcome": "handle.outcome",
    "handle.wait": "handle.wait(5)",
    "handle.wait of a finished one": "done.wait()",
    "handle.cancel": "handle.cancel()",
    "handle.remove": "handle.remove()",
    "handle.info": "handle.info(stack=True)",
    "ctx.wait": "ctx.wait(5)",
    "ctx.wait for ever": "ctx.wait()",
    "ctx.wait no time": "ctx.wait(0)",
    "ctx.sleep": "ctx.sleep(5)",
    "ctx.check": "ctx.check()",
    "ctx.on_cancel": "ctx.on_cancel(print)",
    "ctx.child": "ctx.child(5)",
    "token.wait": "token.wait()",
    "token.cancel": "token.cancel()",
    "token.child": "token.child()",
}


def test_in_a_forked_child_every_call_raises_at_once() -> None:
    checks = "\n".join(f"    check({name!r}, lambda: {call})" for name, call in CALLS.items())
    lines = run_clean(f"""{PARENT}
def check(name, call):
    try:
        call()
    except ForkedProcess as error:
        assert "make a new Supervisor" in str(error), error
    else:
        say(name, "did not raise")

def every():
{checks}
    say("checked")

say(in_child(every))
{AFTER}""")
    assert lines == ["checked", "0", "parent: 6 running", "canceled in parent", "canceled"]


def test_a_forked_child_that_does_nothing_leaves_cleanly() -> None:
    lines = run_clean(f"{PARENT}\nsay(in_child(lambda: None), in_child(lambda: sys.exit(3)))\n{AFTER}")
    assert lines == ["0 3", "parent: 6 running", "canceled in parent", "canceled"]


def test_a_forked_child_may_leave_the_blocks_it_was_forked_in() -> None:
    lines = run_clean(f"""{PARENT}
with sup:
    with sup.subscribe(print, kinds=[TaskRejected]), sup.events() as events:
        pid = os.fork()
        if pid == 0:
            sys.exit(4)
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    busy.cancel()
say(handle.wait().kind.value)
""")
    assert lines == ["4", "canceled in parent", "canceled"]


NEW = """
def new():
    seen = []
    with Supervisor(subscribers=[lambda event: seen.append(event.kind)]) as mine:
        flaky = iter([1, 0])
        spec = TaskSpec.restartable("a", lambda: 1 // (1 - next(flaky)), timeout=5, backoff=BackoffPolicy.constant(0.01))
        say(mine.add(spec).wait(20).value, CancelToken().child(0.01).wait(20))
    say(seen[-1])
    Supervisor().add(TaskSpec.once("left to the exit", lambda ctx: (inside.set(), ctx.wait(), say("stopped in child"))))
    inside.wait()

inside = threading.Event()
"""
NEW_LINES = ["1 True", "shutdown_completed", "stopped in child"]


def test_a_new_supervisor_works_in_the_child() -> None:
    lines = run_clean(f"{PARENT}{NEW}\nsay(in_child(new))\n{AFTER}")
    assert lines == [*NEW_LINES, "0", "parent: 6 running", "canceled in parent", "canceled"]


def test_a_child_of_a_child_is_no_different() -> None:
    lines = run_clean(f"""{PARENT}{NEW}
def again():
    with Supervisor() as mine:
        mine.add(TaskSpec.once("a", waits))
        def grandchild():
            for each in (sup, mine):
                try:
                    each.tasks()
                except ForkedProcess:
                    say("raised")
            new()
        say(in_child(grandchild))
say(in_child(again))
{AFTER}""")
    assert lines == [
        "raised",
        "raised",
        *NEW_LINES,
        "0",
        "0",
        "parent: 6 running",
        "canceled in parent",
        "canceled",
    ]


@pytest.mark.parametrize("who", ["child", "parent", "both"])
def test_a_supervisor_built_before_the_fork_starts_on_either_side(who: str) -> None:
    """As a server does that imports the application, forks its workers, and starts in each."""
    lines = run_clean(f"""
        sup = Supervisor(subscribers=[lambda event: None])
        events = sup.events(AttemptTimedOut)
        @sup.once
        def declared():
            say("declared")
        def use(side):
            flaky = iter([1, 0])
            spec = TaskSpec.restartable(
                "a", lambda: 1 // (1 - next(flaky)), timeout=5, backoff=BackoffPolicy.constant(0.01)
            )
            slow = TaskSpec.once("slow", waits, timeout=0.01)
            with sup:
                say(sup.add(spec).wait(20).value, sup.add(slow).wait(20).kind.value, next(events).task)
            say(side)
        pid = os.fork()
        if pid == 0:
            if {who!r} != "parent":
                use("child")
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        if {who!r} != "child":
            use("parent")
    """)
    sides = ["child", "parent"] if who == "both" else [who]
    assert sorted(lines) == sorted(line for side in sides for line in ("declared", "1 failed slow", side))


def test_locks_that_are_held_at_the_fork_hang_no_child() -> None:
    """Threads of the library are inside its locks all the time; many children see many moments."""
    lines = run_clean(f"""{PARENT}{NEW}
hot = sup.add_all(TaskSpec.periodic(f"hot{{n}}", lambda ctx: ctx.child(5), 0) for n in range(4))
def touch():
    for call in (sup.tasks, lambda: sup.add(TaskSpec.once("x", waits)), ctx.wait, handle.wait, subscription.close):
        try:
            call()
        except ForkedProcess:
            pass
    with Supervisor() as mine:
        assert mine.add(TaskSpec.once("a", lambda: 1)).wait(20).ok
say(*{{in_child(touch) for _ in range(40)}})
for each in hot:
    each.cancel()
{AFTER}""")
    assert lines == ["0", "parent: 6 running", "canceled in parent", "canceled"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_works_beside_a_supervisor(method: str) -> None:
    done = run(f"""
import multiprocessing
multiprocessing.set_start_method({method!r})
sup = Supervisor()
other = multiprocessing.Process(target=max, args=(1, 2))
inside = threading.Event()
def body():
    process = multiprocessing.Process(target=max, args=(1, 2))
    process.start()
    process.join()
    return process.exitcode
with sup:
    sup.add(TaskSpec.once("a", waits))
    say(sup.add(TaskSpec.once("b", body)).wait(25).value)
    other.start()
    other.join()
    say(other.exitcode)
""")
    assert (done.stdout.splitlines(), done.returncode) == (["0", "0"], 0), done.report()
    assert "Traceback" not in done.stderr


def test_a_process_that_a_body_forked_can_be_terminated_during_a_run() -> None:
    """It inherits the handlers of `run`, which would post to nobody there."""
    lines = run_clean("""
        def body():
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
                os.write(write, b"x")
                while True:
                    threading.Event().wait(0.01)
            os.read(read, 1)
            os.kill(pid, signal.SIGTERM)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        (outcome,) = Supervisor().run([TaskSpec.once("a", body)])
        say(outcome.value)
    """)
    assert lines == [f"{-signal.SIGTERM:d}"]


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("return", 0),
        ("raise Fail('child')", 1),
        ("sys.exit(7)", 7),
        ("sys.exit('text')", 1),
        ("raise Canceled()", 1),
    ],
)
def test_a_child_that_comes_back_out_of_the_body_ends_and_tries_nothing_again(end: str, code: int) -> None:
    done = run(f"""
        def body(ctx):
            ctx.callback(lambda: say("closed in", "parent" if os.getpid() == home else "child"))
            pid = os.fork()
            if pid == 0:
                print("from the child")
                {end}
            else:
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        home = os.getpid()
        with Supervisor(SupervisorConfig(max_concurrent=1)) as sup:
            outcome = sup.add(TaskSpec.restartable("a", body, backoff=None, timeout=20)).wait(25)
        say(outcome.value, outcome.attempts)
    """)
    assert done.stdout.splitlines() == ["from the child", "closed in parent", f"{code} 1"], done.report()
    assert done.returncode == 0
    assert ("child that task 'a' forked has failed" in done.stderr) is (end.startswith("raise"))


def test_a_body_in_a_forked_child_meets_the_same_errors() -> None:
    lines = run_clean("""
        def body(ctx):
            pid = os.fork()
            if pid == 0:
                for call in (ctx.wait, sup.tasks, lambda: sup.get("a"), lambda: ctx.sleep(5)):
                    try:
                        call()
                    except ForkedProcess:
                        say("raised")
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with Supervisor() as sup:
            say(sup.add(TaskSpec.once("a", body)).wait(20).value)
    """)
    assert lines == ["raised"] * 4 + ["0"]


THREADS_REFUSED = """
import logging, traceback, resource, gc
sup = Supervisor(subscribers=[lambda event: None])
sup.add(TaskSpec.once("first", lambda: None)).wait()
other = Supervisor()
threads = threading.active_count()
if os.getuid() == 0:  # the limit does not bind the superuser; this id has no other process
    os.setgid(54321)
    os.setuid(54321)
soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
for call in (
    lambda: sup.add(TaskSpec.once("a", lambda: 5)),
    lambda: sup.add_all([TaskSpec.once("a", lambda: 5), TaskSpec.once("b", lambda: 6)]),
    lambda: other.start(),
    lambda: other.add(TaskSpec.once("a", lambda: 5)),
    lambda: sup.subscribe(print, dedicated=True),
):
    try:
        call()
    except CapacityExceeded as error:
        say("refused", sup.tasks(), threading.active_count() - threads)
rejected = sup.submit(TaskSpec.once("c", lambda: 7)).wait(20)
say(rejected.kind.value, rejected.rejection.value)
resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
say(sup.add(TaskSpec.once("a", lambda: 5)).wait(20).value, other.add(TaskSpec.once("a", lambda: 6)).wait(20).value)
say(sup.submit(TaskSpec.once("c", lambda: 7)).wait(20).value)
for each in (sup, other):
    each.shutdown()
"""


def test_a_thread_that_the_system_refuses_is_an_error_and_leaves_nothing_registered() -> None:
    lines = run_clean(THREADS_REFUSED)
    assert lines == ["refused [] 0"] * 5 + ["rejected capacity", "5 6", "7"]


def test_the_parent_goes_on_while_children_come_and_go() -> None:
    with Child(f"""{PARENT}
codes = [in_child(lambda: None) for _ in range(5)]
say(*codes, len(sup.tasks()))
signal.pause()
""") as child:
        child.expect("0 0 0 0 0 2")
        child.send(signal.SIGTERM)
        assert child.finish().returncode == -signal.SIGTERM


def test_every_call_on_a_running_scheduler_is_refused_in_a_child() -> None:
    lines = run_clean("""
        from supervisor.flows import Scheduler
        from supervisor import ForkedProcess
        scheduler = Scheduler()
        scheduler.manual("a", lambda: None)
        running = scheduler.start()
        if os.fork() == 0:
            for call in (running.trigger, running.reset_flow, running.pause, running.resume, running.cancel_flow, running.status):
                try:
                    call("a")
                    say("accepted", call.__name__)
                except ForkedProcess:
                    pass
            os._exit(0)
        os.wait()
        running.stop()
        say("done")
    """)
    assert lines == ["done"]
