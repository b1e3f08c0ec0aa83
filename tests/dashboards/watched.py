"""A browser page that writes down what it should never do: console errors, CSP violations, other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, Playwright

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LOCAL_SCHEMES = ("data", "blob", "about")


def launch(playwright: Playwright) -> Browser:
    """Headless Chromium with a fresh temporary profile. Without one it fails and says what to install."""
    if not CHROMIUM.is_file():
        raise AssertionError(
            f"{CHROMIUM} is missing: the dashboard is tested in a real browser. On Debian or Ubuntu install "
            "it with `apt-get install -y chromium fonts-inter`."
        )
    return playwright.chromium.launch(executable_path=str(CHROMIUM), headless=True, args=FLAGS)


@dataclass
class Watched:
    """A page and what went wrong on it. `expected` are parts of console messages that a test provokes."""

    page: Page
    host: str
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def unexpected(self) -> list[str]:
        """What should not have happened."""
        return [text for text in self.problems if not any(part in text for part in self.expected)]


@contextmanager
def watched_page(context: BrowserContext, url: str) -> Iterator[Watched]:
    """A new page for the server at `url`; fails at the end if anything unexpected happened on it."""
    page = context.new_page()
    page.set_default_timeout(30_000)
    host = urlsplit(url).netloc
    watched = Watched(page, host)

    def asked(address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme not in LOCAL_SCHEMES and parts.netloc != host:
            watched.problems.append(f"request to another host: {address}")

    page.on("request", lambda request: asked(request.url))
    page.on("pageerror", lambda error: watched.problems.append(f"page error: {error}"))
    page.on(
        "console",
        lambda message: (
            watched.problems.append(f"console {message.type}: {message.text}")
            if message.type in ("error", "warning")
            else None
        ),
    )
    try:
        yield watched
        if watched.unexpected():
            raise AssertionError("the page should not have done this: " + "; ".join(watched.unexpected()))
    finally:
        page.close()
