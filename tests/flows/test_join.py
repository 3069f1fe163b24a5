"""The pure test of a join: when it goes on, when it fails, and that it decides as early as it can."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.flows import JoinStrategy
from supervisor.flows.join import Rule, Verdict, verdict

ALL, ANY, PARTIAL_TIMEOUT = JoinStrategy.ALL, JoinStrategy.ANY, JoinStrategy.PARTIAL_TIMEOUT
quorum, percentage, partial = JoinStrategy.quorum, JoinStrategy.percentage, JoinStrategy.partial


@pytest.mark.parametrize(
    ("strategy", "total", "succeeded", "failed", "in_time", "late"),
    [
        (ALL, 3, 3, 0, "go", "go"),
        (ALL, 3, 2, 0, "wait", "fail"),
        (ALL, 3, 2, 1, "fail", "fail"),
        (ALL, 3, 0, 1, "fail", "fail"),
        (ANY, 3, 0, 0, "wait", "fail"),
        (ANY, 3, 1, 0, "go", "go"),
        (ANY, 3, 0, 2, "wait", "fail"),
        (ANY, 3, 1, 2, "go", "go"),
        (ANY, 3, 0, 3, "fail", "fail"),
        (quorum(2), 3, 1, 0, "wait", "fail"),
        (quorum(2), 3, 1, 1, "wait", "fail"),
        (quorum(2), 3, 0, 1, "wait", "fail"),
        (quorum(2), 3, 0, 2, "fail", "fail"),
        (quorum(2), 3, 2, 0, "go", "go"),
        (quorum(2), 3, 2, 1, "go", "go"),
        (quorum(3), 3, 2, 1, "fail", "fail"),
        (percentage(0.5), 4, 1, 2, "wait", "fail"),
        (percentage(0.5), 4, 2, 0, "go", "go"),
        (percentage(0.5), 4, 1, 3, "fail", "fail"),
        (percentage(0.75), 4, 2, 1, "wait", "fail"),
        (percentage(0.75), 4, 3, 0, "go", "go"),
        (percentage(0.75), 4, 2, 2, "fail", "fail"),
        (percentage(1.0), 2, 1, 1, "fail", "fail"),
        (partial(2), 4, 1, 0, "wait", "fail"),
        (partial(2), 4, 0, 1, "wait", "fail"),
        (partial(2), 4, 2, 0, "go", "go"),
        (partial(2), 4, 1, 1, "go", "go"),
        (partial(2), 4, 0, 2, "go", "go"),
        (PARTIAL_TIMEOUT, 3, 0, 0, "wait", "fail"),
        (PARTIAL_TIMEOUT, 3, 1, 0, "wait", "go"),
        (PARTIAL_TIMEOUT, 3, 0, 1, "wait", "go"),
        (PARTIAL_TIMEOUT, 3, 1, 1, "wait", "go"),
        (PARTIAL_TIMEOUT, 3, 1, 2, "go", "go"),
        (PARTIAL_TIMEOUT, 3, 0, 3, "go", "go"),
    ],
)
def test_the_verdict(
    strategy: JoinStrategy, total: int, succeeded: int, failed: int, in_time: Verdict, late: Verdict
) -> None:
    assert verdict(strategy, total, succeeded, failed, late=False) == in_time
    assert verdict(strategy, total, succeeded, failed, late=True) == late


@pytest.mark.parametrize(
    ("p", "total", "needed"),
    [
        (0.07, 100, 7),
        (0.55, 100, 55),
        (0.29, 100, 29),
        (0.57, 100, 57),
        (0.14, 50, 7),
        (0.1, 10, 1),
        (0.3, 10, 3),
        (0.5, 3, 2),
        (0.75, 4, 3),
        (0.34, 3, 2),
        (1 / 3, 3, 1),
        (2 / 3, 3, 2),
        (1.0, 7, 7),
        (1, 7, 7),
        (0.01, 1, 1),
        (1e-9, 10**6, 1),
        (0.5, 10**12 + 1, 5 * 10**11 + 1),
    ],
)
def test_a_percentage_is_computed_on_its_decimal_digits(p: float, total: int, needed: int) -> None:
    assert percentage(p).needed(total) == needed


@given(hundredths=st.integers(1, 100), total=st.integers(1, 500))
def test_every_whole_percentage_is_exact(hundredths: int, total: int) -> None:
    assert percentage(hundredths / 100).needed(total) == -(-hundredths * total // 100)


@given(p=st.floats(min_value=1e-12, max_value=1.0), total=st.integers(1, 10_000))
def test_a_percentage_needs_at_least_one_and_at_most_all(p: float, total: int) -> None:
    needed = percentage(p).needed(total)
    assert 1 <= needed <= total
    assert needed - 1 < Fraction(repr(p)) * total <= needed


def test_a_float_of_another_class_is_a_percentage_too() -> None:
    class Float64(float):
        def __repr__(self) -> str:
            return f"Float64({float(self)})"

    assert percentage(Float64(0.07)).fault(100) is None
    assert percentage(Float64(0.07)).needed(100) == 7


@st.composite
def joins(draw: st.DrawFn) -> tuple[JoinStrategy, int]:
    total = draw(st.integers(1, 12))
    strategy = draw(
        st.sampled_from([ALL, ANY, PARTIAL_TIMEOUT])
        | st.integers(1, total).map(quorum)
        | st.integers(1, total).map(partial)
        | st.integers(1, 100).map(lambda n: percentage(n / 100))
    )
    return strategy, total


def satisfied(strategy: JoinStrategy, total: int, succeeded: int, failed: int) -> bool:
    """Whether a split that ended so did what was asked: the definition, without early exits."""
    match strategy.rule:
        case Rule.PARTIAL:
            return succeeded + failed >= strategy.needed(total)
        case Rule.PARTIAL_TIMEOUT:
            return succeeded + failed == total
        case _:
            return succeeded >= strategy.needed(total)


@given(join=joins(), outcomes=st.lists(st.booleans(), min_size=12, max_size=12))
def test_a_join_decides_as_soon_as_and_not_before_the_rest_can_change_nothing(
    join: tuple[JoinStrategy, int], outcomes: list[bool]
) -> None:
    strategy, total = join
    succeeded = failed = 0
    for done in range(total + 1):
        if done:
            succeeded += outcomes[done - 1]
            failed += not outcomes[done - 1]
        left = total - done
        now = satisfied(strategy, total, succeeded, failed)
        still = any(
            satisfied(strategy, total, succeeded + good, failed + left - good) for good in range(left + 1)
        )
        expected: Literal["go", "fail", "wait"] = "go" if now else "wait" if still else "fail"
        assert verdict(strategy, total, succeeded, failed, late=False) == expected
        if expected != "wait":
            return
    raise AssertionError("undecided at the end")


@given(join=joins(), succeeded=st.integers(0, 12), failed=st.integers(0, 12))
def test_after_the_timeout_there_is_always_a_verdict(
    join: tuple[JoinStrategy, int], succeeded: int, failed: int
) -> None:
    strategy, total = join
    succeeded = min(succeeded, total)
    failed = min(failed, total - succeeded)
    in_time = verdict(strategy, total, succeeded, failed, late=False)
    late = verdict(strategy, total, succeeded, failed, late=True)
    assert late != "wait"
    if in_time != "wait":
        assert late == in_time
    elif strategy is PARTIAL_TIMEOUT:
        assert late == ("go" if succeeded + failed else "fail")
    else:
        assert late == "fail"


def test_the_verdict_depends_on_no_order() -> None:
    for strategy in (ALL, ANY, quorum(2), percentage(0.6), partial(2)):
        decisions = {
            verdict(strategy, 3, sum(order), 3 - sum(order), late=False) for order in permutations([1, 1, 0])
        }
        assert len(decisions) == 1


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (ALL, "JoinStrategy.ALL"),
        (PARTIAL_TIMEOUT, "JoinStrategy.PARTIAL_TIMEOUT"),
        (quorum(2), "JoinStrategy.quorum(2)"),
        (percentage(0.5), "JoinStrategy.percentage(0.5)"),
    ],
)
def test_a_strategy_reads_as_it_is_written(strategy: JoinStrategy, text: str) -> None:
    assert repr(strategy) == text


def test_strategies_are_values() -> None:
    assert quorum(2) == quorum(2)
    assert quorum(2) != partial(2)
    assert len({quorum(2), quorum(2), ALL, ANY}) == 3
