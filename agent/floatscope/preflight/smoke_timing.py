"""Seconds of one GEMM on a GPU, by CUDA events, with buffers larger than the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from floatscope.preflight.smoke_gemm import scaled_mm

GemmTimer = Callable[[str, int, int, int, str], float]
"""(kind "bf16" or "fp8", m, k, n, device) -> seconds of one GEMM."""
WARM_UPS = 20
AT_LEAST_S = 0.5
CACHE_BYTES = 256 * 2**20
"""More than any L2 so far: buffers are taken in turn until they exceed it."""
MOST_BUFFERS = 16
MOST_QUEUED = 20_000


def time_gemm(kind: str, m: int, k: int, n: int, device: str) -> float:
    """Seconds of one GEMM, the mean of at least half a second of them after warm-ups.

    fp8: E4M3 with one scale a tensor and fast accumulation, as recipes use it forward. Raises what torch
    raises.
    """
    import torch

    with torch.cuda.device(device), torch.no_grad():
        turn = _turn(kind, m, k, n, device)
        for index in range(WARM_UPS):
            turn(index)
        calls = max(1, int(AT_LEAST_S / max(_seconds(turn, 5), 1e-7)))
        return _seconds(turn, calls)


def queue_gemms(seconds: float) -> Callable[[], None]:
    """Queues about so many seconds of 4,096-squared BF16 GEMMs on the first GPU and returns what waits for
    their end. Raises what torch raises.
    """
    import torch

    size = 4096
    one = time_gemm("bf16", size, size, size, "cuda:0")
    with torch.cuda.device("cuda:0"), torch.no_grad():
        turn = _turn("bf16", size, size, size, "cuda:0")
        for index in range(min(MOST_QUEUED, max(1, int(seconds / one)))):
            turn(index)
    return torch.cuda.synchronize


def _turn(kind: str, m: int, k: int, n: int, device: str) -> Callable[[int], Any]:
    """One GEMM on the next pair of buffers."""
    import torch

    size = 2 if kind == "bf16" else 1
    pairs = min(MOST_BUFFERS, -(-CACHE_BYTES // (size * (m * k + k * n))))
    dtype = torch.bfloat16 if kind == "bf16" else torch.float8_e4m3fn
    draw = [
        (
            torch.randn(m, k, device=device, dtype=torch.bfloat16).to(dtype),
            torch.randn(n, k, device=device, dtype=torch.bfloat16).to(dtype),
        )
        for _ in range(pairs)
    ]
    if kind == "bf16":
        return lambda index: draw[index % pairs][0] @ draw[index % pairs][1].t()
    one = torch.ones((), device=device)
    return lambda index: scaled_mm(draw[index % pairs][0], draw[index % pairs][1].t(), one, one, fast=True)


def _seconds(turn: Callable[[int], Any], calls: int) -> float:
    import torch

    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    begin.record()
    for index in range(calls):
        turn(index)
    end.record()
    end.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / 1000 / calls
