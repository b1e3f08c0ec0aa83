"""Ticks of an axis in tokens or time: round numbers at the steps at which they were reached."""

from __future__ import annotations

from datetime import datetime, timezone
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from floatscope_server.ticks import amount_text, amount_ticks, round_steps, time_ticks
from tests.server.live import Client
from tests.server.samples import send

BERLIN = ZoneInfo("Europe/Berlin")


def at(text: str, zone: Any = timezone.utc) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


@pytest.mark.parametrize(
    ("span", "count", "every"),
    [(100, 10, 10), (100, 8, 20), (99, 10, 10), (7, 7, 1), (0.9, 9, 0.1), (0, 5, 1)],
)
def test_parts_are_1_2_or_5_times_a_power_of_ten(span: float, count: int, every: float) -> None:
    assert round_steps(span, count) == pytest.approx(every)


def test_a_total_is_marked_at_the_step_at_which_it_was_reached() -> None:
    # 100 tokens a step up to step 10, then 300
    found = amount_ticks([0, 10, 20], [0, 1000, 4000], 4)
    assert [(tick.step, tick.text) for tick in found] == [
        (0, "0"), (10, "1\u202fk"), (pytest.approx(10 + 10 / 3), "2\u202fk"),
        (pytest.approx(10 + 20 / 3), "3\u202fk"), (20, "4\u202fk"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "every", "text"),
    [
        (1.71e12, 1e10, "1.71\u202fT"),
        (1.7105e12, 5e8, "1.7105\u202fT"),
        (24e9, 1e9, "24\u202fB"),
        (0, 100, "0"),
        (500, 100, "500"),
    ],
)
def test_neighbours_never_read_the_same(value: float, every: float, text: str) -> None:
    assert amount_text(value, every) == text
    assert amount_text(value + every, every) != text


def test_no_tokens_or_one_step_has_no_ticks() -> None:
    assert amount_ticks([], [], 5) == []
    assert amount_ticks([3], [0], 5) == []
    assert amount_ticks([3, 4], [7, 7], 5) == []
    assert amount_ticks([3, 4], [0, float("inf")], 5) == amount_ticks([3, 4], [float("nan"), 1], 5) == []
    assert time_ticks([3], [1.0], BERLIN, 5, "en") == []
    assert time_ticks([3, 4], [1.0, 1.0], BERLIN, 5, "en") == []


def test_times_are_round_on_the_readers_clock_and_name_the_day_when_it_changes() -> None:
    begin, end = at("2026-11-24T20:10:00"), at("2026-11-25T02:10:00")
    found = time_ticks([0, 3600], [begin, end], BERLIN, 6, "en")
    assert [tick.text for tick in found] == [
        "22:00<br>Nov 24", "23:00", "00:00<br>Nov 25", "01:00", "02:00", "03:00",
    ]  # fmt: skip
    assert found[0].step == pytest.approx(3600 * 50 / 360)


def test_times_stay_round_over_the_end_of_summer_time() -> None:
    begin, end = at("2026-10-24T12:00:00", BERLIN), at("2026-10-26T12:00:00", BERLIN)
    found = time_ticks([0, 490], [begin, end], BERLIN, 5, "en")
    assert [tick.text for tick in found] == [
        "12:00<br>Oct 24",
        "00:00<br>Oct 25",
        "12:00",
        "00:00<br>Oct 26",
        "12:00",
    ]
    assert [round(tick.step) for tick in found] == [0, 120, 250, 370, 490]


def test_a_pause_and_a_resume_from_before_do_not_pile_ticks_up_or_turn_back() -> None:
    day = 86_400.0
    found = time_ticks(
        [0, 50, 51, 52, 100], [0, 600, 600 + day, 300 + day, 1200 + day], timezone.utc, 20, "en"
    )
    steps = [tick.step for tick in found]
    assert steps == sorted(steps)
    assert all(b - a >= 4 for a, b in pairwise(steps))


def test_the_address_answers_in_tokens_and_in_the_readers_zone_and_language(client: Client) -> None:
    begin = at("2026-11-24T12:00:00")
    client.open_run("ticking")
    steps = [{"step": n, "loss": 1.0, "tokens": 1000, "time": begin + 60 * n} for n in range(61)]
    send(client, "ticking", steps, size=16)
    tokens = client.get("/api/v1/runs/ticking/ticks?axis=tokens&count=4").json
    assert [(item["step"], item["text"]) for item in tokens["ticks"]] == [
        (0, "0"), (20, "20\u202fk"), (40, "40\u202fk"), (60, "60\u202fk"),
    ]  # fmt: skip
    assert (tokens["title"], tokens["why"]) == ("Tokens", None)
    times = client.get("/api/v1/runs/ticking/ticks?axis=time&count=3&zone=Asia/Shanghai&lang=zh-CN").json
    assert [item["text"] for item in times["ticks"]] == ["20:00<br>11\u670824\u65e5", "20:30", "21:00"]
    assert [item["step"] for item in times["ticks"]] == pytest.approx([0, 30, 60])
    part = client.get("/api/v1/runs/ticking/ticks?axis=step&from=10&to=20&count=5").json
    assert [item["step"] for item in part["ticks"]] == [10, 12, 14, 16, 18, 20]


def test_what_cannot_be_answered_is_said(client: Client) -> None:
    client.open_run("untimed")
    send(client, "untimed", [{"step": n, "loss": 1.0} for n in range(4)])
    tokens = client.get("/api/v1/runs/untimed/ticks?axis=tokens").json
    assert tokens["ticks"] == []
    assert "tokens" in tokens["why"]
    for zone in ("Nowhere/At_All", "..%2Fetc", "America"):
        assert client.get(f"/api/v1/runs/untimed/ticks?zone={zone}").status == 422
    assert client.get("/api/v1/runs/none/ticks").status == 404
