"""Time of one linear layer on a GPU, in BF16 and in a recipe: the one roofline that all parts share.

torchao's (torchao/testing/training/roofline_utils.py), simplified. With T tokens, K features in and N out the
forward and both gradient products take t16 = 6TKN / (0.78 P16) in BF16 and t8 = 6TKN / (0.78 P8) + bytes of
casts / (0.92 bandwidth) + launches in a recipe; either is at least its products' memory traffic.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from floatscope.hardware.gpus import GpuModel

TERA = 1e12


@dataclass(frozen=True)
class Casts:
    """What a recipe's casts and products cost; the fields are explained in roofline.json.

    cast_bytes: as factors of T*K, K*N and T*N.
    """

    peak: Literal["fp8", "fp4"]
    cast_bytes: tuple[float, float, float]
    launches: int
    fused_norm: bool
    gemm_share: Mapping[str, float]
    source: str

    def peak_tflops(self, gpu: GpuModel) -> float | None:
        """Dense peak of its format on this GPU, None where it has none or none is known."""
        return gpu.fp8_tflops if self.peak == "fp8" else gpu.fp4_tflops

    def share_of_gemm(self, gpu: GpuModel) -> float:
        """What its products reach of what per-tensor FP8 reaches of the same peak."""
        major = gpu.arch if gpu.capability is None else str(gpu.capability[0])
        return self.gemm_share.get(major, 1.0)


@dataclass(frozen=True)
class Roofline:
    """The table of roofline.json. gemm_share, bandwidth_share: of the peaks, reached.  launch_s: of one cast
    kernel.  gain_factor: by which a linear's predicted gain is multiplied.  recipes: by the protocol's names.
    """

    gemm_share: float
    bandwidth_share: float
    launch_s: float
    gain_factor: float
    source: str
    recipes: Mapping[str, Casts]


@cache
def roofline() -> Roofline:
    """The table."""
    text = files("floatscope.hardware").joinpath("roofline.json").read_text("utf-8")
    table: Mapping[str, Any] = json.loads(text)
    recipes = {
        key: Casts(**{**row, "cast_bytes": tuple(float(x) for x in row["cast_bytes"])})
        for key, row in table["recipes"].items()
    }
    words = ("gemm_share", "bandwidth_share", "launch_s", "gain_factor", "source")
    return Roofline(**{word: table[word] for word in words}, recipes=recipes)


def casts_of(recipe: str) -> Casts | None:
    """The costs of a recipe by the protocol's name, None of one the table does not have."""
    return roofline().recipes.get(recipe)


def bf16_seconds(tokens: float, k: float, n: float, gpu: GpuModel) -> float:
    """Forward and both gradients of one linear in BF16, in seconds: the slower of compute and memory."""
    compute = 6 * tokens * k * n / (gpu.bf16_tflops * TERA * roofline().gemm_share)
    return max(compute, 3 * 2.0 * _values(tokens, k, n) / _bytes_per_s(gpu))


def low_seconds(
    tokens: float,
    k: float,
    n: float,
    gpu: GpuModel,
    casts: Casts,
    *,
    after_norm: bool = False,
    grouped: float = 1.0,
) -> float:
    """The same in a recipe, in seconds, casts and launches included, no gain factor.

    after_norm: a norm stands in front of the linear, which a recipe may fuse with the cast.  grouped: linears
    that share one grouped product and its launches, as the experts of a layer.

    Raises:
        ValueError: the GPU has no such format.
    """
    table, peak = roofline(), casts.peak_tflops(gpu)
    if not peak:
        raise ValueError(f"{gpu.name} has no {casts.peak} products, or none whose peak is known")
    compute = 6 * tokens * k * n / (peak * TERA * table.gemm_share * casts.share_of_gemm(gpu))
    width = 1.0 if casts.peak == "fp8" else 0.5
    products = max(compute, 3 * width * _values(tokens, k, n) / _bytes_per_s(gpu))
    of_input, of_weight, of_output = casts.cast_bytes
    saved = 2 if casts.fused_norm and after_norm else 0
    moved = (of_input - saved) * tokens * k + of_weight * k * n + of_output * tokens * n
    return products + moved / _bytes_per_s(gpu) + casts.launches * table.launch_s / grouped


def speedup(
    tokens: float,
    k: float,
    n: float,
    gpu: GpuModel,
    casts: Casts,
    *,
    after_norm: bool = False,
    grouped: float = 1.0,
) -> float:
    """How many times faster than BF16 one linear is; a gain is multiplied by 0.8, a loss is left as it is.

    Raises:
        ValueError: the GPU has no such format.
    """
    low = low_seconds(tokens, k, n, gpu, casts, after_norm=after_norm, grouped=grouped)
    ratio = bf16_seconds(tokens, k, n, gpu) / low
    return 1 + roofline().gain_factor * (ratio - 1) if ratio > 1 else ratio


def _values(tokens: float, k: float, n: float) -> float:
    """Values that one of the three products touches: both operands and the result."""
    return tokens * k + k * n + tokens * n


def _bytes_per_s(gpu: GpuModel) -> float:
    return gpu.bandwidth_tb_s * TERA * roofline().bandwidth_share
