"""Undo what was done: a journey is booked in steps, and the last one fails.

A task with `compensate` returns the next state and a value. When the run fails, is canceled or runs out of time
after that, `compensate(res, value)` is called for each finished state, last first. The original error surfaces
when all went well, else `CompensationFailed`, which holds both.

Run it: python examples/flow_compensation.py

Prints::

    booked flight LH 123
    booked room 7
    room 7 canceled
    flight LH 123 canceled
    the card was refused
"""

from enum import Enum, auto

from supervisor.flows import Resources, Workflow


class Trip(Enum):
    FLIGHT = auto()
    HOTEL = auto()
    PAY = auto()
    BOOKED = auto()


def book_flight() -> tuple[Trip, str]:
    print("booked flight LH 123")
    return Trip.HOTEL, "LH 123"


def cancel_flight(res: Resources, flight: str) -> None:
    print("flight", flight, "canceled")


def book_hotel() -> tuple[Trip, int]:
    print("booked room 7")
    return Trip.PAY, 7


def cancel_hotel(res: Resources, room: int) -> None:
    print("room", room, "canceled")


def pay() -> Trip:
    raise PermissionError("the card was refused")


def main() -> None:
    workflow = (
        Workflow()
        .register(Trip.FLIGHT, book_flight, compensate=cancel_flight)
        .register(Trip.HOTEL, book_hotel, compensate=cancel_hotel)
        .register(Trip.PAY, pay)
        .add_exit_state(Trip.BOOKED)
    )
    try:
        workflow.run(Trip.FLIGHT)
    except PermissionError as error:
        print(error)


if __name__ == "__main__":
    main()
