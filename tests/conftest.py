"""One browser for all tests that look at pages: only one may be driven synchronously in a process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    # here, so that the suites of bare environments run without it
    from playwright.sync_api import sync_playwright

    from tests.dashboards.watched import launch

    with sync_playwright() as playwright:
        found = launch(playwright)
        yield found
        found.close()
