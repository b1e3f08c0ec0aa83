"""Delayed scaling: the rule that turns a history of amax into the next scale, and the state it works on.

The rule is that of Transformer Engine's fused kernel (`common/recipe/delayed_scaling.cu`, `kernel_bulk`),
special cases included.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from floatscope_trainer.emulated.recipes import AmaxAlgo

FLT_MAX = torch.finfo(torch.float32).max


class DelayedScalingState:
    """One direction's state of one module, with the names of Transformer Engine's RecipeState.

    scale: float32 (slots,), multiplies into FP8.  amax_history: float32 (length, slots); row 0 is the open
    pass, the last row the newest finished one.  Both are views into a `ScalingArena`: change them in place.
    """

    def __init__(self, *, scale: Tensor, amax_history: Tensor) -> None:
        self.scale = scale
        self.amax_history = amax_history


class ScalingArena:
    """The state of all modules of a model in one direction, side by side, so that one update serves them all.

    slot_fp8_max: largest value of each slot's format, one per column.  The first pass runs with scale 1, as
    in Transformer Engine.
    """

    def __init__(self, slot_fp8_max: Sequence[float], *, history_len: int) -> None:
        self.fp8_max = torch.tensor(slot_fp8_max, dtype=torch.float32)
        self.scale = torch.ones(len(slot_fp8_max))
        self.amax_history = torch.zeros(history_len, len(slot_fp8_max))

    def columns(self, first: int, count: int) -> DelayedScalingState:
        """The views that one module owns."""
        part = slice(first, first + count)
        return DelayedScalingState(scale=self.scale[part], amax_history=self.amax_history[:, part])

    def update(self, *, algo: AmaxAlgo, margin: int) -> None:
        """Ends a pass: rolls the histories and sets the scales of the next one."""
        update_scales(self.amax_history, self.scale, fp8_max=self.fp8_max, algo=algo, margin=margin)


def update_scales(
    amax_history: Tensor, scale: Tensor, *, fp8_max: Tensor, algo: AmaxAlgo, margin: int
) -> None:
    """Transformer Engine's update, in place.

    amax_history: (length, slots), row 0 = amax of the pass just ended.  scale, fp8_max: (slots,).
    - A pass with amax 0 did not use the tensor: its history is not rolled and its scale stays.
    - "max" takes the largest of the whole window including the row that is about to leave; `fmaxf` drops NaN.
    - scale = (fp8_max / amax) / 2^margin if amax is finite and above 0, else the old scale; an infinite
    result becomes FLT_MAX.
    """
    newest = amax_history[0].clone()
    used = newest != 0  # NaN counts as used, as in the kernel
    if algo == "max":
        window = amax_history.nan_to_num(nan=0.0, posinf=torch.inf).amax(dim=0)
        window.mul_(used)  # inf * False would be NaN: not finite either, and the scale stays in both cases
    else:
        window = newest
    rolled = torch.cat([amax_history[1:], newest.unsqueeze(0)])
    rolled[0] = 0
    torch.where(used, rolled, amax_history, out=amax_history)
    usable = torch.isfinite(window) & (window > 0)
    wanted = (fp8_max * 2.0**-margin / window).clamp_(max=FLT_MAX)
    torch.where(usable, wanted, scale, out=scale)
