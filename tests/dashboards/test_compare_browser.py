"""The comparison and the reports on the real server, in a real browser."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboards.axe import violations
from tests.dashboards.faulty_log import FAULTY, STEPS, description, steps
from tests.dashboards.real_server import TOKEN, RealServer
from tests.dashboards.watched import watched_page

BATCH = 65
LIVE_STEPS = 300


def losses(first: int, count: int, *, above: float, seed: int) -> list[dict[str, Any]]:
    """Rows of a run on common batches."""
    noise, common = random.Random(seed + first), random.Random(first)
    return [
        {
            "step": step,
            "loss": 2 + math.exp(-step / 60) + common.gauss(0, 0.2) + noise.gauss(0, 0.01) + above,
            "step_time_s": 0.5 - above + common.gauss(0, 0.001),
        }
        for step in range(first, first + count)
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    found = RealServer(tmp_path_factory.mktemp("server"))
    found.start()
    for name, above, config in (("live", 0.05, {"lr": 0.1}), ("base", 0.0, {"lr": 0.2})):
        found.call("POST", "/api/v1/runs", {"run_id": name, "name": name, "project": "p", "config": config})
        found.send(name, 0, losses(0, LIVE_STEPS, above=above, seed=int(100 * above)))
    for name, faulty in (("bad", True), ("good", False)):
        about = {"run_id": name, **description(), "config": {"lr": 0.1}}
        found.call("POST", "/api/v1/runs", about | ({"baseline": "good"} if faulty else {}))
        rows = steps(faulty=faulty)
        for seq, start in enumerate(range(0, STEPS, BATCH)):
            found.send(name, seq, rows[start : start + BATCH])
    found.call("POST", "/api/v1/runs/good/finish", {"status": "finished"})
    yield found
    found.kill()


def opened(page: Page, server: RealServer, path: str) -> None:
    page.goto(f"{server.url}/?token={TOKEN}")
    page.goto(server.url + path)


def curve(page: Page, meta: str) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(
        "(meta) => { const t = document.getElementById('difference').data.find((t) => t.meta === meta);"
        "return {x: t.x.length, last: t.x.filter((x) => x != null).at(-1)}; }",
        meta,
    )
    return found


def test_two_runs_are_compared_while_they_go_on(browser: Browser, server: RealServer) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    with watched_page(context, server.url) as watched:
        page = watched.page
        opened(page, server, "/compare")
        page.get_by_label("Look at live").check()
        page.get_by_label("Compare with base").check()
        assert violations(page) == []
        page.get_by_role("button", name="Compare", exact=True).click()
        expect(page).to_have_url(re.compile("baseline=base&run=live$"))
        page.locator("#difference .main-svg").first.wait_for()
        expect(page.locator("#decision-h")).to_contain_text("No go: the loss of live is above that of base")
        assert curve(page, "run")["last"] == LIVE_STEPS - 1
        assert curve(page, "band")["x"] > 20
        assert violations(page) == []
        expect(page.locator("#margin")).to_have_value("")
        page.locator("#margin").fill("0.2")
        page.evaluate("window.sameDocument = true")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("margin=0.2$"))
        loss = page.locator(".gates > div").first
        expect(loss).to_contain_text("limit 0.2")
        expect(page.locator("#decision-h")).not_to_contain_text("is above that of base")
        page.go_back()
        expect(page.locator("#decision-h")).to_contain_text("is above that of base")
        expect(page.locator("#margin")).to_have_value("")
        page.go_forward()
        expect(loss).to_contain_text("limit 0.2")
        expect(page.locator("#margin")).to_have_value("0.2")
        expect(page.get_by_role("link", name="Report", exact=True)).to_have_attribute(
            "href", re.compile("margin=0.2")
        )
        assert page.evaluate("window.sameDocument") is True
        page.evaluate("Plotly.relayout('difference', {'xaxis.range[0]': 50, 'xaxis.range[1]': 120})")
        expect(page).to_have_url(re.compile("shown=50-120$"))
        expect(page.locator("#whole")).to_be_visible()
        server.send("live", 1, losses(LIVE_STEPS, 40, above=0.05, seed=5))
        server.send("base", 1, losses(LIVE_STEPS, 40, above=0.0, seed=0))
        expect(page.locator('[data-part="facts"]')).to_contain_text("0 to 339", timeout=15_000)
        assert page.evaluate("document.getElementById('difference').layout.xaxis.range") == [50, 120]
        page.keyboard.press("Escape")
        page.wait_for_function(
            "() => document.getElementById('difference').data.find((t) => t.meta === 'run').x.includes(339)"
        )
        page.locator("#set-baseline").click()
        expect(page.get_by_text("base is the baseline now")).to_be_visible()
        expect(page.get_by_text("Is its baseline")).to_be_visible()
        assert server.call("PATCH", "/api/v1/runs/live", {})["baseline"] == "base"
        page.locator("#diff-tools .tools-open").click()
        page.locator('#diff-tools [data-tool="table"]').click()
        expect(page.get_by_role("columnheader", name="Difference, mean")).to_be_visible()
    context.close()


def test_hostile_names_in_the_dark_and_on_a_phone(browser: Browser, server: RealServer) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    with watched_page(context, server.url) as watched:
        page = watched.page
        opened(page, server, "/compare?run=bad&baseline=good&margin=x&what=ever")
        page.locator("#difference .main-svg").first.wait_for()
        expect(page.get_by_text("margin=x in the address cannot be used")).to_be_visible()
        expect(page.locator(".parted a").first).to_have_text(FAULTY)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("window.stolen") is None
        assert violations(page) == []
        page.goto(server.url + "/compare?run=bad")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        expect(page.locator("input[name=baseline]:checked")).to_have_value("good")
    context.close()


@pytest.mark.parametrize(
    "path", ["/runs/bad/report", "/runs/good/report", "/compare/report?run=bad&baseline=good"]
)
def test_a_report_is_one_page_that_asks_for_nothing(browser: Browser, server: RealServer, path: str) -> None:
    context = browser.new_context(viewport={"width": 1000, "height": 1200}, color_scheme="dark")
    with watched_page(context, server.url) as watched:
        page = watched.page
        page.goto(f"{server.url}/?token={TOKEN}")
        page.goto("about:blank")  # what that page still asks for is over
        asked: list[str] = []
        page.on("request", lambda request: asked.append(urlsplit(request.url).path))
        answer = page.goto(server.url + path)
        assert answer is not None
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert [place for place in asked if place != urlsplit(path).path and "," not in place] == []
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(245, 246, 248)"
        assert page.evaluate("window.stolen") is None
        pdf = page.pdf(prefer_css_page_size=True, print_background=True)
        assert len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf)) == 1
        with page.expect_download() as download:
            page.get_by_role("link", name="Save as one HTML file").click()
        assert download.value.suggested_filename.startswith("floatscope-")
    context.close()
