"""Where and when something begins, what the held-out loss says about it, and the numbers to show."""

from __future__ import annotations

import re

from floatscope_diagnostics.episodes import Symptom
from floatscope_diagnostics.rule import Evidence, RunFacts, Symptoms

HELD_OUT_SHARE = 0.35  # of the training loss's step; less is the model following new data
FOLLOWS_SHARE = 0.25  # of the held-out step: going on upwards, the model is following other data
SAME_RISE_LOG2 = 0.5  # one element alone raises the rms by half of log2 of the element count less
_BLOCK = re.compile(r".*?\d+(?=\.|/|$)")
LEARNABLE_NATS = 1.5  # 90 % random labels cost 4 nats at once, and 3 nats of held-out loss ten steps later
LATER_ROWS = 4  # behind the last clipped step; a sum over high losses takes as long to forget one spike
ABRUPT_SHARE = 0.6  # of a step, gained from one row to the next; what grows gains it bit by bit
JUMP_ROWS = 16  # behind the first sign of a shift, where a sum that began on noise meets the step itself
NOTICED_ROWS = 8  # a fast average over six rows notices a step within them
ABRUPT_LOSS_SHARE = 0.5  # of the loss above its level, gained in one step
SAME_ROWS = 4  # a change that crosses the network does so inside one step; levels find it in the same row


def producer_of(tensor: str, run: RunFacts) -> str | None:
    """The layer whose output ``tensor``, an input, is made of: the one before it in forward order."""
    layers: list[str] = []
    for name in run.forward_order:
        layer = name.rpartition("/")[0]
        if not layers or layers[-1] != layer:
            layers.append(layer)
    layer = tensor.rpartition("/")[0]
    at = layers.index(layer) if layer in layers else 0
    return layers[at - 1] if at > 0 else None


def first_step_forward(onset: int, symptoms: Symptoms, run: RunFacts, *, rank: int) -> str | None:
    """The operation in front of the first input, in forward order, whose size stepped at an onset."""
    found = [
        t
        for s in symptoms.near("rms_step", onset, before=2, after=SAME_ROWS)
        if s.rank == rank
        for t in s.first
    ]
    order = {name: k for k, name in enumerate(run.forward_order)}
    first = min(found, key=lambda t: order.get(t, len(order)), default=None)
    if first is None:
        return None
    layer = first.rpartition("/")[0] if first.endswith("/output") else producer_of(first, run)
    return None if layer is None else f"{layer}/output"


def loss_stepped_at(shift: Symptom, symptoms: Symptoms) -> int:
    """Where a lasting step of the loss began: at its jump, since the sum may have begun on noise before it.

    A jump after the shift was proven is a part of it: it must not move what has been reported.
    """
    last = shift.onset if shift.detected is None else shift.detected
    jumps = symptoms.near("loss_jump", shift.onset, before=2, after=JUMP_ROWS)
    return next((j.onset for j in jumps if j.onset <= last), shift.onset)


def stepped(climb: Symptom, symptoms: Symptoms) -> bool:
    """Whether the loss of a climb went up in one step: the data or an operation, see data shift.

    The turn of a noisy loss lies long before such a step; that the climb was noticed within a few rows of the
    step tells.
    """
    noticed = climb.onset if climb.detected is None else climb.detected
    near = {
        n: symptoms.near(n, noticed, before=NOTICED_ROWS) for n in ("loss_jump", "gradients_step", "rms_step")
    }
    abrupt_loss = any(j.extra.get("step", 0.0) > ABRUPT_LOSS_SHARE * j.value for j in near["loss_jump"])
    return abrupt_loss or bool(near["gradients_step"] or near["rms_step"])


def held_out_step(onset: int, size: float, symptoms: Symptoms) -> Symptom | None:
    """A step of the held-out loss together with the training loss's, of ``size`` nats.

    Other data moves it too, since the model follows, but less at first and more with every evaluation; a
    model that computes something else is worse at once and learns to live with it. After a step of more than
    LEARNABLE_NATS the model may have followed its data by the next evaluation: then it tells nothing.
    """
    if size > LEARNABLE_NATS:
        return None
    for h in symptoms.near("eval_jump", onset, before=2, after=16):
        if h.value > HELD_OUT_SHARE * size and h.extra.get("next", 0.0) <= FOLLOWS_SHARE * h.value:
            return h
    return None


def effect_outlasts(step: Symptom, symptoms: Symptoms) -> bool:
    """Whether the loss or the gradients stay changed after a delayed scale has followed the tensor."""
    clips = [c for c in symptoms.near("clipping", step.onset, before=1, after=1) if c.rank == step.rank]
    end = max((c.last for c in clips), default=step.onset) + LATER_ROWS * symptoms.stride
    for name in ("loss_shift", "gradients_step"):
        for x in symptoms.near(name, step.onset, before=4, after=3):
            rows = x.extra.get("total_high", 0.0) if name == "loss_shift" else x.rows
            if x.rank == step.rank and x.last > end and rows >= LATER_ROWS:
                return True
    return False


def abrupt(step: Symptom) -> bool:
    """Whether a step of a tensor's size came from one row to the next."""
    return step.extra.get("jump", step.value) >= ABRUPT_SHARE * step.value


def observed(s: Symptom) -> Evidence:
    """A symptom of the run's scalars in the scalar's own unit, beside the level it left."""
    level = s.expected or 0.0
    normal = f"near {level:.3g}"
    if s.signal in ("loss_jump", "loss_shift"):
        return Evidence("loss", s.peak_step, level + s.peak, normal)
    if s.signal in ("grad_norm_jump", "grad_norm_shift"):
        return Evidence("grad_norm", s.peak_step, level * 2.0 ** min(s.peak, 1000.0), normal)
    if s.signal == "weights_jump":
        return Evidence("param_norm, log2 change in one step", s.peak_step, s.peak, "below 0.02")
    if s.signal == "loss_nonfinite":
        return Evidence("loss", s.onset, s.value, "finite")
    return Evidence(s.signal, s.peak_step, s.peak, normal)


def bad_values(s: Symptom) -> Evidence:
    """How many values of the first tensor named were not finite; the count is that tensor's own.

    Without a count (only a statistic was NaN or Inf) the value is missing.
    """
    count = s.extra.get("count", s.value)
    return Evidence("nan_count + inf_count", s.onset, count if count > 0 else None, "0", s.tensor)


def whole_tensor(jump: Symptom, symptoms: Symptoms) -> bool:
    """Whether a weight's rms rose as its largest element did: all of it is larger, not one element."""
    return any(
        set(w.tensors) & set(jump.first) and abs(w.value - jump.value) < SAME_RISE_LOG2
        for w in symptoms.near("weight_step", jump.onset, before=1, after=1)
    )


def first_block(layer: str, run: RunFacts) -> bool:
    """Whether a layer belongs to the first numbered block of the network, or lies in front of it."""
    blocks = [m[0] for t in run.forward_order if (m := _BLOCK.match(t)) is not None]
    mine = _BLOCK.match(layer)
    return not blocks or mine is None or mine[0] == blocks[0]
