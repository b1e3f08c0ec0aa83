"""One page for each test, which fails on any console error or foreign request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from tests.dashboards.site import Site, default_site
from tests.dashboards.watched import Watched, watched_page

expect.set_options(timeout=20_000)  # a busy machine is no fault


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    found = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    yield found
    found.close()


@pytest.fixture
def site() -> Iterator[Site]:
    with default_site() as found:
        yield found


@pytest.fixture
def watched(context: BrowserContext, site: Site) -> Iterator[Watched]:
    with watched_page(context, site.url) as found:
        yield found
