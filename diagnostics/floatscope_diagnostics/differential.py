"""Which causes look alike, and the test that tells two of them apart.

The pairs and tests are those of the differential diagnosis of FP8 training: who moves first, what stays
still, and which one change of the run makes the difference.
"""

from __future__ import annotations

from collections.abc import Mapping

TEST_OF: Mapping[str, str] = {
    "invalid_input": "Replay this batch from the last clean checkpoint in BF16: bad values again prove the "
    "data.",
    "stale_scale_saturation": "Replay from the last clean step with current scaling for this layer: the "
    "clipping disappears.",
    "amax_history_poisoning": "Zero the amax history of this tensor: its scale returns at the next update.",
    "scale_state_fault": "Compute the scale from the amax history with the recipe's formula: it is not "
    "the one used.",
    "quantization_drift": "Switch all FP8 layers to BF16 for 50 steps: the gap to the baseline stops "
    "growing.",
    "gradient_underflow": "Run 50 steps with these gradients in BF16: the weights' grad_norm rises.",
    "update_stagnation": "Keep an FP32 copy of one weight for 50 steps: it moves and the stored weight does "
    "not.",
    "accumulation_precision": "Sum the micro-batches of one step in FP32 as well: the two sums differ by "
    "over 1 %.",
    "activation_outlier_growth": "Log amax by channel of this layer for 20 steps: one channel carries all "
    "the growth.",
    "activation_overflow": "Compute this one output in FP32 on the same batch: it has values beyond the "
    "format.",
    "logit_growth": "Log the largest attention logit of this layer for 20 steps: it grows from step to step.",
    "bad_batch": "Replay this batch from the checkpoint before it, in BF16: the same loss proves the data.",
    "data_shift": "Train 20 steps on data from before the boundary: the loss returns at once.",
    "lr_divergence": "Restart before the climb with a third of the learning rate: the loss keeps falling.",
    "optimizer_state_fault": "Print the norms of exp_avg and exp_avg_sq before and after this step: one "
    "jumps or is 0.",
    "master_weight_desync": "Compare master weights and model weights before the first update: they differ.",
    "loss_scale_collapse": "Run 50 steps in BF16 from before the first halving: gradients stay finite.",
    "dead_logits": "Print the largest and the smallest logit of one batch: they are equal.",
    "overfitting": "Compare the ids of the last hundred batches: they repeat.",
    "plateau": "Print the scheduler's learning rate for the next steps: it is 0.",
    "op_kernel_fault": "Recompute this operation in FP32 from its saved inputs: the result differs.",
    "comm_overlap_race": "Replay with all overlap flags off: the fault is gone.",
    "masked_nonfinite": "Replay the step with masking off and casts that do not saturate: the loss becomes "
    "NaN.",
    "rank_divergence": "Hash all parameters on every rank: the hashes differ.",
    "stall": "Run ten steps on another card with the same data: the same time means the loader.",
}
"""For each cause a test whose outcome, as written, speaks for it."""

