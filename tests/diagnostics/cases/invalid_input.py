from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors

FAULT = 130


def nan_from_the_embedding(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """NaN in the embedding at FAULT: everything in the same step, weights one step later; amax drops NaN."""
    if step < FAULT:
        return
    scalars["loss"] = scalars["grad_norm"] = scalars["update_norm"] = float("nan")
    for name, stats in tensors.items():
        if not name.endswith("weight") or step > FAULT:
            stats["nan_count"] = 64.0
        if name.endswith("weight"):
            stats["grad_norm"] = stats["update_ratio"] = float("nan")


def no_labels(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step == FAULT:
        scalars["label_tokens"] = 0.0
        scalars["loss"] = float("nan")


def bad_ids(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step == FAULT:
        scalars["input_id_max"] = 50257.0


def good_ids(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    scalars["input_id_max"] = 999.0


def absurd_values(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """One batch of features in other units."""
    tensors["tok_emb/output"]["amax"] *= 1.0 + 0.02 * (step % 5)
    if step == FAULT:
        tensors["tok_emb/output"]["amax"] *= 3000.0
        scalars["loss"] += 5.0


ABSURD = Run(after=absurd_values)
NAN = Run(after=nan_from_the_embedding)
EMPTY = Run(after=no_labels)
IDS = Run(after=bad_ids)
CRASHED = Run(extra_run={"status": "crashed", "reason": "IndexError: index out of range in self"})
ASSERTED = Run(
    extra_run={"status": "failed", "reason": "RuntimeError: CUDA error: device-side assert triggered"}
)
OUT_OF_MEMORY = Run(
    extra_run={"status": "crashed", "reason": "torch.cuda.OutOfMemoryError: CUDA out of memory"}
)
FINE = Run(after=good_ids)

CASES = [
    Case(
        "values out of all range",
        ABSURD.info(),
        ABSURD.rows(),
        (Want("invalid_input", (FAULT, FAULT), "out_of_range_values", "tok_emb/output"),),
    ),
    Case(
        "NaN in the first tensor of the network",
        NAN.info(),
        NAN.rows(),
        (Want("invalid_input", (FAULT, FAULT), "nonfinite_values", "tok_emb/output"),),
    ),
    Case(
        "a batch without labels",
        EMPTY.info(),
        EMPTY.rows(),
        (Want("invalid_input", (FAULT, FAULT), "empty_targets"),),
    ),
    Case(
        "an id above the vocabulary",
        IDS.info(),
        IDS.rows(),
        (Want("invalid_input", (FAULT, FAULT), "id_out_of_range"),),
    ),
    Case(
        "a crash by index error",
        CRASHED.info(),
        CRASHED.rows(),
        (Want("invalid_input", (160, 160), "id_out_of_range"),),
    ),
    Case(
        "a device-side assert",
        ASSERTED.info(),
        ASSERTED.rows(),
        (Want("invalid_input", (160, 160), "id_out_of_range"),),
    ),
    Case("a crash for lack of memory says nothing about ids", OUT_OF_MEMORY.info(), OUT_OF_MEMORY.rows()),
    Case("ids up to the last of the vocabulary", FINE.info(), FINE.rows()),
]
