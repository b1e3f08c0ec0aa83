"""The loss chart and the verdict's actions on the real server: zoom, address, axis, files, acknowledging."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboards.axe import violations
from tests.dashboards.faulty_log import STEPS, description, steps
from tests.dashboards.real_server import TOKEN, RealServer
from tests.dashboards.watched import watched_page

BATCH_STEPS = 20
BEGIN = 1_790_000_000.0
NAN_STEP = STEPS - 3
RANGE = "() => document.getElementById('loss')._fullLayout.xaxis.range.map(Number)"


def rows() -> list[dict[str, Any]]:
    """The faulty log with times, tokens, and one loss that is not a number."""
    found = [{**row, "time": BEGIN + 60 * row["step"], "tokens": 1000} for row in steps()]
    found[NAN_STEP]["loss"] = "NaN"
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    found = RealServer(tmp_path_factory.mktemp("loss"))
    found.start()
    found.call("POST", "/api/v1/runs", {"run_id": "r1", **description()})
    all_rows = rows()
    for seq, start in enumerate(range(0, STEPS, BATCH_STEPS)):
        found.send("r1", seq, all_rows[start : start + BATCH_STEPS])
    yield found
    found.kill()


def ready(page: Page) -> None:
    page.wait_for_function("() => document.getElementById('loss')._fullLayout?.xaxis?.range")


def test_the_view_is_in_the_address_and_back_undoes_it(browser: Browser, server: RealServer) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, timezone_id="Asia/Shanghai")
    with watched_page(context, server.url) as watched:
        page = watched.page
        page.goto(server.url + f"/?token={TOKEN}")
        page.goto(server.url + "/runs/r1?from=20&to=80&log=1&half=5&at=oops&nonsense=1&x=bogus")
        ready(page)
        assert page.evaluate(RANGE) == [20, 80]
        assert page.evaluate("document.getElementById('loss')._fullLayout.yaxis.type") == "log"
        expect(page.locator("#half-words")).to_have_text("5 steps")
        page.get_by_role("button", name="Tokens").click()
        page.wait_for_url("**x=tokens**")
        page.wait_for_function("() => document.querySelector('#loss .xtick text')?.textContent.includes('k')")
        assert page.evaluate(RANGE) == [20, 80], "positions stay steps"
        page.get_by_role("button", name="Time", exact=True).click()
        page.wait_for_function(
            "() => document.querySelector('#loss .xtitle')?.textContent === 'Time, Asia/Shanghai'"
        )
        page.locator("#whole").click()
        page.wait_for_function("() => document.getElementById('loss')._fullLayout.xaxis.range[0] < 1")
        assert "from=" not in page.url
        page.go_back()
        page.wait_for_function("() => document.getElementById('loss')._fullLayout.xaxis.range[0] === 20")
        assert "x=time" in page.url
        assert violations(page) == []
    context.close()


def test_numbers_leave_as_they_are_shown(browser: Browser, server: RealServer, tmp_path: Path) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    with watched_page(context, server.url) as watched:
        page = watched.page
        page.goto(server.url + f"/?token={TOKEN}")
        page.goto(server.url + "/runs/r1")
        ready(page)
        tools = page.locator("#loss-tools")

        def saved(name: str) -> Path:
            tools.locator(".tools-open").click()
            with page.expect_download() as waiting:
                tools.locator(f"[data-tool={name}]").click()
            path = tmp_path / waiting.value.suggested_filename
            waiting.value.save_as(path)
            return path

        with saved("csv").open(newline="") as file:
            table = list(csv.DictReader(file))
        assert len(table) == STEPS
        assert [row["step"] for row in table] == [str(step) for step in range(STEPS)]
        broken, before = table[NAN_STEP], table[NAN_STEP - 1]
        assert (broken["loss mean"], broken["loss NaN"], broken["loss Inf"]) == ("NaN", "1", "0")
        assert float(before["loss mean"]) == pytest.approx(float(rows()[NAN_STEP - 1]["loss"]))
        assert saved("png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        tools.locator(".tools-open").click()
        tools.locator("[data-tool=table]").click()
        shown = page.locator(".tablebox table").first
        expect(shown.locator("tbody tr")).to_have_count(min(200, STEPS))
        expect(shown.locator("thead")).to_contain_text("loss mean")
        page.keyboard.press("Escape")
    context.close()


def test_a_finding_is_acknowledged_undone_and_rejected(browser: Browser, server: RealServer) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    with watched_page(context, server.url) as watched:
        page = watched.page
        page.goto(server.url + f"/?token={TOKEN}")
        page.goto(server.url + "/runs/r1")
        ready(page)
        page.locator("#act-acknowledge").click()
        page.get_by_role("dialog").locator("textarea").fill("rolling <b>back</b>")
        page.get_by_role("dialog").get_by_role("button", name="Acknowledge").click()
        expect(page.locator(".strip.acted")).to_contain_text("rolling <b>back</b>")
        page.get_by_role("button", name="Undo").click()
        expect(page.locator(".strip.acted")).to_have_count(0)
        page.locator("#act-not_the_cause").click()
        page.get_by_role("dialog").locator("textarea").fill("known test")
        page.get_by_role("dialog").get_by_role("button", name="Not the cause").click()
        expect(page.locator(".strip.acted")).to_contain_text("this is not the cause: known test")
        page.get_by_role("button", name="Undo").click()
        expect(page.locator(".strip.acted")).to_have_count(0)
        page.locator("#act-acknowledge").click()
        page.get_by_role("dialog").get_by_role("button", name="Acknowledge").click()
        expect(page.locator(".strip.acted")).to_contain_text("Acknowledged by")
        page.locator("#act-not_the_cause").click()
        page.get_by_role("dialog").locator("textarea").fill("known test")
        page.get_by_role("dialog").get_by_role("button", name="Not the cause").click()
        expect(page.locator(".strip.acted")).to_contain_text("this is not the cause")
        page.get_by_role("button", name="Undo").click()
        expect(page.locator(".strip.acted")).to_contain_text("Acknowledged by")  # as before, not firing
        page.locator("#act-reopen").click()
        expect(page.locator(".strip.acted")).to_have_count(0)
        page.locator("#act-not_the_cause").click()
        page.get_by_role("dialog").locator("textarea").fill("known test")
        page.get_by_role("dialog").get_by_role("button", name="Not the cause").click()
        page.locator("#act-reopen").click()
        expect(page.locator(".strip.acted")).to_have_count(0)
        page.get_by_role("button", name="Undo").click()  # of opening it again
        expect(page.locator(".strip.acted")).to_contain_text("this is not the cause")
        expect(page.locator("#events-h")).to_be_visible()
        expect(page.locator(".evlog").first).to_contain_text("says that it is not the cause")
    context.close()