_BETWEEN: tuple[tuple[str, str, str], ...] = (
    (
        "stale_scale_saturation",
        "amax_history_poisoning",
        "Log amax, scale and underflow of this tensor for 50 steps. A stale scale follows one update later "
        "and nothing underflows; a poisoned one stays low and underflow stays up until the outlier leaves "
        "the history.",
    ),
    (
        "stale_scale_saturation",
        "scale_state_fault",
        "Recompute the scale from the logged amaxes: equal to the one used, it is stale by the recipe's own "
        "delay; different, the scale state is wrong.",
    ),
    (
        "stale_scale_saturation",
        "activation_outlier_growth",
        "Switch this layer to current scaling for 50 steps: a stale scale is cured, growing outliers go on "
        "growing.",
    ),
    (
        "amax_history_poisoning",
        "gradient_underflow",
        "Zero the amax history of this tensor: if its scale returns it was poisoned; if values still "
        "underflow, the gradients are too small for the format.",
    ),
    (
        "amax_history_poisoning",
        "scale_state_fault",
        "Recompute the scale from the amax history: equal, an outlier holds it down; different, the state is "
        "wrong.",
    ),
    (
        "gradient_underflow",
        "scale_state_fault",
        "Recompute the scale from the logged amaxes: equal, the gradients have spread out; different, the "
        "scale is wrong.",
    ),
    (
        "gradient_underflow",
        "logit_growth",
        "Log the largest attention logit of this block for 20 steps: if it grows, attention saturates and "
        "its gradients vanish; if it stays, the scale of the gradients is the fault.",
    ),
    (
        "gradient_underflow",
        "loss_scale_collapse",
        "Hold the loss scale at 65536 for 50 steps: overflow again means the range, no more zeros means "
        "underflow.",
    ),
    (
        "gradient_underflow",
        "update_stagnation",
        "Log grad_norm and unchanged_pct of these weights for 50 steps: small gradients are underflow, "
        "normal gradients with unchanged weights are stagnation.",
    ),
    (
        "activation_outlier_growth",
        "quantization_drift",
        "Log amax by channel of this layer for 20 steps: one growing channel is outliers, none is rounding.",
    ),
    (
        "activation_outlier_growth",
        "logit_growth",
        "Log amax by channel of this layer and the largest attention logit for 20 steps: the one that grows "
        "is it.",
    ),
    (
        "quantization_drift",
        "accumulation_precision",
        "Accumulate in FP32 for 50 steps with the same casts: if the gap stays it is rounding, else the "
        "sums.",
    ),
    (
        "quantization_drift",
        "op_kernel_fault",
        "Switch all FP8 layers to BF16 for 50 steps: if the gap closes it is precision, else compare each "
        "layer's output with an FP32 reference.",
    ),
    (
        "bad_batch",
        "data_shift",
        "Watch ten more steps: a bad batch is over at the next one, a shift of the data stays.",
    ),
    (
        "bad_batch",
        "op_kernel_fault",
        "Replay this batch from the checkpoint before it on another card in BF16: the same loss is the data, "
        "another loss is the operation.",
    ),
    (
        "bad_batch",
        "invalid_input",
        "Print the ids, labels and largest feature of this batch: out of range means invalid input.",
    ),
    (
        "bad_batch",
        "lr_divergence",
        "Replay from before the spike with this batch left out: no spike is the batch, a spike elsewhere is "
        "the rate.",
    ),
    (
        "data_shift",
        "lr_divergence",
        "Train 20 steps from before the turn on the old data: if the loss stays down the data changed, if "
        "it climbs again it is the learning rate.",
    ),
    (
        "data_shift",
        "op_kernel_fault",
        "Judge one old batch with the present weights: a normal loss means the data changed, a high one "
        "means the network computes something else.",
    ),
    (
        "data_shift",
        "optimizer_state_fault",
        "Compare update_norm and param_norm across the step: unmoved means the data, a jump means the "
        "optimizer.",
    ),
    (
        "lr_divergence",
        "optimizer_state_fault",
        "Print lr and the norms of exp_avg and exp_avg_sq around the step: a jump of lr is the rate, a jump "
        "of the moments the optimizer.",
    ),
    (
        "optimizer_state_fault",
        "master_weight_desync",
        "Compare master and model weights and the moments' norms before the first update: what differs is "
        "it.",
    ),
    (
        "optimizer_state_fault",
        "op_kernel_fault",
        "Recompute one update in FP32 from the stored gradient and moments: equal, the moments are wrong; "
        "different, the operation is.",
    ),
    (
        "activation_overflow",
        "op_kernel_fault",
        "Recompute this one operation in FP32 from its saved inputs: values beyond the format are overflow, "
        "finite and small ones prove the kernel.",
    ),
    (
        "activation_overflow",
        "loss_scale_collapse",
        "Run 50 steps in BF16 from before the first halving: activations beyond 65,504 are overflow; if "
        "none is, the scaler is wrong.",
    ),
    (
        "activation_overflow",
        "invalid_input",
        "Replay the step with the next batch: finite means the batch, not finite means the layer overflows.",
    ),
    (
        "op_kernel_fault",
        "comm_overlap_race",
        "Replay the step twice with overlap off, then on: wrong every time is the kernel, wrong only with "
        "overlap is the race.",
    ),
    (
        "op_kernel_fault",
        "rank_divergence",
        "Replay the step from the last checkpoint on another node: gone means the hardware, again means the "
        "kernel.",
    ),
    (
        "op_kernel_fault",
        "invalid_input",
        "Replay the step with the next batch: finite means the batch, not finite means the operation.",
    ),
    (
        "masked_nonfinite",
        "op_kernel_fault",
        "Replay the step with masking off: NaN in the loss means it was hidden, a finite loss means the "
        "operation.",
    ),
    (
        "plateau",
        "update_stagnation",
        "Print the learning rate and the share of unchanged weights: a rate of 0 is the schedule, unchanged "
        "weights at a rate above 0 are rounding.",
    ),
)
TEST_BETWEEN: Mapping[frozenset[str], str] = {frozenset((a, b)): text for a, b, text in _BETWEEN}

