"""Everything a training run is told, as frozen values, and how it survives in a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from floatscope_trainer.emulated.casts import CAST_MODES, CastMode
from floatscope_trainer.emulated.recipes import (
    AMAX_ALGOS,
    AmaxAlgo,
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    MXFP8BlockScaling,
    Recipe,
)

Precision = Literal["fp32", "bf16", "fp16", "fp8"]
RecipeName = Literal["delayed", "current", "block", "mxfp8"]
Backend = Literal["emulated", "transformer_engine"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
RECIPE_NAMES: tuple[RecipeName, ...] = get_args(RecipeName)
BACKENDS: tuple[Backend, ...] = get_args(Backend)

CHOICES: Mapping[str, tuple[str, ...]] = {
    "precision": PRECISIONS,
    "recipe": RECIPE_NAMES,
    "backend": BACKENDS,
    "cast": CAST_MODES,
    "amax_compute_algo": AMAX_ALGOS,
}
"""Values of the fields of PrecisionConfig that are words."""

PROTOCOL_RECIPES = {
    "delayed": "fp8_delayed_scaling",
    "current": "fp8_current_scaling",
    "block": "fp8_block_scaling",
    "mxfp8": "mxfp8",
    "bf16": "bf16",
    "fp16": "fp16_amp",
    "fp32": "fp32",
}
"""Our words for a precision or recipe to the protocol's recipe names."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the GPT.  hidden: width of the SwiGLU between fc1 and fc2.  context: tokens a sequence."""

    layers: int = 3
    width: int = 96
    heads: int = 3
    hidden: int = 256
    context: int = 64
    vocab_size: int = 0  # set from the text

    def parameters(self) -> int:
        """Number of weights in the matrices."""
        block = 4 * self.width * self.width + 3 * self.width * self.hidden
        return self.layers * block + 2 * self.vocab_size * self.width


@dataclass(frozen=True)
class PrecisionConfig:
    """How the linear layers compute.

    precision_map: layer-wise exceptions, see `precision.py`.  cast: the rule of FP8 casts in the emulation.
    """

    precision: Precision = "fp8"
    recipe: RecipeName = "delayed"
    backend: Backend = "emulated"
    amax_history_len: int = 32
    amax_compute_algo: AmaxAlgo = "max"
    margin: int = 0
    cast: CastMode = "saturating"
    precision_map: str = ""

    def fp8_recipe(self) -> Recipe:
        """The recipe object that FP8 layers carry."""
        if self.recipe == "delayed":
            return DelayedScaling(
                margin=self.margin,
                amax_history_len=self.amax_history_len,
                amax_compute_algo=self.amax_compute_algo,
            )
        stateless = {"current": Float8CurrentScaling, "block": Float8BlockScaling, "mxfp8": MXFP8BlockScaling}
        return stateless[self.recipe]()

    def protocol_recipe(self) -> dict[str, Any]:
        """The recipe as the floatscope log describes it."""
        if self.precision != "fp8":
            return {"name": PROTOCOL_RECIPES[self.precision]}
        recipe = self.fp8_recipe()
        described: dict[str, Any] = {
            "name": PROTOCOL_RECIPES[self.recipe],
            "fp8_format": recipe.fp8_format.name,
            "saturating_cast": self.cast != "nonsaturating",
        }
        if isinstance(recipe, DelayedScaling):
            described |= {
                "margin": recipe.margin,
                "amax_history_len": recipe.amax_history_len,
                "amax_compute_algo": recipe.amax_compute_algo,
                "reduce_amax": recipe.reduce_amax,
            }
        return described


@dataclass(frozen=True)
class OptimConfig:
    """AdamW with warm-up and cosine decay.

    lr: peak.  min_lr: at the end, as a fraction of lr.  decay_steps: the step at which min_lr is reached; 0
    means the last step.
    clip: largest global gradient norm.
    """

    lr: float = 1e-3
    min_lr: float = 0.05
    warmup: int = 40
    decay_steps: int = 0
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0


@dataclass(frozen=True)
class TrainConfig:
    """One run.

    batch: sequences a micro-batch.  passes: micro-batches a step.  data: the user's text files, empty for the
    bundled text.
    eval_every: steps between evaluations on a fixed batch, 0 for none.  init_loss_scale, growth_interval:
    fp16 only.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    steps: int = 300
    batch: int = 4
    passes: int = 1
    seed: int = 0
    data: tuple[str, ...] = ()
    eval_every: int = 0
    init_loss_scale: float = 2.0**16
    growth_interval: int = 200

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, obj: dict[str, Any]) -> TrainConfig:
        """The config from `to_json`. Raises TypeError or ValueError on a field or value that cannot be."""
        parts = {
            "model": ModelConfig(**obj["model"]),
            "precision": PrecisionConfig(**obj["precision"]),
            "optim": OptimConfig(**obj["optim"]),
            "data": tuple(obj["data"]),
        }
        made = cls(**{**obj, **parts})
        for part in (made, made.model, made.precision, made.optim):
            _check_types(part)
        for name, allowed in CHOICES.items():
            if getattr(made.precision, name) not in allowed:
                raise ValueError(f"{name}: expected one of {', '.join(allowed)}")
        return made


def _check_types(made: TrainConfig | ModelConfig | PrecisionConfig | OptimConfig) -> None:
    default = type(made)()
    for field_ in dataclasses.fields(made):
        value, expected = getattr(made, field_.name), type(getattr(default, field_.name))
        fits = isinstance(value, (int, float) if expected is float else expected)
        if not fits or isinstance(value, bool):
            raise TypeError(f"{field_.name}: expected {expected.__name__}, got {value!r}")
