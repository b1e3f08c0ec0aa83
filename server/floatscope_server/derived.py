"""Statistics that follow from stored ones: sat = amax * scale / format_max, headroom_log2 = -log2(sat)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from floatscope.protocol.batch import Batch, Bool, Float32
from floatscope.protocol.formats import FORMATS

SAT, HEADROOM = "sat", "headroom_log2"
DERIVED = (SAT, HEADROOM)

_LARGEST = {name: f.max_finite for name, f in FORMATS.items() if f.is_scaled}
_NOTHING: Mapping[str, Any] = {}


def needs(stat: str, stored: Sequence[str]) -> tuple[str, ...]:
    """The stored statistics that ``stat`` is read from, given those the run has; empty without them."""
    if stat not in DERIVED:
        return (stat,) if stat in stored else ()
    own = (SAT,) if SAT in stored else ()
    return (*own, "amax", "scale") if "amax" in stored and "scale" in stored else own


def format_max(names: Sequence[str], tensors: Mapping[str, Mapping[str, Any]]) -> Float32:
    """Largest finite value of each tensor's format, float32 [S]; NaN where the format is not known or takes
    no scale.
    """
    return np.array(
        [_LARGEST.get(tensors.get(name, _NOTHING).get("format", ""), np.nan) for name in names], np.float32
    )


def derive(batch: Batch, stat: str, tensors: Mapping[str, Mapping[str, Any]]) -> tuple[Float32, Bool]:
    """Values float32 [D, S] and presence [D, S] of a stored or derived statistic of the batch."""
    return combine(
        stat,
        {name: batch.stat(name) for name in needs(stat, tuple(batch.stats))},
        batch.tensor_names,
        tensors,
    ) or (batch.stat(stat))


def combine(
    stat: str,
    parts: Mapping[str, tuple[Float32, Bool]],
    names: Sequence[str],
    tensors: Mapping[str, Mapping[str, Any]],
    *,
    limit: Float32 | None = None,
) -> tuple[Float32, Bool] | None:
    """The statistic from the stored ones of ``needs``; None without them.

    limit: ``format_max`` of the names, for who asks for many batches of the same.

    Where amax is 0 there is no headroom to speak of (log2 of 0), so it is missing there, while ``sat`` is 0.
    """
    if stat not in DERIVED:
        return parts.get(stat)
    found = _sat(parts, names, tensors, limit)
    if found is None or stat == SAT:
        return found
    sat, present = found
    with np.errstate(divide="ignore", invalid="ignore"):
        headroom = -np.log2(sat)
    return headroom, present & (sat != 0)


def _sat(
    parts: Mapping[str, tuple[Float32, Bool]],
    names: Sequence[str],
    tensors: Mapping[str, Mapping[str, Any]],
    limit: Float32 | None,
) -> tuple[Float32, Bool] | None:
    """``sat`` as sent where it was sent (the largest of several passes), else amax * scale / format_max."""
    sent = parts.get(SAT)
    if "amax" not in parts or "scale" not in parts:
        return sent
    (amax, has_amax), (scale, has_scale) = parts["amax"], parts["scale"]
    limit = format_max(names, tensors) if limit is None else limit
    with np.errstate(over="ignore", invalid="ignore"):
        made = amax * scale / limit
    present = has_amax & has_scale & ~np.isnan(limit)
    return (made, present) if sent is None else (np.where(sent[1], sent[0], made), sent[1] | present)
