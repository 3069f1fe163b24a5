"""The timeline of a run: exact pictures, to scale, for every status and every length."""

from __future__ import annotations

import pytest

from supervisor.cli.bars import Bar, Fate, Kind, bars_of
from supervisor.cli.timeline import timeline
from supervisor.cli.words import ASCII, UNICODE, Symbols, Tone, breadth, plain
from supervisor.durable.history import (
    Envelope,
    FlowEvent,
    RunCancelled,
    RunCompleted,
    RunRetryExhausted,
    SignalWaitCompleted,
    SignalWaitCreated,
    StepCancelled,
    StepCompleted,
    StepCreated,
    StepFailed,
    StepNonRetryable,
    StepRetrying,
    StepStarted,
    WaitCompleted,
)
from supervisor.durable.retry import RetryPolicy
from tests.cli.histories import history, text
from tests.durable.making import AT, begun, cancellation, later, signal, step, wait

PATIENT = RetryPolicy.fixed(3, 1.5)


def drawn(
    envelopes: list[Envelope],
    seconds: float,
    *,
    width: int = 60,
    symbols: Symbols = ASCII,
    most: int | None = None,
) -> list[str]:
    """The picture of a history at so many seconds."""
    lines = timeline(bars_of(envelopes), AT, later(seconds), width=width, symbols=symbols, most=most)
    assert all(sum(breadth(part) for part, _ in line) <= width for line in lines)
    return text(lines)


TRIED = history(
    (0, begun()),
    (0, step("reserve")),
    (1, [StepCompleted("reserve", True), *step("charge", PATIENT)]),
    (2, [StepRetrying("charge", 1, "declined", later(3.5))]),
    (3.5, [StepStarted("charge", 2)]),
    (4, [StepCompleted("charge", 1), wait("cool-down", 6)]),
    (6, [WaitCompleted("cool-down"), SignalWaitCreated("approval", "approve")]),
)


def test_a_line_for_each_attempt_and_wait_and_the_times_below() -> None:
    assert drawn(TRIED, 10.0, width=70) == [
        "reserve   + ####                                                   1 s",
        "charge    x     ####x......                                        1 s",
        "charge #2 +                ###                                  0.50 s",
        "cool-down +                   ---------                            2 s",
        "approval  o                            ----------------->          4 s",
        "            |0       |2 s     |4 s     |6 s     |8 s    |10 s",
    ]


def test_it_has_nicer_characters_where_the_terminal_has_them() -> None:
    assert drawn(TRIED, 10.0, width=70, symbols=UNICODE)[:5] == [
        "reserve   ✓ ━━━━                                                   1 s",
        "charge    ✗     ━━━━✗······                                        1 s",
        "charge #2 ✓                ━━━                                  0.50 s",
        "cool-down ✓                   ─────────                            2 s",
        "approval  ○                            ─────────────────▶          4 s",
    ]


def test_a_narrow_terminal_gets_a_coarser_picture() -> None:
    assert drawn(TRIED, 10.0, width=40) == [
        "reserve   + #                        1 s",
        "charge    x  #x..                    1 s",
        "charge #2 +      #                0.50 s",
        "cool-down +       ---                2 s",
        "approval  o          ----->          4 s",
        "            |0            |10 s",
    ]


def test_what_took_milliseconds_in_a_run_of_weeks_still_has_a_cell() -> None:
    fortnight = wait("renew", 14 * 86400)
    found = history((0, begun()), (0.002, step("charge")), (0.005, [StepCompleted("charge"), fortnight]))
    assert drawn(found, 16 * 86400.0) == [
        "charge + #                                            3.0 ms",
        "renew  o ------------------------------------->         16 d",
        "         |0              |7 d             |14 d",
    ]


def test_a_run_of_microseconds_is_drawn_to_scale() -> None:
    found = history(
        (0, begun()),
        (0.000_003, step("a")),
        (0.000_008, [StepCompleted("a"), *step("b")]),
        (0.000_012, [StepCompleted("b"), RunCompleted()]),
    )
    assert drawn(found, 0.000_012) == [
        "a +           ##################                        5 us",
        "b +                             ###############         4 us",
        "    |0               |5 us             |10 us",
    ]


def test_a_run_that_took_no_time_at_all_is_drawn() -> None:
    found = history((0, [*begun(), *step("a"), StepCompleted("a"), RunCompleted()]))
    assert drawn(found, 0.0) == [
        "a + #                                                    0 s",
        "    |0                                        |1 us",
    ]


def test_a_run_without_steps_has_no_timeline() -> None:
    assert drawn(history((0, [*begun(), RunCompleted()])), 0.0) == []


def test_failed_attempts_end_with_a_mark_and_without_a_delay_follow_each_other() -> None:
    found = history(
        (0, [*begun(), *step("a", RetryPolicy.fixed(2, 0))]),
        (2, [StepRetrying("a", 1, "no"), StepStarted("a", 2)]),
        (4, [StepFailed("a", 2, "no"), RunRetryExhausted("a", 2, "no")]),
    )
    assert drawn(found, 4.0) == [
        "a    x ###################x                              2 s",
        "a #2 x                     ###################x          2 s",
        "       |0        |1 s      |2 s      |3 s     |4 s",
    ]


