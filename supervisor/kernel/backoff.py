"""How long to wait before a retry: the only formula for it, in every layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Protocol, Self

from supervisor.kernel.arguments import number, probability, seconds
from supervisor.kernel.log import library_logger
from supervisor.kernel.text import error_text, shown

_LARGEST = 1.7976931348623157e308  # the largest finite float


class Draws(Protocol):
    """A source of random draws, such as `random.Random`."""

    def random(self) -> float:
        """Return the next draw in [0, 1)."""
        ...


def default_rng() -> Draws:
    """Return a generator of its own, seeded by the operating system with the first draw."""
    return _Unseeded()


class _Unseeded:
    """Seeding takes 15 µs, and few runs draw."""

    __slots__ = ("_draw",)

    def __init__(self) -> None:
        self._draw: Callable[[], float] | None = None

    def random(self) -> float:
        if (draw := self._draw) is None:
            from random import Random

            draw = self._draw = Random().random  # two threads at once: either will do
        return draw()


def draw_from(rng: Draws) -> float:
    """Return a draw in [0, 1). A generator of the user that gives none costs the jitter, not the task."""
    try:
        if 0.0 <= (draw := rng.random()) < 1.0:
            return draw
        fault = f"random() gave {shown(draw)}"
    except BaseException as error:
        fault = f"random() raised {error_text(error)}"
    library_logger().error("rng is unusable, 0.5 is taken for a draw: %s", fault)
    return 0.5


class Jitter(StrEnum):
    """How a delay is spread around its base, so that many clients don't retry in step."""

    NONE = "none"  # the base itself
    FULL = "full"  # anywhere in [0, base)
    EQUAL = "equal"  # anywhere in [base / 2, base)
    BAND = "band"  # anywhere in [initial, min(3 * base, max_delay))


_NONE, _FULL, _EQUAL, _BAND = Jitter.NONE, Jitter.FULL, Jitter.EQUAL, Jitter.BAND  # read faster than members


@dataclass(frozen=True, slots=True, init=False)
class BackoffPolicy:
    """Exponential backoff with a cap, a floor and jitter. A value: it owns no clock and no random numbers.

    Durations are given as float seconds or `timedelta` and kept as seconds.
    """

    initial: float  # seconds, base after the first failure; 0 means no wait
    multiplier: float  # >= 1, growth of the base with each further failure
    max_delay: float  # seconds, cap of the base
    jitter: Jitter | float  # a kind, or a spread r in [0, 1]: the base times 1 - r to 1 + r
    floor: float  # seconds, no delay is shorter; may exceed max_delay

    def __init__(
        self,
        initial: float | timedelta = 0.2,
        multiplier: float = 2.0,
        max_delay: float | timedelta = 30.0,
        jitter: Jitter | float = Jitter.EQUAL,
        floor: float | timedelta = 0.0,
    ) -> None:
        """Check and store the settings.

        Raises ValueError or TypeError, naming the field and the value.
        """
        growth = number(multiplier, "multiplier")
        if not 1.0 <= growth <= _LARGEST:
            raise ValueError(f"multiplier must be finite and >= 1, got {shown(multiplier)}")
        first = seconds(initial, "initial")
        cap = seconds(max_delay, "max_delay")
        if first > cap:
            raise ValueError(f"initial must not exceed max_delay, got {first!r} > {cap!r}; raise max_delay")
        store = object.__setattr__
        store(self, "initial", first)
        store(self, "multiplier", growth)
        store(self, "max_delay", cap)
        store(self, "jitter", jitter if isinstance(jitter, Jitter) else _spread(jitter))
        store(self, "floor", seconds(floor, "floor"))

    @classmethod
    def constant(cls, delay: float | timedelta) -> Self:
        """Return a policy that always waits `delay` seconds, without jitter."""
        fixed = seconds(delay, "delay")
        return cls(initial=fixed, multiplier=1.0, max_delay=max(fixed, 30.0), jitter=Jitter.NONE)

    def delay(self, failures: int, draw: float) -> float:
        """Return the seconds to wait after `failures` failures in a row, in constant time.

        failures: int >= 1.  draw: [0, 1).  Result: finite, >= floor; at most max(floor, max_delay),
        times 1 + r for a spread r, which is applied after the cap.
        Raises ValueError for fewer than one failure or a draw outside [0, 1), TypeError for other types.
        Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015; the band is after its
        "decorrelated jitter", made stateless.
        """
        if type(failures) is not int or failures < 1:
            failures = _failures(failures)
        try:
            fits = 0.0 <= draw < 1.0
        except TypeError:
            raise TypeError(f"draw must be a number in [0, 1), got {shown(draw)}") from None
        if not fits:
            raise ValueError(f"draw must be in [0, 1), got {shown(draw)}")
        base = self.initial
        if base > 0.0 and failures > 1 and self.multiplier > 1.0:
            try:
                base *= self.multiplier ** (failures - 1)
            except OverflowError:
                base = self.max_delay
            if base > self.max_delay:
                base = self.max_delay
        jitter = self.jitter
        if jitter is _EQUAL:
            base /= 2
            base += draw * base
        elif jitter is _FULL:
            base *= draw
        elif jitter is _BAND:
            high = min(3.0 * base, self.max_delay)
            base = min(self.initial + draw * (high - self.initial), high)
        elif jitter is not _NONE:
            base = min(base * (1.0 + float(jitter) * (2.0 * draw - 1.0)), _LARGEST)
        return base if base > self.floor else self.floor


def _failures(value: object) -> int:
    """Return a count that is no plain int >= 1, or refuse it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"failures must be an int, got {shown(value)}")
    if value < 1:
        raise ValueError(f"failures must be >= 1, counted from 1, got {shown(value)}")
    return int(value)


def _spread(value: object) -> float:
    if isinstance(value, str):
        raise TypeError(f"jitter must be a Jitter or a number in [0, 1], got {shown(value)}")
    return probability(value, "jitter")
