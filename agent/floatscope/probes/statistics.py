"""From measurements of tensors to the protocol's statistics: several passes of a step become one number."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from floatscope.probes.measure import FIELDS
from floatscope.protocol.batch import Bool, Float32
from floatscope.rows import Block

_AT = {name: index for index, name in enumerate(FIELDS)}
_COUNTS = ("n", "nan", "inf", "zero", "over", "under")
_NORMS = ("norm", "signal", "noise")


def combine(calls: NDArray[np.float64], slots: NDArray[np.intp], size: int) -> NDArray[np.float64]:
    """One measurement per slot out of several calls.

    calls: float64 [calls, FIELDS].  slots: [calls], whose tensor each call measured.  Returns [size, FIELDS].
    Counts add up, norms as roots of sums of squares, amax is the largest, min_block the smallest, scale the
    last.
    """
    out = np.zeros((size, len(FIELDS)))
    for name in _COUNTS:
        np.add.at(out[:, _AT[name]], slots, calls[:, _AT[name]])
    for name in _NORMS:
        np.add.at(out[:, _AT[name]], slots, calls[:, _AT[name]] ** 2)
        out[:, _AT[name]] **= 0.5
    out[:, _AT["amax"]] = np.nan
    np.fmax.at(out[:, _AT["amax"]], slots, calls[:, _AT["amax"]])
    out[:, _AT["min_block"]] = np.inf
    np.minimum.at(out[:, _AT["min_block"]], slots, calls[:, _AT["min_block"]])
    out[slots, _AT["scale"]] = calls[:, _AT["scale"]]  # the last call of a slot stands
    for name in ("over", "under", "signal", "noise", "min_block"):
        column = out[:, _AT[name]]
        missing = np.zeros(size, bool)
        missing[slots] |= calls[:, _AT[name]] < 0
        column[missing] = -1.0
    return out


def statistics(found: NDArray[np.float64], *, names: tuple[str, ...], has_scale: Bool) -> Block:
    """The block of statistics of measured tensors.

    found: [n, FIELDS] from ``combine``.  has_scale: [n], whether a scale was used.
    rms is the root mean square of the finite elements; percentages are of all elements; sqnr_db is
    20 log10(signal / noise), missing where there is no signal or no noise.
    """
    n = found[:, _AT["n"]]
    finite = n - found[:, _AT["nan"]] - found[:, _AT["inf"]]
    with np.errstate(divide="ignore", invalid="ignore"):
        values = {
            "amax": found[:, _AT["amax"]],
            "rms": found[:, _AT["norm"]] / np.sqrt(finite),
            "nan_count": found[:, _AT["nan"]],
            "inf_count": found[:, _AT["inf"]],
            "zero_pct": 100.0 * found[:, _AT["zero"]] / n,
            "scale": found[:, _AT["scale"]],
            "amax_min_block": found[:, _AT["min_block"]],
            "overflow_pct": 100.0 * found[:, _AT["over"]] / n,
            "underflow_pct": 100.0 * found[:, _AT["under"]] / n,
            "sqnr_db": 20.0 * np.log10(found[:, _AT["signal"]] / found[:, _AT["noise"]]),
        }
    present = {
        "amax": ~np.isnan(values["amax"]),
        "rms": finite > 0,
        "scale": has_scale,
        "amax_min_block": found[:, _AT["min_block"]] >= 0,
        "overflow_pct": found[:, _AT["over"]] >= 0,
        "underflow_pct": found[:, _AT["under"]] >= 0,
        "sqnr_db": (found[:, _AT["signal"]] > 0) & (found[:, _AT["noise"]] > 0),
    }
    return block_of(names, values, present)


WOULD_BE = {
    "overflow_pct": "would_overflow_pct",
    "underflow_pct": "would_underflow_pct",
    "sqnr_db": "would_sqnr_db",
}
"""Names for what a cast would do that does not happen: no rule may take them for the real thing."""


def as_would_be(found: NDArray[np.float64], *, names: tuple[str, ...], has_scale: Bool) -> Block:
    """As ``statistics``, of tensors measured against a format that they are not cast to."""
    block = statistics(found, names=names, has_scale=has_scale)
    return Block(
        names,
        {new: block.stats[old] for old, new in WOULD_BE.items() if old in block.stats},
        {new: block.present[old] for old, new in WOULD_BE.items() if old in block.present},
    )


def block_of(
    names: tuple[str, ...], values: Mapping[str, NDArray[np.float64]], present: Mapping[str, Bool]
) -> Block:
    """A block in float32. A finite number beyond float32 is left out, it must not become an infinity."""
    stats: dict[str, Float32] = {}
    masks: dict[str, Bool] = {}
    with np.errstate(over="ignore", invalid="ignore"):
        for stat, wide in values.items():
            narrow = wide.astype(np.float32)
            mask = present.get(stat, np.ones(len(names), bool)) & ~(np.isinf(narrow) & np.isfinite(wide))
            if mask.any():
                stats[stat], masks[stat] = narrow, mask
    return Block(names, stats, masks)
