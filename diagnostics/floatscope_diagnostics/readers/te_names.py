"""What Transformer Engine's debug statistics are called here.

Names: transformer_engine/debug/features/utils/stats_computation.py and debug/pytorch/debug_quantization.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

ROLES = {
    "activation": "input",
    "weight": "weight",
    "output": "output",
    "gradient": "grad_output",
    "dgrad": "grad_input",
    "wgrad": "grad_weight",
}
_FORWARD = ("input", "weight", "output")
_NAME = re.compile(rf"(.{{1,800}})_({'|'.join(ROLES)})_([^\s/]{{1,120}})$")
_RECIPES = ("fp8_delayed_scaling_", "fp8_current_scaling_", "fp8_block_scaling_", "mxfp8_", "nvfp4_")
_OURS = {"underflows%": "underflow_pct", "overflows%": "overflow_pct", "cur_amax": "amax", "amax": "amax"}
# Magnitudes: printed as 0.0000 they are only known to be below the last digit.
_MAGNITUDES = frozenset(
    ("cur_amax", "amax", "std", "variance", "l1_norm", "l2_norm", "mse", "scale_inv_min", "scale_inv_max")
)
_STATS = _MAGNITUDES | {
    "min", "max", "mean", "sum", "numel", "dynamic_range", "underflows%", "overflows%", "underflows_num",
    "overflows_num", "total_square_error",
}  # fmt: skip
LAST_DIGIT = 1e-4  # nvdlfw_inspect/logging.py prints value={:.4f}
_SURE_DIGITS = 100 * LAST_DIGIT  # a quotient of a value below it would be wrong by more than a half percent


def tensor_and_stat(name: str) -> tuple[str, str] | None:
    """``layer/role`` and the statistic's own name; None for another kind of name."""
    match = _NAME.match(name)
    if match is None:
        return None
    layer, tensor, stat = match.groups()
    return f"{layer.replace('/', '.')}/{ROLES[tensor]}", stat


def is_statistic(name: str) -> bool:
    """Whether a tracker's curve is one of these statistics; ``conv_weight_norm`` is not."""
    found = tensor_and_stat(name)
    return found is not None and plain(found[1].removesuffix("_columnwise")) in _STATS


def call_orders(tensors: Iterable[str]) -> dict[str, dict[str, int]]:
    """The table of a run's tensors: layers count in the order in which their forward tensors stand."""
    order: dict[str, int] = {}
    for name in tensors:
        layer, _, role = name.rpartition("/")
        if role in _FORWARD:
            order.setdefault(layer, len(order))
    return {f"{layer}/{role}": {"call_order": k} for layer, k in order.items() for role in ROLES.values()}


def too_small(stat: str, value: float) -> bool:
    """Whether the printed value only says that it is below the last digit."""
    return value == 0.0 and plain(stat) in _MAGNITUDES


def plain(stat: str) -> str:
    """The statistic without the recipe it was computed for."""
    return next((stat[len(r) :] for r in _RECIPES if stat.startswith(r)), stat)


def our_stats(found: Mapping[str, float]) -> dict[str, float]:
    """One tensor's statistics of one step under our names; those without one keep theirs.

    A statistic computed for the recipe in use wins over one of a named recipe.
    """
    by_plain: dict[str, float] = {}
    for stat, value in found.items():
        if plain(stat) == stat:
            by_plain[stat] = value
        else:
            by_plain.setdefault(plain(stat), value)
    out = {k.replace("%", "_pct"): v for k, v in found.items() if k not in _OURS}
    out |= {ours: by_plain[theirs] for theirs, ours in _OURS.items() if theirs in by_plain}
    if "amax" not in out and {"min", "max"} <= by_plain.keys():
        amax = max(abs(by_plain["min"]), abs(by_plain["max"]))
        if amax != 0.0:
            out["amax"] = amax if by_plain["min"] == by_plain["min"] else math.nan
    _add_scale(by_plain, out)
    _add_rms(by_plain, out)
    mse, rms = by_plain.get("mse", 0.0), out.get("rms", 0.0)
    if mse >= _SURE_DIGITS and rms >= _SURE_DIGITS and math.isfinite(mse) and math.isfinite(rms):
        out["sqnr_db"] = 10.0 * math.log10(rms * rms / mse)
    return out


def _add_scale(found: Mapping[str, float], out: dict[str, float]) -> None:
    """scale = 1 / scale_inv, where the tensor has one: of blocks the smallest and the largest differ."""
    low = found.get("scale_inv_min", found.get("scale_inv_max"))
    high = found.get("scale_inv_max", low)
    if low is None or low != high or low < _SURE_DIGITS:
        return
    out["scale"] = 1.0 / low


def _add_rms(found: Mapping[str, float], out: dict[str, float]) -> None:
    if "l2_norm" in found and found.get("numel", 0.0) > 0:
        out["rms"] = found["l2_norm"] / math.sqrt(found["numel"])
    elif {"std", "mean"} <= found.keys():
        out["rms"] = math.hypot(found["std"], found["mean"])
