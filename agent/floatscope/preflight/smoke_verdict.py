"""What the error of a smoke GEMM says: the format works, is not used, or computes something else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from floatscope.preflight.check import Check, Status
from floatscope.preflight.smoke_gemm import Measured
from floatscope.preflight.table_reading import read_table, worst


def status_of(entry: Mapping[str, Any], measured: Measured) -> tuple[Status, str]:
    """(status, why) of one GEMM by the table's bands."""
    table = read_table("gemm_errors")
    if measured.error:
        return "unknown", measured.error
    error = measured.relative_error
    if error is None or not math.isfinite(error):
        return "fail", "the result is not a number"
    expected = float(entry[measured.distribution])
    wrong, unused = table["wrong_scale"], table["not_used"]
    if error >= wrong["from"]:
        return "fail", wrong["why"]
    if _is_unused(entry, measured, unused):
        return "fail", unused["why"]
    kernel, bias = table["kernel"], table["bias"]
    if measured.kernel_error is not None and not measured.kernel_error <= kernel["fail_above"]:
        return "fail", f"against its own rounded operands {measured.kernel_error:.4f}, expected 0.0017"
    off = 100 * abs(error / expected - 1)
    if off > table["bands"]["warn_pct"]:
        return "fail", f"{off:.0f} % off what this format gives"
    if measured.bias_pct is not None and measured.bias_pct < bias["warn_below_pct"]:
        return "warn", f"sums come out {-measured.bias_pct:.2f} % too small: fast accumulation"
    if off > table["bands"]["pass_pct"]:
        return "warn", f"{off:.0f} % off what this format gives"
    return "pass", "as this format gives"


def _is_unused(entry: Mapping[str, Any], measured: Measured, unused: Mapping[str, Any]) -> bool:
    """Only N(0,1) tells the formats apart."""
    if entry["format"] == "bf16" or measured.distribution != "normal" or measured.relative_error is None:
        return False
    return bool(measured.relative_error <= unused["expected"] * (1 + unused["within_pct"] / 100))


def row_of(entry: Mapping[str, Any], measured: Measured) -> dict[str, Any]:
    """The row of preflight's document; numbers that are not finite are null, and an emulated format that
    comes out right is not applicable: no kernel was tried.
    """
    status = status_of(entry, measured)[0]
    return {
        "format": measured.format,
        "distribution": measured.distribution,
        "shape": list(measured.shape),
        "device": measured.device,
        "emulated": measured.emulated,
        "relative_error": _finite(measured.relative_error),
        "expected": entry[measured.distribution],
        "kernel_error": _finite(measured.kernel_error),
        "bias_pct": _finite(measured.bias_pct),
        "status": "not_applicable" if measured.emulated and status == "pass" else status,
        "seconds": round(measured.seconds, 4),
        "tflops": None,
        "share_of_peak_pct": None,
    }


def check_of(entry: Mapping[str, Any], measured: Sequence[Measured]) -> Check:
    """One check of a format over its GEMMs. An emulated one that comes out right proves nothing of a kernel:
    it is not applicable.
    """
    verdicts = [status_of(entry, one) for one in measured]
    status = worst([one for one, _ in verdicts])
    shown = "; ".join(_shown(entry, one) for one in measured)
    emulated = any(one.emulated for one in measured)
    how = "emulated, torch has no GEMM of it here" if emulated else "torch's own GEMM"
    why = "; ".join(dict.fromkeys(why for one, why in verdicts if one == status))
    device = measured[0].device if measured else "cpu"
    if emulated and status == "pass":
        status, why = "not_applicable", f"{why}, but only its rounding was tried, no kernel"
    return Check(
        f"gemm.{entry['format']}.{device}",
        "gemm",
        status,
        f"{entry['words']} on {device} ({how}): {shown}",
        f"{why}. The error of a format is known to 1 %, so a GEMM that is off it computes something else",
        ""
        if status in ("pass", "not_applicable")
        else "look at scales, layouts and versions before training in this format",
        read_table("gemm_errors")["source"],
    )


def _shown(entry: Mapping[str, Any], one: Measured) -> str:
    if one.error:
        return f"{one.distribution}: {one.error}"
    error = math.nan if one.relative_error is None else one.relative_error
    return f"{one.distribution} error {error:.4f}, expected {entry[one.distribution]:.4f}"


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 6)
