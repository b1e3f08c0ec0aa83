"""Scales per block: powers of two, on the right side of the maximum, for shapes that do not divide."""

from __future__ import annotations

import math

import pytest
import torch

from floatscope_trainer.emulated.blocks import BlockShape, block_scales, expand_blocks

ROW_128, SQUARE_128 = BlockShape(1, 128, "down"), BlockShape(128, 128, "down")
ROW_32 = BlockShape(1, 32, "e8m0")


@pytest.mark.parametrize("shape", [ROW_128, SQUARE_128, ROW_32])
def test_scales_are_powers_of_two_that_just_fit(shape: BlockShape) -> None:
    values = torch.randn(130, 200, generator=torch.Generator().manual_seed(1)).exp()
    scales = block_scales(values, shape=shape, limit=448.0)
    assert scales.shape == torch.Size(shape.grid(values.shape))
    assert bool((torch.frexp(scales).mantissa == 0.5).all())
    spread = expand_blocks(scales, shape=shape, like=values)
    assert (values * spread).max().item() <= 448.0
    first = values[: shape.rows, : shape.columns].abs().max() * scales[0, 0]
    assert 224.0 < first.item() <= 448.0


def test_block_with_nothing_usable_has_scale_one() -> None:
    values = torch.zeros(2, 256)
    values[0, 128] = math.inf
    values[1, :128] = math.nan
    assert block_scales(values, shape=ROW_128, limit=448.0).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_nan_in_a_block_leaves_the_scale_of_the_rest() -> None:
    values = torch.full((1, 128), 7.0)
    values[0, 3] = math.nan
    assert block_scales(values, shape=ROW_128, limit=448.0).item() == 64.0


def test_exact_power_of_two_is_not_rounded_up() -> None:
    values = torch.full((1, 32), 448.0)
    assert block_scales(values, shape=ROW_32, limit=448.0).item() == 1.0
    assert block_scales(values * 1.0001, shape=ROW_32, limit=448.0).item() == 0.5


def test_e8m0_ends() -> None:
    values = torch.zeros(1, 64)
    values[0, 32] = math.inf
    assert block_scales(values, shape=ROW_32, limit=448.0).tolist() == [[2.0**127, 2.0**-127]]


def test_square_blocks_transpose() -> None:
    values = torch.randn(200, 140, generator=torch.Generator().manual_seed(2))
    direct = block_scales(values, shape=SQUARE_128, limit=448.0)
    assert torch.equal(block_scales(values.t(), shape=SQUARE_128, limit=448.0), direct.t())
