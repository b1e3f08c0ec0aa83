"""The printable reports as text: all in one file, nothing fetched or run, names stay names."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from floatscope_dashboards.alert_timeline import event_text
from floatscope_dashboards.evidence import evidence_card
from floatscope_dashboards.report_chart import difference_chart, run_chart, ticks
from floatscope_dashboards.report_page import (
    compare_report_page,
    not_checked,
    report_page,
    report_policy,
)
from floatscope_dashboards.report_view import AlertLine, CurveSeries, ReportView
from floatscope_diagnostics.compare.drawing import drawn
from floatscope_diagnostics.compare.judge import Settings, compare
from floatscope_server.telling.states import EVENTS
from tests.dashboards.sample import (
    HOSTILE,
    LAST,
    NOW,
    ONSET,
    ORIGIN,
    faulty_curves,
    finding,
    healthy_row,
    row,
    verdict,
)
from tests.dashboards.showing import Shown
from tests.dashboards.test_compare_page import apart, view
from tests.diagnostics.compare.logs import side


@pytest.fixture(scope="module")
def shown() -> Shown:
    return Shown()


def report(**more: Any) -> ReportView:
    curves = faulty_curves()
    loss = curves.scalars(["loss"], 0, LAST, 200)["series"]["loss"]
    alert = AlertLine(NOW - timedelta(hours=1), "raised", "engine", "", "firing", "")
    made = ReportView(
        row=row(),
        verdict=verdict(finding()),
        ranks=8,
        onset_time=NOW - timedelta(hours=2),
        curves=CurveSeries(
            loss,
            baseline=loss,
            baseline_name="bf16",
            proof=curves.series(ORIGIN, "overflow_pct", 0, LAST, 200),
            proof_title=f"Values clipped, {ORIGIN}",
            proof_unit="%",
        ),
        alerts=(alert, replace(alert, event="acknowledge", by="ann", note="looking at it")),
        alerts_left_out=0,
        url="http://host/runs/faulty",
        version="0.1.0",
        now=NOW,
    )
    return replace(made, **more)


def html_of(found: ReportView, shown: Shown, *, download: bool = False) -> str:
    return shown.page(report_page(found, shown.say, download=download), now=NOW)


def is_alone(html: str) -> None:
    assert "<script" not in html
    assert not re.search(r"\ssrc\s*=|url\(|@import|\sstyle=|\son[a-z]+=", html)
    assert all(link.startswith("data:") for link in re.findall(r'<link[^>]*href="([^"]*)"', html))
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.S)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in report_policy()
    assert "unsafe" not in report_policy()
    assert "default-src 'none'" in report_policy()


def test_an_incident(shown: Shown) -> None:
    html = html_of(report(), shown)
    is_alone(html)
    for text in (
        *("Since when", "Where it began", "What to do", "Test that decides", "Other explanations"),
        *("Not checked", f"Onset {ONSET}", "Opened", "Acknowledged by ann: looking at it"),
        *("bf16 dashed", "http://", "2026-11-24 11:36 UTC"),
    ):
        assert text in html.replace("<wbr>", ""), text
    assert 'href="?download=1"' in html
    saved = html_of(report(), shown, download=True)
    assert "<a " not in saved


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_of_an_alert_has_words_in_both_languages(event: str) -> None:
    english, chinese = (
        event_text(event, "ann", "warning", "critical", Shown(language=language).say)
        for language in ("en", "zh-CN")
    )
    assert not english.startswith(event.replace("_", " "))
    assert english != chinese


def test_a_healthy_run(shown: Shown) -> None:
    found = report(row=healthy_row(), verdict=verdict(), alerts=(), onset_time=None, curves=None)
    html = html_of(found, shown)
    is_alone(html)
    assert "No finding in 420 steps" in html
    assert "None was opened." in html
    assert "What to do" not in html
    assert '<svg class="ch"' not in html
    nothing = html_of(replace(found, verdict={}), shown)
    assert "Nothing has been judged yet" in nothing


def test_an_uncertain_finding_gives_no_instruction(shown: Shown) -> None:
    html = html_of(report(verdict=verdict(finding(confidence=0.4))), shown)
    assert "not sure enough for an instruction" in html
    assert "<ol>" not in html


def test_names_stay_names(shown: Shown) -> None:
    bad = finding(summary=HOSTILE, tensor=HOSTILE, decisive_test=HOSTILE)
    curves = report().curves
    assert curves is not None
    html = html_of(
        report(
            row=row(name=HOSTILE, project=HOSTILE),
            verdict=verdict(bad),
            curves=replace(curves, baseline_name=HOSTILE, proof_title=HOSTILE),
            alerts=(AlertLine(NOW, HOSTILE, HOSTILE, "", "", HOSTILE),),
        ),
        shown,
    )
    assert "<script" not in html
    assert "<img" not in html


def test_of_much_only_so_much_is_shown(shown: Shown) -> None:
    evidence = finding()["evidence"] * 30
    many = verdict(finding(evidence=evidence), *(finding(id=f"f{k}", onset_step=300 + k) for k in range(9)))
    html = html_of(report(verdict=many, alerts=report().alerts * 9), shown)
    assert re.search(r"\d+ further observations are on the run", html)
    assert html.count("<tr>") < 20
    assert "earlier events are left out" in html


def test_rules_that_lack_the_same_share_a_line(shown: Shown) -> None:
    lacks = [
        {"rule": "FS412", "why": "not logged", "needs": ["eval_loss"]},
        {"rule": "FS201", "why": "missing on 14 of 89 tensors", "needs": ["*/input amax"]},
        {"rule": "FS426", "why": "not logged", "needs": ["eval_loss"]},
        {"rule": "FS202", "why": "missing on 14 of 89 tensors", "needs": ["*/input amax"]},
    ]
    found = not_checked(evidence_card({"not_checked": lacks}, shown.say), shown.say)
    assert [(item.rules, item.text) for item in found] == [
        ("FS412, FS426", "not logged: eval_loss"),
        ("FS201, FS202", "looked at a part of the tensors only"),
    ]
    healthy = report(row=healthy_row(), verdict={**verdict(), "not_checked": lacks}, alerts=())
    for some in (healthy, report(verdict={**verdict(finding()), "not_checked": lacks})):
        assert html_of(some, shown).count("FS412, FS426</span> not logged") == 1


def test_charts_bridge_no_gap_and_mark_what_is_not_finite() -> None:
    columns = {
        "step": [0, 1, 2, 3, 40, 41],
        "mean": [1.0, 1.1, None, 1.2, 1.3, 1.4],
        "min": [1.0, 1.1, None, 1.2, 1.3, 1.4],
        "max": [1.0, 1.1, None, 1.2, 1.3, 1.4],
        "nan": [0, 0, 1, 0, 0, 0],
        "inf": [0] * 6,
    }
    svg = str(
        run_chart(
            columns, said="A & B", titles=("<b>", ""), onset=None, onset_word="", broken_word="NaN on 1 step"
        )
    )
    assert 'aria-label="A &amp; B"' in svg
    assert "&lt;b&gt;" in svg
    assert svg.count('fill="none"') == 2  # two stretches of a line
    assert "<circle" in svg  # the single point between NaN and the gap
    assert "NaN on 1 step" in svg
    assert run_chart({}, said="", titles=("", ""), onset=3, onset_word="") == ""
    assert ticks(0.0, 1.0, 5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(2.0, 2.0, 5) == [2.0]


def test_the_report_of_a_comparison(shown: Shown) -> None:
    rows = apart(0.05)
    own, base = (side(some) for some in rows)
    found = compare(own, base, Settings())
    series = drawn(found.pairs, own, base, confidence=0.95, points=200)
    page = compare_report_page(view(rows), series, shown.say, version="0.1", url="http://h/c", download=False)
    html = shown.page(page, now=NOW)
    is_alone(html)
    assert "No go: the loss of fp8 is above that of bf16" in html
    assert "Held against: a loss at most" in html
    assert 'stroke-dasharray="5 3"' in html  # the limit
    nothing = compare_report_page(view(None), None, shown.say, version="0", url="u", download=True)
    text = shown.page(nothing, now=NOW)
    is_alone(text)
    assert "cannot be compared" in text
    flat = {"step": [3], "mean": [0.0], "min": [0.0], "max": [0.0], "nan": [0], "inf": [0]}
    lonely = {"from": 3, "to": 3, "difference": flat, "run": flat, "baseline": flat,
              "band": {"pairs": 1, "step": [], "mean": [], "low": [], "high": []}}  # fmt: skip
    assert "<circle" in difference_chart(lonely, margin=0.0, said="", titles=("", ""))
