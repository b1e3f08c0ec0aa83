"""What the run page's script gets, as JSON in the page: addresses, frames of the figures, colours,
choices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from floatscope_dashboards.evidence import EvidenceCard, proof_panel
from floatscope_dashboards.facts import source
from floatscope_dashboards.figures import CONFIG, heat_frame, loss_frame
from floatscope_dashboards.findings import read_findings
from floatscope_dashboards.heat_grid import block_of
from floatscope_dashboards.heat_stats import HeatStat, as_json, mark_stats
from floatscope_dashboards.say import Say
from floatscope_dashboards.theme import TOKENS
from floatscope_dashboards.views import RunView
from floatscope_dashboards.wording import as_int

PLAIN_FORMATS = frozenset({"bf16", "fp16", "fp32"})
MAX_FORMATS = 3
MAX_SEGMENTS = 4
"""Newest segments whose abandoned steps are drawn."""
MAX_ORDERED_LAYERS = 400
"""More layers than this are ordered by name: their call order would be most of the page."""


def run_data(
    view: RunView, say: Say, *, card: EvidenceCard, stats: Sequence[HeatStat], stat: str | None
) -> dict[str, Any]:
    """The data block of a run page. Everything in it is JSON: no NaN, no objects."""
    row = view.row
    panel = proof_panel(card)
    lead = card.lead
    resolved = lead.resolved_step if lead is not None and lead.recovered else None
    order, formats = _tensors(view.info)
    resumed = [item.step for item in view.facts.events if item.kind == "resumed" and item.step is not None]
    diverged = [
        item.step for item in card.evidence if item.signal.startswith("loss") and item.step is not None
    ]
    data: dict[str, Any] = plain_json(
        {
            "run": row.run_id,
            "name": row.name,
            "status": row.status,
            "health": row.health,
            "headline": row.headline,
            "first": row.first_step,
            "last": row.last_step,
            "onset": row.onset_step,
            "onsets": sorted(
                {item.onset_step for item in read_findings(view.verdict) if item.onset_step is not None}
            ),
            "at": view.at,
            "baseline": row.baseline,
            "segments": _segments(view),
            "stats": [as_json(item, say) for item in stats],
            "stat": stat,
            "marks": list(mark_stats(view.heat_stats)),
            "proof": None
            if panel is None
            else {
                "tensor": panel[0].tensor,
                "stat": panel[1],
                "words": say("{signal}, {tensor}", signal=panel[0].label, tensor=panel[0].tensor),
            },
            "origin": lead.tensor if lead is not None and lead.tensor else None,
            "order": order,
            "formats": formats,
            "frames": {
                "loss": loss_frame(
                    say,
                    onset=row.onset_step,
                    resolved=resolved,
                    resumed=resumed,
                    diverged=min(diverged, default=None),
                    panel=None if panel is None else panel[0],
                ),
                "heat": heat_frame(onset=row.onset_step),
            },
            "tokens": TOKENS,
            "config": CONFIG,
            "age_s": None if row.last_seen is None else (view.now - row.last_seen).total_seconds(),
        }
    )
    return data


def _segments(view: RunView) -> list[list[int]]:
    """Number and first step of the newest segments, [] for a run that was never resumed."""
    items = source(view).get("segments")
    found = [
        [number, step]
        for item in (items if isinstance(items, (list, tuple)) else ())
        if isinstance(item, Mapping)
        and (number := as_int(item.get("segment"))) is not None
        and (step := as_int(item.get("first_step"))) is not None
    ]
    return found[-MAX_SEGMENTS:] if len(found) > 1 else []


def _tensors(info: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, str]]:
    """Layer -> first forward call (empty when there are too many layers), and block -> its formats in
    words."""
    tensors = info.get("tensors")
    order: dict[str, int] = {}
    formats: dict[tuple[str, str], None] = {}  # (role, format): there are few, of up to 100,000 tensors
    for name, item in tensors.items() if isinstance(tensors, Mapping) else ():
        if not isinstance(item, Mapping):
            continue
        layer, _, role = str(name).rpartition("/")
        name_of_format = item.get("format")
        formats[role, name_of_format if isinstance(name_of_format, str) else ""] = None
        call = as_int(item.get("call_order")) if len(order) <= MAX_ORDERED_LAYERS else None
        if call is not None:
            order[layer] = call
    found: dict[str, set[str]] = {}
    for role, name_of_format in formats:
        if name_of_format:
            found.setdefault(block_of(role), set()).add(name_of_format)
    if len(order) > MAX_ORDERED_LAYERS:
        order = {}
    return order, {block: _formats(names) for block, names in found.items()}


def _formats(names: set[str]) -> str:
    """The formats of a block; of those that take a scale only, when there are any."""
    scaled = names - PLAIN_FORMATS or names
    return ", ".join(sorted(name.upper().replace("_", " ") for name in scaled)[:MAX_FORMATS])


def plain_json(value: Any) -> Any:
    """A copy with non-finite numbers as the strings of the wire ("NaN", "Infinity", "-Infinity")."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    return value
