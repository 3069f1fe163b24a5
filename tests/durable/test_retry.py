"""RetryPolicy: constructors, clamps, whole milliseconds, its JSON form, and delays that are drawn the same everywhere."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.durable.errors import InvalidTransition, SerializationError
from supervisor.durable.instants import shifted
from supervisor.durable.retry import RetryPolicy, StepFailureAction

U64 = 2**64 - 1


def settings_of(policy: RetryPolicy) -> tuple[int, int, int, str, str]:
    return (
        policy.max_attempts,
        policy.delay_ms,
        policy.max_delay_ms,
        policy.backoff,
        str(policy.on_exhausted),
    )


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        (RetryPolicy.default(), (3, 0, 0, "fixed", "fail_run")),
        (RetryPolicy(), (3, 0, 0, "fixed", "fail_run")),
        (RetryPolicy.none(), (1, 0, 0, "fixed", "fail_run")),
        (RetryPolicy.fixed(4, 5), (4, 5000, 0, "fixed", "fail_run")),
        (RetryPolicy.fixed(0, 2.0), (1, 2000, 0, "fixed", "fail_run")),
        (RetryPolicy.fixed(-(10**30), 0), (1, 0, 0, "fixed", "fail_run")),
        (RetryPolicy.fixed(10**30, 0), (2**32 - 1, 0, 0, "fixed", "fail_run")),
        (RetryPolicy.exponential(8, 1.0, 30.0), (8, 1000, 30000, "exponential", "fail_run")),
        (RetryPolicy.exponential(0, 0, 0), (1, 1, 1, "exponential", "fail_run")),
        (RetryPolicy.exponential(2, 4.0, 1.0), (2, 4000, 4000, "exponential", "fail_run")),
        (RetryPolicy.none().continue_workflow_on_failure(), (1, 0, 0, "fixed", "continue_workflow")),
    ],
)
def test_the_constructors_clamp_to_what_makes_sense(
    policy: RetryPolicy, settings: tuple[int, int, int, str, str]
) -> None:
    assert settings_of(policy) == settings


def test_an_action_on_failure_changes_nothing_else() -> None:
    policy = RetryPolicy.exponential(5, 1, 8)
    continued = policy.continue_workflow_on_failure()
    assert settings_of(continued) == (5, 1000, 8000, "exponential", "continue_workflow")
    assert (policy.continues, continued.continues) == (False, True)
    assert continued == policy.with_failure_action(StepFailureAction.CONTINUE_WORKFLOW)
    assert continued.with_failure_action(StepFailureAction.FAIL_RUN) == policy


@pytest.mark.parametrize(
    ("delay", "milliseconds"),
    [
        (0, 0),
        (-0.0, 0),
        (0.1, 100),
        (0.3, 300),
        (1.1, 1100),
        (2.001, 2001),
        (0.0011, 2),
        (1e-9, 1),
        (5e-324, 1),
        (1.0000001, 1001),
        (3, 3000),
        (2**53 + 1, (2**53) * 1000),
        (timedelta(microseconds=1), 1),
        (timedelta(milliseconds=7), 7),
        (timedelta(days=1, microseconds=1), 86_400_001),
        (timedelta.max, 86_400_000 * 10**9),
    ],
)
def test_fractions_of_a_millisecond_round_up(delay: float | timedelta, milliseconds: int) -> None:
    assert RetryPolicy.fixed(1, delay).delay_ms == milliseconds


@given(st.floats(min_value=0.0, max_value=1e12))
def test_a_delay_is_never_shortened_and_grows_by_less_than_a_millisecond(delay: float) -> None:
    exact = Fraction(repr(delay)) * 1000
    found = RetryPolicy.fixed(1, delay).delay_ms
    assert exact <= found < exact + 1


@given(st.integers(0, 10**9))
def test_whole_milliseconds_stay_as_they_are(milliseconds: int) -> None:
    assert RetryPolicy.fixed(1, milliseconds / 1000).delay_ms == milliseconds
    assert RetryPolicy.fixed(1, timedelta(milliseconds=milliseconds)).delay_ms == milliseconds


@pytest.mark.parametrize("delay", [-1, -1e-9, timedelta(microseconds=-1), float("nan"), float("inf"), 1e300])
def test_a_delay_that_is_negative_or_has_no_end_is_a_value_error(delay: Any) -> None:
    with pytest.raises(ValueError, match=r"^delay must "):
        RetryPolicy.fixed(3, delay)
    with pytest.raises(ValueError, match=r"^initial must "):
        RetryPolicy.exponential(3, delay, 1.0)
    with pytest.raises(ValueError, match=r"^maximum must "):
        RetryPolicy.exponential(3, 1.0, delay)


@pytest.mark.parametrize("delay", [True, "1", None, 1j, [1]])
def test_a_delay_that_is_no_duration_is_a_type_error(delay: Any) -> None:
    with pytest.raises(TypeError, match=r"^delay must be seconds"):
        RetryPolicy.fixed(3, delay)


@pytest.mark.parametrize("attempts", [True, False, 1.0, "3", None])
def test_attempts_that_are_no_int_are_a_type_error(attempts: Any) -> None:
    with pytest.raises(TypeError, match=r"^max_attempts must be an int"):
        RetryPolicy.fixed(attempts, 0)


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidTransition, match=r"fixed retry policy has no max_delay_ms, got 5"):
        RetryPolicy(delay_ms=1, max_delay_ms=5)
    for first, last in ((0, 5), (6, 5), (0, 0)):
        with pytest.raises(InvalidTransition, match=r"needs 1 <= delay_ms <= max_delay_ms"):
            RetryPolicy(delay_ms=first, max_delay_ms=last, backoff="exponential")
    with pytest.raises(ValueError, match=r"unknown setting of a retry policy"):
        RetryPolicy(backoff="linear")
    with pytest.raises(ValueError, match=r"unknown setting of a retry policy"):
        RetryPolicy(on_exhausted="explode")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"delay_ms must be at most 18446744073709551615"):
        RetryPolicy(delay_ms=U64 + 1)


def test_a_policy_is_a_value() -> None:
    policy = RetryPolicy.exponential(8, 1.0, 30.0).continue_workflow_on_failure()
    assert copy.deepcopy(policy) == pickle.loads(pickle.dumps(policy)) == policy
    assert len({policy, copy.copy(policy)}) == 1
    with pytest.raises(AttributeError):
        policy.delay_ms = 1  # type: ignore[misc]


# -- the JSON form


@pytest.mark.parametrize(
    ("policy", "form"),
    [
        (RetryPolicy.default(), {"max_attempts": 3, "delay_ms": 0}),
        (RetryPolicy.none(), {"max_attempts": 1, "delay_ms": 0}),
        (RetryPolicy.fixed(4, 5), {"max_attempts": 4, "delay_ms": 5000}),
        (
            RetryPolicy.exponential(2, 1, 4),
            {"max_attempts": 2, "delay_ms": 1000, "backoff": "exponential", "max_delay_ms": 4000},
        ),
        (
            RetryPolicy.none().continue_workflow_on_failure(),
            {"max_attempts": 1, "delay_ms": 0, "on_exhausted": "continue_workflow"},
        ),
    ],
)
def test_the_json_form_leaves_out_defaults_and_comes_back(policy: RetryPolicy, form: dict[str, Any]) -> None:
    assert policy.to_dict() == form
    assert list(policy.to_dict()) == list(form)
    assert all(type(value) in (int, str) for value in policy.to_dict().values())
    assert RetryPolicy.from_dict(form) == policy


POLICIES = st.one_of(
    st.builds(RetryPolicy.fixed, st.integers(-1, 2**33), st.floats(0, 1e9)),
    st.builds(RetryPolicy.exponential, st.integers(-1, 2**33), st.floats(0, 1e9), st.floats(0, 1e9)),
)


@given(POLICIES, st.sampled_from(StepFailureAction))
def test_every_policy_comes_back_from_its_json_form(policy: RetryPolicy, action: StepFailureAction) -> None:
    chosen = policy.with_failure_action(action)
    assert RetryPolicy.from_dict(chosen.to_dict()) == chosen


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"max_attempts": 3},
        {"delay_ms": 0},
        {"max_attempts": True, "delay_ms": 0},
        {"max_attempts": 3.0, "delay_ms": 0},
        {"max_attempts": 3, "delay_ms": False},
        {"max_attempts": 3, "delay_ms": -1},
        {"max_attempts": 3, "delay_ms": [0]},
        {"max_attempts": 3, "delay_ms": None},
        {"max_attempts": 3, "delay_ms": U64 + 1},
        {"max_attempts": 3, "delay_ms": 0, "max_delay_ms": 1},
        {"max_attempts": 3, "delay_ms": 0, "backoff": "exponential"},
        {"max_attempts": 3, "delay_ms": 0, "backoff": "linear"},
        {"max_attempts": 3, "delay_ms": 0, "on_exhausted": "explode"},
        {"max_attempts": 3, "delay_ms": 0, "jitter": 1},
        {"max_attempts": 3, "delay_ms": 0, "cls": 1},
    ],
)
def test_what_is_no_policy_is_refused_also_after_one_that_is_nearly_equal(form: dict[str, Any]) -> None:
    RetryPolicy.from_dict({"max_attempts": 1, "delay_ms": 0})
    RetryPolicy.from_dict({"max_attempts": 3, "delay_ms": 0})
    for _ in range(2):
        with pytest.raises(SerializationError, match=r"^retry is no retry policy") as caught:
            RetryPolicy.from_dict(form)
        assert caught.value.path == "retry"


def test_a_stored_policy_without_attempts_has_one() -> None:
    assert RetryPolicy.from_dict({"max_attempts": 0, "delay_ms": 0}) == RetryPolicy.none()


# -- delays

VECTORS = [
    (100, 400, "run-1", "step-1", 1, 90),
    (100, 400, "run-1", "step-1", 2, 179),
    (100, 400, "run-1", "step-1", 3, 48),
    (100, 400, "run-1", "step-1", 4, 66),
    (100, 400, "run-1", "step-1", 20, 10),
    (100, 400, "run-1", "step-2", 1, 13),
    (100, 400, "run-1", "step-2", 2, 76),
    (100, 400, "run-1", "step-2", 3, 208),
    (100, 400, "run-2", "step-1", 1, 75),
    (100, 400, "run-2", "step-1", 2, 199),
    (100, 400, "run-2", "step-1", 3, 321),
    *[
        (1000, 30000, "order-42", "capture-payment", attempt, delay)
        for attempt, delay in enumerate((60, 676, 3654, 6420, 10692, 13941, 14243), 1)
    ],
    (1000, 30000, "日本-1", "été", 1, 816),
    (1, 1, "r", "s", 1, 1),
]


@pytest.mark.parametrize(("initial", "maximum", "run_id", "step_id", "attempt", "delay"), VECTORS)
def test_exponential_delays_are_the_published_ones(
    initial: int, maximum: int, run_id: str, step_id: str, attempt: int, delay: int
) -> None:
    policy = RetryPolicy.exponential(99, initial / 1000, maximum / 1000)
    assert policy.delay_in_ms(run_id, step_id, attempt) == delay
    assert policy.delay(run_id, step_id, attempt) == delay / 1000
    assert policy.continue_workflow_on_failure().delay_in_ms(run_id, step_id, attempt) == delay


@given(
    st.integers(1, 10**7),
    st.integers(1, 10**7),
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.integers(1, 2**40),
)
def test_an_exponential_delay_lies_between_1_ms_and_its_cap(
    initial: int, maximum: int, run_id: str, step_id: str, attempt: int
) -> None:
    policy = RetryPolicy.exponential(3, timedelta(milliseconds=initial), timedelta(milliseconds=maximum))
    delay = policy.delay_in_ms(run_id, step_id, attempt)
    cap = min(initial * 2 ** min(attempt - 1, 64), max(initial, maximum))
    assert 1 <= delay <= cap <= policy.longest_ms
    assert delay == policy.delay_in_ms(run_id, step_id, attempt)


def test_where_one_id_ends_and_the_next_begins_counts() -> None:
    policy = RetryPolicy.exponential(3, 3600, 3600)
    assert policy.delay_in_ms("ab", "c", 1) != policy.delay_in_ms("a", "bc", 1)


@pytest.mark.parametrize("attempt", [1, 2, 10**6, 10**4000])
def test_a_fixed_delay_is_the_same_after_every_attempt(attempt: int) -> None:
    assert RetryPolicy.fixed(3, 1.5).delay("r", "s", attempt) == 1.5
    assert RetryPolicy.none().delay("r", "s", attempt) == 0.0


def test_an_attempt_of_any_size_costs_no_large_number() -> None:
    policy = RetryPolicy.exponential(3, 1e-3, 9e15)
    assert 1 <= policy.delay_in_ms("r", "s", 10**4000) <= policy.longest_ms == 9 * 10**18
    assert policy.delay_in_ms("r", "s", 10**4000) == policy.delay_in_ms("r", "s", 2**32 - 1)
    assert RetryPolicy(1, U64, U64, "exponential").delay_in_ms("r", "s", 2**40) <= U64


@pytest.mark.parametrize("policy", [RetryPolicy.fixed(3, 1), RetryPolicy.exponential(3, 1, 2)])
def test_an_attempt_that_is_none_is_refused(policy: RetryPolicy) -> None:
    for attempt in (0, -1):
        with pytest.raises(ValueError, match=r"attempt must be >= 1"):
            policy.delay("r", "s", attempt)
    for other in (True, 1.0, "1", None):
        with pytest.raises(TypeError, match=r"attempt must be an int"):
            policy.delay("r", "s", other)  # type: ignore[arg-type]


def test_ids_that_are_no_text_are_refused() -> None:
    policy = RetryPolicy.exponential(3, 1, 2)
    with pytest.raises(TypeError, match=r"run_id and step_id must be str, got 7"):
        policy.delay("r", 7, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"surrogates"):
        policy.delay("\ud800", "s", 1)


@pytest.mark.parametrize("milliseconds", [U64, 2**63 - 1, 253_402_300_800_000, 86_400_000 * 10**9])
def test_a_delay_that_fits_no_datetime_is_refused_by_its_length(milliseconds: int) -> None:
    with pytest.raises(
        InvalidTransition, match=f"a delay of {milliseconds} ms, which can't be represented as a UTC"
    ):
        shifted(datetime(2026, 1, 1, tzinfo=UTC), milliseconds, "step 's'")


def test_the_last_instant_there_is_can_be_reached() -> None:
    almost = datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
    assert shifted(almost - timedelta(milliseconds=5), 5, "step 's'") == almost
    with pytest.raises(InvalidTransition):
        shifted(almost, 1, "step 's'")
