"""The words of the alerts page: headline, rows, detail, timeline, and names that try to be markup."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from floatscope_dashboards.alert_filters import Asked
from floatscope_dashboards.alert_timeline import result, timeline
from floatscope_dashboards.alerts_page import alerts_page, headline
from floatscope_dashboards.alerts_view import AlertDetail, AlertsView, Held, HistoryLine, RunName, Told
from floatscope_dashboards.incidents import AlertLine, Wanted, grouped
from tests.dashboards.sample import HOSTILE
from tests.dashboards.showing import Shown

NOW = datetime(2026, 11, 30, 12, tzinfo=timezone.utc)
SHOWN = Shown()


def finding(**changes: Any) -> dict[str, Any]:
    return {
        "id": "x",
        "state": "raised",
        "cause": "scale_state_fault",
        "kind": "frozen",
        "severity": "critical",
        "confidence": 0.93,
        "confidence_basis": "6 of 7 checks",
        "onset_step": 412_380,
        "tensor": HOSTILE,
        "affected_tensors": 14,
        "summary": f"The scale of {HOSTILE} stands still.",
        "rule": "FS203",
        "evidence": [
            {"signal": "overflow_pct", "tensor": HOSTILE, "step": 5, "value": "NaN", "expected": "< 0.5"}
        ],
        "alternatives": [{"cause": "bad_batch", "confidence": 0.3, "against": ""}],
        "remedy": {"text": "Roll back. Use current scaling.", "settings": {"pytorch": "a_b=1"}},
        "decisive_test": "Run one step in BF16.",
        **changes,
    }


def line(number: int, **changes: Any) -> AlertLine:
    values: dict[str, Any] = {
        "id": f"a{number}",
        "run": f"r{number}",
        "segment": 0,
        "onset": 412_380,
        "severity": "critical",
        "state": "firing",
        "family": "scale_calibration_blowup",
        "rule": "FS203",
        "began": NOW - timedelta(hours=7, minutes=14),
    }
    return AlertLine(number=number, **{**values, **changes})


def view(*lines: AlertLine, json: dict[str, Any] | None = None, **changes: Any) -> AlertsView:
    found: dict[str, Any] = {
        "asked": Asked(),
        "incidents": grouped(lines),
        "findings": {one.id: json or finding() for one in lines},
        "runs": {one.run: RunName(one.run, HOSTILE, HOSTILE) for one in lines},
        "alerts": len(lines),
        "cut": False,
        "ever": True,
        "now": NOW,
        "channels": 1,
    }
    return AlertsView(**{**found, **changes})


def opened(shown: AlertsView, alert_id: str = "a1", **changes: Any) -> AlertsView:
    incident = next(one for one in shown.incidents if one.has(alert_id))
    its = next(one for one in incident.alerts if one.id == alert_id)
    values: dict[str, Any] = {
        "line": its,
        "incident": incident,
        "finding": shown.findings[alert_id],
        "finding_state": "raised",
        "first_seen": its.began,
        "last_seen": NOW,
        "rule_title": "scale state fault",
    }
    return replace(shown, detail=AlertDetail(**{**values, **changes}))


def html(shown: AlertsView) -> str:
    return SHOWN.page(alerts_page(shown, SHOWN.say), now=NOW)


def text(page: str) -> str:
    """What a reader sees, in one line."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", page.partition("<main")[2].replace("<wbr>", "")))


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ((), "Nothing needs anyone now"),
        (("recovered", "resolved", "silenced"), "Nothing needs anyone now"),
        (("firing",), "1 incident needs someone"),
        (("firing", "firing", "acknowledged"), "2 incidents need someone, 1 in hand"),
        (("acknowledged",), "Nothing needs anyone new, 1 incident is in hand"),
        (("acknowledged", "acknowledged"), "Nothing needs anyone new, 2 incidents are in hand"),
    ],
)
def test_the_headline_says_what_needs_someone(states: tuple[str, ...], said: str) -> None:
    shown = view(*(line(n, state=state) for n, state in enumerate(states, 1)))
    assert headline(shown.incidents, SHOWN.say) == said
    title = alerts_page(shown, SHOWN.say).title
    assert title == ("▲ " if "firing" in states else "") + f"{said} – Alerts – floatscope"


