"""Overview and small pages in a real Chromium: filters, keys, live rows, hostile names, phone width, no
scripts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from floatscope_dashboards.views import RunView
from tests.dashboards import sample
from tests.dashboards.sample import HOSTILE, healthy_row, row, runs_view
from tests.dashboards.site import Site
from tests.dashboards.test_pages import hostile_view
from tests.dashboards.watched import Watched, watched_page

THREE = (
    row(run_id="bad", name="llama-bad"),
    row(run_id="meh", name="qwen-meh", health="warning"),
    healthy_row(run_id="good", name="gemma-good"),
)


def open_overview(watched: Watched, site: Site, query: str = "") -> Page:
    page = watched.page
    page.goto(site.url + "/" + query)
    expect(page.locator("#live-word")).to_have_text("Live")
    return page


def shown(page: Page) -> list[str]:
    names: list[str] = page.locator("#rows tr:visible .name").all_inner_texts()
    return names


def test_worst_first_with_headline_cards_and_remedy(watched: Watched, site: Site) -> None:
    site.runs = lambda: runs_view(*reversed(THREE))
    page = open_overview(watched, site)
    expect(page.locator("h1")).to_have_text("1 run needs you now, 1 should be looked at")
    assert shown(page) == ["llama-bad", "qwen-meh", "gemma-good"]
    card = page.locator(".attn .card").first
    expect(card).to_contain_text("Roll back to a checkpoint at or before step 299.")
    assert card.locator("svg.big .sp-after").count() == 1
    assert page.title().startswith("\u25b2 1 run needs you now")


def test_filters_and_search_are_in_the_address(watched: Watched, site: Site) -> None:
    site.runs = lambda: runs_view(*THREE)
    page = open_overview(watched, site)
    page.get_by_role("button", name="Healthy").click()
    page.wait_for_url("**health=healthy")
    assert shown(page) == ["gemma-good"]
    page.goto(page.url)
    expect(page.locator("#rows tr:visible")).to_have_count(1)
    page.get_by_role("button", name="All", exact=False).first.click()
    page.keyboard.press("/")
    page.keyboard.type("qwen")
    expect(page.locator("#rows tr:visible")).to_have_count(1)
    assert "q=qwen" in page.url
    page.keyboard.type("zzz")
    expect(page.get_by_text("No run matches.")).to_be_visible()
    page.get_by_role("button", name="Clear the filter").click()
    expect(page.locator("#rows tr:visible")).to_have_count(3)


def test_the_keyboard_moves_through_the_runs_and_opens_one(watched: Watched, site: Site) -> None:
    page = open_overview(watched, site)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/k3f9q2?at=300")


def test_a_row_changes_live(watched: Watched, site: Site) -> None:
    rows = list(THREE)
    site.runs = lambda: runs_view(*rows)
    page = open_overview(watched, site)
    page.evaluate("window.sameDocument = true")
    rows[2] = replace(rows[2], last_step=999)
    site.publish("tick", run="good", rank=0, step=999, time=0.0)
    expect(page.locator('tr[data-run="good"] .c-step')).to_contain_text("999")
    assert page.evaluate("window.sameDocument") is True


def test_rows_do_not_jump_under_the_pointer(watched: Watched, site: Site) -> None:
    rows = list(THREE)
    site.runs = lambda: runs_view(*rows)
    page = open_overview(watched, site)
    page.locator('tr[data-run="good"]').hover()
    rows[2] = row(run_id="good", name="gemma-good", last_seen=sample.NOW)
    site.publish("verdict", run="good", status="critical", findings=1)
    expect(page.locator("#reorder")).to_be_visible()
    expect(page.locator('tr[data-run="good"] .chip')).to_have_text("Critical")
    assert shown(page) == ["llama-bad", "qwen-meh", "gemma-good"]
    page.locator("#reorder").click()
    page.wait_for_function("() => document.querySelector('#rows tr').dataset.run === 'good'")


def test_the_first_run_replaces_the_empty_page_by_itself(watched: Watched, site: Site) -> None:
    rows: list[Any] = []
    site.runs = lambda: runs_view(*rows)
    page = open_overview(watched, site)
    expect(page.get_by_text("Watch your first run")).to_be_visible()
    expect(page.locator("#origin")).to_have_text(site.url)
    rows.append(healthy_row())
    site.publish("run", run="c0ffee", status="running")
    expect(page.locator("#rows tr")).to_have_count(1)


def test_names_with_markup_are_shown_and_never_run(watched: Watched, site: Site) -> None:
    hostile_site(site)
    hostile = hostile_view()
    site.runs = lambda: runs_view(hostile.row)
    page = open_overview(watched, site)
    expect(page.locator(".runs .name")).to_contain_text("<script>window.stolen=1</script>")
    page.goto(site.url + "/runs/x")
    page.locator("#loss .main-svg").first.wait_for()
    expect(page.locator("h1")).to_contain_text("<script>")
    expect(page.locator("#verdict-h")).to_contain_text(HOSTILE)
    page.goto(site.url + "/login?next=" + "%22%3E%3Cscript%3Ewindow.stolen=3%3C/script%3E")
    assert page.evaluate("window.stolen") is None


def hostile_site(site: Site) -> None:
    hostile = hostile_view()
    views: dict[str, RunView | None] = {"k3f9q2": site.run("k3f9q2"), "x": hostile}
    site.run = lambda run: views.get(run)
    site.runs = lambda: runs_view(hostile.row, *THREE)
    curves = sample.faulty_curves()
    site.curves = lambda run: curves


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1024])
def test_no_page_is_wider_than_the_screen(browser: Browser, site: Site, width: int, theme: Any) -> None:
    hostile_site(site)
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=theme)
    with watched_page(context, site.url) as watched:
        watched.expected.append("404")
        for path in ("/", "/runs/k3f9q2", "/runs/x", "/login", "/nothing"):
            watched.page.goto(site.url + path)
            if path.startswith("/runs/"):
                watched.page.locator("#loss .main-svg").first.wait_for()
                watched.page.locator("#heat .main-svg").first.wait_for()
            assert watched.page.evaluate("document.documentElement.scrollWidth") <= width, path
            small = watched.page.evaluate(
                "[...document.querySelectorAll('main *')]"
                ".filter((e) => !e.closest('svg') && e.offsetParent && e.textContent.trim())"
                ".filter((e) => parseFloat(getComputedStyle(e).fontSize) < 11).map((e) => e.className)"
            )
            assert small == [], path
    context.close()


def test_without_scripts_verdict_and_numbers_are_there_and_dead_controls_are_not(
    browser: Browser, site: Site
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(site.url + "/runs/k3f9q2")
    expect(page.get_by_text("Activations of blocks.8.mlp.fc2 clip").first).to_be_visible()
    expect(page.get_by_text("Float8CurrentScaling()")).to_be_visible()
    expect(page.locator(".kpi").first).to_be_visible()
    expect(page.locator(".ghost svg")).to_be_visible()
    expect(page.get_by_text("The charts need JavaScript")).to_be_visible()
    for control in page.locator(".needs-js").all():
        assert control.is_hidden()
    page.goto(site.url + "/")
    expect(page.locator("#rows tr")).to_have_count(2)
    context.close()


def test_the_token_can_be_looked_at_before_it_is_sent(watched: Watched, site: Site) -> None:
    page = watched.page
    page.goto(site.url + "/login?next=/runs/x")
    field = page.locator("#token")
    assert field.get_attribute("type") == "password"
    page.get_by_role("button", name="Show").click()
    assert field.get_attribute("type") == "text"
    assert page.locator('input[name="next"]').get_attribute("value") == "/runs/x"
