"""From a run's stored numbers of a tensor at one step to its what-if."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from floatscope.protocol.formats import FORMATS
from floatscope.protocol.names import HIST_BINS
from floatscope_diagnostics.whatif.document import InUse, TensorWhatIf
from floatscope_diagnostics.whatif.predict import answer
from floatscope_diagnostics.whatif.spread import BLOCK_NAMES, BlockAmax, Spread
from floatscope_diagnostics.whatif.variant import Variant

BLOCK_STATS = tuple(f"{name}_amax_{what}_log2" for name in BLOCK_NAMES.values() for what in ("sd", "mean"))
READ_STATS = (
    "amax", "amax_min_block", "rms", "scale", "overflow_pct", "underflow_pct", "zero_pct", "sqnr_db",
    *BLOCK_STATS,
)  # fmt: skip
"""Statistics of a tensor that a what-if uses."""
FLOAT32_MIN, FLOAT32_MAX = 2.0**-149, (2.0 - 2.0**-23) * 2.0**127
"""Smallest and largest positive value of float32."""
MOST_OCTAVES = 150.0
"""Of log2 block amax: float32 reaches from 2**-149 to 2**128. What is beyond was never measured, and a model
of blocks so far apart would take memory without end."""


def spread_from(
    counts: Sequence[int],
    stats: Mapping[str, float | None],
    facts: Mapping[str, Any] | None = None,
    *,
    step: int | None = None,
    stats_step: int | None = None,
) -> Spread:
    """The spread of a stored tensor.

    counts: hist_log2.  stats: statistics by the protocol's names, absent or None where missing.  facts: of
    the tensor table (``format``, ``row_length``, ``rows_every``).  Odd values count as missing; raises
    ValueError only for counts that are no histogram.
    """
    histogram = np.asarray(counts, np.int64)
    if histogram.shape != (HIST_BINS,) or (histogram < 0).any():
        raise ValueError(f"a histogram has {HIST_BINS} counts from 0 on")
    known = facts or {}
    used = known.get("format")
    blocks: dict[int, BlockAmax] = {}
    for size, name in BLOCK_NAMES.items():
        sd = _finite(stats.get(f"{name}_amax_sd_log2"))
        mean = _finite(stats.get(f"{name}_amax_mean_log2"))
        if sd is not None and 0 <= sd <= MOST_OCTAVES:
            blocks[size] = BlockAmax(sd, mean if mean is not None and abs(mean) <= MOST_OCTAVES else None)
    kind = FORMATS.get(used) if isinstance(used, str) else None
    zero = _finite(stats.get("zero_pct"))
    is_own_step = stats_step is None or stats_step == step
    return Spread(
        counts=histogram,
        amax=_of_float32(stats.get("amax")),
        rms=_finite(stats.get("rms")) if zero is not None and is_own_step else None,
        scale=_of_float32(stats.get("scale")),
        format_in_use=used if isinstance(used, str) else None,
        row_length=_whole(known.get("row_length")),
        blocks=blocks,
        amax_min_block=_finite(stats.get("amax_min_block")),
        zero_share=zero / 100.0 if zero is not None and 0.0 <= zero < 100.0 else 0.0,
        min_block_size=kind.block_size if kind is not None else None,
        rows_every=_whole(known.get("rows_every")) or 1,
        step=step,
        stats_step=stats_step,
    )


def what_if(
    tensor: str,
    counts: Sequence[int],
    stats: Mapping[str, float | None],
    facts: Mapping[str, Any] | None = None,
    *,
    step: int | None = None,
    stats_step: int | None = None,
    variants: Sequence[Variant] | None = None,
) -> TensorWhatIf:
    """The answer for a stored tensor; arguments as ``spread_from``."""
    spread = spread_from(counts, stats, facts, step=step, stats_step=stats_step)
    found = answer(spread, variants)
    return TensorWhatIf(
        tensor=tensor,
        predicted=found.predicted,
        flags=found.flags,
        step=step,
        format_in_use=spread.format_in_use,
        variant_in_use=variant_in_use(spread),
        amax=spread.amax,
        scale=spread.scale,
        in_use=in_use(stats),
    )


def in_use(stats: Mapping[str, float | None]) -> InUse | None:
    """What the run measured of its own cast; percentages of all elements become those of non-zero ones."""
    zero = stats.get("zero_pct") or 0.0
    share = 1.0 - zero / 100.0 if 0.0 <= zero < 100.0 else 1.0
    under, over = (_finite(stats.get(name)) for name in ("underflow_pct", "overflow_pct"))
    sqnr = _finite(stats.get("sqnr_db"))
    if under is None and over is None and sqnr is None:
        return None
    return InUse(None if under is None else under / share, None if over is None else over / share, sqnr)


def variant_in_use(spread: Spread) -> str | None:
    """The variant of the run's own cast: several scales in FP8 may be of rows or of blocks, which no
    statistic says, and MX scales are taken as rounded up, as Transformer Engine does (torchao's recipe
    mxfp8_cublas does not).
    """
    used = spread.format_in_use
    if used == "bf16":
        return used
    if used in ("e4m3", "e5m2"):
        is_one = spread.scale is not None and spread.amax_min_block is None
        return f"{used}_tensor_as_used" if is_one else None
    return {"mxfp8_e4m3": "mxfp8_e4m3_up", "mxfp8_e5m2": "mxfp8_e5m2_up", "nvfp4": "nvfp4"}.get(used or "")


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _of_float32(value: float | None) -> float | None:
    """A largest value or a scale that there can be: beyond float32 it is none, and would overflow here."""
    found = _finite(value)
    return found if found == 0.0 or (found and FLOAT32_MIN <= found <= FLOAT32_MAX) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
