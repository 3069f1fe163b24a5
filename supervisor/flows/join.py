"""When a split goes on: a pure test of what its branches have done so far."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from enum import StrEnum
from fractions import Fraction
from typing import Any, ClassVar, Literal, final

from supervisor.flows.errors import brief
from supervisor.kernel.arguments import count_or_none, limit
from supervisor.kernel.text import shown

__all__ = ["BranchResult", "JoinConfig", "JoinStrategy", "SplitResult", "Verdict", "faults", "verdict"]


class Rule(StrEnum):
    """How a join counts."""

    ALL = "all"
    ANY = "any"
    QUORUM = "quorum"
    PERCENTAGE = "percentage"
    PARTIAL = "partial"
    PARTIAL_TIMEOUT = "partial_timeout"


@final
@dataclass(frozen=True, slots=True)
class JoinStrategy:
    """How many branches have to do what: `ALL`, `ANY`, `quorum(n)`, `percentage(p)`, `partial(n)`,
    `PARTIAL_TIMEOUT`."""

    ALL: ClassVar[JoinStrategy]
    ANY: ClassVar[JoinStrategy]
    PARTIAL_TIMEOUT: ClassVar[JoinStrategy]
    rule: Rule
    amount: float | int | None = None  # n, or p in (0, 1]

    @classmethod
    def quorum(cls, n: int) -> JoinStrategy:
        """Go on after `n` successes; fail as soon as they are out of reach."""
        return cls(Rule.QUORUM, n)

    @classmethod
    def percentage(cls, p: float) -> JoinStrategy:
        """Go on after ceil(p * branches) successes, computed on the decimal digits of `p`."""
        return cls(Rule.PERCENTAGE, p)

    @classmethod
    def partial(cls, n: int) -> JoinStrategy:
        """Go on when `n` branches have finished, well or not."""
        return cls(Rule.PARTIAL, n)

    def __repr__(self) -> str:
        if self.amount is None:
            return f"JoinStrategy.{self.rule.name}"
        return f"JoinStrategy.{self.rule.value}({self.amount!r})"

    def fault(self, branches: int) -> str | None:
        """Return what is wrong with it for so many branches, None if nothing is."""
        amount = self.amount
        if self.rule is Rule.PERCENTAGE:
            if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 < amount <= 1:
                return f"percentage must be in (0, 1], got {shown(amount)}"
        elif self.rule in (Rule.QUORUM, Rule.PARTIAL):
            if isinstance(amount, bool) or not isinstance(amount, int):
                return f"{self.rule.value} needs a number of branches, got {shown(amount)}"
            if not 1 <= amount <= branches:
                return (
                    f"{self.rule.value} must be from 1 to the number of branches, {branches}, got {amount!r}"
                )
        return None

    def needed(self, branches: int) -> int:
        """Return how many branches have to succeed (or, for `partial`, to finish)."""
        match self.rule:
            case Rule.ALL:
                return branches
            case Rule.ANY:
                return 1
            case Rule.PERCENTAGE:
                # by its decimal digits: 0.07 of 100 is 7, not 7.000000000000001
                exact = Fraction(repr(float(self.amount or 0))) * branches
                return -(-exact.numerator // exact.denominator)
            case Rule.QUORUM | Rule.PARTIAL:
                return int(self.amount or 0)
            case Rule.PARTIAL_TIMEOUT:
                return branches


JoinStrategy.ALL = JoinStrategy(Rule.ALL)
JoinStrategy.ANY = JoinStrategy(Rule.ANY)
JoinStrategy.PARTIAL_TIMEOUT = JoinStrategy(Rule.PARTIAL_TIMEOUT)


@final
@dataclass(frozen=True, slots=True)
class JoinConfig:
    """When a split goes on, and where to. Checked by `Workflow.validate`."""

    strategy: JoinStrategy
    next_state: Hashable
    _: KW_ONLY
    timeout: float | timedelta | None = None  # seconds from the launch; 0 and None mean none
    bulkhead: int | None = None  # branches that run at once; None means all


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BranchResult:
    """What one branch did."""

    index: int  # in input order, from 0
    name: str
    value: Any = None  # what it returned
    error: BaseException | None = None
    duration: float | None = None  # seconds; None if it never started

    @property
    def ok(self) -> bool:
        """True if it succeeded."""
        return self.error is None


Verdict = Literal["wait", "go", "fail"]


def verdict(strategy: JoinStrategy, total: int, succeeded: int, failed: int, *, late: bool) -> Verdict:
    """Return whether a join goes on, fails, or waits for more.

    total: branches.  succeeded, failed: finished ones.  late: the timeout has passed.
    """
    finished = succeeded + failed
    if strategy.rule is Rule.PARTIAL_TIMEOUT:
        if finished == total:
            return "go"
        return ("go" if finished else "fail") if late else "wait"
    needed = strategy.needed(total)
    if strategy.rule is Rule.PARTIAL:
        if finished >= needed:
            return "go"
    elif succeeded >= needed:
        return "go"
    elif total - failed < needed:
        return "fail"
    return "fail" if late else "wait"


class SplitResult:
    """What the branches of a split did, in input order."""

    __slots__ = ("_alive", "_branches", "_deaf", "canceled")

    def __init__(
        self,
        branches: Sequence[BranchResult | None],
        deaf: Collection[int],
        alive: Callable[[int], bool],
    ) -> None:
        self._branches = tuple(branches)
        self._deaf = frozenset(deaf)  # indexes: failed at their deadline, and their body went on
        self.canceled: tuple[int, ...] = tuple(i for i, branch in enumerate(branches) if branch is None)
        """Indexes: had not finished at the verdict and were asked to stop."""
        self._alive = alive

    def __repr__(self) -> str:
        done, failed = len(self.values), len(self.errors)
        return f"<SplitResult {done} succeeded, {failed} failed, {len(self.canceled)} canceled>"

    @property
    def branches(self) -> tuple[BranchResult, ...]:
        """The branches that had finished at the verdict."""
        return tuple(branch for branch in self._branches if branch is not None)

    @property
    def values(self) -> list[Any]:
        """What the successful branches returned."""
        return [branch.value for branch in self.branches if branch.ok]

    @property
    def errors(self) -> Mapping[int, BaseException]:
        """Index -> exception of the branches that failed."""
        return {branch.index: branch.error for branch in self.branches if branch.error is not None}

    @property
    def abandoned(self) -> tuple[int, ...]:
        """Those of `canceled` whose thread still runs now, and of those that failed at their deadline."""
        asked = sorted({*self.canceled, *self._deaf})
        return tuple(index for index in asked if self._alive(index))

    def summary(self) -> str:
        """Say in words how it went, with at most three errors."""
        errors = [f"branch {index}: {brief(error)}" for index, error in self.errors.items()]
        more = f" and {len(errors) - 3} more" if len(errors) > 3 else ""
        shown_errors = f"; {'; '.join(errors[:3])}{more}" if errors else ""
        return f"{len(self.values)} of {len(self._branches)} branches succeeded{shown_errors}"


def faults(join: JoinConfig, branches: int) -> list[str]:
    """Return all that is wrong with a join for so many branches."""
    found: list[str] = []
    timeout: float | None = None
    try:
        timeout = limit(join.timeout, "timeout")
    except (TypeError, ValueError) as error:
        found.append(str(error))
        timeout = 0.0  # there is one
    try:
        count_or_none(join.bulkhead, "bulkhead")
    except (TypeError, ValueError) as error:
        found.append(str(error))
    if branches == 0:
        found.append("a split needs at least one task")
    if not isinstance(join.strategy, JoinStrategy):  # pyright: ignore[reportUnnecessaryIsInstance]
        return [f"strategy must be a JoinStrategy, got {shown(join.strategy)}", *found]
    if join.strategy.rule is Rule.PARTIAL_TIMEOUT and timeout is None:
        found.append("PARTIAL_TIMEOUT requires a timeout")
    elif branches and (wrong := join.strategy.fault(branches)) is not None:
        found.append(wrong)
    return found
