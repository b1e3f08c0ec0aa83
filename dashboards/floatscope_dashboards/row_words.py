"""A run's row and card in words: sign, diagnosis, since when, loss, headroom, progress, last data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from markupsafe import Markup

from floatscope_dashboards import sparkline
from floatscope_dashboards.engine_words import InEnglish
from floatscope_dashboards.overview import group, is_live, is_recovered, onset_share, row_sign
from floatscope_dashboards.say import NARROW_SPACE, NO_VALUE, Say
from floatscope_dashboards.views import RunRow
from floatscope_dashboards.wording import Sign, as_text, cause_label, loss_text, number_text, status_sign

STALE_PACES = 5.0
"""A run is late after so many of its usual intervals between batches; after ten it counts as stalled."""
STALE_LEAST_S, STALE_UNKNOWN_S = 30.0, 300.0
LOW_HEADROOM, MUCH_CLIPPED_PCT = 0.5, 1.0
"""From here on the numbers of a run with a finding are shown as bad (binades, %)."""


@dataclass(frozen=True)
class Cell:
    """A number of a row. bad: it belongs to what is wrong. why: on hover where there is no number."""

    text: str
    bad: bool = False
    why: str = ""


@dataclass(frozen=True)
class RowWords:
    """Everything a row or a card prints, ready."""

    group: str
    live: bool
    sign: Sign
    status: Sign
    href: str
    about: str
    diagnosis: str
    since: str
    since_long: str
    sure: str
    remedy: str
    loss: str
    loss_bad: bool
    headroom: Cell
    clipped: Cell
    step: str
    progress: str
    progress_share: int | None
    rate: Cell
    seen: str
    stale: bool
    sparkline: Markup


def row_words(row: RunRow, say: Say, *, now: datetime, card: bool = False) -> RowWords:
    """The words of `row` at `now`. card: its curve is a card's, not a row's."""
    share = onset_share(row)
    href = "/runs/" + quote(row.run_id, safe="")
    found = row.health in ("critical", "warning")
    return RowWords(
        group=group(row),
        live=is_live(row),
        sign=row_sign(row),
        status=status_sign(row.status),
        href=href if row.onset_step is None else f"{href}?at={row.onset_step}",
        about=_about(row, say),
        diagnosis=_diagnosis(row, say, now),
        since=_since(row, say),
        since_long=_since_long(row, say, now),
        sure="" if row.confidence is None else _sure(row.confidence, say),
        remedy=str(say.engine(as_text(row.remedy))) or say("Open the run to see what to do."),
        loss=loss_text(row.last_loss),
        loss_bad=row.last_loss is not None and not math.isfinite(row.last_loss),
        headroom=_headroom(row, say, found=found),
        clipped=_clipped(row, say, found=found),
        step=say.step(row.last_step),
        progress=_progress(row, say),
        progress_share=_progress_share(row),
        rate=_rate(row, say),
        seen=_age(row, say, now),
        stale=_is_stale(row, now),
        sparkline=(
            sparkline.svg(row.sparkline, width=420, height=56, onset_share=share, kind="big")
            if card
            else sparkline.svg(row.sparkline, width=124, height=30, onset_share=share)
        ),
    )


def _age(row: RunRow, say: Say, now: datetime) -> str:
    return NO_VALUE if row.last_seen is None else say.duration((now - row.last_seen).total_seconds())


def _is_stale(row: RunRow, now: datetime) -> bool:
    if not is_live(row) or row.last_seen is None:
        return False
    usual = STALE_UNKNOWN_S if row.pace_s is None else max(STALE_PACES * row.pace_s, STALE_LEAST_S)
    return row.status == "stalled" or (now - row.last_seen).total_seconds() > usual


def _about(row: RunRow, say: Say) -> str:
    ranks = say.plural("{n} rank", "{n} ranks", row.ranks) if row.ranks is not None and row.ranks > 1 else ""
    return ", ".join(part for part in (row.project, ranks, row.recipe) if part)


def _sure(confidence: float, say: Say) -> str:
    return say("{percent}\u202f% sure", percent=min(99, round(100 * confidence)))


def _diagnosis(row: RunRow, say: Say, now: datetime) -> str:
    """The headline; for a run that is silent or ended early and has no finding, that is the news."""
    if row.damaged:
        return say("Stored data of this run is damaged: {part} cannot be read.", part=row.damaged)
    if row.health not in ("critical", "warning"):
        if row.status == "stalled" and row.last_seen is None:
            return say("No data yet")
        if row.status == "stalled":
            return say("No data for {age}", age=_age(row, say, now))
        if row.status == "crashed":
            return say("Crashed without a numerical cause")
        if row.status == "failed":
            return say("Failed without a numerical cause")
    cause = say(cause_label(row.cause))
    text = say.engine(row.headline.strip())
    if isinstance(text, InEnglish) and cause:
        text = cause
    text = text.removesuffix(".").removesuffix("。") or cause or say("No finding")
    return say("Recovered: {what}", what=text) if is_recovered(row) else text


def _since(row: RunRow, say: Say) -> str:
    if row.status == "stalled" and row.health not in ("critical", "warning"):
        return say("Last step {step}", step=say.step(row.last_step))
    if row.onset_step is None:
        return ""
    step = say.step(row.onset_step)
    return say("At step {step}", step=step) if is_recovered(row) else say("Since step {step}", step=step)


def _since_long(row: RunRow, say: Say, now: datetime) -> str:
    if row.onset_step is None:
        return ""
    onset = say.step(row.onset_step)
    parts = [say("Since step {step}.", step=onset)]
    if row.onset_time is not None:
        age = say.duration(max(0.0, (now - row.onset_time).total_seconds()))
        parts = [say("Since step {step}, {duration} ago.", step=onset, duration=age)]
    elif row.last_step is not None and row.last_step > row.onset_step:
        steps = row.last_step - row.onset_step
        parts = [
            say.plural(
                "Since step {step}, {n} step ago.", "Since step {step}, {n} steps ago.", steps, step=onset
            )
        ]
    if row.last_loss is not None:
        parts.append(say("Last loss {loss}.", loss=loss_text(row.last_loss)))
    return say.sentences(parts)


def _headroom(row: RunRow, say: Say, *, found: bool) -> Cell:
    if row.headroom is None:
        return Cell(NO_VALUE, why=say("No tensor's amax and scale were sampled lately."))
    return Cell(_decimals(row.headroom), bad=found and row.headroom < LOW_HEADROOM)


def _clipped(row: RunRow, say: Say, *, found: bool) -> Cell:
    if row.clipped is None:
        return Cell(NO_VALUE, why=say("Clipped values were not counted lately."))
    text = _decimals(row.clipped) if row.clipped == 0 or row.clipped >= 0.05 else "<0.1"
    return Cell(f"{text}{NARROW_SPACE}%", bad=found and row.clipped > MUCH_CLIPPED_PCT)


def _decimals(value: float) -> str:
    """One digit after the point; a value that rounds to zero has no sign."""
    text = f"{value:.1f}" if abs(value) < 1000 else number_text(value)
    return "0.0" if text == "-0.0" else text.replace("-", "\u2212")


def _progress(row: RunRow, say: Say) -> str:
    if row.last_step is None or row.total_steps is None:
        return say.step(row.last_step)
    return say("{step} of {total}", step=say.step(row.last_step), total=say.step(row.total_steps))


def _progress_share(row: RunRow) -> int | None:
    """Whole % of the steps, 0 to 100."""
    if row.last_step is None or row.total_steps is None:
        return None
    return max(0, min(100, round(100 * row.last_step / row.total_steps)))


def _rate(row: RunRow, say: Say) -> Cell:
    if row.tokens_per_s is None:
        return Cell(NO_VALUE, why=say("The run logs no tokens or no step_time_s."))
    return Cell(number_text(float(f"{row.tokens_per_s:.3g}")))
