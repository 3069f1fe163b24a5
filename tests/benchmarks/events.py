"""Events from `publish` to one subscriber, beside messages to one pykka actor.

The number is events per second, from before the first publish until the last was handled. Queues are
large enough to lose nothing, and every case counts what arrived. Also: attempts per second of a
retry loop whose every event reaches a subscriber.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Event as Flag
from threading import Thread

import pykka

from supervisor import AttemptStarting, Supervisor, SupervisorConfig, TaskSpec
from tests.benchmarks.measure import Figure, Goal, in_turn, timed

LIMIT, TELL, OURS = "SimpleQueue to a thread (the limit)", "pykka tell", "supervisor, publish to subscriber"


class Counter:
    """Counts what arrives and raises a flag at the last."""

    def __init__(self, expected: int) -> None:
        self.left = expected
        self.complete = Flag()

    def __call__(self, _: object) -> None:
        self.left -= 1
        if not self.left:
            self.complete.set()

    def wait(self) -> None:
        assert self.complete.wait(60), f"{self.left} events did not arrive"


class Receiver(pykka.ThreadingActor):
    use_daemon_thread = True

    def __init__(self, handle: Callable[[object], None]) -> None:
        super().__init__()
        self.handle = handle

    def on_receive(self, message: object) -> None:
        self.handle(message)


def queue_to_thread(count: int) -> float:
    counter = Counter(count)
    queue: SimpleQueue[tuple[object, ...] | None] = SimpleQueue()

    def consume() -> None:
        while (message := queue.get()) is not None:
            counter(message)

    def send() -> None:
        for n in range(count):
            queue.put(("starting", 1, "task", n))
        counter.wait()

    thread = Thread(target=consume)
    thread.start()
    seconds = timed(send)
    queue.put(None)
    thread.join()
    return count / seconds


def tell(count: int) -> float:
    counter = Counter(count)
    actor = Receiver.start(counter)

    def send() -> None:
        for n in range(count):
            actor.tell(("starting", 1, "task", n))
        counter.wait()

    seconds = timed(send)
    actor.stop()
    return count / seconds


def published(count: int) -> float:
    counter = Counter(count)
    config = SupervisorConfig(event_capacity=count + 10, subscriber_capacity=count + 10)
    with Supervisor(config) as supervisor, supervisor.subscribe(counter, kinds=[AttemptStarting]):
        publish = supervisor._running.bus.publish

        def send() -> None:
            for n in range(count):
                publish(None, AttemptStarting, 1, "task", n)
            counter.wait()

        return count / timed(send)


def retries(count: int) -> float:
    """Return attempts per second; each makes two events."""
    left = count

    def body() -> None:
        nonlocal left
        left -= 1
        if left:
            raise ValueError("flaky")

    counter = Counter(2 * count + 3)  # added, finished, removed
    config = SupervisorConfig(event_capacity=3 * count, subscriber_capacity=3 * count)
    with Supervisor(config, subscribers=[counter]) as supervisor:

        def run() -> None:
            assert supervisor.add(TaskSpec.restartable("task", body, backoff=None)).wait().ok
            counter.wait()

        return count / timed(run)


def measure(*, quick: bool) -> Figure:
    count, rounds = (500, 2) if quick else (20_000, 15)
    samples = in_turn(
        {
            LIMIT: lambda: queue_to_thread(count),
            TELL: lambda: tell(count),
            OURS: lambda: published(count),
            "supervisor, attempts of a retry loop with a subscriber": lambda: retries(count // 2),
        },
        rounds,
    )
    return Figure(
        title="Events: from publish to one subscriber",
        unit="per second",
        reference=TELL,
        rows=samples.rows(TELL),
        goals=[
            Goal(
                claim="events per second / messages of pykka",
                measured=samples.ratio(OURS, TELL),
                limit=3.0,
                at_least=True,
            )
        ],
    )
