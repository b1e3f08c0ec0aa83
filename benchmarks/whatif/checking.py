"""One tensor: what is predicted from its histogram beside what casting it gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from floatscope_diagnostics.whatif.grids import grids, quantize, variant, variants
from floatscope_diagnostics.whatif.measure import measured
from floatscope_diagnostics.whatif.predict import answer, predict
from floatscope_diagnostics.whatif.spread import spread_of
from floatscope_diagnostics.whatif.tensor_model import CAST_LIMIT

HEADROOMS = (-2.0, 0.0, 3.0, 8.0)
"""In bits, of scales that are given: below 0 values overflow."""


@dataclass(frozen=True)
class Miss:
    """Prediction minus truth of one variant on one tensor; None where either cannot be said.

    told_underflow_pct, told_sqnr_db: the error that the prediction itself names.  chance_db: the standard
    deviation of SQNR that it gives to chance.
    """

    kind: str
    key: str
    data_class: str
    underflow_pct: float
    overflow_pct: float
    sqnr_db: float | None
    bulk_sqnr_db: float | None
    is_valid: bool
    told_underflow_pct: float | None = None
    told_sqnr_db: float | None = None
    chance_db: float | None = None


@dataclass(frozen=True)
class Checked:
    """All variants of one tensor, and the codes of what was flagged."""

    misses: tuple[Miss, ...]
    flags: frozenset[str]


def check(kind: str, values: NDArray[np.float32]) -> Checked:
    """Compares on one tensor. values: [rows, columns], finite, not all zero."""
    spread = spread_of(values)
    asked = tuple(one for one in variants() if one.scale != "given")
    told, truth = answer(spread, asked), measured(values, asked)
    misses = []
    for guess, real in zip(told.predicted, truth.found, strict=True):
        if guess.underflow_pct is None or real.underflow_pct is None:
            continue
        misses.append(
            Miss(
                kind,
                guess.variant.key,
                guess.data_class,
                guess.underflow_pct - real.underflow_pct,
                (guess.overflow_pct or 0.0) - (real.overflow_pct or 0.0),
                _difference(guess.sqnr_db, real.sqnr_db),
                _difference(guess.bulk_sqnr_db, real.bulk_sqnr_db),
                guess.valid,
                guess.underflow_error_pct,
                guess.sqnr_error_db,
                guess.sqnr_chance_db,
            )
        )
    return Checked((*misses, *_given(kind, values)), frozenset(flag.code for flag in told.flags))


def _given(kind: str, values: NDArray[np.float32]) -> Iterator[Miss]:
    """Scales of earlier steps, as delayed scaling has them."""
    x = values.astype(np.float64).ravel()
    filled = np.count_nonzero(x)
    for key in ("e4m3_tensor_as_used", "e5m2_tensor_as_used"):
        one = variant(key)
        grid = grids()[one.format]
        for headroom in HEADROOMS:
            scale = grid.max / float(np.abs(x).max()) * 2.0**-headroom
            spread = replace(spread_of(values), scale=scale, format_in_use=one.format)
            guess = predict(spread, (one,))[0]
            value = quantize(x * scale, grid)
            noise = float(((x - value / scale) ** 2).sum())
            under = 100.0 * (filled - np.count_nonzero(value)) / filled
            over = 100.0 * np.count_nonzero(np.abs(x * scale) > grid.max * CAST_LIMIT) / filled
            sqnr = 10.0 * float(np.log10((x**2).sum() / noise))
            yield Miss(
                kind,
                key,
                guess.data_class,
                (guess.underflow_pct or 0.0) - under,
                (guess.overflow_pct or 0.0) - over,
                _difference(guess.sqnr_db, sqnr),
                None,
                guess.valid,
            )


TORCH_DTYPES = {
    "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e4m3fnuz": torch.float8_e4m3fnuz,
    "bf16": torch.bfloat16,
}  # fmt: skip


def torch_misses(kind: str, values: NDArray[np.float32]) -> Iterator[Miss]:
    """What the product says of stored values beside torch's own casts of them, where torch has the format."""
    x = torch.from_numpy(values)
    filled = int(torch.count_nonzero(x))
    for key in ("bf16", "e4m3_tensor", "e5m2_tensor", "e4m3fnuz_tensor", "e4m3_row", "mxfp8_e4m3_up"):
        one = variant(key)
        dtype, limit = TORCH_DTYPES[one.format], grids()[one.format].max
        blocks = x.reshape(-1, one.block) if one.block else x
        amax = blocks.abs().amax() if one.granularity == "tensor" else blocks.abs().amax(1, keepdim=True)
        scale = torch.tensor(1.0) if one.scale == "none" else (limit / amax.double()).float()
        if one.scale == "pow2":
            scale = torch.exp2(torch.floor(torch.log2(scale)))
        cast = (blocks * scale).clamp(-limit, limit).to(dtype).float()
        noise = ((blocks - cast / scale).double() ** 2).sum().item()
        real = 10.0 * float(np.log10((x.double() ** 2).sum().item() / noise))
        under = 100.0 * (filled - int(torch.count_nonzero(cast))) / filled
        said = measured(values, (one,)).found[0]
        off = (said.underflow_pct or 0.0) - under
        yield Miss(kind, key, "sample", off, 0.0, _difference(said.sqnr_db, real), None, True)


def sample_misses(kind: str, values: NDArray[np.float32], every: int) -> Iterator[Miss]:
    """Casts of some rows beside casts of all, as of a stored sample of values whose amax was logged."""
    asked = tuple(one for one in variants() if one.scale != "given")
    amax = float(np.abs(values).max())
    rows = np.arange(len(values)) // 16 % every == 0
    some, whole = measured(values[rows], asked, whole_amax=amax), measured(values, asked)
    for part, real in zip(some.found, whole.found, strict=True):
        if part.underflow_pct is not None and real.underflow_pct is not None:
            yield Miss(
                kind,
                part.variant.key,
                "sample",
                part.underflow_pct - real.underflow_pct,
                (part.overflow_pct or 0.0) - (real.overflow_pct or 0.0),
                _difference(part.sqnr_db, real.sqnr_db),
                _difference(part.bulk_sqnr_db, real.bulk_sqnr_db),
                True,
            )


def _difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b
