"""One store, one queue and any number of engines on virtual time, where every call of the machinery is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor import CancelToken
from supervisor.durable import (
    FlowEngine,
    FlowRuntime,
    FlowScheduler,
    FlowWorker,
    MemoryEventStore,
    MemoryWorkQueue,
    RetryPolicy,
    StepInvocation,
    StoreError,
)
from supervisor.testing import FaultyStore, VirtualClock


class World:
    """What a test of workers and schedulers plays in.

    Its runtime knows steps that tell what they do: `quick` returns its input, `slow` takes ten seconds, `fails`
    raises. Begun and ended bodies are in `begun` and `ended`, as (what, seconds).
    """

    def __init__(self, seed: int | None = None) -> None:
        self.clock = VirtualClock(seed)
        self.start = self.clock.now()
        self.calls: list[tuple[str, float]] = []  # (method, seconds) of store and queue
        self.failing: set[str] = set()  # methods that fail with a StoreError
        self.store = FaultyStore(MemoryEventStore(), self._watch)
        self.queue = FaultyStore(MemoryWorkQueue(clock=self.clock), self._watch)
        self.events: list[Any] = []  # diagnoses
        self.flows = FlowRuntime()
        self.begun: list[tuple[str, float]] = []
        self.ended: list[tuple[str, float]] = []
        self._opened: list[FlowEngine] = []
        self._threads: list[Any] = []
        self._stops: list[CancelToken] = []
        self._register(self.flows)
        self.engine = self.another()

    # Time

    @property
    def seconds(self) -> float:
        """How long the world is old."""
        return self.clock.monotonic()

    def at(self, seconds: float) -> Any:
        """The instant at which it is so old."""
        return self.start + type(self.start - self.start)(seconds=seconds)

    def _watch(self, method: str, number: int) -> object:
        self.calls.append((method, self.seconds))
        return StoreError(f"{method} fails") if method in self.failing else None

    def times(self, method: str) -> list[float]:
        """When a method of the store or of the queue was called, in seconds."""
        return [when for name, when in self.calls if name == method]

    # Parts

    def another(self, flows: FlowRuntime | None = None, **options: Any) -> FlowEngine:
        """One more engine on the same store and queue, as in another process."""
        made = FlowEngine(
            self.flows if flows is None else flows,
            self.store,
            queue=self.queue,
            clock=self.clock,
            subscribers=[self._keep],
            **options,
        )
        self._opened.append(made)
        return made

    def _keep(self, event: Any) -> None:
        if not hasattr(event, "event_id"):  # diagnoses, not envelopes
            self.events.append(event)

    def told(self, kind: str) -> list[tuple[Any, ...]]:
        """The fields of the diagnoses of one kind, after the seconds at which each was told."""
        self.clock.settle()
        found = []
        for event in self.events:
            if event.kind == kind:
                values = event.to_dict()
                more = [values[name] for name in values if name not in ("kind", "seq", "at")]
                found.append(((event.at - self.start).total_seconds(), *more))
        return found

    def serve(self, part: FlowWorker | FlowScheduler, **options: Any) -> CancelToken:
        """Let a worker or a scheduler serve on a thread; cancel the token to stop it."""
        stop = CancelToken(clock=self.clock)
        self._stops.append(stop)
        self._threads.append(self.clock.spawn(lambda: part.serve(stop, **options), "serving"))
        self.clock.settle()
        return stop

    def worker(self, engine: FlowEngine | None = None, **options: Any) -> FlowWorker:
        return FlowWorker(self.engine if engine is None else engine, **options)

    def statuses(self) -> dict[str, str]:
        """The status of each run."""
        return {each.run_id: str(each.status) for each in self.engine.list_runs(limit=None)}

    def kinds(self, run_id: str) -> list[str]:
        """The events of a run, by type."""
        return [each.event.type for each in self.store.inner.read(run_id)]

    def close(self) -> None:
        """End all that was begun."""
        self.failing.clear()
        for each in self._stops:
            each.cancel()
        for each in self._threads:
            each.join()
        for each in self._opened:
            each.close()

    def _register(self, flows: FlowRuntime) -> None:
        def noted(name: str, body: Callable[[Any, StepInvocation], Any]) -> None:
            def step(input: Any, invocation: StepInvocation) -> Any:
                self.begun.append((invocation.run_id, self.seconds))
                result = body(input, invocation)
                self.ended.append((invocation.run_id, self.seconds))
                return result

            flows.step(step, name=name)

        def slow(input: Any, invocation: StepInvocation) -> Any:
            invocation.token.sleep(10.0)
            return input

        def deaf(input: Any, invocation: StepInvocation) -> Any:
            self.clock.sleep(10.0 if input is None else input)
            return input

        def fails(input: Any, invocation: StepInvocation) -> Any:
            raise ValueError("boom")

        noted("quick", lambda input, invocation: input)
        noted("slow", slow)
        noted("deaf", deaf)
        noted("fails", fails)

        @flows.workflow
        def one(ctx, step):
            return ctx.step("s", step)

        @flows.workflow
        def five(ctx, step):
            for number in range(5):
                ctx.step(f"s{number}", step)
            return "done"

        @flows.workflow
        def nap(ctx, seconds):
            ctx.sleep("nap", seconds)
            return "awake"

        @flows.workflow
        def stubborn(ctx, retry):
            attempts, delay = retry
            return ctx.step("s", "fails", retry=RetryPolicy.fixed(attempts, delay))