def test_a_delay_that_has_not_ended_has_an_arrow() -> None:
    found = history((0, [*begun(), *step("a", PATIENT)]), (1, [StepRetrying("a", 1, "no", later(2.5))]))
    assert drawn(found, 2.0) == [
        "a x ####################x.....................>          1 s",
        "    |0        |500 ms    |1000 ms   |1500 ms  |2000 ms",
    ]


def test_a_cancellation_ends_delays_and_has_a_line_and_the_clean_up_follows_it() -> None:
    found = history(
        (0, [*begun(), *step("a", PATIENT)]),
        (1, [StepRetrying("a", 1, "no", later(2.5))]),
        (2, [cancellation("enough"), *step("undo")]),
        (3, [StepCompleted("undo"), RunCancelled("enough")]),
    )
    assert drawn(found, 3.0) == [
        "a               x ########x..........                    1 s",
        "asked to cancel =                    =",
        "undo            +                    ##########          1 s",
        "                  |0       |1 s      |2 s     |3 s",
    ]


def test_a_run_that_was_ended_by_force_leaves_nothing_open() -> None:
    found = history((0, [*begun(), *step("a"), wait("w", 9)]), (2, [RunCancelled()]))
    assert drawn(found, 2.0)[:2] == [
        "a = ##########################################=          2 s",
        "w = ------------------------------------------=          2 s",
    ]


def test_steps_of_a_batch_stand_below_each_other_and_one_that_has_not_begun_is_dotted() -> None:
    found = history(
        (
            0,
            [
                *begun(),
                *(StepCreated(each, "work") for each in "abc"),
                *(StepStarted(each, 1) for each in "ab"),
            ],
        ),
        (3, [StepNonRetryable("b", 1, "no"), StepCancelled("a", 1, "not known")]),
    )
    assert drawn(found, 4.0) == [
        "a = ###############################=                     3 s",
        "b x ###############################x                     3 s",
        "c o ..........................................>          4 s",
        "    |0        |1 s       |2 s       |3 s      |4 s",
    ]


def test_a_signal_has_a_line_as_long_as_nobody_took_it() -> None:
    taken = [SignalWaitCreated("w", "go"), SignalWaitCompleted("w", "s1")]
    found = history((0, begun()), (1, [signal("s1", "go"), signal("s2", "stop")]), (2, [*taken, *step("b")]))
    assert drawn(found, 4.0) == [
        "signal stop o         o",
        "w           +                 -                          0 s",
        "b           *                 ################>          2 s",
        "              |0              |2 s            |4 s",
    ]


def test_the_middle_of_a_thousand_steps_is_one_line_that_shows_failures() -> None:
    def ended(number: int) -> FlowEvent:
        name = f"s{number}"
        return StepNonRetryable(name, 1, "no") if number == 500 else StepCompleted(name)

    found = history((0, begun()), *((n, [*step(f"s{n}"), ended(n)]) for n in range(1000)))
    assert drawn(found, 1000.0, most=7) == [
        "s0         + #                                           0 s",
        "s1         + #                                           0 s",
        "s2         + #                                           0 s",
        "~ 994 more ~ -----------------x----------------  16 min 33 s",
        "s997       +                                  #          0 s",
        "s998       +                                  #          0 s",
        "s999       +                                  #          0 s",
        "             |0                  |10 min",
        "994 of 1000 lines are folded: 993 completed, 1 failed",
    ]
    assert len(drawn(found, 1000.0)) == 1001


def test_the_middle_of_a_thousand_steps_at_once_is_open_as_they_are() -> None:
    found = history((0, [*begun(), *(event for n in range(1000) for event in step(f"s{n}"))]))
    assert drawn(found, 10.0, most=5)[2:] == [
        "~ 996 more ~ --------------------------------->         10 s",
        "s998       * #################################>         10 s",
        "s999       * #################################>         10 s",
        "             |0               |5 s            |10 s",
        "996 of 1000 lines are folded: 996 open",
    ]


def test_wide_letters_keep_the_columns_and_control_characters_are_told() -> None:
    found = history((0, [*begun(), *step("日本語の手順"), *step("a\x1b[31m\nb" * 9)]))
    assert drawn(found, 1.0) == [
        "日本語の手順         * #######################>          1 s",
        "a\\x1b[31m ba\\x1b[31~ * #######################>          1 s",
        "                       |0          |500 ms    |1000 ms",
    ]


def test_tones_tell_what_went_well_and_what_did_not() -> None:
    lines = timeline(bars_of(TRIED), AT, later(10), width=70, symbols=ASCII)
    assert [line[1] for line in lines[:5]] == [
        ("+", Tone.GOOD),
        ("x", Tone.BAD),
        ("+", Tone.GOOD),
        ("+", Tone.GOOD),
        ("o", Tone.BUSY),
    ]
    parts = [(part.strip(), tone) for part, tone in lines[1][3:-1] if part.strip()]
    assert parts == [("####x", Tone.BAD), ("......", Tone.WARN)]
    assert plain(lines[1]).startswith("charge    x     ####x......")


@pytest.mark.parametrize("clock", [-5.0, 0.0])
def test_a_clock_behind_that_of_the_history_breaks_nothing(clock: float) -> None:
    bar = Bar(label="a", kind=Kind.ATTEMPT, start=later(1), end=later(2), fate=Fate.COMPLETED)
    assert text(timeline([bar], AT, later(clock), width=60, symbols=ASCII)) == [
        "a +                                           #          1 s",
        "    |0                                        |1 us",
    ]
