from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import LAYERS, Change, Run, Tensors, all_of

BEHIND = "blocks.1.attn.qkv/input"
LATE = 170  # a step of a tensor's size is told from its level, which takes some time to learn
STEPS = 110


def gradients_fall(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """The residual stream is far too large: the loss goes up and all gradients become small."""
    if step >= LATE:
        scalars["loss"] += 1.5
        for stats in all_of(tensors, "grad_output"):
            stats["rms"] /= 20.0


def harder_data(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """The look-alike: gradients grow with the loss."""
    if step >= LATE:
        scalars["loss"] += 1.5
        for stats in all_of(tensors, "grad_output"):
            stats["rms"] *= 3.0


def leaps(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= LATE:
        tensors[BEHIND]["amax"] *= 6.0  # and its rms with it


def leaves_a_tile_out(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    for layer in LAYERS:
        tensors[f"{layer}/input"]["zero_pct"] = 0.0
    if step >= LATE:
        tensors[BEHIND]["zero_pct"] = 25.0
        scalars["zero_grad_pct"] = 12.0


def gradient_apart(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """The backward of one operation is wrong by a factor: gradients in front of it are as before."""
    for stats in all_of(tensors, "grad_output"):
        stats["rms"] = 2.5e-4 * (1.0 + 0.1 * (step % 3))
    if step >= LATE:
        tensors["blocks.1.attn.qkv/grad_output"]["rms"] *= 9.0


def held_out_steps(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """No tensor tells where, but the loss on the fixed held-out batch steps as well."""
    if step % 10 == 9:
        scalars["eval_loss"] = 2.6 + (0.9 - 0.01 * (step - LATE) if step >= LATE else 0.0)
    if step >= LATE:
        scalars["loss"] += 1.2


def _late(change: Change) -> Run:
    return Run(after=change, steps=STEPS)


CURRENT = Run(before=leaps, steps=STEPS, recipe="fp8_current_scaling")
CASES = [
    Case("all gradients fall while the loss goes up", _late(gradients_fall).info(),
         _late(gradients_fall).rows(),
         (Want("op_kernel_fault", (LATE, LATE), None, "blocks.1.mlp.fc2/output"),)),
    Case("gradients that grow with the loss are the data", _late(harder_data).info(),
         _late(harder_data).rows(), (Want("data_shift", (LATE, LATE)),)),
    Case("one layer's input leaps under current scaling", CURRENT.info(), CURRENT.rows(),
         (Want("op_kernel_fault", (LATE, LATE), None, "blocks.0.mlp.fc2/output"),)),
    Case("a tile of zeros", _late(leaves_a_tile_out).info(), _late(leaves_a_tile_out).rows(),
         (Want("op_kernel_fault", (LATE, LATE), None, "blocks.0.mlp.fc2/output"),)),
    Case("one gradient leaps out of line", _late(gradient_apart).info(), _late(gradient_apart).rows(),
         (Want("op_kernel_fault", (LATE, LATE), None, "blocks.1.attn.qkv/grad_output"),)),
    Case("training and held-out loss step together", _late(held_out_steps).info(),
         _late(held_out_steps).rows(), (Want("op_kernel_fault", (LATE, LATE)),)),
    Case("healthy", _late(lambda step, tensors, scalars: None).info(),
         _late(lambda step, tensors, scalars: None).rows()),
]  # fmt: skip
