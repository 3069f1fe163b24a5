"""Split and join: four suppliers are asked at once, and each strategy goes on at its own moment.

The answers come after 1, 2 and 3 seconds, one supplier fails after 2.5, and with `slow` one more needs a
minute. Who has not answered when a join is decided is asked to stop. A virtual clock makes the seconds exact.

Run it: python examples/flow_split_join.py

Prints::

    all             failed after 2.5 s: the split of S.ASK failed with JoinStrategy.ALL
    any             after 1 s: [10], failed 0, asked to stop 3
    quorum(2)       after 2 s: [10, 12], failed 0, asked to stop 2
    percentage(0.7) after 3 s: [10, 12, 11], failed 1, asked to stop 0
    partial(3)      after 2.5 s: [10, 12], failed 1, asked to stop 1
    partial_timeout after 5 s: [10, 12, 11], failed 1, asked to stop 1
"""

from collections.abc import Callable
from enum import Enum, auto

from supervisor.flows import FlowRun, JoinConfig, JoinFailed, JoinStrategy, Resources, SplitResult, Workflow
from supervisor.testing import VirtualClock

Branch = Callable[[Resources, FlowRun], int]


class S(Enum):
    ASK = auto()
    CHOOSE = auto()
    DONE = auto()


def supplier(delay: float, price: int) -> Branch:
    def answer(res: Resources, run: FlowRun) -> int:
        run.token.sleep(delay)  # ends at once when the branch is asked to stop
        if price == 0:
            raise LookupError("sold out")
        return price

    return answer


FOUR = [supplier(1, 10), supplier(2, 12), supplier(3, 11), supplier(2.5, 0)]
WITH_A_SLOW_ONE = [*FOUR, supplier(60, 9)]


def ask(name: str, strategy: JoinStrategy, suppliers: list[Branch], timeout: float | None = None) -> None:
    found: list[SplitResult] = []

    def choose(res: Resources, run: FlowRun) -> S:
        found.append(run.splits[S.ASK])
        return S.DONE

    workflow = (
        Workflow()
        .register_split(S.ASK, suppliers, JoinConfig(strategy, S.CHOOSE, timeout=timeout))
        .register(S.CHOOSE, choose)
        .add_exit_state(S.DONE)
    )
    clock = VirtualClock()
    try:
        workflow.run(S.ASK, clock=clock)
    except JoinFailed as error:
        print(f"{name:15} failed after {clock.monotonic():g} s: {error.reason.split(':')[0]}")
    for result in found:
        print(
            f"{name:15} after {clock.monotonic():g} s: {result.values}, "
            f"failed {len(result.errors)}, asked to stop {len(result.canceled)}"
        )


def main() -> None:
    ask("all", JoinStrategy.ALL, FOUR)
    ask("any", JoinStrategy.ANY, FOUR)
    ask("quorum(2)", JoinStrategy.quorum(2), FOUR)
    ask("percentage(0.7)", JoinStrategy.percentage(0.7), FOUR)
    ask("partial(3)", JoinStrategy.partial(3), FOUR)
    ask("partial_timeout", JoinStrategy.PARTIAL_TIMEOUT, WITH_A_SLOW_ONE, timeout=5)


if __name__ == "__main__":
    main()
