"""`cron`: the next times, exactly; what a change of the clock does; why an expression is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from supervisor.cli.main import main
from supervisor.kernel.cron import next_fire
from tests.programs import run_program

BERLIN = ("--tz", "Europe/Berlin")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[str]:
    assert main(["cron", *arguments]) == code
    captured = capsys.readouterr()
    assert (captured.err == "") == (code == 0)
    return (captured.out or captured.err).splitlines()


def test_the_next_times_in_the_zone_and_in_utc(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "0 0 9 * * MON", *BERLIN, "-n", "3", "--after", "2026-10-19T12:00")[3:] == [
        "DAY  Europe/Berlin              UTC",
        "Mon  2026-10-26 09:00:00+01:00  2026-10-26 08:00:00Z",
        "Mon  2026-11-02 09:00:00+01:00  2026-11-02 08:00:00Z",
        "Mon  2026-11-09 09:00:00+01:00  2026-11-09 08:00:00Z",
    ]


def test_utc_needs_one_column_and_no_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "@monthly", "-n", "2", "--after", "2026-11-30T21:00+01:00") == [
        "DAY  UTC",
        "Tue  2026-12-01 00:00:00+00:00",
        "Fri  2027-01-01 00:00:00+00:00",
    ]


def test_a_time_of_day_in_the_gap_moves_and_its_rule_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "30 2 * * *", *BERLIN, "-n", "3", "--after", "2027-03-26T12:00")
    assert lines[0].startswith(
        "  rule    a time of day: where a change of the clock skips it, it fires at the"
    )
    assert [line[5:30] for line in lines[-3:]] == [
        "2027-03-27 02:30:00+01:00",
        "2027-03-28 03:00:00+02:00",
        "2027-03-29 02:30:00+02:00",
    ]


def test_an_interval_runs_in_both_passes_and_its_rule_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "*/30 * * * *", *BERLIN, "-n", "4", "--after", "2026-10-25T01:30")
    assert lines[0].startswith("  rule    interval-like, because the second, minute or hour has *, - or /:")
    assert [line[5:30] for line in lines[-4:]] == [
        "2026-10-25 02:00:00+02:00",
        "2026-10-25 02:30:00+02:00",
        "2026-10-25 02:00:00+01:00",
        "2026-10-25 02:30:00+01:00",
    ]


def test_without_after_it_counts_from_now_and_shows_five() -> None:
    done = run_program("-m", "supervisor", "cron", "@yearly")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line[9:] for line in done.stdout.splitlines()[1:]] == ["-01-01 00:00:00+00:00"] * 5


def test_a_schedule_that_ends_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "0 0 0 1 1 * 2098-2099", "--after", "2026-11-30") == [
        "DAY  UTC",
        "Wed  2098-01-01 00:00:00+00:00",
        "Thu  2099-01-01 00:00:00+00:00",
        "and never again after that",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["0 0 0 30 2 *"], "error: '0 0 0 30 2 *' never fires again"),
        (
            ["0 0 0 1 1 * 2030", "--after", "2031-01-01"],
            "error: '0 0 0 1 1 * 2030' never fires again after 2031-01-01",
        ),
    ],
)
def test_a_schedule_that_never_fires_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert shown(capsys, *arguments, code=1) == [message]


@pytest.mark.parametrize(
    ("expression", "zone"),
    [("61 * * * *", "UTC"), ("", "UTC"), ("* * H * * *", "UTC"), ("@daily", "Mars/Base")],
)
def test_a_refusal_has_the_words_of_the_library_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], expression: str, zone: str
) -> None:
    with pytest.raises(ValueError, match=r"cron expression|tz") as refused:
        next_fire(expression, datetime(2026, 11, 30, tzinfo=UTC), zone)
    assert shown(capsys, expression, "--tz", zone, code=2) == [f"error: {refused.value}"]


def test_a_time_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "@daily", "--after", "tomorrow", code=2) == [
        "error: --after 'tomorrow' is no time; write one such as 2026-10-25T02:00"
    ]


def test_the_ends_of_the_calendar_do_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    tokyo = ("--tz", "Asia/Tokyo")
    assert shown(capsys, "@daily", *tokyo, "-n", "1", "--after", "0001-01-01T00:00")[-1].startswith(
        "Tue  0001-01-02"
    )
    assert shown(capsys, "@daily", *tokyo, "--after", "9999-12-31T12:00+00:00", code=1)
