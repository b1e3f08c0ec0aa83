"""A run's row and card in words: sign, diagnosis, since when, loss, step, last data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from markupsafe import Markup

from floatscope_dashboards import sparkline
from floatscope_dashboards.overview import ago, group, is_live, is_recovered, onset_share, row_sign
from floatscope_dashboards.views import RunRow
from floatscope_dashboards.wording import (
    Sign,
    as_text,
    cause_label,
    count_text,
    loss_text,
    status_sign,
    step_text,
)


@dataclass(frozen=True)
class RowWords:
    """Everything a row or a card prints, ready."""

    group: str
    live: bool
    sign: Sign
    status: Sign
    href: str
    diagnosis: str
    since: str
    since_long: str
    sure: str
    remedy: str
    loss: str
    loss_bad: bool
    step: str
    seen: str
    sparkline: Markup
    big_sparkline: Markup


def row_words(row: RunRow, *, now: datetime) -> RowWords:
    """The words of `row` at `now`."""
    sign = row_sign(row)
    share = onset_share(row)
    loss_bad = row.last_loss is not None and not math.isfinite(row.last_loss)
    href = "/runs/" + quote(row.run_id, safe="")
    return RowWords(
        group=group(row),
        live=is_live(row),
        sign=sign,
        status=status_sign(row.status),
        href=href if row.onset_step is None else f"{href}?at={row.onset_step}",
        diagnosis=_diagnosis(row, now),
        since=_since(row),
        since_long=_since_long(row),
        sure="" if row.confidence is None else f"{min(99, round(100 * row.confidence))}\u202f%",
        remedy=as_text(row.remedy) or "Open the run to see what to do.",
        loss=loss_text(row.last_loss),
        loss_bad=loss_bad,
        step=step_text(row.last_step),
        seen=ago(now, row.last_seen),
        sparkline=sparkline.svg(row.sparkline, width=124, height=30, onset_share=share),
        big_sparkline=sparkline.svg(row.sparkline, width=420, height=56, onset_share=share, kind="big"),
    )


def _diagnosis(row: RunRow, now: datetime) -> str:
    """The headline; for a run that is silent or ended early and has no finding, that is the news."""
    if row.health not in ("critical", "warning"):
        if row.status == "stalled":
            return f"No data for {ago(now, row.last_seen)}"
        if row.status in ("crashed", "failed"):
            return f"{status_sign(row.status).word} without a numerical cause"
    text = row.headline.strip().removesuffix(".") or cause_label(row.cause) or "No finding"
    return f"Recovered: {text}" if is_recovered(row) else text


def _since(row: RunRow) -> str:
    if row.status == "stalled" and row.health not in ("critical", "warning"):
        return f"Last step {step_text(row.last_step)}"
    if row.onset_step is not None:
        return f"{'At' if is_recovered(row) else 'Since'} step {step_text(row.onset_step)}"
    return ""


def _since_long(row: RunRow) -> str:
    if row.onset_step is None:
        return ""
    text = f"Since step {step_text(row.onset_step)}"
    if row.last_step is not None and row.last_step > row.onset_step:
        text += f", {count_text(row.last_step - row.onset_step, 'step')} ago"
    return text + f". Last loss {loss_text(row.last_loss)}." if row.last_loss is not None else text + "."
