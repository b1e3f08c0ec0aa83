"""Number formats:

their limits, measured with ``torch.finfo`` and equal to the OCP OFP8 and MX 1.0 specifications.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class FloatFormat:
    """One number format.

    max_finite: largest finite value.  min_normal, min_subnormal: smallest positive values with and without
    full precision. eps: distance from 1 to the next larger value.  has_inf: whether a code for infinity
    exists. block_size: elements that share a scale, or None where a scale is per tensor or there is none.
    """

    name: str
    max_finite: float
    min_normal: float
    min_subnormal: float
    eps: float
    has_inf: bool
    block_size: int | None = None

    @property
    def is_scaled(self) -> bool:
        """Whether tensors in this format carry a scale (FP8 and smaller)."""
        return self.name not in ("bf16", "fp16", "fp32")


_E4M3 = (448.0, 2.0**-6, 2.0**-9, 0.125)
_E5M2 = (57344.0, 2.0**-14, 2.0**-16, 0.25)

FORMATS: Mapping[str, FloatFormat] = MappingProxyType(
    {
        f.name: f
        for f in (
            FloatFormat("e4m3", *_E4M3, has_inf=False),
            FloatFormat("e5m2", *_E5M2, has_inf=True),
            FloatFormat("e4m3fnuz", 240.0, 2.0**-7, 2.0**-10, 0.125, has_inf=False),
            FloatFormat("mxfp8_e4m3", *_E4M3, has_inf=False, block_size=32),
            FloatFormat("mxfp8_e5m2", *_E5M2, has_inf=True, block_size=32),
            FloatFormat("nvfp4", 6.0, 1.0, 0.5, 0.5, has_inf=False, block_size=16),
            FloatFormat("bf16", 3.3895313892515355e38, 2.0**-126, 2.0**-133, 2.0**-7, has_inf=True),
            FloatFormat("fp16", 65504.0, 2.0**-14, 2.0**-24, 2.0**-10, has_inf=True),
            FloatFormat("fp32", 3.4028234663852886e38, 2.0**-126, 2.0**-149, 2.0**-23, has_inf=True),
        )
    }
)
"""Format by its name in the protocol."""
