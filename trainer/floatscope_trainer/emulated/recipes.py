"""FP8 recipes with the names Transformer Engine gives them (`transformer_engine/common/recipe`), so that one
probe reads both.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, get_args

from floatscope.protocol.formats import FORMATS, FloatFormat

AmaxAlgo = Literal["max", "most_recent"]
AMAX_ALGOS: tuple[AmaxAlgo, ...] = get_args(AmaxAlgo)


class Format(Enum):
    """Formats of forward and backward tensors. Pure E5M2 is left out: Transformer Engine refuses it in every
    recipe.
    """

    E4M3 = ("e4m3", "e4m3")
    HYBRID = ("e4m3", "e5m2")

    def of(self, role: str) -> FloatFormat:
        """The format of a tensor with this role: the second of the two for `grad_output`."""
        forward, backward = self.value
        return FORMATS[backward if role == "grad_output" else forward]


@dataclass(frozen=True)
class Recipe:
    """What all recipes share; a recipe is asked what it is, never tested by class."""

    fp8_format: Format

    def delayed(self) -> bool:
        """Whether scales come from a history of amax."""
        return isinstance(self, DelayedScaling)

    def float8_current_scaling(self) -> bool:
        """Whether one scale per tensor comes from the tensor itself."""
        return isinstance(self, Float8CurrentScaling)

    def float8_block_scaling(self) -> bool:
        """Whether scales are per 1 x 128 (input, gradient) or 128 x 128 (weight) block."""
        return isinstance(self, Float8BlockScaling)

    def mxfp8(self) -> bool:
        """Whether power-of-two scales are per 32 elements."""
        return isinstance(self, MXFP8BlockScaling)

    def nvfp4(self) -> bool:
        """Always False: no emulation of NVFP4."""
        return False

    def custom(self) -> bool:
        """Always False."""
        return False


@dataclass(frozen=True)
class DelayedScaling(Recipe):
    """scale = (fp8_max / amax) / 2^margin with amax from the last `amax_history_len` passes. Defaults are
    Transformer Engine's.
    """

    fp8_format: Format = Format.HYBRID
    margin: int = 0
    amax_history_len: int = 1024
    amax_compute_algo: AmaxAlgo = "max"
    reduce_amax: bool = True


@dataclass(frozen=True)
class Float8CurrentScaling(Recipe):
    """scale = fp8_max / amax of the tensor that is cast."""

    fp8_format: Format = Format.HYBRID


@dataclass(frozen=True)
class Float8BlockScaling(Recipe):
    """Power-of-two scales per block of 128; E4M3 in both directions."""

    fp8_format: Format = Format.E4M3


@dataclass(frozen=True)
class MXFP8BlockScaling(Recipe):
    """E8M0 scales per block of 32 (OCP MX 1.0), rounded up as Transformer Engine does; E4M3 in both
    directions.
    """

    fp8_format: Format = Format.E4M3
