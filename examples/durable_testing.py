"""Testing a durable workflow: a year in no time, and a crash at every write.

`VirtualClock` lets waits and retries pass at once, with exact times. `FaultyStore` stands before a store and fails
where the test wants it: here at every append that a run makes, once before and once after it is written, as when the
answer is lost. Then a new engine goes on with the same store. Steps may be called twice, results may not differ. The
functions below are tests as pytest would find them; here `main` calls them.

Run it: python examples/durable_testing.py

Prints::

    reminded after 365 days, exactly
    10 crashes, 10 times the same result
    calls of the steps: 3 without a crash, 4 at most
"""

from collections.abc import Callable
from typing import Any

from supervisor.durable import FlowEngine, FlowRuntime, MemoryEventStore, StoreError, WorkflowContext
from supervisor.testing import FaultyStore, VirtualClock, no_leaked_threads

YEAR = 365 * 24 * 3600.0


def runtime(called: Callable[[str], object]) -> FlowRuntime:
    """The flows under test; a test gives them another world to act on."""
    flows = FlowRuntime()

    @flows.step
    def act(what: str) -> str:
        called(what)
        return what

    @flows.workflow
    def subscription(ctx: WorkflowContext, customer: str) -> str:
        ctx.step("welcome", act, f"welcome {customer}")
        ctx.step("charge", act, f"charge {customer}")
        ctx.sleep("year", YEAR)
        return str(ctx.step("remind", act, f"remind {customer}"))

    return flows


def finish(engine: FlowEngine, clock: VirtualClock) -> Any:
    """Do what a scheduler and a worker do. With threads: `engine.serve()`, and `clock.advance`."""
    engine.start("subscription", "Ada", run_id="ada")
    clock.advance(YEAR)
    engine.resume_scheduled_run("ada", clock.now())
    return engine.result("ada", timeout=0)


def test_a_customer_is_reminded_after_a_year() -> None:
    clock = VirtualClock()
    times: list[float] = []
    flows = runtime(lambda what: times.append(clock.monotonic()))
    with no_leaked_threads(), FlowEngine(flows, clock=clock) as engine:
        assert finish(engine, clock) == "remind Ada"
    assert times == [0.0, 0.0, YEAR]


def test_a_crash_at_any_write_changes_no_result() -> tuple[int, int]:
    crashes, most = 0, 0
    for after in (False, True):
        number = 0
        while True:
            number += 1
            clock, inner, calls = VirtualClock(), MemoryEventStore(), list[str]()
            flows = runtime(calls.append)

            def crash(method: str, call: int, number: int = number) -> StoreError | None:
                return StoreError("no answer") if (method, call) == ("append", number) else None

            faulty = FaultyStore(inner, crash, after=after)
            try:
                finish(FlowEngine(flows, faulty, clock=clock), clock)
                break  # it makes no more appends
            except StoreError:
                crashes += 1
            assert finish(FlowEngine(flows, inner, clock=clock), clock) == "remind Ada"
            most = max(most, len(calls))
    return crashes, most


def main() -> None:
    test_a_customer_is_reminded_after_a_year()
    print("reminded after 365 days, exactly")
    crashes, most = test_a_crash_at_any_write_changes_no_result()
    print(f"{crashes} crashes, {crashes} times the same result")
    print(f"calls of the steps: 3 without a crash, {most} at most")


if __name__ == "__main__":
    main()
