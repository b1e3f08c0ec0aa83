"""The pictures of the run page in a real Chromium: scrubbing, the ruler that follows, rows by keyboard, the
pinned tensor, ranks, a phone, both themes."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboards.axe import violations
from tests.dashboards.sample import LAST, ORIGIN
from tests.dashboards.sample_pictures import pictures
from tests.dashboards.site import Site
from tests.dashboards.watched import Watched, watched_page

RUN = "/runs/k3f9q2"
SLOW_MS = 15_000
COUNT_DRAWS = """() => {
  window.draws = 0;
  document.getElementById('heat').on('plotly_afterplot', () => { window.draws += 1; });
}"""


@pytest.fixture
def site(site: Site) -> Site:
    before = site.run

    def view(run: str) -> Any:
        found = before(run)
        return None if found is None else replace(found, pictures=pictures())

    site.run = view
    return site


def open_layers(page: Page, site: Site, query: str = "") -> None:
    page.goto(site.url + RUN + query)
    page.locator("#layers").scroll_into_view_if_needed()
    page.locator("#heat .main-svg").first.wait_for()
    expect(page.locator("#scrub")).to_be_visible()


def ruler_requests(site: Site) -> int:
    """How often the ruler was asked for."""
    return sum(path.endswith("/ruler") for path, _query in site.requests)


def plot_box(page: Page) -> Any:
    box = page.locator("#heat .nsewdrag").bounding_box()
    assert box is not None
    return box


def test_scrubbing_moves_the_ruler_and_never_draws_the_map_again(watched: Watched, site: Site) -> None:
    page = watched.page
    open_layers(page, site)
    expect(page.locator("#scrub")).to_contain_text("Step 300")
    expect(page.locator(".ruler-sub")).to_have_text("at step 300, after scaling")
    page.wait_for_timeout(300)
    page.evaluate(COUNT_DRAWS)
    page.keyboard.press("]")
    expect(page.locator("#scrub")).to_contain_text(re.compile("Step 30[1-9]"))
    expect(page.locator("#ruler")).to_have_attribute("data-step", re.compile("30[1-9]"))
    page.keyboard.press("}")
    page.keyboard.press("[")
    box = plot_box(page)
    asked, begun = ruler_requests(site), time.monotonic()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.88, box["y"] + 60, steps=30)
    page.mouse.up()
    expect(page.locator("#ruler")).to_have_attribute("data-step", re.compile("36[5-9]|37[0-5]"))
    expect(page.locator("#ruler")).to_contain_text("clip")
    page.wait_for_url(re.compile("at=3[67]"))
    assert ruler_requests(site) - asked <= 10 * (time.monotonic() - begun) + 2
    page.locator("#at").focus()
    page.keyboard.press("ArrowLeft")
    page.get_by_role("button", name="Jump to onset").click()
    expect(page.locator("#scrub")).to_contain_text("Step 300")
    expect(page.locator("#all-tensors")).to_have_attribute("href", re.compile(r"/tensors\?at=300"))
    assert page.evaluate("window.draws") == 0


def test_rows_by_keyboard_and_pointer_and_the_pinned_tensor(watched: Watched, site: Site) -> None:
    page = watched.page
    open_layers(page, site, f"?at=349&t={ORIGIN}")
    expect(page.locator("#pinned")).to_contain_text(ORIGIN)
    expect(page.locator("#pinned")).to_contain_text("Headroom: \u22121.6")
    page.get_by_role("button", name="Unpin").click()
    expect(page.locator("#pinned")).to_be_hidden()
    assert "t=" not in page.url.replace("at=", "")
    rows = page.locator("#rows")
    rows.focus()
    page.keyboard.press("Home")
    expect(rows).to_have_attribute("aria-valuenow", "1")
    expect(page.locator("#tip")).to_contain_text("blocks.0.attn.qkv/input")
    page.keyboard.press("ArrowDown")
    expect(rows).to_have_attribute("aria-valuetext", re.compile("blocks.0.attn.proj/input, Headroom: 0"))
    page.keyboard.press("ArrowRight")
    expect(page.locator("#scrub")).to_contain_text(re.compile("Step 35[0-2]"))
    page.keyboard.press("Enter")
    expect(page.locator("#pinned a")).to_have_text("blocks.0.attn.proj/input")
    page.wait_for_url("**t=blocks.0.attn.proj%2Finput**")
    expect(page.locator("#ruler")).to_contain_text("0.attn.proj")
    box = plot_box(page)
    x = box["x"] + box["width"] * 353.5 / (LAST + 1)
    page.mouse.move(x, box["y"] + box["height"] - 1)
    tip = page.locator("#tip")
    expect(tip).to_contain_text("blocks.11.mlp.fc2/grad_output")
    expect(tip).to_contain_text("Headroom: Inf")
    page.mouse.move(x, box["y"] + box["height"] * 0.8)
    expect(tip).to_contain_text("Headroom: NaN")
    page.mouse.click(x, box["y"] + box["height"] - 1)
    expect(page.locator("#pinned a")).to_have_text("blocks.11.mlp.fc2/grad_output")
    page.mouse.move(box["x"] - 60, box["y"])
    expect(tip).to_be_hidden()


def test_any_statistic_and_a_part_of_the_tensors(watched: Watched, site: Site) -> None:
    page = watched.page
    open_layers(page, site, "?stat=rms&block=Weights")
    expect(page.locator("#stat-more")).to_have_value("rms")
    expect(page.locator("#heat-legend")).to_contain_text("RMS, log2")
    expect(page.locator("#rows")).to_have_attribute("aria-valuemax", "48", timeout=SLOW_MS)
    page.get_by_role("button", name="Underflow").click()
    page.wait_for_url("**stat=underflow_pct**")
    expect(page.locator("#stat-more")).to_have_value("")
    page.go_back()
    expect(page.locator("#stat-more")).to_have_value("rms")
    page.go_forward()
    expect(page.locator("#stat-more")).to_have_value("")
    page.locator("#heat-block").select_option("")
    expect(page.locator("#rows")).to_have_attribute("aria-valuemax", "144", timeout=SLOW_MS)
    expect(page.locator("#heat-legend")).to_contain_text("Underflow, %", timeout=SLOW_MS)
    page.get_by_role("button", name=re.compile("Layers over time")).click()
    page.locator("#heat-tools").get_by_role("button", name="Show as table").click()
    expect(page.locator("#pinned + .tablebox td").first).to_have_text("blocks.0.attn.qkv/input")


def test_a_statistic_that_cannot_be_read_leaves_the_former_marked_as_such(
    watched: Watched, site: Site
) -> None:
    page = watched.page
    watched.expected.append("503")
    open_layers(page, site, "?stat=rms")
    expect(page.locator("#heat-legend")).to_contain_text("RMS, log2", timeout=SLOW_MS)
    page.route("**/heatmap?**", lambda route: route.fulfill(status=503, json={"detail": "busy"}))
    page.get_by_role("button", name="Underflow").click()
    strip = page.locator(".chart-old")
    expect(strip).to_contain_text("busy", timeout=SLOW_MS)
    expect(page.locator("#heat")).to_have_class(re.compile(r"\bold\b"))
    page.locator("#theme").click()  # draws again what is there
    expect(page.locator("#heat-legend")).to_contain_text("RMS, log2", timeout=SLOW_MS)
    page.unroute("**/heatmap?**")
    page.get_by_role("button", name="Read again").first.click()
    expect(page.locator("#heat-legend")).to_contain_text("Underflow, %", timeout=SLOW_MS)
    expect(strip).to_have_count(0)


def test_dragging_along_the_steps_below_the_map_zooms_all_charts(watched: Watched, site: Site) -> None:
    page = watched.page
    open_layers(page, site)
    box = plot_box(page)
    y = box["y"] + box["height"] + 12
    page.mouse.move(box["x"] + box["width"] * 0.5, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, y - 40, steps=4)
    expect(page.locator(".zoomband")).to_be_visible()
    page.mouse.up()
    page.wait_for_url(re.compile("from=2[01].&to=31."))
    expect(page.locator(".zoomband")).to_be_hidden()
    page.wait_for_function("() => document.getElementById('heat')._fullLayout.xaxis.range[0] > 150")
    page.wait_for_function("() => document.getElementById('loss')._fullLayout.xaxis.range[0] > 150")
    assert "at=" not in page.url, "the scrubber stays where it was"
    page.mouse.dblclick(box["x"] + box["width"] * 0.5, y)
    page.wait_for_function("() => document.getElementById('heat')._fullLayout.xaxis.range[0] < 1")
    assert "from=" not in page.url


def test_ranks_and_the_path_of_a_nan(watched: Watched, site: Site) -> None:
    page = watched.page
    open_layers(page, site)
    expect(page.locator("#nan-path .node")).to_have_count(5)
    expect(page.locator("#nan-path")).to_contain_text("on rank 3")
    page.locator("#ranks").scroll_into_view_if_needed()
    page.locator("#rank-map .main-svg").first.wait_for()
    expect(page.locator("#ranks-legend")).to_contain_text("Lowest value in each cell")
    expect(page.locator("#ranks-legend")).to_contain_text("GPU slowed down")
    page.locator("#rank-name").select_option("step_time_s")
    expect(page.locator("#ranks-legend")).to_contain_text("Highest value in each cell")
    page.wait_for_url("**rank_stat=step_time_s**")
    page.go_back()
    expect(page.locator("#ranks-legend")).to_contain_text("Lowest value in each cell")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_nothing_is_wrong_for_assistive_technology_or_on_a_phone(
    browser: Browser, site: Site, scheme: Any, width: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    with watched_page(context, site.url) as watched:
        page = watched.page
        open_layers(page, site, f"?t={ORIGIN}")
        page.locator("#ranks").scroll_into_view_if_needed()
        page.locator("#rank-map .main-svg").first.wait_for()
        for part in ("#layers", "#nan-path", "#ranks"):
            assert violations(page, part) == []
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        small = page.evaluate(
            """() => [...document.querySelectorAll('#layers *, #nan-path *, #ranks *')]
              .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
              .filter((e) => e.getClientRects().length && parseFloat(getComputedStyle(e).fontSize) < 11)
              .map((e) => e.outerHTML.slice(0, 80))"""
        )
        assert small == []
    context.close()


def test_a_ruler_that_cannot_be_read_is_marked_as_old(watched: Watched, site: Site) -> None:
    page = watched.page
    open_layers(page, site)
    page.route("**/ruler?**", lambda route: route.fulfill(status=500, body="no"))
    watched.expected.append("500")
    page.keyboard.press("]")
    expect(page.locator("#ruler")).to_have_class(re.compile("old"))
    page.unroute("**/ruler?**")
    page.keyboard.press("]")
    expect(page.locator("#ruler")).not_to_have_class(re.compile("old"))
