"""What can follow from what: the causal order of faults, by which one incident is one finding.

From the differential diagnosis of 18 failure classes measured on emulated FP8: update, then loss one step
later, then amax; NaN crosses the whole network inside one step and reaches the weights one step later.
"""

from __future__ import annotations

from floatscope_diagnostics.rule import FAMILY_OF

# Never a consequence of a numerical fault; a learning rate that diverges only of some, see _DIVERGES.
_INDEPENDENT = frozenset({"stall", "invalid_input", "lr_divergence", "overfitting"})
_ALL = frozenset(FAMILY_OF) - _INDEPENDENT
_DIVERGES = _ALL | {"lr_divergence"}  # a run that is broken or misled this far climbs as a rate too high does

# A scale that breaks its own formula is no consequence of values that are merely large or small: it is left
# out, and added where a weight's lost precision (kind stale_fp8_copy) has another explanation.
_FLUSHED = frozenset(
    {
        "undetermined", "gradient_underflow", "accumulation_precision", "quantization_drift",
        "update_stagnation", "bad_batch", "data_shift", "optimizer_state_fault", "activation_outlier_growth",
        "logit_growth", "op_kernel_fault", "dead_logits", "plateau", "stale_scale_saturation",
        "amax_history_poisoning", "masked_nonfinite", "activation_overflow", "lr_divergence",
        "rank_divergence",
    }
)  # fmt: skip

CONSEQUENCES: dict[str, frozenset[str]] = {
    "invalid_input": _DIVERGES,
    "stale_scale_saturation": _FLUSHED,
    "amax_history_poisoning": _FLUSHED,
    "scale_state_fault": _DIVERGES | {"invalid_input"},
    "quantization_drift": _FLUSHED | {"scale_state_fault"},
    "gradient_underflow": _FLUSHED,
    "accumulation_precision": _FLUSHED,
    "update_stagnation": frozenset({"optimizer_state_fault", "plateau", "undetermined", "data_shift"}),
    "activation_outlier_growth": _FLUSHED | {"scale_state_fault"},
    "activation_overflow": _DIVERGES,
    "logit_growth": _FLUSHED,
    "bad_batch": frozenset(
        {"undetermined", "data_shift", "stale_scale_saturation", "amax_history_poisoning"}
    ),
    "data_shift": _FLUSHED,
    "lr_divergence": _ALL,
    "optimizer_state_fault": _DIVERGES,
    "master_weight_desync": _DIVERGES,
    "loss_scale_collapse": _FLUSHED - {"activation_overflow"},
    "dead_logits": _FLUSHED,
    "overfitting": frozenset({"undetermined", "data_shift"}),
    "plateau": frozenset({"update_stagnation", "optimizer_state_fault", "undetermined"}),
    "op_kernel_fault": _DIVERGES,
    "comm_overlap_race": _DIVERGES,
    "masked_nonfinite": _FLUSHED | {"scale_state_fault"},
    "rank_divergence": _FLUSHED,
    "undetermined": _DIVERGES,  # a corrupted weight
}


def follows_from(cause: str, effect: str) -> bool:
    """Whether ``effect`` can be a consequence of ``cause``."""
    return cause != effect and effect in CONSEQUENCES.get(cause, frozenset())
