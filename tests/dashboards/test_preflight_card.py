"""The preflight on a run's page: what it decided and what to do, nothing when there is none, text escaped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floatscope_dashboards.findings import IN_ENGLISH
from floatscope_dashboards.preflight_card import MAX_CHECKS, preflight_card
from floatscope_dashboards.run_page import run_page
from tests.dashboards.sample import info, run_view
from tests.dashboards.showing import Shown
from tests.dashboards.test_pages import read

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=10,
)
FOUND: dict[str, Any] = {
    "schema": "floatscope.preflight/1",
    "decision": "fail",
    "light": True,
    "counts": {"pass": 23, "warn": 1, "fail": 1, "unknown": 1},
    "checks": [
        {"name": "a.warns", "status": "warn", "read": "a <b>warning</b>", "why": "matters", "do": "mend it"},
        {"name": "z.fails", "status": "fail", "read": "CUDA 12.1", "why": "", "do": "CUDA 12.9 or later"},
        {"name": "u.open", "status": "unknown", "read": "no driver", "why": "", "do": ""},
        {"name": "p.passes", "status": "pass", "read": "fine", "why": "", "do": ""},
    ],
    "versions": {"numpy": "2.4", "torch": "2.13.0<script>", "python": "3.12"},
    "gpus": [{"name": "H100", "capability": [9, 0]}] * 8,
    "casts": {"tried": ["500.0", "inf"], "e4m3 from float32 on cpu, eager": ["448.0", "448.0"],
              "saturating_cast": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def shown() -> Shown:
    return Shown()


def html(shown: Shown, found: object, language: Shown | None = None) -> str:
    say = (language or shown).say
    return (language or shown).page(run_page(run_view(info=info(preflight=found)), say))


def test_the_worst_is_first_with_what_to_do(shown: Shown) -> None:
    page = html(shown, FOUND)
    read(page)
    card = page[page.index('id="preflight"') :]
    assert card.index("CUDA 12.1") < card.index("a &lt;b&gt;warning")
    for text in (
        "What to do:</b> mend it",
        "1 fails, 1 warning, 1 not known, 23 pass",
        "8 × H100 (9.0)",
        "Casts to E4M3 saturate",
        "500.0 &rarr; 448.0",
        "no driver",
        "floatscope preflight looks at more",
    ):
        assert text in card, text
    assert "<script>" not in card.partition("</section>")[0]
    assert "fine" not in card.partition("</section>")[0]
    assert '<a href="#preflight">1 fails' in page


def test_a_run_without_one_says_nothing(shown: Shown) -> None:
    none: tuple[object, ...] = (None, {}, [], "x", {"decision": "odd"})
    for found in none:
        assert 'id="preflight"' not in html(shown, found)
        assert "#preflight" not in html(shown, found)


def test_it_is_said_in_chinese() -> None:
    chinese = Shown(language="zh-CN")
    page = html(chinese, FOUND)
    for text in ("训练前检查", "怎么办", "版本和 GPU", "23 项通过"):
        assert text in page


def test_versions_that_matter_come_first_and_many_checks_are_counted(shown: Shown) -> None:
    many = [{"name": f"c{n}", "status": "warn", "read": f"r{n}"} for n in range(MAX_CHECKS + 5)]
    card = preflight_card({"preflight": FOUND | {"checks": many}}, shown.say)
    assert card is not None
    assert (len(card.checks), card.more) == (MAX_CHECKS, 5)
    assert [name for name, _ in card.versions] == ["torch", "python", "numpy"]
    light = FOUND | {"casts": {"saturating_cast": False, "cast_probe": {"tried": ["inf"], "e4m3": ["nan"]}}}
    card = preflight_card({"preflight": light}, shown.say)
    assert card is not None
    assert card.saturates is False
    assert [(line.name, line.pairs) for line in card.casts] == [("e4m3", (("inf", "nan"),))]


@settings(max_examples=100, deadline=None)
@given(st.fixed_dictionaries({}, optional={key: JSON for key in FOUND}))
def test_any_document_makes_a_card_or_none(found: dict[str, Any]) -> None:
    preflight_card({"preflight": {"decision": "warn", **found}, "recipe": found}, IN_ENGLISH)
