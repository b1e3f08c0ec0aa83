"""A page ready to be shown, and the frame all pages share. A page module makes a `Page` from a view object;
`pages.Pages.show` puts it into its `Shell`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from floatscope_dashboards.say import Say


@dataclass(frozen=True)
class Page:
    """One page without its frame.

    template: file in templates/.  title: of the window.  section: entry of the main navigation it belongs to
    (runs, compare, alerts, rules, settings), "" for none.  values: what the template gets besides ``say``,
    ``plural``, ``shell`` and ``page``.  script: its module in static/js.  follow: modules that it always
    loads after the first text.  styles: its own style sheets in
    static/.  data: what the script gets, as JSON (no NaN, no objects).  charts: whether it needs plotly.js.
    """

    template: str
    title: str
    section: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    script: str = "plain.js"
    follow: tuple[str, ...] = ()
    styles: tuple[str, ...] = ()
    data: Mapping[str, Any] | None = None
    charts: bool = False


@dataclass(frozen=True)
class Shell:
    """What the frame shows. ``now`` is None on pages outside the product (sign-in, errors): no navigation."""

    say: Say
    version: str = ""
    now: datetime | None = None
    alerts_open: int = 0
    """Alerts that fire and nobody has."""
    may: frozenset[str] = frozenset()
    """Scopes of the reader: what is beyond them is not offered."""
    reader: str = ""
    """Name of the token that signed in."""
    session: bool = False
    """Whether a browser session let the reader in, which can be ended."""
    address: str = ""
    """Where this server is reached, for lines to copy; a script writes the address that the browser used."""
