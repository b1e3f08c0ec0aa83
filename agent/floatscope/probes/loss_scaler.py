"""Loss scaling of ``torch.amp.GradScaler``: the scale and the steps it skipped, without waiting.

``GradScaler.get_scale()`` waits for the device; the tensor behind it can be read like any other. A step was
skipped when, and only when, the scale fell.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from floatscope.guard import Area
from floatscope.probes.probe import Probe
from floatscope.probes.readout import Readout
from floatscope.rows import Row

SCALERS = frozenset({"GradScaler", "ShardedGradScaler"})
_MOST_FRAMES = 12


def find_scaler() -> Any:
    """The process's only enabled GradScaler, or None if there is none or more than one.

    A walk over all objects, some 50 ms: for the start of a run. It may be one that a run before has left;
    the optimizer's first step shows which one is in use.
    """
    live = [thing for thing in gc.get_objects() if _is_scaler(thing)]
    return live[0] if len(live) == 1 else None


def calling_scaler() -> Any:
    """The GradScaler whose ``step`` is calling the optimizer now, or None.

    Only frames of the scaler's own methods are opened: reading another function's locals would keep them
    alive for as long as that function runs.
    """
    frame: Any = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        code = frame.f_code
        if code.co_name in ("step", "_maybe_opt_step") and code.co_filename.endswith("grad_scaler.py"):
            found = frame.f_locals.get("self")
            return found if _is_scaler(found) else None
        frame = frame.f_back
    return None


def _is_scaler(thing: Any) -> bool:
    return type(thing).__name__ in SCALERS and hasattr(type(thing), "unscale_") and bool(thing.is_enabled())


class ScalerWatch(Probe):
    """Reads the scaler in use at the end of each step, after its ``update``.

    given: the scaler the user names; else the only one of the process, or the one that calls the optimizer.
    devices: kinds of device the parameters are on; a scale elsewhere is another run's.
    """

    def __init__(self, given: Any, *, area: Area, devices: Collection[str] = ()) -> None:
        self._given = given
        self._devices = devices
        self._area = area
        self._reading: LossScalerProbe | None = None
        self._is_in_use = False

    @property
    def is_on(self) -> bool:
        """Whether there is a scaler."""
        return self._reading is not None

    def install(self) -> None:
        """Looks for one."""
        found = self._given or find_scaler()
        scale = getattr(found, "_scale", None)
        if found is self._given or not isinstance(scale, Tensor) or scale.device.type in self._devices:
            self._take(found)

    def look_at_caller(self) -> None:
        """Called from within the optimizer's step: the scaler that is calling it is the one in use."""
        caller = calling_scaler()
        self._is_in_use = caller is not None
        self._take(self._given or caller)

    def scale_of(self, optimizer: Any) -> Tensor | None:
        """What the optimizer's gradients are multiplied by now: None once they are unscaled, or without a
        scaler that is known to be in use: one that was merely found may be another run's."""
        scaler = self._given or (self._reading.scaler if self._reading and self._is_in_use else None)
        scale = getattr(scaler, "_scale", None)
        states = getattr(scaler, "_per_optimizer_states", None)
        if not isinstance(scale, Tensor) or not isinstance(states, dict):
            return None
        state = states.get(id(optimizer))  # a defaultdict: get adds nothing
        stage = getattr(state.get("stage") if isinstance(state, dict) else None, "name", "READY")
        return scale.detach() if stage == "READY" else None

    def _take(self, scaler: Any) -> None:
        if scaler is None:
            self._reading = None
        elif self._reading is None or self._reading.scaler is not scaler:
            self._reading = LossScalerProbe(scaler, area=self._area)

    def collect(self, readout: Readout, row: Row) -> None:
        """See Probe."""
        if self._reading is not None:
            self._reading.collect(readout)

    def remove(self) -> None:
        """Lets the scaler go."""
        self._reading = None


class LossScalerProbe:
    """Reads one scaler at the end of each step, after its ``update``."""

    def __init__(self, scaler: Any, *, area: Area) -> None:
        self.scaler = scaler
        self._area = area
        scale = getattr(scaler, "_scale", None)  # before its first use a scaler has no tensor
        self._first = scale.detach().clone() if isinstance(scale, Tensor) else None
        self._skips = _Skips(getattr(scaler, "_init_scale", None) if scale is None else None)

    def collect(self, readout: Readout) -> None:
        """Hands the scale's tensor over."""
        if self._area.tripped:
            return
        with self._area:
            if self._first is not None:
                readout.add(self._first, self._skips.start)
                self._first = None
            scale = getattr(self.scaler, "_scale", None)
            if isinstance(scale, Tensor):
                readout.add(scale, self._skips.add)


class _Skips:
    """Counts falls of the scale, in the sender's thread.  before: the scale of the first step, if known."""

    def __init__(self, before: float | None) -> None:
        self._before = before
        self._total = 0

    def start(self, values: NDArray[np.float64], row: Row) -> None:
        """The scale in force when the first step began."""
        self._before = float(values[0])

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
