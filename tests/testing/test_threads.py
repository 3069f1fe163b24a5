"""no_leaked_threads: a block that leaves a thread behind is told which and where it is."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from supervisor.testing import VirtualClock, no_leaked_threads


def test_a_thread_left_behind_is_named_with_its_stack():
    gate = threading.Event()

    def waits_for_ever() -> None:
        gate.wait()

    thread = threading.Thread(target=waits_for_ever, name="orphan", daemon=True)
    with pytest.raises(AssertionError) as caught, no_leaked_threads(grace=0.05):
        thread.start()
    gate.set()
    thread.join()
    text = str(caught.value)
    assert text.startswith("1 thread(s) left behind")
    assert "thread 'orphan' is here:" in text
    assert "waits_for_ever" in text
    assert "gate.wait()" in text


def test_threads_that_were_there_before_do_not_count():
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait)
    thread.start()
    with no_leaked_threads(grace=0.01):
        pass
    gate.set()
    thread.join()


def test_a_straggler_may_end_within_the_grace():
    gate = threading.Event()
    with no_leaked_threads(grace=10.0):
        threading.Thread(target=gate.wait).start()
        threading.Thread(target=gate.set).start()


def test_a_thread_started_by_a_straggler_is_waited_for_too():
    with no_leaked_threads(grace=10.0):
        threading.Thread(target=lambda: threading.Thread(target=lambda: None).start()).start()


def test_an_error_in_the_block_is_not_hidden_by_a_leak():
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait)

    def fail() -> None:
        thread.start()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), no_leaked_threads(grace=0.01):
        fail()
    gate.set()
    thread.join()


def test_a_thread_parked_on_a_virtual_clock_counts_as_left_behind(clock):
    latch = clock.latch()
    with pytest.raises(AssertionError, match="thread 'parked' is here"), no_leaked_threads(grace=0.05):
        clock.spawn(lambda: (latch.wait(), None)[-1], "parked")
    latch.open()
    clock.settle()


def test_it_may_stand_over_a_function():
    @no_leaked_threads()
    def work() -> int:
        return 7

    assert work() == 7
    assert work() == 7


def test_the_kit_needs_no_pytest():
    code = "import sys; sys.modules['pytest'] = None; import supervisor.testing as t; t.VirtualClock().advance(1)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_fixtures_of_the_plugin_are_there():
    from supervisor.testing import pytest_plugin

    assert pytest_plugin.no_leaked_threads_fixture
    assert pytest_plugin.virtual_clock
    assert VirtualClock().monotonic() == 0.0