def test_rows_say_who_has_it_since_when_and_how_many() -> None:
    shown = view(
        line(1, run="one"),
        line(2, run="one", state="acknowledged", owner="Priya"),
        line(3, run="two", state="acknowledged", owner="Priya"),
        line(4, run="two", state="acknowledged", owner="Osei"),
        line(5, state="silenced"),
        line(6, state="silenced", severity="warning"),
        silences={
            "a5": Held("s", NOW + timedelta(hours=1), "", "ops"),
            "a6": Held("t", None, "", "ops"),
        },
    )
    said = text(html(shown))
    assert "6 alerts in 4 incidents by run and onset" in said
    assert "1 alert fires and nobody has it: the top bar counts alerts." in said
    for words in (
        "1 of 2 alerts",
        "Priya and 1 other",
        "until 2026-11-30 13:00 UTC",
        "until ops ends it",
        "7 h 14 min",
        "×2",
    ):
        assert words in said, words


def test_who_may_only_read_is_offered_nothing_to_do() -> None:
    page = alerts_page(view(line(1)), SHOWN.say)
    for may, offered in ((("read",), False), (("read", "write"), True)):
        found = SHOWN.page(page, now=NOW, may=may)
        for what in ('class="needs-js pick"', 'id="bulk"', 'id="silence-any"'):
            assert (what in found) is offered, (may, what)


def test_five_thousand_alerts_take_little_time() -> None:
    """Loose, some three times what is wanted: grouping, filters and words, in seconds of CPU."""
    states = ("firing", "acknowledged", "recovered", "resolved")
    many = [line(n, run=f"r{n % 40}", onset=n * 997, state=states[n % 4]) for n in range(5000)]
    began = time.process_time()
    shown = view(*many)
    page = html(shown)
    assert time.process_time() - began < 0.8
    assert "1,250 incidents need someone, 1,250 in hand" in text(page)


def test_markup_in_names_stays_text_everywhere() -> None:
    shown = opened(
        view(line(1), line(2, run="r1"), asked=Asked(unfolded=("a1",))),
        history=(HistoryLine(NOW, "note", HOSTILE, "", "", HOSTILE),),
        told=(Told(HOSTILE, "raised", "dead", 3, NOW, NOW, None, HOSTILE),),
        silence=Held("s", None, HOSTILE, HOSTILE),
    )
    page = html(shown)
    assert "<script>window" not in page
    assert "<img" not in page
    assert text(page).count("&lt;script&gt;window.stolen=1") > 10


def test_the_detail_says_what_is_known_and_nothing_else() -> None:
    said = text(html(opened(view(line(1)))))
    for words in (
        "onset step 412,380, 7 h 14 min ago",
        "14 tensors affected",
        "FP8 scale state is wrong: scale frozen 93 % sure, 6 of 7 checks",
        "FS203 Scale state fault",
        "NaN, expected &lt; 0.5",
        "Roll back.",
        "Nobody yet",
        "No channel was told.",
    ):
        assert words in said, words
    assert "Run one step in BF16." not in said
    bare = text(html(opened(view(line(1, onset=None), json={"cause": None}))))
    assert "no step named, 7 h 14 min ago" in bare
    assert "The whole run" in bare
    for absent in ("% sure", "tensors affected", "None", "Measured", "Settings to change"):
        assert absent not in bare, absent


def test_below_certainty_it_names_what_decides_and_gives_no_instruction() -> None:
    said = text(html(opened(view(line(1), json=finding(confidence=0.4)))))
    assert "To decideRun one step in BF16." in said
    assert "Bad batch, 30 %" in said
    assert "Roll back." not in said


