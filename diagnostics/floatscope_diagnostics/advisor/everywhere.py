"""Whether the fault lies in the layers at all, or in what they share: the recipe, its settings, the cast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from floatscope_diagnostics.advisor.advice import Framework, Problem
from floatscope_diagnostics.advisor.choosing import cast_fault_db, tensors_of
from floatscope_diagnostics.advisor.evidence import Evidence
from floatscope_diagnostics.advisor.limits import budget
from floatscope_diagnostics.advisor.other_scalings import finer_than, outlook

FEWEST_LAYERS = 4
WHOLE_RUN: Mapping[Framework, tuple[str, ...]] = {
    "te": ("current", "block", "mxfp8"),
    "megatron": ("current", "block", "mxfp8"),
    "torchao": ("current", "rowwise"),
    "floatscope": ("current", "block", "mxfp8"),
}
"""Scalings that a framework has for a whole run."""


@dataclass(frozen=True)
class Everywhere:
    """sentence: what is common.  recipe: short name of one that would mend it for the whole run, "" if none
    is predicted to.  proof: what was measured beside what was predicted, "" where the sentence says it all.
    """

    sentence: str
    recipe: str = ""
    proof: str = ""


def everywhere(
    evidence: Evidence, problems: Sequence[Problem], recipes: Sequence[str], framework: Framework
) -> Everywhere | None:
    """Not None if most layers have the same problem. recipes: allowed, where the framework has them."""
    layers = evidence.layers
    if len(layers) < FEWEST_LAYERS:
        return None
    by_what: dict[str, set[str]] = {}
    for problem in problems:
        by_what.setdefault(problem.what, set()).add(problem.layer)
    hit = max(by_what.values(), key=len, default=set())
    if len(hit) < budget("everywhere_share") * len(layers):
        return None
    share = f"{len(hit):,} of {len(layers):,} layers have the same problem"
    faults = [fault for layer in layers if layer in hit if (fault := cast_fault_db(evidence, layer))]
    if len(faults) > len(hit) / 2:
        return Everywhere(
            f"{share}, and their casts lose about {sorted(faults)[len(faults) // 2]:.0f} dB more than "
            "rounding to nearest: repair the cast (rounding mode, kernel). Taking these layers out of FP8 is "
            "the same as training in BF16."
        )
    recipe = evidence.tensors[0].recipe
    unknown = []
    for finer in finer_than(recipe, [one for one in recipes if one in WHOLE_RUN[framework]]):
        found = [outlook(tensors_of(evidence, layer), finer) for layer in layers if layer in hit]
        if all(one.good or one.unknown for one in found) and any(one.unknown for one in found):
            unknown.append(finer)
        if all(one.good for one in found):
            return Everywhere(
                f"{share}: it is the recipe or its settings (margin, history), not the layers. {finer} "
                "scaling is predicted to be enough for all of them; change the recipe instead of moving "
                "layers.",
                finer,
            )
    return Everywhere(
        f"{share}: it is the recipe, its settings or the scale of the whole model, not single layers. Taking "
        "these layers out of FP8 is the same as training in BF16."
        + (f" Whether {' or '.join(unknown)} scaling would be enough cannot be said." if unknown else "")
    )
