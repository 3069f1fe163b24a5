"""What LogSubscriber says of durable runs."""

from __future__ import annotations

import logging

import pytest

from supervisor.durable import FlowEngine, FlowRuntime, NonRetryable, RetryPolicy, WorkflowContext
from supervisor.durable.history import FlowEvent
from supervisor.subscribers import LogSubscriber
from supervisor.subscribers.log import _LINES


def test_every_event_of_a_history_has_a_line() -> None:
    assert {each.type for each in FlowEvent.__subclasses__()} - {""} <= set(_LINES)


def test_a_run_is_told_from_its_creation_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    flows = FlowRuntime()

    @flows.step
    def charge(order: object) -> None:
        raise NonRetryable("card expired")

    @flows.workflow
    def checkout(ctx: WorkflowContext, order: object) -> None:
        ctx.step("charge", charge, order, retry=RetryPolicy.none())

    with (
        caplog.at_level(logging.DEBUG, "supervisor"),
        FlowEngine(flows, subscribers=[LogSubscriber()]) as engine,
    ):
        engine.start("checkout", 7, run_id="order-7")
    said = [(record.levelname, record.getMessage().split(" (in ")[0]) for record in caplog.records]
    assert said == [
        ("INFO", "run 'order-7' created"),
        ("DEBUG", "run 'order-7' started"),
        ("DEBUG", "run 'order-7' asks for step 'charge' (charge)"),
        ("DEBUG", "run 'order-7' step 'charge' attempt 1 starts"),
        (
            "ERROR",
            "run 'order-7' step 'charge' attempt 1 failed in a way that no retry mends: NonRetryable: card expired",
        ),
        (
            "ERROR",
            "run 'order-7' failed: StepFailed: step 'charge' failed after 1 attempt: NonRetryable: card expired",
        ),
    ]
