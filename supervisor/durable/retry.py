"""How often a step is tried and how long it waits in between: a value that is written into history.

The delay is drawn from the identity of the attempt, not from a generator: a restart, another host,
another language come to the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from typing import Any, Self

from supervisor.durable.errors import InvalidTransition, SerializationError
from supervisor.kernel.arguments import count, seconds
from supervisor.kernel.text import shown

__all__ = ["RetryPolicy", "StepFailureAction"]

_LABEL = b"a3s-flow.retry-jitter.v1"
_LONGEST_SHIFT = 63  # doublings; more than any cap leaves room for
_LARGEST_MS = 2**63 - 1  # that a duration may come to
_LARGEST_STORED_MS = 2**64 - 1  # that a history may hold; no datetime is so far away
_LARGEST_ATTEMPTS = 2**32 - 1


class StepFailureAction(StrEnum):
    """What the last failure of a step does to its run."""

    FAIL_RUN = "fail_run"
    CONTINUE_WORKFLOW = "continue_workflow"


class _Backoff(StrEnum):
    FIXED = "fixed"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a step is tried, and what follows when that was in vain.

    Make one with `default`, `none`, `fixed` or `exponential`. Delays are kept in whole milliseconds.
    """

    max_attempts: int = 3  # >= 1, the first execution included
    delay_ms: int = 0  # fixed: every delay; exponential: the cap after the first failure
    max_delay_ms: int = 0  # exponential: the largest cap; 0 for fixed
    backoff: str = "fixed"  # or "exponential"
    on_exhausted: StepFailureAction = StepFailureAction.FAIL_RUN

    def __post_init__(self) -> None:
        store = object.__setattr__
        attempts: Any = self.max_attempts
        if isinstance(attempts, int) and not isinstance(attempts, bool):
            attempts = min(max(attempts, 1), _LARGEST_ATTEMPTS)
        store(self, "max_attempts", count(attempts, "max_attempts"))
        store(self, "delay_ms", _checked_ms(self.delay_ms, "delay_ms"))
        store(self, "max_delay_ms", _checked_ms(self.max_delay_ms, "max_delay_ms"))
        try:
            store(self, "backoff", str(_Backoff(self.backoff)))
            store(self, "on_exhausted", StepFailureAction(self.on_exhausted))
        except ValueError as error:
            raise ValueError(f"unknown setting of a retry policy: {error}") from None
        if self.backoff == _Backoff.FIXED:
            if self.max_delay_ms:
                raise InvalidTransition(
                    f"a fixed retry policy has no max_delay_ms, got {self.max_delay_ms!r}; use exponential"
                )
        elif not 1 <= self.delay_ms <= self.max_delay_ms:
            raise InvalidTransition(
                f"an exponential retry policy needs 1 <= delay_ms <= max_delay_ms, got {self.delay_ms!r} "
                f"and {self.max_delay_ms!r}"
            )

    @classmethod
    def default(cls) -> Self:
        """Three attempts without a delay; then the run fails."""
        return cls()

    @classmethod
    def none(cls) -> Self:
        """One attempt; then the run fails."""
        return cls(max_attempts=1)

    @classmethod
    def fixed(cls, max_attempts: int, delay: float | timedelta) -> Self:
        """At most `max_attempts` executions, `delay` seconds after each failure.

        max_attempts: includes the first execution; less than 1 is 1.  delay: >= 0, rounded up to whole ms.
        Raises TypeError or ValueError for anything else.
        """
        return cls(max_attempts=max_attempts, delay_ms=_milliseconds(delay, "delay"))

    @classmethod
    def exponential(cls, max_attempts: int, initial: float | timedelta, maximum: float | timedelta) -> Self:
        """At most `max_attempts` executions, after failure a somewhere in 1 ms to initial * 2**(a-1).

        initial: seconds, at least 1 ms.  maximum: seconds, caps the range; at least `initial`.
        Raises TypeError or ValueError for what is no duration. For the draw see `delay`.
        """
        first = max(_milliseconds(initial, "initial"), 1)
        return cls(
            max_attempts=max_attempts,
            delay_ms=first,
            max_delay_ms=max(_milliseconds(maximum, "maximum"), first),
            backoff=_Backoff.EXPONENTIAL,
        )

    def continue_workflow_on_failure(self) -> Self:
        """The same policy, but after the last failure the workflow goes on and can see it."""
        return replace(self, on_exhausted=StepFailureAction.CONTINUE_WORKFLOW)

    def with_failure_action(self, action: StepFailureAction) -> Self:
        """The same policy with another action after the last failure."""
        return replace(self, on_exhausted=action)

    @property
    def continues(self) -> bool:
        """The workflow goes on after the last failure."""
        return self.on_exhausted is StepFailureAction.CONTINUE_WORKFLOW

    @property
    def longest_ms(self) -> int:
        """No delay is longer, in milliseconds."""
        return self.max_delay_ms or self.delay_ms

    def delay(self, run_id: str, step_id: str, attempt: int) -> float:
        """Return the seconds to wait after the failed attempt `attempt` (from 1) of a step.

        Fixed: the delay. Exponential: 1 ms to min(initial * 2**(attempt-1), maximum), drawn from the
        identity of the attempt by SHA-256, so that it is the same everywhere and at any time.
        Raises ValueError for an attempt < 1, TypeError for other types.
        Source: "Exponential Backoff And Jitter" (full jitter), AWS Architecture Blog, 2015; made
        deterministic as in a3s-flow's retry jitter, version 1.
        """
        return self.delay_in_ms(run_id, step_id, attempt) / 1000

    def delay_in_ms(self, run_id: str, step_id: str, attempt: int) -> int:
        """The same in whole milliseconds."""
        count(attempt, "attempt")
        if self.backoff == _Backoff.FIXED:
            return self.delay_ms
        cap = min(self.delay_ms << min(attempt - 1, _LONGEST_SHIFT), self.max_delay_ms)
        digest = sha256(_LABEL)
        for text in (run_id, step_id):
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"run_id and step_id must be str, got {shown(text)}")
            data = text.encode()
            digest.update(len(data).to_bytes(8, "big") + data)
        digest.update(min(attempt, _LARGEST_ATTEMPTS).to_bytes(4, "big"))
        return 1 + int.from_bytes(digest.digest()[:8], "big") % cap

    def to_dict(self) -> dict[str, Any]:
        """Return its JSON form, which leaves out what has its default."""
        found: dict[str, Any] = {"max_attempts": self.max_attempts, "delay_ms": self.delay_ms}
        if self.backoff != _Backoff.FIXED:
            found["backoff"] = self.backoff
        if self.max_delay_ms:
            found["max_delay_ms"] = self.max_delay_ms
        if self.continues:
            found["on_exhausted"] = str(self.on_exhausted)
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the policy of a JSON form. Raises SerializationError for what is none."""
        try:
            policy: Any = cls
            found: Self = _read(policy, **data)
            if "max_attempts" not in data or "delay_ms" not in data:
                raise ValueError("max_attempts and delay_ms must be there")
            return found
        except (TypeError, ValueError, InvalidTransition) as error:
            raise SerializationError("retry", f"is no retry policy ({error}): {shown(data)}") from None


@lru_cache(maxsize=256, typed=True)
def _read(cls: Any, **data: Any) -> Any:
    # a history repeats few policies; typed, because 1, 1.0 and True are one key and not one JSON form
    return cls(**data)


def _checked_ms(value: object, field: str) -> int:
    result = count(value, field, 0)
    if result > _LARGEST_STORED_MS:
        raise ValueError(f"{field} must be at most {_LARGEST_STORED_MS}, got {shown(value)}")
    return result


def _milliseconds(value: object, field: str) -> int:
    """Return whole milliseconds >= 0, rounded up.  value: seconds, or `timedelta`."""
    checked = seconds(value, field)
    if isinstance(value, timedelta):
        whole, rest = divmod(value, timedelta(milliseconds=1))  # the negative of the longest is no timedelta
        result = whole + bool(rest)
    else:
        # the float 0.1 is a little more than 0.1, and 0.1 is meant: the shortest text that gives the float
        exact = Fraction(repr(checked)) * 1000
        result = -(-exact.numerator // exact.denominator)
    if result > _LARGEST_MS:
        raise ValueError(f"{field} must be less than {_LARGEST_MS // 1000} s, got {shown(value)}")
    return result
