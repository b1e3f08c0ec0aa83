"""One run: verdict first, then key numbers, loss, evidence, layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from floatscope_dashboards import sparkline
from floatscope_dashboards.banner import banner
from floatscope_dashboards.events_log import FIRST_SHOWN, EventLine, events_log
from floatscope_dashboards.evidence import EvidenceCard, evidence_card, proof_panel
from floatscope_dashboards.heat_stats import first_choice, offered
from floatscope_dashboards.overview import WARMING_UP_SIGN, is_recovered, onset_share, row_sign
from floatscope_dashboards.page import Page
from floatscope_dashboards.page_data import run_data
from floatscope_dashboards.pictures import pictures
from floatscope_dashboards.preflight_card import preflight_card
from floatscope_dashboards.say import Say
from floatscope_dashboards.side_column import events_beside
from floatscope_dashboards.tensor_links import tensor_href
from floatscope_dashboards.views import Kpi, RunRow, RunView
from floatscope_dashboards.wording import (
    RECOVERED_SIGN,
    as_int,
    health_sign,
    status_sign,
)

MAX_TITLE = 80
"""Characters of a run's name in the window title."""


def run_page(view: RunView, say: Say, *, corrections: Sequence[str] = ()) -> Page:
    """The page of one run. corrections: what of its address was put right, in whole sentences."""
    row = view.row
    found = banner(view, say)
    card = evidence_card(view.verdict, say, rules=view.facts.rules)
    share = onset_share(row)
    stats = offered(view.heat_stats)
    stat = first_choice(view.heat_stats, [item.signal for item in card.evidence])
    recovered = found.state == "recovered"
    waits = row.last_step is None
    sign = RECOVERED_SIGN if recovered else status_sign(row.status) if waits else row_sign(row)
    own = quote(row.run_id, safe="")
    events = events_log(view, say)
    beside = events_beside(card, events, has_panel=proof_panel(card) is not None, most=FIRST_SHOWN)
    return Page(
        "run.html",
        f"{sign.glyph} {_cut(row.name)} \u2013 {found.word} \u2013 floatscope",
        section="runs",
        script="run.js",
        follow=("pictures.js",),
        styles=("run.css", "pictures.css", "preflight.css"),
        charts=True,
        data=run_data(view, say, card=card, stats=stats, stat=stat),
        values={
            "row": row,
            "banner": found,
            "health": None
            if waits
            else RECOVERED_SIGN
            if recovered or is_recovered(row)
            else WARMING_UP_SIGN
            if found.state == "warming_up"
            else health_sign(row.health),
            "status": status_sign(row.status),
            "project_href": "/?" + urlencode({"project": row.project}),
            "baseline_href": "/runs/" + quote(row.baseline or "", safe=""),
            "baseline_name": view.facts.baseline_name or row.baseline,
            "compare_href": "/compare?" + urlencode({"run": row.run_id, "baseline": row.baseline or ""}),
            "own": own,
            "ranks": as_int(view.info.get("ranks")) or 1,
            "started": say.duration((view.now - row.created).total_seconds()),
            "seen": say.duration((view.now - row.last_seen).total_seconds()) if row.last_seen else "",
            "kpis": [_kpi(item, share) for item in view.kpis],
            "card": card,
            "lead_kind": _lead_kind(card),
            "onset": row.onset_step,
            "proof": proof_panel(card),
            "loss_words": _loss_words(row, say),
            "tensor_href": tensor_href,
            "events": events,
            "events_beside": beside,
            "events_first": beside or FIRST_SHOWN,
            "event_shape": _shape_of(events),
            "corrections": tuple(corrections),
            "preflight": preflight_card(view.info, say),
            "big_sparkline": sparkline.svg(
                row.sparkline, width=900, height=300, onset_share=share, kind="big"
            ),
            "stats": stats,
            "stat": stat,
            **pictures(view, say),
        },
    )


def _shape_of(events: Sequence[EventLine]) -> str:
    """Hours and minutes when all is of one day, else with the day."""
    days = {item.time.date() for item in events if item.time is not None}
    return "time" if len(days) <= 1 else "date"


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


def _loss_words(row: RunRow, say: Say) -> str:
    """The loss chart in a sentence, for those who do not see it."""
    if row.last_step is None:
        return say("Training loss. No step has arrived yet.")
    first, last = say.step(row.first_step), say.step(row.last_step)
    shown = say("Training loss and gradient norm from step {first} to {last}.", first=first, last=last)
    if row.onset_step is None:
        return shown
    return shown + " " + say("The finding begins at step {step}.", step=say.step(row.onset_step))


def _cut(name: str) -> str:
    return name if len(name) <= MAX_TITLE else name[: MAX_TITLE - 3] + "..."
