"""What a page does when the server goes away, the session ends, or the run is deleted."""

from __future__ import annotations

import re
from dataclasses import replace

from playwright.sync_api import Page, expect

from tests.dashboards.sample import LAST
from tests.dashboards.site import Site
from tests.dashboards.test_browser_run import RUN, open_run
from tests.dashboards.watched import Watched

NETWORK = [
    "ERR_CONNECTION_REFUSED",
    "ERR_INCOMPLETE_CHUNKED",
    "Failed to load resource",
    "ERR_EMPTY_RESPONSE",
]


def pass_time(page: Page, until: str) -> None:
    """Lets the page's clock run, 4 s at a time, until the chip says so."""
    word = page.locator("#live-word")
    for _ in range(40):
        page.clock.fast_forward(4_000)
        if re.fullmatch(until, word.inner_text()):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"the chip says {word.inner_text()!r}, not {until}")


def test_a_restart_of_the_server_is_survived_and_nothing_is_lost(watched: Watched, site: Site) -> None:
    watched.expected += NETWORK
    watched.page.clock.install()
    page = open_run(watched, site)
    page.evaluate("window.sameDocument = true")
    site.stop()
    pass_time(page, "Reconnecting")
    pass_time(page, r"Offline, data from \d\d:\d\d")
    view = site.run("k3f9q2")
    assert view is not None
    newer = replace(view, row=replace(view.row, last_step=LAST + 80))
    site.run = {"k3f9q2": newer}.get
    site.restart()
    expect(page.locator("#live-word")).to_have_text("Live")
    expect(page.locator("#last-step")).to_have_text("499")
    assert page.evaluate("window.sameDocument") is True


def test_a_stream_that_falls_silent_is_noticed_and_opened_anew(watched: Watched, site: Site) -> None:
    page = watched.page
    page.clock.install()
    open_run(watched, site)
    site.silent = True
    pass_time(page, "Reconnecting")
    pass_time(page, r"Offline, data from \d\d:\d\d")
    site.silent = False
    pass_time(page, "Live")


def test_the_top_bar_counts_alerts_of_all_runs(watched: Watched, site: Site) -> None:
    page = open_run(watched, site)
    count = page.locator("#alerts-open")
    expect(count).to_be_hidden()
    before = len([path for path, _query in site.requests if path.startswith("/runs/")])
    site.firing = 12
    site.publish("alert", run="c0ffee", alert="a", state="firing")
    expect(count).to_have_text("12 firing")
    site.firing = 0
    site.publish("alert", run="c0ffee", alert="a", state="acknowledged")
    expect(count).to_be_hidden(timeout=10_000)
    assert len([path for path, _query in site.requests if path.startswith("/runs/")]) == before
    streams = [query for path, query in site.requests if path == "/api/v1/events"]
    assert streams[-1]["alerts"] == "all"


def test_events_missed_while_away_are_asked_for_by_their_id(watched: Watched, site: Site) -> None:
    watched.expected += NETWORK
    page = open_run(watched, site)
    site.publish("tick", run="k3f9q2", rank=0, step=500, time=0.0)
    expect(page.locator("#last-step")).to_have_text("500")
    site.stop()
    site.publish("tick", run="k3f9q2", rank=0, step=501, time=0.0)
    view = site.run("k3f9q2")
    assert view is not None  # the page is read again, too
    site.run = {"k3f9q2": replace(view, row=replace(view.row, last_step=501))}.get
    site.restart()
    expect(page.locator("#last-step")).to_have_text("501", timeout=20_000)
    asked = [query.get("Last-Event-ID") for path, query in site.requests if path == "/api/v1/events"]
    assert asked[-1] == "1"


def test_a_refused_stream_is_tried_again(watched: Watched, site: Site) -> None:
    watched.expected += NETWORK
    site.refuse_events = True
    page = watched.page
    page.goto(site.url + RUN)
    expect(page.locator("#live-word")).to_have_text("Connecting")
    site.refuse_events = False
    expect(page.locator("#live-word")).to_have_text("Live")


def test_an_ended_session_says_so_and_leads_to_the_sign_in(watched: Watched, site: Site) -> None:
    watched.expected += NETWORK
    page = open_run(watched, site)
    site.signed_in = False
    site.publish("verdict", run="k3f9q2", status="critical", findings=1)
    strip = page.locator("#refused")
    expect(strip).to_contain_text("Your session has ended")
    assert strip.locator("a").get_attribute("href") == "/login?next=%2Fruns%2Fk3f9q2"


def test_a_run_deleted_while_being_looked_at(watched: Watched, site: Site) -> None:
    watched.expected += NETWORK
    page = open_run(watched, site)
    site.run = lambda run: None
    site.publish("run", run="k3f9q2", status="deleted")
    expect(page.locator("#refused")).to_contain_text("This run was deleted from the server")
    expect(page.locator("#verdict-h")).to_be_visible()


def test_an_ended_run_reads_finished_instead_of_live(watched: Watched, site: Site) -> None:
    page = open_run(watched, site)
    view = site.run("k3f9q2")
    assert view is not None
    site.run = {"k3f9q2": replace(view, row=replace(view.row, status="finished"))}.get
    site.publish("run", run="k3f9q2", status="finished")
    expect(page.locator("#live-word")).to_have_text("Finished")
