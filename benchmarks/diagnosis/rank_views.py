"""What several data-parallel ranks would have logged of a run that was trained on one.

A rank's activations and gradients are those of its part of the batch: their amax lies a little below the
whole batch's except on the rank that holds the largest value, and its gradient norm before the reduction
scatters around the reduced one. Weights, scales (amax is reduced over the ranks) and updates are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.diagnosis.store import with_column
from floatscope.protocol.batch import Batch

RANKS = 4
ODD_RANK = 1  # the one that a fault is put on
AMAX_SPREAD_LOG2 = 0.3  # of a rank's largest value below the batch's; the trainer's sequences differ so
NORM_SPREAD_LOG2 = 0.25  # of a rank's own gradient norm around the mean

Float64 = NDArray[np.float64]
View = Callable[[Mapping[int, Batch], int, Mapping[str, Any]], Mapping[int, Batch]]
"""From the ranks' batches, the step of the fault and the recipe to batches with the fault."""


def ranks_of(batch: Batch, *, seed: int, recipe: Mapping[str, Any]) -> dict[int, Batch]:
    """The batch as RANKS ranks would have logged it."""
    reduced = recipe.get("name") == "fp8_delayed_scaling"
    draw = np.random.default_rng([seed, RANKS, len(batch)])
    local = ~np.array([name.endswith("/weight") for name in batch.tensor_names])
    amax, _ = batch.stat("amax")
    holder = draw.integers(RANKS, size=amax.shape)
    norm, has_norm = batch.scalar("grad_norm")
    out = {}
    for rank in range(RANKS):
        below = np.exp2(-np.abs(draw.normal(0.0, AMAX_SPREAD_LOG2, amax.shape)))
        factor = np.where(local & (holder != rank), below, 1.0)
        own_norm = norm * np.exp2(draw.normal(0.0, NORM_SPREAD_LOG2, norm.shape))
        mine = _with_amax(batch, factor, scale_too=not reduced)
        out[rank] = with_column(mine, "local_grad_norm", own_norm, has_norm)
    return out


def same_everywhere(ranks: Mapping[int, Batch], step: int, recipe: Mapping[str, Any]) -> Mapping[int, Batch]:
    """No fault: the control."""
    return ranks


def gradient_out_of_line(*, times: float) -> View:
    """One rank's gradient norm before the reduction is ``times`` the others', as on a defective device."""

    def view(ranks: Mapping[int, Batch], step: int, recipe: Mapping[str, Any]) -> Mapping[int, Batch]:
        odd = ranks[ODD_RANK]
        norm, present = odd.scalar("local_grad_norm")
        late = np.where(odd.step >= step, times, 1.0)
        return {**ranks, ODD_RANK: with_column(odd, "local_grad_norm", norm * late, present)}

    return view


def weights_part(*, per_step: float) -> View:
    """The last block's weights part on one rank by the share ``per_step`` with every step."""

    def view(ranks: Mapping[int, Batch], step: int, recipe: Mapping[str, Any]) -> Mapping[int, Batch]:
        odd = ranks[ODD_RANK]
        blocks = sorted({n.split(".")[1] for n in odd.tensor_names if n.startswith("blocks.")}, key=int)
        hit = np.array(
            [n.startswith(f"blocks.{blocks[-1]}.") and n.endswith("/weight") for n in odd.tensor_names]
        )
        age = np.maximum(odd.step[odd.stat_row] - step + 1, 0)[:, None]
        smaller = (1.0 - per_step) ** (age * hit)  # the others hold the largest value: a reduced scale stays
        apart = _with_amax(odd, smaller, scale_too=recipe.get("name") != "fp8_delayed_scaling")
        norm, present = odd.scalar("param_norm")
        late = np.maximum(odd.step - step + 1, 0)
        whole = norm * (1.0 - per_step / len(blocks)) ** late
        return {**ranks, ODD_RANK: with_column(apart, "param_norm", whole, present)}

    return view


def scales_of_own_amax(
    ranks: Mapping[int, Batch], step: int, recipe: Mapping[str, Any]
) -> Mapping[int, Batch]:
    """From the step on every rank scales inputs by its own amaxes: they are no longer reduced over the right
    group.
    """
    newest = recipe["amax_compute_algo"] == "most_recent"
    window = 1 if newest else int(recipe["amax_history_len"])
    whole = np.maximum.reduce([batch.stat("amax")[0] for batch in ranks.values()])
    out = {}
    for rank, batch in ranks.items():
        is_input = np.array([name.endswith("/input") for name in batch.tensor_names])
        late = (batch.step[batch.stat_row] > step)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = _window_max(whole, window) / _window_max(batch.stat("amax")[0], window)
        factor = np.where(late & is_input & np.isfinite(ratio) & (ratio > 0), ratio, 1.0)
        out[rank] = replace(batch, stats={**batch.stats, "scale": _times(batch.stat("scale")[0], factor)})
    return out


def _with_amax(batch: Batch, factor: Float64, *, scale_too: bool) -> Batch:
    """amax times a factor [D, S]; a scale that follows from the tensor itself, divided by it."""
    changed = {"amax": _times(batch.stat("amax")[0], factor)}
    if scale_too and "scale" in batch.stats:
        changed["scale"] = _times(batch.stat("scale")[0], 1.0 / factor)
    return replace(batch, stats={**batch.stats, **changed})


def _window_max(values: NDArray[np.float32], window: int) -> NDArray[np.float32]:
    """Row t: the maximum of the ``window`` rows before it; NaN before the first."""
    out = np.full(values.shape, np.nan, np.float32)
    for back in range(1, window + 1):
        out[back:] = np.fmax(out[back:], values[:-back])
    return out


def _times(values: NDArray[np.float32], factor: Float64) -> NDArray[np.float32]:
    with np.errstate(invalid="ignore", over="ignore"):
        return (values * factor).astype(np.float32)
