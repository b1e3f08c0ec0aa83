"""The table of GPUs: dense peaks, memory and bandwidth, looked up by the names people and drivers use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuModel:
    """One GPU model. Peaks are dense tensor-core TFLOP/s with FP32 accumulation, None where it has none or
    none is known.

    name: as people write it ("H100 SXM").  capability: CUDA compute capability, None on AMD.  arch: "gfx942"
    on AMD, "sm_90" on NVIDIA.  memory_gb, bandwidth_tb_s: 10^9 and 10^12 bytes.  source: of the numbers.
    verified: False for numbers that were never confirmed; they must be shown as such.
    """

    name: str
    capability: tuple[int, int] | None
    arch: str
    bf16_tflops: float
    fp8_tflops: float | None
    fp4_tflops: float | None
    memory_gb: float
    bandwidth_tb_s: float
    source: str
    verified: bool = True
