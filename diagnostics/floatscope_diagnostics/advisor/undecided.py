"""What an advice cannot say, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from floatscope_diagnostics.advisor.advice import NotDecided
from floatscope_diagnostics.advisor.evidence import Evidence, TensorEvidence
from floatscope_diagnostics.advisor.gap import Gap
from floatscope_diagnostics.advisor.other_scalings import is_all_zero
from floatscope_diagnostics.advisor.problems import MIN_ROWS, Found
from floatscope_diagnostics.advisor.words import counted


def why_nothing(evidence: Evidence) -> NotDecided | None:
    """Why nothing can be said at all."""
    if not evidence.tensors:
        name = str(evidence.info.recipe.get("name") or "")
        if name in ("bf16", "fp16_amp", "fp32") or evidence.high:
            return NotDecided(
                "no_fp8", "No linear layer of this run is cast to FP8: there is nothing to take out of it."
            )
        return NotDecided(
            "no_statistics",
            "The log holds no statistics of FP8 tensors (overflow_pct, underflow_pct, sqnr_db of a layer's "
            "input, weight, grad_output). Watch the model with floatscope.watch(model), or with Transformer "
            "Engine's debug statistics.",
        )
    if len(evidence.steps) and not any(_is_measured(tensor) for tensor in evidence.tensors):
        return NotDecided(
            "no_statistics",
            "The FP8 tensors carry neither overflow_pct, underflow_pct nor sqnr_db: the casts are not "
            "watched. Set stats_every so that the agent measures them.",
        )
    if len(evidence.steps) < MIN_ROWS:
        where = ""
        if evidence.broken is not None:
            step, tensor = evidence.broken
            where = f" before the first value that is not finite, in {tensor} at step {step:,}"
        return NotDecided(
            "too_short",
            f"Only {counted(len(evidence.steps), 'step')} with statistics of tensors{where}; at least "
            f"{MIN_ROWS} are needed.",
        )
    return None


def gaps_of_the_log(evidence: Evidence, gap: Gap | None) -> Iterable[NotDecided]:
    if evidence.broken is not None:
        step, tensor = evidence.broken
        yield NotDecided(
            "nonfinite",
            f"{tensor} is not finite from step {step:,} on. The statistics before it were used; what made "
            "it so is a matter for floatscope diagnose.",
        )
    if evidence.tensors and all(t.histogram is None for t in evidence.tensors):
        yield NotDecided(
            "no_histograms",
            "The log has no histograms (hist_log2 of a tensor): finer scalings could not be judged, and BF16 "
            "is the only target. The agent logs them on every tenth sampled step, so a smaller stats_every "
            "gives a short run some.",
        )
    if gap is None:
        yield NotDecided(
            "no_baseline",
            "Without a baseline or a reference loss the gap is not known, and how much of it "
            "would close cannot be said.",
        )
    elif gap.nats < -gap.least_nats:
        yield NotDecided(
            "no_gap",
            f"The run is {-gap.nats:.4f} nats better than its reference: there is no gap to close. Early in "
            "training a crippled model can be ahead for a while.",
        )
    elif not gap.is_real:
        yield NotDecided(
            "no_gap",
            f"The run is {gap.nats:+.4f} nats from its reference (interval {gap.low_nats:+.4f} to "
            f"{gap.high_nats:+.4f}), within what healthy runs differ by ({gap.least_nats:.2g} nats): there "
            "is no gap to close.",
        )


def passed(found: Found) -> Iterable[NotDecided]:
    if found.passed:
        worst = found.passed[0]
        yield NotDecided(
            "passed",
            f"{counted(len(found.passed), 'problem')} ended before the last 100 steps (the worst in "
            f"{worst.tensor}, until step {worst.last_step:,}) and did not count.",
        )


def masked(evidence: Evidence, moved: Collection[str]) -> NotDecided | None:
    """Layers that stay and saw only zeros in an operand: behind a layer whose values vanish nothing is left
    to measure. None where no layer moves or none is hidden.
    """
    if not moved:
        return None
    hidden = [t for t in evidence.tensors if t.layer not in moved and t.role != "weight" and is_all_zero(t)]
    layers = list(dict.fromkeys(tensor.layer for tensor in hidden))
    if not layers:
        return None
    shown = ", ".join(layers[:3]) + (", ..." if len(layers) > 3 else "")
    return NotDecided(
        "masked",
        f"{counted(len(layers), 'layer')} that stay ({shown}) had nothing but zeros in {hidden[0].role}, "
        "behind the layers that lose theirs. What FP8 does there "
        "shows only after the change: ask again about the new run.",
    )


def _is_measured(tensor: TensorEvidence) -> bool:
    series = (tensor.underflow_pct, tensor.overflow_pct, tensor.sqnr_db)
    return any(bool((~np.isnan(values)).any()) for values in series)
