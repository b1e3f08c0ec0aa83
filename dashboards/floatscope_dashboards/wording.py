"""Words and numbers as people read them: status signs, causes, signals, numbers.

Status is always colour and shape and word together (WCAG 1.4.1: colour is never the only carrier). The texts
of tables are marked for translation here and said where they are shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floatscope_dashboards.say import NARROW_SPACE, NO_VALUE, later


@dataclass(frozen=True)
class Sign:
    """How one status looks: CSS class and icon name `kind`, character `glyph` for titles, `word`."""

    kind: str
    glyph: str
    word: str


HEALTH: Mapping[str, Sign] = {
    "critical": Sign("crit", "\u25b2", later("Critical")),
    "warning": Sign("warn", "\u25c6", later("Warning")),
    "watch": Sign("info", "\u25cb", later("Watch")),
    "warming_up": Sign("dots", "\u2026", later("Warming up")),
    "healthy": Sign("ok", "\u2713", later("Healthy")),
}
STATUS: Mapping[str, Sign] = {
    "running": Sign("run", "\u25b6", later("Running")),
    "stalled": Sign("stall", "\u2016", later("Stalled")),
    "finished": Sign("end", "\u25a0", later("Finished")),
    "failed": Sign("no", "\u2715", later("Failed")),
    "crashed": Sign("no", "\u2715", later("Crashed")),
}
LIVE_STATUS = ("running", "stalled")
MINUS = "\u2212"
RECOVERED_SIGN = Sign("back", "\u21ba", later("Recovered"))
UNKNOWN_SIGN = Sign("idle", "?", later("Unknown"))

SEVERITY_ORDER: Mapping[str, int] = {"critical": 0, "warning": 1, "watch": 2, "info": 2, "healthy": 3}

# One plain phrase per cause of the verdict schema.
CAUSES: Mapping[str, str] = {
    "invalid_input": later("Invalid input data"),
    "stale_scale_saturation": later("Scale too old, values clip"),
    "amax_history_poisoning": later("Amax history poisoned"),
    "scale_state_fault": later("FP8 scale state is wrong"),
    "quantization_drift": later("Drift from rounding"),
    "gradient_underflow": later("Gradients underflow to zero"),
    "update_stagnation": later("Weight updates are rounded away"),
    "accumulation_precision": later("Sums lose precision"),
    "activation_outlier_growth": later("Activation outliers grow"),
    "activation_overflow": later("Activations overflow"),
    "logit_growth": later("Logits grow"),
    "bad_batch": later("Bad batch"),
    "data_shift": later("Data distribution changed"),
    "lr_divergence": later("Learning rate too high"),
    "optimizer_state_fault": later("Optimizer state is wrong"),
    "master_weight_desync": later("Master weights out of step"),
    "loss_scale_collapse": later("Loss scale collapsed"),
    "dead_logits": later("Logits went flat"),
    "overfitting": later("Overfitting"),
    "plateau": later("Loss has stopped falling"),
    "op_kernel_fault": later("An operation computes wrong values"),
    "comm_overlap_race": later("Race between communication and compute"),
    "masked_nonfinite": later("Non-finite values are masked"),
    "rank_divergence": later("Ranks have diverged"),
    "stall": later("Steps stall"),
    "undetermined": later("Cause not determined"),
}

KINDS: Mapping[str, str] = {
    "nonfinite_values": later("non-finite values"),
    "out_of_range_values": later("values out of range"),
    "id_out_of_range": later("token id out of range"),
    "empty_targets": later("no targets in the batch"),
    "frozen": later("scale frozen"),
    "nonfinite_scale": later("scale not finite"),
    "lost_at_resume": later("lost at resume"),
    "reduction_group": later("wrong reduction group"),
    "recompute": later("changed on recompute"),
    "degenerate_amax": later("degenerate amax"),
    "stale_fp8_copy": later("stale FP8 copy"),
}


@dataclass(frozen=True)
class Signal:
    """A scalar or tensor statistic: what people call it and its unit ("" when it has none)."""

    label: str
    unit: str


SIGNALS: Mapping[str, Signal] = {
    "loss": Signal(later("Loss"), later("nats")),
    "eval_loss": Signal(later("Held-out loss"), later("nats")),
    "ref_loss": Signal(later("Reference loss"), later("nats")),
    "grad_norm": Signal(later("Gradient norm"), ""),
    "lr": Signal(later("Learning rate"), ""),
    "loss_scale": Signal(later("Loss scale"), ""),
    "skipped_steps": Signal(later("Skipped steps"), ""),
    "update_norm": Signal(later("Update norm"), ""),
    "param_norm": Signal(later("Parameter norm"), ""),
    "zero_grad_pct": Signal(later("Gradient elements that are exactly 0"), "%"),
    "label_tokens": Signal(later("Label tokens"), ""),
    "loss_nonfinite": Signal(later("Loss"), ""),
    "nan_count + inf_count": Signal(later("Values that are NaN or Inf"), ""),
    "step_time_s": Signal(later("Step time"), "s"),
    "data_time_s": Signal(later("Data wait"), "s"),
    "amax": Signal(later("Largest magnitude (amax)"), ""),
    "amax_min_block": Signal(later("Smallest block amax"), ""),
    "rms": Signal(later("RMS"), ""),
    "scale": Signal(later("FP8 scale"), ""),
    "sat": Signal(later("Saturation (amax x scale / format max)"), ""),
    "headroom_log2": Signal(later("Headroom to format max"), later("binades")),
    "nan_count": Signal(later("NaN values"), ""),
    "inf_count": Signal(later("Inf values"), ""),
    "overflow_pct": Signal(later("Values clipped"), "%"),
    "underflow_pct": Signal(later("Values rounded to 0"), "%"),
    "zero_pct": Signal(later("Values that are 0"), "%"),
    "sqnr_db": Signal(later("Quantization SNR"), "dB"),
    "update_ratio": Signal(later("Update / weight ratio"), ""),
    "unchanged_pct": Signal(later("Weights unchanged by the step"), "%"),
    "shadow_scale": Signal(later("Scale against recipe's own rule"), ""),
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
    """About four significant digits; NaN, Inf, -Inf and missing stay four different texts from 0. The sign
    of a negative number is a minus, as wide as a digit.
    """
    if value is None:
        return NO_VALUE
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    return (MINUS if value < 0 else "") + _size_text(abs(value))


def _size_text(size: float) -> str:
    if size == int(size) and size < 1e15:
        return f"{int(size):,}" if size < 1e9 else f"{size:.3g}"
    if size >= 1000:
        return f"{size:,.0f}" if size < 1e9 else f"{size:.3g}"
    return f"{size:.3g}" if size < 1e-3 else f"{size:.4g}"


def signed_text(value: float, decimals: int) -> str:
    """A change, always with its sign: +0.83, \u22120.09."""
    return f"{value:+,.{decimals}f}".replace("-", MINUS)


def loss_text(value: float | None) -> str:
    """A loss with four significant digits kept, so that 2.100 and 2.104 line up."""
    if value is None or not math.isfinite(value):
        return number_text(value)
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.3f}" if abs(value) < 100 else number_text(value)


def with_unit(text: str, unit: str) -> str:
    """Number and unit, kept together on one line."""
    return f"{text}{NARROW_SPACE}{unit}" if unit else text
