"""One step of a run in several precisions, each from the same checkpoint, and what came out.

The steps between the checkpoint and the one in question are trained as they were, each time anew: only so do
faults, scale histories and random states stand where they stood.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from torch import Tensor

from floatscope_trainer.config import Precision
from floatscope_trainer.training import Training


@dataclass(frozen=True)
class Variant:
    """A way to run the step.

    name: as it is printed.  precision: of the layers named, None for as it was.  layers: None for all.
    """

    name: str
    precision: Precision | None = None
    layers: tuple[str, ...] | None = None


@dataclass(frozen=True)
class GradError:
    """How far gradients are from those with FP8 off.

    whole: norm of the difference of all gradients over the norm of those with FP8 off.  worst: the same of
    the one weight where it is largest.  worst_weight: its name.
    """

    whole: float
    worst: float
    worst_weight: str


@dataclass(frozen=True)
class Outcome:
    """What one variant gave.

    loss, grad_norm: of the step, NaN and infinity as they come.  error: of its gradients; None where they, or
    those with FP8 off, are not finite.
    """

    variant: Variant
    loss: float
    grad_norm: float
    error: GradError | None = None

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradients are."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


Gradients = Mapping[str, Tensor]
Build = Callable[[], Training]
"""Makes the run anew, at its checkpoint."""


def run_step(build: Build, variant: Variant, *, step: int) -> tuple[Outcome, Gradients]:
    """Trains up to ``step`` as it was, and ``step`` itself in the variant. Returns the gradients too."""
    training = build()
    while training.next_step < step:
        training.step(see_batch=lambda batch: None)
    backend = training.backend
    changed = (
        nullcontext()
        if variant.precision is None
        else backend.in_precision(variant.precision, layers=variant.layers)
    )
    with changed:
        record = training.step(see_batch=lambda batch: None)
    gradients = {
        name: p.grad.detach().clone() for name, p in training.model.named_parameters() if p.grad is not None
    }
    return Outcome(variant, record.loss, record.grad_norm), _unclipped(gradients, record.grad_norm)


def error_of(gradients: Gradients, reference: Gradients) -> GradError | None:
    """The error of gradients against the reference's; None if it has no number."""
    sizes = {name: float(g.double().square().sum()) for name, g in reference.items()}
    squares = {
        name: float((g.double() - reference[name].double()).square().sum()) for name, g in gradients.items()
    }
    total = sum(sizes.values())
    if not total or not math.isfinite(total) or not math.isfinite(sum(squares.values())):
        return None
    shares = {name: math.sqrt(squares[name] / sizes[name]) for name in squares if sizes[name]}
    worst = max(shares, key=lambda name: shares[name])
    return GradError(math.sqrt(sum(squares.values()) / total), shares[worst], worst)


def _unclipped(gradients: Gradients, norm: float) -> Gradients:
    """The gradients as they were before they were clipped to a smaller norm."""
    now = math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
    if not math.isfinite(norm) or not math.isfinite(now) or now == 0:
        return gradients
    return {name: g * (norm / now) for name, g in gradients.items()}
