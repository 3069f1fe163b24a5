"""A signal to `run` counts from the moment the first body runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from supervisor import OutcomeKind, Supervisor, TaskContext, TaskSpec


@pytest.fixture
def strangers() -> Iterator[list[int]]:
    """What a handler of the program itself gets meanwhile."""
    got: list[int] = []
    old = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    yield got
    signal.signal(signal.SIGTERM, old)


def test_a_body_that_signals_its_own_process_at_once_stops_the_run(strangers: list[int]) -> None:
    def body(ctx: TaskContext) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        ctx.wait()

    supervisor = Supervisor()
    outcomes = supervisor.run([TaskSpec.restartable("first", body)])
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.CANCELED]
    assert supervisor.received_signal == signal.SIGTERM
    assert strangers == []
