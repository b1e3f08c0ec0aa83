"""Measures tensors where they are: on the CPU, on a GPU by one fused kernel, or by eager operations."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from floatscope.guard import Guard
from floatscope.probes.exponents import exponents
from floatscope.probes.measure import on_device
from floatscope.probes.row_sample import row_sample
from floatscope.protocol.formats import FORMATS, FloatFormat

MOST_ELEMENTS = 2**24
"""A larger tensor is sampled by rows: eager operations need several copies of it in float32."""

MOST_FUSED_ELEMENTS = 2**31 - 2**20
"""The fused kernel needs no copies."""


class DeviceCounters:
    """Measures tensors of GPUs and other devices without waiting.

    The fused kernel needs triton and a C compiler, as torch.compile does. Without, or if it fails once, eager
    operations do the same with some seventy kernels instead of two.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._fused: Any = None
        self._is_tried = False

    def measure(
        self,
        x: Tensor,
        used: Tensor | None,
        scale: Tensor | None,
        fmt: FloatFormat | None,
        *,
        with_histogram: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """``measure.on_device``'s vector, and ``exponents.exponents`` where a histogram is wanted."""
        fused = self._kernel() if self.is_fused_for(x) else None
        if fused is not None:
            try:
                vector, _ = fused.measure(x, used, scale, fmt, with_histogram=False)
            except Exception as error:  # whatever a compiler or a driver may say: eager operations remain
                self._fused = None
                self._guard.say_once(
                    "fused",
                    f"the fused kernel for tensor statistics cannot be used ({_short(error)}); "
                    "eager operations are used instead, which are slower.",
                    level=logging.INFO,
                )
            else:
                return vector, _histogram(x) if with_histogram else None
        vector = on_device(x, used, scale, fmt)
        return vector, _histogram(x) if with_histogram else None

    def prepare(self, device: torch.device, dtypes: Iterable[torch.dtype], *, with_casts: bool) -> None:
        """Has the kernel compiled for tensors of these dtypes, which takes seconds once per machine.

        Else the first sampled step would wait for it.  with_casts: also for tensors that are cast.
        """
        for dtype in dtypes:
            x = torch.zeros((64, 256), dtype=dtype, device=device)
            if not self.is_fused_for(x) or self._kernel() is None:
                return
            self.measure(x, None, None, None, with_histogram=False)
            if with_casts:
                one = torch.ones((), device=device)
                self.measure(x, x.float(), one, FORMATS["e4m3"], with_histogram=False)

    def most_elements(self, x: Tensor) -> int:
        """Up to which size a tensor like x is measured whole."""
        is_fused = self.is_fused_for(x) and self._kernel() is not None
        return MOST_FUSED_ELEMENTS if is_fused else MOST_ELEMENTS

    def is_fused_for(self, x: Tensor) -> bool:
        """Whether x is of a kind that the fused kernel takes: a plain tensor of a CUDA device."""
        return x.device.type == "cuda" and type(x) in (Tensor, torch.nn.Parameter)

    def _kernel(self) -> Any:
        if not self._is_tried:
            self._is_tried = True
            if importlib.util.find_spec("triton") is not None:
                from floatscope.probes import counters_triton

                self._fused = counters_triton
        return self._fused


def _histogram(x: Tensor) -> Tensor:
    """Of a tensor that was measured whole because that needs no copies; counting exponents does."""
    sample = row_sample(x, None, most=MOST_ELEMENTS)
    return exponents(x if sample is None else sample.of(x))


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
