"""Preflight's answer in one sentence, and what it says of the layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from floatscope.preflight.check import Check
from floatscope.preflight.document import Preflight
from floatscope.preflight.recipe_names import words_of

_STATUS_WORDS = {"not_applicable": "not applicable"}


def sentence(found: Preflight) -> str:
    """``FP8 delayed scaling can train here: 23 pass, 2 warn.`` or what stands against it."""
    counted = counts_words(found)
    name = words_of(found.wanted.recipe)
    if found.decision == "fail":
        failing = [one.name for one in found.checks if one.status == "fail"] or ["no FP8 recipe runs here"]
        more = f" and {len(failing) - 2} more" if len(failing) > 2 else ""
        return f"{name} cannot train here as it is ({', '.join(failing[:2])}{more}): {counted}."
    if found.decision == "unknown":
        return f"Whether {name} can train here is not known ({open_because(found)}): {counted}."
    limits = ", with what is warned of below" if found.decision == "warn" else ""
    return f"{name} can train here{limits}: {counted}."


def counts_words(found: Preflight) -> str:
    """``23 pass, 2 warn, 4 unknown``, without what there is none of."""
    parts = [f"{n} {_STATUS_WORDS.get(status, status)}" for status, n in found.counts.items() if n]
    return ", ".join(parts) or "no check could be made"


def open_because(found: Preflight) -> str:
    """The reason of an answer that is open, in a few words."""
    if not found.facts.gpus:
        return "no GPU was seen"
    return found.open[0].read if found.open else "of no recipe it is known"


def layers_words(layers: Sequence[Mapping[str, Any]]) -> str:
    """``224 of 225 linear layers in FP8, 93.4 % of the GEMM FLOPs``; "" without layers."""
    if not layers:
        return ""
    total = sum(int(row.get("count") or 0) for row in layers)
    inside = [row for row in layers if row.get("in_fp8") is True]
    count = sum(int(row.get("count") or 0) for row in inside)
    share = sum(float(row.get("flops_share_pct") or 0.0) for row in inside)
    return f"{count:,} of {total:,} linear layers in FP8, {share:.1f} % of the GEMM FLOPs"


def worst_first(checks: Sequence[Check]) -> list[Check]:
    """The checks ordered by how bad they are, as they came within one status."""
    return sorted(checks, key=lambda one: SEVERITY.index(one.status))


SEVERITY = ("fail", "warn", "unknown", "pass", "not_applicable")
