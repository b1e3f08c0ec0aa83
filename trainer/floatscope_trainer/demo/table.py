"""The demo's result: a table for people, a document for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from floatscope_trainer.demo.judge import LOSS_SHOWS_PCT, Outcome

SCHEMA = "floatscope.demo/1"
SIGNS = {
    "critical": ("▲", "bold red"),
    "warning": ("◆", "yellow"),
    "watch": ("✓", "green"),
    "healthy": ("✓", "green"),
}
"""Sign and colour by the verdict's status: colour, shape and word say the same."""
UNDETERMINED = ("?", "blue")
WRONG = ("✕", "bold magenta")
COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("Run", "left"),
    ("Put in", "left"),
    ("At", "right"),
    ("Found", "left"),
    ("Onset", "right"),
    ("Layer", "left"),
    ("Sure", "right"),
    ("Late", "right"),
    ("Loss then", "right"),
    ("", "left"),
)


WIDE_COLUMNS = 135
"""Terminals at least this wide get one table, narrower ones the same columns as two of at most 80."""
HALVES: tuple[tuple[str, ...], ...] = (
    ("Run", "Put in", "At", "Onset", "Late", "Sure", "Loss then", ""),
    ("Run", "Found", "Layer"),
)
LEGEND = "Late: steps from fault to finding. Loss then: against the healthy twin. ▲ critical ◆ warning"


def result_tables(outcomes: Sequence[Outcome], *, width: int) -> list[Table]:
    """One line a run; a wrong one says what it should be.  width: of the terminal, in characters."""
    titles = [title for title, _ in COLUMNS]
    if width >= WIDE_COLUMNS:
        return [_table(outcomes, titles)]
    return [_table(outcomes, half) for half in HALVES]


def _table(outcomes: Sequence[Outcome], titles: Sequence[str]) -> Table:
    """The columns with these titles; the one without a title only if something is in it."""
    rows = [dict(zip((title for title, _ in COLUMNS), _cells(o), strict=True)) for o in outcomes]
    kept = [title for title in titles if title or any(row[""].plain for row in rows)]
    sides = dict(COLUMNS)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in kept:
        table.add_column(title, no_wrap=True, justify=sides[title])
    for row in rows:
        table.add_row(*(row[title] for title in kept))
    return table


def _cells(outcome: Outcome) -> list[Text]:
    run, cause, kind = outcome.run, outcome.of_finding("cause"), outcome.of_finding("kind")
    sign, style = UNDETERMINED if cause == "undetermined" else SIGNS.get(outcome.status, UNDETERMINED)
    sure = outcome.of_finding("confidence")
    wrong = "" if outcome.why_wrong is None else f"{WRONG[0]} {outcome.why_wrong}"
    return [
        Text(run.name),
        Text(run.put_in),
        Text(_or_dash(run.fault_step)),
        Text(f"{sign} {cause or outcome.status}" + (f" ({kind})" if kind else ""), style=style),
        Text(_or_dash(outcome.of_finding("onset_step"))),
        Text(_or_dash(outcome.of_finding("layer"))),
        Text("-" if sure is None else f"{100 * sure:.0f} %"),
        Text(_or_dash(outcome.late)),
        Text(_loss(outcome.loss_pct)),
        Text(wrong, style=WRONG[1]),
    ]


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _loss(pct: float | None) -> str:
    if pct is None:
        return "-"
    return f"{pct:+.2f} %" if math.isfinite(pct) else "NaN"


def summary(outcomes: Sequence[Outcome], *, seconds: float) -> list[str]:
    """What the table adds up to, in sentences."""
    faulty = [o for o in outcomes if o.run.fault_step is not None]
    healthy = [o for o in outcomes if o.run.fault_step is None]
    found = [o for o in faulty if o.finding is not None]
    undetermined = [o for o in found if o.of_finding("cause") == "undetermined"]
    alarms = sum(o.why_wrong is not None for o in healthy)
    lines = [
        f"{sum(o.why_wrong is None for o in faulty)} of {len(faulty)} faults diagnosed right, "
        f"{_count(alarms, 'false alarm')} on {_count(len(healthy), 'healthy run')}"
        + (f", {len(undetermined)} undetermined" if undetermined else ""),
        f"{sum(not o.loss_shows for o in found)} of {len(found)} found while the loss was within "
        f"{LOSS_SHOWS_PCT:g} % of its healthy twin's. Time {seconds:.0f} s",
    ]
    for outcome in undetermined:
        best = outcome.of_finding("alternatives") or []
        lines.append(
            f"  {outcome.run.name}: "
            + (", ".join(f"{a['cause']} {100 * a['confidence']:.0f} %" for a in best[:2]) or "no hypothesis")
        )
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def result_json(outcomes: Sequence[Outcome], *, seed: int, url: str, seconds: float) -> dict[str, Any]:
    """The document of `--json`. A loss that was NaN is the string "NaN"."""
    return {
        "schema": SCHEMA,
        "seed": seed,
        "url": url,
        "seconds": round(seconds, 1),
        "right": sum(o.why_wrong is None for o in outcomes),
        "of": len(outcomes),
        "runs": [_run_json(outcome) for outcome in outcomes],
    }


def _run_json(outcome: Outcome) -> dict[str, Any]:
    keys = (
        "family",
        "cause",
        "kind",
        "severity",
        "confidence",
        "onset_step",
        "detected_step",
        "layer",
        "tensor",
    )
    return {
        "name": outcome.run.name,
        "run_id": outcome.run_id,
        "put_in": outcome.run.put_in,
        "fault_step": outcome.run.fault_step,
        "status": outcome.status,
        **{key: outcome.of_finding(key) for key in keys},
        "late": outcome.late,
        "loss_difference_pct": _json_number(outcome.loss_pct),
        "wrong": outcome.why_wrong,
    }


def _json_number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
