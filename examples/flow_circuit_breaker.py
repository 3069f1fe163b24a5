"""Leave alone what is down: a circuit breaker in front of a bank.

After two failures in a row the breaker opens: the bank is not called any more, and runs fail at once with
`CircuitOpen`. After `reset_timeout` one call is let through to see; its success closes the breaker again. Share
one breaker among all tasks that call the same thing. A virtual clock lives through the half minute.

Run it: python examples/flow_circuit_breaker.py

Prints::

    0 s: the bank is down (closed)
    0 s: the bank is down (open)
    0 s: the circuit breaker of ask_bank is open; its body was not called
    30 s: Rates.LOADED (closed)
    the bank was called 3 times
"""

from enum import Enum, auto

from supervisor.flows import CircuitBreaker, CircuitOpen, Workflow
from supervisor.testing import VirtualClock


class Rates(Enum):
    ASK = auto()
    LOADED = auto()


def main() -> None:
    clock = VirtualClock()
    breaker = CircuitBreaker(failure_threshold=2, reset_timeout=30)
    calls: list[float] = []

    def ask_bank() -> Rates:
        calls.append(clock.monotonic())
        if clock.monotonic() < 10:
            raise ConnectionError("the bank is down")
        return Rates.LOADED

    workflow = Workflow().register(Rates.ASK, ask_bank, breaker=breaker).add_exit_state(Rates.LOADED)

    def ask() -> None:
        try:
            news = str(workflow.run(Rates.ASK, clock=clock)) + f" ({breaker.state})"
        except CircuitOpen as error:
            news = error.reason
        except ConnectionError as error:
            news = f"{error} ({breaker.state})"
        print(f"{clock.monotonic():g} s: {news}")

    for _ in range(3):
        ask()
    clock.advance(30)
    ask()
    print("the bank was called", len(calls), "times")


if __name__ == "__main__":
    main()
