"""The comparison as one JSON document, ``floatscope.compare/1``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from floatscope_diagnostics.compare.judge import Comparison, NonFinite, Parting, Window
from floatscope_diagnostics.compare.shape import Shape
from floatscope_diagnostics.compare.side import Side
from floatscope_diagnostics.compare.tensor_limits import PERSIST_ROWS, UNITS
from floatscope_diagnostics.compare.tensors import Parted, TensorParting
from floatscope_diagnostics.compare.words import sentence
from floatscope_diagnostics.verdict import plain_object

SCHEMA = "floatscope.compare/1"
METHOD = {
    "band": "circular block bootstrap of the mean, widened by Student's t of the effective sample size, at "
    "least the band of an AR(1) with the series' autocorrelation",
    "separation": "betting test on block means against every law symmetric about the margin, valid at any "
    "look",
    "shape": "least squares line with block-summed residuals",
    "tensors": f"first statistic beyond its healthy limit for {PERSIST_ROWS} rows; step, then call order",
}


def document(c: Comparison) -> dict[str, Any]:
    """Numbers that are not finite are the protocol's strings."""
    p = c.pairs
    return plain_object(
        {
            "schema": SCHEMA,
            "run": _side(c.run),
            "baseline": _side(c.base),
            "decision": c.decision,
            "summary": sentence(c),
            "settings": {"confidence": c.settings.confidence, "margin_nats": c.settings.margin},
            "pairing": {
                "paired": p.paired,
                "why": p.why,
                "pairs": len(p.step),
                "first_step": int(p.step[0]) if len(p.step) else None,
                "last_step": int(p.step[-1]) if len(p.step) else None,
                "common_steps": p.common,
                "mismatched_data": p.mismatched,
                "only_in_run": p.only_run,
                "only_in_baseline": p.only_base,
                "data_id_in_both": p.data_known,
                "correlation": p.together,
            },
            "difference": {
                "whole": _window(c.whole),
                "last": _window(c.last),
                "judged": _window(c.judged),
                "first_different_step": c.first_difference,
            },
            "separation": _parting(c.parting),
            "separation_beyond_margin": _parting(c.beyond_margin),
            "apart_since_step": c.since,
            "learning_rates_differ": None
            if c.lr_differs is None
            else {
                "first_step": c.lr_differs.step,
                "steps": c.lr_differs.steps,
                "run": c.lr_differs.run,
                "baseline": c.lr_differs.base,
            },
            "nonfinite": _nonfinite(c.nonfinite),
            "both_nonfinite_from": c.both_nonfinite,
            "loud_steps": None
            if c.loud is None
            else {
                "first_step": c.loud.first_step,
                "steps": c.loud.steps,
                "largest_step": c.loud.largest_step,
                "largest": c.loud.largest,
            },
            "shape": _shape(c.shape),
            "tensors": _tensors(c.tensors),
            "needed": {
                "pairs_for_margin": c.needed.for_margin,
                "more_steps": c.needed.more_steps,
            },
            "method": METHOD,
        }
    )


def with_go(made: Mapping[str, Any], go: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the decision. Of a pair that is refused nothing else is said of worse or better: a
    difference of other data or of another model is not one of the precision.
    """
    if go["decidable"]:
        return {**made, "go": go}
    needed = {**made["needed"], "more_steps": None}
    return {**made, "decision": "undecided", "summary": go["sentence"], "needed": needed, "go": go}


def _side(side: Side) -> dict[str, Any]:
    return {
        "path": side.label,
        "name": side.run.name,
        "format": side.format,
        "recipe": dict(side.run.recipe),
        "steps": len(side.step),
        "first_step": int(side.step[0]),
        "last_step": int(side.step[-1]),
        "repeated_steps": side.repeated,
        "tensors": len(side.tensors.names),
        "notes": list(side.notes),
    }


def _window(window: Window | None) -> dict[str, Any] | None:
    if window is None:
        return None
    band = window.band
    return {
        "first_step": window.first_step,
        "last_step": window.last_step,
        "pairs": window.pairs,
        "mean": band.mean,
        "low": band.low,
        "high": band.high,
        "sd": band.noise.sd,
        "autocorrelation": band.noise.phi,
        "effective_sample_size": band.noise.n_eff,
        "block_pairs": band.noise.block,
    }


def _parting(parting: Parting | None) -> dict[str, Any] | None:
    if parting is None:
        return None
    return {
        "step": parting.onset_step,
        "proven_step": parting.proven_step,
        "direction": "worse" if parting.sign > 0 else "better",
        "beyond_nats": parting.beyond,
    }


def _nonfinite(found: NonFinite | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"side": found.side, "step": found.step, "steps": found.steps, "lasting": found.lasting}


def _shape(shape: Shape | None) -> dict[str, Any] | None:
    if shape is None:
        return None
    return {
        "kind": shape.kind,
        "first_step": shape.first_step,
        "last_step": shape.last_step,
        "start": shape.start,
        "end": shape.end,
        "change": shape.change,
        "low": shape.low,
        "high": shape.high,
        "per_1000_steps": shape.per_1000,
    }


def _tensors(found: TensorParting) -> dict[str, Any]:
    nearest = found.nearest
    return {
        "why_not": found.why_not,
        "first": [_parted(p) for p in found.first],
        "parted": found.parted,
        "common": found.common,
        "only_in_run": found.only_run,
        "only_in_baseline": found.only_base,
        "rows": found.rows,
        "first_step": found.first_row,
        "last_step": found.last_row,
        "not_compared": list(found.skipped),
        "nearest": None
        if nearest is None
        else {"tensor": nearest[0], "stat": nearest[1], "share_of_limit": nearest[2]},
    }


def _parted(p: Parted) -> dict[str, Any]:
    return {
        "tensor": p.tensor,
        "step": p.step,
        "stat": p.stat,
        "run": None if math.isnan(p.run) else p.run,
        "baseline": None if math.isnan(p.base) else p.base,
        "deviation": p.deviation,
        "limit": p.limit,
        "jumped": p.jumped,
        "unit": UNITS.get(p.stat),
        "order": p.order,
    }
