"""The alerts page in a real browser on the real server, with real alerts of faulty runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, ViewportSize, expect

from tests.dashboards.axe import violations
from tests.dashboards.faulty_log import STEPS, description, steps
from tests.dashboards.real_server import TOKEN, RealServer
from tests.dashboards.sample import HOSTILE
from tests.dashboards.watched import Watched, watched_page

BATCH_STEPS = 65
ACTIONS = "**/api/v1/alerts/actions"

ROWS = steps()
PHONE: ViewportSize = {"width": 390, "height": 844}
ARABIC = "\u062a\u062f\u0631\u064a\u0628"


def feed(server: RealServer, run: str, **changes: Any) -> dict[str, Any]:
    """A run with one fault; returns its alert."""
    server.call("POST", "/api/v1/runs", {"run_id": run, **description(), **changes})
    for seq, start in enumerate(range(0, STEPS, BATCH_STEPS)):
        server.send(run, seq, ROWS[start : start + BATCH_STEPS])
    return alert_of(server, run)


def alert_of(server: RealServer, run: str) -> dict[str, Any]:
    (found,) = server.call("GET", f"/api/v1/alerts?run={run}", {})["items"]
    alert: dict[str, Any] = found
    return alert


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    found = RealServer(tmp_path_factory.mktemp("alerts"))
    found.start()
    feed(found, "one")
    feed(found, "two", name=f"{ARABIC} {'n' * 1000}")
    feed(found, "three", name="third")
    yield found
    found.kill()


@pytest.fixture
def watched(browser: Browser, server: RealServer) -> Iterator[Watched]:
    """A page that is signed in, with every alert firing."""
    for run in ("one", "two", "three"):
        alert = alert_of(server, run)
        if alert["state"] != "firing":
            server.call("PATCH", f"/api/v1/alerts/{alert['id']}", {"action": "reopen"})
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    with watched_page(context, server.url) as found:
        sign_in(found.page, server)
        yield found
        assert found.page.evaluate("window.stolen") is None
    context.close()


@pytest.fixture
def page(watched: Watched) -> Page:
    return watched.page


def sign_in(page: Page, server: RealServer) -> None:
    page.goto(f"{server.url}/?token={TOKEN}")


def rows(page: Page, section: str = "firing") -> Any:
    return page.locator(f'[data-section="{section}"] li[data-key]')


def state(server: RealServer, run: str) -> str:
    return str(alert_of(server, run)["state"])


def notice(page: Page) -> Any:
    return page.locator(".notice.status")


def test_keyboard_only(page: Page, server: RealServer) -> None:
    page.goto(server.url + "/alerts")
    expect(page.locator("h1")).to_have_text("3 incidents need someone")
    expect(page).to_have_title(re.compile("^▲ 3 incidents need someone"))
    for key in "jjkj":
        page.keyboard.press(key)
    expect(rows(page).nth(1).locator(".t")).to_be_focused()
    page.keyboard.press("a")
    expect(notice(page)).to_contain_text("Acknowledged 1 alert")
    expect(page.locator("h1")).to_have_text("2 incidents need someone, 1 in hand")
    expect(rows(page, "acknowledged").locator(".who")).to_have_text("environment")
    expect(rows(page).nth(1).locator(".t")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#dt")).to_be_focused()
    assert page.url.startswith(server.url + "/alerts/")
    first = page.url
    page.keyboard.press("p")
    page.wait_for_function("before => location.href !== before", arg=first)
    page.keyboard.press("Escape")  # also before what p opened has come
    page.wait_for_url(server.url + "/alerts")
    expect(rows(page).first.locator(".t")).to_be_focused()
    page.keyboard.press("x")
    expect(page.locator("#bulk")).to_contain_text("1 selected")
    page.keyboard.press("Escape")
    expect(page.locator("#bulk")).to_be_hidden()
    notice(page).get_by_role("button", name="Undo").click()
    expect(page.locator("h1")).to_have_text("3 incidents need someone")
    assert {state(server, run) for run in ("one", "two", "three")} == {"firing"}
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Acknowledge the incident")


def test_filters_bulk_and_history_are_in_the_address(watched: Watched, server: RealServer) -> None:
    page, watched.expected = watched.page, ["status of 503"]
    page.goto(server.url + "/alerts")
    page.locator("#filter-run").select_option("three")
    page.wait_for_url("**/alerts?run=three")
    expect(rows(page)).to_have_count(1)
    page.get_by_role("link", name="Clear filters").click()
    expect(rows(page)).to_have_count(3)
    page.go_back()
    expect(rows(page)).to_have_count(1)
    page.go_forward()
    expect(rows(page)).to_have_count(3)
    page.locator("#pick-all").click()  # gives way to the bar with what can be done
    expect(page.locator("#bulk-count")).to_have_text("3 selected")
    page.route(ACTIONS, lambda route: route.fulfill(status=503, json={"detail": "the database is away"}))
    page.locator('[data-bulk="resolve"]').click()
    refused = page.locator(".notice.alert")
    expect(refused).to_contain_text("3 alerts were not changed: the server answered 503")
    expect(page.locator("#bulk-count")).to_have_text("3 selected")
    page.unroute(ACTIONS)
    gone = alert_of(server, "two")["id"]

    def without_one(route: Route) -> None:
        route.continue_(post_data=(route.request.post_data or "").replace(gone, "gone"))

    page.route(ACTIONS, without_one)
    page.locator('[data-bulk="resolve"]').click()
    expect(refused).to_contain_text("1 alert was not changed: there is no such alert")
    expect(notice(page)).to_contain_text("Resolved 2 alerts")
    expect(rows(page, "resolved")).to_have_count(2)
    page.unroute(ACTIONS)
    notice(page).get_by_role("button", name="Undo").click()
    expect(rows(page)).to_have_count(3)
    page.locator("#filter-state-firing").uncheck()
    page.wait_for_url("**state=acknowledged,recovered,silenced,resolved")
    expect(page.locator("#list")).to_contain_text("No incident matches these filters")
    page.reload()
    expect(page.locator("#filter-state-firing")).not_to_be_checked()


def test_a_link_opens_one_alert_and_does_nothing_before_somebody_does(page: Page, server: RealServer) -> None:
    alert = alert_of(server, "one")
    page.goto(f"{server.url}/alerts/{alert['id']}")
    detail = page.locator("#detail")
    expect(detail).to_contain_text(alert["tensor"].split("/")[0])
    expect(detail.get_by_role("link", name=HOSTILE)).to_have_attribute(
        "href", f"/runs/one?at={alert['onset_step']}"
    )
    assert state(server, "one") == "firing"
    assert violations(page) == []
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert violations(page, "#detail") == []
    detail.get_by_role("button", name="Acknowledge...").click()
    asked = page.get_by_role("dialog", name="Acknowledge 1 alert")
    asked.get_by_label("Note").fill(f"{HOSTILE}\nrolling back")
    asked.get_by_label("Hold those messages back too").select_option("4")
    asked.get_by_role("button", name="Acknowledge").click()
    expect(detail.locator(".dtop")).to_contain_text("Acknowledged")
    expect(detail).to_contain_text("Acknowledged by environment")
    expect(detail).to_contain_text("no messages until")
    expect(detail.locator(".anote .text")).to_have_text(f"{HOSTILE}\nrolling back")
    detail.get_by_role("button", name="Let messages out").click()
    expect(detail).not_to_contain_text("no messages until")
    detail.get_by_label("Add a note").fill("second note")
    detail.get_by_role("button", name="Add", exact=True).click()
    expect(detail.locator(".anote")).to_have_count(3)
    detail.get_by_role("button", name="Not the cause...").click()
    page.get_by_role("dialog", name="Not the cause").get_by_role("button", name="Not the cause").click()
    expect(detail).to_contain_text("Not the cause, says environment")
    assert state(server, "one") == "resolved"
    detail.get_by_role("button", name="Reopen").click()
    expect(detail.locator(".dtop")).to_contain_text("Firing")
    assert state(server, "one") == "firing"


def test_a_silence_from_the_detail_is_told_and_undone(page: Page, server: RealServer) -> None:
    page.goto(f"{server.url}/alerts/{alert_of(server, 'three')['id']}")
    page.locator("#detail").get_by_role("button", name="Silence...").click()
    asked = page.get_by_role("dialog", name="New silence")
    expect(asked.get_by_label("Runs")).to_have_value("run:three")
    expect(asked.get_by_label("Findings")).to_have_value("cause:scale_state_fault")
    asked.get_by_label("Critical alerts too").check()
    asked.get_by_role("button", name="Silence").click()
    expect(page.locator("#detail .dtop")).to_contain_text("Silenced")
    expect(rows(page, "silenced")).to_have_count(1)
    notice(page).get_by_role("button", name="Undo").click()
    expect(page.locator("#detail .dtop")).to_contain_text("Firing")


def test_what_comes_in_waits_above_the_list_and_what_others_do_appears(
    watched: Watched, server: RealServer
) -> None:
    page, watched.expected = watched.page, ["status of 404"]
    page.goto(server.url + "/alerts")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    rows(page).nth(1).hover()
    before = rows(page).evaluate_all("rows => rows.map((row) => row.dataset.key)")
    server.call("PATCH", f"/api/v1/alerts/{alert_of(server, 'three')['id']}", {"action": "acknowledge"})
    row = page.locator('li[data-run="three"]')
    expect(row.locator(".st")).to_contain_text("Acknowledged")
    expect(page.locator("#news")).to_contain_text("place in the list")
    assert rows(page).evaluate_all("rows => rows.map((row) => row.dataset.key)") == before
    feed(server, "fourth", name="newcomer")
    expect(page.locator("#news")).to_contain_text("1 new incident since you opened this page")
    expect(page.locator("#news")).to_contain_text("newcomer")
    assert rows(page).evaluate_all("rows => rows.map((row) => row.dataset.key)") == before
    page.locator("#news").get_by_role("button", name="Show it").click()
    expect(page.locator('li[data-run="fourth"] .t')).to_be_focused()
    expect(page.locator("#news")).to_be_empty()
    expect(rows(page)).to_have_count(3)
    opened = f"{server.url}/alerts/{alert_of(server, 'fourth')['id']}"
    page.goto(opened)
    server.call("DELETE", "/api/v1/runs/fourth", {})
    server.call("PATCH", f"/api/v1/alerts/{alert_of(server, 'three')['id']}", {"action": "reopen"})
    expect(page.locator("#refused")).to_contain_text("no longer exists")


def test_on_a_phone_the_detail_covers_the_page_and_keeps_the_focus(
    browser: Browser, server: RealServer
) -> None:
    context = browser.new_context(viewport=PHONE, color_scheme="dark", has_touch=True)
    with watched_page(context, server.url) as watched:
        page = watched.page
        sign_in(page, server)
        page.goto(server.url + "/alerts")
        assert_fits(page)
        assert violations(page) == []
        expect(page.locator("#rail")).not_to_have_attribute("open", "")
        page.locator('li[data-run="two"] .t').tap()
        detail = page.locator("#detail:modal")
        expect(detail).to_be_visible()
        expect(page.locator("#dt")).to_be_focused()
        for _ in range(30):
            page.keyboard.press("Tab")
            assert page.evaluate(
                "document.activeElement === document.body || !!document.activeElement.closest('#detail')"
            )
        assert_fits(page)
        assert violations(page, "#detail") == []
        page.keyboard.press("Escape")
        page.wait_for_url(server.url + "/alerts")
        expect(detail).to_be_hidden()
        expect(page.locator('li[data-run="two"] .t')).to_be_focused()
        page.set_viewport_size({"width": 1440, "height": 900})
        page.go_back()
        expect(page.locator("#detail")).to_be_visible()
        expect(page.locator("#detail:modal")).to_have_count(0)
    context.close()


def assert_fits(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.evaluate("(document.querySelector('#detail')?.scrollWidth ?? 0) <= innerWidth")


def test_without_scripts_everything_can_be_read(browser: Browser, server: RealServer) -> None:
    context = browser.new_context(java_script_enabled=False)
    token = {"Authorization": f"Bearer {TOKEN}"}
    context.set_extra_http_headers(token)
    page = context.new_page()
    page.goto(server.url + "/alerts?severity=critical")
    expect(rows(page).first).to_be_visible()
    page.locator("#filters").get_by_role("button", name="Show").click()
    assert "state=firing" in page.url
    rows(page).first.locator(".t").click()
    expect(page.locator("#dt")).to_be_visible()
    expect(page.locator("#detail")).to_contain_text("need JavaScript")
    context.close()
