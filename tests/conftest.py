"""What all tests share: one browser (only one may be driven synchronously in a process), little garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser


settings.register_profile("floatscope", deadline=None)  # a busy machine is no fault
settings.load_profile("floatscope")


def pytest_collection_finish() -> None:
    """Every collection of garbage would else look at hundreds of thousands of objects of the libraries."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    # here, so that the suites of bare environments run without it
    from playwright.sync_api import sync_playwright

    from tests.dashboards.watched import launch

    with sync_playwright() as playwright:
        found = launch(playwright)
        yield found
        found.close()
