"""What the address of the overview asks for: which runs, in which order, which page of them.

    query = read_query({"health": "critical,warning", "sort": "-loss"})
    query.href(page=2)

Whatever is not known is ignored, so an old or mistyped link shows the page.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

GROUPS = ("critical", "warning", "ended", "stalled", "watch", "warming_up", "healthy")
"""Group of a run by which it is counted and filtered, in order of urgency."""
SORTS = ("severity", "name", "loss", "headroom", "clipped", "step", "seen")
WORST_FIRST = "-severity"
FIRST_CLICK: Mapping[str, str] = {
    "severity": "-severity",
    "name": "name",
    "loss": "-loss",
    "headroom": "headroom",
    "clipped": "-clipped",
    "step": "-step",
    "seen": "-seen",
}
"""What a click on a column's head sorts by first: its bad or new end on top."""
PAGE_ROWS = 100
MAX_PAGE = 100_000
MAX_WORDS_CHARS = 200
MAX_WORDS = 8
MAX_PROJECT_CHARS = 1024


@dataclass(frozen=True)
class RunsQuery:
    """``everything``: None while the address does not say whether runs that ended are wanted."""

    health: tuple[str, ...] = ()
    everything: bool | None = None
    words: str = ""
    project: str | None = None
    by_project: bool = False
    sort: str = WORST_FIRST
    page: int = 1

    @property
    def filtered(self) -> bool:
        """Whether it leaves out runs by their group or by words."""
        return bool(self.health or self.words)

    def href(self, **changes: Any) -> str:
        """The address of this view with some of it changed; any change but of the page begins at page 1."""
        changed = replace(self, **({"page": 1} | changes))
        scope = {None: "", True: "all", False: "live"}[changed.everything]
        given = {
            "health": ",".join(changed.health),
            "status": scope,
            "q": changed.words,
            "project": changed.project or "",
            "group": "project" if changed.by_project else "",
            "sort": "" if changed.sort == WORST_FIRST else changed.sort,
            "page": "" if changed.page == 1 else str(changed.page),
        }
        text = urlencode({key: value for key, value in given.items() if value})
        return f"/?{text}" if text else "/"

    def toggled(self, group: str) -> str:
        """The address with this group added to the filter, or taken out of it."""
        kept = tuple(key for key in GROUPS if (key in self.health) != (key == group))
        return self.href(health=kept)

    def sorted_by(self, column: str) -> str:
        """The address of a click on a column's head: its first order, then the other way round."""
        first = FIRST_CLICK[column]
        other = first.removeprefix("-") if first.startswith("-") else f"-{first}"
        return self.href(sort=other if self.sort == first else first)


def read_query(given: Mapping[str, str]) -> RunsQuery:
    """The query that an address holds."""
    asked = given.get("health", "").split(",")
    words = " ".join(_clean(given.get("q", ""))[:MAX_WORDS_CHARS].split()[:MAX_WORDS])
    sort = given.get("sort", "").strip().removeprefix("+")
    page = given.get("page", "")
    return RunsQuery(
        health=tuple(key for key in GROUPS if key in asked),
        everything={"all": True, "live": False}.get(given.get("status", "")),
        words=words,
        project=_clean(given.get("project", ""))[:MAX_PROJECT_CHARS] or None,
        by_project=given.get("group") == "project",
        sort=sort if sort.removeprefix("-") in SORTS else WORST_FIRST,
        page=min(int(page), MAX_PAGE)
        if page.isascii() and page.isdigit() and len(page) < 8 and int(page)
        else 1,
    )


def _clean(text: str) -> str:
    """Without control characters and halves of characters, which no name holds and PostgreSQL refuses."""
    return "".join(char for char in text if unicodedata.category(char) not in ("Cc", "Cs"))
