"""The dashboard on the real server: a faulty run comes in over HTTP while a browser looks at its page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboards.faulty_log import FAULT_STEP, FAULTY, STEPS, description, steps
from tests.dashboards.real_server import TOKEN, RealServer
from tests.dashboards.sample import HOSTILE
from tests.dashboards.watched import watched_page

BATCH_STEPS = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    found = RealServer(tmp_path_factory.mktemp("server"))
    found.start()
    found.call("POST", "/api/v1/runs", {"run_id": "base", **description()})
    rows = steps(faulty=False)
    for seq, start in enumerate(range(0, STEPS, BATCH_STEPS)):
        found.send("base", seq, rows[start : start + BATCH_STEPS])
    yield found
    found.kill()


def feed(server: RealServer, run: str, rows: list[dict[str, Any]], until: int) -> None:
    """Sends the batches up to step `until`, which were not sent before."""
    for start in range(0, until, BATCH_STEPS):
        server.send(run, start // BATCH_STEPS, rows[start : start + BATCH_STEPS])


def sign_in(page: Page, server: RealServer, path: str) -> None:
    page.goto(server.url + path)
    page.wait_for_url("**/login?next=*")
    page.locator("#token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#token-error")).to_be_visible()
    page.locator("#token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(server.url + path)


def charts(page: Page) -> None:
    for name in ("#loss", "#heat"):
        page.locator(f"{name} .main-svg").first.wait_for()


def test_a_fault_appears_live_and_survives_a_killed_server(browser: Browser, server: RealServer) -> None:
    rows = steps()
    server.call("POST", "/api/v1/runs", {"run_id": "faulty", "baseline": "base", **description()})
    feed(server, "faulty", rows, FAULT_STEP)
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    with watched_page(context, server.url) as watched:
        watched.expected.append("401")
        page = watched.page
        sign_in(page, server, "/runs/faulty")
        charts(page)
        expect(page.locator("#live-word")).to_have_text("Live")
        expect(page.locator("#verdict-h")).to_contain_text("No finding in 90 steps")
        page.evaluate("window.sameDocument = true")
        feed(server, "faulty", rows, FAULT_STEP + 20)
        expect(page.locator("#verdict-h")).to_contain_text(FAULTY)
        expect(page.locator(".facts .where").first).to_have_text(FAULTY)
        expect(page.locator("#loss").get_by_text(re.compile("Onset 9[0-2]"))).to_be_visible()
        expect(page.locator("#heat").get_by_text("began here")).to_be_visible()
        expect(page.locator("#last-step")).to_have_text("109")
        assert page.title().startswith("\u25b2")
        assert (
            page.evaluate(
                "() => document.getElementById('loss').data.find((t) => t.name === 'Baseline').x.length"
            )
            > 0
        )
        assert page.locator("#heat .heatmaplayer image").count() >= 1

        watched.expected += ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "Failed to load resource"]
        server.kill()
        expect(page.locator("#live-word")).to_have_text("Reconnecting", timeout=20_000)
        server.start()
        expect(page.locator("#live-word")).to_have_text("Live", timeout=40_000)  # tried ever less often
        feed(server, "faulty", rows, STEPS)
        expect(page.locator("#last-step")).to_have_text(str(STEPS - 1))
        expect(page.locator("#verdict-h")).to_contain_text(FAULTY)
        assert page.evaluate("window.sameDocument") is True, "the page was never loaded again"
        assert page.evaluate("window.stolen") is None

        page.goto(server.url + "/")
        expect(page.locator("#runs tr[data-run]")).to_have_count(2)
        expect(page.locator("#runs .name").first).to_have_text(HOSTILE)
        assert page.evaluate("window.stolen") is None
        page.goto(server.url + "/runs/nothing")
        expect(page.get_by_text("404").first).to_be_visible()
    context.close()
