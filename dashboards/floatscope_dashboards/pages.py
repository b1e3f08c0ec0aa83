"""Pages as HTML text, from view objects. Jinja2 with autoescape on: whatever a name holds stays text.

    pages = Pages()
    html = pages.run(view)

The verdict, the evidence and the key numbers are in the HTML; scripts only add the charts and keep the page
live. A Content-Security-Policy that suits every page is `CONTENT_SECURITY_POLICY`: no inline script, no other
host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from floatscope_dashboards import assets, sparkline
from floatscope_dashboards.banner import Banner, banner
from floatscope_dashboards.evidence import EvidenceCard, evidence_card
from floatscope_dashboards.heat_stats import first_choice, offered
from floatscope_dashboards.overview import Overview, is_recovered, onset_share, overview, row_sign
from floatscope_dashboards.page_data import run_data
from floatscope_dashboards.row_words import RowWords, row_words
from floatscope_dashboards.views import Kpi, RunRow, RunsView, RunView
from floatscope_dashboards.wording import (
    RECOVERED_SIGN,
    as_int,
    duration_text,
    health_sign,
    status_sign,
    step_text,
)

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; object-src 'none'"
)
"""No inline script and no inline stylesheet. plotly.js writes style attributes, so these are allowed; its PNG
button needs data: and blob: images."""

MAX_TITLE = 80
"""Characters of a run's name in the window title."""
_BREAK_AFTER = re.compile(r"(?<=[./_-])")


class Pages:
    """All pages. Make one and keep it: templates are compiled once."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("floatscope_dashboards", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=False,
            lstrip_blocks=True,
        )
        self._environment.filters["breakable"] = breakable
        self._environment.filters["step"] = step_text
        self._shared = {
            "fingerprint": assets.fingerprint(),
            "plotly_url": assets.plotly_script(assets.wheel_script()).url,
            "plotly_style_url": f"{assets.STATIC_URL}/vendor/{assets.PLOTLY_STYLE}",
        }

    def runs(self, view: RunsView) -> str:
        """The overview: headline, what needs attention, then all runs, worst first."""
        found = overview(view)
        return self._render(
            "runs.html",
            page="runs",
            title=_runs_title(found),
            version=view.version,
            now=view.now,
            view=view,
            overview=found,
            rows=[_with_words(row, view) for row in found.rows],
            cards=[_with_words(row, view) for row in found.cards],
        )

    def run(self, view: RunView) -> str:
        """One run: verdict first, then key numbers, loss, evidence, layers."""
        row = view.row
        found = banner(view)
        card = evidence_card(view.verdict)
        share = onset_share(row)
        stats = offered(view.heat_stats)
        stat = first_choice(view.heat_stats, [item.signal for item in card.evidence])
        sign = row_sign(row)
        return self._render(
            "run.html",
            page="run",
            title=f"{sign.glyph} {_cut(row.name)} \u2013 {found.word.lower()} \u2013 floatscope",
            version=view.version,
            now=view.now,
            row=row,
            banner=found,
            health=RECOVERED_SIGN if is_recovered(row) else health_sign(row.health),
            status=status_sign(row.status),
            project_href="/?" + urlencode({"project": row.project}),
            baseline_href="/runs/" + quote(row.baseline or "", safe=""),
            ranks=as_int(view.info.get("ranks")) or 1,
            started=duration_text((view.now - row.created).total_seconds()),
            seen=duration_text((view.now - row.last_seen).total_seconds()) if row.last_seen else "",
            kpis=[_kpi(item, share) for item in view.kpis],
            card=card,
            lead_kind=_lead_kind(card),
            onset=row.onset_step,
            loss_words=_loss_words(row, found),
            big_sparkline=sparkline.svg(row.sparkline, width=900, height=300, onset_share=share, kind="big"),
            stats=stats,
            stat=stat,
            data=run_data(view, card=card, stats=stats, stat=stat),
        )

    def login(self, error: str | None, next: str) -> str:
        """The sign-in form; it posts `token` and `next` to /login. `error` says why the last try failed."""
        return self._render(
            "login.html",
            page="login",
            title="Sign in \u2013 floatscope",
            version="",
            now=None,
            error=error,
            next=next,
        )

    def message(self, status: int, title: str, text: str) -> str:
        """A page that says what is the matter and what to do: not found, gone, server error."""
        return self._render(
            "message.html",
            page="message",
            title=f"{title} \u2013 floatscope",
            version="",
            now=None,
            status=status,
            heading=title,
            text=text,
        )

    def _render(self, template: str, **values: Any) -> str:
        return self._environment.get_template(template).render(**self._shared, **values)


def breakable(text: str) -> Markup:
    """`text` escaped, with line breaks allowed after its dots, slashes, underscores and hyphens."""
    return Markup("<wbr>").join(_BREAK_AFTER.split(text))


def _with_words(row: RunRow, view: RunsView) -> dict[str, RunRow | RowWords]:
    return {"row": row, "words": row_words(row, now=view.now)}


def _kpi(item: Kpi, share: float | None) -> Mapping[str, Any]:
    return {
        "kpi": item,
        "bad": item.value in ("NaN", "Inf", "-Inf"),
        "sparkline": sparkline.svg(item.sparkline, width=170, height=22, onset_share=share),
    }


def _lead_kind(card: EvidenceCard) -> str:
    if card.lead is None or card.lead.recovered:
        return "idle"
    return health_sign(card.lead.severity).kind


def _runs_title(found: Overview) -> str:
    glyph = f"{found.title_glyph} " if found.title_glyph else ""
    return f"{glyph}{found.headline} \u2013 floatscope"


def _loss_words(row: RunRow, found: Banner) -> str:
    """The loss chart in a sentence, for those who do not see it."""
    if row.last_step is None:
        return "Training loss. No step has arrived yet."
    first = step_text(row.first_step)
    onset = f" The finding begins at step {step_text(row.onset_step)}." if row.onset_step is not None else ""
    return f"Training loss and gradient norm from step {first} to {step_text(row.last_step)}.{onset}"


def _cut(name: str) -> str:
    return name if len(name) <= MAX_TITLE else name[: MAX_TITLE - 3] + "..."
