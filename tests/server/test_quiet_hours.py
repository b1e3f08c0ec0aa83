"""Quiet hours: by the clocks of a time zone, over midnight, over changes of the clocks, on chosen days."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope_server.errors import Refused
from floatscope_server.telling.quiet_hours import DAYS, LONGEST_DAYS, QuietHours
from floatscope_server.telling.terms import check_escalate_s, check_repeat_s

BERLIN = "Europe/Berlin"
NIGHT = QuietHours.of_json({"zone": BERLIN, "from": "22:00", "to": "07:00"})


def at(text: str, zone: str = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("now", "ends"),
    [
        ("2026-11-30T21:59:59", None),
        ("2026-11-30T22:00", "2026-12-01T07:00"),
        ("2026-12-01T03:00", "2026-12-01T07:00"),
        ("2026-12-01T07:00", None),
        ("2027-03-28T00:30", "2027-03-28T07:00"),  # the clocks go forward: an hour less
        ("2026-10-25T00:30", "2026-10-25T07:00"),  # and back: an hour more
    ],
)
def test_a_night(now: str, ends: str | None) -> None:
    assert NIGHT.until(at(now)) == (None if ends is None else at(ends))


def test_a_night_in_which_the_clocks_change_is_shorter_or_longer() -> None:
    for day, hours in (("2027-03-27", 8), ("2026-10-24", 10), ("2026-11-24", 9)):
        begin = at(f"{day}T22:00")
        assert (NIGHT.until(begin) or 0.0) - begin == hours * 3600


def test_days_are_those_on_which_it_begins() -> None:
    friday = QuietHours.of_json({"zone": "UTC", "from": "20:00", "to": "06:00", "days": ["fri"]})
    assert friday.until(at("2026-12-05T05:00", "UTC")) == at("2026-12-05T06:00", "UTC")
    assert friday.until(at("2026-12-05T21:00", "UTC")) is None


def test_a_weekend_is_one_quiet_and_a_whole_week_ends_some_time() -> None:
    weekend = QuietHours.of_json({"zone": "UTC", "from": "00:00", "to": "00:00", "days": ["sat", "sun"]})
    assert weekend.until(at("2026-12-05T10:00", "UTC")) == at("2026-12-07T00:00", "UTC")
    always = QuietHours.of_json({"from": "00:00", "to": "00:00"})
    now = at("2026-12-05T10:00", "UTC")
    assert now < (always.until(now) or 0.0) <= now + (LONGEST_DAYS + 1) * 86_400


@settings(deadline=None)
@given(
    now=st.floats(1.6e9, 2.2e9),
    zone=st.sampled_from(["UTC", BERLIN, "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]),
    start=st.times().map(lambda t: t.strftime("%H:%M")),
    end=st.times().map(lambda t: t.strftime("%H:%M")),
    days=st.sets(st.sampled_from(DAYS), min_size=1, max_size=6),
)
def test_the_end_lies_ahead_and_then_it_is_not_quiet(
    now: float, zone: str, start: str, end: str, days: set[str]
) -> None:
    quiet = QuietHours.of_json({"zone": zone, "from": start, "to": end, "days": list(days)})
    assert QuietHours.of_json(quiet.to_json()) == quiet
    until = quiet.until(now)
    if until is not None:
        assert now < until
        assert quiet.until(until) is None
        assert quiet.until(until - 1e-3) == until


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"zone": "Mars/Olympus"}, "quiet.zone"),
        ({"zone": "../../etc/passwd"}, "quiet.zone"),
        ({"zone": 3}, "quiet.zone"),
        ({"zone": ""}, "quiet.zone"),
        ({"from": "25:00"}, "quiet.from"),
        ({"from": "7:00"}, "quiet.from"),
        ({"to": None}, "quiet.to"),
        ({"to": "٠٧:٠٠"}, "quiet.to"),
        ({"days": []}, "quiet.days"),
        ({"days": ["monday"]}, "quiet.days"),
        ({"days": "mon"}, "quiet.days"),
        ({"until": "07:00"}, "quiet.until"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as refused:
        QuietHours.of_json({"from": "22:00", "to": "07:00", **changes})
    assert refused.value.field == field


def test_intervals_are_bounded() -> None:
    assert (check_repeat_s(None), check_repeat_s(60), check_escalate_s(3600.0)) == (None, 60.0, 3600.0)
    for bad in (0.0, 59.9, -1.0, float("nan"), float("inf"), 1e9):
        with pytest.raises(Refused):
            check_repeat_s(bad)
        with pytest.raises(Refused):
            check_escalate_s(bad)


def test_times_are_of_the_zone_and_not_of_this_machine() -> None:
    noon = datetime(2026, 7, 1, 20, 30, tzinfo=timezone.utc).timestamp()
    assert NIGHT.until(noon) == at("2026-07-02T07:00")
