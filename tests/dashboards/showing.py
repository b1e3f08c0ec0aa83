"""Pages as HTML, as the server shows them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from floatscope_dashboards.page import Page, Shell
from floatscope_dashboards.pages import Pages
from floatscope_dashboards.plain_pages import login_page, message_page
from floatscope_dashboards.run_page import run_page
from floatscope_dashboards.runs_page import runs_page
from floatscope_dashboards.views import RunsView, RunView

EVERYTHING = ("ingest", "read", "write", "admin")


class Shown:
    """Makes pages of one language with the frame that a reader with every scope gets."""

    def __init__(self, pages: Pages | None = None, language: str = "en") -> None:
        self._pages = pages or Pages()
        self.say = self._pages.say(language)

    def page(self, page: Page, *, now: datetime | None = None, may: Collection[str] = EVERYTHING) -> str:
        """Any page, for a reader who may do this."""
        return self._pages.show(page, Shell(self.say, "0.1.0", now, may=frozenset(may), reader="tests"))

    def part(self, template: str, **values: object) -> str:
        """A piece of a page."""
        return self._pages.part(template, Shell(self.say, "0.1.0"), **values)

    def runs(self, view: RunsView) -> str:
        """The overview."""
        return self.page(runs_page(view, self.say), now=view.now)

    def run(self, view: RunView) -> str:
        """One run."""
        return self.page(run_page(view, self.say), now=view.now)

    def login(self, error: str | None, next: str) -> str:
        """Sign-in."""
        return self.page(login_page(self.say, error=error, next=next))

    def message(self, status: int, title: str, text: str) -> str:
        """A message."""
        return self.page(message_page(self.say, status=status, title=title, text=text))
