from __future__ import annotations

from tests.diagnostics.case import Case, Want
from tests.diagnostics.synthetic import Run, Tensors, all_of

FAULT = 130


def rounding_away(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    if step >= FAULT:
        for stats in all_of(tensors, "/weight"):
            stats["unchanged_pct"] = 62.0


def a_little(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    for stats in all_of(tensors, "/weight"):
        stats["unchanged_pct"] = 0.5 + 0.2 * (step % 3)


def end_of_a_decay(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """Where the rate has become tiny, some values of one weight no longer move."""
    if step >= FAULT:
        tensors["blocks.0.attn.qkv/weight"]["unchanged_pct"] = 12.0


def frozen_norm(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """A norm that is frozen, or not used, from here on: it has nothing to learn, the others learn."""
    if step >= FAULT:
        tensors[NORM].update(grad_norm=0.0, update_ratio=0.0, unchanged_pct=100.0)


def norm_without_gradient(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """The same where PyTorch has no gradient at all for it."""
    frozen_norm(step, tensors, scalars)
    if step >= FAULT:
        del tensors[NORM]["grad_norm"]


def stuck_norms(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    """Norm weights near 1 in BF16: all of their updates round away, with gradients as ever."""
    if step >= FAULT:
        for name in (NORM, "blocks.1.attn.qkv/weight"):
            tensors[name]["unchanged_pct"] = 100.0


def stuck_without_gradients_logged(step: int, tensors: Tensors, scalars: dict[str, float]) -> None:
    stuck_norms(step, tensors, scalars)
    for stats in all_of(tensors, "/weight"):
        del stats["grad_norm"]


NORM = "blocks.0.attn.qkv/weight"
FROZEN, NO_GRADIENT = Run(after=frozen_norm), Run(after=norm_without_gradient)
STUCK, NO_NORMS = Run(after=stuck_norms), Run(after=stuck_without_gradients_logged)
WANT = (Want("update_stagnation", (FAULT, FAULT)),)

CASES = [
    Case("a weight whose gradient is 0", FROZEN.info(), FROZEN.rows()),
    Case("a weight that has no gradient", NO_GRADIENT.info(), NO_GRADIENT.rows()),
    Case("two norms near 1 are stuck", STUCK.info(), STUCK.rows(), WANT),
    Case("the same, gradients are not logged", NO_NORMS.info(), NO_NORMS.rows(), WANT),
    Case("most weights keep their value", Run(after=rounding_away).info(), Run(after=rounding_away).rows(),
         (Want("update_stagnation", (FAULT, FAULT)),)),
    Case("a few values of one weight", Run(after=end_of_a_decay).info(), Run(after=end_of_a_decay).rows()),
    Case("half a percent is normal", Run(after=a_little).info(), Run(after=a_little).rows()),
]  # fmt: skip
