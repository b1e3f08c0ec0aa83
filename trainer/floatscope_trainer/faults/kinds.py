"""The list of all faults: what each does, what it acts on, what its strength means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from floatscope_trainer.faults.fault import Fault, Scene
from floatscope_trainer.faults.injection import Injection
from floatscope_trainer.faults.inputs import (
    GPT2_VOCABULARY,
    INF,
    NAN,
    BadBatch,
    IdOutOfRange,
    LabelsIgnored,
    LearningRateTimes,
    NonfiniteEmbedding,
)
from floatscope_trainer.faults.quantizer import HistoryPoison, RoundTowardZero, StaleScale
from floatscope_trainer.faults.scale import (
    DegenerateAmax,
    FallingScale,
    FixedScale,
    HistoryLost,
    ScaleFrozen,
    ScaleOverwritten,
)
from floatscope_trainer.faults.weights import Bf16Weights, BitFlip, WrongOp

Reach = Literal["cast", "fp8_cast", "delayed", "weight", "output", "none"]
"""What a fault acts on: any cast, an FP8 cast, a delayed-scaling state, a weight, a layer's output, or no
tensor at all.
"""

REACH_TEXT = {
    "cast": "a tensor",
    "fp8_cast": "an FP8 tensor",
    "delayed": "a tensor with delayed scaling",
    "weight": "a layer/weight",
    "output": "a layer/output",
    "none": "no tensor",
}


@dataclass(frozen=True)
class FaultKind:
    """One fault in the list.

    make: from (scene, injection, names of the tensors) to the fault.  reach: what its tensors must be.
    default_tensor: the glob used when none is given; None means one must be given (or, with reach "none",
    none may be).  strength: what the number means, "" if it takes none.  strength_range: lowest and highest.
    """

    name: str
    text: str
    reach: Reach
    make: Callable[[Scene, Injection, Sequence[str]], Fault]
    default_tensor: str | None = None
    strength: str = ""
    strength_range: tuple[float, float] = (0.0, 1e30)

    @property
    def needs_tensor(self) -> bool:
        """Whether an injection without a tensor is wrong."""
        return self.reach != "none" and self.default_tensor is None


def _or(strength: float | None, default: float) -> float:
    return default if strength is None else strength


FAULTS: tuple[FaultKind, ...] = (
    FaultKind(
        "nan_input",
        "one token's embedding is NaN in one step's batch",
        "none",
        lambda scene, i, _: NonfiniteEmbedding(scene, step=i.step, value=NAN),
    ),
    FaultKind(
        "inf_input",
        "one token's embedding is infinite in one step's batch",
        "none",
        lambda scene, i, _: NonfiniteEmbedding(scene, step=i.step, value=INF),
    ),
    FaultKind(
        "id_out_of_range",
        "one token id is outside the vocabulary: the run crashes, as it would on a GPU",
        "none",
        lambda scene, i, _: IdOutOfRange(scene, step=i.step, token_id=_or(i.strength, GPT2_VOCABULARY)),
        strength="the id (50257)",
    ),
    FaultKind(
        "labels_ignored",
        "every label of one step is the ignored one",
        "none",
        lambda scene, i, _: LabelsIgnored(scene, step=i.step),
    ),
    FaultKind(
        "bad_batch",
        "random characters in place of text",
        "none",
        lambda scene, i, _: BadBatch(scene, step=i.step, steps=_or(i.strength, 1)),
        strength="steps in a row (1)",
    ),
    FaultKind(
        "lr_spike",
        "the learning rate is multiplied from the step on",
        "none",
        lambda scene, i, _: LearningRateTimes(scene, step=i.step, factor=_or(i.strength, 20)),
        strength="factor (20)",
    ),
    FaultKind(
        "stale_scale",
        "the tensor is larger at the cast from the step on, and divided again behind it",
        "cast",
        lambda scene, i, tensors: StaleScale(scene, step=i.step, tensors=tensors, factor=_or(i.strength, 16)),
        strength="factor (16)",
        strength_range=(1e-30, 1e30),
    ),
    FaultKind(
        "history_poison",
        "one element is an outlier when amax is taken, in one step",
        "delayed",
        lambda scene, i, tensors: HistoryPoison(
            scene, step=i.step, tensors=tensors, factor=_or(i.strength, 1e5)
        ),
        strength="times amax (1e5)",
    ),
    FaultKind(
        "scale_frozen",
        "scales are no longer updated from the step on",
        "delayed",
        lambda scene, i, tensors: ScaleFrozen(scene, step=i.step, tensors=tensors),
        default_tensor="*",
    ),
    FaultKind(
        "scale_nan",
        "the scale is NaN for one pass",
        "delayed",
        lambda scene, i, tensors: ScaleOverwritten(scene, step=i.step, tensors=tensors, value=NAN),
    ),
    FaultKind(
        "scale_inf",
        "the scale is infinite for one pass: the tensor silently becomes zeros",
        "delayed",
        lambda scene, i, tensors: ScaleOverwritten(scene, step=i.step, tensors=tensors, value=INF),
    ),
    FaultKind(
        "history_lost",
        "histories are empty and scales 1 at the step, as after a resume without them",
        "delayed",
        lambda scene, i, tensors: HistoryLost(scene, step=i.step, tensors=tensors),
        default_tensor="*",
    ),
    FaultKind(
        "degenerate_amax",
        "amax is 0 in one step and the next scale 448 / 0, for lack of a guard",
        "delayed",
        lambda scene, i, tensors: DegenerateAmax(scene, step=i.step, tensors=tensors),
    ),
    FaultKind(
        "gradient_underflow",
        "the gradients' scale is a constant far too low from the step on",
        "fp8_cast",
        lambda scene, i, tensors: FixedScale(scene, step=i.step, tensors=tensors, value=i.strength),
        default_tensor="*/grad_output",
        strength="the scale (E5M2 2^-6, E4M3 1)",
        strength_range=(1e-38, 1e38),
    ),
    FaultKind(
        "gradient_scale_falls",
        "the gradients' scale sinks below the right one, bit by bit",
        "delayed",
        lambda scene, i, tensors: FallingScale(
            scene, step=i.step, tensors=tensors, bits=_or(i.strength, 0.8)
        ),
        default_tensor="*/grad_output",
        strength="bits a step (0.8)",
    ),
    FaultKind(
        "round_to_zero",
        "casts round toward zero from the step on",
        "fp8_cast",
        lambda scene, i, tensors: RoundTowardZero(scene, step=i.step, tensors=tensors),
        default_tensor="*",
    ),
    FaultKind(
        "bf16_weights",
        "weights are kept in bf16 from the step on, without a float32 master copy",
        "none",
        lambda scene, i, _: Bf16Weights(scene, step=i.step),
    ),
    FaultKind(
        "wrong_op",
        "the first 64 output columns of a layer are multiplied by a factor from the step on",
        "output",
        lambda scene, i, tensors: WrongOp(scene, step=i.step, tensors=tensors, factor=_or(i.strength, 0)),
        strength="factor (0)",
        strength_range=(-1e30, 1e30),
    ),
    FaultKind(
        "bit_flip",
        "one bit of one element of a weight flips",
        "weight",
        lambda scene, i, tensors: BitFlip(scene, step=i.step, tensors=tensors, bit=_or(i.strength, 30)),
        strength="bit (30, the highest of the exponent)",
        strength_range=(0, 31),
    ),
)
"""Every fault, in the order of `--inject list`."""
