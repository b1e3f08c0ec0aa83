"""The address of the alerts page: which incidents it shows, how many, and which are unfolded.

    /alerts?state=firing,acknowledged&severity=critical&family=data&run=r3&rule=FS203&mine=1&show=50&unfold=ID

What is not known, or not written well, is left out: an address never makes an error of the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote, urlencode

from floatscope_dashboards.incidents import SEVERITIES, STATES, Wanted

SHOWN, MORE, MOST = 25, 50, 200
"""Incidents shown of each state at first, further ones with each "Show more", and at most."""
MOST_UNFOLDED = 20
_ID = re.compile(r"[A-Za-z0-9._:-]{1,160}")
_RUN = re.compile(r"[A-Za-z0-9._-]{1,128}")
_WORD = re.compile(r"[A-Za-z0-9_]{1,64}")
KEYS = ("state", "severity", "family", "run", "rule", "mine", "show", "unfold")


@dataclass(frozen=True)
class Asked:
    """What the address asks for. unfolded: keys of incidents. kept: keys of other parts of the product, such
    as the language.
    """

    wanted: Wanted = field(default_factory=Wanted)
    show: int = SHOWN
    unfolded: tuple[str, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()

    def href(self, alert: str | None = None) -> str:
        """The address that shows the same, with this alert open."""
        wanted = self.wanted
        parts: list[tuple[str, str]] = []
        for key, values, order in (
            ("state", wanted.states, STATES),
            ("severity", wanted.severities, SEVERITIES),
            ("family", wanted.families, sorted(wanted.families)),
        ):
            if values:
                parts.append((key, ",".join(value for value in order if value in values)))
        parts += [(key, value) for key, value in (("run", wanted.run), ("rule", wanted.rule)) if value]
        parts += [("mine", "1")] if wanted.mine else []
        parts += [("show", str(self.show))] if self.show != SHOWN else []
        parts += [("unfold", ",".join(self.unfolded))] if self.unfolded else []
        query = urlencode([*parts, *self.kept], safe=",:")
        path = "/alerts" if alert is None else f"/alerts/{quote(alert, safe='')}"
        return f"{path}?{query}" if query else path

    def with_more(self) -> Asked:
        """With further incidents of each state."""
        return replace(self, show=min(self.show + MORE, MOST))

    def toggled(self, key: str) -> Asked:
        """With this incident unfolded, or folded again."""
        if key in self.unfolded:
            return replace(self, unfolded=tuple(one for one in self.unfolded if one != key))
        return replace(self, unfolded=(*self.unfolded, key)[-MOST_UNFOLDED:])

    def without_filters(self) -> Asked:
        return replace(self, wanted=Wanted(reader=self.wanted.reader))


def asked(query: Iterable[tuple[str, str]], *, families: Mapping[str, object], reader: str) -> Asked:
    """Reads a query string. A key may come several times, or once with commas."""
    found: dict[str, list[str]] = {}
    kept: list[tuple[str, str]] = []
    for key, value in query:
        if key in KEYS:
            found.setdefault(key, []).extend(part for part in value.split(",") if part)
        elif key in ("lang", "theme"):
            kept.append((key, value[:32]))
    wanted = Wanted(
        states=_known(found.get("state", ()), STATES),
        severities=_known(found.get("severity", ()), SEVERITIES[:2]),
        families=_known(found.get("family", ()), tuple(families)),
        run=_first(found.get("run", ()), _RUN),
        rule=_first(found.get("rule", ()), _WORD),
        mine=next(iter(found.get("mine", ())), "") in ("1", "true", "on"),
        reader=reader,
    )
    unfolded = tuple(dict.fromkeys(one for one in found.get("unfold", ()) if _ID.fullmatch(one)))
    return Asked(wanted, _count(found.get("show", ())), unfolded[:MOST_UNFOLDED], tuple(kept[:4]))


def _known(values: Sequence[str], known: Sequence[str]) -> frozenset[str]:
    """The values that are known; none if that is all of them, which is the same."""
    found = frozenset(value for value in values if value in known)
    return frozenset() if len(found) == len(known) else found


def _first(values: Sequence[str], pattern: re.Pattern[str]) -> str:
    return next((value for value in values if pattern.fullmatch(value)), "")


def _count(values: Sequence[str]) -> int:
    text = next(iter(values), "")
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        return SHOWN
    return min(max(int(text), SHOWN), MOST)
