"""Loss scaling of ``torch.amp.GradScaler``: the scale and the steps it skipped, without waiting.

``GradScaler.get_scale()`` waits for the device; the tensor behind it can be read like any other. A step was
skipped when, and only when, the scale fell.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floatscope.guard import Area
from floatscope.probes.readout import Readout
from floatscope.rows import Row


def find_scaler() -> Any:
    """The process's only enabled GradScaler, or None if there is none or more than one."""
    kind = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    named = [thing for thing in gc.get_objects() if type(thing).__name__.endswith("GradScaler")]
    live = [scaler for scaler in named if isinstance(scaler, kind) and scaler.is_enabled()]
    return live[0] if len(live) == 1 else None


class LossScalerProbe:
    """Reads one scaler at the end of each step, after its ``update``."""

    def __init__(self, scaler: Any, *, area: Area) -> None:
        self._scaler = scaler
        self._area = area
        unused = getattr(scaler, "_scale", None) is None  # before its first use a scaler has no tensor
        self._skips = _Skips(getattr(scaler, "_init_scale", None) if unused else None)

    def collect(self, readout: Readout) -> None:
        """Hands the scale's tensor over."""
        if self._area.tripped:
            return
        with self._area:
            scale = getattr(self._scaler, "_scale", None)
            if isinstance(scale, Tensor):
                readout.add(scale, self._skips.add)


class _Skips:
    """Counts falls of the scale, in the sender's thread.  before: the scale of the first step, if known."""

    def __init__(self, before: float | None) -> None:
        self._before = before
        self._total = 0

    def add(self, values: NDArray[np.float64], row: Row) -> None:
        """Writes ``loss_scale``, the one in force during the step, and ``skipped_steps``.

        Values that the training loop has given itself stay.
        """
        after = float(values[0])
        before, self._before = self._before, after
        if before is None:
            return
        self._total += after < before
        row.scalars.setdefault("loss_scale", before)
        row.scalars.setdefault("skipped_steps", float(self._total))