def test_what_explains_it_now_and_a_finding_that_was_taken_back() -> None:
    page = html(opened(view(line(1, state="resolved")), replaced_by="b2", finding_state="withdrawn"))
    assert 'href="/alerts/b2"' in page
    assert "this is what it said last" in text(page)


def test_the_timeline_is_in_order_and_whole_sentences() -> None:
    at = [NOW + timedelta(minutes=n) for n in range(9)]
    shown = opened(
        view(line(1)),
        onset_time=at[0],
        history=(
            HistoryLine(at[1], "raised", "engine", "", "firing", ""),
            HistoryLine(at[3], "severity_changed", "engine", "warning", "critical", ""),
            HistoryLine(at[4], "cause_changed", "engine", "bad_batch", "scale_state_fault", ""),
            HistoryLine(at[5], "acknowledge", "Priya", "firing", "acknowledged", "on it"),
            HistoryLine(at[6], "recovered", "engine", "acknowledged", "recovered", ""),
            HistoryLine(at[7], "raised", "engine", "recovered", "firing", ""),
            HistoryLine(at[8], "of a later version", "engine", "", "", ""),
        ),
        told=(
            Told("#on-call", "raised", "sent", 1, at[1], at[2], None, ""),
            Told("pager", "raised", "dead", 9, at[1], at[2], None, "refused"),
        ),
    )
    assert shown.detail is not None
    found = [(one.text, one.detail) for one in timeline(shown.detail, SHOWN.say)]
    assert found == [
        ("Onset, step 412,380", ""),
        ("Opened as warning", ""),
        ("Told #on-call", ""),
        ("Raised to critical", ""),
        ("The cause is now: FP8 scale state is wrong", "It was: Bad batch"),
        ("Acknowledged by Priya", "on it"),
        ("Back to normal", ""),
        ("Began again", ""),
        ("Changed", ""),
    ]


@pytest.mark.parametrize(
    ("state", "attempts", "said"),
    [
        ("sent", 1, ("ok", "Sent", "")),
        ("sent", 3, ("ok", "Sent, try 3", "")),
        ("pending", 0, ("dots", "Waiting", "why")),
        ("pending", 1, ("dots", "1 try failed", "why")),
        ("dead", 4, ("no", "Given up after 4 tries", "why")),
    ],
)
def test_what_became_of_a_message(state: str, attempts: int, said: tuple[str, str, str]) -> None:
    assert result(Told("c", "raised", state, attempts, NOW, None, None, "why"), SHOWN.say) == said


def test_nothing_ever_nothing_now_and_nothing_that_matches_are_three_pages() -> None:
    never = text(html(view(ever=False, channels=0)))
    assert "No alert so far" in never
    assert "Nobody is told yet" in never
    now = text(html(view()))
    assert "Nothing is open, and nothing was resolved in the last 24 hours." in now
    none = html(view(line(1), asked=Asked(Wanted(run="other"))))
    assert "No incident matches these filters." in text(none)
    assert re.search(r'<a href="/alerts">Clear filters</a>', none)
    assert "There are 25,000 alerts; the newest are shown." in text(
        html(view(line(1), cut=True, alerts=25_000))
    )


def test_a_large_incident_names_its_alerts_only_when_asked() -> None:
    lines = [line(n, run="one", onset=n, state="firing" if n % 2 else "recovered") for n in range(1, 61)]
    (key,) = {one.key for one in grouped(lines)}
    shown = view(*lines)
    assert 'data-ids=""' in html(shown)
    page = html(opened(replace(shown, asked=Asked(unfolded=(key,)))))
    row, detail = re.findall(r'data-ids="([^"]+)"', page)
    assert row == detail
    assert row.split()[:3] == ["fa1", "ra2", "fa3"]
    assert len(row.split()) == 60
    assert "40 more alerts" in text(page)
    assert "All 60 alerts of this incident" in text(page)
