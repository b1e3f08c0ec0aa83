from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import LAYERS, Run, Tensors

FAULT = 130
LATE = 160  # how a gradient fits what it is made of takes some time to learn
WEIGHT = "blocks.0.mlp.fc2/weight"


def weight_first(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """The weight itself is NaN at FAULT; the forward of that step is, too, from there on."""
    if step < FAULT:
        return
    scalars["loss"] = scalars["grad_norm"] = float("nan")
    tensors[WEIGHT]["nan_count"] = 8.0
    for name, stats in tensors.items():
        if name.startswith("blocks.1") or name.endswith("grad_output"):
            stats["nan_count"] = 3.0


def fits(tensors: Tensors) -> None:
    """Gradients of the weights as large as what goes into them makes them."""
    for layer in LAYERS:
        x, g = tensors[f"{layer}/input"]["rms"], tensors[f"{layer}/grad_output"]["rms"]
        tensors[f"{layer}/weight"]["grad_norm"] = 500.0 * x * g


def zeros_come_and_go(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """A buffer is read before it is full in two steps of three."""
    if step >= FAULT and step % 3:
        scalars["zero_grad_pct"] = 6.0 + step * 37 % 17


def gradients_come_and_go(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """A quarter of a layer's gradient counts sixteen times, now in one layer and now in another."""
    fits(tensors)
    if step >= LATE and step % 2:
        tensors[f"{LAYERS[step // 2 % 4]}/weight"]["grad_norm"] *= 2.2


def clipped_now_and_then(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """All layers alike: the norm is clipped."""
    fits(tensors)
    for layer in LAYERS:
        tensors[f"{layer}/weight"]["grad_norm"] *= 0.1 if step % 5 == 0 else 1.0


def hard_batches_in_a_burst(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """As a young, deep model has them: in seven steps of twenty few tokens carry the gradient. All layers'
    gradients are larger than their inputs make them, each by another factor."""
    fits(tensors)
    if LATE <= step < LATE + 21 and step % 3 == 0:
        for k, layer in enumerate(LAYERS):
            octaves = 1.0 + (0.9, 0.0, 0.7, -0.8)[(k + step // 3) % 4]
            tensors[f"{layer}/weight"]["grad_norm"] *= 2.0**octaves
        scalars["grad_norm"] *= 4.0


def zeros_stay(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """The look-alike: every step loses as much."""
    if step >= FAULT:
        scalars["zero_grad_pct"] = 16.0


TWO = Run(after=weight_first, extra_run={"ranks": 2})
ZEROS = Run(after=zeros_come_and_go)
MISFIT = Run(after=gradients_come_and_go, steps=110)
BURST = Run(after=hard_batches_in_a_burst, steps=110)
CLIPPED = Run(after=clipped_now_and_then, steps=110)
SUM = Run(after=zeros_stay)
CASES = [
    Case("a parameter is NaN first", TWO.info(), TWO.rows(),
         (Want("comm_overlap_race", (FAULT, FAULT), None, WEIGHT),)),
    Case("zero gradients come and go", ZEROS.info(), ZEROS.rows(),
         (Want("comm_overlap_race", (FAULT, FAULT + 3)),)),
    Case("the gradients of single layers are wrong in single steps", MISFIT.info(), MISFIT.rows(),
         (Want("comm_overlap_race", (LATE, LATE + 4)),)),
    Case("hard batches in a burst: layers scatter as far as all moved", BURST.info(), BURST.rows()),
    Case("clipping makes all gradients smaller", CLIPPED.info(), CLIPPED.rows()),
    Case("zero gradients that stay are a sum in too few bits", SUM.info(), SUM.rows(),
         (Want("accumulation_precision", (FAULT, FAULT)),)),
    Case("healthy", Run(seed=13).info(), Run(seed=13).rows()),
]  # fmt: skip
