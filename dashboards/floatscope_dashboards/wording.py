"""Words and numbers as people read them: status signs, causes, signals, steps, durations.

Status is always colour and shape and word together (WCAG 1.4.1: colour is never the only carrier).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
NARROW_SPACE = "\u202f"
"""Between a number and its unit: keeps them on one line."""
NO_VALUE = "\u2013"


@dataclass(frozen=True)
class Sign:
    """How one status looks: CSS class and icon name `kind`, character `glyph` for titles, `word`."""

    kind: str
    glyph: str
    word: str


HEALTH: Mapping[str, Sign] = {
    "critical": Sign("crit", "\u25b2", "Critical"),
    "warning": Sign("warn", "\u25c6", "Warning"),
    "watch": Sign("info", "\u25cb", "Watch"),
    "healthy": Sign("ok", "\u2713", "Healthy"),
}
STATUS: Mapping[str, Sign] = {
    "running": Sign("run", "\u25b6", "Running"),
    "stalled": Sign("stall", "\u2016", "Stalled"),
    "finished": Sign("end", "\u25a0", "Finished"),
    "failed": Sign("no", "\u2715", "Failed"),
    "crashed": Sign("no", "\u2715", "Crashed"),
}
LIVE_STATUS = ("running", "stalled")
RECOVERED_SIGN = Sign("back", "\u21ba", "Recovered")
UNKNOWN_SIGN = Sign("idle", "?", "Unknown")

SEVERITY_ORDER: Mapping[str, int] = {"critical": 0, "warning": 1, "watch": 2, "info": 2, "healthy": 3}

# One plain phrase per cause of the verdict schema.
CAUSES: Mapping[str, str] = {
    "invalid_input": "Invalid input data",
    "stale_scale_saturation": "Scale too old, values clip",
    "amax_history_poisoning": "Amax history poisoned",
    "scale_state_fault": "FP8 scale state is wrong",
    "quantization_drift": "Drift from rounding",
    "gradient_underflow": "Gradients underflow to zero",
    "update_stagnation": "Weight updates are rounded away",
    "accumulation_precision": "Sums lose precision",
    "activation_outlier_growth": "Activation outliers grow",
    "activation_overflow": "Activations overflow",
    "logit_growth": "Logits grow",
    "bad_batch": "Bad batch",
    "data_shift": "Data distribution changed",
    "lr_divergence": "Learning rate too high",
    "optimizer_state_fault": "Optimizer state is wrong",
    "master_weight_desync": "Master weights out of step",
    "loss_scale_collapse": "Loss scale collapsed",
    "dead_logits": "Logits went flat",
    "overfitting": "Overfitting",
    "plateau": "Loss has stopped falling",
    "op_kernel_fault": "An operation computes wrong values",
    "comm_overlap_race": "Race between communication and compute",
    "masked_nonfinite": "Non-finite values are masked",
    "rank_divergence": "Ranks have diverged",
    "stall": "Steps stall",
    "undetermined": "Cause not determined",
}

KINDS: Mapping[str, str] = {
    "nonfinite_values": "non-finite values",
    "out_of_range_values": "values out of range",
    "id_out_of_range": "token id out of range",
    "empty_targets": "no targets in the batch",
    "frozen": "scale frozen",
    "nonfinite_scale": "scale not finite",
    "lost_at_resume": "lost at resume",
    "reduction_group": "wrong reduction group",
    "recompute": "changed on recompute",
    "degenerate_amax": "degenerate amax",
    "stale_fp8_copy": "stale FP8 copy",
}


@dataclass(frozen=True)
class Signal:
    """A scalar or tensor statistic: what people call it and its unit ("" when it has none)."""

    label: str
    unit: str


SIGNALS: Mapping[str, Signal] = {
    "loss": Signal("Loss", "nats"),
    "eval_loss": Signal("Held-out loss", "nats"),
    "ref_loss": Signal("Reference loss", "nats"),
    "grad_norm": Signal("Gradient norm", ""),
    "lr": Signal("Learning rate", ""),
    "loss_scale": Signal("Loss scale", ""),
    "skipped_steps": Signal("Skipped steps", ""),
    "update_norm": Signal("Update norm", ""),
    "param_norm": Signal("Parameter norm", ""),
    "zero_grad_pct": Signal("Gradient elements that are exactly 0", "%"),
    "label_tokens": Signal("Label tokens", ""),
    "step_time_s": Signal("Step time", "s"),
    "data_time_s": Signal("Data wait", "s"),
    "amax": Signal("Largest magnitude (amax)", ""),
    "amax_min_block": Signal("Smallest block amax", ""),
    "rms": Signal("RMS", ""),
    "scale": Signal("FP8 scale", ""),
    "sat": Signal("Saturation (amax x scale / format max)", ""),
    "headroom_log2": Signal("Headroom to format max", "binades"),
    "nan_count": Signal("NaN values", ""),
    "inf_count": Signal("Inf values", ""),
    "overflow_pct": Signal("Values clipped", "%"),
    "underflow_pct": Signal("Values rounded to 0", "%"),
    "zero_pct": Signal("Values that are 0", "%"),
    "sqnr_db": Signal("Quantization SNR", "dB"),
    "update_ratio": Signal("Update / weight ratio", ""),
    "unchanged_pct": Signal("Weights unchanged by the step", "%"),
    "shadow_scale": Signal("Scale against recipe's own rule", ""),
}

FRAMEWORKS: Mapping[str, str] = {
    "transformer_engine": "Transformer Engine",
    "torchao": "torchao",
    "megatron": "Megatron-LM",
    "deepspeed": "DeepSpeed",
    "pytorch": "PyTorch",
    "floatscope_train": "floatscope train",
}


def sentence_case(code: str) -> str:
    """`some_code` as "Some code", for words this table does not know."""
    text = code.replace("_", " ").strip()
    return text[:1].upper() + text[1:]


def cause_label(cause: str | None) -> str:
    """The cause in words; an unknown code is shown as readable text, None as an empty string."""
    if not cause:
        return ""
    return CAUSES.get(cause, sentence_case(cause))


def signal_of(name: str) -> Signal:
    """Label and unit of a signal; an unknown one keeps its own name."""
    unit = "%" if name.endswith("_pct") else "s" if name.endswith("_s") else ""
    return SIGNALS.get(name) or Signal(name if "_" in name else name[:1].upper() + name[1:], unit)


def health_sign(health: str) -> Sign:
    """Sign of a verdict status or severity ("info" reads as watch)."""
    return HEALTH.get("watch" if health == "info" else health, UNKNOWN_SIGN)


def status_sign(status: str) -> Sign:
    """Sign of a run status."""
    return STATUS.get(status, UNKNOWN_SIGN)


def step_text(step: int | None) -> str:
    """A step with thousands separators; a dash when there is none."""
    return NO_VALUE if step is None else f"{step:,}"


def as_float(value: Any) -> float | None:
    """A JSON number or the strings "NaN", "Infinity", "-Infinity" as float; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    return None


