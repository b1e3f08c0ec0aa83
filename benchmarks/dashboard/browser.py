"""A real Chromium that says when a page had text and when all its charts were drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from playwright.sync_api import BrowserContext, Page, sync_playwright

from tests.dashboards.watched import launch

TALL = {"width": 1440, "height": 3600}
"""High enough that every chart of a page is in view: charts out of view are not drawn."""
GIVE_UP_MS = 60_000
LONG_TASKS = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) window.longTasks.push(entry.duration);
  }).observe({type: 'longtask', buffered: true});
}"""
DRAWN = """(selectors) => performance.getEntriesByName('first-contentful-paint').length > 0
  && selectors.every((one) => document.querySelector(one))"""


@dataclass(frozen=True)
class Load:
    """One page load, in milliseconds since the reader asked for it.

    first_text: first contentful paint.  whole: every chart drawn.  longest_task: of the page's own thread.
    """

    first_text: float
    whole: float
    longest_task: float
    bytes_sent: int


@contextmanager
def visitor(*, bypass_csp: bool = False) -> Iterator[BrowserContext]:
    """A browser with an empty cache.  bypass_csp: for what is not one of our pages."""
    with sync_playwright() as playwright:
        browser = launch(playwright)
        context = browser.new_context(viewport=TALL, bypass_csp=bypass_csp)  # type: ignore[arg-type]
        yield context
        browser.close()


def sign_in(context: BrowserContext, url: str, token: str) -> None:
    """Gets the session, and nothing of the pages into the cache but what sign-in loads."""
    page = context.new_page()
    page.goto(f"{url}/login")
    page.fill("#token", token)
    page.press("#token", "Enter")
    page.wait_for_url(lambda address: "/login" not in address)
    page.close()


def load(context: BrowserContext, address: str, *, drawn: list[str]) -> Load:
    """Opens the page and waits until all these elements are there.

    Raises playwright's TimeoutError if they are not within a minute.
    """
    page = context.new_page()
    page.add_init_script(f"({LONG_TASKS})()")
    page.goto(address, wait_until="commit")
    page.wait_for_function(DRAWN, arg=drawn, timeout=GIVE_UP_MS)
    whole = float(page.evaluate("performance.now()"))
    found = Load(_first_text(page), whole, _longest(page), _bytes(page))
    page.close()
    return found


def _first_text(page: Page) -> float:
    script = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    return float(page.evaluate(script))


def _longest(page: Page) -> float:
    return float(page.evaluate("Math.max(0, ...window.longTasks)"))


def _bytes(page: Page) -> int:
    script = "performance.getEntriesByType('resource').reduce((sum, one) => sum + one.transferSize, 0)"
    return int(page.evaluate(script))
