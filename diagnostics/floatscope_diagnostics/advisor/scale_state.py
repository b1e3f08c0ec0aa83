"""Whether only the state of the scales is at fault, while the values of the layers suit FP8 as they are.

The diagnosis may name such a fault. Without it, the statistics prove one: the values of every layer with a
problem would do under a scale of the recipe's own kind, made from their own amax, while the scale in use
alone explains what was measured. Then that scale is not the one that the recipe implies. Without histograms
amax and scale prove it, see ``headroom``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from floatscope_diagnostics.advisor.advice import Limits, NotDecided, Problem
from floatscope_diagnostics.advisor.choosing import cast_fault_db, tensors_of
from floatscope_diagnostics.advisor.everywhere import Everywhere
from floatscope_diagnostics.advisor.evidence import Evidence, TensorEvidence
from floatscope_diagnostics.advisor.headroom import wrong_scale
from floatscope_diagnostics.advisor.limits import ideal_sqnr_db
from floatscope_diagnostics.advisor.other_scalings import is_all_zero, outlook, prediction
from floatscope_diagnostics.advisor.words import counted, problem_sentence


def only_the_state(
    evidence: Evidence, layers: Collection[str], causes: Sequence[NotDecided], recipes: Sequence[str]
) -> Everywhere | None:
    """Not None if the diagnosis names the state of scales and a fresh scale is enough for every layer.

    layers: those that would change.  causes: of the diagnosis.  Layers without histograms are left to what
    the diagnosis says.
    """
    if not layers or not any(cause.code == "scale_state" for cause in causes):
        return None
    if not all(_suits_a_fresh_scale(evidence, layer) for layer in layers):
        return None
    seen = all(t.histogram is not None for layer in layers for t in tensors_of(evidence, layer))
    return _said(evidence, len(layers), recipes, _SUITS if seen else "by the diagnosis alone")


def proven_by_the_casts(
    evidence: Evidence, problems: Sequence[Problem], limits: Limits, recipes: Sequence[str]
) -> Everywhere | None:
    """Not None if a scale of the recipe's own kind would be enough for every layer with a problem; of a layer
    without histograms, if its scales are proven to be others than the recipe's, and to be what harms it.

    problems: worst first.  recipes: that are allowed. With delayed scaling current scaling must be among
    them: it is the same scale without a history.
    """
    if not problems or (is_delayed(evidence) and "current" not in recipes):
        return None
    layers = tuple(dict.fromkeys(problem.layer for problem in problems))
    blind = {x for x in layers if any(_is_unseen(t) for t in tensors_of(evidence, x))}
    if not all(_suits_its_own_recipe(evidence, layer) for layer in layers if layer not in blind):
        return None
    wrong = {p: _wrong_scale(evidence, p) for p in problems if p.layer in blind}
    if not all(wrong.values()):
        return None
    shown = [p for p in problems if p not in wrong and _follows_from_the_scale(evidence, p, limits)]
    if {p.layer for p in shown} != set(layers) - blind:
        return None
    if shown:
        return _said(
            evidence, len(layers), recipes, _BY_BOTH if blind else _SUITS, _proof(evidence, shown[0])
        )
    first, why = next(iter(wrong.items()))
    proof = (
        f"{first.layer} {problem_sentence(first)}; {why}. So that scale is not the one that the recipe makes "
        "from these amaxes. What a right scale would do to the values cannot be said without histograms "
        "(hist_log2): ask again about a run with one."
    )
    return _said(evidence, len(layers), recipes, "by amax and scale", proof)


def is_delayed(evidence: Evidence) -> bool:
    """Whether the scales of the run come from a history."""
    return evidence.tensors[0].recipe == "delayed"


_SUITS = "whose values suit FP8 with a scale of their own"
_BY_BOTH = "by histograms, or amax and scale where there are none"


def _said(evidence: Evidence, many: int, recipes: Sequence[str], seen: str, proof: str = "") -> Everywhere:
    """seen: by what."""
    recipe = "current" if is_delayed(evidence) and "current" in recipes else ""
    return Everywhere(
        "The state of the scales is at fault, not the precision of layers "
        f"(seen in {counted(many, 'layer')}, {seen}). Mend the state"
        + (", or take current scaling, which has none" if recipe else "")
        + "; no layer has to leave FP8"
        + ("." if seen == _SUITS else " for that."),
        recipe,
        proof,
    )


def _is_unseen(tensor: TensorEvidence) -> bool:
    return tensor.histogram is None and not is_all_zero(tensor)


def _wrong_scale(evidence: Evidence, problem: Problem) -> str:
    """What amax and scale prove about the tensor of a problem, "" if nothing."""
    tensor = next(t for t in evidence.tensors if t.name == problem.tensor)
    found = wrong_scale(evidence, tensor, problem)
    return "" if found is None else found.sentence(tensor)


def _suits_a_fresh_scale(evidence: Evidence, layer: str) -> bool:
    tensors = tensors_of(evidence, layer)
    return any(t.histogram is None for t in tensors) or outlook(tensors, "current").good


def _suits_its_own_recipe(evidence: Evidence, layer: str) -> bool:
    """Whether all operands are within limits by the prediction, and no cast is worse than its scale."""
    tensors = tensors_of(evidence, layer)
    return outlook(tensors, _fresh(tensors[0])).good and cast_fault_db(evidence, layer) is None


def _fresh(tensor: TensorEvidence) -> str:
    return "current" if tensor.recipe == "delayed" else tensor.recipe


def _follows_from_the_scale(evidence: Evidence, problem: Problem, limits: Limits) -> bool:
    """Whether the scale in use alone puts the tensor's newest values beyond the limit, by the prediction."""
    tensor = next(t for t in evidence.tensors if t.name == problem.tensor)
    found = prediction(tensor, f"{tensor.format}_tensor_as_used")
    ideal = ideal_sqnr_db(tensor.format)
    if found is None or not found.valid or ideal is None:
        return False
    beyond = (
        (found.underflow_pct or 0.0) > limits.underflow_pct(tensor.role),
        (found.overflow_pct or 0.0) > limits.overflow_pct,
        found.sqnr_db is not None and ideal - found.sqnr_db > limits.sqnr_loss_db,
    )
    return any(beyond)


def _proof(evidence: Evidence, problem: Problem) -> str:
    """What was measured beside what a scale of the same kind would do."""
    tensor = next(t for t in evidence.tensors if t.name == problem.tensor)
    step = "" if tensor.histogram is None else f" of step {tensor.histogram.step:,}"
    found = outlook([tensor], _fresh(tensor))
    kind = "current scaling" if tensor.recipe == "delayed" else f"{tensor.recipe} scaling, the recipe in use,"
    return (
        f"{problem.layer} {problem_sentence(problem)}. {kind[0].upper()}{kind[1:]} is predicted to be enough "
        f"for the same values (histogram{step}): {found.figures()}. So the scale that was used is not the "
        "one that these values call for."
    )
