"""The one formula for retry delays: exact values, its bounds as properties, and what it refuses."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import random
import re
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.kernel.backoff import BackoffPolicy, Jitter, default_rng

LAST_DRAW = math.nextafter(1.0, 0.0)
LARGEST = 1.7976931348623157e308
COUNTS = (1, 43, 64, 1023, 1024, 1075, 5000, 10**9, 2**32 - 1, 10**400)

draws = st.floats(0.0, 1.0, exclude_max=True)
counts = st.one_of(st.integers(1, 200), st.integers(1, 10**12))
jitters = st.one_of(st.sampled_from(Jitter), st.floats(0.0, 1.0))


@st.composite
def policies(draw: st.DrawFn) -> BackoffPolicy:
    largest = draw(st.sampled_from([60.0, 1e9, LARGEST]))
    cap = draw(st.floats(0.0, largest))
    return BackoffPolicy(
        initial=draw(st.floats(0.0, cap)),
        multiplier=draw(st.one_of(st.just(1.0), st.floats(1.0, 100.0), st.floats(1.0, LARGEST))),
        max_delay=cap,
        jitter=draw(jitters),
        floor=draw(st.sampled_from([0.0, 0.0, 0.5, 1e6])),
    )


def plain(**settings: object) -> BackoffPolicy:
    return BackoffPolicy(**{"jitter": Jitter.NONE, **settings})  # type: ignore[arg-type]


def exact_base(policy: BackoffPolicy, failures: int) -> Fraction:
    """The base in exact arithmetic."""
    power = Fraction(policy.multiplier) ** (failures - 1)
    return min(Fraction(policy.initial) * power, Fraction(policy.max_delay))


# --- exact values


def test_the_default_policy_reads_back_as_documented() -> None:
    assert BackoffPolicy() == BackoffPolicy(0.2, 2.0, 30.0, Jitter.EQUAL, 0.0)
    assert repr(BackoffPolicy()) == (
        "BackoffPolicy(initial=0.2, multiplier=2.0, max_delay=30.0, jitter=<Jitter.EQUAL: 'equal'>, floor=0.0)"
    )


@pytest.mark.parametrize(
    ("failures", "low", "high"), [(1, 0.1, 0.2), (2, 0.2, 0.4), (3, 0.4, 0.8), (21, 15.0, 30.0)]
)
def test_the_default_delays_run_from_half_the_base_to_the_base(
    failures: int, low: float, high: float
) -> None:
    policy = BackoffPolicy()
    assert policy.delay(failures, 0.0) == low
    assert policy.delay(failures, 0.5) == pytest.approx((low + high) / 2)
    assert policy.delay(failures, LAST_DRAW) == pytest.approx(high)
    assert policy.delay(failures, LAST_DRAW) <= high


def test_each_failure_doubles_the_delay_up_to_the_cap() -> None:
    delays = [plain(initial=0.125, max_delay=1.5).delay(failures, 0.9) for failures in range(1, 8)]
    assert delays == [0.125, 0.25, 0.5, 1.0, 1.5, 1.5, 1.5]


@pytest.mark.parametrize(
    ("jitter", "draw", "expected"),
    [
        (Jitter.NONE, 0.75, 4.0),
        (Jitter.FULL, 0.0, 0.0),
        (Jitter.FULL, 0.75, 3.0),
        (Jitter.EQUAL, 0.0, 2.0),
        (Jitter.EQUAL, 0.75, 3.5),
        (Jitter.BAND, 0.0, 1.0),
        (Jitter.BAND, 0.5, 5.5),  # between the initial 1 and min(3 * 4, 10)
        (0.25, 0.0, 3.0),
        (0.25, 0.5, 4.0),
        (0.25, 0.75, 4.5),
        (0.0, 0.75, 4.0),
        (1, 0.0, 0.0),
        (1.0, 0.75, 6.0),
    ],
)
def test_each_jitter_spreads_the_third_delay_as_its_formula_says(
    jitter: Jitter | float, draw: float, expected: float
) -> None:
    assert BackoffPolicy(initial=1.0, max_delay=10.0, jitter=jitter).delay(3, draw) == expected


def test_the_band_reaches_three_times_the_base_below_the_cap() -> None:
    policy = BackoffPolicy(initial=0.125, max_delay=30.0, jitter=Jitter.BAND)
    assert policy.delay(9, 0.5) == 0.125 + 0.5 * (30.0 - 0.125)  # base 32 -> 30
    assert policy.delay(2, 0.5) == 0.125 + 0.5 * (0.75 - 0.125)


def test_a_spread_is_applied_after_the_cap_and_may_exceed_it() -> None:
    policy = BackoffPolicy(initial=8.0, max_delay=8.0, jitter=0.25)
    assert (policy.delay(50, 0.0), policy.delay(50, 0.75)) == (6.0, 9.0)


def test_a_constant_policy_waits_the_same_each_time() -> None:
    policy = BackoffPolicy.constant(0.5)
    assert [policy.delay(failures, 0.9) for failures in (1, 2, 10, 10**9)] == [0.5] * 4
    assert (policy.multiplier, policy.jitter) == (1.0, Jitter.NONE)


def test_a_constant_delay_may_exceed_the_default_cap() -> None:
    policy = BackoffPolicy.constant(timedelta(minutes=1))
    assert policy.initial <= policy.max_delay
    assert policy.delay(1, 0.0) == policy.delay(7, 0.0) == 60.0


def test_a_constant_zero_never_waits() -> None:
    assert BackoffPolicy.constant(0).delay(10**9, 0.5) == 0.0


@pytest.mark.parametrize("jitter", [*Jitter, 0.1])
def test_initial_zero_never_waits_under_any_jitter(jitter: Jitter | float) -> None:
    policy = BackoffPolicy(initial=0, jitter=jitter)
    delays = [policy.delay(failures, 0.0) for failures in COUNTS]
    assert delays == [0.0] * len(COUNTS)
    if jitter is not Jitter.BAND:
        assert policy.delay(10**9, 0.9) == 0.0


def test_the_floor_lifts_short_delays_and_may_exceed_the_cap() -> None:
    assert BackoffPolicy(initial=0.1, jitter=Jitter.FULL, floor=0.1).delay(1, 0.9) == 0.1
    assert plain(initial=0, floor=0.25).delay(1, 0.0) == 0.25
    assert plain(max_delay=5.0, floor=999.0).delay(1, 0.0) == 999.0
    assert plain(initial=1.0, floor=0.5).delay(2, 0.0) == 2.0


def test_durations_are_given_as_timedelta_and_kept_as_seconds() -> None:
    policy = BackoffPolicy(timedelta(milliseconds=500), 2, timedelta(minutes=1), floor=timedelta(seconds=1))
    assert (policy.initial, policy.multiplier, policy.max_delay, policy.floor) == (0.5, 2.0, 60.0, 1.0)
    assert {type(each) for each in (policy.initial, policy.multiplier, policy.max_delay, policy.floor)} == {
        float
    }


def test_sub_millisecond_delays_keep_their_precision() -> None:
    assert plain(initial=123.457e-6, max_delay=0.002).delay(2, 0.0) == 246.914e-6
    assert BackoffPolicy(initial=500e-6, max_delay=500e-6, jitter=Jitter.FULL).delay(1, 0.5) == 250e-6


# --- saturation


@pytest.mark.parametrize("multiplier", [1.5, 2.0, 100.0, 1e300, 10**300])
@pytest.mark.parametrize("failures", COUNTS[1:])
def test_years_of_outage_return_the_cap(multiplier: float, failures: int) -> None:
    policy = plain(initial=0.1, multiplier=multiplier, max_delay=60.0)
    assert policy.delay(failures, 0.0) == 60.0
    assert BackoffPolicy(initial=0.1, multiplier=multiplier, max_delay=60.0).delay(failures, 0.0) == 30.0


def test_years_of_outage_without_growth_keep_the_initial_delay() -> None:
    assert [plain(multiplier=1).delay(failures, 0.0) for failures in COUNTS[:-1]] == [0.2] * (len(COUNTS) - 1)


def test_growth_just_above_one_still_saturates() -> None:
    assert plain(multiplier=math.nextafter(1.0, 2.0)).delay(10**9, 0.0) == pytest.approx(0.2, rel=1e-6)
    assert plain(multiplier=1.0000001).delay(10**9, 0.0) == 30.0


@pytest.mark.parametrize("jitter", [*Jitter, 1.0])
def test_the_largest_durations_stay_finite(jitter: Jitter | float) -> None:
    policy = BackoffPolicy(initial=LARGEST, multiplier=1.0, max_delay=LARGEST, jitter=jitter)
    assert policy.delay(1, LAST_DRAW) <= LARGEST
    assert policy.delay(2, 0.5) >= LARGEST / 2


# --- properties


@settings(deadline=None)
@given(policies(), st.integers(1, 120))
def test_the_base_equals_exact_arithmetic(policy: BackoffPolicy, failures: int) -> None:
    base = dataclasses.replace(policy, jitter=Jitter.NONE, floor=0.0).delay(failures, 0.0)
    overflows = math.log2(policy.multiplier) * (failures - 1) > 1023
    if not overflows:
        assert base == pytest.approx(float(exact_base(policy, failures)), rel=1e-9, abs=1e-300)
    assert 0.0 <= base <= policy.max_delay


@settings(deadline=None)
@given(policies(), counts, draws)
def test_every_delay_stays_in_the_bounds_of_its_jitter(
    policy: BackoffPolicy, failures: int, draw: float
) -> None:
    base = dataclasses.replace(policy, jitter=Jitter.NONE, floor=0.0).delay(failures, draw)
    delay = policy.delay(failures, draw)
    low, high = {
        Jitter.NONE: (base, base),
        Jitter.FULL: (0.0, base),
        Jitter.EQUAL: (base / 2, base),
        Jitter.BAND: (min(policy.initial, policy.max_delay), min(3.0 * base, policy.max_delay)),
    }.get(policy.jitter, (0.0, LARGEST))  # type: ignore[call-overload]
    if isinstance(policy.jitter, float) and not isinstance(policy.jitter, Jitter):
        spread = Fraction(policy.jitter)
        assert delay <= max(
            float(min(Fraction(base) * (1 + spread), Fraction(LARGEST))) * (1 + 1e-12), policy.floor
        )
        assert delay >= float(Fraction(base) * (1 - spread)) * (1 - 1e-9) - base * 1e-15
    assert math.isfinite(delay)
    assert max(low, policy.floor) <= delay <= max(high, policy.floor)
    assert math.copysign(1.0, delay) == 1.0


@settings(deadline=None)
@given(policies(), counts, counts, draws)
def test_more_failures_never_wait_less(policy: BackoffPolicy, one: int, other: int, draw: float) -> None:
    fewer, more = sorted((one, other))
    assert policy.delay(fewer, draw) <= policy.delay(more, draw) * (1 + 1e-12)


@settings(deadline=None)
@given(policies(), counts, draws, draws)
def test_a_larger_draw_never_waits_less(
    policy: BackoffPolicy, failures: int, one: float, other: float
) -> None:
    smaller, larger = sorted((one, other))
    assert policy.delay(failures, smaller) <= policy.delay(failures, larger)


@settings(deadline=None)
@given(policies())
def test_a_policy_is_a_value(policy: BackoffPolicy) -> None:
    assert (
        policy == copy.deepcopy(policy) == pickle.loads(pickle.dumps(policy)) == dataclasses.replace(policy)
    )
    assert hash(policy) == hash(copy.copy(policy))


@pytest.mark.parametrize("failures", [1, 2, 5, 9])
def test_ten_thousand_real_draws_stay_between_half_the_base_and_the_base(failures: int) -> None:
    policy, rng = BackoffPolicy(), random.Random(7)
    base = min(0.2 * 2 ** (failures - 1), 30.0)
    samples = [policy.delay(failures, rng.random()) for _ in range(10_000)]
    assert base / 2 <= min(samples) < 0.51 * base
    assert 0.99 * base < max(samples) <= base
    assert sum(samples) / len(samples) == pytest.approx(0.75 * base, rel=0.01)


# --- what is refused


@pytest.mark.parametrize("multiplier", [math.nan, math.inf, 0.5, 0.0, -1.0, 10**400])
def test_a_multiplier_below_one_or_not_finite_is_refused(multiplier: float) -> None:
    with pytest.raises(ValueError, match="multiplier must be"):
        BackoffPolicy(multiplier=multiplier)


@pytest.mark.parametrize("field", ["initial", "max_delay", "floor"])
@pytest.mark.parametrize("value", [-0.001, math.nan, math.inf, -math.inf, timedelta(seconds=-1), 10**400])
def test_a_duration_that_is_negative_nan_or_infinite_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field} must"):
        BackoffPolicy(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["initial", "multiplier", "max_delay", "floor", "jitter"])
@pytest.mark.parametrize("value", [True, "1", None, Decimal(1), [1.0], 1j])
def test_a_value_of_the_wrong_type_is_refused(field: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^{field} must be .*, got {re.escape(repr(value))}$"):
        BackoffPolicy(**{field: value})  # type: ignore[arg-type]


def test_an_initial_delay_over_the_cap_is_refused() -> None:
    with pytest.raises(ValueError, match=r"initial must not exceed max_delay, got 10\.0 > 5\.0"):
        BackoffPolicy(initial=10, max_delay=5)


@pytest.mark.parametrize("spread", [-0.1, 1.1, math.nan, math.inf, 2])
def test_a_spread_outside_zero_to_one_is_refused(spread: float) -> None:
    with pytest.raises(ValueError, match="jitter must be"):
        BackoffPolicy(jitter=spread)


@pytest.mark.parametrize("failures", [0, -1, -(10**9)])
def test_fewer_than_one_failure_is_refused(failures: int) -> None:
    with pytest.raises(ValueError, match=f"failures must be >= 1, counted from 1, got {failures}"):
        BackoffPolicy().delay(failures, 0.5)


@pytest.mark.parametrize("failures", [True, False, 1.0, "1", None])
def test_a_count_of_failures_that_is_no_int_is_refused(failures: object) -> None:
    with pytest.raises(TypeError, match="failures must be an int"):
        BackoffPolicy().delay(failures, 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("draw", [-0.001, 1.0, 1.5, math.nan, math.inf])
@pytest.mark.parametrize("jitter", [*Jitter, 0.1])
def test_a_draw_outside_the_unit_interval_is_refused(draw: float, jitter: Jitter | float) -> None:
    with pytest.raises(ValueError, match=r"draw must be in \[0, 1\)"):
        BackoffPolicy(jitter=jitter).delay(1, draw)


def test_a_policy_is_frozen_and_has_no_dict() -> None:
    with pytest.raises(AttributeError):
        BackoffPolicy().initial = 1.0  # type: ignore[misc]
    assert not hasattr(BackoffPolicy(), "__dict__")


def test_replace_checks_again() -> None:
    assert dataclasses.replace(BackoffPolicy(), floor=timedelta(seconds=2)).floor == 2.0
    with pytest.raises(ValueError, match="initial must not exceed"):
        dataclasses.replace(BackoffPolicy(), max_delay=0.1)


def test_the_labels_of_jitter_are_lower_case_words() -> None:
    assert [str(each) for each in Jitter] == ["none", "full", "equal", "band"]


def test_each_default_generator_is_its_own() -> None:
    one, other = default_rng(), default_rng()
    assert one is not other
    assert all(0.0 <= one.random() < 1.0 for _ in range(100))
    assert [one.random() for _ in range(4)] != [other.random() for _ in range(4)]


def test_a_policy_that_does_not_grow_stays_at_its_base_for_ever() -> None:
    assert BackoffPolicy(1, 1, jitter=Jitter.NONE).delay(10**500, 0.0) == 1.0