def as_int(value: Any) -> int | None:
    """A JSON integer (or a float that is one) as int; None for anything else."""
    number = as_float(value)
    return int(number) if number is not None and math.isfinite(number) and number == int(number) else None


def as_text(value: Any) -> str:
    """A JSON string as it is; "" for anything else."""
    return value if isinstance(value, str) else ""


def number_text(value: float | None) -> str:
    """About four significant digits; NaN, Inf, -Inf and missing stay four different texts from 0."""
    if value is None:
        return NO_VALUE
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}" if abs(value) < 1e9 else f"{value:.3g}"
    magnitude = abs(value)
    if magnitude >= 1000:
        return f"{value:,.0f}" if magnitude < 1e9 else f"{value:.3g}"
    if magnitude < 1e-3:
        return f"{value:.3g}"
    return f"{value:.4g}"


def loss_text(value: float | None) -> str:
    """A loss with four significant digits kept, so that 2.100 and 2.104 line up."""
    if value is None or not math.isfinite(value):
        return number_text(value)
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.3f}" if abs(value) < 100 else number_text(value)


def with_unit(text: str, unit: str) -> str:
    """Number and unit, kept together on one line."""
    return f"{text}{NARROW_SPACE}{unit}" if unit else text


def duration_text(seconds: float) -> str:
    """A duration in at most two units: "2 s", "14 min", "7 h 14 min", "21 d 6 h"; below zero reads as 0 s."""
    total = max(0, int(seconds))
    if total < MINUTE_S:
        return f"{total} s"
    if total < HOUR_S:
        return f"{total // MINUTE_S} min"
    if total < DAY_S:
        minutes = total % HOUR_S // MINUTE_S
        return f"{total // HOUR_S} h {minutes} min" if minutes else f"{total // HOUR_S} h"
    hours = total % DAY_S // HOUR_S
    return f"{total // DAY_S} d {hours} h" if hours else f"{total // DAY_S} d"


def count_text(count: int, singular: str, plural: str | None = None) -> str:
    """ "1 run", "3 runs"."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def diagnosis_label(cause: str | None, headline: str) -> str:
    """One line for a table: the headline when there is one, else the cause in words."""
    return headline.strip().removesuffix(".") or cause_label(cause)
