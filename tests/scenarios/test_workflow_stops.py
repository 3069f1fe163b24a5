"""Ctrl-C, stops and exits of a workflow that is run directly; stragglers that outlive it."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

from supervisor import CancelToken
from supervisor.flows import FlowTimeout, JoinStrategy, MemoryStore, Resources, Workflow
from supervisor.testing import VirtualClock
from tests.flows.walking import DOUBLING, S, Split, Timed, Walk, one
from tests.process.child import Child
from tests.programs import run_code

# A retry loop swallowed Ctrl-C: the user could not stop the program.


def test_a_ctrl_c_in_a_body_is_not_retried() -> None:
    calls: list[int] = []

    def body() -> S:
        calls.append(1)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        one(body, max_retries=5).run(S.A)
    assert calls == [1]


@pytest.mark.parametrize("where", ["backoff", "split"])
def test_a_ctrl_c_ends_the_main_threads_wait_and_asks_branches_to_stop(where: str) -> None:
    with Child(
        """
        from supervisor.flows import *

        asked = threading.Event()

        class R:
            def teardown(self):
                say("torn down")

        def branch(res, run):
            run.token.wait()
            asked.set()

        def fails():
            raise Fail("no")

        w = Workflow(Resources(r=R())).add_exit_state("end")
        if sys.argv[1] == "split":
            w.register_split("s", [branch], JoinConfig(JoinStrategy.ALL, "end"))
        else:
            asked.set()
            w.register("s", fails, max_retries=9, backoff=BackoffPolicy.constant(3600.0))
        announce_blocked()
        try:
            w.run("s")
        except KeyboardInterrupt as error:
            asked.wait()
            say("interrupted", *error.__notes__)
        """,
        where,
    ) as child:
        child.expect("blocked")
        child.send(signal.SIGINT)
        child.expect("torn down")
        child.expect("interrupted in flow 'run-1', state 's', attempt 1, path 's'")
        assert child.finish().returncode == 0


def test_after_a_ctrl_c_the_same_workflow_runs_again() -> None:
    interrupts = [True]

    def body() -> S:
        if interrupts.pop():
            interrupts.append(False)
            signal.raise_signal(signal.SIGINT)
        return S.DONE

    workflow = one(body)
    with pytest.raises(KeyboardInterrupt):
        workflow.run(S.A)
    assert workflow.run(S.A) is S.DONE


# A program that failed told nothing about where.


def test_an_uncaught_failure_ends_the_program_with_one_traceback_that_names_the_place() -> None:
    done = run_code(
        """
from supervisor.flows import *

def load_rates():
    raise OSError("no route")

Workflow().register("load", load_rates, max_retries=2, backoff=None).add_exit_state("end").run("load")
"""
    )
    assert done.returncode == 1
    for words in ("in load_rates", "OSError: no route", "RetryExhausted: failed 3 times", "path 'load'"):
        assert words in done.stderr, done.report()


# Importing or running outside the main thread crashed, and handlers of the user were replaced.


def test_a_workflow_runs_in_any_thread_and_touches_no_signal_handler() -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    results: list[Any] = []
    split = Split(JoinStrategy.ALL, [lambda: 1, lambda: 2])
    thread = threading.Thread(target=lambda: results.append(split.workflow.run(S.A)))
    thread.start()
    thread.join(10)
    assert results == [S.DONE]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


# A wait of a minute held up the stop for a minute.


def test_no_wait_of_a_run_holds_up_a_stop_on_the_real_clock() -> None:
    token, begun = CancelToken(), threading.Event()

    def body(res: Any, run: Any) -> S:
        begun.set()
        run.token.sleep(3600)
        return S.DONE

    errors: list[BaseException] = []

    def run() -> None:
        try:
            one(body, timeout=7200.0).with_total_timeout(7200.0).run(S.A, token=token)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(10)
    token.cancel()
    thread.join(10)
    assert not thread.is_alive()
    assert type(errors[0]).__name__ == "Canceled"


# A late body went on to change what was decided long ago.


def test_a_body_that_lost_to_its_deadline_changes_no_result_and_no_path(clock: VirtualClock) -> None:
    store, paths = MemoryStore(), list[Any]()

    def deaf(res: Any, run: Any) -> S:
        if run.attempt == 1:
            clock.sleep(50.0)
            return S.OTHER
        res["store"].put("by", run.attempt)
        return S.DONE

    def look(res: Any, run: Any) -> S:
        paths.append(run.path)
        return S.DONE

    workflow = Workflow(Resources(store=store)).register(S.A, deaf, timeout=5.0, max_retries=1, backoff=None)
    walk = Walk(clock, workflow.register(S.OTHER, look).add_exit_state(S.DONE)).finish()
    assert (walk.result, walk.ended, store.get("by"), paths) == (S.DONE, 50.0, 2, [])


def test_an_abandoned_branch_is_counted_until_its_thread_has_ended(clock: VirtualClock) -> None:
    timed = Timed(clock)
    split = Split(JoinStrategy.ALL, [timed(1, "a"), timed(100, "deaf", deaf=True)], timeout=5.0)
    walk = split.walk(clock)
    assert walk.ended == 5.0
    clock.advance(94.9)
    assert split.result.abandoned == (1,)
    clock.advance(0.1)
    assert split.result.abandoned == ()


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_no_timeout_and_no_backoff_notices_a_step_of_the_wall_clock(clock: VirtualClock, step: float) -> None:
    starts: list[float] = []

    def body(res: Any, run: Any) -> S:
        starts.append(clock.monotonic())
        clock.step_wall(step)
        run.token.sleep(60)
        return S.DONE

    walk = Walk(clock, one(body, timeout=5.0, max_retries=2, backoff=DOUBLING)).finish()
    assert isinstance(walk.error, FlowTimeout)
    assert starts == [0.0, 6.0, 13.0]
    assert walk.ended == 18.0
