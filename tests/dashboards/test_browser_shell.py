"""What every page has, in a real browser before a real server: search, keys, settings, sign-in, and what
happens when the session or the server goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.dashboards.axe import violations
from tests.dashboards.real_server import TOKEN, RealServer
from tests.dashboards.watched import Watched, watched_page

NASTY = '<img src=x onerror="document.title=1">'
TENSORS = {f"blocks.{i}.mlp.fc{j}/input": {"format": "e4m3"} for i in range(3) for j in (1, 2)}
NETWORK = [
    "ERR_CONNECTION_REFUSED",
    "ERR_INCOMPLETE_CHUNKED",
    "ERR_EMPTY_RESPONSE",
    "Failed to load resource",
]
OPTION = ".palette [role=option]"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server with three runs, one of them with a hostile name."""
    found = RealServer(tmp_path_factory.mktemp("shell"))
    found.start()
    for run_id, name in (("mini", "llama-mini"), ("nasty", NASTY), ("other", "other")):
        described = {"run_id": run_id, "name": name, "project": "p", "tensors": TENSORS}
        found.call("POST", "/api/v1/runs", described)
        stats = {name: {"amax": 1.0} for name in TENSORS}
        found.send(run_id, 0, [{"step": step, "loss": 2.0, "tensors": stats} for step in range(8)])
    yield found
    found.kill()


