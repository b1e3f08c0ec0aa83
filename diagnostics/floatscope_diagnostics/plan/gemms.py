"""Time of the linear layers of one GPU in BF16 and in a recipe, and the sizes from which the recipe pays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from floatscope.hardware.gpus import GpuModel
from floatscope.hardware.roofline import bf16_seconds
from floatscope.hardware.roofline import speedup as roofline_speedup
from floatscope.model_shapes.gemm import Gemm, gemm_shapes
from floatscope.model_shapes.shape import LinearKind, ModelShape
from floatscope_diagnostics.plan.fitting import fits
from floatscope_diagnostics.plan.recipes import Recipe, recipe_table
from floatscope_diagnostics.plan.setup import Setup

SELECTIVE_AGAIN = 7 / 6
FULL_AGAIN = 8 / 6
GRID = 64
LARGEST = 65_536
MOST_TOKENS = 2**20


@dataclass(frozen=True)
class How:
    """How a linear runs. compiled: under torch.compile.  after_norm: a norm stands in front of it, which some
    recipes fuse with the cast.  grouped: linears that share one grouped product and its launches (the routed
    experts of a layer).
    """

    compiled: bool = True
    after_norm: bool = False
    grouped: float = 1.0


PLAIN = How()


@dataclass(frozen=True)
class LinearTime:
    """One kind of linear on one GPU and micro-batch, all of that kind together, recomputation included.

    bf16_s, low_s: seconds; low_s is bf16_s where it stays in BF16.  speedup: of one such linear, the gain
    factor applied.  converted: whether it goes to the recipe.
    misfit: it would, but its shape is not divisible by what the recipe asks.
    """

    gemm: Gemm
    bf16_s: float
    low_s: float
    speedup: float
    converted: bool
    misfit: bool = False
    how: How = PLAIN

    @property
    def kind(self) -> LinearKind:
        return self.gemm.kind

    @property
    def pays(self) -> bool:
        """Whether the recipe is faster on a linear of this size."""
        return self.speedup > 1.0


def linear_times(
    shape: ModelShape, gpu: GpuModel, setup: Setup, recipe: Recipe | None
) -> tuple[LinearTime, ...]:
    """The time of every linear of one GPU for one micro-batch."""
    found = gemm_shapes(
        shape, micro_batch=setup.micro_batch, sequence=setup.sequence, parallelism=setup.parallelism
    )
    return tuple(_time(gemm, gpu, setup, recipe, _how(shape, setup, gemm)) for gemm in found)


def smallest_expert(shape: ModelShape, setup: Setup) -> float:
    """Tokens x K x N of the smallest product of one routed expert, infinite without experts."""
    found = gemm_shapes(
        shape, micro_batch=setup.micro_batch, sequence=setup.sequence, parallelism=setup.parallelism
    )
    sizes = [float(gemm.tokens) * gemm.k * gemm.n for gemm in found if gemm.kind == "expert"]
    return min(sizes, default=math.inf)


def _how(shape: ModelShape, setup: Setup, gemm: Gemm) -> How:
    grouped = shape.experts / setup.parallelism.expert if gemm.kind == "expert" else 1.0
    return How(setup.compiled, gemm.after_norm, max(grouped, 1.0))


def _time(gemm: Gemm, gpu: GpuModel, setup: Setup, recipe: Recipe | None, how: How) -> LinearTime:
    bf16 = bf16_seconds(gemm.tokens, gemm.k, gemm.n, gpu) * gemm.on_rank * again(setup)
    if recipe is None:
        return LinearTime(gemm, bf16, bf16, 1.0, False)
    converts = gemm.kind != "router" and (gemm.kind != "head" or setup.fp8_head)
    if converts and not fits(gemm, gpu, recipe.key, recipe.library, setup.parallelism):
        return LinearTime(gemm, bf16, bf16, 1.0, False, misfit=True)
    gain = speedup(gemm.tokens, gemm.k, gemm.n, gpu, recipe, how)
    return LinearTime(gemm, bf16, bf16 / gain if converts else bf16, gain, converts, how=how)


def again(setup: Setup) -> float:
    """By how much recomputation multiplies the three matrix products of a linear. Per-op selective
    recomputation repeats every second forward product; full repeats all; eager scores repeat none.
    """
    if setup.recompute == "full":
        return FULL_AGAIN
    return SELECTIVE_AGAIN if setup.recompute == "selective" and setup.attention == "flash" else 1.0


def speedup(tokens: float, k: float, n: float, gpu: GpuModel, recipe: Recipe, how: How = PLAIN) -> float:
    """How many times faster than BF16 one linear is, by the roofline; torchao's casts need torch.compile."""
    if not how.compiled and recipe.library == "torchao":
        return recipe_table().uncompiled_speedup
    return roofline_speedup(tokens, k, n, gpu, recipe.casts, after_norm=how.after_norm, grouped=how.grouped)


def break_even_square(tokens: int, gpu: GpuModel, recipe: Recipe) -> int | None:
    """The smallest K = N, a multiple of 64, at which the recipe is faster at this T; None: at no size."""
    return _first(LARGEST, lambda size: speedup(tokens, size, size, gpu, recipe) > 1)


def break_even_tokens(k: int, n: int, gpu: GpuModel, recipe: Recipe, how: How = PLAIN) -> int | None:
    """The fewest tokens per GEMM, a multiple of 64, from which the recipe is faster for this K and N; None:
    not even a million are enough.
    """
    return _first(MOST_TOKENS, lambda tokens: speedup(tokens, k, n, gpu, recipe, how) > 1)


def _first(most: int, pays: Callable[[int], bool]) -> int | None:
    """The smallest multiple of 64 that pays; what is larger pays too, because casts and launches grow slower
    than the products.
    """
    low, high = 0, most // GRID
    if not pays(high * GRID):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle * GRID) else (middle, high)
    return high * GRID
