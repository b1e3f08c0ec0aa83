"""The overview in a real Chromium: 1,000 runs of a real server with filters, pages, selection and keys; rows
that stay fresh without jumping.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from floatscope_dashboards.views import RunRow
from tests.dashboards import sample
from tests.dashboards.axe import violations
from tests.dashboards.faulty_log import description, steps
from tests.dashboards.many_runs import copies
from tests.dashboards.real_server import TOKEN, RealServer
from tests.dashboards.sample import healthy_row, row, runs_view
from tests.dashboards.site import Site
from tests.dashboards.watched import Watched, watched_page

RUNS = 1000
FCP_MS, LOADED_MS, SLOW_MS = 5_000, 10_000, 15_000  # many times what it takes where nothing else runs
THREE = (
    row(run_id="bad", name="llama-bad"),
    row(run_id="meh", name="qwen-meh", health="warning"),
    healthy_row(run_id="good", name="gemma-good"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """1,002 runs: two that were sent, and copies of them."""
    found = RealServer(tmp_path_factory.mktemp("server"))
    found.start()
    for run, rows in (("base", steps(faulty=False)), ("faulty", steps())):
        found.call("POST", "/api/v1/runs", {"run_id": run, **description(), "config": {"steps": 400}})
        for seq in range(2):
            found.send(run, seq, rows[10 * seq : 10 * seq + 10])
    copies(found.folder / "data" / "floatscope.db", RUNS)
    yield found
    found.kill()


def names(page: Page) -> list[str]:
    found: list[str] = page.locator("#runs tr[data-run] .name").all_inner_texts()
    return found


def asked(page: Page) -> dict[str, str]:
    return {key: values[0] for key, values in parse_qs(urlsplit(page.url).query).items()}


def times(page: Page, url: str) -> tuple[float, float]:
    """Milliseconds to the first text and to the whole page."""
    page.goto(f"{url}/")
    painted, loaded = page.evaluate(
        """() => new Promise((resolve) => new PerformanceObserver((list) => resolve([
            list.getEntriesByName('first-contentful-paint')[0].startTime,
            performance.getEntriesByType('navigation')[0].loadEventEnd,
        ])).observe({ type: 'paint', buffered: true }))"""
    )
    return painted, loaded


def clean(page: Page) -> None:
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        assert violations(page) == [], theme
    page.emulate_media(color_scheme="light")


def test_a_thousand_runs_are_filtered_paged_selected_and_compared(
    browser: Browser, server: RealServer
) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    with watched_page(context, server.url) as watched:
        page = watched.page
        page.goto(f"{server.url}/?token={TOKEN}")
        paints, loads = zip(*(times(page, server.url) for _ in range(2)), strict=True)
        assert min(paints) < FCP_MS
        assert min(loads) < LOADED_MS
        expect(page.locator("#shown")).to_have_text("1 to 100 of 752 runs")
        expect(page.locator("h1")).to_contain_text("25 runs need you now")
        expect(page.locator(".attn .card")).to_have_count(3)
        expect(page.get_by_text("250 runs that ended are hidden.")).to_be_visible()
        assert len(names(page)) == 100
        page.evaluate("window.sameDocument = true")

        page.get_by_role("link", name="Show 100 more runs").click()
        expect(page.locator("#shown")).to_have_text("101 to 200 of 752 runs", timeout=SLOW_MS)
        page.locator(".filters").get_by_role("link", name="Critical").click()
        expect(page.locator("#shown")).to_have_text("25 runs", timeout=SLOW_MS)
        assert asked(page) == {"health": "critical"}
        page.keyboard.press("f")
        page.keyboard.type("sft r001")
        expect(page.locator("#none")).to_contain_text("No run matches sft r001.", timeout=SLOW_MS)
        assert asked(page) == {"health": "critical", "q": "sft r001"}
        expect(page.locator("#q")).to_be_focused()
        page.get_by_role("link", name="Clear the filter").click()
        expect(page.locator("#shown")).to_have_text("1 to 100 of 752 runs")
        page.go_back()
        expect(page.locator("#none")).to_be_visible()
        page.goto(f"{server.url}/?status=all&q=moe%20r0001&sort=name&page=nonsense&unknown=1")
        assert names(page) == ["llama-3b-e4m3-r00017", "llama-6b-e4m3-r00013"]
        page.evaluate("window.sameDocument = true")
        page.locator("th.c-run a").click()
        expect(page.locator("th.c-run")).to_have_attribute("aria-sort", "descending", timeout=SLOW_MS)
        expect(page.locator("#runs .name").first).to_have_text("llama-6b-e4m3-r00013")
        page.get_by_role("link", name="Group by project").click()
        expect(page.locator("#runs .grp")).to_have_text(
            ["moe 2 runs Warming up 1 Healthy 1"], timeout=SLOW_MS
        )

        for _ in range(2):
            page.keyboard.press("j")
            page.keyboard.press("x")
        assert asked(page)["sel"] == "copy-00013,copy-00017"
        expect(page.locator("#runs tr.sel")).to_have_count(2)
        assert page.evaluate("window.sameDocument") is True
        page.goto(page.url)
        expect(page.locator("#compare")).to_have_text("Compare 2")
        clean(page)
        watched.expected.append("404")
        page.keyboard.press("c")
        page.wait_for_url("**/compare?run=copy-00013&baseline=copy-00017")
    context.close()


def test_columns_names_with_markup_and_a_phone(browser: Browser, server: RealServer) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    with watched_page(context, server.url) as watched:
        page = watched.page
        page.goto(f"{server.url}/?token={TOKEN}")
        page.goto(f"{server.url}/?project=%3Cb%3Esft%3C/b%3E&q=r0001")
        expect(page.locator(".only")).to_contain_text("Only project <b>sft</b>.")
        expect(page.locator("#runs .sub2").first).to_contain_text("<b>sft</b>")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        clean(page)
        page.set_viewport_size({"width": 1440, "height": 900})
        expect(page.locator("td.c-rate").first).to_be_visible()
        page.locator(".columns summary").click()
        page.get_by_label("Tokens/s").click()
        expect(page.locator("td.c-rate").first).to_be_hidden()
        clean(page)
        page.keyboard.press("Escape")
        expect(page.locator(".columns .pop")).to_be_hidden()
        page.goto(f"{server.url}/?project=none")
        expect(page.get_by_role("heading", name="No run in project none")).to_be_visible()
        page.goto(f"{server.url}/")
        expect(page.locator("td.c-rate").first).to_be_hidden()
    context.close()


# ---- rows that stay fresh


def open_overview(watched: Watched, site: Site) -> Page:
    page = watched.page
    page.goto(site.url + "/")
    expect(page.locator("#live-word")).to_have_text("Live")
    return page


def test_rows_change_come_and_go_live(watched: Watched, site: Site) -> None:
    rows = list(THREE)
    site.runs = lambda: runs_view(*rows)
    page = open_overview(watched, site)
    page.evaluate("window.sameDocument = true")
    rows[2] = replace(rows[2], last_step=999)
    rows.insert(0, row(run_id="new", name="new-run"))
    del rows[1]
    site.publish("run", run="new", status="running")
    expect(page.locator("#runs .name")).to_have_text(["new-run", "qwen-meh", "gemma-good"])
    expect(page.locator('tr[data-run="good"] .c-step')).to_contain_text("999")
    assert page.evaluate("window.sameDocument") is True


def test_rows_do_not_jump_under_the_pointer(watched: Watched, site: Site) -> None:
    rows: list[RunRow] = list(THREE)
    site.runs = lambda: runs_view(*rows)
    page = open_overview(watched, site)
    page.locator('tr[data-run="good"]').hover()
    page.locator('tr[data-run="good"] [data-select]').check()
    rows[:] = [row(run_id="good", name="gemma-good", last_seen=sample.NOW), *THREE[:2]]
    site.publish("verdict", run="good", status="critical", findings=1)
    expect(page.locator("#reorder")).to_have_text("1 row changed order")
    expect(page.locator('tr[data-run="good"] .chip')).to_have_text("Critical")
    expect(page.locator('tr[data-run="good"] [data-select]')).to_be_focused()
    assert names(page) == ["llama-bad", "qwen-meh", "gemma-good"]
    page.locator("#reorder").click()
    expect(page.locator("#runs .name")).to_have_text(["gemma-good", "llama-bad", "qwen-meh"])
    expect(page.locator("#runs tr.sel .name")).to_have_text(["gemma-good"])
    expect(page.locator("#reorder")).to_be_hidden()


def test_many_events_are_few_requests(watched: Watched, site: Site) -> None:
    site.runs = lambda: runs_view(*THREE)
    page = open_overview(watched, site)
    for step in range(200):
        site.publish("verdict" if step % 2 else "tick", run="good", rank=0, step=step, time=0.0)
    page.wait_for_timeout(2_500)
    read = [path for path, _query in site.requests if path == "/"]
    assert len(read) == 2


def test_the_line_that_waits_leads_to_the_first_run(watched: Watched, site: Site) -> None:
    rows: list[Any] = []
    site.runs = lambda: runs_view(*rows)
    page = open_overview(watched, site)
    expect(page.get_by_text("Watch your first run")).to_be_visible()
    rows.append(healthy_row())
    site.publish("run", run="c0ffee", status="running")
    expect(page.locator("#waiting")).to_contain_text("The first run is here.")
    expect(page.get_by_text("Watch your first run")).to_be_visible()  # who reads on is not interrupted
    page.locator("#waiting").get_by_role("link", name="All runs").click()
    expect(page.locator("#runs tr[data-run]")).to_have_count(1)


def test_the_keyboard_moves_through_the_runs_and_opens_one(watched: Watched, site: Site) -> None:
    page = open_overview(watched, site)
    for key in ("j", "j", "k", "Enter"):
        page.keyboard.press(key)
    page.wait_for_url("**/runs/k3f9q2?at=300")