LOOKALIKE: Mapping[str, str] = {
    "invalid_input": "bad_batch",
    "stale_scale_saturation": "amax_history_poisoning",
    "amax_history_poisoning": "stale_scale_saturation",
    "scale_state_fault": "stale_scale_saturation",
    "quantization_drift": "accumulation_precision",
    "gradient_underflow": "scale_state_fault",
    "update_stagnation": "plateau",
    "accumulation_precision": "quantization_drift",
    "activation_outlier_growth": "quantization_drift",
    "activation_overflow": "op_kernel_fault",
    "logit_growth": "gradient_underflow",
    "bad_batch": "data_shift",
    "data_shift": "bad_batch",
    "lr_divergence": "optimizer_state_fault",
    "optimizer_state_fault": "lr_divergence",
    "master_weight_desync": "optimizer_state_fault",
    "loss_scale_collapse": "activation_overflow",
    "dead_logits": "plateau",
    "overfitting": "data_shift",
    "plateau": "update_stagnation",
    "op_kernel_fault": "comm_overlap_race",
    "comm_overlap_race": "op_kernel_fault",
    "masked_nonfinite": "op_kernel_fault",
    "rank_divergence": "op_kernel_fault",
    "stall": "rank_divergence",
}
"""For each cause the one it is taken for most easily."""

BY_SYMPTOM: Mapping[str, tuple[str, str]] = {
    "nonfinite": ("op_kernel_fault", "activation_overflow"),
    "divergence": ("lr_divergence", "optimizer_state_fault"),
    "spike_recovered": ("bad_batch", "stale_scale_saturation"),
    "spike_not_recovered": ("data_shift", "op_kernel_fault"),
    "drift_up": ("quantization_drift", "op_kernel_fault"),
    "overflow": ("stale_scale_saturation", "activation_outlier_growth"),
    "underflow": ("gradient_underflow", "scale_state_fault"),
    "scale_anomaly": ("scale_state_fault", "rank_divergence"),
    "rank_split": ("rank_divergence", "op_kernel_fault"),
    "restart": ("optimizer_state_fault", "master_weight_desync"),
    "plateau": ("update_stagnation", "plateau"),
    "frozen_loss": ("dead_logits", "masked_nonfinite"),
}
"""For a symptom that no rule explains the causes that show it most often."""
ANY_SYMPTOM = ("op_kernel_fault", "data_shift")


def candidates(cause: str, symptom: str) -> tuple[str, ...]:
    """Causes to weigh beside a named one, or beside nothing where none is named; the likeliest first."""
    if cause == "undetermined":
        return BY_SYMPTOM.get(symptom, ANY_SYMPTOM)
    return (LOOKALIKE[cause],) if cause in LOOKALIKE else ()


def deciding_test(a: str, b: str, *, own: Mapping[str, str]) -> str:
    """The test that tells two causes apart. own: by cause, the test its rule gave for this very incident."""
    known = TEST_BETWEEN.get(frozenset((a, b)))
    if known is not None:
        return known
    tests = [
        f"For {c.replace('_', ' ')}: {own.get(c) or TEST_OF[c]}" for c in (a, b) if c in own or c in TEST_OF
    ]
    return " ".join(tests)