@pytest.fixture
def watched(browser: Browser, server: RealServer) -> Iterator[Watched]:
    """A page in a browser that is signed in."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, timezone_id="Asia/Shanghai")
    with watched_page(context, server.url) as found:
        found.page.goto(f"{server.url}/settings?token={TOKEN}")
        yield found
    context.close()


def field(page: Page, words: str | None = None) -> None:
    """Opens the search by its key and types."""
    page.locator("main").focus()
    page.keyboard.press("/")
    expect(page.get_by_role("combobox", name="Search runs")).to_be_focused()
    if words is not None:
        page.keyboard.type(words)


def test_search_by_keyboard_finds_runs_tensors_and_pages(watched: Watched, server: RealServer) -> None:
    page = watched.page
    field(page)
    options = page.locator(OPTION)
    expect(options.first).to_contain_text("other")  # the newest run
    assert violations(page) == []
    page.keyboard.type("fc2 bl")
    group = page.get_by_role("group", name="Tensors")
    expect(group.get_by_role("option").first).to_contain_text("blocks.0.mlp.fc2/input")
    assert group.locator("mark").first.inner_text() == "bl"
    expect(page.get_by_role("group", name="Runs")).to_have_count(0)
    chosen = page.locator(OPTION + "[aria-selected=true]")
    first = chosen.inner_text()
    page.keyboard.press("ArrowDown")
    assert chosen.inner_text() != first
    assert page.get_by_role("combobox", name="Search runs").get_attribute("aria-activedescendant") == "pal-1"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")  # round to the last
    assert page.locator(OPTION).last.get_attribute("aria-selected") == "true"
    page.keyboard.press("Escape")
    expect(page.locator(".palette")).to_have_count(0)
    assert page.evaluate("document.activeElement.id") == "main"
    field(page, "onerror")
    expect(options.first).to_contain_text(NASTY)
    page.keyboard.press("Escape")
    field(page, "llama-m")
    expect(options).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_url(server.url + "/runs/mini")


def test_a_late_answer_is_dropped_and_enter_waits_for_the_right_one(
    watched: Watched, server: RealServer
) -> None:
    page = watched.page

    def late(route: Route) -> None:
        page.wait_for_timeout(700)
        route.continue_()

    page.route("**/api/v1/search?q=mi*", late)
    field(page, "mi")
    page.wait_for_timeout(250)
    page.get_by_role("combobox", name="Search runs").fill("other")
    page.keyboard.press("Enter")
    page.wait_for_url(server.url + "/runs/other")


def test_actions_of_the_search_and_nothing_found(watched: Watched, server: RealServer) -> None:
    page = watched.page
    field(page, "zzzz")
    expect(page.locator(".pal-status")).to_contain_text("Nothing matches")
    page.keyboard.press("Escape")
    field(page, "dark theme")
    expect(page.locator(OPTION)).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert violations(page) == []
    field(page, "go to rules")
    page.keyboard.press("Enter")
    page.wait_for_url(server.url + "/rules")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.wait_for_url(server.url + "/settings")


def test_keys_have_a_help_and_can_be_switched_off(watched: Watched) -> None:
    page = watched.page
    page.keyboard.press("?")
    help_ = page.get_by_role("dialog", name="Keys")
    expect(help_).to_contain_text("Go to runs")
    assert violations(page) == []
    for _ in range(3):  # the focus stays inside, or in the browser's own bars
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.matches('body, dialog *')")
    page.keyboard.press("Escape")
    expect(help_).to_have_count(0)
    page.get_by_role("switch", name="Single keys").uncheck()
    expect(page.locator(".notice.status")).to_contain_text("Remembered")
    page.locator("main").focus()
    page.keyboard.press("?")
    page.keyboard.press("t")
    page.keyboard.press("/")
    page.wait_for_timeout(300)
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.evaluate("document.documentElement.dataset.theme") is None
    page.get_by_role("button", name="Search runs").click()  # the button goes on working
    expect(page.locator(".palette")).to_be_visible()
    page.keyboard.press("Escape")
    page.reload()
    switch = page.get_by_role("switch", name="Single keys")
    expect(switch).not_to_be_checked()
    switch.check()
    page.locator("main").focus()
    page.keyboard.press("?")
    expect(help_).to_be_visible()


def test_language_times_and_theme_are_chosen_for_this_browser(watched: Watched, server: RealServer) -> None:
    page = watched.page
    page.get_by_label("Times").select_option("utc")
    page.goto(server.url + "/compare")
    expect(page.locator("#live-word time")).to_have_text(re.compile(r"^\d\d:\d\d UTC$"))
    page.goto(server.url + "/settings")
    page.get_by_label("Theme", exact=True).select_option("dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.get_by_label("Language").select_option("zh-CN")
    page.wait_for_function("document.documentElement.lang === 'zh-CN'")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.goto(server.url + "/")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"


def test_a_token_is_made_shown_once_and_ended(watched: Watched, server: RealServer, browser: Browser) -> None:
    page = watched.page
    watched.expected += ["401", "Failed to load resource"]
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog", name="New token")
    assert violations(page) == []
    dialog.get_by_label("Name").fill(NASTY)
    dialog.get_by_label(re.compile("^read")).uncheck()
    dialog.get_by_role("button", name="Make token").click()
    expect(dialog.get_by_role("alert")).to_have_text("Choose what it may do.")
    dialog.get_by_label(re.compile("^read")).check()
    dialog.get_by_label("Expires").select_option("30")
    dialog.get_by_role("button", name="Make token").click()
    expect(page.locator("#made")).to_be_visible()
    secret = page.locator("#made-token").inner_text()
    row = page.locator(".tok tbody tr").filter(has_text="onerror")
    expect(row).to_contain_text("read")
    assert violations(page) == []

    reader = browser.new_context()
    with watched_page(reader, server.url) as other:
        other.expected += ["401", "Failed to load resource"]
        other.page.goto(f"{server.url}/settings?token={secret}")
        expect(other.page.locator("#tokens")).to_contain_text("Your token has read")
        expect(other.page.get_by_role("button", name="New token")).to_have_count(0)
        page.get_by_role("button", name="Done").click()
        expect(page.locator("#made-token")).to_be_empty()
        row.get_by_role("button", name="End").click()
        page.get_by_role("dialog").get_by_role("button", name="End token").click()
        expect(page.locator(".notice.status")).to_contain_text("has ended")
        expect(page.get_by_text("1 that ended in the last 90 days")).to_be_visible()
        other.page.goto(server.url + "/settings")
        expect(other.page).to_have_url(re.compile("/login"))
    reader.close()


def test_what_a_closed_dialog_was_sending_is_still_told(watched: Watched) -> None:
    page = watched.page

    def late(route: Route) -> None:
        page.wait_for_timeout(600)
        route.continue_()

    page.route("**/api/v1/tokens", late)
    page.get_by_role("button", name="New token").click()
    page.get_by_role("dialog", name="New token").get_by_label("Name").fill("late")
    page.get_by_role("button", name="Make token").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="New token")).to_have_count(0)
    expect(page.locator("#made")).to_be_visible()
    expect(page.locator("#made-text")).to_contain_text("late was made")


def test_odd_addresses_stop_neither_search_nor_what_is_live(watched: Watched, server: RealServer) -> None:
    page = watched.page
    page.goto(server.url + "/rules#100%")
    expect(page.locator("#unknown")).to_contain_text("There is no rule 100%")
    expect(page.locator("#live-word")).to_have_text("Live")
    page.goto(server.url + "/compare?run=100%25")
    field(page, "llama-m")
    expect(page.locator(OPTION).first).to_contain_text("llama-mini")


def test_signing_out_in_one_tab_tells_the_other_which_comes_back_to_its_view(
    watched: Watched, server: RealServer
) -> None:
    watched.expected += NETWORK
    page = watched.page
    other = page.context.new_page()
    other.goto(server.url + "/settings?x=1#about")
    page.get_by_role("banner").get_by_role("button", name="Sign out").click()
    page.wait_for_url(re.compile("/login"))
    other.evaluate("import('/static/js/api.js').then(({ get }) => get('/api/v1/me')).catch(() => null)")
    strip = other.locator("#refused")
    expect(strip).to_contain_text("Your session has ended")
    assert violations(other) == []
    strip.get_by_role("link").click()
    other.get_by_label("Token").fill("fs_wrong")
    other.get_by_role("button", name="Sign in").click()
    expect(other.locator("#token-error")).to_contain_text("not valid")
    assert violations(other) == []
    other.get_by_label("Token").fill(TOKEN)
    other.get_by_role("button", name="Sign in").click()
    other.wait_for_url(server.url + "/settings?x=1#about")
    other.close()


def test_a_killed_server_is_said_and_after_it_is_back_nothing_is_lost(
    watched: Watched, server: RealServer
) -> None:
    watched.expected += NETWORK
    page = watched.page
    page.clock.install()
    page.goto(server.url + "/")
    word = page.locator("#live-word")
    expect(word).to_have_text("Live")
    page.evaluate("window.same = true")
    with page.expect_event("requestfailed", lambda request: "/api/v1/events" in request.url):
        server.kill()
    page.clock.fast_forward(12_000)
    expect(word).to_have_text("Reconnecting")
    page.clock.fast_forward(60_000)
    expect(word).to_have_text(re.compile(r"^Offline, data from \d\d:\d\d$"))
    page.keyboard.press("/")
    expect(page.locator(".pal-status, .notice.alert").first).to_contain_text(re.compile("server|cannot"))
    page.keyboard.press("Escape")
    server.start()
    server.call("POST", "/api/v1/runs", {"run_id": "after", "name": "after the restart", "project": "p"})
    page.clock.fast_forward(40_000)
    expect(word).to_have_text("Live")
    expect(page.locator("#overview")).to_contain_text("after the restart")
    assert page.evaluate("window.same") is True


def test_no_page_of_the_frame_is_wider_than_a_phone(browser: Browser, server: RealServer) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    with watched_page(context, server.url) as found:
        found.expected += ["404"]
        page = found.page
        page.goto(f"{server.url}/login")
        too_wide = "document.documentElement.scrollWidth > innerWidth"
        assert not page.evaluate(too_wide)
        assert violations(page) == []
        page.goto(f"{server.url}/settings?token={TOKEN}")
        for path in ("/settings", "/nothing", "/alerts/none", "/runs/none"):
            page.goto(server.url + path)
            assert not page.evaluate(too_wide), path
            assert violations(page) == [], path
        expect(page.get_by_role("heading", level=1)).to_have_text("There is no run none")
        page.get_by_role("button", name="Search runs").click()
        expect(page.locator(OPTION).first).to_be_visible()
        assert not page.evaluate(too_wide)
    context.close()


def test_the_first_start_says_how_to_begin_and_leads_to_the_first_run(
    browser: Browser, tmp_path: Path
) -> None:
    server = RealServer(tmp_path)
    server.start()
    context = browser.new_context(viewport={"width": 1100, "height": 900})
    try:
        with watched_page(context, server.url) as found:
            page = found.page
            page.goto(f"{server.url}/?token={TOKEN}")
            expect(page.get_by_role("heading", level=1)).to_have_text("Watch your first run")
            expect(page.locator("#shell-lines")).to_contain_text(f"FLOATSCOPE_URL={server.url}")
            assert violations(page) == []
            expect(page.locator("#live-word")).to_have_text("Live")
            server.call("POST", "/api/v1/runs", {"run_id": "first", "name": "my first run"})
            first = page.get_by_role("link", name="Open my first run")
            expect(first).to_be_visible()
            assert violations(page) == []
            first.click()
            page.wait_for_url(f"{server.url}/runs/first")
    finally:
        context.close()
        server.kill()
