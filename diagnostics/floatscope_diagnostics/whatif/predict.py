"""Predicts from a histogram what formats do to a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from floatscope.protocol.formats import FORMATS
from floatscope_diagnostics.whatif.block_kinds import BlockKind, block_kind
from floatscope_diagnostics.whatif.block_model import amax_weights, as_logged, with_block_scales
from floatscope_diagnostics.whatif.density import Floats, points_of
from floatscope_diagnostics.whatif.flags import Flag, flags_of, flags_of_points, is_concentrated
from floatscope_diagnostics.whatif.grids import grids, variants
from floatscope_diagnostics.whatif.own_error import with_own_error
from floatscope_diagnostics.whatif.scales import scales
from floatscope_diagnostics.whatif.spread import ROW, Spread
from floatscope_diagnostics.whatif.tensor_model import Losses, with_one_scale
from floatscope_diagnostics.whatif.unlike_blocks import UnlikeBlocks, unlike_blocks, with_unlike_blocks
from floatscope_diagnostics.whatif.variant import Predicted, Variant

POINTS_TENSOR, POINTS_BLOCK = 48, 24  # in a bin


@dataclass(frozen=True)
class Answer:
    """What was asked of a tensor: one Predicted a variant, and what makes them doubtful."""

    predicted: tuple[Predicted, ...]
    flags: tuple[Flag, ...]


def predict(spread: Spread, wanted: Sequence[Variant] | None = None) -> tuple[Predicted, ...]:
    """One Predicted for each variant, all there are by default. Never raises on odd statistics."""
    return answer(spread, wanted).predicted


def answer(spread: Spread, wanted: Sequence[Variant] | None = None) -> Answer:
    """As ``predict``, with the flags."""
    asked = tuple(wanted) if wanted is not None else variants()
    n = spread.n
    if not n:
        why = "the histogram holds no non-zero values" if spread.counts.size else "no histogram"
        flag = Flag("all_zero", "Every value is zero: nothing can be said about other formats.")
        return Answer(tuple(_unknown(variant, why) for variant in asked), (flag,))
    model = _Model(spread)
    sizes = {_size(v, spread.row_length) for v in asked if v.granularity in ("row", "block")}
    logged = sorted(sizes & set(_LOGGED), key=_LOGGED.index)
    found = tuple(model.of(variant) for variant in asked)
    kinds = {size: model.kind(size) for size in logged}
    return Answer(found, flags_of(spread) + flags_of_points(model.fine, kinds))


_ENOUGH_BITS = 3
"""Of the mantissa: with E4M3's range it hardly matters which values share a block of 128 x 128."""
_LOGGED = (16, 32, 128, ROW)


