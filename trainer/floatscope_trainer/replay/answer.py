"""What the variants of a step say about the cause of a finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from floatscope_trainer.replay.variants import GradError, Outcome

AS_IT_WAS, LAYER_BF16, BF16, FP8_OFF = "as it was", "layer in bf16", "bf16", "FP8 off"

NOTICEABLE = 2.0
"""An error this many times that of a clean step is more than the format's usual rounding."""
EXPLAINED = 0.5  # share of the extra error that has to go with the layer's FP8 for the layer to be the cause

Verdict = Literal["layer", "precision", "not_precision", "unclear"]


@dataclass(frozen=True)
class Answer:
    """The answer of a replay.

    verdict: ``layer``: FP8 of the suspect layer does it. ``precision``: FP8 does it, but not (or not only) in
    that layer. ``not_precision``: it stays without FP8, or FP8 costs this step no more than a clean one.
    ``unclear``: it cannot be told.  explained: share of the extra error that goes with the layer's FP8.
    """

    verdict: Verdict
    summary: str
    explained: float | None = None


def answer(outcomes: Sequence[Outcome], *, layer: str | None, clean: GradError | None) -> Answer:
    """The answer.

    outcomes: by the names above, those that were run.  clean: the error, as it was, of a step before the
    fault; None if there is none to compare with.
    """
    by_name = {outcome.variant.name: outcome for outcome in outcomes}
    was, off = by_name[AS_IT_WAS], by_name[FP8_OFF]
    in_bf16, in_layer = by_name.get(BF16), by_name.get(LAYER_BF16)
    if not was.is_finite:
        return _of_nonfinite(off, in_bf16, in_layer, layer)
    if not off.is_finite or was.error is None:
        return Answer("unclear", "with FP8 off the step is not finite, as it was it is")
    if clean is None:
        return Answer(
            "unclear",
            f"FP8 changes the gradients by {_pct(was.error.whole)}; there is no earlier step after the "
            "checkpoint to compare with: give an older one",
        )
    told = (
        f"FP8 changes the gradients by {_pct(was.error.whole)} (in a clean step {_pct(clean.whole)}), "
        f"at worst those of {was.error.worst_weight} by {_pct(was.error.worst)} ({_pct(clean.worst)})"
    )
    is_local = was.error.worst / clean.worst > was.error.whole / clean.whole
    before, now = (clean.worst, was.error.worst) if is_local else (clean.whole, was.error.whole)
    if now < NOTICEABLE * before:
        return Answer(
            "not_precision", f"{told}: in this step FP8 is not what is wrong; look at data and optimizer"
        )
    if in_layer is None or in_layer.error is None or layer is None:
        return Answer("precision", f"{told}: FP8 is what is wrong; --layer tests one layer")
    left = in_layer.error.worst if is_local else in_layer.error.whole
    explained = min(max((now - left) / (now - before), 0.0), 1.0)
    share = f"{100 * explained:.0f} % of the excess goes with {layer} in bf16"
    if explained >= EXPLAINED:
        return Answer("layer", f"{told}; {share}: its FP8 is the cause", explained)
    return Answer("precision", f"{told}; but only {share}: the cause lies in FP8 elsewhere", explained)


def _of_nonfinite(off: Outcome, bf16: Outcome | None, in_layer: Outcome | None, layer: str | None) -> Answer:
    if not off.is_finite:
        return Answer(
            "not_precision",
            "the step is not finite with FP8 off either: look at batch, weights and learning rate",
        )
    if in_layer is not None and in_layer.is_finite:
        return Answer("layer", f"the step is finite with {layer} in bf16: its FP8 is the cause", 1.0)
    if bf16 is not None and not bf16.is_finite:
        return Answer("precision", "the step is finite in fp32 but not in bf16: a range that 16 bits lack")
    where = "" if in_layer is None else f", and is not with {layer} alone in bf16"
    return Answer("precision", f"the step is finite with FP8 off{where}: FP8 is the cause")


def to_json(
    found: Answer, outcomes: Sequence[Outcome], *, step: int, layer: str | None, clean: GradError | None
) -> dict[str, Any]:
    """The object that a verdict's finding carries as ``replay``."""
    return {
        "step": step,
        "layer": layer,
        "answer": found.verdict,
        "summary": found.summary,
        "explained": found.explained,
        "clean_grad_error": _error(clean),
        "variants": [
            {
                "name": outcome.variant.name,
                "precision": outcome.variant.precision,
                "loss": outcome.loss,
                "grad_norm": outcome.grad_norm,
                "grad_error": _error(outcome.error),
            }
            for outcome in outcomes
        ],
    }


def _error(error: GradError | None) -> dict[str, Any] | None:
    return None if error is None else vars(error).copy()


def _pct(share: float) -> str:
    return f"{100 * share:.3g} %"