class _Model:
    """The distribution of one tensor, and what was worked out from it for several variants."""

    def __init__(self, spread: Spread) -> None:
        self.spread = spread
        self.fine = points_of(spread, POINTS_TENSOR)
        self._coarse = points_of(spread, POINTS_BLOCK)
        self._is_concentrated = is_concentrated(self.fine)
        self._kinds: dict[int, BlockKind] = {}
        self._sizes: dict[int, UnlikeBlocks] = {}
        self._amaxes: dict[int, Floats] = {}

    def of(self, variant: Variant) -> Predicted:
        if variant.granularity in ("none", "tensor"):
            return self._with_one_scale(variant)
        return self._with_blocks(variant)

    def _with_one_scale(self, variant: Variant) -> Predicted:
        grid = grids()[variant.format]
        if variant.scale == "given":
            scale = _given(self.spread, grid.max)
            if scale is None:
                return _unknown(variant, "the run logged no scale of a format with one scale per tensor")
        else:
            amax = self.fine.x[-1:]
            scale = float(scales(amax, grid, variant.scale, float(amax[0]))[0])
        losses = with_one_scale(self.fine, grid, scale)
        return self._answer(variant, losses, "tensor")

    def _with_blocks(self, variant: Variant) -> Predicted:
        size = _size(variant, self.spread.row_length)
        elements = self.spread.row_length if variant.granularity == "row" else variant.block
        if elements is None:
            return _unknown(variant, "the length of a row was not logged")
        row = self.spread.row_length
        if row is not None and variant.granularity == "block":
            elements = min(elements, row * variant.block_rows)
        elements = min(elements, max(self.spread.n, 1))
        kind = self.kind(size)
        state, zero = kind.state, kind.zero_share
        grid = grids()[variant.format]
        losses = self._losses(variant, size, elements, zero)
        rest = row % elements if row is not None and variant.granularity == "block" else 0
        if rest and variant.block_rows == 1:  # a row ends in a shorter block
            losses = losses.mixed(self._losses(variant, size, elements, zero, rest), rest / (row or 1))
        found = self._answer(variant, losses, state)
        if state == "unlike" and size not in self._sizes:
            why = "blocks are not alike, and the spread of their amax was not logged"
            return replace(found, valid=False, why_not=why)
        if variant.block_rows > 1 and self.kind(128 if elements > 512 else 16).state == "unlike":
            why = "blocks within rows are not alike, and of blocks of several rows no spread is logged"
            return replace(found, valid=False, why_not=why)
        if variant.block_rows > 1 and grid.mantissa_bits < _ENOUGH_BITS:
            why = "of blocks of several rows no spread is logged, on which so few bits depend"
            return replace(found, valid=False, why_not=why)
        return found

    def _losses(
        self, variant: Variant, size: int, elements: int, zero_share: float, rest: int | None = None
    ) -> Losses:
        """Of blocks of so many elements, or of the rest of a row, of which no spread is logged."""
        grid, kind = grids()[variant.format], variant.scale
        whole = float(self._coarse.x[-1])
        logged = self.spread.blocks.get(size)
        if logged is not None and self.kind(size).state == "unlike":
            if size not in self._sizes:
                self._sizes[size] = unlike_blocks(self._coarse, elements, logged, zero_share)
            model = self._sizes[size]
            if rest is not None:
                model = replace(model, p=amax_weights(model.z, rest, zero_share))
            return with_unlike_blocks(model, grid, kind, rest or elements, whole)
        p = None
        if logged is not None and logged.mean is not None and rest is None:
            if size not in self._amaxes:
                iid = amax_weights(self._coarse, elements, zero_share)
                self._amaxes[size] = as_logged(self._coarse, iid, logged.sd, logged.mean)
            p = self._amaxes[size]
        return with_block_scales(
            self._coarse, grid, kind, rest or elements, whole, p=p, zero_share=zero_share
        )

    def kind(self, size: int) -> BlockKind:
        """Of the blocks of this size; where rows are alike, it is channels that blocks differ by."""
        if size not in self._kinds:
            found = block_kind(self.spread, self.fine, size)
            if found.state == "unlike" and size != ROW and self.kind(ROW).state in ("alike", "even"):
                found = replace(found, state="even")
            self._kinds[size] = found
        return self._kinds[size]

    def _answer(self, variant: Variant, losses: Losses, blocks: str) -> Predicted:
        found = Predicted(
            variant=variant,
            underflow_pct=100.0 * min(max(losses.under, 0.0), 1.0),
            overflow_pct=100.0 * min(max(losses.over, 0.0), 1.0),
            sqnr_db=losses.sqnr_db,
            bulk_sqnr_db=losses.bulk_sqnr_db,
            sqnr_chance_db=losses.chance_db,
        )
        return with_own_error(found, blocks=blocks, is_concentrated=self._is_concentrated)


def _size(variant: Variant, row_length: int | None) -> int:
    """Of the variant's blocks, as ``Spread.blocks`` names them; a block of a whole row is a row."""
    block = variant.block or 0
    is_row = row_length is not None and variant.block_rows == 1 and block >= row_length
    return ROW if variant.granularity == "row" or is_row else block


def _given(spread: Spread, largest: float) -> float | None:
    """The scale that the run's own would be in a format with another maximum: with the same headroom."""
    used = FORMATS.get(spread.format_in_use or "")
    scale = spread.scale
    has_blocks = spread.amax_min_block is not None
    if scale is None or used is None or not used.is_scaled or used.block_size is not None or has_blocks:
        return None
    if not math.isfinite(scale) or scale <= 0:
        return None
    return scale / used.max_finite * largest


def _unknown(variant: Variant, why: str) -> Predicted:
    return Predicted(variant, None, None, None, valid=False, why_not=why)
